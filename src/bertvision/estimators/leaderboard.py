"""The leaderboard of a fit: all models that were trained, with their scores."""

from typing import Any

from bertvision.heads import HeadConfig
from bertvision.pipeline import ExperimentResult
from bertvision.runs import Run
from bertvision.tasks import task_from_dict


def leaderboard_rows(result: ExperimentResult) -> list[dict[str, Any]]:
    """Return a row for each model: its name, kind, validation score with interval, parameters and seconds."""
    rows = []
    for run in result.runs:
        low, high = run.metrics.interval
        rows.append(
            {
                "model": _model_name(run),
                "kind": run.kind,
                "fraction": run.record.fraction,
                "metric": run.metrics.primary_metric,
                "score": run.metrics.primary_score,
                "low": low,
                "high": high,
                "parameters": run.metrics.parameters,
                "seconds": round(run.metrics.seconds.total, 2),
                "chosen": run.directory == result.best.directory,
            }
        )
    return rows


def _model_name(run: Run) -> str:
    """Return the short name of a model: "default" for the recommended head."""
    if members := run.members():
        return " + ".join(map(_model_name, members))
    if run.name == "BERT":
        return run.name
    return HeadConfig.parse(run.name).label(task_from_dict(run.record.task).example_kind)
