"""One cell: train a method, choose on validation, score it once on the scored rows."""

import statistics
import time
from dataclasses import asdict

import numpy as np
from cells import Cells, Finished

from peer.data import COLUMNS, CellData, Directories, load_rows
from peer.meter import Meter, machine
from peer.methods import TRAIN, Outcome, grade
from peer.methods.base import answers, labels_of
from peer.plan import EXCLUDED, METHODS, Job

LATENCY_ROWS = 200


def run(cells: Cells, job: Job, directories: Directories, alone: bool) -> None:
    """Run a cell and save its results."""
    meter = Meter()
    with meter.stage("read"):
        cell = load_rows(COLUMNS[job.column], directories, job.seed)
    cells.write(job.key, measure(cell, job, meter, alone))
    if job.labels_key not in cells:
        cells.write(job.labels_key, Finished({"rows": len(cell.scored)}, {"labels": labels_of(cell.scored)[:, None]}))


def measure(cell: CellData, job: Job, meter: Meter, alone: bool) -> Finished:
    """Train and score a method.

    Of the scored rows only errors are kept: answer minus label, for classes 0 where the answer is right.
    """
    outcome = TRAIN[job.method](cell, job, meter)
    validation, scored = outcome.predict(cell.validation), outcome.predict(cell.scored)
    task, labels = cell.task, labels_of(cell.scored)
    scores, errors = {}, {}
    for name, logits in scored.items():
        found = answers(task, logits, cell.scored)
        scores[name] = task.score(found, cell.scored) | {"grade": grade(task, validation[name], cell.validation)}
        differences = np.array([found[example.id] for example in cell.scored]) - labels
        errors[name] = np.asarray(differences if task.classes else differences.round(2), dtype=np.float32)[:, None]
    record = asdict(job) | {
        "version": job.version,
        "unit": METHODS[job.method].unit,
        "alone": alone,
        "machine": machine(),
        "grade": scores["model"]["grade"],
        "primary": task.primary,
        "scores": scores,
        "seconds": meter.seconds,
        "total": sum(seconds for name, seconds in meter.seconds.items() if name not in EXCLUDED),
        "peak_bytes": meter.peaks,
        "trainable": outcome.trainable,
        "kept_bytes": outcome.kept_bytes,
        "latency": latency(outcome, cell) if alone else 0.0,
        "rows": [len(rows) for rows in (cell.train, cell.validation, cell.scored)],
    }
    return Finished(record | outcome.extra, errors)


def latency(outcome: Outcome, cell: CellData) -> float:
    """Return the median seconds of one answer, from its text."""
    seconds = []
    for example in cell.scored[:LATENCY_ROWS]:
        began = time.perf_counter()
        outcome.predict([example])
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
