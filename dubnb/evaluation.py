"""`dubnb.evaluate`: metrics of any scores on a randomized set, by one of two protocols.

Users are scored in blocks, and only those that count, so memory is O(block x items) for any number of users.

`top_k` finds the k largest scores of each row, with ties always broken the same way.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check, _progress, metrics, stats
from dubnb._check import InputError
from dubnb._jit import njit, one_blas_thread
from dubnb._random import generator
from dubnb.backbones.protocol import Scorer
from dubnb.choice import UserInfluence, auc_influence, mean_influence
from dubnb.data.chances import judged_chances
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.data.pattern import Pattern, row_pointers, union
from dubnb.metrics import auc, ndcg

if TYPE_CHECKING:
    import pandas as pd

    from dubnb.data.simulate import Truth

    ScoreFunction = Callable[[np.ndarray, np.ndarray], Any]


BLOCK_PAIRS = 1 << 23  # scores of a block: 32 MB in float32
CALL_PAIRS = 1 << 18  # pairs per call of a scoring function
TRUTH_PAIRS = 4_000_000  # with more pairs, the truth is compared on a fixed sample of users
TRUTH_CUT = 50
COMPARED = ("auc", "user_auc", "percentile", "ndcg")  # metrics that are compared with popularity's
LEAST_JUDGED = 5  # recommended pairs: with fewer, liked@K is nan


class ShownLists(NamedTuple):
    """The items that some users would be shown: the top of all candidates that are in no log except the judged part."""

    users: np.ndarray  # rows
    items: np.ndarray  # (users, K) item rows, best first; -1 where the list has ended
    judged: np.ndarray  # (users, K) bool: the part has this pair
    liked: np.ndarray  # (users, K) bool: with a positive label
    weights: np.ndarray | None = None  # (users, K) 1 / c_ui of the judged pairs, else 0; None: without propensities


class Ranked(NamedTuple):
    """The top of some users' lists."""

    users: np.ndarray  # rows
    hits: np.ndarray  # (users, L) bool, in rank order
    n_positives: np.ndarray  # all the user's positives, including those not listed
    top: np.ndarray | None = None  # (users, L) item rows in rank order; None if not all candidates are ranked
    shown: ShownLists | None = None
    weights: metrics.ListWeights | None = None


