"""Calibration of probabilities: Platt scaling, temperature scaling and the expected calibration error."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

BINS = 15


def fit_scale(margins: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Fit Platt scaling: return the slope and bias of sigmoid(slope * margin + bias). margins (N,), truth (N,)"""
    base_rate = float(np.clip(truth.mean(), 1e-3, 1 - 1e-3))
    constant = 0.0, float(np.log(base_rate / (1 - base_rate)))
    if len(np.unique(truth)) < 2:
        return constant
    fitted = LogisticRegression(C=100.0).fit(margins[:, None], truth)
    slope, bias = float(fitted.coef_[0, 0]), float(fitted.intercept_[0])
    # A negative slope would reverse the order of the margins, so the base rate is returned instead.
    return (slope, bias) if slope > 0 else constant


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature between 0.05 and 20 with the smallest cross-entropy of logits / temperature.

    As in Platt scaling, labels count as right with probability (N + 1) / (N + 2) only, so that few rows that are all
    predicted correctly do not give probabilities of 1. logits (N, C), labels (N,)
    """
    rows, logits, doubt = np.arange(len(labels)), logits.astype(np.float64), 1 / (len(labels) + 2)

    def cross_entropy(log_temperature: float) -> float:
        losses = -log_softmax(logits / np.exp(log_temperature), axis=1)
        return float((1 - doubt) * losses[rows, labels].mean() + doubt * losses.mean())

    return float(np.exp(minimize_scalar(cross_entropy, bounds=(-3.0, 3.0), method="bounded").x))  # pyright: ignore[reportAttributeAccessIssue]


def sigmoid(margins: np.ndarray | float) -> np.ndarray:
    """Return the logistic function of margins, without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * np.asarray(margins, dtype=np.float64)))


def calibration_error(probabilities: np.ndarray, truth: np.ndarray, bins: int = BINS) -> float:
    """Return the expected calibration error in percent, over bins of equal width."""
    bin_of = np.minimum((np.asarray(probabilities) * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, weights=probabilities - truth, minlength=bins)
    return 100.0 * float(np.abs(gaps).sum() / len(truth))
