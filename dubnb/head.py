"""The head: a logistic correction of a model's scores, fitted on randomized pairs that the model has not trained on.

    logit P(positive) = intercept + b z + delta . f,    z = (score - mean) / std,  b > 0

A low-rank model of the biased log gets differences between items, and between users, wrong where exposure was unequal.
The head learns these from six features f that belong to the item or to the user alone, so that the result is a scale
and one offset per user and item:

    log(1 + n_i), log(1 + positives of i), log(item's positive rate in S_c), log(item's positive rate in the randomized
    log), log(user's positive rate in S_c), log(1 + n_u)

Rates are smoothed towards the mean rate by 10 pairs (S_c) and 20 pairs (randomized log). While fitting, a pair's own
label does not count in its item's randomized rate. Features are standardised. A ridge on delta alone is chosen by
5-fold cross-validated log-loss; rates are computed without the held-out fold. The largest ridge is infinite: then
delta is 0, and the ranking does not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb._random import generator
from dubnb.calibration import logistic, minimise_by_newton

if TYPE_CHECKING:
    from dubnb.backbones.protocol import Scorer
    from dubnb.data.partition import Partition

FOLDS = 5
RIDGES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, np.inf)
S_C_PRIOR, RANDOMIZED_PRIOR = 10.0, 20.0  # pairs at the mean rate that are added to each rate
LIMITS = 50, 30, 1e-10  # of Newton's method, see `calibration.minimise_by_newton`
RULES = ("best", "one-se")


class UserOffset(NamedTuple):
    """What a user's offset depends on: her pairs and positives in S_c."""

    of_pairs: float  # coefficient of log(1 + n_u)
    of_rate: float  # coefficient of the log of the smoothed rate
    constant: float
    mean_rate: float  # of S_c, towards which rates are smoothed

    def __call__(self, pairs: float, positives: float) -> float:
        """The offset of a user with so many pairs in S_c, some of them positive."""
        of_pairs, of_rate, _ = _count_features(np.array([pairs]), np.array([positives]), self.mean_rate)[0]
        return float(self.of_pairs * of_pairs + self.of_rate * of_rate + self.constant)


