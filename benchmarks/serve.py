"""How much of the forward pass a server keeps, what batching gains, what nine heads cost, what ONNX gains.

    python benchmarks/serve.py [--seconds 15] [--clients 32] [--options '--batch-threads 1'] [--json FILE]
    python benchmarks/serve.py --stages overload,attacks --json benchmarks/results/serve-overload.json

MiniLM on Rotten Tomatoes (package registry), in one run: first the bare forward pass and the plain loop, then
`bertvision serve` in a process of its own, asked by clients in this one. Prints each figure beside its bar.
"""

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import overload
import torch

import bertvision
from bertvision.pipeline import dev_examples, experiment_of
from bertvision.serving.onnx_export import export_onnx
from bertvision.shared_encoders import TorchEncoder
from bertvision.states import TokenBatches
from bertvision.trained_model import TrainedModel, load, load_all

HEADS = [
    "adapter:token_pooling=max",
    "adapter:token_pooling=mean",
    "adapter:token_pooling=cls",
    "adapter-skip:token_pooling=max",
    "adapter-independent:size=16,token_pooling=max",
    "learned",
    "learned:token_pooling=mean",
    "mean:token_pooling=max",
    "learned-adapter-386-skip:size=64,token_pooling=max",
]


class Client(asyncio.Protocol):
    """One connection, kept alive; as little work per request as can be, for it runs on the same cores."""

    def __init__(self) -> None:
        self.buffer = b""
        self.waiting: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, mark, body = self.buffer.partition(b"\r\n\r\n")
        if mark and self.waiting and not self.waiting.done():
            length = int(re.search(rb"content-length: (\d+)", head)[1])  # pyright: ignore[reportOptionalSubscript]
            if len(body) >= length:
                self.buffer = body[length:]
                self.waiting.set_result(head[9:12] + body[:length])

    async def ask(self, raw: bytes) -> bytes:
        """Send one request; return status and body."""
        self.waiting = asyncio.get_running_loop().create_future()
        self.transport.write(raw)  # pyright: ignore[reportAttributeAccessIssue]
        return await self.waiting


