"""The history of a search: every trial, and the importance of each setting."""

import warnings
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.importance import get_param_importances
from optuna.trial import TrialState

from bertvision.lab.searches.optuna_study import FAILURE, SETTINGS, counts_towards_budget

MIN_TRIALS = 4  # importance is not computed for fewer finished trials


def history_rows(study: optuna.Study) -> list[dict[str, Any]]:
    """Return every trial of the budget as plain JSON, in order of number."""
    return [
        {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "validation": trial.value if trial.state == TrialState.COMPLETE else None,
            "scores": trial.user_attrs.get("scores", []),
            "by_epoch": [score for _, score in sorted(trial.intermediate_values.items())],
            "setting": trial.user_attrs.get(SETTINGS, trial.params),
            "params": trial.params,
            "failed": trial.user_attrs.get(FAILURE, ""),
            "seconds": trial.user_attrs.get("seconds", 0.0),
        }
        for trial in study.get_trials(deepcopy=False)
        if counts_towards_budget(trial)
    ]


def parameter_importance(study: optuna.Study) -> dict[str, float]:
    """Return the importance of each setting for the validation score (fANOVA); empty with too few trials."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < MIN_TRIALS or len({trial.value for trial in complete}) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that parts of it are experimental
        return get_param_importances(study)


def history_markdown(title: str, rows: Sequence[dict[str, Any]], importance: dict[str, float]) -> str:
    """Return history and importance as Markdown."""
    lines = [f"# {title}", "", "| trial | state | validation | head | fraction | learning rate | epochs | seconds |"]
    lines.append("|---:|---|---:|---|---:|---:|---:|---:|")
    for row in rows:
        score = "" if row["validation"] is None else f"{row['validation']:.2f}"
        settings = row["setting"]
        lines.append(
            f"| {row['number']} | {row['state']} | {score} | {settings.get('head') or 'BERT'} "
            f"| {settings.get('fraction', '')} | {settings.get('learning_rate', 0):.2g} "
            f"| {settings.get('epochs', '')} | {row['seconds']:.1f} |"
        )
    if importance:
        lines += ["", "| setting | importance |", "|---|---:|"]
        lines += [f"| {name} | {share:.2f} |" for name, share in importance.items()]
    failures = [row for row in rows if row["failed"]]
    if failures:
        lines += ["", *(f"Trial {row['number']} failed: {row['failed']}." for row in failures)]
    return "\n".join(lines) + "\n"
