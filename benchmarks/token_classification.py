"""Entities of wnut17: our heads beside BERT, controls, a linear probe, full fine-tuning and LoRA.

    pip install 'bertvision[bench]'
    python benchmarks/token_classification.py --data-dir OTHER [--methods ours,full,lora] [--seeds 0,1,2] [--most 1]
    python benchmarks/token_classification.py --report

A cell is a method, a length and a seed; finished cells are skipped. Epochs, heads and lengths are chosen on
emerging.dev; the official test set is scored once by each cell. Seconds are those of training, and of reading hidden
states for heads. They are comparable if all cells ran on one machine with as many threads.

Packs the cells into benchmarks/results/token-classification.parquet, and writes token-classification.json beside it.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import Cells, Finished, MissingCell
from peer.meter import machine
from peer.methods.finetuned import everything, lora

from bertvision.encoders import Encoder, EncoderWithHead, load_encoder
from bertvision.files import write_json
from bertvision.heads import BertHead
from bertvision.pipeline import ExperimentData, prepare, run_data
from bertvision.pipeline.evaluation import validation_scores
from bertvision.pipeline.experiment import make
from bertvision.runs import Run
from bertvision.statistics import PairedOutcomes, compare, interval
from bertvision.tasks import TASKS
from bertvision.training import FitOptions, fit

TASK = "wnut17"
SEEDS = (0, 1, 2)
FRACTION = 1.0
"""Epochs of fine-tuning before heads are trained."""
LENGTHS: dict[str, tuple[float, ...]] = {
    "ours": (FRACTION,),
    "probe": (0.0,),
    "full": (1, 3, 5),
    "full-slow": (5,),
    "lora": (5,),
}
"""Epochs of fine-tuning by method. The learning rate of full fine-tuning and LoRA decays to zero at their end."""
RATES = {"full": 2e-4, "full-slow": 1e-4, "lora": 1e-3}
"""Learning rates. That of full fine-tuning was the better of these two at 2 epochs, on emerging.dev."""


def key(method: str, length: float, seed: int) -> str:
    """Return the key of a cell."""
    return f"{TASK}/{method}/{length:g}/{seed}"


def train_heads(data: ExperimentData, length: float) -> Finished:
    """Fine-tune for a fraction, and train the default heads and their controls; or only do the latter."""
    with tempfile.TemporaryDirectory() as folder:
        runs = run_data(data, Path(folder)).runs
        record = {"models": {_name(run): _scores(run) for run in runs}}
        return Finished(record, {_name(run): run.outcomes() for run in runs})


def _name(run: Run) -> str:
    """Return the name of a model in the tables."""
    label = run.directory.name.rpartition("-")[0]
    return f"{run.kind}: {label}"


def _scores(run: Run) -> dict[str, Any]:
    seconds = run.metrics.seconds
    return {
        "specification": run.name,
        "validation": run.metrics.validation_scores["f1"],
        "scores": run.metrics.scores,
        "seconds": {"finetune": seconds.finetune, "head": seconds.head},
        "calibration": run.metrics.calibration,
    }


def finetune(adapt: Callable[[Encoder], None], data: ExperimentData, length: float, rate: float) -> Finished:
    """Fine-tune an encoder with BERT's own head for all of its length; the epoch with the best validation is scored."""
    loaded = load_encoder(data.experiment.encoder, data.experiment.precision)
    torch.manual_seed(data.experiment.seed)
    adapt(loaded.encoder)
    loaded.encoder.restrict_vocabulary(data.vocabulary())
    model = EncoderWithHead(loaded.encoder, BertHead(data.shape(loaded.encoder), dropout=loaded.dropout))
    training = replace(
        data.config.finetuning, learning_rate=rate, epochs=length, warmup_epochs=0.1 * length, schedule="linear"
    )
    validation = data.ordered(data.validation)
    options = FitOptions(seed=data.experiment.seed, validate=lambda models: validation_scores(data, validation, models))
    began = time.perf_counter()
    state = fit({"model": model}, data.shuffled(training), data.task.loss, {"model": training}, options)["model"]
    seconds = time.perf_counter() - began
    predictions = data.predict({"model": model}, data.ordered(data.dev), data.dev, "predict")["model"]
    answers = data.task.decode(predictions, data.dev.features, {})
    outcomes = data.task.outcomes(answers, data.dev.examples)
    record = {
        "validation": max(score for score, _ in state.validation_scores),
        "best_epoch": state.best_epoch,
        "scores": data.task.compute_metrics(outcomes),
        "seconds": {"finetune": seconds},
        "rate": rate,
    }
    return Finished({"models": {"model": record}}, {"model": outcomes})


