"""The calibration error of a classifier, with the temperature that was fitted on validation and without it."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import softmax

from bertvision.inputs.multi_label import MultiLabelTask
from bertvision.tasks import Example, Task, TextTask
from bertvision.tasks.base import rows_in_order
from bertvision.tasks.calibration import calibration_error
from bertvision.types import Features, Predictions


def calibration_errors(
    task: Task,
    predictions: Predictions,
    features: Features,
    settings: Mapping[str, float],
    examples: Sequence[Example],
) -> dict[str, float]:
    """Return the calibration errors of a task in percent: for classes, that of the predicted class."""
    if not isinstance(task, TextTask) or isinstance(task, MultiLabelTask):
        return task.calibration(predictions, features, settings, examples)
    if not task.classes or "temperature" not in settings:
        return {}
    logits = predictions.logits[rows_in_order(predictions, features)].astype(np.float64)
    correct = logits.argmax(axis=1) == features.labels
    return {
        name: calibration_error(softmax(logits / temperature, axis=1).max(axis=1), correct)
        for name, temperature in (
            ("calibration_error", settings["temperature"]),
            ("calibration_error_uncalibrated", 1.0),
        )
    }
