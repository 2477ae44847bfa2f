"""What ONNX graphs with int8 weights gain and lose: seconds, equal answers, scores and size, against torch and float32.

    python benchmarks/quantization.py --other-dir OTHER --data-dir GLUE --root RUNS --stages train
    python benchmarks/quantization.py --other-dir OTHER --data-dir GLUE --root RUNS --stages measure --json FILE

train: the default head of five tasks, on at most 4,000 rows; finished runs are used again.
measure: exports in float32 and int8, compared on the scored rows; p50 of one text of at most 32 tokens at a time, in
seconds and in seconds of the processor, which other processes do not change. OMP_NUM_THREADS=1 for one thread.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from peer.data import COLUMNS, CellData, Directories, load_rows
from peer.meter import machine

from bertvision.encoders import load_encoder_info
from bertvision.onnx_model import GRAPH
from bertvision.pipeline import load_data, resolve, run_data
from bertvision.pipeline.experiment import make
from bertvision.runs import Run
from bertvision.serving.onnx_export import ParityLimits, compare, export_onnx
from bertvision.tasks import DataSplits, Example
from bertvision.trained_model import TrainedModel, load, load_all

TASKS = ("rotten-tomatoes", "trec", "banking77", "mrpc", "stsb")
ROWS = 4000
TOKENS = 32
ANSWERS = 150
"""Answers that p50 is taken of."""


def rows_of(name: str, directories: Directories) -> CellData:
    """Return the rows of a task."""
    return load_rows(replace(COLUMNS[name], rows=ROWS), directories, seed=0)


def train(name: str, cell: CellData, root: Path) -> Run:
    """Train the default head, or open its finished run."""
    splits = DataSplits(train=cell.train, dev=cell.scored, validation=cell.validation)
    experiment = make(task=name, fractions=[1.0], heads=["default"], controls=False)
    config = resolve(experiment, cell.task, load_encoder_info(experiment.encoder))
    return run_data(load_data(config, splits), root).best


def short_texts(model: TrainedModel, examples: Sequence[Example]) -> list[Any]:
    """Return inputs of at most 32 tokens; pairs that are longer are cut to their first words."""
    texts = [example.texts[0] if len(example.texts) == 1 else example.texts for example in examples[:1000]]
    lengths = model.encode(texts).lengths
    short = [text for text, length in zip(texts, lengths, strict=True) if length <= TOKENS]
    cut = [tuple(" ".join(text.split()[:9]) for text in example.texts) for example in examples[:1000]]
    return (short if len(short) >= 100 else cut)[:300]


def p50(answer: Callable[[Any], object], texts: Sequence[Any], count: int) -> np.ndarray:
    """Return the median milliseconds of an answer: of the clock, and of the processor."""
    for text in texts[:10]:
        answer(text)
    taken = []
    for number in range(count):
        before = time.perf_counter(), time.process_time()
        answer(texts[number % len(texts)])
        taken.append((time.perf_counter() - before[0], time.process_time() - before[1]))
    return 1e3 * np.median(taken, axis=0)


def score_of(model: TrainedModel, examples: Sequence[Example]) -> float:
    """Return the primary score of a model."""
    task, features = model.task, model.encode_examples(examples)
    answers = task.decode(model.logits(features), features, model.settings)
    return task.compute_metrics(task.outcomes(answers, examples))[task.primary]


def measure(name: str, run: Run, examples: Sequence[Example], rounds: int) -> dict[str, Any]:
    """Export a run, and compare the exports with torch."""
    models, sizes, parity = {"torch": load(run)}, {}, {}
    with tempfile.TemporaryDirectory() as place:
        for type in ("float32", "int8"):
            directory = Path(place) / type
            export_onnx(
                [models["torch"]], directory, [examples[:8]], int8=type == "int8", limits=ParityLimits(0, np.inf)
            )
            (models[type],) = load_all([directory])
            sizes[type] = (directory / GRAPH).stat().st_size / 1e6
            tolerance = ParityLimits.default(int8=type == "int8").score_difference
            parity[type] = compare(name, models["torch"], models[type], examples, tolerance).to_dict()
        texts = short_texts(models["torch"], examples)
        taken: dict[str, list[np.ndarray]] = {kind: [] for kind in models}
        for _ in range(rounds):  # in turns, since machines drift
            for kind, model in models.items():
                taken[kind].append(p50(model.predict, texts, ANSWERS))
        clock, processor = (
            {kind: float(np.median([found[which] for found in rows])) for kind, rows in taken.items()}
            for which in (0, 1)
        )
        tokens = float(models["torch"].encode(texts).lengths.mean())
        scores = {kind: score_of(model, examples) for kind, model in models.items()}
    speed = {"clock": clock["torch"] / clock["int8"], "processor": processor["torch"] / processor["int8"]}
    print(
        f"{name}: {parity['int8']['agreement']:.2f} % of {len(examples):,} answers equal; score {scores['torch']:.2f}, "
        f"int8 {scores['int8']:.2f}; {tokens:.0f} tokens: p50 {_listed(clock)} ms ({speed['clock']:.2f} times), "
        f"of the processor {_listed(processor)} ms ({speed['processor']:.2f} times); {_listed(sizes)} MB",
        flush=True,
    )
    return {
        "task": name, "head": run.name, "parity": parity, "scores": scores, "tokens": tokens, "megabytes": sizes,
        "p50_milliseconds": clock, "p50_processor_milliseconds": processor, "times_as_fast_as_torch": speed,
    }  # fmt: skip


def _listed(values: dict[str, float]) -> str:
    return ", ".join(f"{kind} {value:.2f}" for kind, value in values.items())


def main() -> None:
    """Train, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="the official GLUE files")
    parser.add_argument("--other-dir", default="", help="the directories banking77 and trec")
    parser.add_argument("--root", type=Path, required=True, help="of the runs")
    parser.add_argument("--tasks", type=lambda names: names.split(","), default=list(TASKS))
    parser.add_argument("--stages", type=lambda names: names.split(","), default=["train", "measure"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args()
    directories = Directories(glue=given.data_dir, other=given.other_dir)
    records = []
    for name in given.tasks:
        cell, began = rows_of(name, directories), time.perf_counter()
        run = train(name, cell, given.root)
        print(f"{name}: {run.directory}, {time.perf_counter() - began:.0f} s", flush=True)
        if "measure" in given.stages:
            records.append(measure(name, run, cell.scored, given.rounds))
            if given.json:
                given.json.write_text(json.dumps({"machine": machine(), "tasks": records}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
