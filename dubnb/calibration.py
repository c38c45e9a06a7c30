"""Probabilities from raw scores by Platt scaling on randomized pairs, and metrics of probabilities.

    p = sigmoid(a z + b),   z = (s - mean s) / std s

a >= 0 and b minimise the log-loss of some randomized pairs against Platt's targets: (P + 1) / (P + 2) for a positive
and 1 / (N + 2) for a negative, where P and N are the weights of the classes. This is a prior of one pair of each kind:
few positives do not lead to certainty, and the optimum is finite and unique. The ranking never changes: a is at least
0, and ranking uses raw scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dubnb.backbones import Scorer
    from dubnb.data.partition import Partition

STEPS = 100  # the largest number of Newton steps
HALVINGS = 40  # the largest number of halvings of one step
CONVERGED = 1e-12  # change of the log-loss, relative
BINS = 15  # bins of the calibration error


@dataclass(frozen=True)
class Calibration:
    """p = sigmoid(slope * s + intercept)."""

    slope: float
    intercept: float

    @classmethod
    def fit(cls, scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> Calibration:
        """Fit slope and intercept to some pairs; labels are 0 or 1."""
        s, y = np.asarray(scores, np.float64), np.asarray(labels, np.float64)
        w = np.ones(len(s)) if weights is None else np.asarray(weights, np.float64)
        mean = np.average(s, weights=w)
        std = np.sqrt(np.average((s - mean) ** 2, weights=w))
        positives, negatives = w[y == 1].sum(), w[y == 0].sum()
        targets = np.where(y == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
        base = np.log((positives + 1) / (negatives + 1))
        if std / max(abs(mean), 1.0) <= 1e-9:  # all scores are equal: only the intercept can be fitted
            return cls(0.0, float(base))
        slope, intercept = _newton((s - mean) / std, targets, w, base)
        return cls(float(slope / std), float(intercept - slope * mean / std))

    @classmethod
    def on_S_va(cls, scorer: Scorer, data: Partition) -> Calibration | None:
        """Fit probabilities on S_va; None if S_va lacks one of the labels.

        No model learns from S_va. On S_t, which most models have seen, probabilities would be too extreme: their mean
        error over yahoo-like's pairs is .03 to .13 instead of .005 to .02.
        """
        S_va = data.triplets("S_va")
        if not 0 < S_va.labels.sum() < len(S_va.labels):
            return None
        importance = data.importance("S_va")
        own = S_va.weights if importance is None else S_va.weights * importance
        return cls.fit(scorer.score_pairs(S_va.users, S_va.items), S_va.labels, own)

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities of raw scores."""
        return logistic(self.slope * np.asarray(scores, np.float64) + self.intercept)


def logistic(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def minimise_by_newton(
    loss: Callable[[np.ndarray], float],
    derivatives: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    theta: np.ndarray,
    ridge: float,
    limits: tuple[int, int, float] = (STEPS, HALVINGS, CONVERGED),
) -> np.ndarray:
    """Minimise a convex loss by Newton's steps from `theta`; a step is halved as long as it raises the loss.

    `derivatives`: the gradient and the Hessian. `ridge`, as a share of the Hessian's trace, is added to its diagonal.
    `limits`: the largest numbers of steps and of halvings, and the relative change of the loss that ends the steps.
    """
    value = loss(theta)
    for _ in range(limits[0]):
        gradient, curvature = derivatives(theta)
        step = np.linalg.solve(curvature + ridge * np.trace(curvature) * np.eye(len(theta)), gradient)
        size, before = 1.0, value
        for _ in range(limits[1]):
            value = loss(theta - size * step)
            if value <= before:
                break
            size /= 2
        theta = theta - size * step
        if before - value <= limits[2] * abs(value):
            break
    return theta


def _newton(z: np.ndarray, t: np.ndarray, w: np.ndarray, base: float) -> tuple[float, float]:
    """(a, b) with a >= 0 of the smallest weighted log-loss; it is convex, so damped Newton steps converge."""
    x = np.stack([z, np.ones_like(z)])

    def loss(theta: np.ndarray) -> float:
        s = theta @ x
        return float(w @ (np.logaddexp(0.0, s) - t * s))

    def derivatives(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = logistic(theta @ x)
        return x @ (w * (p - t)), (x * (w * p * (1 - p))) @ x.T

    theta = minimise_by_newton(loss, derivatives, np.array([0.0, base]), 1e-12)
    if theta[0] >= 0:
        return theta[0], theta[1]
    return 0.0, float(np.log(w @ t / (w @ (1 - t))))


def log_loss(probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Mean of -log of the probability of the observed label, by weight."""
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels)
    tiny = np.finfo(np.float64).tiny
    losses = -np.log(np.maximum(np.where(y == 1, p, 1 - p), tiny))
    return float(losses.mean() if weights is None else np.average(losses, weights=weights))


def brier(probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Mean squared difference between probability and label, by weight."""
    squares = (np.asarray(probabilities, np.float64) - labels) ** 2
    return float(squares.mean() if weights is None else np.average(squares, weights=weights))


def expected_calibration_error(
    probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """Mean over pairs of |mean probability - mean label| of a pair's bin: 15 bins of equal size by probability.

    `labels` may also hold the true probabilities of simulated pairs. With weights, all three means are by weight.
    """
    groups = reliability_bins(probabilities, labels, weights=weights)
    return float((groups[:, 2] * np.abs(groups[:, 0] - groups[:, 1])).sum() / groups[:, 2].sum())


def reliability_bins(probabilities: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """(mean probability, mean label, pairs) of each of BINS groups of equal size, by probability; for a diagram.

    With weights, groups have equal numbers of pairs, means are by weight, and the third column is the sum of weights.
    """
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels, np.float64)
    order = np.argsort(p, kind="stable")
    if weights is not None:
        w = np.asarray(weights, np.float64)
        groups = [own for own in np.array_split(order, BINS) if len(own)]
        return np.array(
            [(w[own] @ p[own] / w[own].sum(), w[own] @ y[own] / w[own].sum(), w[own].sum()) for own in groups]
        )
    return np.array([(p[own].mean(), y[own].mean(), len(own)) for own in np.array_split(order, BINS) if len(own)])
