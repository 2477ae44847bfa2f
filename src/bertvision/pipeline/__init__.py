"""The line, top to bottom: text -> tokens -> hidden states -> logits -> answers -> score.

Each step is skipped if its result is already on disk:

    runs/<task>/<backbone>/<8 hex of data, fine-tuning and seed>/
        settings.json               what the 8 digits stand for
        <fraction>/backbone/        the fine-tuned encoder, with BERT's own head
        <fraction>/bert-<8 hex>/    a run: BERT's own predictions
        <fraction>/<head>-<8 hex>/  a run: a head, a control, an ensemble
        results-<8 hex>.json, .md   the comparison
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertvision import runtime
from bertvision.config import Experiment, make, merge
from bertvision.files import value_hash, write_json
from bertvision.pipeline.finetuning import Point, Tuned, finetune, open_point
from bertvision.pipeline.prepared import Notify, Prepared, dev_examples, find_task, prepare
from bertvision.pipeline.probing import carry, train_heads
from bertvision.pipeline.scoring import bert_run, ensemble, rescore
from bertvision.pipeline.states import estimate, extract
from bertvision.pipeline.together import finetune_together, run_together
from bertvision.progress import say
from bertvision.runs import Run

__all__ = [
    "Comparison",
    "Notify",
    "Point",
    "Prepared",
    "Tuned",
    "bert_run",
    "carry",
    "choose",
    "dev_examples",
    "ensemble",
    "estimate",
    "experiment_of",
    "extract",
    "find_task",
    "finetune",
    "finetune_together",
    "open_point",
    "prepare",
    "rescore",
    "rows",
    "run",
    "run_together",
    "train_heads",
]


@dataclass(frozen=True)
class Comparison:
    """What `run` returns: every run, in the order of the table."""

    runs: list[Run]
    best: Run
    """The head that validation prefers, at the last fraction read."""
    file: Path


def run(
    experiment: Experiment | None = None, *, root: str | Path = "runs", notify: Notify = say, **settings: Any
) -> Comparison:
    """From text to a scored, ensembled result: run(task="mrpc"), or run(train_file="mine.csv", label="stars")."""
    experiment = experiment or make(**settings)
    read_at = experiment.read_at or [min(experiment.fractions)]
    experiment = replace(experiment, read_at=read_at, fractions=sorted({*experiment.fractions, *read_at}))
    prepared = prepare(experiment, notify)
    experiment = prepared.experiment
    counts = [len(split.examples) for split in (prepared.train, prepared.validation, prepared.dev)]
    notify(
        f"{prepared.task.name}: {counts[0]:,} rows to train on, {counts[1]:,} to choose on, {counts[2]:,} to score, "
        f"from {prepared.source}."
    )
    tuned = finetune(prepared, Path(root))
    found: list[Run] = []
    best: Run | None = None
    for fraction in tuned.fractions:
        point = open_point(prepared, tuned, fraction)
        trained = train_heads(prepared, point, notify) if fraction in experiment.read_at else []
        bert = bert_run(prepared, point)
        found += [bert, *trained]
        if trained:
            best = choose(trained)
            ways = ["mean"] if prepared.task.outputs == 1 else experiment.ensembles
            found += [ensemble(prepared, point.directory, [bert, best], how) for how in ways]
    if best is None:
        best = max(found, key=lambda each: each.grade)
    key = value_hash([str(each.directory.relative_to(tuned.directory)) for each in found])
    file = tuned.directory / f"results-{key}.json"
    comparison = Comparison(found, best, file)
    if runtime.first():
        write_json(file, {"experiment": experiment.to_dict(), "source": prepared.source, "rows": rows(comparison)})
    return comparison


def choose(trained: Sequence[Run]) -> Run:
    """Return the head that validation prefers; controls are not candidates, unless there is nothing else."""
    candidates = [each for each in trained if each.kind == "head"] or list(trained)
    return max(candidates, key=lambda each: each.grade)


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the comparison as plain rows, for tables and files."""
    return [
        {
            "name": each.name,
            "kind": each.kind,
            "fraction": each.experiment["fraction"],
            "chosen": each.directory == comparison.best.directory,
            "primary": each.metrics["primary"],
            "score": each.metrics["score"],
            "interval": each.metrics["interval"],
            "validation": each.grade[0],
            "parameters": each.metrics["parameters"],
            "seconds": each.metrics["seconds"],
            "directory": os.path.relpath(each.directory, comparison.file.parent),
        }
        for each in comparison.runs
    ]


def experiment_of(each: Run) -> Experiment:
    """Return the settings a run was made with."""
    return merge(Experiment(), each.experiment["settings"])
