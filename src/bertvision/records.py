"""The contents of a run's JSON files as frozen dataclasses: its settings and its results."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from torch import Tensor

from bertvision.errors import BertVisionError
from bertvision.heads import HeadConfig, count_parameters
from bertvision.tasks.kinds import TASK_KINDS
from bertvision.types import HeadShape

T = TypeVar("T")

SPARE_PARAMETERS = 10**6  # that are not saved
MAX_LAYERS, MAX_DIMENSION = 1000, 10**7
"""The largest number of layers, and the largest of other dimensions, in a record. Larger ones are damaged."""

KINDS = {
    "bert": "the fine-tuned encoder with BERT's own head",
    "head": "a head trained on the hidden states of a fine-tuned encoder",
    "control": "a head trained for comparison, on the last layer only",
    "ensemble": "a combination of the predictions of other runs",
    "evaluated": "a head evaluated on the hidden states of a checkpoint it was not trained on",
    "epoch": "a head after one epoch of its training",
}
"""The kinds of runs."""


@dataclass(frozen=True, kw_only=True)
class TrainingSeconds:
    """Training time of a run."""

    finetune: float
    """Fine-tuning of the encoder."""
    head: float
    """Training of the head, including the computation of the hidden states it shares with other heads."""

    @property
    def total(self) -> float:
        """Fine-tuning and head training together."""
        return self.finetune + self.head

    def to_dict(self) -> dict[str, float]:
        """Return the times as plain JSON."""
        return {"finetune": self.finetune, "head": self.head, "total": self.total}


@dataclass(frozen=True, kw_only=True)
class TrainingSummary:
    """The size of a model, and how it was trained."""

    parameters: int
    seconds: TrainingSeconds
    best_epoch: int | None = None
    """The epoch, counted from 1, whose weights were kept."""
    epochs: int | None = None
    """Epochs trained."""
    validation_by_epoch: list[float] | None = None
    training_loss: float | None = None
    learning_rate: float | None = None
    states_seconds: float | None = None
    """The part of `seconds.head` that is shared by all heads trained on the same hidden states."""
    epoch: int | None = None
    """For runs of kind "epoch": after how many epochs the head was evaluated."""
    trained_at: float | None = None
    """For runs of kind "evaluated": the fine-tuning fraction at which the head was trained."""


@dataclass(frozen=True, kw_only=True)
class Metrics(TrainingSummary):
    """The results of a run (metrics.json)."""

    primary_metric: str
    """The official metric of the task; a key of `scores`."""
    scores: dict[str, float]
    """Scores on the development set, in percent."""
    interval: tuple[float, float]
    """95 % bootstrap interval of the primary score."""
    validation_scores: dict[str, float]
    """Scores on the validation split."""
    validation_score: tuple[float, float]
    """(primary score, negated loss) on the validation split. Choices are made by comparing these."""
    decoding: dict[str, float]
    """Settings that turn logits into answers, such as a threshold; tuned on the validation split."""
    calibration: dict[str, float] = field(default_factory=dict)

    @property
    def primary_score(self) -> float:
        """The primary score on the development set."""
        return self.scores[self.primary_metric]

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as plain JSON; unset optional fields are left out."""
        return _set_fields(self) | {"seconds": self.seconds.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "metrics") -> "Metrics":
        """Build the metrics from what `to_dict` returned."""
        metrics = _build(cls, _object(values, where), where)
        if metrics.primary_metric not in metrics.scores:
            raise BertVisionError(f"{where} is damaged: it has no score {metrics.primary_metric!r}.")
        return metrics


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """Where the ONNX graph of an exported run is, and which of its outputs belong to the run."""

    directory: str
    """Path of the exported model, relative to the run."""
    bert_output: str
    """Output of the graph with the logits of BERT's own head."""
    output: str = ""
    """Output of the graph with the logits of the run's head; empty for ensembles."""
    layers_read: dict[str, Any] = field(default_factory=dict)
    """Which layers the head reads: its weights are in the graph, so this cannot be derived from them."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a run did (experiment.json): all that is needed to make predictions with it."""

    name: str
    """The specification of its head, "BERT", or the names of the members of an ensemble."""
    kind: str
    """A key of KINDS."""
    task: dict[str, Any]
    """The task, as returned by `Task.to_dict`."""
    max_tokens: int
    source: str
    """Where the data came from."""
    settings: dict[str, Any]
    """The experiment, as returned by `Experiment.to_dict`."""
    fraction: float
    """Epochs of fine-tuning of the encoder."""
    encoder: str = ""
    """Name of the pretrained encoder; empty for ensembles, whose members have one."""
    encoder_path: str = ""
    """Directory of the fine-tuned encoder, relative to the run."""
    encoder_hash: str = ""
    """SHA-256 of the weights of the fine-tuned encoder."""
    shape: HeadShape | None = None
    members: tuple[str, ...] = ()
    """For ensembles: directories of the members, relative to the run."""
    how: str = ""
    """For ensembles: how predictions are combined."""
    export: ExportRecord | None = None

    @property
    def head_shape(self) -> HeadShape:
        """The shape the head was built for."""
        if self.shape is None:
            raise BertVisionError(f"{self.name} has no head of its own; its members have.")
        return self.shape

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON; unset optional fields are left out."""
        return _set_fields(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "record") -> "RunRecord":
        """Build the record from what `to_dict` returned. Types and dimensions are checked."""
        record = _build(cls, _object(values, where), where)
        if record.kind not in KINDS:
            raise BertVisionError(f"{where} is damaged: there are no runs of the kind {record.kind!r}.")
        if len(record.members) > MAX_LAYERS or not 1 <= record.max_tokens <= MAX_DIMENSION:
            raise BertVisionError(f"{where} is damaged: {len(record.members)} members, {record.max_tokens} tokens.")
        if record.shape is not None:
            check_shape(record.shape, where)
        _check_task(record.task, where)
        return record


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """How a fine-tuning checkpoint was reached (checkpoint.json)."""

    fraction: float
    """Epochs of fine-tuning."""
    training_loss: float = 0.0
    """Mean loss since the checkpoint before it."""
    seconds: float = 0.0
    """Training time, without saving."""
    steps: int = 0
    saving_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "checkpoint") -> "CheckpointRecord":
        """Build the record from what `to_dict` returned."""
        return _build(cls, _object(values, where), where)


def read_shape(values: Any, where: str) -> HeadShape:
    """Return the shape of a head from JSON, with types and dimensions checked."""
    return check_shape(_build(HeadShape, _object(values, where), where), where)


def check_shape(shape: HeadShape, where: str) -> HeadShape:
    """Return the shape of a head if its dimensions are possible."""
    dimensions = [shape.max_tokens, shape.hidden_size, shape.num_outputs]
    if not 1 <= shape.num_layers <= MAX_LAYERS or not all(1 <= size <= MAX_DIMENSION for size in dimensions):
        raise BertVisionError(f"{where} is damaged: the dimensions of its head are {shape.num_layers}, {dimensions}.")
    return shape


def check_head_size(config: HeadConfig, shape: HeadShape, weights: Mapping[str, Tensor], where: str) -> None:
    """Refuse a head that is much larger than its weights, before memory is allocated for it."""
    held, needed = sum(tensor.numel() for tensor in weights.values()), count_parameters(config, shape)[0]
    if needed > 2 * held + SPARE_PARAMETERS:
        raise BertVisionError(
            f"{where} is damaged: its head needs {needed:,} parameters, but its weights are {held:,}."
        )


def _object(values: Any, where: str) -> dict[str, Any]:
    """Return a JSON object; raise an error for other values."""
    if not isinstance(values, dict):
        raise BertVisionError(f"{where} is damaged: a JSON object was expected, got {str(values)[:40]!r}.")
    return values


def _build(kind: type[T], values: dict[str, Any], where: str) -> T:
    """Build a dataclass; keys it does not have are ignored, so that fields can be added without a new format."""
    hints = _hints(kind)
    try:
        return kind(
            **{name: _typed(value, hints[name], f"{where}: {name}") for name, value in values.items() if name in hints}
        )
    except TypeError as error:
        raise BertVisionError(f"{where} is incomplete: {error}.") from error


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass that are arguments."""
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind) if item.init}


