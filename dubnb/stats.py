"""Tests of differences between systems: t-tests over seeds, bootstraps over users, Holm's correction.

Two questions are easily confused:

- *Over seeds*: would another random start change the order? The paper's two-sample t-test asks this.
- *Over users*: would other users change the order? A paired test over users asks this. The pooled AUC is not a mean
  over users, so whole users are resampled (the user-cluster bootstrap).

liked@K is a ratio of two sums over users, often of few judged pairs. Its interval is Wilson's with an effective number
of equally weighted pairs. Two systems are compared through these intervals and the correlation of the two shares.
bench/coverage_evaluate.py simulates their coverage.
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
    """A share with its exact interval (Clopper and Pearson, 1934), whose coverage is at least `level`."""
    from scipy.special import betaincinv

    tail = (1 - _check.real("level", level, high=1.0)) / 2
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    return Rate(successes / n, low, high, n)


def mean_interval(values: np.ndarray, level: float = 0.95) -> Rate:
    """A mean with Student's interval."""
    from scipy.special import stdtrit

    values = _finite_numbers("values", values)
    tail = (1 - _check.real("level", level, high=1.0)) / 2
    half = float(stdtrit(len(values) - 1, 1 - tail) * values.std(ddof=1) / np.sqrt(len(values)))
    return Rate(float(values.mean()), float(values.mean()) - half, float(values.mean()) + half, len(values))


def rare_mean_interval(values: np.ndarray, largest: float, level: float = 0.95) -> Rate:
    """The mean of non-negative values of which most are 0, with an interval that allows for their skewness.

    Student's interval covers too rarely where few values are above 0. With mean y, variance v of the mean and
    w = largest / n, the limits are those of Fay and Feuer (1997) for weighted sums of Poisson counts:
    v/2y chi2(2y^2/v, tail) and (v + w^2)/2(y + w) chi2(2(y + w)^2/(v + w^2), 1 - tail).

    Parameters
    ----------
    values : array
        One independent value per user.
    largest : float
        How much one more event can add to a value.
    level : float
        Level of the interval.
    """
    from scipy.special import gammaincinv

    values = _finite_numbers("values", values)
    tail = (1 - _check.real("level", level, high=1.0)) / 2
    y, v, w = float(values.mean()), float(values.var(ddof=1)) / len(values), largest / len(values)
    low = float(v / y * gammaincinv(y * y / v, tail)) if v > 0 else (y if y > 0 else 0.0)
    v, upper = v + w * w, y + w
    return Rate(y, low, float(v / upper * gammaincinv(upper * upper / v, 1 - tail)), len(values))


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
    p: float  # two-sided: at level 1 - p the intervals just reach equality


def liked_share(weights: np.ndarray, liked: np.ndarray, judged: np.ndarray, level: float = 0.95) -> Rate:
    """R = sum w_u L_u / sum w_u J_u over users, with an interval that is clustered by user; n is the number judged.

    V = n / (n - 1) sum z_u^2 with z_u = w_u (L_u - R J_u) / sum w J is the linearised variance over n users. With few
    judged pairs R +- t sqrt(V) covers too rarely. So the interval is Wilson's with n* = min(R (1 - R) / V, Kish) pairs,
    Kish = (sum w J)^2 / sum w^2 J, and Student's quantile with Kish - 1 degrees of freedom.

    Parameters
    ----------
    weights : (users,) array
        w_u: 1 / probability that a candidate of the user was judged.
    liked, judged : (users,) or (seeds, users) array
        J_u of the user's listed items were judged, and L_u of these were liked. With several seeds, each with its own
        lists, R is their mean.
    level : float
        Level of the interval.
    """
    share = _Share.of(weights, liked, judged)
    return Rate(share.rate, *share.limits(_check.real("level", level, high=1.0)), round(share.judged))


def weighted_share(weights: np.ndarray, values: np.ndarray, clusters: np.ndarray, level: float = 0.95) -> Rate:
    """R = sum w v / sum w over samples, with an interval that is clustered; n is Kish's effective sample size.

    The interval is that of `liked_share`, with z of a cluster = its sum of w (v - R) / sum w.

    Parameters
    ----------
    weights, values : (samples,) array
        w > 0, and v in [0, 1].
    clusters : (samples,) array of int
        The user of each sample: samples of one user depend on each other.
    level : float
        Level of the interval.
    """
    weights, values = (np.asarray(each, dtype=np.float64) for each in (weights, values))
    total = float(weights.sum())
    if not total > 0:
        raise InputError("no sample has a weight above 0: a share needs some")
    rate = float(weights @ values) / total
    errors = np.bincount(np.unique(clusters, return_inverse=True)[1], weights=weights * (values - rate)) / total
    n = len(errors)
    variance = n / max(n - 1, 1) * float(errors @ errors)
    kish = total**2 / float(weights @ weights)
    effective = min(kish, rate * (1 - rate) / variance) if variance > 0 and 0 < rate < 1 else kish
    share = _Share(rate, errors, variance, effective, max(kish - 1, 1.0), float(len(values)))
    return Rate(rate, *share.limits(_check.real("level", level, high=1.0)), round(kish))


