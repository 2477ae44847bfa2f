"""Temperatures: better probabilities on other rows, and no certainty from few rows."""

import numpy as np
import pytest
from scipy.special import softmax

from bertvision.tasks.calibration import calibration_error, fit_temperature


def rows(count, sharpness, seed=0):
    """Logits that are too large by a factor, and labels drawn from the probabilities without it."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(count, 4))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    return logits * sharpness, labels


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_the_temperature_undoes_a_factor(sharpness):
    temperature = fit_temperature(*rows(20_000, sharpness))
    assert temperature == pytest.approx(sharpness, rel=0.1)
    logits, labels = rows(20_000, sharpness, seed=1)
    correct = logits.argmax(axis=1) == labels
    before, after = (calibration_error(softmax(logits / t, axis=1).max(axis=1), correct) for t in (1.0, temperature))
    assert after < 2 and (sharpness == 1.0 or after < before / 2)


@pytest.mark.parametrize("count", [1, 3, 10, 100])
def test_few_rows_that_are_all_right_do_not_give_certainty(count):
    logits = np.tile([2.0, 0.0], (count, 1))
    temperature = fit_temperature(logits, np.zeros(count, dtype=np.int64))
    probability = softmax(logits[0] / temperature)[0]
    assert probability == pytest.approx((count + 1.5) / (count + 2), abs=1e-3)
