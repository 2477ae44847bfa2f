"""What the tables need of a finished run, small enough to keep with the code, so that a table can grow over days."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from cells import Cells, Finished

from bertvision.runs import Run


@dataclass(frozen=True)
class Scored:
    """A model's scores, and how each of its dev answers compares with the label."""

    task: str
    primary: float
    validation: float
    parameters: int
    score: dict[str, float]
    outcomes: np.ndarray


def kept(cells: Cells, key: str, names: Collection[str], make: Callable[[], dict[str, Run]]) -> dict[str, Scored]:
    """Read the models of `names` from a cell; if it lacks one, make them all and write it."""
    if key not in cells or not set(names) <= read(cells, key).keys():
        cells.write(key, _finished(make()))
    return read(cells, key)


def read(cells: Cells, key: str) -> dict[str, Scored]:
    """Read the models of a finished cell."""
    found = cells.read(key)
    return {name: Scored(**each, outcomes=found.outcomes[name]) for name, each in found.record.items()}


def _finished(runs: dict[str, Run]) -> Finished:
    record = {
        name: {
            "task": run.record.task["name"],
            "primary": run.primary_score,
            "validation": run.validation_score[0],
            "parameters": run.metrics.parameters,
            "score": run.metrics.scores,
        }
        for name, run in runs.items()
    }
    return Finished(record, {name: run.outcomes() for name, run in runs.items()})
