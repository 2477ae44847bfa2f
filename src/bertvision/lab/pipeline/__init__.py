"""The line, top to bottom: text -> tokens -> hidden states -> logits -> answers -> score.

Each step is skipped if its result is already on disk:

    runs/<task>/<backbone>/<8 hex of data, fine-tuning and seed>/
        settings.json               what the 8 digits stand for
        <fraction>/backbone/        the fine-tuned encoder, with BERT's own head
        <fraction>/bert-<8 hex>/    a run: BERT's own predictions
        <fraction>/<head>-<8 hex>/  a run: a head, a control, an ensemble
        results-<8 hex>.json, .md   the comparison
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertvision import distributed
from bertvision.files import value_hash, write_json
from bertvision.lab.experiment import Experiment, make, merge
from bertvision.lab.pipeline.data import ExperimentData, dev_examples, find_task, load_data
from bertvision.lab.pipeline.evaluation import bert_run, ensemble, rescore
from bertvision.lab.pipeline.finetuning import Checkpoint, CheckpointSet, finetune, open_checkpoint
from bertvision.lab.pipeline.head_training import evaluate_at, train_heads
from bertvision.lab.pipeline.multitask import finetune_multitask, run_multitask
from bertvision.runs import Run

logger = logging.getLogger(__name__)

__all__ = [
    "Comparison",
    "Checkpoint",
    "ExperimentData",
    "CheckpointSet",
    "bert_run",
    "evaluate_at",
    "choose_best",
    "dev_examples",
    "ensemble",
    "experiment_of",
    "find_task",
    "finetune",
    "finetune_multitask",
    "open_checkpoint",
    "load_data",
    "rescore",
    "rows",
    "run",
    "run_multitask",
    "train_heads",
]


@dataclass(frozen=True)
class Comparison:
    """What `run` returns: every run, in the order of the table."""

    runs: list[Run]
    best: Run
    """The head that validation prefers, at the last fraction read."""
    file: Path


def run(experiment: Experiment | None = None, *, root: str | Path = "runs", **settings: Any) -> Comparison:
    """From text to a scored, ensembled result: run(task="mrpc"), or run(train_file="mine.csv", label="stars")."""
    experiment = experiment or make(**settings)
    head_fractions = experiment.head_fractions or [min(experiment.fractions)]
    experiment = replace(
        experiment, head_fractions=head_fractions, fractions=sorted({*experiment.fractions, *head_fractions})
    )
    data = load_data(experiment)
    experiment = data.experiment
    counts = [len(split.examples) for split in (data.train, data.validation, data.dev)]
    logger.info(
        f"{data.task.name}: {counts[0]:,} rows to train on, {counts[1]:,} to choose on, {counts[2]:,} to score, "
        f"from {data.source}."
    )
    checkpoints = finetune(data, Path(root))
    found: list[Run] = []
    best: Run | None = None
    for fraction in checkpoints.fractions:
        checkpoint = open_checkpoint(data, checkpoints, fraction)
        trained = train_heads(data, checkpoint) if fraction in experiment.head_fractions else []
        bert = bert_run(data, checkpoint)
        found += [bert, *trained]
        if trained:
            best = choose_best(trained)
            ways = ["mean"] if data.task.outputs == 1 else experiment.ensembles
            found += [ensemble(data, checkpoint.directory, [bert, best], how) for how in ways]
    if best is None:
        best = max(found, key=lambda each: each.validation_score)
    key = value_hash([str(each.directory.relative_to(checkpoints.directory)) for each in found])
    file = checkpoints.directory / f"results-{key}.json"
    comparison = Comparison(found, best, file)
    if distributed.is_main_process():
        write_json(file, {"experiment": experiment.to_dict(), "source": data.source, "rows": rows(comparison)})
    return comparison


def choose_best(trained: Sequence[Run]) -> Run:
    """Return the head that validation prefers; controls are not candidates, unless there is nothing else."""
    candidates = [each for each in trained if each.kind == "head"] or list(trained)
    return max(candidates, key=lambda each: each.validation_score)


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the comparison as plain rows, for tables and files."""
    return [
        {
            "name": each.name,
            "kind": each.kind,
            "fraction": each.record.fraction,
            "chosen": each.directory == comparison.best.directory,
            "primary": each.metrics.primary_metric,
            "score": each.metrics.scores,
            "interval": list(each.metrics.interval),
            "validation": each.validation_score[0],
            "parameters": each.metrics.parameters,
            "seconds": each.metrics.seconds.to_dict(),
            "directory": os.path.relpath(each.directory, comparison.file.parent),
        }
        for each in comparison.runs
    ]


def experiment_of(each: Run) -> Experiment:
    """Return the settings a run was made with."""
    return merge(Experiment(), each.record.settings)
