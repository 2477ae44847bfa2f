"""The activation store, measured: size, agreement, speed of reading, speed and memory of writing.

    pip install h5py
    python benchmarks/store.py --data-dir DIR [--encoder DIR] [--sst2-dir DIR] [--only size,read,...]

Every ratio is measured within one run, since machines are noisy. DIR holds train, validation and dev in the SQuAD 2.0
format. Each section's figures are printed and kept in --out as soon as it ends, so a run may be cut into several.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bertvision.heads import build_head
from bertvision.lab.store_conversion import convert
from bertvision.pipeline import ExperimentData, finetune, open_checkpoint, prepare
from bertvision.pipeline.evaluation import validation_score
from bertvision.pipeline.experiment import make
from bertvision.pipeline.finetuning import Checkpoint
from bertvision.pipeline.state_requests import drop_cache
from bertvision.states import (
    FORMATS,
    BatchPlan,
    Layout,
    RowTable,
    Store,
    StoredStates,
    TokenBatches,
    WriteOptions,
    write,
)
from bertvision.training import FitOptions, fit
from bertvision.types import Batch, Batches, Features, StateView

HEAD = "adapter-skip"
SENTENCE_HEAD = "adapter:token_pooling=max"


class Setup:
    """What the sections share: data, encoder, a scratch directory."""

    def __init__(self, given: argparse.Namespace, scratch: Path):
        self.given, self.scratch = given, scratch
        settings = {"data_dir": given.data_dir, "limit": given.rows, "limit_dev": given.dev_rows}
        experiment = make(task="squad2", encoder=given.encoder, fractions=[0.0], **settings)
        self.data = prepare(experiment)
        self.checkpoint = open_checkpoint(self.data, finetune(self.data, scratch / "runs"), 0.0)
        self.view = StateView(cross_layers=tuple(range(self.checkpoint.encoder.num_layers)))
        self.width = self.checkpoint.encoder.hidden_size

    def extracted(
        self, name: str, type: str, data: ExperimentData | None = None, checkpoint: Checkpoint | None = None
    ) -> Store:
        """Write or open the states of a split; smaller types are converted from float32, without the encoder."""
        data, checkpoint = data or self.data, checkpoint or self.checkpoint
        features = getattr(data, name).features
        path = self.scratch / f"{data.task.name}-{name}"
        rows = RowTable(lengths=features.lengths, labels=features.labels, ids=features.ids)
        stream = checkpoint.stream(data.ordered(getattr(data, name)), self.view)
        exact = write(path / "float32", stream, rows, {"split": name}, self.width, WriteOptions(type="float32"))
        return exact if type == "float32" else convert(exact, path / type, type=type)


def size(runner: Setup) -> dict[str, Any]:
    """Bytes against padded float32 at the task's maximum length."""
    lengths = np.concatenate([getattr(runner.data, name).features.lengths for name in ("train", "validation", "dev")])

    padded = len(lengths) * runner.data.max_tokens * runner.view.num_channels * runner.width * 4
    found = {
        type: padded / Layout(type=type, view=runner.view, width=runner.width, lengths=lengths).bytes
        for type in FORMATS
    }
    return {"mean_length": float(lengths.mean()), "max_tokens": runner.data.max_tokens, "times_smaller": found}


def agreement(runner: Setup) -> dict[str, Any]:
    """The same trained head on exact and on stored states: how often is the answer the same?"""
    data, task, split = runner.data, runner.data.task, runner.data.dev
    head, score = _trained(data, runner, "float32", 0, HEAD)
    chosen_on = data.validation
    stored = StoredStates(runner.extracted("validation", "float32"), data.ordered(chosen_on).plan)
    predictions = data.predict({"head": head}, stored, chosen_on, "validation")["head"]
    settings = task.fit_decoding(predictions, chosen_on.features, chosen_on.examples)
    found: dict[str, Any] = {"validation_f1": score}
    exact: dict[str, Any] = {}
    for type in FORMATS:
        stored = StoredStates(runner.extracted("dev", type), data.ordered(split).plan)
        predictions = data.predict({"head": head}, stored, split, type)["head"]
        answers = task.decode(predictions, split.features, settings)
        texts = {key: answer.text for key, answer in answers.items()}
        exact = exact or texts
        same = float(np.mean([exact[key] == text for key, text in texts.items()]))
        found[type] = {"equal_answers": same, "f1": task.score(answers, split.examples)["f1"]}
    return found


