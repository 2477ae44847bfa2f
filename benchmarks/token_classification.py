"""Entities of wnut17: our heads beside BERT, controls, a linear probe, full fine-tuning and LoRA.

    pip install 'bertvision[bench]'
    python benchmarks/token_classification.py choose --data-dir OTHER [--only full/0.0002] [--most 1]
    python benchmarks/token_classification.py test --data-dir OTHER [--only ours] [--seeds 0,1,2] [--most 1]
    python benchmarks/token_classification.py report

`choose` trains on the training file and scores emerging.dev, seed 0: what is in CHOICES. The settings of each method
that were best there are in TESTED. `test` runs them for every seed: epochs and heads are chosen on emerging.dev, and
the official test set is scored once by each cell. Finished cells are skipped. Seconds are those of training, and of
reading hidden states for heads. They are comparable if all cells ran alone on one machine with as many threads.

Packs the cells into benchmarks/results/token-classification.parquet, and writes token-classification.json beside it.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cells, Finished, MissingCell
from full_finetuning import finetune
from peer.meter import machine
from peer.methods.finetuned import everything, lora

from bertvision.encoders import load_encoder_info
from bertvision.files import write_json
from bertvision.heads import HeadConfig
from bertvision.pipeline import ExperimentData, load_data, resolve, run_data
from bertvision.pipeline.experiment import Experiment, make
from bertvision.runs import Run
from bertvision.statistics import PairedOutcomes, compare, interval
from bertvision.tasks import TASKS, DataRequest
from bertvision.training import TrainingConfig

TASK = "wnut17"
SEEDS = (0, 1, 2)
HEADS = ("bert-head", "learned", "adapter-skip", "adapter", "adapter-skip:members=3", "adapter-skip:size=128")
HEAD_RATES = (1e-3, 3e-3)


@dataclass(frozen=True)
class Setting:
    """How a method is trained."""

    method: str
    """"heads": fine-tuning for some epochs, then heads on hidden states; "full", "lora": the encoder alone."""
    rate: float
    """The learning rate of fine-tuning."""
    lengths: tuple[float, ...]
    """Epochs of fine-tuning. Heads are trained after each; the other methods have one."""
    schedule: str = "linear"
    defaults: bool = False
    """Whether heads are the default ones of the package, with their controls."""

    @property
    def name(self) -> str:
        """The middle part of keys."""
        schedule = "" if self.schedule == "linear" else f"-{self.schedule}"
        return f"{self.method}{schedule}/{self.rate:g}/{'-'.join(f'{length:g}' for length in self.lengths)}"


CHOICES = (
    Setting("heads", 1e-4, (0.3, 1.0, 2.0, 3.0), schedule="constant"),
    Setting("full", 1e-4, (3.0,)),
    Setting("full", 2e-4, (3.0,)),
    Setting("heads", 2e-4, (2.0,)),
    Setting("full", 4e-4, (3.0,)),
    Setting("heads", 1e-4, (2.0,)),
    Setting("full", 1e-4, (10.0,)),
    Setting("full", 5e-5, (5.0,)),
    Setting("heads", 1e-4, (1.0,)),
    Setting("full", 1e-4, (5.0,)),
    Setting("lora", 1e-3, (5.0,)),
    Setting("lora", 3e-3, (5.0,)),
)
TESTED: dict[str, Setting] = {
    "ours": Setting("heads", 1e-4, (2.0,), schedule="constant", defaults=True),
    "early": Setting("heads", 1e-4, (1.0,), schedule="constant", defaults=True),
    "full": Setting("full", 1e-4, (10.0,)),
    "probe": Setting("heads", 1e-4, (0.0,), schedule="constant", defaults=True),
    "lora": Setting("lora", 1e-3, (5.0,)),
}
"""What was best on emerging.dev, by method; and our heads after half of that fine-tuning."""


def read(data_dir: str, experiment: Experiment, *, with_test: bool) -> ExperimentData:
    """Read the data. Without the test set, emerging.dev is scored."""
    task = TASKS[TASK]
    splits = task.load(DataRequest(data_dir=data_dir))
    if not with_test:
        splits = replace(splits, dev=[])
    return load_data(resolve(experiment, task, load_encoder_info(experiment.encoder)), splits)


def experiment_of(setting: Setting, seed: int) -> Experiment:
    """Return the experiment of a setting."""
    lengths = list(setting.lengths)
    finetuning = TrainingConfig(learning_rate=setting.rate, schedule=setting.schedule, epochs=max(max(lengths), 0.1))
    experiment = replace(make(task=TASK, seed=seed), fractions=lengths, head_fractions=lengths, finetune=finetuning)
    if setting.defaults:
        return experiment
    trained = replace(experiment.train, epochs=5.0)
    rates = list(HEAD_RATES[1:])
    return replace(experiment, heads=list(HEADS), extra_learning_rates=rates, train=trained, controls=False)


def train_heads(data: ExperimentData) -> Finished:
    """Fine-tune, and train heads and their controls; or only do the latter."""
    with tempfile.TemporaryDirectory() as folder:
        runs = run_data(data, Path(folder)).runs
        record = {"models": {_name(run): _scores(run) for run in runs}}
        return Finished(record, {_name(run): run.outcomes() for run in runs})


def _name(run: Run) -> str:
    """Return the name of a model in the tables."""
    label = run.directory.name.rpartition("-")[0]
    if run.kind in ("head", "control"):
        label = HeadConfig.parse(run.name).label("tokens")
    return f"{run.record.fraction:g} {run.kind}: {label}"


def _scores(run: Run) -> dict[str, Any]:
    metrics = run.metrics
    return {
        "specification": run.name,
        "validation": metrics.validation_scores["f1"],
        "scores": metrics.scores,
        "seconds": {"finetune": metrics.seconds.finetune, "head": metrics.seconds.head},
        "learning_rate": metrics.learning_rate,
        "validation_by_epoch": metrics.validation_by_epoch,
        "calibration": metrics.calibration,
    }


def train_all(data: ExperimentData, setting: Setting) -> Finished:
    """Fine-tune the whole encoder, or its LoRA adapters; the epoch with the best validation score is scored."""
    tuned = finetune(data, setting.lengths[0], setting.rate, lora if setting.method == "lora" else everything)
    validation = data.validation
    settings = data.task.fit_decoding(tuned.predictions["validation"], validation.features, validation.examples)
    dev, predictions = data.dev, tuned.predictions["dev"]
    outcomes = data.task.outcomes(data.task.decode(predictions, dev.features, settings), dev.examples)
    record = {
        "validation": tuned.validation,
        "best_epoch": tuned.best_epoch,
        "validation_by_epoch": tuned.validation_by_epoch,
        "scores": data.task.compute_metrics(outcomes),
        "seconds": {"finetune": tuned.seconds},
        "calibration": data.task.calibration(predictions, dev.features, settings, dev.examples),
    }
    return Finished({"models": {"model": record}}, {"model": outcomes})


def run_cell(setting: Setting, seed: int, data_dir: str, *, with_test: bool) -> Finished:
    """Run a cell."""
    data = read(data_dir, experiment_of(setting, seed), with_test=with_test)
    found = train_heads(data) if setting.method == "heads" else train_all(data, setting)
    return Finished(found.record | {"machine": machine()}, found.outcomes)


def collect(given: argparse.Namespace, cells: Cells) -> None:
    """Run the cells that are missing, at most `given.most` of them."""
    with_test = given.stage == "test"
    names = TESTED if with_test else {setting.name: setting for setting in CHOICES}
    planned = {
        f"{given.stage}/{name}/{seed}": (setting, seed)
        for name, setting in names.items()
        for seed in (given.seeds if with_test else (0,))
        if name.startswith(tuple(given.only))
    }
    began = time.monotonic()
    for key in [key for key in planned if key not in cells][: given.most or sys.maxsize]:
        if time.monotonic() - began > 60 * given.minutes:
            return
        found = run_cell(*planned[key], given.data_dir, with_test=with_test)
        cells.write(key, found)
        for name, model in found.record["models"].items():
            shown = f"{model['scores']['f1']:6.2f} validation {model['validation']:6.2f}"
            print(f"{key} {name:46} {shown} {sum(model['seconds'].values()):6.0f} s", flush=True)


def tested(cells: Cells, seeds: Sequence[int]) -> dict[str, list[tuple[dict[str, Any], np.ndarray]]]:
    """Return the record and the outcomes of each seed, by model. Models that lack a seed are left out."""
    models: dict[str, list[tuple[dict[str, Any], np.ndarray]]] = {}
    for method in TESTED:
        try:
            found = [cells.read(f"test/{method}/{seed}") for seed in seeds]
        except MissingCell:
            continue
        for model in found[0].record["models"]:
            if all(model in each.record["models"] for each in found):
                pairs = [(each.record["models"][model], each.outcomes[model].astype(np.float64)) for each in found]
                models[f"{method}: {model}"] = pairs
    return models


def summarize(cells: Cells, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the choices; the mean scores and seconds of all models; and how the default head compares with them."""
    task, found = TASKS[TASK], tested(cells, seeds)
    chosen = {
        key.removeprefix("choose/"): cells.read(key).record["models"] for key in cells if key.startswith("choose/")
    }
    ours = next((name for name in found if name.startswith("ours: ") and name.endswith(" head: default")), "")
    table: dict[str, dict[str, Any]] = {}
    for name, pairs in found.items():
        outcomes = [each for _, each in pairs]
        table[name] = {
            "f1": float(np.mean([row["scores"]["f1"] for row, _ in pairs])),
            "by_seed": [row["scores"]["f1"] for row, _ in pairs],
            "interval": list(interval(task, outcomes)),
            "validation": float(np.mean([row["validation"] for row, _ in pairs])),
            "seconds": float(np.mean([sum(row["seconds"].values()) for row, _ in pairs])),
            "calibration": pairs[0][0]["calibration"],
        }
        if ours and name != ours:
            difference = compare([PairedOutcomes(task, outcomes, [each for _, each in found[ours]])])
            table[name]["default_minus_this"] = {key: getattr(difference, key) for key in ("mean", "low", "high", "p")}
    return {"task": TASK, "seeds": list(seeds), "choices": chosen, "models": table}


