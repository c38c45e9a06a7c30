"""Intervals for sums over pairs whose labels are unknown (`dubnb.objective.bounds.Unknown`).

A sum has three parts.

1. Pairs whose label is known (S_t, S_va, S_te) enter as they are. S_t enters with its own share only: models trained on
   it, so its losses are not typical of other pairs.
2. Pairs in no log. The mean over a user's pairs of S_va and S_te that were not in S_c estimates the mean of hers.
   Assumption: the uniform policy chose those items at random among the user's items outside S_c.
   A user without such a pair gets the mean over all others. Assumption: users with and without are alike.
3. S_c. Pairs observed under both policies estimate P(y^t = 1 | y^c = k), with users as clusters. Which pairs of S_c are
   the positive ones stays open, because a model that trained on S_c scores its pairs unlike any other: the interval
   takes the worst choice. Without pairs observed under both policies every label of S_c stays open.
   Assumption: the uniform policy shows each of a user's pairs of S_c equally often.

Parts 2 and 3 each get half of the error probability, so that together they hold with at least `level`. Users are the
clusters of every variance. The spread between users counts even where all users are in the log, so intervals are wider
than needed there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb import stats
from dubnb.data.triplets import RANDOMIZED

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.objective.bounds import Measured, Unknown

LEVEL = 0.95


class EstimatedSum(NamedTuple):
    """An interval, and a value in it where the data suggest one."""

    value: float | None
    low: float
    high: float


def estimate(unknown: Unknown, measured: Measured, data: Partition, level: float = LEVEL) -> EstimatedSum | None:
    """The interval of an unknown sum; None where no observation narrows its certain range."""
    needs_rest = bool(unknown.rest_weights.any())
    needs_S_c = unknown.S_c_if is not None and unknown.S_c_if.shape[1] > 0
    counts_both = bool(len(data.overlap.users))
    part_level = 1 - (1 - level) / 2 if needs_rest and needs_S_c and counts_both else level
    value: float | None = unknown.known
    low = high = unknown.known
    if needs_rest:
        rest = rest_interval(
            unknown.sample, measured.sample_users, unknown.rest_weights, measured.rest_sizes, part_level
        )
        if rest is None:
            return None
        value, low, high = unknown.known + rest.rate, low + rest.low, high + rest.high
    if needs_S_c:
        assert unknown.S_c_if is not None
        if not needs_rest and not counts_both:
            return None
        rates = positives_of_both(data, part_level)
        on_S_c = S_c_interval(unknown.S_c_if, data.triplets("S_c").labels, rates)
        value = None if value is None or on_S_c.value is None else value + on_S_c.value
        low, high = low + on_S_c.low, high + on_S_c.high
    return EstimatedSum(value, max(low, unknown.low), min(high, unknown.high))


def rest_interval(
    sample: np.ndarray, users: np.ndarray, weights: np.ndarray, sizes: np.ndarray, level: float = LEVEL
) -> stats.Rate | None:
    """Estimate sum_u weights_u m_u, where m_u is the mean of user u's `sizes_u` pairs in no log.

    The mean of a user's sample estimates m_u. For a user without a sample, R = sum sizes_u m_u / sum sizes_u over the
    sampled users does. With v_u the resulting weight of m_u, the variance is G / (G - 1) sum of v_u^2 (m_u - R)^2 over
    the G sampled users. The users without a sample add a variance as draws of the same spread. Student's interval with
    G - 1 degrees of freedom; None where G < 2.
    """
    from scipy.special import stdtrit

    counts = np.bincount(users, minlength=len(sizes))
    there = counts > 0
    n_users = int(there.sum())
    if n_users < 2:
        return None
    means = np.bincount(users, weights=sample, minlength=len(sizes))[there] / counts[there]
    shares = np.maximum(sizes[there], 1e-12) / np.maximum(sizes[there], 1e-12).sum()
    typical = float(shares @ means)
    missing = weights[~there]
    coefficients = weights[there] + missing.sum() * shares
    spread = n_users / (n_users - 1) * (means - typical) ** 2
    variance = coefficients**2 @ spread + (missing**2).sum() * spread.mean()
    value = float(coefficients @ means)
    half = float(stdtrit(n_users - 1, 1 - (1 - level) / 2) * np.sqrt(variance))
    return stats.Rate(value, value - half, value + half, len(sample))


def positives_of_both(data: Partition, level: float = LEVEL) -> list[stats.Rate | None]:
    """P(y^t = 1 | y^c = k) over S_c for k = 0, 1, from the pairs observed under both policies; jointly at `level`.

    Each pair of S_c of a user with n_u randomized pairs is repeated with a probability proportional to n_u, so a shared
    pair has weight 1 / n_u. None for a class without such a pair.
    """
    overlap = data.overlap
    n_random = np.sum([data.pattern(part).sizes() for part in RANDOMIZED], axis=0)
    labels_c = data.triplets("S_c").labels
    rates: list[stats.Rate | None] = []
    for k in (0.0, 1.0):
        own = overlap.policy_labels == k
        users = overlap.users[own]
        weights = 1 / np.maximum(n_random[users], 1)
        n_left = int((labels_c == k).sum())
        rates.append(clustered_share(overlap.labels[own], users, weights, n_left, 1 - (1 - level) / 2))
    return rates


def clustered_share(
    labels: np.ndarray, users: np.ndarray, weights: np.ndarray, n_left: int, level: float
) -> stats.Rate | None:
    """The weighted share of positives, with an interval for the share among `n_left` pairs that were not sampled.

    Clopper and Pearson's interval at an effective sample size (Korn and Graubard, 1998): n = r (1 - r) / variance, the
    variance clustered by user, at most Kish's size of the weights; Kish's size of the users where all labels agree.
    1 / n + 1 / n_left replaces 1 / n, because the pairs that are left vary around the sample.
    """
    from scipy.special import betaincinv, stdtrit

    if not len(labels):
        return None
    _, rows = np.unique(users, return_inverse=True)
    by_user = np.bincount(rows, weights=weights)
    total = float(weights.sum())
    rate = float(weights @ labels / total)
    residuals = np.bincount(rows, weights=weights * (labels - rate))
    n_users, tail = len(by_user), (1 - level) / 2
    if 0 < rate < 1 and n_users > 1:
        variance = n_users / (n_users - 1) * float(residuals @ residuals) / total**2
        size = rate * (1 - rate) / max(variance, 1e-300)
        size *= float(stdtrit(1e9, 1 - tail) / stdtrit(n_users - 1, 1 - tail)) ** 2
        size = min(size, total**2 / float(weights @ weights))
    else:
        size = total**2 / float(by_user @ by_user)
    size = 1 / (1 / size + 1 / max(n_left, 1))
    x = rate * size
    low = float(betaincinv(x, size - x + 1, tail)) if x > 0 else 0.0
    high = float(betaincinv(x + 1, size - x, 1 - tail)) if x < size else 1.0
    return stats.Rate(rate, low, high, len(labels))


def S_c_interval(if_y: np.ndarray, y_c: np.ndarray, rates: list[stats.Rate | None]) -> EstimatedSum:
    """A sum over S_c from the shares of y^t = 1 in its two classes.

    `if_y` (2, pairs) holds the summands for y^t = 0 and 1. The value treats all pairs of a class as equally likely to
    be positive. The ends assign the positives to the pairs that change the sum least and most.
    """
    value: float | None = 0.0
    low = high = 0.0
    for k, rate in zip((0.0, 1.0), rates, strict=True):
        own = if_y[:, y_c == k]
        n, base, moves = own.shape[1], float(own[0].sum()), np.sort(own[1] - own[0])
        if not n:
            continue
        if rate is None:
            value, ends = None, (0, n)
        else:
            value = None if value is None else value + base + rate.rate * float(moves.sum())
            ends = (int(np.floor(rate.low * n)), int(np.ceil(rate.high * n)))
        low += base + _least(moves, *ends)
        high += base - _least(-moves[::-1], *ends)
    return EstimatedSum(value, low, high)


def _least(moves: np.ndarray, fewest: int, most: int) -> float:
    """The smallest sum of `fewest` to `most` of the moves, which are sorted."""
    n = int(np.clip((moves < 0).sum(), fewest, most))
    return float(moves[:n].sum())
