"""Training of models over batches, and prediction."""

from bertvision.training.checkpointer import Checkpointer
from bertvision.training.config import FitOptions, FractionRecord, Loss, TrainingConfig, ValidationScore
from bertvision.training.loop import fit, learning_rate_factor
from bertvision.training.prediction import predict
from bertvision.training.train_state import TrainState

__all__ = [
    "Checkpointer",
    "FitOptions",
    "FractionRecord",
    "Loss",
    "TrainState",
    "TrainingConfig",
    "ValidationScore",
    "fit",
    "learning_rate_factor",
    "predict",
]