def compare_liked(
    weights: np.ndarray,
    first: tuple[np.ndarray, np.ndarray],
    second: tuple[np.ndarray, np.ndarray],
    level: float = 0.95,
) -> SharesCompared:
    """Two systems' liked@K on the same users: difference and ratio, paired and clustered by user.

    The limits of the difference d come from those of both shares and the correlation r of their linearised errors
    (MOVER, Zou and Donner 2008): low = d - sqrt(a^2 + b^2 - 2 r a b) with a = R_1 - low_1 and b = high_2 - R_2; high
    likewise. A limit of the ratio is the x at which that limit of R_1 - x R_2 is 0 (Donner and Zou 2012), so the
    ratio's interval contains 1 where the difference's contains 0. The ratio is Beale's, R_1 / R_2 (1 + c_12) /
    (1 + c_22), which corrects the bias of R_1 / R_2; c are relative (co)variances. All is conditional on the models.

    Parameters
    ----------
    weights : (users,) array
        w_u, as in `liked_share`.
    first, second : (liked, judged)
        L_u and J_u of each system, (users,) or (seeds, users).
    level : float
        Level of the intervals.
    """
    level = _check.real("level", level, high=1.0)
    one, other = (_Share.of(weights, *each) for each in (first, second))
    n = len(one.errors)
    covariance = n / (n - 1) * float(one.errors @ other.errors)
    spread = np.sqrt(one.variance * other.variance)
    correlation = float(np.clip(covariance / spread, -1, 1)) if spread > 0 else 0.0
    low, high, ratio_low, ratio_high = _limits_of_both(one, other, correlation, level)
    ratio = float("nan")
    if other.rate > 0:
        shared = covariance / (one.rate * other.rate) if one.rate > 0 else 0.0
        ratio = one.rate / other.rate * (1 + shared) / (1 + other.variance / other.rate**2)
    rate_1, rate_2 = (Rate(each.rate, *each.limits(level), round(each.judged)) for each in (one, other))
    p = _level_of_zero(one, other, correlation)
    return SharesCompared(rate_1, rate_2, one.rate - other.rate, low, high, ratio, ratio_low, ratio_high, p)


class _Share(NamedTuple):
    """liked@K of one system, and the ingredients of its interval."""

    rate: float
    errors: np.ndarray  # z_u: each user's share in the error of the rate
    variance: float  # linearised
    effective: float  # n*, the equivalent number of judged pairs of equal weight
    freedom: float  # degrees of freedom
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


def _limits_of_both(one: _Share, other: _Share, correlation: float, level: float) -> tuple[float, float, float, float]:
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
        low, high, *_ = _limits_of_both(one, other, correlation, level)
        inside, outside = (inside, level) if low <= 0 <= high else (level, outside)
    return 1 - (inside + outside) / 2


