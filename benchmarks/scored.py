"""What the tables need of a finished run, small enough to keep with the code, so that a table can grow over days."""

import io
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertvision.files import atomic_write
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


def kept(path: Path, names: Collection[str], make: Callable[[], dict[str, Run]]) -> dict[str, Scored]:
    """Read the models of `names` from a file; if it lacks one, make them all and write it."""
    if not path.is_file() or not set(names) <= _read(path).keys():
        _write(path, make())
    return _read(path)


def _write(path: Path, runs: dict[str, Run]) -> None:
    about = {
        name: {
            "task": run.experiment["task"]["name"],
            "primary": run.primary,
            "validation": run.validation_score[0],
            "parameters": run.metrics["parameters"],
            "score": run.metrics["score"],
        }
        for name, run in runs.items()
    }
    # (models, columns, rows): labels, which all models share, lie where the compressor still sees the last ones.
    outcomes = np.stack([run.outcomes().reshape(len(run.outcomes()), -1).T for run in runs.values()])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, about=np.array(json.dumps(about)), outcomes=outcomes.astype(np.float32))
    with atomic_write(path) as file:
        file.write(buffer.getvalue())


def _read(path: Path) -> dict[str, Scored]:
    with np.load(path, allow_pickle=False) as file:
        about, outcomes = json.loads(str(file["about"])), file["outcomes"].astype(np.float64)
    return {name: Scored(**each, outcomes=outcomes[i].T) for i, (name, each) in enumerate(about.items())}
