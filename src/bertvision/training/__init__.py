"""Train models over batches, and let them predict."""

from bertvision.training.loop import Loss, ValidationScore, fit, rate
from bertvision.training.prediction import predict
from bertvision.training.train_state import TrainState

__all__ = ["ValidationScore", "Loss", "TrainState", "fit", "predict", "rate"]