def report(cells: Cells, seeds: Sequence[int]) -> None:
    """Write and print the choices and the comparison."""
    summary = summarize(cells, seeds)
    write_json(Path("benchmarks/results/token-classification.json"), summary)
    for key, models in summary["choices"].items():
        for name, row in sorted(models.items(), key=lambda item: -item[1]["validation"]):
            print(f"{key:34} {name:44} dev {row['validation']:6.2f} {sum(row['seconds'].values()):6.0f} s")
    print(f"{'model':46} {'test F1':>8} {'validation':>10} {'seconds':>8}  default minus this (p)")
    for name, row in sorted(summary["models"].items(), key=lambda item: -item[1]["f1"]):
        other = row.get("default_minus_this")
        shown = (
            f"{other['mean']:+.2f} ({other['low']:+.2f} to {other['high']:+.2f}, p = {other['p']:.4f})" if other else ""
        )
        print(f"{name:46} {row['f1']:8.2f} {row['validation']:10.2f} {row['seconds']:8.0f}  {shown}")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["choose", "test", "report"])
    parser.add_argument("--data-dir", default="", help="directory that holds wnut17")
    parser.add_argument("--only", default=[""], type=lambda text: text.split(","), help="beginnings of names of cells")
    parser.add_argument("--seeds", default=list(SEEDS), type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--most", default=0, type=int, help="run at most so many cells; 0: all")
    parser.add_argument("--minutes", default=11, type=float, help="start no cell later than this")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Collect or report."""
    given, cells = parse(words), Cells.of("token-classification")
    if given.stage != "report":
        collect(given, cells)
    else:
        cells.pack()
        report(cells, given.seeds)


if __name__ == "__main__":
    main()
