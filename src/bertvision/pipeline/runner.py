"""Run an experiment: fine-tune, train heads and controls, evaluate, combine with BERT.

Each step is skipped if its result is already on disk:

    runs/<task>/<encoder>/<8 hex of data, fine-tuning and seed>/
        settings.json               what the 8 digits stand for
        <fraction>/encoder/         the fine-tuned encoder, with BERT's own head
        <fraction>/bert-<8 hex>/    a run: BERT's own predictions
        <fraction>/<head>-<8 hex>/  a run: a head, a control or an ensemble
        results-<8 hex>.json, .md   the comparison
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision import distributed
from bertvision.errors import BertVisionError
from bertvision.files import value_hash, write_json
from bertvision.pipeline.data import ExperimentData, load_data
from bertvision.pipeline.evaluation import bert_run, ensemble
from bertvision.pipeline.experiment import Experiment, make, merge, resolve_fractions
from bertvision.pipeline.finetuning import finetune, open_checkpoint
from bertvision.pipeline.head_training import train_heads
from bertvision.runs import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExperimentResult:
    """The runs of an experiment, in the order of the table."""

    runs: list[Run]
    best: Run
    """The head with the best validation score, at the last fraction at which heads were trained."""
    file: Path
    """The comparison as JSON."""

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the comparison as plain rows, for tables and files."""
        return [
            {
                "name": run.name,
                "kind": run.kind,
                "fraction": run.record.fraction,
                "chosen": run.directory == self.best.directory,
                "primary": run.metrics.primary_metric,
                "score": run.metrics.scores,
                "interval": list(run.metrics.interval),
                "validation": run.validation_score[0],
                "parameters": run.metrics.parameters,
                "seconds": run.metrics.seconds.to_dict(),
                "directory": os.path.relpath(run.directory, self.file.parent),
            }
            for run in self.runs
        ]


def run(experiment: Experiment | None = None, *, root: str | Path = "runs", **settings: Any) -> ExperimentResult:
    """Run an experiment, given as an `Experiment` or by its settings: run(task="mrpc"), run(train_file="mine.csv")."""
    if experiment is not None and settings:
        raise BertVisionError(
            f"Give an experiment or settings, not both; got an experiment and {', '.join(settings)}. "
            "dataclasses.replace changes the settings of an experiment."
        )
    data = load_data(resolve_fractions(experiment or make(**settings)))
    counts = [len(split.examples) for split in (data.train, data.validation, data.dev)]
    logger.info(
        f"{data.task.name}: {counts[0]:,} rows to train on, {counts[1]:,} to choose on, {counts[2]:,} to score, "
        f"from {data.source}."
    )
    checkpoints = finetune(data, Path(root))
    runs: list[Run] = []
    best: Run | None = None
    for fraction in checkpoints.fractions:
        checkpoint = open_checkpoint(data, checkpoints, fraction)
        trained = train_heads(data, checkpoint) if fraction in data.experiment.head_fractions else []
        bert = bert_run(data, checkpoint)
        runs += [bert, *trained]
        if trained:
            best = choose_best(trained)
            methods = ["mean"] if data.task.outputs == 1 else data.experiment.ensembles
            runs += [ensemble(data, checkpoint.directory, [bert, best], how) for how in methods]
    best = best or max(runs, key=lambda run: run.validation_score)
    return _write_result(data, runs, best, checkpoints.directory)


def _write_result(data: ExperimentData, runs: list[Run], best: Run, directory: Path) -> ExperimentResult:
    key = value_hash([str(run.directory.relative_to(directory)) for run in runs])
    result = ExperimentResult(runs, best, directory / f"results-{key}.json")
    if distributed.is_main_process():
        values = {"experiment": data.experiment.to_dict(), "source": data.source, "rows": result.to_rows()}
        write_json(result.file, values)
    return result


def choose_best(runs: Sequence[Run]) -> Run:
    """Return the head with the best validation score. Controls are not candidates unless there is nothing else."""
    candidates = [run for run in runs if run.kind == "head"] or list(runs)
    return max(candidates, key=lambda run: run.validation_score)


def experiment_of(run: Run) -> Experiment:
    """Return the settings of a run."""
    return merge(Experiment(), run.record.settings)
