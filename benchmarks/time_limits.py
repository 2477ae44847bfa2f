"""Whether time limits hold: 40 runs, 30 kills, 300,000 rows, and how well stages are predicted.

    python benchmarks/time_limits.py limits --glue DIR --other DIR [--stop-after 270]
    python benchmarks/time_limits.py kills [--stop-after 270]
    python benchmarks/time_limits.py rows
    python benchmarks/time_limits.py report
    python benchmarks/time_limits.py plans

Every result is added to benchmarks/results/time_limits.json when it is there, so that a command which is run again goes
on. A run is a process that is forked after the imports, and its time is that from the call of `fit` to its end; of the
command line it is the time from the start of the process to its end. `plans` prints the table of docs/time-limits.md.
"Beside a competing process" means beside one that multiplies matrices all the time. MiniLM is the encoder.
"""

import argparse
import csv
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertvision import TextClassifier, TextRegressor, trained_model
from bertvision.files import file_lock, write_json
from bertvision.lab.benchmarks import table  # noqa: F401  # the tasks of GLUE and of the registry
from bertvision.tasks import TASKS, DataRequest
from bertvision.time_limits import BEST_FILE, DataSize, Limits, UnitCosts, make_plan, open_best
from bertvision.time_limits.planner import usable_rows

RESULTS = Path(__file__).parent / "results" / "time_limits.json"
GLUE = {"mrpc": "MRPC", "sst2": "SST-2"}
TOLERANCE_SHARE, TOLERANCE_SECONDS = 0.05, 2.0
WITHIN = 0.25
SMALL_STAGE = 0.5
"""Stages that are predicted and measured shorter than this many seconds are reported, too, but separately."""
FILES = {"trec": "trec/TREC.train", "banking77": "banking77/train.csv", "goemotions": "goemotions/dev.tsv"}
CELLS: list[tuple[str, int, float, bool, bool]] = [
    # task, rows, limit, beside a competing process, by the command line
    *[("mrpc", 0, limit, busy, False) for limit in (5, 10, 15, 20, 30, 60) for busy in (False, True)],
    *[("sst2", 10_000, limit, busy, False) for limit in (5, 15, 30) for busy in (False, True)],
    *[("banking77", 0, limit, False, False) for limit in (5, 10, 20)],
    *[("trec", 0, limit, busy, False) for limit in (5, 15) for busy in (False, True)],
    *[("stsb", 0, limit, False, False) for limit in (5, 15, 30)],
    *[("snli", 3_000, limit, True, False) for limit in (8, 15)],
    *[("rotten-tomatoes", 3_000, limit, False, False) for limit in (8, 15)],
    *[("goemotions", 5_000, limit, False, False) for limit in (8, 20)],
    *[("mrpc", 0, limit, False, True) for limit in (15, 30)],
    *[("stsb", 0, limit, True, True) for limit in (15, 30)],
    ("sst2", 60_000, 120, True, False),
    ("mrpc", 0, 300, False, False),
]


def rows_of(task: str, count: int, glue: Path, other: Path) -> tuple[list[Any], list[Any]]:
    """Return texts and labels."""
    if task in FILES:
        texts, labels = _read(task, other / FILES[task])
    else:
        request = DataRequest(data_dir=str(glue / GLUE[task])) if task in GLUE else DataRequest(source="registry")
        train = TASKS[task].load(request).train
        texts = [example.texts if example.texts[1:] else "".join(example.texts) for example in train]
        labels = [example.label for example in train]
    order = random.Random(0).sample(range(len(texts)), count or len(texts))
    return [texts[row] for row in order], [labels[row] for row in order]


def _read(task: str, path: Path) -> tuple[list[str], list[Any]]:
    if task == "trec":
        lines = path.read_text(encoding="latin-1").splitlines()
        pairs = [line.split(" ", 1) for line in lines if line]
        return [text for _, text in pairs], [label.split(":")[0] for label, _ in pairs]
    with open(path, encoding="utf-8", newline="") as file:
        if task == "goemotions":
            rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
            return [row[0] for row in rows], [row[1].split(",") for row in rows]
        rows = list(csv.DictReader(file))
        return [row["text"] for row in rows], [row["category"] for row in rows]


def in_child(work: Callable[[], Any]) -> Any:
    """Return the result of a function in a forked process."""
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)

    def call() -> None:
        sender.send(work())

    process = multiprocessing.get_context("fork").Process(target=call)
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


