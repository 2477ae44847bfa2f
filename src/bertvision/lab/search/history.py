"""What a search leaves to read: every trial, and how much each setting mattered."""

import warnings
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.importance import get_param_importances
from optuna.trial import TrialState

from bertvision.lab.search.study import counts

FEW = 4  # finished trials below which importance means nothing


def rows(study: optuna.Study) -> list[dict[str, Any]]:
    """Return every trial of the budget as plain JSON, in order of number."""
    return [
        {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "validation": trial.value if trial.state == TrialState.COMPLETE else None,
            "scores": trial.user_attrs.get("scores", []),
            "by_epoch": [score for _, score in sorted(trial.intermediate_values.items())],
            "setting": trial.user_attrs.get("setting", trial.params),
            "params": trial.params,
            "failed": trial.user_attrs.get("failed", ""),
            "seconds": trial.user_attrs.get("seconds", 0.0),
        }
        for trial in study.get_trials(deepcopy=False)
        if counts(trial)
    ]


def importance(study: optuna.Study) -> dict[str, float]:
    """Return the share of each setting in what makes trials good; empty where it cannot be told."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < FEW or len({trial.value for trial in complete}) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how the library words what is still young in it
        return get_param_importances(study)


def page(title: str, found: Sequence[dict[str, Any]], shares: dict[str, float]) -> str:
    """Return history and importance as Markdown."""
    lines = [f"# {title}", "", "| trial | state | validation | head | at | rate | epochs | seconds |"]
    lines.append("|---:|---|---:|---|---:|---:|---:|---:|")
    for row in found:
        score = "" if row["validation"] is None else f"{row['validation']:.2f}"
        setting = row["setting"]
        lines.append(
            f"| {row['number']} | {row['state']} | {score} | {setting.get('head') or 'BERT'} "
            f"| {setting.get('fraction', '')} | {setting.get('learning_rate', 0):.2g} | {setting.get('epochs', '')} "
            f"| {row['seconds']:.1f} |"
        )
    if shares:
        lines += ["", "| setting | importance |", "|---|---:|"]
        lines += [f"| {name} | {share:.2f} |" for name, share in shares.items()]
    failures = [row for row in found if row["failed"]]
    if failures:
        lines += ["", *(f"Trial {row['number']} failed: {row['failed']}." for row in failures)]
    return "\n".join(lines) + "\n"
