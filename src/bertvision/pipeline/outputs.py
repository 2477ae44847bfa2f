"""What a trained model predicts, before it is scored."""

from dataclasses import dataclass

from torch import Tensor

from bertvision.records import TrainingSummary
from bertvision.types import HeadShape, Predictions


@dataclass(frozen=True, kw_only=True)
class ModelOutput:
    """The predictions of a model on the held-out splits, and all that its run directory needs."""

    name: str
    """The specification of its head, or "BERT"."""
    kind: str
    """A key of `records.KINDS`."""
    directory: str
    """The name of its run directory (see cache_keys)."""
    predictions: dict[str, Predictions]
    """Logits of "validation" and "dev"."""
    summary: TrainingSummary
    shape: HeadShape | None = None
    """The shape that its head was built for; None for BERT."""
    weights: dict[str, Tensor] | None = None
    """The weights of its head; None for BERT."""
    stopped: bool = False
    """Whether a callback stopped its training. Such a run is not reused when the experiment is run again."""
