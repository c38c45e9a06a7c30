"""Metrics: one pure function each, registered in METRICS under the name that results carry.

There are six kinds, by what a metric reads:

- *pairs*: raw scores and 0/1 labels;
- *users*: the pairs' users too; it returns one number per user;
- *lists*: `hits`, a (users, L) array of the top of each user's list in rank order (true where the item is a positive),
  and the number of all the user's positives; it returns one float64 per user. Shorter lists count as ending in misses;
- *probabilities*: calibrated probabilities and labels, for models that give probabilities;
- *judged*: how many of each user's recommended items the part judged, and how many of these were liked;
- *candidates*: how many items score below each liked one.

**Weights.** Where the randomized log has propensities, its pairs weigh 1 / propensity (`Partition.judging_weights`).
Every metric has a self-normalised form with `weights=`: sums over pairs become weighted sums, and counts sums of
weights. A metric of lists first takes each user's own pairs by weight. The mean over users is then weighted too, by the
mean weight of the pairs that a user's value rests on (`user_weights`). Most users have one positive, and its weight
cancels in the user's own value. Without weights, all is exactly as if every pair weighed 1.

A registered metric appears in evaluation, on the command line, in sweeps and in reports without another edit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb._check import InputError, whole
from dubnb._jit import njit
from dubnb.calibration import brier, expected_calibration_error, log_loss

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

SAME_FOR_ALL = 1e-3  # with a `personal` share below this, all users get practically the same ranking
GRID = 64  # number of users and of items in the sample for `personal_share`


class ListWeights(NamedTuple):
    """The weights that metrics of lists take."""

    ranks: np.ndarray  # (users, L): weight of the positive at each rank, 0 where there is none
    positives: np.ndarray  # (users, M): weights of all positives of each user, the heaviest first, then 0


def auc(scores: Any, labels: Any, weights: Any = None) -> float:
    """Global AUC: the share of (positive, negative) pairs in the right order; a tie counts one half.

    AUC = sum over positives p of (#{n < p} + #{n = p} / 2) / (P N), counted in whole numbers and therefore exact.
    Labels are 0 or 1. With one class only, the AUC is nan. With weights, a pair (p, n) counts w_p w_n.
    """
    if weights is not None:
        return float(user_auc(scores, labels, np.zeros(len(np.asarray(scores)), np.int64), 1, weights)[0])
    scores, positive = _scores_and_labels(scores, labels)
    positives = np.empty(int(positive.sum()) + 1, dtype=scores.dtype)
    negatives = np.empty(len(scores) - len(positives) + 2, dtype=scores.dtype)
    _split(scores, positive, positives, negatives)
    positives, negatives = positives[:-1], negatives[:-1]
    if not len(positives) or not len(negatives):
        return float("nan")
    positives.sort()
    negatives.sort()
    return _twice_won(positives, negatives) / (2 * len(positives) * len(negatives))


def _scores_and_labels(scores: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """(scores in float32 or float64, whether each label is 1), checked."""
    scores, labels = np.asarray(scores), np.asarray(labels)
    if scores.ndim != 1 or scores.shape != labels.shape:
        raise InputError(f"scores of shape {scores.shape} and labels {labels.shape}: pass two 1-d arrays of one length")
    if scores.dtype.kind not in "biuf":
        raise InputError(f"scores of dtype {scores.dtype}: pass real numbers")
    if np.isnan(scores).any():
        raise InputError(
            f"{int(np.isnan(scores).sum())} scores are NaN: AUC needs ordered scores; did the model diverge?"
        )
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype(np.float64)
    positive = labels == 1
    if not (positive | (labels == 0)).all():
        bad = labels[~(positive | (labels == 0))][0]
        raise InputError(f"label {bad} is neither 0 nor 1: threshold the labels first")
    return scores, positive


def user_auc(scores: Any, labels: Any, users: Any, n_users: int | None = None, weights: Any = None) -> np.ndarray:
    """Each user's own AUC; a tie counts one half, and a user without both labels gets nan.

    From one sort by (user, score): AUC_u = (sum of the positives' ranks - P (P + 1) / 2) / (P N). Ranks count from 1
    within the user, and equal scores share their mean rank. Twice a rank is a whole number, so this is exact. With
    weights, a pair (p, n) counts w_p w_n: AUC_u = sum over p of w_p (weight below p + half of that tied) / (W_P W_N).
    """
    scores, positive = _scores_and_labels(scores, labels)
    users = np.asarray(users)
    if users.shape != scores.shape:
        raise InputError(f"users of shape {users.shape} and scores {scores.shape}: pass one user row per pair")
    size = int(users.max(initial=-1)) + 1 if n_users is None else n_users
    order = _by_user_and_score(users, scores)
    users, scores, positive = users[order], scores[order], positive[order]
    starts = np.ones(len(users), dtype=bool)  # where a run of one user's equal scores begins
    starts[1:] = (users[1:] != users[:-1]) | (scores[1:] != scores[:-1])
    first = np.flatnonzero(starts)
    if weights is not None:
        return _weighted_by_user(users, positive, np.asarray(weights, np.float64)[order], first, size)
    last = np.append(first[1:], len(users)) - 1
    before = np.zeros(size, dtype=np.int64)  # pairs of smaller users
    before[1:] = np.cumsum(np.bincount(users, minlength=size))[:-1]
    twice = np.repeat(first + last + 2, last - first + 1) - 2 * before[users]
    n = np.bincount(users, minlength=size)
    P = np.bincount(users, weights=positive, minlength=size).astype(np.int64)
    ranks = np.bincount(users, weights=np.where(positive, twice, 0), minlength=size).astype(np.int64)
    both = P * (n - P)
    return np.where(both > 0, (ranks - P * (P + 1)) / np.where(both > 0, 2 * both, 1), np.nan)


def _weighted_by_user(
    users: np.ndarray, positive: np.ndarray, weights: np.ndarray, first: np.ndarray, size: int
) -> np.ndarray:
    """The weighted AUC of every user, from pairs sorted by user and score; `first` are the starts of equal scores."""
    if not len(users):
        return np.full(size, np.nan)
    won, lost = (np.add.reduceat(np.where(positive == own, weights, 0.0), first) for own in (True, False))
    of_run = users[first]
    W_P, W_N = (np.bincount(of_run, each, size) for each in (won, lost))
    before = np.concatenate([[0.0], np.cumsum(W_N)[:-1]])  # negatives of smaller users
    below = np.cumsum(lost) - lost - before[of_run]
    both = W_P * W_N
    return np.bincount(of_run, won * (below + lost / 2), size) / np.where(both > 0, both, np.nan)


def _by_user_and_score(users: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The order that sorts by user, then score; for float32 by one sort of integers that pack user and score."""
    if scores.dtype != np.float32 or len(users) == 0 or users.max() >= 1 << 31:
        return np.lexsort((scores, users))
    bits = (scores + np.float32(0.0)).view(np.int32).astype(np.int64)  # the sum turns -0.0 into 0.0, its tie
    ordered = bits ^ ((bits >> 63) & 0x7FFFFFFF)  # below zero, floats fall as their bits grow
    return np.argsort((users.astype(np.int64) << 32) + ordered)


@njit
def _split(scores, positive, positives, negatives):
    """Split scores by class without a branch (labels are unpredictable); each array has one spare element."""
    n_positives = 0
    for k in range(len(scores)):
        positives[n_positives] = scores[k]
        negatives[k - n_positives] = scores[k]
        n_positives += positive[k]


@njit
def _twice_won(positives, negatives):
    """2 for each (positive, negative) pair in the right order, 1 for each tie; both arrays are sorted."""
    n = len(negatives)
    below = up_to = won = 0
    for k in range(len(positives)):
        while below < n and negatives[below] < positives[k]:
            below += 1
        if up_to < below:
            up_to = below
        while up_to < n and negatives[up_to] <= positives[k]:
            up_to += 1
        won += below + up_to
    return won


def ndcg(hits: Any, n_positives: Any, cut: int = 50, weights: ListWeights | None = None) -> np.ndarray:
    """nDCG@cut per user with binary gain: DCG = sum over ranks j <= cut of hit_j / log2(j + 1).

    The ideal list starts with min(cut, positives) hits. A user without positives gets nan. With weights, the gain of a
    hit is its weight, DCG = sum of w_j hit_j / log2(j + 1), and the ideal list starts with the heaviest positives.
    """
    hits, n_positives = _checked(hits, n_positives)
    cut = whole("cut", cut)
    discount = 1 / np.log2(2 + np.arange(cut))
    if weights is not None:
        best = weights.positives[:, :cut]
        ideal = (best * discount[: best.shape[1]]).sum(axis=1)
        gains = (_hit_weights(hits, weights)[:, :cut] * discount[: min(cut, hits.shape[1])]).sum(axis=1)
        return np.asarray(gains / np.where(ideal > 0, ideal, np.nan))
    ideal = np.concatenate([[np.nan], np.cumsum(discount)])[np.minimum(n_positives, cut)]
    top = hits[:, :cut]
    # Not a matrix product: BLAS may add in another order for a block of another size.
    return np.where(top, discount[: top.shape[1]], 0.0).sum(axis=1) / ideal


def precision(hits: Any, n_positives: Any, k: int, weights: ListWeights | None = None) -> np.ndarray:
    """P@K per user: hits among the first K, over K (even where fewer than K items can be listed).

    With weights, a hit counts its weight over the mean weight of the user's positives.
    """
    hits, n_positives = _checked(hits, n_positives)
    if weights is not None:
        mean = weights.positives.sum(axis=1) / np.maximum(n_positives, 1)
        return _hit_weights(hits, weights)[:, : whole("k", k)].sum(axis=1) / np.where(mean > 0, mean, 1.0) / float(k)
    return hits[:, : whole("k", k)].sum(axis=1) / float(k)


def recall(hits: Any, n_positives: Any, k: int, weights: ListWeights | None = None) -> np.ndarray:
    """R@K per user: hits among the first K, over all the user's positives; nan without positives.

    With weights, both are sums of weights.
    """
    hits, n_positives = _checked(hits, n_positives)
    if weights is not None:
        total = weights.positives.sum(axis=1)
        return _hit_weights(hits, weights)[:, : whole("k", k)].sum(axis=1) / np.where(total > 0, total, np.nan)
    return hits[:, : whole("k", k)].sum(axis=1) / np.where(n_positives > 0, n_positives, np.nan)


def _hit_weights(hits: np.ndarray, weights: ListWeights) -> np.ndarray:
    """The weight of the hit at every rank, 0 at misses."""
    if weights.ranks.shape != hits.shape or len(weights.positives) != len(hits):
        raise InputError(f"weights {weights.ranks.shape} and hits {hits.shape}: pass a weight for each rank")
    return np.where(hits, weights.ranks, 0.0)


def user_weights(of: str, labels: np.ndarray, users: np.ndarray, n_users: int, weights: np.ndarray) -> np.ndarray:
    """The weight of every user in a mean over users, for metrics `of` "lists", "candidates" or "users".

    It is the mean weight of the user's positives, times that of her negatives if the metric (`user_auc`) rests on both:
    1 for everyone if all pairs weigh 1. nan for users without such pairs.
    """
    positive, found = np.asarray(labels) > 0, np.ones(n_users)
    for own in (positive, ~positive) if of == "users" else (positive,):
        n, total = np.bincount(users[own], minlength=n_users), np.bincount(users[own], weights[own], n_users)
        found *= total / np.where(n > 0, n, np.nan)
    return found


def percentile(below: Any, tied: Any, others: Any) -> np.ndarray:
    """The share of a user's other candidates that score lower than an item that she liked; a tie counts one half.

    It is her AUC with all other candidates instead of those that she disliked. One judged item is enough, while user
    AUC needs both labels. Under uniform traffic the mean over users estimates how high liked items rank; one half is
    chance. nan where there is no other candidate.
    """
    below, tied, others = (np.asarray(each, dtype=np.float64) for each in (below, tied, others))
    return (below + tied / 2) / np.where(others > 0, others, np.nan)


@njit
def count_below(scores, barred, rows, items, below, tied):
    """For each pair (row, item), count the other items of the row that are not barred and score lower, or equal."""
    for n in range(len(rows)):
        row, item = rows[n], items[n]
        own = scores[row, item]
        lower = equal = 0
        for j in range(scores.shape[1]):
            if not barred[row, j] and j != item:
                lower += scores[row, j] < own
                equal += scores[row, j] == own
        below[n], tied[n] = lower, equal


def liked(weights: Any, liked: Any, judged: Any) -> float:
    """liked@K: of the recommended items that the randomized log judged, the share that was liked.

    sum w_u L_u / sum w_u J_u over users: of user u's first K items J_u were judged and L_u of these liked. Under
    uniform traffic each item is judged with probability 1 / w_u, so this estimates the share of liked items in the
    lists, with equal weight for every user. Where the log has propensities, J_u and L_u are sums of the pairs' weights.
    nan where nothing was judged.
    """
    weights, liked, judged = (np.asarray(each, dtype=np.float64) for each in (weights, liked, judged))
    total = float((weights * judged).sum())
    return float((weights * liked).sum()) / total if total else float("nan")


def personal(scores: Any) -> float:
    """The share of the scores' variance within users that differs between users, from (users, items) scores.

    s_ui - mean_i s_ui = b_i + r_ui with b_i the mean over users: var(r) / (var(b) + var(r)). At 0 every user gets the
    same ranking, as when a model's factors have vanished and only its biases are left.
    """
    centred = np.asarray(scores, dtype=np.float64)
    centred = centred / max(float(np.abs(centred).max()), np.finfo(np.float64).tiny)  # large scores would overflow
    centred -= centred.mean(axis=1, keepdims=True)
    shared = centred.mean(axis=0)
    own, common = float((centred - shared).var()), float(shared.var())
    return own / (own + common) if own + common > 0 else 0.0


def personal_share(scorer: Any, data: Partition) -> float:
    """`personal` of a model's scores on a grid of at most 64 of S_c's users and 64 of its items, evenly spaced."""
    sides = map(np.flatnonzero, data.biased_counts[:2])
    users, items = (side[:: -(-len(side) // GRID)] for side in sides)
    rows, columns = np.broadcast_arrays(users[:, None], items[None, :])
    return personal(scorer.score_pairs(rows.ravel(), columns.ravel()).reshape(rows.shape))


def _checked(hits: Any, n_positives: Any) -> tuple[np.ndarray, np.ndarray]:
    hits, n_positives = np.asarray(hits), np.asarray(n_positives)
    if hits.ndim != 2 or n_positives.shape != hits.shape[:1]:
        raise InputError(f"hits {hits.shape} and n_positives {n_positives.shape}: pass (users, L) and (users,)")
    return hits, n_positives


class Metric(NamedTuple):
    """How a metric is computed and what it is called."""

    function: Callable[..., Any]
    label: str  # its name in tables, with {k} for its K and {cut} for the length of its list
    of: str  # "pairs": f(scores, labels) -> number; "lists": f(hits, n_positives, cut) -> number per user;
    # "users": f(scores, labels, users, n_users) -> number per user, nan where it does not exist;
    # "candidates": f(below, tied, others) -> number per liked item, which are averaged by user;
    # "judged": f(weights, liked, judged) -> number; "probabilities": f(probabilities, labels) -> number, where a model
    # gives probabilities
    at_k: bool = False  # one for each K asked for: f(hits, n_positives, k)
    low_is_good: bool = False


METRICS: dict[str, Metric] = {
    "auc": Metric(auc, "AUC", "pairs"),
    "user_auc": Metric(user_auc, "user AUC", "users"),
    "percentile": Metric(percentile, "percentile", "candidates"),
    "ndcg": Metric(ndcg, "nDCG@{cut}", "lists"),
    "p": Metric(precision, "P@{k}", "lists", at_k=True),
    "r": Metric(recall, "R@{k}", "lists", at_k=True),
    "liked": Metric(liked, "liked@{k}", "judged", at_k=True),
    "log_loss": Metric(log_loss, "log-loss", "probabilities", low_is_good=True),
    "brier": Metric(brier, "Brier", "probabilities", low_is_good=True),
    "ece": Metric(expected_calibration_error, "ECE", "probabilities", low_is_good=True),
}


def metric_names(ks: Sequence[int], of: str | None = None) -> list[str]:
    """The names of all metrics, or of those `of` pairs or lists: "p" at K = 5 is "p@5"."""
    listed: list[str] = []
    for name, metric in METRICS.items():
        if of is None or metric.of == of:
            listed += [f"{name}@{k}" for k in ks] if metric.at_k else [name]
    return listed


def metric_named(name: str) -> tuple[Metric, int | None]:
    """The metric that a name such as "auc" or "p@5" stands for, and its K."""
    base, _, k = name.partition("@")
    metric = METRICS.get(base)
    if metric is None or metric.at_k != bool(k) or (k and not k.isdecimal()):
        known = ", ".join(f"{each}@K" if m.at_k else each for each, m in METRICS.items())
        raise InputError(f"metric {name!r} is unknown: choose one of {known}")
    return metric, int(k) if k else None


def is_name(name: str) -> bool:
    """Whether a name such as "auc" or "p@5" stands for a registered metric."""
    base, at, k = name.partition("@")
    return base in METRICS and METRICS[base].at_k == bool(at) and (not at or k.isdecimal())


def metric_label(name: str, cut: int | None = None) -> str:
    """The name of a metric in tables; without `cut` it omits the length of the list."""
    metric, k = metric_named(name)
    text = metric.label if cut is not None else metric.label.replace("@{cut}", "")
    return text.format(k=k, cut=cut)
