"""Callbacks: code of the user that follows training, and may stop it."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertvision.errors import BertVisionError

FINETUNE, HEADS = "finetune", "heads"


@dataclass(frozen=True, kw_only=True)
class TrainingEvent:
    """The progress of one stage of training. Events that concern models hold dictionaries by model name."""

    stage: str
    """"finetune" while an encoder is fine-tuned, "heads" while heads are trained on its hidden states."""
    step: int
    """Optimizer steps taken in this stage."""
    total_steps: int
    """Optimizer steps of the whole stage. Early stopping may end it before."""
    epoch: float
    """Epochs completed, e.g. 0.5 in the middle of the first epoch."""
    seconds: float
    """Training time of this stage, including the part before an interruption."""


@dataclass(frozen=True, kw_only=True)
class StepEvent(TrainingEvent):
    """An optimizer step of every model that still trains."""

    losses: Mapping[str, float]
    """The loss of the step."""
    learning_rates: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class EvaluateEvent(TrainingEvent):
    """An evaluation on the validation set."""

    validation_scores: Mapping[str, tuple[float, float]]
    """(score, negated loss). Higher is better."""


@dataclass(frozen=True, kw_only=True)
class EpochEvent(TrainingEvent):
    """The end of an epoch."""

    losses: Mapping[str, float]
    """The mean loss of the epoch."""
    validation_scores: Mapping[str, tuple[float, float]]
    """(score, negated loss). Empty if there is no validation set."""


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(TrainingEvent):
    """A save: of the state that an interrupted run resumes from, or of a fine-tuning checkpoint."""

    path: Path | None = None
    """The file of the saved training state."""
    fraction: float | None = None
    """The fraction of an epoch of a fine-tuning checkpoint."""


class Callback:
    """Base class of callbacks. Every method does nothing; override those that you need.

    The methods are called in the process and thread that trains; of several processes, only in the main process. An
    exception in a callback ends training; the saved training state stays on disk.

    >>> class PrintScores(Callback):
    ...     def on_evaluate(self, event):
    ...         for name, (score, _) in event.validation_scores.items():
    ...             print(f"epoch {event.epoch:g}: {name} {score:.1f}")
    """

    def on_train_begin(self, event: TrainingEvent) -> None:
        """Handle the start of a stage. `event.step` is not 0 where an interrupted run resumes."""

    def on_step(self, event: StepEvent) -> None:
        """Handle an optimizer step."""

    def on_evaluate(self, event: EvaluateEvent) -> None:
        """Handle new validation scores."""

    def on_epoch(self, event: EpochEvent) -> None:
        """Handle the end of an epoch."""

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        """Handle a save."""

    def on_train_end(self, event: TrainingEvent) -> None:
        """Handle the end of a stage, also if a callback stopped it."""

    def should_stop(self) -> bool:
        """Return whether training should stop. It is called after every step.

        Training then ends, and every model keeps the weights of its best evaluation. Models that were not evaluated
        yet are evaluated once.
        """
        return False


@dataclass(eq=False)
class Cancellation(Callback):
    """Stops training when `cancel` is called, e.g. from another thread.

    >>> cancellation = Cancellation()
    >>> cancellation.should_stop()
    False
    >>> cancellation.cancel()
    >>> cancellation.should_stop()
    True
    """

    _requested: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def cancel(self) -> None:
        """Stop training after the current step."""
        self._requested.set()

    def should_stop(self) -> bool:
        """Return whether `cancel` was called."""
        return self._requested.is_set()


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise an error unless all objects are callbacks."""
    if not isinstance(callbacks, Sequence):
        raise BertVisionError(f"callbacks must be a list of callbacks, got a {type(callbacks).__name__}.")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            what = f"the class {callback.__name__}" if isinstance(callback, type) else f"a {type(callback).__name__}"
            raise BertVisionError(
                f"Callbacks must be instances of subclasses of bertvision.Callback, got {what}. Wrap a "
                "callback of transformers: TransformersCallback(callback)."
            )