def _trained(
    data: ExperimentData, runner: Setup, type: str, seed: int, spec: str, checkpoint: Checkpoint | None = None
) -> tuple[nn.Module, float]:
    """Train a head on stored states; return it with its best validation score."""
    checkpoint = checkpoint or runner.checkpoint
    plan = BatchPlan(data.train.features.lengths, data.head_training.batch_size, seed=seed)
    train = StoredStates(runner.extracted("train", type, data, checkpoint), plan)
    validation = StoredStates(
        runner.extracted("validation", type, data, checkpoint), data.ordered(data.validation).plan
    )
    torch.manual_seed(seed)
    head = build_head(spec, data.shape(checkpoint.encoder))

    def validate(models: dict[str, nn.Module]) -> dict[str, tuple[float, float]]:
        split = data.validation
        found = data.predict(models, validation, split, "validate")
        return {name: validation_score(data, split, predictions) for name, predictions in found.items()}

    optim = replace(data.head_training, epochs=3.0)
    train_state = fit({"head": head}, train, data.task.loss, {"head": optim}, FitOptions(seed=seed, validate=validate))[
        "head"
    ]
    return train_state.model, train_state.validation_scores[train_state.best_epoch - 1][0]


def retrained(runner: Setup) -> dict[str, Any]:
    """A head trained on int8 states against one trained on float32 states, three head seeds, scored on dev."""
    found: dict[str, Any] = {}
    jobs: list[tuple[str, ExperimentData, Checkpoint, str]] = [("squad2", runner.data, runner.checkpoint, HEAD)]
    if runner.given.sst2_dir:
        experiment = make(
            task="sst2", data_dir=runner.given.sst2_dir, limit=runner.given.rows, fractions=[0.3], head_fractions=[0.3]
        )
        data = prepare(experiment)
        checkpoint = open_checkpoint(data, finetune(data, runner.scratch / "runs"), 0.3)
        jobs.append(("sst2", data, checkpoint, SENTENCE_HEAD))
    for name, data, checkpoint, spec in jobs:
        scores: dict[str, list[float]] = {"float32": [], "int8": []}
        for seed in range(3):
            for type, into in scores.items():
                head, _ = _trained(data, runner, type, seed, spec, checkpoint)
                into.append(_score(data, runner, head, type, checkpoint))
        means = {type: statistics.mean(each) for type, each in scores.items()}
        found[name] = {"scores": scores, "difference": means["int8"] - means["float32"]}
    return found


def _score(data: ExperimentData, runner: Setup, head: nn.Module, type: str, checkpoint: Checkpoint) -> float:
    """Tune on validation, score dev."""
    task, found = data.task, {}
    for name in ("validation", "dev"):
        split = getattr(data, name)
        stored = StoredStates(runner.extracted(name, type, data, checkpoint), data.ordered(split).plan)
        found[name] = data.predict({"head": head}, stored, split, name)["head"]
    settings = task.fit_decoding(found["validation"], data.validation.features, data.validation.examples)
    answers = task.decode(found["dev"], data.dev.features, settings)
    return task.score(answers, data.dev.examples)[task.primary]


def epoch(runner: Setup) -> dict[str, Any]:
    """A head epoch from the int8 store against the same epoch over decoded batches in memory."""
    data = runner.data
    store = runner.extracted("train", "int8")
    rows = min(runner.given.epoch_rows, store.rows)
    chosen = np.random.default_rng(0).choice(store.rows, rows, replace=False)
    plan = _Part(BatchPlan(store.row_table.lengths[chosen], data.head_training.batch_size, seed=0), chosen)
    decoded = _Decoded(list(StoredStates(store, plan).epoch(0)), rows)  # pyright: ignore[reportArgumentType]
    states = ("first", "warm", "cold")
    results: dict[str, list[float]] = {"memory": []} | {
        f"{state}{what}": [] for state in states for what in ("", "_wait")
    }
    for _ in range(runner.given.repeats):
        results["memory"].append(_head_epoch(runner, decoded))  # pyright: ignore[reportArgumentType]
        opened = Store(store.path)  # as in training: one reader, whose first epoch also checks and makes room
        for state in states:
            if state == "cold":
                opened.close()  # pages that are mapped cannot be dropped
                drop_cache(store.path)
            stored = _Timed(opened, plan)  # pyright: ignore[reportArgumentType]
            seconds = _head_epoch(runner, stored)
            results[state].append(seconds)
            results[f"{state}_wait"].append(stored.waited / seconds)
    middle = {name: statistics.median(each) for name, each in results.items()}
    return middle | {"rows": rows} | {f"{state}_ratio": middle[state] / middle["memory"] for state in states}


class _Timed(StoredStates):
    """Measures the seconds for which training waits for data. Decoding counts only if it is in the background."""

    waited = 0.0
    decoding = 0.0

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        source = super().read(batches)
        while True:
            began, decoding = time.perf_counter(), self.decoding
            batch = next(source, None)
            self.waited += time.perf_counter() - began - (0.0 if self.threads else self.decoding - decoding)
            if batch is None:
                return
            yield batch
            del batch  # freed before the next one is loaded

    def load(self, rows: np.ndarray) -> Batch:
        self.store.bytes_of(rows)  # reads and verifies
        began = time.perf_counter()
        batch = super().load(rows)
        self.decoding += time.perf_counter() - began
        return batch


