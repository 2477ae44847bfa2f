"""The methods of the benchmark of peers."""

from peer.methods import autogluon, finetuned, linear, ours, setfit, static
from peer.methods.base import Outcome, Train, grade

TRAIN: dict[str, Train] = (
    linear.METHODS | static.METHODS | ours.METHODS | setfit.METHODS | finetuned.METHODS | autogluon.METHODS
)
"""All methods by name."""

__all__ = ["TRAIN", "Outcome", "Train", "grade"]
