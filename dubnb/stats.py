"""Is the difference real? t-tests over seeds, bootstraps over users, Holm's correction.

Two questions that are easily confused:

- *Over seeds*: would another random start change the order? The paper's two-sample t-test asks this.
- *Over users*: would other users change the order? A paired test over users asks this; for the pooled AUC, where users
  are no independent terms of a mean, whole users are drawn again (the user-cluster bootstrap).

liked@K is a ratio of two sums over users, often of few judged pairs. Its interval is Wilson's with the number of pairs
that would tell as much if all had equal weights; two systems are compared through these intervals and the correlation
of the two shares. bench/coverage_evaluate.py simulates what they cover.
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


class SharesCompared(NamedTuple):
    """liked@K of two systems on the same users, and the first's against the second's, with intervals."""

    first: Rate
    second: Rate
    difference: float  # first - second
    low: float
    high: float
    ratio: float  # first / second, its bias corrected; nan where the second is 0
    ratio_low: float
    ratio_high: float  # inf where the second may be 0
    p: float  # two-sided: at level 1 - p the intervals end where the systems are alike


def liked_share(weights: np.ndarray, liked: np.ndarray, judged: np.ndarray, level: float = 0.95) -> Rate:
    """R = sum w_u L_u / sum w_u J_u over users, with an interval that is clustered by user; n is the number judged.

    V = n / (n - 1) sum z_u^2 with z_u = w_u (L_u - R J_u) / sum w J is the linearised variance over n users. With few
    judged pairs R +- t sqrt(V) covers too rarely. So the interval is Wilson's with n* = min(R (1 - R) / V, Kish) pairs,
    Kish = (sum w J)^2 / sum w^2 J, and Student's quantile with Kish - 1 degrees of freedom.

    Parameters
    ----------
    weights : (users,) array
        w_u: one over the chance that a candidate of the user was judged.
    liked, judged : (users,) or (seeds, users) array
        L_u and J_u: how many of the user's listed items were judged, and how many of these liked. With several seeds,
        of which each has its own lists, R is their mean.
    level : float
        Of the interval.
    """
    share = _Share.of(weights, liked, judged)
    return Rate(share.rate, *share.limits(_check.real("level", level, high=1.0)), round(share.judged))


def compare_liked(
    weights: np.ndarray,
    first: tuple[np.ndarray, np.ndarray],
    second: tuple[np.ndarray, np.ndarray],
    level: float = 0.95,
) -> SharesCompared:
    """Two systems' liked@K on the same users: difference and ratio, paired and clustered by user.

    The limits of the difference d come from those of both shares and the correlation r of their linearised errors
    (MOVER, Zou and Donner 2008): low = d - sqrt(a^2 + b^2 - 2 r a b) with a = R_1 - low_1 and b = high_2 - R_2; high
    likewise. A limit of the ratio is the x at which that limit of R_1 - x R_2 is 0 (Donner and Zou 2012), so that the
    ratio's interval holds 1 where the difference's holds 0. The ratio is Beale's, R_1 / R_2 (1 + c_12) / (1 + c_22),
    which corrects the bias of R_1 / R_2; c are relative (co)variances. All of it is conditional on the fitted models.

    Parameters
    ----------
    weights : (users,) array
        w_u, as in `liked_share`.
    first, second : (liked, judged)
        L_u and J_u of each system, (users,) or (seeds, users).
    level : float
        Of the intervals.
    """
    level = _check.real("level", level, high=1.0)
    one, other = (_Share.of(weights, *each) for each in (first, second))
    n = len(one.errors)
    covariance = n / (n - 1) * float(one.errors @ other.errors)
    spread = np.sqrt(one.variance * other.variance)
    correlation = float(np.clip(covariance / spread, -1, 1)) if spread > 0 else 0.0
    low, high, ratio_low, ratio_high = _compared(one, other, correlation, level)
    ratio = float("nan")
    if other.rate > 0:
        shared = covariance / (one.rate * other.rate) if one.rate > 0 else 0.0
        ratio = one.rate / other.rate * (1 + shared) / (1 + other.variance / other.rate**2)
    rate_1, rate_2 = (Rate(each.rate, *each.limits(level), round(each.judged)) for each in (one, other))
    p = _level_of_zero(one, other, correlation)
    return SharesCompared(rate_1, rate_2, one.rate - other.rate, low, high, ratio, ratio_low, ratio_high, p)


class _Share(NamedTuple):
    """liked@K of one system and what its limits are made of."""

    rate: float
    errors: np.ndarray  # z_u: each user's share in the error of the rate
    variance: float  # linearised
    effective: float  # n*, judged pairs of equal weight that would tell as much
    freedom: float  # degrees of
    judged: float

    @classmethod
    def of(cls, weights: np.ndarray, liked: np.ndarray, judged: np.ndarray) -> _Share:
        weights = np.asarray(weights, dtype=np.float64)
        liked, judged = (np.atleast_2d(np.asarray(each, dtype=np.float64)) for each in (liked, judged))
        if liked.shape != judged.shape or liked.shape[1:] != weights.shape or not len(weights) > 1:
            shapes = f"weights {weights.shape}, liked {liked.shape}, judged {judged.shape}"
            raise InputError(f"{shapes}: pass one number per user, of at least two users")
        liked, judged = liked.mean(axis=0), judged.mean(axis=0)
        total = float(weights @ judged)
        if not total > 0:
            raise InputError("no recommended pair was judged: liked@K needs some")
        rate = float(weights @ liked) / total
        errors = weights * (liked - rate * judged) / total
        n = len(weights)
        variance = n / (n - 1) * float(errors @ errors)
        kish = total**2 / float(weights**2 @ judged)
        effective = min(kish, rate * (1 - rate) / variance) if variance > 0 and 0 < rate < 1 else kish
        return cls(rate, errors, variance, effective, max(kish - 1, 1.0), float(judged.sum()))

    def limits(self, level: float) -> tuple[float, float]:
        """Wilson's limits."""
        from scipy.special import stdtrit

        q = float(stdtrit(self.freedom, (1 + level) / 2)) ** 2 / self.effective
        middle = (self.rate + q / 2) / (1 + q)
        half = np.sqrt(q * (self.rate * (1 - self.rate) + q / 4)) / (1 + q)
        return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def _compared(one: _Share, other: _Share, correlation: float, level: float) -> tuple[float, float, float, float]:
    """Limits of the difference and of the ratio."""
    (low_1, high_1), (low_2, high_2) = one.limits(level), other.limits(level)
    found = []
    for sign, a, b in ((-1, one.rate - low_1, high_2 - other.rate), (1, high_1 - one.rate, other.rate - low_2)):
        reach = np.sqrt(max(0.0, a * a + b * b - 2 * correlation * a * b))
        # the ratio's limit x solves (R_1 - x R_2)^2 = a^2 + (x b)^2 - 2 r a (x b), that is A x^2 - 2 B x + C = 0
        A, B, C = other.rate**2 - b * b, one.rate * other.rate - correlation * a * b, one.rate**2 - a * a
        root = np.sqrt(max(0.0, B * B - A * C))
        smaller = C / (B + root) if C > 0 and B + root > 0 else 0.0
        larger = (B + root) / A if A > 0 else np.inf
        found.append((one.rate - other.rate + sign * reach, smaller if sign < 0 else larger))
    (low, ratio_low), (high, ratio_high) = found
    return float(low), float(high), float(ratio_low), float(ratio_high)


def _level_of_zero(one: _Share, other: _Share, correlation: float) -> float:
    """1 - the level at which the difference's interval just reaches 0, by bisection."""
    if one.rate == other.rate:
        return 1.0
    inside, outside = 0.0, 1.0  # levels
    for _ in range(30):
        level = (inside + outside) / 2
        low, high, *_ = _compared(one, other, correlation, level)
        inside, outside = (inside, level) if low <= 0 <= high else (level, outside)
    return 1 - (inside + outside) / 2


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
