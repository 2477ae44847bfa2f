"""Run directories: reading, writing and finding them.

experiment.json    a `RunRecord`: settings, task, encoder and head, all that predictions need
head.safetensors   weights of the head (none for BERT itself and for ensembles)
validation.npz     predictions on the validation split
predictions.npz    predictions on the development set
outcomes.npy       development answers compared with labels, one row each: compares runs without the data
metrics.json       `Metrics`: scores, parameters, seconds; written last, so a run that has it is finished
"""

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import bertvision.token_tasks  # noqa: F401  # registers its kind of task, which saved runs may have
from bertvision import distributed, legacy
from bertvision.arrays import load_array, load_predictions, save_array, save_predictions
from bertvision.errors import BertVisionError
from bertvision.files import inside, load_tensors, read_json, save_tensors, write_json
from bertvision.records import Metrics, RunRecord
from bertvision.types import Predictions

FORMAT = 2


@dataclass(frozen=True)
class Run:
    """A finished run."""

    directory: Path

    @cached_property
    def root(self) -> Path:
        """The directory that all files of the run must be in: its run tree, or the model that was shared or exported.

        A run tree is <root>/<task>/<encoder>/<hash>/<fraction>/<run>. If it was renamed, the root is <hash>.
        """
        directory = self.directory.resolve()
        above = list(directory.parents)
        if len(above) > 4 and (above[1] / "settings.json").is_file():
            return above[4] if above[3].name == slug(str(self.record.task.get("name"))) else above[1]
        if directory.name == "bert" and (above[0] / "experiment.json").is_file():
            return Run(above[0]).root
        if directory.parent.name == "members" and (above[1] / "experiment.json").is_file():
            return Run(above[1]).root
        if directory.parent.name == "runs" and (above[1] / "exported.json").is_file():
            return above[1]
        return directory

    def path(self, name: str) -> Path:
        """Return a path that is given relative to the run. It must be inside `root`."""
        return inside(self.root, name, self.directory.resolve())

    @cached_property
    def _experiment(self) -> dict[str, Any]:
        values = read_json(inside(self.directory, "experiment.json"), "experiment of a run")
        if not isinstance(values, dict) or values.get("format") not in (1, FORMAT):
            written = str(values.get("format") if isinstance(values, dict) else "unknown")[:40]
            raise BertVisionError(
                f"{self.directory} was written in format {written}; this version reads 1 to {FORMAT}."
            )
        return values

    @property
    def _is_legacy(self) -> bool:
        return self._experiment["format"] == 1

    @cached_property
    def record(self) -> RunRecord:
        """The settings of the run."""
        where = str(self.directory / "experiment.json")
        return RunRecord.from_dict(_upgraded(self._experiment, legacy.upgrade_record, where, self._is_legacy), where)

    @cached_property
    def metrics(self) -> Metrics:
        """The results of the run."""
        path = inside(self.directory, "metrics.json")
        values = read_json(path, "metrics of a run")
        return Metrics.from_dict(_upgraded(values, legacy.upgrade_metrics, str(path), self._is_legacy), str(path))

    @property
    def name(self) -> str:
        """The specification of its head, or "BERT"."""
        return self.record.name

    @property
    def kind(self) -> str:
        """A key of `records.KINDS`."""
        return self.record.kind

    @property
    def primary_score(self) -> float:
        """The official score on the development set, in percent."""
        return self.metrics.primary_score

    @property
    def validation_score(self) -> tuple[float, float]:
        """(primary score, negated loss) on the validation split, by which choices are made."""
        return self.metrics.validation_score

    def predictions(self, split: str = "dev") -> Predictions:
        """Read the saved logits of "dev" or "validation"."""
        return load_predictions(inside(self.directory, "predictions.npz" if split == "dev" else "validation.npz"))

    def outcomes(self) -> np.ndarray:
        """Read how each dev answer compares with its label."""
        return load_array(inside(self.directory, "outcomes.npy"), "file of outcomes")

    def weights(self) -> dict[str, Tensor]:
        """Read the weights of the head."""
        return load_tensors(inside(self.directory, "head.safetensors"), "head")[0]

    @property
    def encoder_directory(self) -> Path:
        """Directory of the fine-tuned encoder; relative to the run, so that the tree can be moved."""
        return self.path(self.record.encoder_path)

    @property
    def has_encoder(self) -> bool:
        """Whether the weights of the fine-tuned encoder are present."""
        return has_weights(self.encoder_directory)

    @property
    def encoder_source(self) -> str:
        """The directory of the fine-tuned encoder, or the name of the encoder if its weights are not saved."""
        return str(self.encoder_directory) if self.has_encoder else self.encoder_name

    @property
    def encoder_name(self) -> str:
        """The name of the pretrained encoder. A path is refused: a received run must not choose what is read here."""
        name = self.record.encoder
        if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
            raise BertVisionError(
                f"{self.directory} has no encoder, and names {name!r}, which is not a name. Give the directory of its "
                "encoder: load(run, encoder=...)."
            )
        return name

    def members(self) -> list["Run"]:
        """Open the runs an ensemble consists of."""
        return [open_run(self.path(path)) for path in self.record.members]

    def bert(self) -> "Run | None":
        """Find BERT's own run on the same encoder: inside a shared run, beside any other; None if it was not kept."""
        first = (self.members() or [self])[0]
        if first.kind == "bert":
            return first
        beside = first.directory.resolve().parent
        siblings = sorted(beside.glob("bert*")) if beside.is_relative_to(first.root) else []
        for directory in [self.path("bert"), *siblings]:
            if is_finished(directory) and _is_bert_of(Run(directory), first):
                return Run(directory)
        return None