def student_t(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """The p-value of Student's two-sample t-test of mean(x) = mean(y), with pooled variance.

    The paper says "two sample t-test"; this is our reading.
    """
    from scipy.stats import ttest_ind

    x, y = _finite_numbers("x", x), _finite_numbers("y", y)
    if not x.var() and not y.var():
        return _certain(x.mean() - y.mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a system may have equal values for every seed
        return float(ttest_ind(x, y, equal_var=True).pvalue)


def paired_t(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """The p-value of Student's paired t-test of mean(x - y) = 0; x[k] and y[k] belong to one user (or seed)."""
    from scipy.stats import ttest_1samp

    x, y = _pairs(x, y)
    difference = x - y
    return float(ttest_1samp(difference, 0.0).pvalue) if difference.var() else _certain(difference.mean())


def _certain(difference: float) -> float:
    """The p-value of a difference without any spread: 1 if it is 0, else 0."""
    return 0.0 if difference else 1.0


def paired_bootstrap(
    x: Sequence[float] | np.ndarray,
    y: Sequence[float] | np.ndarray,
    n: int = BOOTSTRAPS,
    level: float = 0.95,
    seed: int = 0,
) -> Bootstrap:
    """The mean of x - y, with pairs (users) drawn with replacement."""
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
    """A statistic, with whole clusters drawn with replacement.

    `statistic(counts)` gets how often each cluster was drawn (int64, summing to n_clusters); all ones gives the
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
    weights: np.ndarray | None = None,
) -> Bootstrap:
    """The difference of two systems' pooled AUC, with users drawn with replacement; both see the same users.

    Scores are (pairs,) or (seeds, pairs); with several seeds each system's AUC is the mean over its seeds. With
    weights, one per pair, the AUC is that of `metrics.auc` with weights.
    """
    labels, users = np.asarray(labels), np.asarray(users)
    first, second = (np.atleast_2d(np.asarray(each)) for each in (scores, other_scores))
    for each in (first, second):
        if each.ndim != 2 or each.shape[1:] != labels.shape or labels.shape != users.shape:
            raise InputError(
                f"scores {each.shape}, labels {labels.shape}, users {users.shape}: one entry per pair each"
            )
    clusters, rows = np.unique(users, return_inverse=True)
    ranked = [[_ranked(row, labels, rows, weights) for row in each] for each in (first, second)]

    def difference(counts: np.ndarray) -> float:
        one, other = (np.mean([_weighted_auc(*row, counts) for row in each]) for each in ranked)
        return float(one - other)

    return cluster_bootstrap(difference, len(clusters), n, level, seed)


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Holm's adjusted p-values: comparing each with alpha gives any false alarm with a probability of at most alpha.

    In ascending order p_(k) (m - k + 1), never below the one before and at most 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not len(p) or not ((p >= 0) & (p <= 1)).all():
        raise InputError("p-values must be a non-empty list of numbers from 0 to 1")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


class RankTest(NamedTuple):
    """Systems over data sets, compared by their ranks (Demsar, 2006)."""

    mean_ranks: np.ndarray  # of each system; 1 is the best
    p: float  # Friedman's test that all systems are alike, in the form of Iman and Davenport
    critical_difference: float  # Nemenyi: mean ranks that are further apart differ, at level .05 over all pairs
    n: int  # data sets


def rank_test(values: np.ndarray) -> RankTest:
    """Friedman's test and Nemenyi's critical difference (Demsar: Statistical comparisons of classifiers, JMLR 2006).

    With N data sets, k systems and mean ranks R_j, chi2 = 12 N / (k (k + 1)) (sum R_j^2 - k (k + 1)^2 / 4) and
    F = (N - 1) chi2 / (N (k - 1) - chi2) has k - 1 and (k - 1) (N - 1) degrees of freedom. The critical difference is
    q sqrt(k (k + 1) / 6N), with the .95 quantile of the studentized range of k means divided by sqrt 2 as q.

    Parameters
    ----------
    values : (data sets, systems) array
        The larger, the better; equal values share their mean rank.
    """
    from scipy.stats import f, rankdata, studentized_range

    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or min(values.shape) < 2 or not np.isfinite(values).all():
        raise InputError(f"ranks need finite values of at least 2 data sets and 2 systems, not {values.shape}")
    n, k = values.shape
    ranks = rankdata(-values, axis=1).mean(axis=0)
    chi2 = 12 * n / (k * (k + 1)) * (float(ranks @ ranks) - k * (k + 1) ** 2 / 4)
    rest = n * (k - 1) - chi2
    p = float(f.sf((n - 1) * chi2 / rest, k - 1, (k - 1) * (n - 1))) if rest > 1e-9 else 0.0
    q = float(studentized_range.ppf(0.95, k, np.inf)) / np.sqrt(2)
    return RankTest(ranks, p, float(q * np.sqrt(k * (k + 1) / (6 * n))), n)


def _ranked(
    scores: np.ndarray, labels: np.ndarray, rows: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """(is positive, cluster, where each run of equal scores starts, weight), in ascending order of the scores."""
    order = np.argsort(scores, kind="stable")
    ascending = scores[order]
    starts = np.flatnonzero(np.concatenate([[True], ascending[1:] != ascending[:-1]]))
    return labels[order] > 0, rows[order], starts, None if weights is None else np.asarray(weights)[order]


def _weighted_auc(
    positive: np.ndarray, rows: np.ndarray, starts: np.ndarray, own: np.ndarray | None, counts: np.ndarray
) -> float:
    """AUC of pairs that occur counts[row] times each; exact, because it counts integers. nan without both classes.

    own: a weight for each pair, if they have some.
    """
    weights = counts[rows]
    if own is not None:
        won, lost = (np.add.reduceat(np.where(positive == each, own * weights, 0.0), starts) for each in (True, False))
        total = float(won.sum() * lost.sum())
        return float(won @ (np.cumsum(lost) - lost / 2)) / total if total else float("nan")
    positives = np.add.reduceat(np.where(positive, weights, 0), starts)
    negatives = np.add.reduceat(np.where(positive, 0, weights), starts)
    both = int(positives.sum()) * int(negatives.sum())
    below = np.cumsum(negatives) - negatives
    return int((positives * (2 * below + negatives)).sum()) / (2 * both) if both else float("nan")


def _bootstrap(difference: float, draws: np.ndarray, level: float) -> Bootstrap:
    """Percentile interval. p is twice the smaller share of draws on either side of 0 (at least 1 / (draws + 1))."""
    tail = (1 - _check.real("level", level, high=1.0)) / 2
    low, high = np.quantile(draws, [tail, 1 - tail]) if len(draws) else (np.nan, np.nan)
    side = min(int((draws <= 0).sum()), int((draws >= 0).sum()))
    return Bootstrap(float(difference), float(low), float(high), min(1.0, 2 * (side + 1) / (len(draws) + 1)))


def _finite_numbers(name: str, values: Sequence[float] | np.ndarray) -> np.ndarray:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) < 2 or not np.isfinite(numbers).all():
        raise InputError(f"{name} of shape {numbers.shape} must be a list of at least 2 finite numbers")
    return numbers


def _pairs(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = _finite_numbers("x", x), _finite_numbers("y", y)
    if len(x) != len(y):
        raise InputError(f"x has {len(x)} values and y {len(y)}: a paired test needs one of each per user")
    return x, y
