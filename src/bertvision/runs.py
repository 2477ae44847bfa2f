"""A run directory: what was done, what came out, and how good it is.

experiment.json    settings, task, backbone, head: enough to answer with
head.safetensors   weights (none for BERT itself and for ensembles)
validation.npz     predictions on what was chosen on
predictions.npz    predictions on dev
outcomes.npy       dev answers against labels, one row each: compares runs without the data
metrics.json       scores, parameters, seconds; written last: its presence means finished
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from bertvision import distributed
from bertvision.errors import BertVisionError
from bertvision.files import atomic_write, load_tensors, read_json, save_tensors, write_json
from bertvision.types import Predictions

FORMAT = 1
KINDS = ("bert", "head", "control", "ensemble", "carried", "epoch")


@dataclass(frozen=True)
class Run:
    """A finished run."""

    directory: Path

    @cached_property
    def experiment(self) -> dict[str, Any]:
        """What was done."""
        found = read_json(self.directory / "experiment.json", "experiment of a run")
        if found.get("format") != FORMAT:
            raise BertVisionError(f"{self.directory} was written in format {found.get('format')}; this reads {FORMAT}.")
        return found

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """What came out."""
        return read_json(self.directory / "metrics.json", "metrics of a run")

    @property
    def name(self) -> str:
        """Its head's name, or what it is."""
        return self.experiment["name"]

    @property
    def kind(self) -> str:
        """One of KINDS."""
        return self.experiment["kind"]

    @property
    def primary(self) -> float:
        """The official score on dev, in percent."""
        return self.metrics["score"][self.metrics["primary"]]

    @property
    def validation_score(self) -> tuple[float, float]:
        """How good it is on validation, by which choices are made: the same score, then the loss, negated."""
        return tuple(self.metrics["grade"])

    def predictions(self, split: str = "dev") -> Predictions:
        """Read the saved logits of "dev" or "validation"."""
        return Predictions.load(self.directory / ("predictions.npz" if split == "dev" else "validation.npz"))

    def outcomes(self) -> np.ndarray:
        """Read how each dev answer compares with its label."""
        return np.load(self.directory / "outcomes.npy", allow_pickle=False)

    def weights(self) -> dict[str, Tensor]:
        """Read the head's weights."""
        return load_tensors(self.directory / "head.safetensors", "head")[0]

    @property
    def encoder(self) -> Path:
        """The fine-tuned backbone it reads; beside it, so that the tree can be moved."""
        return self.directory / self.experiment["encoder_path"]

    @property
    def has_encoder(self) -> bool:
        """Whether the backbone's weights are there."""
        return (self.encoder / "model.safetensors").is_file() or any(self.encoder.glob("model-*.safetensors"))

    def members(self) -> list["Run"]:
        """The runs an ensemble is made of."""
        return [open_run(self.directory / path) for path in self.experiment.get("members", [])]

    def bert(self) -> "Run | None":
        """BERT's own run on the same backbone, if it was kept: inside a shared run, beside any other."""
        first = (self.members() or [self])[0]
        if first.kind == "bert":
            return first
        for place in [self.directory / "bert", *sorted(first.directory.parent.glob("bert*"))]:
            if is_finished(place) and _same_encoder(Run(place), first):
                return Run(place)
        return None


def _same_encoder(one: Run, other: Run) -> bool:
    task = "task", "weights", "max_tokens"
    return one.kind == "bert" and all(one.experiment.get(key) == other.experiment.get(key) for key in task)


def save_run(
    directory: Path,
    experiment: dict[str, Any],
    metrics: dict[str, Any],
    predictions: dict[str, Predictions],
    outcomes: np.ndarray,
    weights: dict[str, Tensor] | None = None,
) -> Run:
    """Write a run; the file that means "finished" comes last."""
    if distributed.is_main_process():
        _write_run(directory, experiment, metrics, predictions, outcomes, weights)
    distributed.barrier()
    return Run(directory)


def _write_run(
    directory: Path,
    experiment: dict[str, Any],
    metrics: dict[str, Any],
    predictions: dict[str, Predictions],
    outcomes: np.ndarray,
    weights: dict[str, Tensor] | None,
) -> None:
    write_json(directory / "experiment.json", {"format": FORMAT, **experiment})
    if weights is not None:
        save_tensors(directory / "head.safetensors", weights)
    predictions["validation"].save(directory / "validation.npz")
    predictions["dev"].save(directory / "predictions.npz")
    with atomic_write(directory / "outcomes.npy") as file:
        np.save(file, outcomes, allow_pickle=False)
    write_json(directory / "metrics.json", metrics)


def is_finished(directory: Path) -> bool:
    """Tell whether a run is complete."""
    return distributed.broadcast_decision((directory / "metrics.json").is_file())


def open_run(path: Path) -> Run:
    """Open a finished run by its directory."""
    path = Path(path)
    if not is_finished(path):
        nearby = [run.directory for run in find_runs(path)][:3] if path.is_dir() else []
        hint = f" There are runs below it, such as {nearby[0]}." if nearby else " `bertvision runs list` shows them."
        raise BertVisionError(f"No finished run at {path}.{hint}")
    return Run(path)


def find_runs(root: Path) -> Iterator[Run]:
    """Yield every finished run below `root`, in order of path."""
    for path in sorted(Path(root).rglob("metrics.json")):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            yield Run(path.parent)


def slug(name: str) -> str:
    """Make a directory name of a head's, a backbone's or a task's."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-.") or "unnamed"