class Competitor:
    """A process that keeps a core busy within a `with` block."""

    def __init__(self, wanted: bool):
        self.wanted = wanted

    def __enter__(self) -> None:
        self.process = multiprocessing.get_context("fork").Process(target=_multiply, daemon=True)
        if self.wanted:
            self.process.start()

    def __exit__(self, *error: object) -> None:
        if self.wanted:
            self.process.kill()
            self.process.join()


def _multiply() -> None:
    matrix = np.ones((700, 700), dtype=np.float32)
    product = np.empty_like(matrix)
    while True:
        np.matmul(matrix, matrix, out=product)


def fit_within(texts: list[Any], labels: list[Any], limit: float, folder: str) -> dict[str, Any]:
    """Fit within a limit; return what happened."""
    kind = TextRegressor if isinstance(labels[0], float) else TextClassifier
    estimator = kind(time_limit=limit, cache_dir=folder, verbose=0)
    began = time.monotonic()
    estimator.fit(texts, labels)
    seconds = time.monotonic() - began
    run = open_best(estimator.run_.directory.parent.parent)
    answers = trained_model.load(run).predict(texts[:3])
    return {
        "seconds": seconds,
        "answers": len(answers),
        "best": run.validation_score[0],
        "history": estimator.history_,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def command_within(task: str, limit: float, glue: Path, folder: str) -> dict[str, Any]:
    """Run the command line within a limit; return what happened. The process is timed from outside."""
    source = ["--data-dir", str(glue / GLUE[task])] if task in GLUE else ["--source", "registry"]
    words = ["run", "--task", task, *source, "--time-limit", f"{limit:g}s", "--runs", folder]
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "bertvision", *words], check=True, capture_output=True)
    seconds = time.monotonic() - began
    pointer = next(Path(folder).rglob(BEST_FILE))
    run = open_best(pointer.parent)
    text = "a text" if len(run.record.task["texts"]) == 1 else ("a text", "a text")
    history = json.loads((pointer.parent / "history.json").read_text())
    answer = trained_model.load(run).predict(text)
    return {"seconds": seconds, "answers": 3 * bool(answer), "best": run.validation_score[0], "history": history}


def limits(results: dict[str, Any], arguments: argparse.Namespace) -> Iterator[None]:
    """Run the cells that are missing."""
    for task, rows, limit, busy, by_command in reversed(CELLS) if arguments.reverse else CELLS:
        key = f"{task} {rows} {limit:g}{' busy' if busy else ''}{' command' if by_command else ''}"
        if key in read_results()["limits"]:
            continue
        with tempfile.TemporaryDirectory() as folder, Competitor(busy):
            if by_command:
                outcome = command_within(task, limit, arguments.glue, folder)
            else:
                texts, labels = rows_of(task, rows, arguments.glue, arguments.other)
                outcome = in_child(lambda t=texts, y=labels, s=limit, f=folder: fit_within(t, y, s, f))
        results["limits"][key] = {"limit": limit, "busy": busy, "command": by_command, **outcome}
        yield


def synthesised(count: int) -> tuple[list[str], list[str]]:
    """Return short texts of two classes that a model can learn."""
    draw = random.Random(0)
    words = [f"{a}{b}" for a in ("re", "un", "in", "over", "out") for b in ("run", "stand", "take", "side", "line")]
    good, bad = ["great", "fine", "lovely", "strong"], ["awful", "poor", "weak", "dull"]
    texts, labels = [], []
    for row in range(count):
        kind = good if row % 2 else bad
        middle = draw.choices(words, k=draw.randint(3, 14))
        texts.append(" ".join([*middle, draw.choice(kind), draw.choice(words), str(row)]))
        labels.append("good" if row % 2 else "bad")
    return texts, labels


def kills(results: dict[str, Any], arguments: argparse.Namespace) -> Iterator[None]:
    """Kill runs at random moments after their first model, and load what is left."""
    texts, labels = synthesised(600)
    while len(results["kills"]) < 30:
        delay = random.Random(len(results["kills"])).uniform(0, 7)
        with tempfile.TemporaryDirectory() as folder:
            process = multiprocessing.get_context("fork").Process(
                target=fit_within, args=(texts, labels, 20.0, folder), daemon=True
            )
            process.start()
            while not (pointers := list(Path(folder).rglob(BEST_FILE))) and process.is_alive():
                time.sleep(0.02)
            time.sleep(delay)
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
            run = open_best(pointers[0].parent)
            name = run.name
            answer = in_child(lambda opened=run: trained_model.load(opened).predict("a great film"))
        results["kills"].append({"after": delay, "model": name, "label": answer["label"]})
        yield