class _Part:
    """A plan over some of a store's rows."""

    def __init__(self, plan: BatchPlan, rows: np.ndarray):
        self.plan, self.chosen, self.batch_size = plan, rows, plan.batch_size

    def __len__(self) -> int:
        return len(self.plan)

    def __call__(self, number: int) -> list[np.ndarray]:
        return [self.chosen[batch] for batch in self.plan(0)]


class _Decoded:
    """Batches already in memory."""

    def __init__(self, batches: list[Batch], rows: int):
        self.batches, self.rows = batches, rows

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield them."""
        yield from self.batches[start:]


def _head_epoch(runner: Setup, batches: Batches) -> float:
    """Seconds of one epoch of training the default span head."""
    data = runner.data
    torch.manual_seed(0)
    head = build_head(HEAD, data.shape(runner.checkpoint.encoder))
    optim = replace(data.head_training, epochs=1.0)
    began = time.perf_counter()
    fit({"head": head}, batches, data.task.loss, {"head": optim})
    return time.perf_counter() - began


def read(runner: Setup) -> dict[str, Any]:
    """Cold reading: shuffled against sequential, and against the layout of the original."""
    store = runner.extracted("train", "int8")
    plan = BatchPlan(store.row_table.lengths, 32, seed=0)
    megabytes = store.layout.bytes / 1e6
    rates: dict[str, list[float]] = {"sequential": [], "shuffled": [], "decoded": []}
    orders = {"shuffled": (_Raw, plan), "decoded": (StoredStates, plan)}
    for _ in range(runner.given.repeats):
        drop_cache(store.path)
        rates["sequential"].append(megabytes / _clock(lambda: _read_files(store.path)))
        for name, (kind, order) in orders.items():
            drop_cache(store.path)
            reader = kind(Store(store.path), order)
            rates[name].append(megabytes / _clock(lambda reader=reader: _drain(reader.epoch(0))))
            reader.store.close()  # pages that are mapped cannot be dropped
    middle = {name: statistics.median(each) for name, each in rates.items()}
    return {f"{name}_mb_s": rate for name, rate in middle.items()} | {
        "megabytes": megabytes,
        "shuffled_of_sequential": middle["shuffled"] / middle["sequential"],
    }


class _Raw(StoredStates):
    """Read and check, but do not decode."""

    def load(self, rows: np.ndarray) -> Any:
        return self.store.bytes_of(rows)


def _read_files(path: Path) -> None:
    buffer = bytearray(1 << 20)
    for name in sorted(path.glob("*.states")):
        with open(name, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _drain(batches: Iterable[Any]) -> None:
    for _ in batches:
        pass


def _clock(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def original(runner: Setup) -> dict[str, Any]:
    """Examples/s against the original's layout: HDF5, padded float32, one row at a time."""
    import h5py  # pyright: ignore[reportMissingImports]

    store = runner.extracted("train", "int8")
    rows = min(runner.given.hdf5_rows, store.rows)
    order = np.random.default_rng(0).permutation(rows)
    longest = runner.data.max_tokens
    path = runner.scratch / "padded.h5"
    if not path.exists():
        with h5py.File(path.with_suffix(".tmp"), "w") as file:
            shape = (rows, runner.view.num_channels, longest, runner.width)
            data = file.create_dataset("states", shape, dtype="float32", chunks=(1, *shape[1:]))
            for batch in StoredStates(store, BatchPlan(store.row_table.lengths[:rows], 16)).epoch(0):
                for row, state in zip(batch.rows, torch.as_tensor(batch.inputs), strict=True):
                    data[row, :, : state.shape[1]] = state.numpy()
        path.with_suffix(".tmp").rename(path)
    batches = [order[i : i + 32] for i in range(0, rows, 32)]
    rates: dict[str, list[float]] = {f"{what}_{state}": [] for what in ("hdf5", "store") for state in ("cold", "warm")}

    def read_hdf5() -> None:
        with h5py.File(path, "r") as file:
            stored: Any = file["states"]
            for rows_ in batches:
                torch.stack([torch.from_numpy(stored[int(row)]) for row in rows_])

    for _ in range(runner.given.repeats):
        for state in ("cold", "warm"):
            if state == "cold":
                with open(path, "rb") as handle:
                    os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            rates[f"hdf5_{state}"].append(rows / _clock(read_hdf5))
        for state in ("cold", "warm"):
            if state == "cold":
                drop_cache(store.path)
            stored = StoredStates(Store(store.path), BatchPlan(store.row_table.lengths, 32))
            rates[f"store_{state}"].append(rows / _clock(lambda stored=stored: _drain(stored.read(batches))))
            stored.store.close()
    middle = {name: statistics.median(each) for name, each in rates.items()}
    return middle | {
        "rows": rows,
        "cold_ratio": middle["store_cold"] / middle["hdf5_cold"],
        "warm_ratio": middle["store_warm"] / middle["hdf5_warm"],
    }


