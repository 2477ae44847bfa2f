"""The methods of the benchmark of peers."""

from peer.methods import automl, contrastive, finetuned, linear, ours, static
from peer.methods.base import Outcome, Train, grade

TRAIN: dict[str, Train] = (
    linear.METHODS | static.METHODS | ours.METHODS | contrastive.METHODS | finetuned.METHODS | automl.METHODS
)
"""All methods by name."""

__all__ = ["TRAIN", "Outcome", "Train", "grade"]