def many_rows(results: dict[str, Any], arguments: argparse.Namespace) -> Iterator[None]:
    """Fit on 300,000 rows within 120 seconds."""
    if not results["rows"]:
        texts, labels = synthesised(300_000)
        with tempfile.TemporaryDirectory() as folder:
            results["rows"] = in_child(lambda: fit_within(texts, labels, 120.0, folder)) | {"limit": 120.0}
        yield


def report(results: dict[str, Any]) -> None:
    """Print what the bars ask for."""
    cells = results["limits"]
    over = {key: cell["seconds"] - cell["limit"] for key, cell in cells.items()}
    late = {
        key: f"{excess:+.2f} s"
        for key, excess in over.items()
        if excess > max(TOLERANCE_SECONDS, TOLERANCE_SHARE * cells[key]["limit"])
    }
    print(f"{len(cells)} of {len(CELLS)} runs; over the limit by more than 5 % or 2 s: {late or 'none'}")
    if cells:
        answering = sum(cell["answers"] == 3 for cell in cells.values())
        print(f"latest end: {max(over.values()):+.2f} s; models that answer: {answering}")
    stages = [
        entry for cell in cells.values() for entry in cell["history"] if entry["stage"] not in ("plan", "interrupted")
    ]
    large = [entry for entry in stages if max(entry["predicted_seconds"], entry["stage_seconds"]) >= SMALL_STAGE]
    for name, chosen in (("all stages", stages), (f"stages of {SMALL_STAGE:g} s or more", large)):
        ratios = [entry["stage_seconds"] / entry["predicted_seconds"] for entry in chosen]
        close = [abs(ratio - 1) <= WITHIN for ratio in ratios]
        print(f"{name}: {len(close)}, within 25 % of the prediction: {100 * np.mean(close or [0]):.0f} %")
    plans = [c["history"][0]["stage_seconds"] for c in cells.values() if c["limit"] == 60]
    print(f"measuring and planning at 60 s: {', '.join(f'{seconds:.1f} s' for seconds in plans) or 'not run'}")
    print(f"kills after which the best model answers: {len(results['kills'])} of 30")
    if rows := results["rows"]:
        print(f"300,000 rows at 120 s: {rows['seconds']:.1f} s, {rows['peak_gigabytes']:.1f} GB, {rows['best']:.1f}")


def plans(forward: float) -> None:
    """Print what the planner does for data of three sizes at four limits, with unit costs like those of MiniLM."""
    costs = UnitCosts(
        forward=forward,
        training=forward / 3,
        head=3 * forward,
        flops=5e10,
        disk=2e8,
        encoder_bytes=90_000_000,
        state_bytes=5_376,
        features=5_376,
    )
    print("| rows | limit | stages, with their seconds |\n|---:|---:|---|")
    for rows in (300, 5_000, 300_000):
        for seconds in (5, 15, 60, 300):
            usable = min(rows, usable_rows(costs, 25, seconds))
            size = DataSize(kind="text", rows=usable, validation_rows=min(usable // 10, 400), row_tokens=25)
            plan = make_plan(size, costs, Limits(seconds=seconds - 1, memory=4 * 10**9, disk=10**10))
            steps = "; ".join(f"{stage.describe()} ({stage.seconds:.1f})" for stage in plan.stages)
            print(f"| {rows:,} | {seconds} s | {'; '.join([steps, *plan.notes])} |")


def read_results() -> dict[str, Any]:
    """Return the results so far."""
    empty: dict[str, Any] = {"limits": {}, "kills": [], "rows": {}}
    return json.loads(RESULTS.read_text()) if RESULTS.is_file() else empty


def add_results(part: str, new: Any) -> None:
    """Write the results of a part. Another process may write others at the same time."""
    with file_lock(RESULTS, wait=True):
        found = read_results()
        found[part] = found[part] | new if isinstance(new, dict) else new
        write_json(RESULTS, found)


def main() -> None:
    """Run the part that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["limits", "kills", "rows", "report", "plans"])
    parser.add_argument("--glue", type=Path, default=Path())
    parser.add_argument("--other", type=Path, default=Path())
    parser.add_argument("--reverse", action="store_true", help="begin with the last run, beside another process")
    parser.add_argument("--stop-after", type=float, default=1e9, help="begin no run after this many seconds")
    arguments = parser.parse_args()
    if arguments.part == "plans":
        plans(10_000)
        return
    if arguments.part == "report":
        report(read_results())
        return
    began = time.monotonic()
    results = read_results()
    for _ in {"limits": limits, "kills": kills, "rows": many_rows}[arguments.part](results, arguments):
        add_results(arguments.part, results[arguments.part])
        if time.monotonic() - began > arguments.stop_after:
            break


if __name__ == "__main__":
    main()