def writing(runner: Setup) -> dict[str, Any]:
    """Extraction against the bare forward pass over the same batches."""
    data, rows = runner.data, runner.given.write_rows
    features = _first(data.train.features, rows)
    tokens = TokenBatches(features, 64, data.pad_ids, budget=8192)
    stream = runner.checkpoint.stream(tokens, runner.view)
    known = RowTable(lengths=features.lengths, labels=features.labels, ids=features.ids)
    plans: list[np.ndarray] = []

    class Recorded:
        """The stream, noting which batches the writer asks for."""

        view, rows = stream.view, stream.rows

        def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
            plans.extend(batches := list(batches))
            yield from stream.read(batches)

    def bare() -> None:
        with torch.no_grad():
            for batch in plans:
                collated = tokens.collate(batch)
                runner.checkpoint.encoder(collated.inputs, collated.attention_mask)

    seconds: dict[str, list[float]] = {"bare": [], "extraction": []}
    for number in range(runner.given.repeats + 1):
        plans.clear()
        path = runner.scratch / f"written-{number}"
        took = _clock(lambda path=path: write(path, Recorded(), known, {}, runner.width) and None)
        alone = _clock(bare)
        shutil.rmtree(path)
        if number:  # the first warms up
            seconds["extraction"].append(took)
            seconds["bare"].append(alone)
    middle = {name: rows / statistics.median(each) for name, each in seconds.items()}
    return {f"{name}_examples_s": rate for name, rate in middle.items()} | {
        "ratio": middle["extraction"] / middle["bare"],
        "peak_mb_above_backbone": {
            str(count): _peak(runner, count) for count in (3 * rows, 9 * rows) if count <= len(data.train.features)
        },
    }


def _first(features: Features, rows: int) -> Features:
    """The first rows of a split."""
    end = int(features.offsets[rows])
    return Features(
        ids=features.ids[:rows],
        tokens={name: flat[:end] for name, flat in features.tokens.items()},
        offsets=features.offsets[: rows + 1],
        labels=features.labels[:rows],
        example_ids=features.example_ids[:rows],
    )


def _peak(runner: Setup, rows: int) -> float:
    """Peak anonymous memory of an extraction in a process of its own, above that with the encoder loaded."""
    given = runner.given
    command = [sys.executable, __file__, "--data-dir", given.data_dir, "--encoder", given.encoder]
    command += ["--rows", str(given.rows), "--dev-rows", "8", "--peak", str(rows)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def peak(runner: Setup, rows: int) -> float:
    """Extract, watching this process's memory."""
    features = _first(runner.data.train.features, rows)
    stream = runner.checkpoint.stream(TokenBatches(features, 64, runner.data.pad_ids, budget=8192), runner.view)
    known = RowTable(lengths=features.lengths, labels=features.labels, ids=features.ids)
    before, highest, stop = _anonymous(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not stop.wait(0.02):
            highest = max(highest, _anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    write(runner.scratch / "peak", stream, known, {}, runner.width)
    stop.set()
    watcher.join()
    return highest - before


def _anonymous() -> float:
    """Megabytes of anonymous memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise SystemExit("This kernel does not say how much anonymous memory a process has.")


SECTIONS = {
    "size": size,
    "agreement": agreement,
    "retrained": retrained,
    "epoch": epoch,
    "read": read,
    "original": original,
    "writing": writing,
}


def main() -> None:
    """Measure the sections asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="SQuAD 2.0 files")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--sst2-dir", default="", help="directory with SST-2, for `retrained`")
    parser.add_argument("--rows", type=int, default=3000, help="training questions")
    parser.add_argument("--dev-rows", type=int, default=0, help="0: all")
    parser.add_argument("--epoch-rows", type=int, default=1000)
    parser.add_argument("--hdf5-rows", type=int, default=700)
    parser.add_argument("--write-rows", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--scratch", type=Path, help="kept for the next run; else a temporary directory")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/store.json"))
    parser.add_argument("--peak", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runner = Setup(given, given.scratch if given.scratch and not given.peak else Path(folder))
        if given.peak:
            print(peak(runner, given.peak))
            return
        for name in given.only.split(","):
            found = SECTIONS[name](runner)
            print(name, json.dumps(found, indent=2), flush=True)
            kept = json.loads(given.out.read_text()) if given.out.exists() else {}
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(kept | {name: found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