def _upgraded(
    values: Any, upgrade: Callable[[Mapping[str, Any]], dict[str, Any]], where: str, is_legacy: bool
) -> dict[str, Any]:
    """Return the values of a file; those of format 1 with the keys of format 2."""
    try:
        return upgrade(values) if is_legacy else values
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, BertVisionError):
            raise
        raise BertVisionError(f"{where} is damaged: {error!r}.") from error


def has_weights(directory: Path) -> bool:
    """Whether a directory holds the weights of an encoder."""
    return (directory / "model.safetensors").is_file() or any(directory.glob("model-*.safetensors"))


def _is_bert_of(bert: Run, run: Run) -> bool:
    """Tell whether a run is BERT's own on the task and the encoder of another run."""
    records = [bert.record, run.record]
    identities = [(record.task, record.encoder_hash, record.max_tokens) for record in records]
    return bert.kind == "bert" and identities[0] == identities[1]


def save_run(
    directory: Path,
    record: RunRecord,
    metrics: Metrics,
    predictions: dict[str, Predictions],
    outcomes: np.ndarray,
    weights: dict[str, Tensor] | None = None,
) -> Run:
    """Write a run. The file that marks it as finished is written last.

    Args:
        directory: where to write it.
        record: the settings of the run.
        metrics: its results.
        predictions: logits of "validation" and "dev".
        outcomes: how each development answer compares with its label.
        weights: of the head, if it has one.
    """
    if distributed.is_main_process():
        writes = [
            partial(write_record, directory, record),
            partial(save_predictions, directory / "validation.npz", predictions["validation"]),
            partial(save_predictions, directory / "predictions.npz", predictions["dev"]),
            partial(save_array, directory / "outcomes.npy", outcomes),
        ]
        if weights is not None:
            writes.append(partial(save_tensors, directory / "head.safetensors", weights))
        # Each file is synced. Side by side they wait for the disk about once, one after the other once for each.
        with ThreadPoolExecutor(len(writes)) as threads:
            for written in [threads.submit(write) for write in writes]:
                written.result()
        write_metrics(directory, metrics)
    distributed.barrier()
    return Run(directory)


def write_record(directory: Path, record: RunRecord) -> None:
    """Write experiment.json."""
    write_json(directory / "experiment.json", {"format": FORMAT, **record.to_dict()})


def write_metrics(directory: Path, metrics: Metrics) -> None:
    """Write metrics.json, which marks the run as finished."""
    write_json(directory / "metrics.json", metrics.to_dict())


def is_finished(directory: Path) -> bool:
    """Tell whether a directory holds a finished run."""
    return distributed.broadcast_decision((directory / "metrics.json").is_file())


def open_run(path: Path) -> Run:
    """Open the finished run in a directory."""
    path = Path(path)
    if not is_finished(path):
        nearby = [run.directory for run in find_runs(path)][:3] if path.is_dir() else []
        hint = f" There are runs below it, such as {nearby[0]}." if nearby else " `bertvision runs list` shows them."
        raise BertVisionError(f"No finished run at {path}.{hint}")
    return Run(path)


def find_runs(root: Path) -> Iterator[Run]:
    """Yield every finished run below `root`, sorted by path."""
    for path in sorted(Path(root).rglob("metrics.json")):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            yield Run(path.parent)


def slug(name: str) -> str:
    """Turn the name of a head, an encoder or a task into a directory name."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-.") or "unnamed"
