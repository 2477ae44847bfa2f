"""Settings of training."""

from dataclasses import dataclass

SCHEDULES = ("constant", "linear")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to descend: AdamW."""

    learning_rate: float = 0.0
    """Peak rate; 0: what suits the backbone, the task, or its heads."""
    epochs: float = 5.0
    warmup: float = 0.1
    """Epochs over which the rate rises to its peak."""
    schedule: str = "linear"
    """After warm-up: "linear" falls to zero at the end; "constant" stays, so that a fraction is a point on a curve."""
    batch_size: int = 0
    """Examples per step; 0: the task's."""
    accumulate: int = 1
    """Pieces a step's examples are cut into, where memory is short."""
    weight_decay: float = 0.01
    clip: float = 1.0
    """Largest norm of a model's gradient; 0: no clipping."""
    patience: int = 0
    """Stop after this many epochs without a better validation score; 0: never."""
