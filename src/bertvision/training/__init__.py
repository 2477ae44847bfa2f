"""Train models over batches, and let them predict."""

from bertvision.training.loop import Grade, Loss, fit, rate
from bertvision.training.predicting import predict
from bertvision.training.student import Student

__all__ = ["Grade", "Loss", "Student", "fit", "predict", "rate"]