class JudgedUsers(NamedTuple):
    """Every user with a judged pair in the part, and the metrics of her ranking."""

    users: np.ndarray  # rows
    user_auc: np.ndarray  # float64, nan for users without both labels
    percentile: np.ndarray  # float64, nan for users without a positive, and where there are no lists of all candidates
    weights: np.ndarray  # w_u = candidates / pairs of the part: 1 / probability that a candidate was judged; with
    # propensities 1, and L_u and J_u are float64 sums of 1 / c_ui, in units of effective pairs
    ks: tuple[int, ...]  # list lengths; empty where there are no lists of all candidates (protocol test-items)
    liked: np.ndarray  # (len(ks), users) int64: L_u, liked among the judged
    judged: np.ndarray  # (len(ks), users) int64: J_u, judged among the first k items

    def counts(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(liked, judged) of the lists of k items."""
        at = self.ks.index(k)
        return self.liked[at], self.judged[at]

    def frame(self, user_ids: np.ndarray) -> pd.DataFrame:
        """A row per user: user, user_auc, percentile, weight, and judged@K and liked@K for each K."""
        import pandas as pd

        columns = {"user_auc": self.user_auc, "percentile": self.percentile, "weight": self.weights}
        for k in self.ks:
            columns[f"liked@{k}"], columns[f"judged@{k}"] = self.counts(k)
        return pd.DataFrame({"user": user_ids[self.users], **columns})


class Protocol(NamedTuple):
    """How lists are made."""

    # (scorer, data, part, scores of its pairs, depth, length of shown lists)
    ranked: Callable[[_RowScorer, Partition, str, np.ndarray, int, int], Iterator[Ranked]]
    cut: int  # length of nDCG's list
    shows: bool = False  # whether lists hold all candidates, so that liked@K can be estimated


class Listing(NamedTuple):
    """Lists to make for the users that the metrics of lists count: their length, and the pairs they must not hold."""

    length: int
    excluded: Pattern


class Judgement(NamedTuple):
    """The result of judging scores on a part, in rows of the Partition."""

    result: dict[str, Any]  # every metric
    users: np.ndarray  # rows of the users that the list metrics count
    values: dict[str, np.ndarray]  # metric -> value for each of them
    judged: JudgedUsers
    scores: np.ndarray  # raw scores of all pairs of the part, in the order of triplets(part)
    lists: np.ndarray | None  # (users, length) item rows of the Listing, best first; -1 where a list has ended


class CalibratedScorer:
    """A scorer together with the function that turns its scores into probabilities.

    With `cluster`, see `_dask.tasks`, workers rank blocks of users. They call source[0](*source[1:]) for the scorer.
    """

    source: tuple[Any, ...] = ()
    cluster: Any = None

    def __init__(self, scorer: Scorer, probabilities: Callable[[np.ndarray], np.ndarray]):
        self.score_pairs, self.score_rows, self.probabilities = scorer.score_pairs, scorer.score_rows, probabilities


@one_blas_thread()  # the same bits, and so the same lists, on any number of cores
def evaluate(
    score: Scorer | ScoreFunction,
    data: Partition,
    protocol: str = "full-ranking",
    ks: Sequence[int] = (5, 10),
    *,
    part: str = "S_te",
    truth: bool | None = None,
    per_user: bool = False,
    quiet: bool = True,
) -> dict[str, Any]:
    """Evaluate any recommender on the randomized log, by the same rules as dubnb's own models.

    Use it to compare today's system, or a model from another library, with dubnb's models on one log.

    Returns AUC, ranking metrics and estimates of how many recommended items are liked. The result names its protocol:
    numbers of two protocols cannot be compared. Pairs that the biased log has too (`Partition.overlap`) are neither
    candidates nor judged; only "auc_with_overlap" covers all pairs of the part.

    Parameters
    ----------
    score : function or Scorer
        A function (users, items) -> finite scores on 1-d arrays of *original* ids, or an object with
        `score_pairs(user_rows, item_rows)` and `score_rows(user_rows)` -> (len, n_items) on row numbers. If it also
        has `probabilities(scores)`, the result holds "log_loss", "brier" and "ece" (see `calibration`).
    data : Partition
        The logs.
    protocol : {"full-ranking", "test-items"}
        "full-ranking" lists all items that the user does not have in the biased log (nDCG@50). It counts users with a
        positive in the part and a pair in S_c; in a user bucket, all users with a positive. "test-items" lists the
        user's own items of the part, for users with a positive (nDCG@5).
    ks : sequence of int
        K of P@K, R@K and liked@K.
    part : {"S_te", "S_va", "S_t"}
        The randomized set to judge on.
    truth : bool, optional
        Whether to compare with the truth; by default where it is known.
    per_user : bool
        Whether to add two DataFrames. "per_user" has a row for each user that the list metrics count. "judged_users"
        has a row for each user of the part: user_auc, percentile, weight (w_u), and for each K how many of the first K
        items were judged and liked.
    quiet : bool
        Whether to hide the progress bar.

    Returns
    -------
    dict
        - "auc" is pooled over all pairs, "user_auc" is the mean of every user's own AUC; ties count one half.
        - "percentile" (full-ranking): for an item that a user liked, the share of her other candidates that score
          lower. It is a mean over users with a positive. Candidates are those of liked@K.
        - "ndcg", "p@K" and "r@K" are means over users; equal scores rank by item row. P@K counts only hits that
          happen to be in the part.
        - "liked@K" (full-ranking): of the recommended items that the part judged, the share that was liked. If traffic
          was uniform, it estimates the share of liked items in a list, over all users of the part. These lists hold
          nothing from S_c, the overlap or the other two randomized parts. "liked@K_low" and "liked@K_high" are a 95 %
          interval clustered by user. "judged@K" is the number of judged pairs; below 5 the share is nan.
        - Where the randomized log has propensities, all of these weigh its pairs by 1 / propensity (see `metrics`).
          But liked@K weighs them by 1 / c_ui, with the chance c_ui that the part judges a candidate (see
          `dubnb.data.chances`).
          "judged@K" is the effective number of judged pairs, and "effective_pairs" that of the part.
        - "personal" is the share of the ranking that differs between users, see `metrics.personal`.
        - "popularity_auc" and so on are those of ranking by the positives in S_c: also user_auc, percentile, ndcg and
          liked@K. A warning is issued for results below them, except for liked@K.
        - "truth_auc" and "truth_ndcg" (@50), on simulated data, compare with y^t on the pairs outside the biased log
          and S_t of "truth_users" users: all, or a fixed sample beyond 4,000,000 pairs. "truth_liked@K" is the true
          share of liked items in the lists of liked@K.

    Examples
    --------
    >>> data = dubnb.load_dataset("simulated")
    >>> model = dubnb.Base(epochs=5).fit(data)
    >>> result = dubnb.evaluate(model.decision_function, data)
    >>> 0.5 < result["auc"] < 1
    True
    """
    ks = tuple(_check.whole("K", k) for k in ks)
    if not ks or len(set(ks)) < len(ks):
        raise InputError(f"ks={ks} must hold at least one K and none twice")
    found = judge(score, data, protocol, ks, part=part, truth=truth, quiet=quiet)
    _warn_of_metrics(found.result, _popularity(data, protocol, part, ks), part)
    if not per_user:
        return found.result
    import pandas as pd

    ids = data.user_ids.values
    rows = pd.DataFrame({"user": ids[found.users], **found.values})
    return found.result | {"per_user": rows, "judged_users": found.judged.frame(ids)}


@one_blas_thread()
def judge(
    score: Scorer | ScoreFunction,
    data: Partition,
    protocol: str = "full-ranking",
    ks: tuple[int, ...] = (5, 10),
    *,
    part: str = "S_te",
    truth: bool | None = None,
    quiet: bool = True,
    listing: Listing | None = None,
) -> Judgement:
    """`evaluate` without warnings and frames: metrics, values per user, scores and (with `listing`) lists, by row."""
    scorer = scorer_of(score, data)
    if truth and data.truth is None:
        raise InputError("truth=True needs simulated data: this data's true preferences are unknown; leave truth out")
    known = None if truth is False else data.truth
    found = _judge(scorer, data, protocol, ks, part, quiet, known, listing)
    of_popularity = _popularity(data, protocol, part, ks, scorer.cluster)
    result = found.result
    result |= {"personal": metrics.personal_share(scorer, data), "protocol": protocol}
    compared = [*COMPARED, *metrics.metric_names(ks, of="judged")]
    result |= {f"popularity_{name}": of_popularity[name] for name in compared if name in of_popularity}
    if known is not None:
        result |= _truth_metrics(scorer, data, known)
    return found


def _warn_of_metrics(result: Mapping[str, Any], of_popularity: Mapping[str, Any], part: str) -> None:
    """Warn of metrics that are nan or fall below popularity's."""
    apart = ("popularity_", "liked@")
    undefined = [name for name, value in result.items() if value != value and not name.startswith(apart)]
    if undefined:
        warnings.warn(f"{', '.join(undefined)} are nan: {part} lacks a class or has no user that counts", stacklevel=4)
    few = [name for name, value in result.items() if name.startswith("judged@") and value < LEAST_JUDGED]
    if few:
        names = ", ".join(f"{name.replace('judged', 'liked')} is nan ({result[name]} judged)" for name in few)
        warnings.warn(
            f"{names}: {part} must judge at least {LEAST_JUDGED} of the recommended pairs; log more random traffic",
            stacklevel=4,
        )
    cut = PROTOCOLS[result["protocol"]].cut
    worse = [
        f"{metrics.metric_label(name, cut)} {result[name]:.4f} is below popularity's {of_popularity[name]:.4f}"
        for name in COMPARED
        if name in result and result[name] < of_popularity[name]
    ]
    if worse:
        message = f"{' and '.join(worse)}: listing the most popular items would do better"
        warnings.warn(message, stacklevel=4)


def validation_ndcg(scorer: Scorer, data: Partition, part: str = "S_va") -> float:
    """The nDCG of full-ranking, for early stopping."""
    return float(_judge(_RowScorer(scorer, data.n_items), data, "full-ranking", (), part).result["ndcg"])


def validation_influences(scorer: Scorer, data: Partition) -> tuple[UserInfluence, UserInfluence]:
    """AUC and the nDCG of full-ranking on S_va with every user's influence, for choices between candidates."""
    users, items, labels, *_ = data.unseen("S_va")
    found = _judge(_RowScorer(scorer, data.n_items), data, "full-ranking", (), "S_va")
    scores, by_list = scorer.score_pairs(users, items), weights_of_users(data, "S_va", "lists")
    return (
        auc_influence(scores, labels, users, data.n_users, data.judging_weights("S_va")),
        _influence_of_mean(found.values["ndcg"], found.users, by_list, data.n_users),
    )


def monitored_influences(scorer: Scorer, data: Partition, monitor: str) -> tuple[UserInfluence, ...]:
    """The metrics on S_va that choose between candidates: AUC and nDCG with monitor "auc", else the metric itself."""
    if monitor in ("auc", "ndcg"):
        return validation_influences(scorer, data)[0 if monitor == "auc" else 1 :]
    if monitor == "user_auc":
        users, items, labels, *_ = data.unseen("S_va")
        weights, scores = data.judging_weights("S_va"), scorer.score_pairs(users, items)
        values, of = metrics.user_auc(scores, labels, users, data.n_users, weights), "users"
    else:
        values, of = _percentiles(_RowScorer(scorer, data.n_items), data, "S_va"), "candidates"
    return (_influence_of_mean(values, np.arange(data.n_users), weights_of_users(data, "S_va", of), data.n_users),)


def _influence_of_mean(
    values: np.ndarray, users: np.ndarray, weights: np.ndarray | None, n_users: int
) -> UserInfluence:
    """The mean over the users whose value is not nan; `weights` has one for every user of the log."""
    own = np.isfinite(values)
    users = users[own]
    return mean_influence(values[own], users, n_users, None if weights is None else weights[users])


def mean_user_auc(scorer: Scorer, data: Partition) -> float:
    """The mean of users' own AUC on S_va, for early stopping."""
    users, items, labels, *_ = data.unseen("S_va")
    own = metrics.user_auc(scorer.score_pairs(users, items), labels, users, data.n_users, data.judging_weights("S_va"))
    return _nanmean(own, weights_of_users(data, "S_va", "users"))


def mean_percentile(scorer: Scorer, data: Partition) -> float:
    """The mean of users' percentiles on S_va, for early stopping."""
    return _nanmean(
        _percentiles(_RowScorer(scorer, data.n_items), data, "S_va"), weights_of_users(data, "S_va", "candidates")
    )


def weights_of_users(data: Partition, part: str, of: str) -> np.ndarray | None:
    """The weight of every user (row) in a mean over users, see `metrics.user_weights`; None if all are equal."""
    weights, feedback = data.judging_weights(part), data.unseen(part)
    if weights is None:
        return None
    return metrics.user_weights(of, feedback.labels, feedback.users, data.n_users, weights)


def _percentiles(scorer: _RowScorer, data: Partition, part: str) -> np.ndarray:
    """Each user's mean percentile of the items that she liked in a part; nan for users who liked none."""
    feedback, barred = data.unseen(part), data.not_candidates(part)
    positive = feedback.labels > 0
    users, items = feedback.users[positive], feedback.items[positive]
    n_liked = np.bincount(users, minlength=data.n_users)
    ends = np.cumsum(n_liked)

    def call(block: np.ndarray) -> tuple[Any, ...]:
        own = items[ends[block[0]] - n_liked[block[0]] : ends[block[-1]]]
        return block, barred.mask(block, data.n_items), np.repeat(np.arange(len(block)), n_liked[block]), own

    blocks = list(_user_blocks(np.flatnonzero(n_liked), data.n_items))
    counts = [np.zeros((2, 0), np.int64), *scorer.each(counted_block, LazyCalls(blocks, call))]
    below, tied = np.concatenate(counts, axis=1)
    others = data.n_items - barred.sizes()[users] - 1
    shares = metrics.percentile(below, tied, others)
    weights = data.judging_weights(part)
    if weights is not None:
        own_weights = weights[positive]
        total, n_liked = (np.bincount(users, w, data.n_users) for w in (own_weights * shares, own_weights))
    else:
        total = np.bincount(users, weights=shares, minlength=data.n_users)
    return total / np.where(n_liked > 0, n_liked, np.nan)


def counted_block(
    scorer: _RowScorer, users: np.ndarray, barred: np.ndarray, rows: np.ndarray, items: np.ndarray
) -> np.ndarray:
    """(below, tied) of each pair (users[row], item), see `metrics.count_below`."""
    counts = np.zeros((2, len(rows)), np.int64)
    metrics.count_below(scorer.score_rows(users), barred, rows, items, *counts)
    return counts


def _judge(
    scorer: _RowScorer,
    data: Partition,
    protocol: str,
    ks: Sequence[int],
    part: str,
    quiet: bool = True,
    truth: Truth | None = None,
    listing: Listing | None = None,
) -> Judgement:
    """Every metric that needs only the scores and the part."""
    how = PROTOCOLS[_check.choice("protocol", protocol, tuple(PROTOCOLS))]
    every, feedback = data.triplets(_check.choice("part", part, RANDOMIZED)), data.unseen(part)
    if not len(every.users):
        raise InputError(f"{part} is empty: there is nothing to evaluate on; load data with {part} or pass part=")
    if not len(feedback.users):
        raise InputError(f"the biased log has every pair of {part}: there is nothing to evaluate on; pass part=")
    with one_blas_thread():  # the same bits, and so the same lists, on any number of cores
        all_scores = scorer.score_pairs(every.users, every.items)
        pair_scores = all_scores[~data.in_both(part)]
        shown = max(ks, default=0) if how.shows else 0
        depth = max((how.cut, *ks, listing.length if listing else 0))
        blocks = how.ranked(scorer, data, part, pair_scores, depth, shown)
        blocks = blocks if quiet else _progress.bar(blocks, desc="evaluate", unit="block", quiet=False)
        users, values, lists, own_lists = _collect(blocks, how.cut, ks, scorer, listing)
        given = {"pairs": pair_scores}
        if hasattr(scorer.model, "probabilities"):
            given["probabilities"] = scorer.model.probabilities(pair_scores)
        own = _percentiles(scorer, data, part) if shown else np.full(data.n_users, np.nan)
    judged = _judged_users(data, part, pair_scores, own, lists, ks)
    result = _all_metrics(given, data, part, users, values, judged, ks)
    result["auc_with_overlap"] = result["auc"]
    if data.removed:
        importance = data.importance(part)
        result["auc_with_overlap"] = auc(
            all_scores, every.labels, None if importance is None else importance * every.weights
        )
    weights = data.judging_weights(part)
    if weights is not None:
        result["effective_pairs"] = float(weights.sum() ** 2 / (weights @ weights))
    result |= _liked_intervals(judged)
    if truth is not None and lists:
        result |= {f"truth_liked@{k}": _true_share(truth, lists, k) for k in judged.ks}
    return Judgement(result, users, values, judged, all_scores, own_lists)


def _judged_users(
    data: Partition,
    part: str,
    pair_scores: np.ndarray,
    percentiles: np.ndarray,
    lists: Sequence[ShownLists],
    ks: Sequence[int],
) -> JudgedUsers:
    """Every user of the part; `lists` hold the same users in the same order."""
    feedback = data.unseen(part)
    pairs = np.bincount(feedback.users, minlength=data.n_users)
    users = np.flatnonzero(pairs)
    weights = data.judging_weights(part)
    own = metrics.user_auc(pair_scores, feedback.labels, feedback.users, data.n_users, weights)[users]
    listed = tuple(ks) if lists else ()
    if weights is not None:
        liked, judged = _weighted_counts(lists, listed, len(users))
        return JudgedUsers(users, own, percentiles[users], np.ones(len(users)), listed, liked, judged)
    candidates = data.n_items - data.not_candidates(part).sizes()[users]
    liked, judged = np.zeros((2, len(listed), len(users)), dtype=np.int64)
    for at, k in enumerate(listed):
        liked[at], judged[at] = (
            np.concatenate([getattr(block, name)[:, :k].sum(axis=1) for block in lists]) for name in ("liked", "judged")
        )
    return JudgedUsers(users, own, percentiles[users], candidates / pairs[users], listed, liked, judged)


def _weighted_counts(lists: Sequence[ShownLists], ks: Sequence[int], n_users: int) -> tuple[np.ndarray, np.ndarray]:
    """(L, J), each (ks, users): sums of v = 1 / c_ui over the liked and over the judged pairs among the first k items.

    For each k they are scaled by sum v / sum v^2 over judged pairs: shares do not change, and sum J, which
    `stats.liked_share` takes as the number of pairs, is Kish's.
    """
    liked, judged = np.zeros((2, len(ks), n_users))
    v, hit, seen = (
        np.concatenate([np.asarray(getattr(block, name)) for block in lists]) if lists else np.zeros((n_users, 0))
        for name in ("weights", "liked", "judged")
    )
    for at, k in enumerate(ks):
        own = np.where(seen[:, :k], v[:, :k], 0.0)
        squares = float((own**2).sum())
        scale = float(own.sum()) / squares if squares else 1.0
        judged[at], liked[at] = scale * own.sum(axis=1), scale * np.where(hit[:, :k], own, 0.0).sum(axis=1)
    return liked, judged


def _liked_intervals(judged: JudgedUsers) -> dict[str, Any]:
    """Intervals of liked@K, and the number of judged pairs."""
    found: dict[str, Any] = {}
    for k in judged.ks:
        liked, pairs = judged.counts(k)
        low = high = float("nan")
        if pairs.sum() >= LEAST_JUDGED and len(judged.users) > 1:
            _, low, high, _ = stats.liked_share(judged.weights, liked, pairs)
        found |= {f"liked@{k}_low": low, f"liked@{k}_high": high, f"judged@{k}": int(pairs.sum())}
    return found


def _true_share(truth: Truth, lists: Sequence[ShownLists], k: int) -> float:
    """The share of the first k items that are truly liked."""
    liked = listed = 0
    for block in lists:
        top = block.items[:, :k]
        labels = truth.label(block.users[:, None], np.maximum(top, 0))
        liked += int((labels[top >= 0] > 0).sum())
        listed += int((top >= 0).sum())
    return liked / listed if listed else float("nan")


_by_popularity: weakref.WeakKeyDictionary[Partition, dict[tuple[Any, ...], dict[str, Any]]]
_by_popularity = weakref.WeakKeyDictionary()


def _popularity(data: Partition, protocol: str, part: str, ks: tuple[int, ...], cluster: Any = None) -> dict[str, Any]:
    """The metrics of ranking by popularity, computed once per log because sweeps judge many models on one."""
    known = _by_popularity.setdefault(data, {})
    if (protocol, part, ks) not in known:
        scorer = SameForAll(popularity(data).astype(np.float32), cluster)
        known[protocol, part, ks] = _judge(_RowScorer(scorer, data.n_items), data, protocol, ks, part).result
    return known[protocol, part, ks]


def popularity(data: Partition) -> np.ndarray:
    """The number of positives of every item in S_c."""
    return data.biased_counts.liked_of_items


def _all_metrics(
    given: Mapping[str, np.ndarray],
    data: Partition,
    part: str,
    users: np.ndarray,
    values: dict[str, np.ndarray],
    judged: JudgedUsers,
    ks: Sequence[int],
) -> dict[str, Any]:
    """Every metric whose input is given, in the registry's order; `users` are the rows of `values`."""
    feedback, weights = data.unseen(part), data.judging_weights(part)
    more = {} if weights is None else {"weights": weights}
    by_list, by_pair = (weights_of_users(data, part, of) for of in ("lists", "users"))
    summary = {}
    for name in metrics.metric_names(ks):
        metric, k = metrics.metric_named(name)
        if name in values:
            summary[name] = _nanmean(values[name], None if by_list is None else by_list[users])
        elif metric.of == "users":
            own = metric.function(given["pairs"], feedback.labels, feedback.users, data.n_users, **more)
            summary[name] = _nanmean(own, by_pair)
        elif metric.of == "candidates" and judged.ks:
            summary[name] = _nanmean(judged.percentile, None if by_list is None else by_list[judged.users])
        elif metric.of == "judged" and k in judged.ks:
            liked, pairs = judged.counts(k)
            enough = pairs.sum() >= LEAST_JUDGED
            summary[name] = float(metric.function(judged.weights, liked, pairs)) if enough else float("nan")
        elif metric.of in given:
            summary[name] = float(metric.function(given[metric.of], feedback.labels, **more))
    return summary


class _RowScorer:
    """Checked scores of an object that works on row numbers."""

    def __init__(self, model: Any, n_items: int):
        self.model, self.n_items = model, n_items

    def each(self, task: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """The results of task(self, *call) in the order of the calls; on a cluster if the model has one."""
        if self.cluster is None:
            return (task(self, *call) for call in calls)
        packed = LazyCalls(calls, lambda call: (task, self.model.source, self.n_items, *map(_packed, call)))
        return iter(self.cluster(run_block, packed))

    @property
    def cluster(self) -> Any:
        """The cluster that ranks, see `_dask.tasks`; an object of the user's has none, whatever its attributes."""
        return self.model.cluster if isinstance(self.model, CalibratedScorer | SameForAll) else None

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        calls = range(0, len(users), CALL_PAIRS)
        return np.concatenate([self._call(users[at : at + CALL_PAIRS], items[at : at + CALL_PAIRS]) for at in calls])

    def _call(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return _checked_scores(self.model.score_pairs(users, items), (len(users),))

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        return _checked_scores(self.model.score_rows(users), (len(users), self.n_items))

    def top_k(self, users: np.ndarray, k: int, excluded: np.ndarray) -> np.ndarray:
        """The first k items of the users' lists, see `top_k`; by the model itself where it can (on a GPU)."""
        if hasattr(self.model, "top_k"):
            return self.model.top_k(users, k, excluded)
        return top_k(self.score_rows(users), k, excluded)


class LazyCalls(Sequence[Any]):
    """The arguments of calls, each made when it is asked for; masks of a block take memory."""

    def __init__(self, of: Sequence[Any], make: Callable[[Any], Any]):
        self.of, self.make = of, make

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, number: Any) -> Any:
        return self.make(self.of[number])


class SameForAll:
    """A scorer that gives every user the same scores."""

    def __init__(self, scores: np.ndarray, cluster: Any = None):
        self.scores, self.cluster, self.source = scores, cluster, (SameForAll, scores)

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return np.asarray(self.scores[items])

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        return np.tile(self.scores, (len(users), 1))


def run_block(task: Callable[..., Any], source: tuple[Any, ...], n_items: int, *call: Any) -> Any:
    """A task of `_RowScorer.each` on a worker, which makes the scorer: Dask's scheduler need not see a model's file."""
    new_scorer, *arguments = source
    return task(_RowScorer(new_scorer(*arguments), n_items), *(_unpacked(each, n_items) for each in call))


class PackedMask(NamedTuple):
    """A bool per user and item in an eighth of the bytes, to be sent."""

    bits: np.ndarray


def _unpacked(value: Any, n_items: int) -> Any:
    return np.unpackbits(value.bits, axis=1, count=n_items).view(bool) if isinstance(value, PackedMask) else value


def _packed(value: Any) -> Any:
    is_mask = isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype == bool
    return PackedMask(np.packbits(value, axis=1)) if is_mask else value


class _FunctionScorer(_RowScorer):
    """Checked scores of a function of original ids."""

    def __init__(self, function: ScoreFunction, data: Partition):
        super().__init__(function, data.n_items)
        self.user_ids, self.item_ids = data.user_ids.values, data.item_ids.values

    def _call(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return _checked_scores(self.model(self.user_ids[users], self.item_ids[items]), (len(users),))

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        items = np.tile(np.arange(self.n_items, dtype=np.int32), len(users))
        return self.score_pairs(np.repeat(users, self.n_items), items).reshape(len(users), self.n_items)


def scorer_of(score: Any, data: Partition) -> _RowScorer:
    """Checked scores of a function of ids, or of an object that works on row numbers."""
    if hasattr(score, "score_pairs") and hasattr(score, "score_rows"):
        return _RowScorer(score, data.n_items)
    if callable(score):
        return _FunctionScorer(score, data)
    raise InputError(
        f"score is a {type(score).__name__}: pass a function (users, items) -> scores, such as model.decision_function"
    )


def _checked_scores(scores: Any, shape: tuple[int, ...]) -> np.ndarray:
    scores = np.asarray(scores)
    if scores.shape != shape or scores.dtype.kind not in "biuf":
        raise InputError(f"score returned {scores.dtype} of shape {scores.shape}: return real numbers of shape {shape}")
    finite = np.isfinite(scores)
    if not finite.all():
        bad = scores[~finite]
        raise InputError(
            f"score returned {bad[0]} ({len(bad)} of {scores.size} scores are not finite): did it diverge?"
        )
    return scores if scores.dtype in (np.float32, np.float64) else scores.astype(np.float64)


def _user_blocks(users: np.ndarray, n_items: int) -> Iterator[np.ndarray]:
    """Consecutive pieces of `users` whose scores fill BLOCK_PAIRS."""
    size = max(1, BLOCK_PAIRS // n_items)
    for start in range(0, len(users), size):
        yield users[start : start + size]


def _relevant_ranks(top: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    """(users, L) bool: is the item at each rank relevant? False where the list has ended."""
    return np.take_along_axis(relevant, top, axis=1) & (top >= 0)


def _full_ranking(
    scorer: _RowScorer, data: Partition, part: str, pair_scores: np.ndarray, depth: int, shown: int
) -> Iterator[Ranked]:
    """Rank all items outside the user's biased log; a shown list holds the first `shown` that no other part has."""
    feedback = data.unseen(part)
    every = Pattern.of(feedback.users, feedback.items, data.n_users)
    liked = feedback.labels > 0
    positives = Pattern.of(feedback.users[liked], feedback.items[liked], data.n_users)
    n_positives = positives.sizes()
    counted = (n_positives > 0) & ((data.biased_counts.users > 0) | data.bucket)
    barred = data.not_candidates()
    others = data.not_candidates(part) if shown else None
    weights = data.judging_weights(part)
    inverse = 1 / judged_chances(data, part) if shown and weights is not None else None
    blocks = list(_user_blocks(np.flatnonzero(counted | ((every.sizes() > 0) & (shown > 0))), data.n_items))

    def call(users: np.ndarray) -> tuple[Any, ...]:
        masks = (None if each is None else each.mask(users, data.n_items) for each in (barred, others))
        return users, depth, shown, *masks

    for users, (top, items) in zip(blocks, scorer.each(ranked_block, LazyCalls(blocks, call)), strict=True):
        relevant = positives.mask(users, data.n_items)
        own = counted[users]
        ranked = Ranked(users[own], _relevant_ranks(top[own], relevant[own]), n_positives[users[own]], top[own])
        if items is not None:
            judged = _relevant_ranks(items, every.mask(users, data.n_items))
            ranked = ranked._replace(shown=ShownLists(users, items, judged, _relevant_ranks(items, relevant)))
        yield ranked if weights is None else _weighed(ranked, every, positives, weights[liked], inverse)


def ranked_block(
    scorer: _RowScorer, users: np.ndarray, depth: int, shown: int, barred: np.ndarray, others: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """The first `depth` items of some users, and their shown lists if `others`, the pairs of other parts, are given."""
    top = scorer.top_k(users, depth, barred)
    return top, None if others is None else _without(scorer, users, top, others, shown)


def _weighed(
    ranked: Ranked, every: Pattern, positives: Pattern, weights: np.ndarray, inverse: np.ndarray | None
) -> Ranked:
    """A block with the weights of its positives, and with 1 / c_ui of the judged pairs of its shown lists."""

    def at_ranks(pattern: Pattern, own: np.ndarray, users: np.ndarray, top: np.ndarray) -> np.ndarray:
        rows = np.repeat(users, top.shape[1])
        places = pattern.find(rows, np.maximum(top, 0).ravel())
        found = np.where((places >= 0) & (top.ravel() >= 0), np.append(own, 0.0)[places], 0.0)
        return found.reshape(top.shape)

    assert ranked.top is not None
    ranks = at_ranks(positives, weights, ranked.users, ranked.top)
    done = ranked._replace(weights=metrics.ListWeights(ranks, _heaviest(positives, weights, ranked.users)))
    if ranked.shown is None or inverse is None:
        return done
    shown = ranked.shown
    return done._replace(shown=shown._replace(weights=at_ranks(every, inverse, shown.users, shown.items)))


def _heaviest(positives: Pattern, weights: np.ndarray, users: np.ndarray) -> np.ndarray:
    """(users, M) weights of each user's positives, the heaviest first, then 0."""
    sizes, starts = positives.sizes()[users], positives.indptr[users]
    found = np.zeros((len(users), int(sizes.max(initial=1))))
    row = np.repeat(np.arange(len(users)), sizes)
    column = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    found[row, column] = weights[np.repeat(starts, sizes) + column]
    return -np.sort(-found, axis=1)


def _without(scorer: _RowScorer, users: np.ndarray, top: np.ndarray, excluded: np.ndarray, k: int) -> np.ndarray:
    """The first k items of the lists `top` that are not excluded; lists that are too short are ranked again."""
    kept = (top >= 0) & ~np.take_along_axis(excluded, top, axis=1)
    k = min(k, excluded.shape[1])
    order = np.argsort(~kept, axis=1, kind="stable")[:, :k]
    items = np.where(np.take_along_axis(kept, order, axis=1), np.take_along_axis(top, order, axis=1), -1)
    short = (kept.sum(axis=1) < k) & (top[:, -1] >= 0)  # too few items are left, and the ranking goes on
    if short.any():
        items[short] = scorer.top_k(users[short], k, excluded[short])
    return items


def _test_items(
    scorer: _RowScorer, data: Partition, part: str, pair_scores: np.ndarray, depth: int, shown: int
) -> Iterator[Ranked]:
    """Rank the user's own items of the part: the pairs' scores, sorted within each user."""
    users, items, labels, *_ = data.unseen(part)
    indptr = row_pointers(users, data.n_users)
    order = np.lexsort((-pair_scores, users))  # stable: pairs are in item order, so ties go to the smaller item
    ranks = np.arange(len(users)) - indptr[users]
    listed = ranks < depth
    n_positives = np.bincount(users[labels > 0], minlength=data.n_users)
    counted = np.flatnonzero(n_positives)
    listed &= n_positives[users] > 0
    hits = np.zeros((len(counted), min(depth, int(np.diff(indptr).max()))), dtype=bool)
    hits[np.searchsorted(counted, users[listed]), ranks[listed]] = labels[order][listed] > 0
    weights, own = data.judging_weights(part), None
    if weights is not None:
        ranks_of = np.zeros(hits.shape)
        ranks_of[np.searchsorted(counted, users[listed]), ranks[listed]] = (weights * (labels > 0))[order][listed]
        positives = Pattern.of(users[labels > 0], items[labels > 0], data.n_users)
        own = metrics.ListWeights(ranks_of, _heaviest(positives, weights[labels > 0], counted))
    if len(counted):
        yield Ranked(counted, hits, n_positives[counted], weights=own)


PROTOCOLS = {"full-ranking": Protocol(_full_ranking, 50, shows=True), "test-items": Protocol(_test_items, 5)}


def _collect(
    blocks: Iterable[Ranked], cut: int, ks: Sequence[int], scorer: _RowScorer, listing: Listing | None
) -> tuple[np.ndarray, dict[str, np.ndarray], list[ShownLists], np.ndarray | None]:
    """User rows and {metric: value per user} over all blocks, the shown lists, and the lists of the Listing."""
    names = metrics.metric_names(ks, of="lists")
    users, columns, lists = [np.empty(0, dtype=np.int64)], [np.empty((len(names), 0))], []
    width = min(listing.length, scorer.n_items) if listing else 0
    own_lists = [np.empty((0, width), dtype=np.int64)]
    for block in blocks:
        values = []
        for name in names:
            metric, k = metrics.metric_named(name)
            more = {} if block.weights is None else {"weights": block.weights}
            values.append(metric.function(block.hits, block.n_positives, cut if k is None else k, **more))
        users.append(block.users)
        columns.append(np.array(values))
        if block.shown is not None:
            lists.append(block.shown)
        own_lists += _lists(block, scorer, listing) if listing else []
    values_by_name = dict(zip(names, np.concatenate(columns, axis=1), strict=True))
    return np.concatenate(users), values_by_name, lists, np.concatenate(own_lists) if listing else None


def _lists(block: Ranked, scorer: _RowScorer, listing: Listing) -> Iterator[np.ndarray]:
    """The block's lists without excluded pairs: from the ranking that is there, or a new one if there is none."""
    first = 0
    for users in _user_blocks(block.users, scorer.n_items):
        excluded = listing.excluded.mask(users, scorer.n_items)
        own = slice(first, first := first + len(users))
        if block.top is None:
            yield scorer.top_k(users, listing.length, excluded)
        else:
            yield _without(scorer, users, block.top[own], excluded, listing.length)


def _truth_metrics(scorer: Scorer, data: Partition, truth: Truth) -> dict[str, Any]:
    """AUC and nDCG against y^t over all pairs outside the biased log and S_t."""
    n = min(max(1, TRUTH_PAIRS // data.n_items), data.n_users)
    users = np.sort(generator(0, "truth-users").choice(data.n_users, n, replace=False))  # the same for every model
    had = union([data.logged, data.pattern("S_t")], data.n_items)
    scores_out, labels_out, gains = [], [], []
    for block in _user_blocks(users, data.n_items):
        scores, labels = scorer.score_rows(block), np.asarray(truth.label_rows(block))
        excluded = had.mask(block, data.n_items)
        relevant = (labels > 0) & ~excluded
        n_positives = relevant.sum(axis=1)
        hits = _relevant_ranks(top_k(scores, TRUTH_CUT, excluded), relevant)
        gains.append(ndcg(hits, n_positives, TRUTH_CUT)[n_positives > 0])
        scores_out.append(scores[~excluded])
        labels_out.append(labels[~excluded])
    return {
        "truth_auc": auc(np.concatenate(scores_out), np.concatenate(labels_out)),
        "truth_ndcg": _nanmean(np.concatenate(gains)),
        "truth_users": len(users),
    }


def _nanmean(values: np.ndarray, weights: np.ndarray | None = None) -> float:
    """The mean of the values that are not nan, by weight if weights are given."""
    if weights is not None:
        known = ~(np.isnan(values) | np.isnan(weights))
        return float(np.average(values[known], weights=weights[known])) if known.any() else float("nan")
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


# ---- top lists -------------------------------------------------------------------------------------------------------


TILE_PAIRS = 1 << 16  # sort keys of a tile: 0.5 MB, so that they are sorted inside the CPU's cache
EXCLUDED = -(2**63)  # below the sort key of every finite score


def top_k(scores: np.ndarray, k: int, excluded: np.ndarray | None = None) -> np.ndarray:
    """Items of the k largest scores per row, best first; -1 where a row has no candidate left.

    `excluded` is a bool array of the scores' shape: true where an item is not a candidate. Of equal scores the smaller
    item index comes first. The order-preserving int32 of the float32 score and the reversed item index are packed into
    one int64, which is distinct for every item. A partition of integers then finds the top and keeps ties in order.
    """
    bits = np.ascontiguousarray(_same_order_float32(scores)).view(np.int32)
    n_rows, n_items = bits.shape
    excluded = np.zeros(bits.shape, dtype=bool) if excluded is None else excluded
    k = min(_check.whole("k", k), n_items)
    top = np.empty((n_rows, k), dtype=np.int64)
    tile = max(1, TILE_PAIRS // max(1, n_items))
    keys = np.empty((min(tile, n_rows), n_items), dtype=np.int64)
    for start in range(0, n_rows, tile):
        rows = slice(start, min(start + tile, n_rows))
        packed = keys[: rows.stop - start]
        _pack(bits[rows], excluded[rows], packed)
        packed.partition(n_items - k, axis=1)
        best = np.sort(packed[:, n_items - k :], axis=1)[:, ::-1]
        top[rows] = np.where(best == EXCLUDED, -1, n_items - 1 - (best & 0xFFFFFFFF))
    return top


@njit
def _pack(bits, excluded, keys):
    """keys = order-preserving integer of the float32 score in the high half, reversed item index in the low."""
    n_rows, n_items = bits.shape
    for row in range(n_rows):
        for item in range(n_items):
            keys[row, item] = EXCLUDED if excluded[row, item] else sort_key(bits[row, item], item, n_items)


@njit(inline=True)
def sort_key(bits, item, n_items):
    """An integer that orders items as their scores do, equal scores by item; `bits` are those of a float32 score."""
    value = np.int64(bits)
    value = np.int64(0) if value == -(2**31) else value  # -0.0 ties with 0.0
    ordered = value ^ ((value >> np.int64(63)) & np.int64(0x7FFFFFFF))  # below zero, floats fall as their bits grow
    return (ordered << np.int64(32)) | np.int64(n_items - 1 - item)


def _same_order_float32(scores: np.ndarray) -> np.ndarray:
    """Float32 numbers with the rows' order and ties: the scores themselves where they fit, else their ranks."""
    if scores.dtype == np.float32:
        return scores
    with np.errstate(over="ignore"):
        single = scores.astype(np.float32)
    if (single == scores).all():
        return single
    order = np.argsort(scores, axis=1, kind="stable")
    ascending = np.take_along_axis(scores, order, axis=1)
    ranks = np.zeros(scores.shape, dtype=np.float32)  # whole numbers, exact up to 2^24 items
    np.cumsum(ascending[:, 1:] != ascending[:, :-1], axis=1, out=ranks[:, 1:])
    np.put_along_axis(single, order, ranks, axis=1)
    return single
