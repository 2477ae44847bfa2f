"""Probabilities that mean what they say: Platt's scaling, and how far probabilities are from what happens."""

import numpy as np
from sklearn.linear_model import LogisticRegression

BINS = 15


def fit_scale(margins: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Return the slope and bias that make sigmoid(slope * margin + bias) the share of `truth`. (N,), (N,)"""
    share = float(np.clip(truth.mean(), 1e-3, 1 - 1e-3))
    flat = 0.0, float(np.log(share / (1 - share)))
    if len(np.unique(truth)) < 2:
        return flat
    fitted = LogisticRegression(C=100.0).fit(margins[:, None], truth)
    slope, bias = float(fitted.coef_[0, 0]), float(fitted.intercept_[0])
    # A margin that points the wrong way tells nothing; better the share alone than a reversed order.
    return (slope, bias) if slope > 0 else flat


def sigmoid(margins: np.ndarray | float) -> np.ndarray:
    """Turn margins into probabilities, without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * np.asarray(margins, dtype=np.float64)))


def calibration_error(probabilities: np.ndarray, truth: np.ndarray, bins: int = BINS) -> float:
    """Return the expected calibration error, in percent: the gap of probability and share, bin by bin, averaged."""
    places = np.minimum((np.asarray(probabilities) * bins).astype(int), bins - 1)
    gaps = np.bincount(places, weights=probabilities - truth, minlength=bins)
    return 100.0 * float(np.abs(gaps).sum() / len(truth))
