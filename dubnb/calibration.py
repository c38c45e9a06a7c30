"""Probabilities from raw scores: Platt scaling on randomized pairs, and how far probabilities are off.

    p = sigmoid(a z + b),   z = (s - mean s) / std s

a >= 0 and b minimise the log-loss of some randomized pairs against Platt's targets, (P + 1) / (P + 2) for a positive
and 1 / (N + 2) for a negative, P and N being the weight of either class: a prior of one pair of each kind, so that few
positives do not end in certainty, and the optimum is finite and unique. The ranking never changes: a is at least 0, and
ranking reads raw scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STEPS = 100  # of Newton's method, at most
HALVINGS = 40  # of one step
CONVERGED = 1e-12  # change of the log-loss, relative
BINS = 15  # of the calibration error


@dataclass(frozen=True)
class Calibration:
    """p = sigmoid(slope * s + intercept)."""

    slope: float
    intercept: float

    @classmethod
    def fit(cls, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> Calibration:
        """The scale that suits some pairs; labels are 0 or 1."""
        s, y = np.asarray(scores, np.float64), np.asarray(labels, np.float64)
        w = np.ones(len(s)) if weights is None else np.asarray(weights, np.float64)
        mean = np.average(s, weights=w)
        std = np.sqrt(np.average((s - mean) ** 2, weights=w))
        positives, negatives = w[y == 1].sum(), w[y == 0].sum()
        targets = np.where(y == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
        base = np.log((positives + 1) / (negatives + 1))
        if std / max(abs(mean), 1.0) <= 1e-9:  # one score for all: only its level can be told
            return cls(0.0, float(base))
        slope, intercept = _newton((s - mean) / std, targets, w, base)
        return cls(float(slope / std), float(intercept - slope * mean / std))

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities of raw scores."""
        return sigmoid(self.slope * np.asarray(scores, np.float64) + self.intercept)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def _newton(z: np.ndarray, t: np.ndarray, w: np.ndarray, base: float) -> tuple[float, float]:
    """(a, b) of least weighted log-loss, a >= 0; convex, so that damped Newton steps end there."""
    x = np.stack([z, np.ones_like(z)])
    theta = np.array([0.0, base])

    def loss(theta: np.ndarray) -> float:
        s = theta @ x
        return float(w @ (np.logaddexp(0.0, s) - t * s))

    value = loss(theta)
    for _ in range(STEPS):
        p = sigmoid(theta @ x)
        gradient, curvature = x @ (w * (p - t)), (x * (w * p * (1 - p))) @ x.T
        step = np.linalg.solve(curvature + 1e-12 * np.trace(curvature) * np.eye(2), gradient)
        size, before = 1.0, value
        for _ in range(HALVINGS):
            value = loss(theta - size * step)
            if value <= before:
                break
            size /= 2
        theta, change = theta - size * step, before - value
        if change <= CONVERGED * abs(value):
            break
    if theta[0] >= 0:
        return theta[0], theta[1]
    return 0.0, float(np.log(w @ t / (w @ (1 - t))))


def log_loss(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean of -log of the probability given to what happened."""
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels)
    tiny = np.finfo(np.float64).tiny
    return float(-np.log(np.maximum(np.where(y == 1, p, 1 - p), tiny)).mean())


def brier(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean squared difference between probability and label."""
    return float(((np.asarray(probabilities, np.float64) - labels) ** 2).mean())


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Mean over pairs of |mean probability - mean label| of a pair's bin: 15 bins of equal size by probability.

    `labels` may also hold the true probabilities of simulated pairs.
    """
    groups = reliability(probabilities, labels)
    return float((groups[:, 2] * np.abs(groups[:, 0] - groups[:, 1])).sum() / groups[:, 2].sum())


def reliability(probabilities: np.ndarray, labels: np.ndarray, bins: int = BINS) -> np.ndarray:
    """(mean probability, mean label, pairs) of each of `bins` groups of equal size, by probability; for a diagram."""
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels, np.float64)
    order = np.argsort(p, kind="stable")
    return np.array([(p[own].mean(), y[own].mean(), len(own)) for own in np.array_split(order, bins) if len(own)])