def _typed(value: Any, hint: Any, where: str) -> Any:
    """Return a JSON value as the type of a field. Raise an error if it is of another type."""
    if is_dataclass(hint) and isinstance(value, dict):
        return _build(hint, value, where)  # pyright: ignore[reportArgumentType]
    origin, arguments = get_origin(hint), get_args(hint)
    if type(None) in arguments:
        return None if value is None else _typed(value, arguments[0], where)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        if len(kinds) == len(value):
            return tuple(_typed(entry, kind, where) for entry, kind in zip(value, kinds, strict=True))
    elif origin is list and isinstance(value, list):
        return [_typed(entry, arguments[0], where) for entry in value]
    elif origin is dict and isinstance(value, dict):
        return {key: _typed(entry, arguments[1], where) for key, entry in value.items()}
    elif hint is Any or type(value) is hint or (hint is float and type(value) is int):
        return value
    raise BertVisionError(f"{where} is of the wrong type: {str(value)[:40]!r}.")


def _check_task(description: Mapping[str, Any], where: str) -> None:
    """Raise an error if the description of a task has fields of other types than the class of the task."""
    task = TASK_KINDS.get(str(description.get("kind")))
    if task is None or not is_dataclass(task):  # of another package, which checks its own
        return
    hints = _hints(task)
    for name, value in description.items():
        if name in hints:
            _typed(value, hints[name], f"{where}: {name} of the task")
    if description.get("metrics") == [] or not 1 <= len(description.get("texts", "1")) <= 2:
        raise BertVisionError(f"{where} is damaged: its task has no metrics, or not one or two texts.")


def _set_fields(record: Any) -> dict[str, Any]:
    """Return a record as plain JSON, without the optional fields that have no value."""
    values = asdict(record)
    required = {item.name for item in fields(record) if item.default is item.default_factory is MISSING}
    return {name: value for name, value in values.items() if name in required or value not in (None, "", (), {})}