def run_cell(method: str, length: float, seed: int, data_dir: str) -> Finished:
    """Run a cell."""
    heads = {"probe": ["default"]}.get(method, [])
    data = prepare(make(task=TASK, data_dir=data_dir, fractions=[float(length)], seed=seed, heads=heads))
    if method in ("ours", "probe"):
        found = train_heads(data, length)
    else:
        found = finetune(lora if method == "lora" else everything, data, length, RATES[method])
    return Finished(found.record | {"machine": machine()}, found.outcomes)


def collect(given: argparse.Namespace, cells: Cells) -> None:
    """Run the cells that are missing, at most `given.most` of them."""
    left = given.most or sys.maxsize
    for seed in given.seeds:
        for method in given.methods:
            for length in given.lengths or LENGTHS[method]:
                if key(method, length, seed) in cells:
                    continue
                if not left:
                    return
                left -= 1
                found = run_cell(method, length, seed, given.data_dir)
                cells.write(key(method, length, seed), found)
                for name, model in found.record["models"].items():
                    line = f"{key(method, length, seed)} {name:34} {model['scores']['f1']:6.2f}"
                    print(f"{line} validation {model['validation']:6.2f} {sum(model['seconds'].values()):6.0f} s")


def summarize(cells: Cells, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the mean scores and seconds of all models, and how the default head compares with them."""
    task = TASKS[TASK]
    outcomes: dict[str, list[np.ndarray]] = {}
    table: dict[str, dict[str, Any]] = {}
    for cell in cells:
        _, method, length, _ = cell.split("/")
        try:
            found = [cells.read(key(method, float(length), seed)) for seed in seeds]
        except MissingCell:
            continue
        for model in found[0].record["models"]:
            name = f"{method} {length} {model}"
            rows = [each.record["models"][model] for each in found if model in each.record["models"]]
            if len(rows) < len(seeds):
                continue
            outcomes[name] = [each.outcomes[model].astype(np.float64) for each in found]
            low, high = interval(task, outcomes[name])
            table[name] = {
                "f1": float(np.mean([row["scores"]["f1"] for row in rows])),
                "by_seed": [row["scores"]["f1"] for row in rows],
                "interval": [low, high],
                "validation": float(np.mean([row["validation"] for row in rows])),
                "seconds": float(np.mean([sum(row["seconds"].values()) for row in rows])),
            }
    ours = f"ours {FRACTION:g} head: default"
    for name in table.keys() - {ours} if ours in table else ():
        difference = compare([PairedOutcomes(task, outcomes[name], outcomes[ours])])
        table[name]["default_minus_this"] = {
            "mean": difference.mean,
            "low": difference.low,
            "high": difference.high,
            "p": difference.p,
        }
    return {"task": TASK, "seeds": list(seeds), "models": table}


def report(cells: Cells, seeds: Sequence[int]) -> None:
    """Write and print the comparison."""
    summary = summarize(cells, seeds)
    write_json(Path("benchmarks/results/token-classification.json"), summary)
    print(f"{'model':46} {'test F1':>8} {'validation':>10} {'seconds':>8}  default minus this (p)")
    for name, row in sorted(summary["models"].items(), key=lambda item: -item[1]["f1"]):
        other = row.get("default_minus_this")
        shown = (
            f"{other['mean']:+.2f} ({other['low']:+.2f} to {other['high']:+.2f}, p = {other['p']:.3f})" if other else ""
        )
        print(f"{name:46} {row['f1']:8.2f} {row['validation']:10.2f} {row['seconds']:8.0f}  {shown}")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="directory that holds wnut17")
    parser.add_argument("--methods", default=list(LENGTHS), type=lambda text: text.split(","))
    parser.add_argument("--lengths", default=[], type=lambda text: [float(each) for each in text.split(",")])
    parser.add_argument("--seeds", default=list(SEEDS), type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--most", default=0, type=int, help="run at most so many cells; 0: all, then report")
    parser.add_argument("--report", action="store_true", help="write the report of what there is, run nothing")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Collect and report."""
    given, cells = parse(words), Cells.of("token-classification")
    if not given.report:
        collect(given, cells)
    if given.report or not given.most:
        cells.pack()
        report(cells, given.seeds)


if __name__ == "__main__":
    main()
