"""The GLUE benchmark: nine tasks, one table, and the official average."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertvision.encoders import load_encoder_info
from bertvision.errors import BertVisionError
from bertvision.lab.reports.diagnostics import LABELLED_FILE, diagnose
from bertvision.pipeline import load_data, resolve, run_data
from bertvision.pipeline.experiment import Experiment, resolve_fractions
from bertvision.runs import Run
from bertvision.tasks import TASKS, DataRequest

logger: logging.Logger = logging.getLogger(__name__)

GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
"""The nine tasks of the official average. The diagnostic set is not part of it."""


@dataclass(frozen=True, kw_only=True)
class GlueScore:
    """The scores of the models of one task on its dev rows."""

    task: str
    rows: tuple[int, int]
    """Rows for training and rows that are scored."""
    models: Mapping[str, Mapping[str, float]]
    """The metrics of BERT and of the chosen head, in percent."""
    run: str
    """The directory of the run of the chosen head."""

    def average(self, model: str) -> float:
        """Return the mean of the metrics of a task, which is its part of the official average."""
        metrics = self.models[model]
        return sum(metrics.values()) / len(metrics)


@dataclass(frozen=True, kw_only=True)
class GlueResult:
    """The scores of all tasks whose data are available."""

    scores: list[GlueScore]
    missing: dict[str, str] = field(default_factory=dict)
    """Why the data of each other task are not available."""
    diagnostics: dict[str, float] = field(default_factory=dict)
    """The Matthews correlation of each model of mnli on the diagnostic set. Empty: not scored."""

    def average(self, model: str) -> float | None:
        """Return the official average over nine tasks, or None if a task is missing."""
        if self.missing or len(self.scores) != len(GLUE_TASKS):
            return None
        return sum(score.average(model) for score in self.scores) / len(self.scores)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON."""
        names = list(self.scores[0].models) if self.scores else []
        return {
            "tasks": [
                {
                    "task": score.task,
                    "rows": list(score.rows),
                    "models": {name: dict(metrics) for name, metrics in score.models.items()},
                    "average": {name: score.average(name) for name in score.models},
                    "run": score.run,
                }
                for score in self.scores
            ],
            "missing": self.missing,
            "average": {name: self.average(name) for name in names},
            "diagnostics": self.diagnostics,
        }


def run_glue(experiment: Experiment, root: Path) -> GlueResult:
    """Run an experiment on every task of GLUE whose data are available. Finished runs are reused.

    The diagnostic set is scored if the data directory holds diagnostic-full.tsv.
    """
    scores, missing, diagnostics = [], {}, {}
    for name in GLUE_TASKS:
        task = TASKS[name]
        own = resolve_fractions(replace(experiment, task=name), task.example_kind)
        try:
            splits = task.load(DataRequest(data_dir=own.data.data_dir, source=own.data.source))
        except BertVisionError as error:
            missing[name] = str(error)
            logger.warning(f"{name} is left out: {error}")
            continue
        config = resolve(own, task, load_encoder_info(own.encoder_at(min(own.fractions))))
        data = load_data(config, splits)
        result = run_data(data, root)
        models = _models(result.runs, result.best)
        scores.append(
            GlueScore(
                task=name,
                rows=(len(data.train.examples), len(data.dev.examples)),
                models={label: _official_metrics(run) for label, run in models.items()},
                run=str(result.best.directory),
            )
        )
        file = _diagnostic_file(own.data.data_dir)
        if name == "mnli" and file is not None:
            diagnostics = {label: diagnose(run.directory, file)[0].matthews for label, run in models.items()}
    return GlueResult(scores=scores, missing=missing, diagnostics=diagnostics)


def _models(runs: list[Run], best: Run) -> dict[str, Run]:
    """Return the run of BERT at the checkpoint of the chosen head, and that of the head."""
    bert = next(run for run in runs if run.kind == "bert" and run.record.fraction == best.record.fraction)
    return {"BERT": bert, "head": best}


def _official_metrics(run: Run) -> dict[str, float]:
    """Return the metrics of a run that the leaderboard averages."""
    return {
        name: run.metrics.scores[name] for name in TASKS[run.record.task["name"]].metrics if name in run.metrics.scores
    }


def _diagnostic_file(data_dir: str) -> Path | None:
    """Return the labelled diagnostic file of a data directory."""
    root = Path(data_dir).expanduser()
    paths = [root / folder / LABELLED_FILE for folder in ("", "diagnostic", "diagnostics", "AX", "MNLI")]
    return next((path for path in paths if data_dir and path.is_file()), None)
