"""Is the difference real? t-tests over seeds, bootstraps over users, Holm's correction.

Two questions that are easily confused:

- *Over seeds*: would another random start change the order? The paper's two-sample t-test asks this.
- *Over users*: would other users change the order? A paired test over users asks this; for the pooled AUC, where users
  are no independent terms of a mean, whole users are drawn again (the user-cluster bootstrap).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb._random import generator

BOOTSTRAPS = 2000


class Bootstrap(NamedTuple):
    """A difference with its percentile interval and two-sided bootstrap p-value."""

    difference: float
    low: float
    high: float
    p: float


class Rate(NamedTuple):
    """A mean with a confidence interval."""

    rate: float
    low: float
    high: float
    n: int


def binomial_rate(successes: int, n: int, level: float = 0.95) -> Rate:
    """A share with its exact interval (Clopper and Pearson, 1934), which covers with at least `level`."""
    from scipy.special import betaincinv

    tail = (1 - _check.real("level", level, high=1.0)) / 2
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    return Rate(successes / n, low, high, n)


def mean_interval(values: np.ndarray, level: float = 0.95) -> Rate:
    """A mean with Student's interval."""
    from scipy.special import stdtrit

    values = _numbers("values", values)
    tail = (1 - _check.real("level", level, high=1.0)) / 2
    half = float(stdtrit(len(values) - 1, 1 - tail) * values.std(ddof=1) / np.sqrt(len(values)))
    return Rate(float(values.mean()), float(values.mean()) - half, float(values.mean()) + half, len(values))


def student_t(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """The p-value of Student's two-sample t-test of mean(x) = mean(y): what "two sample t-test", the paper's words, is
    taken for. Variances are pooled."""
    from scipy.stats import ttest_ind

    x, y = _numbers("x", x), _numbers("y", y)
    if not x.var() and not y.var():
        return _certain(x.mean() - y.mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a system that is alike with every seed
        return float(ttest_ind(x, y, equal_var=True).pvalue)


def paired_t(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """The p-value of Student's paired t-test: is the mean of x - y zero? x[k] and y[k] are of one user (or seed)."""
    from scipy.stats import ttest_1samp

    x, y = _pairs(x, y)
    difference = x - y
    return float(ttest_1samp(difference, 0.0).pvalue) if difference.var() else _certain(difference.mean())


def _certain(difference: float) -> float:
    """Without any spread a difference is either nothing (p = 1) or certain (p = 0)."""
    return 0.0 if difference else 1.0


def paired_bootstrap(
    x: Sequence[float] | np.ndarray,
    y: Sequence[float] | np.ndarray,
    n: int = BOOTSTRAPS,
    level: float = 0.95,
    seed: int = 0,
) -> Bootstrap:
    """The mean of x - y under pairs (users) drawn with replacement."""
    x, y = _pairs(x, y)
    difference = x - y
    rng = generator(seed, "paired-bootstrap")
    draws = [difference[rng.integers(len(x), size=len(x))].mean() for _ in range(_check.whole("n", n))]
    return _bootstrap(difference.mean(), np.array(draws), level)


def cluster_bootstrap(
    statistic: Callable[[np.ndarray], float],
    n_clusters: int,
    n: int = BOOTSTRAPS,
    level: float = 0.95,
    seed: int = 0,
) -> Bootstrap:
    """A statistic under whole clusters drawn with replacement.

    `statistic(counts)` is told how often each cluster was drawn (int64, adding up to n_clusters); all ones is the
    statistic itself. Draws where it is nan (a class is missing) do not count.
    """
    n_clusters = _check.whole("n_clusters", n_clusters, low=2)
    rng = generator(seed, "cluster-bootstrap")
    every = (rng.integers(n_clusters, size=n_clusters) for _ in range(_check.whole("n", n)))
    draws = np.array([statistic(np.bincount(drawn, minlength=n_clusters)) for drawn in every])
    return _bootstrap(statistic(np.ones(n_clusters, dtype=np.int64)), draws[~np.isnan(draws)], level)


def auc_bootstrap(
    scores: Sequence[np.ndarray] | np.ndarray,
    other_scores: Sequence[np.ndarray] | np.ndarray,
    labels: np.ndarray,
    users: np.ndarray,
    n: int = BOOTSTRAPS,
    level: float = 0.95,
    seed: int = 0,
) -> Bootstrap:
    """The difference of two systems' pooled AUC under users drawn with replacement, both systems on the same users.

    Scores are (pairs,) or (seeds, pairs); with several seeds each system's AUC is the mean over its seeds.
    """
    labels, users = np.asarray(labels), np.asarray(users)
    first, second = (np.atleast_2d(np.asarray(each)) for each in (scores, other_scores))
    for each in (first, second):
        if each.ndim != 2 or each.shape[1:] != labels.shape or labels.shape != users.shape:
            raise InputError(
                f"scores {each.shape}, labels {labels.shape}, users {users.shape}: one entry per pair each"
            )
    clusters, rows = np.unique(users, return_inverse=True)
    ranked = [[_ranked(row, labels, rows) for row in each] for each in (first, second)]

    def difference(counts: np.ndarray) -> float:
        one, other = (np.mean([_weighted_auc(*row, counts) for row in each]) for each in ranked)
        return float(one - other)

    return cluster_bootstrap(difference, len(clusters), n, level, seed)


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Holm's adjusted p-values: each may be compared with alpha, all of them hold together with 1 - alpha.

    In rising order, p_(k) (m - k + 1), never below the one before and at most 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not len(p) or not ((p >= 0) & (p <= 1)).all():
        raise InputError("p-values must be a non-empty list of numbers from 0 to 1")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def _ranked(scores: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(is positive, cluster, where each run of equal scores starts), in rising order of the scores."""
    order = np.argsort(scores, kind="stable")
    ascending = scores[order]
    starts = np.flatnonzero(np.concatenate([[True], ascending[1:] != ascending[:-1]]))
    return labels[order] > 0, rows[order], starts


def _weighted_auc(positive: np.ndarray, rows: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> float:
    """AUC of pairs that stand counts[row] times each: whole numbers, so exact; nan without both classes."""
    weights = counts[rows]
    positives = np.add.reduceat(np.where(positive, weights, 0), starts)
    negatives = np.add.reduceat(np.where(positive, 0, weights), starts)
    both = int(positives.sum()) * int(negatives.sum())
    below = np.cumsum(negatives) - negatives
    return int((positives * (2 * below + negatives)).sum()) / (2 * both) if both else float("nan")


def _bootstrap(difference: float, draws: np.ndarray, level: float) -> Bootstrap:
    """Percentile interval; p: twice the smaller share of draws on either side of 0 (at least 1 / (draws + 1))."""
    tail = (1 - _check.real("level", level, high=1.0)) / 2
    low, high = np.quantile(draws, [tail, 1 - tail]) if len(draws) else (np.nan, np.nan)
    side = min(int((draws <= 0).sum()), int((draws >= 0).sum()))
    return Bootstrap(float(difference), float(low), float(high), min(1.0, 2 * (side + 1) / (len(draws) + 1)))


def _numbers(name: str, values: Sequence[float] | np.ndarray, least: int = 2) -> np.ndarray:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) < least or not np.isfinite(numbers).all():
        raise InputError(f"{name} of shape {numbers.shape} must be a list of at least {least} finite numbers")
    return numbers


def _pairs(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = _numbers("x", x), _numbers("y", y)
    if len(x) != len(y):
        raise InputError(f"x has {len(x)} values and y {len(y)}: a paired test needs one of each per user")
    return x, y