class Head(NamedTuple):
    """score' = score + user_offsets[u] + item_offsets[i]; logit P(positive) = scale * score' + intercept."""

    scale: float
    intercept: float
    user_offsets: np.ndarray  # float64, in units of the score
    item_offsets: np.ndarray  # float64; 0 if the head corrects users alone
    of_new_user: UserOffset
    ridge: float  # chosen; inf: the head only calibrates
    gain: float  # cross-validated log-loss per pair below that of an infinite ridge
    gain_error: float  # standard error of the gain

    def scores(self, scores: np.ndarray, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Corrected scores of pairs from a model's raw scores."""
        corrected: np.ndarray = np.asarray(scores, np.float64) + self.user_offsets[users]
        return corrected + self.item_offsets[items]

    def logits(self, scores: np.ndarray, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Logits of pairs from a model's raw scores."""
        return self.scale * self.scores(scores, users, items) + self.intercept


class HeadedScorer:
    """A model's scores with a head on top."""

    def __init__(self, model: Scorer, head: Head):
        self.model, self.head = model, head

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Corrected scores of the pairs (users[j], items[j])."""
        return self.head.scores(self.model.score_pairs(users, items), users, items).astype(np.float32)

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Corrected scores of every item for each of `users`, one row each."""
        rows = self.model.score_rows(users) + self.head.user_offsets[users, None].astype(np.float32)
        rows += self.head.item_offsets.astype(np.float32)
        return rows


class PairSample(NamedTuple):
    """Randomized pairs that a head is fitted on; `scores` are of a model that has not trained on them."""

    scores: np.ndarray
    users: np.ndarray
    items: np.ndarray
    labels: np.ndarray  # 0 or 1
    weights: np.ndarray
    rate_weights: np.ndarray  # in the randomized rates of items

    def take(self, rows: np.ndarray) -> PairSample:
        """Some of the pairs."""
        return PairSample(*(column[rows] for column in self))


def fit_head(
    scores: np.ndarray,
    users: np.ndarray,
    items: np.ndarray,
    labels: np.ndarray,
    data: Partition,
    *,
    weights: np.ndarray | None = None,
    rate_weights: np.ndarray | None = None,
    of_items: bool = True,
    ridge: float | None = None,
    rule: str = "best",
    seed: int = 0,
) -> Head:
    """Fit a head on randomized pairs.

    Parameters
    ----------
    scores, users, items, labels : arrays
        Raw scores, row numbers and 0/1 labels of the pairs. The model must not have trained on these pairs, nor started
        from one that has: row solves that start from a fit on the same pairs remember their labels (AUC of held-out
        pairs .834 instead of .757 in world-popular:stars).
    data : Partition
        The biased log, S_c, gives the counts and rates of the features.
    weights : array, optional
        A weight for each pair, such as one over its propensity.
    rate_weights : array, optional
        A weight for each pair in the randomized rates of items, `weights` by default. With weights of 0 for S_va, the
        offsets of items do not contain its labels.
    of_items : bool
        Whether items have offsets too. Without them the ranking of no user changes.
    ridge : float, optional
        The ridge; by default it is chosen by cross-validation.
    rule : {"best", "one-se"}
        "best" takes the ridge with the least cross-validated log-loss. "one-se" takes the largest ridge whose log-loss
        is within one paired standard error of the least.
    seed : int
        Seed of the folds.
    """
    w = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    rated = w if rate_weights is None else np.asarray(rate_weights, np.float64)
    s, users, items, y = (np.asarray(column) for column in (scores, users, items, labels))
    w, rated = (v / v[v > 0].mean() if v.any() else v for v in (w, rated))
    sample = PairSample(s.astype(np.float64), users, items, y.astype(np.float64), w, rated)
    features = log_features(data)
    features = features._replace(with_items=of_items)
    gain = error = 0.0
    if ridge is None:
        ridge, gain, error = _chosen_ridge(sample, features, rule, seed)
    fitted = _fit(sample, features, ridge)
    if not fitted.scale > 0:  # scores that rank these pairs backwards: their order is kept
        flat = UserOffset(0.0, 0.0, 0.0, features.mean_rate)
        return Head(1.0, 0.0, np.zeros(data.n_users), np.zeros(data.n_items), flat, np.inf, 0.0, 0.0)
    return fitted._replace(gain=gain, gain_error=error)


class LogFeatures(NamedTuple):
    """The features that follow from S_c alone, a row for each user and each item."""

    of_users: np.ndarray  # log(1 + n_u), log of the rate
    of_items: np.ndarray  # log(1 + n_i), log of the rate, log(1 + positives)
    mean_rate: float  # of S_c
    with_items: bool = True  # whether items have offsets


def log_features(data: Partition) -> LogFeatures:
    """Counts and smoothed rates of users and items in S_c."""
    counts = data.biased_counts
    mean = float(counts.liked_of_items.sum()) / data.size("S_c")
    of_users = _count_features(counts.users, counts.liked_by_users.astype(np.float64), mean)
    of_items = _count_features(counts.items, counts.liked_of_items.astype(np.float64), mean)
    return LogFeatures(of_users[:, :2], of_items, mean)


def _count_features(n: np.ndarray, positives: np.ndarray, mean: float) -> np.ndarray:
    """log(1 + n), the log of the smoothed rate and log(1 + positives), a row for each entry."""
    rate = (positives + S_C_PRIOR * mean) / (n + S_C_PRIOR)
    return np.stack([np.log1p(n), np.log(np.maximum(rate, 1e-6)), np.log1p(positives)], axis=1)


def _log_rates(sample: PairSample, n_items: int, own: bool) -> np.ndarray:
    """log of the smoothed randomized rates of all items; own: of the sample's pairs, without each pair's own label."""
    w = sample.rate_weights
    n, positives = (np.bincount(sample.items, v, n_items) for v in (w, w * sample.labels))
    mean = positives.sum() / max(n.sum(), 1e-9)
    if own:
        n, positives = n[sample.items] - w, positives[sample.items] - w * sample.labels
    rate = (positives + RANDOMIZED_PRIOR * mean) / (n + RANDOMIZED_PRIOR)
    return np.log(np.maximum(rate, 1e-6))


def _fit(sample: PairSample, of: LogFeatures, ridge: float) -> Head:
    """The head at one ridge."""
    mean, std = _mean_and_std(sample.scores, sample.weights)
    columns, n_items, k = [of.of_users[sample.users]], len(of.of_items), of.of_users.shape[1]
    if of.with_items:
        columns += [of.of_items[sample.items], _log_rates(sample, n_items, own=True)[:, None]]
    features = np.column_stack(columns)
    centre, spread = _mean_and_std(features, sample.weights)
    x = np.column_stack([(sample.scores - mean) / std, (features - centre) / spread])
    theta = fit_logistic(x, sample.labels, sample.weights, ridge)
    scale = float(theta[1] / std)
    delta = theta[2:] / spread / (scale if scale > 0 else 1.0)
    rule = UserOffset(float(delta[0]), float(delta[1]), -float(centre[:k] @ delta[:k]), of.mean_rate)
    item_offsets = np.zeros(n_items)
    if of.with_items:
        every = np.column_stack([of.of_items, _log_rates(sample, n_items, own=False)])
        item_offsets = (every - centre[k:]) @ delta[k:]
    user_offsets = of.of_users @ delta[:k] + rule.constant
    return Head(scale, float(theta[0] - scale * mean), user_offsets, item_offsets, rule, ridge, 0.0, 0.0)


def _chosen_ridge(sample: PairSample, of: LogFeatures, rule: str, seed: int) -> tuple[float, float, float]:
    """(ridge, its gain over an infinite one, the gain's standard error), by cross-validated log-loss."""
    fold = generator(seed, "head-folds").permutation(len(sample.scores)) % FOLDS
    losses = np.empty((len(RIDGES), len(fold)))
    for number in range(FOLDS):
        train, test = sample.take(fold != number), sample.take(fold == number)
        for place, ridge in enumerate(RIDGES):
            logits = _fit(train, of, ridge).logits(test.scores, test.users, test.items)
            losses[place, fold == number] = test.weights * (np.logaddexp(0, logits) - test.labels * logits)
    means = losses.mean(axis=1)
    best = int(np.argmin(means))
    if rule == "one-se":
        worse = losses - losses[best]
        within = worse.mean(axis=1) <= worse.std(axis=1) / np.sqrt(len(fold))
        best = int(np.flatnonzero(within)[-1])
    gains = losses[-1] - losses[best]
    return RIDGES[best], float(gains.mean()), float(gains.std() / np.sqrt(len(fold)))


def fit_logistic(x: np.ndarray, y: np.ndarray, w: np.ndarray, ridge: float) -> np.ndarray:
    """(intercept, b, delta) that minimise sum w log-loss + ridge/2 |delta|^2, by damped Newton steps.

    The first column of x belongs to b, which has no ridge; the others to delta, which is 0 with an infinite ridge.
    Labels are replaced by Platt's targets (see `calibration`), so that the optimum is finite.
    """
    width = 2 if np.isinf(ridge) else 1 + x.shape[1]
    design = np.column_stack([np.ones(len(x)), x])[:, :width]
    penalty = np.zeros(width)
    penalty[2:] = ridge if width > 2 else 0.0
    positives, negatives = w @ y, w @ (1 - y)
    targets = np.where(y == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    theta = np.zeros(width)
    theta[0] = np.log((positives + 1) / (negatives + 1))

    def loss(theta: np.ndarray) -> float:
        s = design @ theta
        return float(w @ (np.logaddexp(0.0, s) - targets * s) + penalty @ theta**2 / 2)

    def derivatives(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = logistic(design @ theta)
        gradient = design.T @ (w * (p - targets)) + penalty * theta
        return gradient, (design * (w * p * (1 - p))[:, None]).T @ design + np.diag(penalty)

    theta = minimise_by_newton(loss, derivatives, theta, 1e-10, LIMITS)
    return np.concatenate([theta, np.zeros(1 + x.shape[1] - width)])


def _mean_and_std(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and standard deviation of each column; the latter is 1 where a column does not vary."""
    mean = np.average(values, axis=0, weights=weights)
    std = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))
    return mean, np.where(std > 1e-9 * np.maximum(np.abs(mean), 1.0), std, 1.0)