def request(items: list[str], models: list[str]) -> bytes:
    """Write a request, headers and all."""
    body = json.dumps({"items": items, "models": models}).encode()
    head = (
        f"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load_test(port: int, requests: list[bytes], clients: int, seconds: float) -> tuple[float, np.ndarray, int]:
    """Let clients ask for a while, each one after the other; return seconds, latencies and tokens answered."""
    loop, until = asyncio.get_running_loop(), time.perf_counter() + seconds
    latencies: list[float] = []
    tokens = 0

    async def client(number: int) -> None:
        nonlocal tokens
        _, own = await loop.create_connection(Client, "127.0.0.1", port)
        at = number
        while time.perf_counter() < until:
            began = time.perf_counter()
            answer = await own.ask(requests[at % len(requests)])
            latencies.append(time.perf_counter() - began)
            if not answer.startswith(b"200"):
                raise SystemExit(f"the server answered {answer[:200]!r}")
            tokens += int(re.search(rb'"tokens":(\d+)', answer)[1])  # pyright: ignore[reportOptionalSubscript]
            at += clients
        own.transport.close()

    began = time.perf_counter()
    await asyncio.gather(*map(client, range(clients)))
    return time.perf_counter() - began, np.array(latencies), tokens


def percentiles(latencies: np.ndarray) -> str:
    """Word p50 and p99."""
    p50, p99 = np.percentile(latencies, [50, 99]) * 1000
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"


def texts_of(model: TrainedModel, longest: int, about: int, count: int) -> list[str]:
    """Make texts of real sentences: of about `about` tokens, at most `longest`."""
    sentences = [example.texts[0] for example in dev_examples(experiment_of(model.run))]
    draw, made = random.Random(0), []
    lengths = dict(zip(sentences, model.encode(sentences).lengths.tolist(), strict=True))
    while len(made) < count:
        text, size = "", 2
        while size < about:
            more = draw.choice(sentences)
            if text and size + lengths[more] - 2 > longest:
                break
            text, size = f"{text} {more}".strip(), size + lengths[more] - 2
        if size <= longest:
            made.append(text)
    return made


@torch.inference_mode()
def bare(model: TrainedModel, texts: list[str], batch: int, seconds: float) -> float:
    """Return the tokens a second of the encoder alone, in batches of texts of like length."""
    shared_encoder = model.attached_heads[0].shared_encoder
    assert isinstance(shared_encoder, TorchEncoder)
    features = model.encode(texts)
    tokens = TokenBatches(features, batch, model.pad_ids)
    batches = [
        (cast("dict[str, torch.Tensor]", batch.inputs), batch.attention_mask, int(features.lengths[batch.rows].sum()))
        for batch in tokens.epoch(0)
    ]
    for inputs, mask, _ in batches[:2]:
        shared_encoder.encoder.model(**inputs, attention_mask=mask)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for inputs, mask, size in batches:
            shared_encoder.encoder.model(**inputs, attention_mask=mask)
            done += size
    return done / (time.perf_counter() - began)


@torch.inference_mode()
def plain_loop(model: TrainedModel, texts: list[str], seconds: float) -> float:
    """Return the texts a second of what one would write without a server: tokenize, encode, classify, one by one."""
    shared_encoder, own = model.bert_head
    assert isinstance(shared_encoder, TorchEncoder)
    head = shared_encoder.heads[own]
    tokenizer = model._tokenizer
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        encoded = tokenizer(texts[done % len(texts)], return_tensors="pt", truncation=True, max_length=128)
        mask = encoded.pop("attention_mask").bool()
        last = shared_encoder.encoder.model(**encoded, attention_mask=mask).last_hidden_state
        head(last.unsqueeze(1), mask).softmax(-1).tolist()
        done += 1
    return done / (time.perf_counter() - began)


def latency(answer: Callable[[str], object], texts: list[str], count: int) -> float:
    """Return the median seconds of one answer."""
    for text in texts[:10]:
        answer(text)
    taken = []
    for number in range(count):
        began = time.perf_counter()
        answer(texts[number % len(texts)])
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


class Report:
    """Figures beside their bars."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(self, name: str, value: float, bar: float, more: bool, note: str = "") -> None:
        """Print a figure."""
        met = value >= bar if more else value <= bar
        self.rows.append({"name": name, "value": value, "bar": bar, "met": bool(met), "note": note})
        sign = ">=" if more else "<="
        print(f"{'ok  ' if met else 'MISS'} {name}: {value:.2f} (bar {sign} {bar})  {note}", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="for each figure")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rows", type=int, default=300, help="to train the heads on")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--options", type=str.split, default=[], help="of `bertvision serve`, in one word")
    parser.add_argument("--root", type=Path, help="of the runs, to use them again")
    parser.add_argument("--stages", type=lambda names: names.split(","), default=["throughput", "onnx"])
    given = parser.parse_args()
    report = Report()
    heads = HEADS if "throughput" in given.stages else HEADS[:1]
    with tempfile.TemporaryDirectory() as place:
        result = bertvision.run(
            task="rotten-tomatoes", source="registry", limit=given.rows, limit_dev=400, heads=heads, fractions=[0.0],
            controls=False, train={"epochs": 1}, max_tokens=256, root=given.root or place,
        )  # fmt: skip
        runs = [run.directory for run in result.runs if run.kind == "head"]
        model = load(result.best)
        long, short = texts_of(model, 200, 170, 256), texts_of(model, 24, 12, 256)
        if "throughput" in given.stages:
            mean = float(model.encode(long).lengths.mean())
            forward = bare(model, long, given.clients, given.seconds)
            loop = plain_loop(model, short, given.seconds)
            print(f"bare forward {forward:,.0f} tokens/s at {mean:.0f} tokens a text; plain loop {loop:.1f} texts/s")
            serve(report, given, runs, long, short, forward, loop)
        if "onnx" in given.stages:
            onnx(report, model, short, Path(place) / "onnx")
        if "overload" in given.stages:
            overload.overload(report, runs[0], [request([text], []) for text in short], given.seconds)
        if "attacks" in given.stages:
            overload.attacks(report, runs[0], given.seconds)
    if given.json:
        given.json.write_text(json.dumps(report.rows, indent=2) + "\n")
    sys.exit(0 if all(row["met"] for row in report.rows) else 1)


def serve(
    report: Report,
    given: argparse.Namespace,
    runs: list[Path],
    long: list[str],
    short: list[str],
    forward: float,
    loop: float,
) -> None:
    """Measure through a server in another process."""
    words = [sys.executable, "-m", "bertvision", "serve", *map(str, runs), "--port", "0", *given.options]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        port = next(int(found[1]) for line in process.stdout if (found := re.search(r"127\.0\.0\.1:(\d+)/ ", line)))
        try:
            names = _wait(port)
            first = names[:1]

            def run(requests: list[bytes], clients: int) -> tuple[float, np.ndarray, int]:
                asyncio.run(load_test(port, requests, clients, min(2.0, given.seconds)))
                return asyncio.run(load_test(port, requests, clients, given.seconds))

            seconds, taken, tokens = run([request([text], first) for text in long], given.clients)
            share = tokens / seconds / forward
            note = f"{tokens / seconds:,.0f} of {forward:,.0f} tokens/s, {given.clients} clients, {percentiles(taken)}"
            report.add("long texts: share of the bare forward pass", share, 0.85, True, note)
            seconds, taken, _ = run([request([text], first) for text in short], 1)
            alone, alone_note = len(taken) / seconds, percentiles(taken)
            seconds, taken, _ = run([request([text], first) for text in short], given.clients)
            many = len(taken) / seconds
            note = f"{many:.0f} against {alone:.0f} texts/s; {percentiles(taken)}; alone {alone_note}"
            report.add("short texts: against one client at a time", many / alone, 2.0, True, note)
            report.add("short texts: against the plain loop", many / loop, 1.5, True, f"{loop:.0f} texts/s")
            # In turns, so that a machine that slows down slows both.
            turns = [request([text], asked) for text in short for asked in (first, names)]
            _, taken, _ = run(turns, 1)
            one, nine = taken[::2], taken[1::2]
            ratio = float(np.median(nine) / np.median(one))
            report.add(
                f"{len(names)} heads on one request", ratio, 1.3, False, f"{percentiles(nine)}; one {percentiles(one)}"
            )
        finally:
            process.terminate()


def _wait(port: int) -> list[str]:
    """Wait until the server is ready; return its models' names."""
    import urllib.request

    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz")
            break
        except OSError:
            time.sleep(0.1)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models") as found:
        return [each["name"] for each in json.load(found)["models"]]


def onnx(report: Report, model: TrainedModel, short: list[str], place: Path) -> None:
    """Measure one answer at a time, with torch and with onnxruntime, at equal answers."""
    examples = dev_examples(experiment_of(model.run))
    (parity,) = export_onnx([model], place, [examples])
    exported = load_all([place])[0]
    eager, fast = (latency(each.predict, short, 300) for each in (model, exported))
    note = f"{eager * 1e3:.1f} against {fast * 1e3:.1f} ms; {parity.agreement:.1f} % of {parity.rows} answers equal"
    report.add("ONNX at batch 1: against eager torch", eager / fast, 1.3, True, note)


if __name__ == "__main__":
    main()
