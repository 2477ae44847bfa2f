"""Settings of training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from bertvision.training.callbacks import HEADS, Callback, check_callbacks

SCHEDULES = ("constant", "linear")

Loss = Callable[..., Tensor]
"""(logits, labels, attention mask) -> the mean loss of a batch. Rows with weights give them as a fourth argument."""
ValidationScore = tuple[float, float]
"""(score, negated loss) on validation. Scores are compared element by element; higher is better."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Optimizer settings (AdamW) and the length of training."""

    learning_rate: float = 0.0
    """Peak learning rate; 0: the default of the encoder, the task or the head."""
    epochs: float = 5.0
    warmup_epochs: float = 0.1
    """Epochs over which the learning rate rises to its peak."""
    schedule: str = "linear"
    """Learning rate after the warm-up: "linear" falls to zero at the end of training. "constant" does not change, so
    that the checkpoint of a fraction does not depend on the length of the training. Empty: the default."""
    batch_size: int = 0
    """Examples per step; 0: the default of the task."""
    gradient_accumulation_steps: int = 1
    """Number of parts that a batch is split into to save memory. The gradient is that of the whole batch."""
    weight_decay: float = 0.01
    layer_decay: float = 1.0
    """For fine-tuning: the learning rate of a layer, divided by that of the layer above it. The head is the top."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm; 0: no clipping."""
    patience: int = 0
    """Stop after this many epochs without a better validation score; 0: never."""

    def rate_factor(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate at `step` as a share of its peak: it rises in the warm-up, then stays or falls."""
        warmup, total = self.warmup_epochs * steps_per_epoch, self.epochs * steps_per_epoch
        if step + 1 <= warmup:
            return (step + 1) / warmup
        if self.schedule == "constant":
            return 1.0
        return max(0.0, (total - step) / max(1.0, total - warmup))


@dataclass(frozen=True, kw_only=True)
class FractionRecord:
    """The state of training at a fraction of an epoch."""

    fraction: float
    training_loss: float
    """Mean loss since the previous fraction."""
    seconds: float
    steps: int
    saving_seconds: float
    """Time spent on saving the state, which is not part of `seconds`."""


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What `fit` does beside training.

    Args:
        seed: Seed of dropout.
        validate: Called after every epoch with the models that still train. Returns their validation scores; a model
            that it leaves out stops training.
        fractions: Epochs, as fractions or whole numbers, at which `on_fraction` is called.
        on_fraction: Receives the record of each fraction. If a callback stops training at a fraction that is not one of
            `fractions`, it receives that one, too.
        scale_loss: Scale the loss, so that float16 keeps small gradients.
        label: Text of the progress bar.
        stage: "finetune" or "heads", for callbacks.
        callbacks: Objects that follow training and may stop it. All processes must be given the same number.
    """

    seed: int = 0
    validate: Callable[[dict[str, nn.Module]], Mapping[str, ValidationScore]] | None = None
    fractions: Sequence[float] = ()
    on_fraction: Callable[[FractionRecord], None] = lambda record: None
    scale_loss: bool = False
    label: str = "train"
    stage: str = HEADS
    callbacks: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        check_callbacks(self.callbacks)
