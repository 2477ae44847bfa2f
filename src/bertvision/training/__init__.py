"""Training of models over batches, and prediction."""

from bertvision.training.callbacks import (
    Callback,
    Cancellation,
    CheckpointEvent,
    EpochEvent,
    EvaluateEvent,
    StepEvent,
    TrainingEvent,
)
from bertvision.training.checkpointer import Checkpointer
from bertvision.training.config import FitOptions, FractionRecord, Loss, TrainingConfig, ValidationScore
from bertvision.training.loop import fit
from bertvision.training.train_state import STOPPED, TrainState

__all__ = [
    "STOPPED",
    "Callback",
    "Cancellation",
    "CheckpointEvent",
    "Checkpointer",
    "EpochEvent",
    "EvaluateEvent",
    "FitOptions",
    "FractionRecord",
    "Loss",
    "StepEvent",
    "TrainState",
    "TrainingConfig",
    "TrainingEvent",
    "ValidationScore",
    "fit",
]
