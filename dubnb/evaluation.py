"""Evaluation protocols. A result always carries the name of its protocol: numbers of two protocols do not compare.

Users are scored in blocks, and only those that count, so memory is O(block x items) however many users there are.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check, _progress, metrics, stats
from dubnb._check import InputError
from dubnb._jit import one_blas_thread
from dubnb._random import generator
from dubnb.backbones.extended import Extended
from dubnb.backbones.protocol import Scorer
from dubnb.data.partition import RANDOMIZED, Partition, Triplets
from dubnb.data.pattern import Pattern, row_pointers, union
from dubnb.metrics import auc, ndcg, personal
from dubnb.ranking import top_k

if TYPE_CHECKING:
    import pandas as pd

    from dubnb.data.truth import Truth

    ScoreFunction = Callable[[np.ndarray, np.ndarray], Any]

BLOCK_PAIRS = 1 << 23  # scores of a block: 32 MB in float32
CALL_PAIRS = 1 << 18  # pairs per call of a scoring function
TRUTH_PAIRS = 4_000_000  # beyond, the truth is compared on a fixed sample of users
TRUTH_CUT = 50
GRID = 64  # users, and items, whose scores tell how personal a ranking is
COMPARED = ("auc", "user_auc", "percentile", "ndcg")  # metrics that stand beside popularity's
LEAST_JUDGED = 5  # recommended pairs: with fewer, liked@K is nan
NOT_NUMBERS = ("protocol", "per_user", "judged_users")  # of a result


class Shown(NamedTuple):
    """The items that some users would be shown: the top of all candidates that are in no log but the judged part."""

    users: np.ndarray  # rows
    items: np.ndarray  # (users, K) item rows, best first; -1 where the list has ended
    judged: np.ndarray  # (users, K) bool: the part has this pair
    liked: np.ndarray  # (users, K) bool: with a positive label


class Ranked(NamedTuple):
    """The top of some users' lists."""

    users: np.ndarray  # rows
    hits: np.ndarray  # (users, L) bool, in rank order
    n_positives: np.ndarray  # all the user's positives, listed or not
    shown: Shown | None = None


class JudgedUsers(NamedTuple):
    """Every user with a pair in the part that the biased log does not have, and what the part says of her ranking."""

    users: np.ndarray  # rows
    user_auc: np.ndarray  # float64, nan for users without both labels
    percentile: np.ndarray  # float64, nan for users without a positive, and where there are no lists of all candidates
    weights: np.ndarray  # w_u = candidates / pairs of the part: one over the chance that a candidate was judged
    ks: tuple[int, ...]  # list lengths; none where there are no lists of all candidates (protocol test-items)
    liked: np.ndarray  # (len(ks), users) int64: L_u, liked among the judged
    judged: np.ndarray  # (len(ks), users) int64: J_u, judged among the first k items

    def counts(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(liked, judged) of the lists of k items."""
        place = self.ks.index(k)
        return self.liked[place], self.judged[place]

    def frame(self, user_ids: np.ndarray) -> pd.DataFrame:
        """A row per user: user, user_auc, percentile, weight, and judged@K and liked@K for each K."""
        import pandas as pd

        columns = {"user_auc": self.user_auc, "percentile": self.percentile, "weight": self.weights}
        for k in self.ks:
            columns[f"liked@{k}"], columns[f"judged@{k}"] = self.counts(k)
        return pd.DataFrame({"user": user_ids[self.users], **columns})

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, data: Partition) -> JudgedUsers:
        """From what `evaluate(per_user=True)` calls "judged_users"."""
        ks = tuple(int(name.removeprefix("judged@")) for name in frame if name.startswith("judged@"))
        liked, judged = (
            np.array([frame[f"{name}@{k}"] for k in ks], dtype=np.int64).reshape(len(ks), len(frame))
            for name in ("liked", "judged")
        )
        users = data.user_ids.find(frame["user"].to_numpy())
        user_auc, percentile, weights = (frame[name].to_numpy() for name in ("user_auc", "percentile", "weight"))
        return cls(users, user_auc, percentile, weights, ks, liked, judged)


class Protocol(NamedTuple):
    """How lists are made."""

    ranked: Callable[[_Rows, Partition, str, np.ndarray, int, int], Iterator[Ranked]]
    # (scorer, data, part, scores of its pairs, depth, length of what is shown)
    cut: int  # where nDCG's list ends
    shows: bool = False  # whether its lists are made of all candidates, so that liked@K can be estimated


class Judgement(NamedTuple):
    """What `_judge` finds."""

    result: dict[str, Any]  # every metric
    users: np.ndarray  # rows of the users that the metrics of lists count
    values: dict[str, np.ndarray]  # metric -> value for each of them
    judged: JudgedUsers


@one_blas_thread()  # the same scores to the bit, and so the same lists, on any number of cores
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
    """Judge raw scores on the randomized set `part`: {"auc", "user_auc", "ndcg", "p@5", ..., "liked@10", ...}.

    Pairs of the part that the biased log has too (`Partition.overlap`) are neither candidates nor judged. Only
    "auc_with_overlap" is over all pairs of the part.

    - "auc" is pooled over all pairs, "user_auc" is the mean of every user's own; ties count one half.
    - "percentile" (full-ranking): the share of a user's other candidates that score lower than an item that she liked,
      mean over users with a positive; candidates as in liked@K's lists.
    - "ndcg", "p@K" and "r@K" are means over users; equal scores rank by item row. P@K counts only hits that happen to
      be in the part.
    - "liked@K" (full-ranking): of the recommended items that the part judged, the share that was liked. It estimates
      the share of liked items in a list, over all users of the part alike, if traffic was uniform. These lists hold
      nothing that is in S_c, the overlap or the other two randomized parts. "liked@K_low" and "liked@K_high" are a 95 %
      interval clustered by user, "judged@K" is how many pairs were judged; below 5 the share is nan.
    - "personal" is the share of the ranking that is a user's own, see `metrics.personal`.
    - "popularity_auc", "popularity_user_auc", "popularity_percentile", "popularity_ndcg", "popularity_liked@K" are
      those of ranking by the positives in S_c; a result below (except for liked@K) is warned of.
    - "truth_auc" and "truth_ndcg" (@50), on simulated data, compare with y^t on the pairs outside the biased log and
      S_t of "truth_users" users: all, or a fixed sample beyond 4,000,000 pairs. "truth_liked@K" is the true share of
      liked items in the lists of liked@K.

    Parameters
    ----------
    score : function or Scorer
        A function (users, items) -> finite scores on 1-d arrays of *original* ids, or an object with
        `score_pairs(user_rows, item_rows)` and `score_rows(user_rows)` -> (len, n_items) on row numbers. If it has
        `probabilities(scores)` too, "log_loss", "brier" and "ece" are told (see `calibration`).
    data : Partition
        The logs.
    protocol : {"full-ranking", "test-items"}
        Lists of all items that the user does not have in the biased log, for users with a positive in the part and a
        pair in S_c (nDCG@50), or of the user's own items of the part, for users with a positive (nDCG@5).
    ks : sequence of int
        K of P@K, R@K and liked@K.
    part : {"S_te", "S_va", "S_t"}
        What is judged on.
    truth : bool, optional
        Whether to compare with the truth; by default where it is known.
    per_user : bool
        Whether to add two DataFrames: "per_user", a row for each user that the metrics of lists count, and
        "judged_users", a row for each user of the part with user_auc, percentile, weight (w_u), and for each K how many
        of the first K items were judged and liked.
    quiet : bool
        Whether to show no progress.
    """
    scorer = _scorer(score, data)
    if truth and data.truth is None:
        raise InputError("truth=True needs simulated data: this data's true preferences are unknown; leave truth out")
    ks = _checked_ks(ks)
    known = None if truth is False else data.truth
    found = _judge(scorer, data, protocol, ks, part, quiet, known)
    beside = _popularity(data, protocol, part, ks)
    result = found.result
    result |= {"personal": personal_share(scorer, some_pairs(data)), "protocol": protocol}
    compared = [*COMPARED, *metrics.names(ks, of="judged")]
    result |= {f"popularity_{name}": beside[name] for name in compared if name in beside}
    if known is not None:
        result |= _truth_metrics(scorer, data, known)
    _warn(result, beside, part)
    return result | (_per_user(data, found) if per_user else {})


def _warn(result: Mapping[str, Any], beside: Mapping[str, Any], part: str) -> None:
    """Of metrics that do not exist, or fall below popularity's."""
    apart = ("popularity_", "liked@")
    undefined = [name for name, value in result.items() if value != value and not name.startswith(apart)]
    if undefined:
        warnings.warn(f"{', '.join(undefined)} are nan: {part} lacks a class or has no user that counts", stacklevel=4)
    few = [name for name, value in result.items() if name.startswith("judged@") and value < LEAST_JUDGED]
    if few:
        told = ", ".join(f"{name.replace('judged', 'liked')} is nan ({result[name]} judged)" for name in few)
        warnings.warn(
            f"{told}: {part} must judge at least {LEAST_JUDGED} of the recommended pairs; log more random traffic",
            stacklevel=4,
        )
    below = _below(result, beside)
    if below:
        warnings.warn(below, stacklevel=4)


def _per_user(data: Partition, found: Judgement) -> dict[str, pd.DataFrame]:
    import pandas as pd

    ids = data.user_ids.values
    per_user = pd.DataFrame({"user": ids[found.users], **found.values})
    return {"per_user": per_user, "judged_users": found.judged.frame(ids)}


def validation_ndcg(scorer: Scorer, data: Partition, part: str = "S_va") -> float:
    """The nDCG of full-ranking alone, for early stopping."""
    return float(_judge(_Rows(scorer, data), data, "full-ranking", (), part).result["ndcg"])


def mean_user_auc(scorer: Scorer, data: Partition, part: str = "S_va") -> float:
    """The mean over users of their own AUC alone, for early stopping."""
    users, items, labels, *_ = data.unseen(part)
    return _mean(metrics.user_auc(scorer.score_pairs(users, items), labels, users))


def mean_percentile(scorer: Scorer, data: Partition, part: str = "S_va") -> float:
    """The mean over users of their percentile alone, for early stopping."""
    own = _percentiles(_Rows(scorer, data), data, part)
    return _mean(own[~np.isnan(own)])


def _percentiles(scorer: _Rows, data: Partition, part: str) -> np.ndarray:
    """Each user's mean percentile of the items that she liked in a part; nan where there is none."""
    feedback, barred = data.unseen(part), data.everything_but(part)
    positive = feedback.labels > 0
    users, items = feedback.users[positive], feedback.items[positive]
    n_liked = np.bincount(users, minlength=data.n_users)
    below, tied = np.zeros((2, len(users)), dtype=np.int64)
    first = 0
    for block in _blocks(np.flatnonzero(n_liked), data.n_items):
        own = slice(first, first := first + int(n_liked[block].sum()))
        rows = np.repeat(np.arange(len(block)), n_liked[block])
        mask = barred.mask(block, data.n_items)
        metrics.count_below(scorer.score_rows(block), mask, rows, items[own], below[own], tied[own])
    others = data.n_items - barred.sizes()[users] - 1
    shares = metrics.percentile(below, tied, others)
    total = np.bincount(users, weights=shares, minlength=data.n_users)
    return total / np.where(n_liked > 0, n_liked, np.nan)


def _judge(
    scorer: _Rows,
    data: Partition,
    protocol: str,
    ks: Sequence[int],
    part: str,
    quiet: bool = True,
    truth: Truth | None = None,
) -> Judgement:
    """Every metric, and what single users have of it."""
    how = PROTOCOLS[_check.choice("protocol", protocol, tuple(PROTOCOLS))]
    every, feedback = data.triplets(_check.choice("part", part, RANDOMIZED)), data.unseen(part)
    if not len(every.users):
        raise InputError(f"{part} is empty: there is nothing to evaluate on; load data with {part} or pass part=")
    if not len(feedback.users):
        raise InputError(f"the biased log has every pair of {part}: there is nothing to evaluate on; pass part=")
    with one_blas_thread():  # the same scores to the bit, and so the same lists, on any number of cores
        all_scores = scorer.score_pairs(every.users, every.items)
        pair_scores = all_scores[~data.in_both(part)]
        shown = max(ks, default=0) if how.shows else 0
        blocks = how.ranked(scorer, data, part, pair_scores, max((how.cut, *ks)), shown)
        users, values, lists = _collect(_shown(blocks, quiet), how.cut, ks)
        given = {"pairs": pair_scores}
        if hasattr(scorer.model, "probabilities"):
            given["probabilities"] = scorer.model.probabilities(pair_scores)
        own = _percentiles(scorer, data, part) if shown else np.full(data.n_users, np.nan)
    judged = _judged_users(data, part, pair_scores, own, lists, ks)
    result = _summary(given, feedback, values, judged, ks)
    result["auc_with_overlap"] = auc(all_scores, every.labels) if data.removed else result["auc"]
    result |= _shares(judged)
    if truth is not None and lists:
        result |= {f"truth_liked@{k}": _true_share(truth, lists, k) for k in judged.ks}
    return Judgement(result, users, values, judged)


def _judged_users(
    data: Partition,
    part: str,
    pair_scores: np.ndarray,
    percentiles: np.ndarray,
    lists: Sequence[Shown],
    ks: Sequence[int],
) -> JudgedUsers:
    """Every user of the part; those of `lists` are the same, in the same order."""
    feedback = data.unseen(part)
    pairs = np.bincount(feedback.users, minlength=data.n_users)
    users = np.flatnonzero(pairs)
    own = metrics.user_auc(pair_scores, feedback.labels, feedback.users, data.n_users)[users]
    candidates = data.n_items - data.everything_but(part).sizes()[users]
    listed = tuple(ks) if lists else ()
    liked, judged = np.zeros((2, len(listed), len(users)), dtype=np.int64)
    for place, k in enumerate(listed):
        liked[place], judged[place] = (
            np.concatenate([getattr(block, name)[:, :k].sum(axis=1) for block in lists]) for name in ("liked", "judged")
        )
    return JudgedUsers(users, own, percentiles[users], candidates / pairs[users], listed, liked, judged)


def _shares(judged: JudgedUsers) -> dict[str, Any]:
    """Intervals of liked@K, and how many pairs were judged."""
    found: dict[str, Any] = {}
    for k in judged.ks:
        liked, pairs = judged.counts(k)
        low = high = float("nan")
        if pairs.sum() >= LEAST_JUDGED and len(judged.users) > 1:
            _, low, high, _ = stats.liked_share(judged.weights, liked, pairs)
        found |= {f"liked@{k}_low": low, f"liked@{k}_high": high, f"judged@{k}": int(pairs.sum())}
    return found


def _true_share(truth: Truth, lists: Sequence[Shown], k: int) -> float:
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


def _popularity(data: Partition, protocol: str, part: str, ks: tuple[int, ...]) -> dict[str, Any]:
    """What ranking by popularity gives; found once for each log, as sweeps judge many models on one."""
    known = _by_popularity.setdefault(data, {})
    if (protocol, part, ks) not in known:
        rows = Extended.of_items(data.n_users, popularity(data).astype(np.float32))
        known[protocol, part, ks] = _judge(_Rows(rows, data), data, protocol, ks, part).result
    return known[protocol, part, ks]


def popularity(data: Partition) -> np.ndarray:
    """How many positives every item has in S_c."""
    S_c = data.triplets("S_c")
    return np.bincount(S_c.items[S_c.labels > 0], minlength=data.n_items)


def _below(result: Mapping[str, Any], beside: Mapping[str, Any]) -> str | None:
    """The metrics that fall below popularity's, in words."""
    cut = PROTOCOLS[result["protocol"]].cut
    worse = [
        f"{metrics.label(name, cut)} {result[name]:.4f} is below popularity's {beside[name]:.4f}"
        for name in COMPARED
        if name in result and result[name] < beside[name]
    ]
    return f"{' and '.join(worse)}: listing the most popular items would do better" if worse else None


def _summary(
    given: Mapping[str, np.ndarray],
    feedback: Triplets,
    values: dict[str, np.ndarray],
    judged: JudgedUsers,
    ks: Sequence[int],
) -> dict[str, Any]:
    """Every metric whose kind of numbers is given, in the registry's order."""
    summary = {}
    for name in metrics.names(ks):
        metric, k = metrics.parts(name)
        if name in values:
            summary[name] = _mean(values[name])
        elif metric.of == "users":
            summary[name] = _mean(metric.function(given["pairs"], feedback.labels, feedback.users))
        elif metric.of == "candidates" and judged.ks:
            summary[name] = _mean(judged.percentile[~np.isnan(judged.percentile)])
        elif metric.of == "judged" and k in judged.ks:
            liked, pairs = judged.counts(k)
            enough = pairs.sum() >= LEAST_JUDGED
            summary[name] = float(metric.function(judged.weights, liked, pairs)) if enough else float("nan")
        elif metric.of in given:
            summary[name] = float(metric.function(given[metric.of], feedback.labels))
    return summary


class _Rows:
    """Scores of an object that works on row numbers, checked."""

    def __init__(self, model: Any, data: Partition):
        self.model = model
        self.n_items = data.n_items

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        calls = range(0, len(users), CALL_PAIRS)
        return np.concatenate([self._call(users[at : at + CALL_PAIRS], items[at : at + CALL_PAIRS]) for at in calls])

    def _call(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return _checked_scores(self.model.score_pairs(users, items), (len(users),))

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        return _checked_scores(self.model.score_rows(users), (len(users), self.n_items))

    def top_k(self, users: np.ndarray, k: int, excluded: np.ndarray) -> np.ndarray:
        """The tops of the users' lists, see `ranking.top_k`; by the model itself where it can (on a GPU)."""
        if hasattr(self.model, "top_k"):
            return self.model.top_k(users, k, excluded)
        return top_k(self.score_rows(users), k, excluded)


class _Function(_Rows):
    """Scores of a function of original ids, checked."""

    def __init__(self, function: ScoreFunction, data: Partition):
        super().__init__(function, data)
        self.user_ids, self.item_ids = data.user_ids.values, data.item_ids.values

    def _call(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return _checked_scores(self.model(self.user_ids[users], self.item_ids[items]), (len(users),))

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        items = np.tile(np.arange(self.n_items, dtype=np.int32), len(users))
        return self.score_pairs(np.repeat(users, self.n_items), items).reshape(len(users), self.n_items)


def _scorer(score: Any, data: Partition) -> _Rows:
    if hasattr(score, "score_pairs") and hasattr(score, "score_rows"):
        return _Rows(score, data)
    if callable(score):
        return _Function(score, data)
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


def _checked_ks(ks: Sequence[int]) -> tuple[int, ...]:
    ks = tuple(_check.whole("K", k) for k in ks)
    if not ks or len(set(ks)) < len(ks):
        raise InputError(f"ks={ks} must hold at least one K and none twice")
    return ks


def _blocks(users: np.ndarray, n_items: int) -> Iterator[np.ndarray]:
    """Consecutive pieces of `users` whose scores fill BLOCK_PAIRS."""
    size = max(1, BLOCK_PAIRS // n_items)
    for start in range(0, len(users), size):
        yield users[start : start + size]


def _hits(top: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    """(users, L) bool: is the item at each rank relevant? False where the list has ended."""
    return np.take_along_axis(relevant, top, axis=1) & (top >= 0)


def _full_ranking(
    scorer: _Rows, data: Partition, part: str, pair_scores: np.ndarray, depth: int, shown: int
) -> Iterator[Ranked]:
    """Rank all items outside the user's biased log; the first `shown` that no other part has are what she would see."""
    feedback = data.unseen(part)
    every = Pattern.of(feedback.users, feedback.items, data.n_users)
    liked = feedback.labels > 0
    positives = Pattern.of(feedback.users[liked], feedback.items[liked], data.n_users)
    n_positives = positives.sizes()
    counted = (n_positives > 0) & (data.pattern("S_c").sizes() > 0)
    others = data.everything_but(part) if shown else None
    for users in _blocks(np.flatnonzero(counted | ((every.sizes() > 0) & (shown > 0))), data.n_items):
        relevant = positives.mask(users, data.n_items)
        top = scorer.top_k(users, depth, data.logged.mask(users, data.n_items))
        own = counted[users]
        ranked = Ranked(users[own], _hits(top[own], relevant[own]), n_positives[users[own]])
        if others is not None:
            items = _without(scorer, users, top, others.mask(users, data.n_items), shown)
            judged = _hits(items, every.mask(users, data.n_items))
            ranked = ranked._replace(shown=Shown(users, items, judged, _hits(items, relevant)))
        yield ranked


def _without(scorer: _Rows, users: np.ndarray, top: np.ndarray, excluded: np.ndarray, k: int) -> np.ndarray:
    """The first k items of lists `top` that are not excluded; lists that are too short for that are made anew."""
    kept = (top >= 0) & ~np.take_along_axis(excluded, top, axis=1)
    k = min(k, excluded.shape[1])
    order = np.argsort(~kept, axis=1, kind="stable")[:, :k]
    items = np.where(np.take_along_axis(kept, order, axis=1), np.take_along_axis(top, order, axis=1), -1)
    short = (kept.sum(axis=1) < k) & (top[:, -1] >= 0)  # the list has neither enough items nor ended
    if short.any():
        items[short] = scorer.top_k(users[short], k, excluded[short])
    return items


def _test_items(
    scorer: _Rows, data: Partition, part: str, pair_scores: np.ndarray, depth: int, shown: int
) -> Iterator[Ranked]:
    """Rank the user's own items of the part: the pairs' scores, sorted within each user."""
    users, _, labels, *_ = data.unseen(part)
    indptr = row_pointers(users, data.n_users)
    order = np.lexsort((-pair_scores, users))  # stable: pairs stand in item order, so ties go to the smaller item
    ranks = np.arange(len(users)) - indptr[users]
    listed = ranks < depth
    n_positives = np.bincount(users[labels > 0], minlength=data.n_users)
    counted = np.flatnonzero(n_positives)
    listed &= n_positives[users] > 0
    hits = np.zeros((len(counted), min(depth, int(np.diff(indptr).max()))), dtype=bool)
    hits[np.searchsorted(counted, users[listed]), ranks[listed]] = labels[order][listed] > 0
    if len(counted):
        yield Ranked(counted, hits, n_positives[counted])


PROTOCOLS = {"full-ranking": Protocol(_full_ranking, 50, shows=True), "test-items": Protocol(_test_items, 5)}


def _collect(
    blocks: Iterable[Ranked], cut: int, ks: Sequence[int]
) -> tuple[np.ndarray, dict[str, np.ndarray], list[Shown]]:
    """User rows and {metric: value per user} over all blocks, and what users would be shown."""
    names = metrics.names(ks, of="lists")
    users, columns, lists = [np.empty(0, dtype=np.int64)], [np.empty((len(names), 0))], []
    for block in blocks:
        values = []
        for name in names:
            metric, k = metrics.parts(name)
            values.append(metric.function(block.hits, block.n_positives, cut if k is None else k))
        users.append(block.users)
        columns.append(np.array(values))
        if block.shown is not None:
            lists.append(block.shown)
    return np.concatenate(users), dict(zip(names, np.concatenate(columns, axis=1), strict=True)), lists


def some_pairs(data: Partition) -> tuple[np.ndarray, np.ndarray]:
    """(users, items), each (k, l): a grid of at most 64 of S_c's users and 64 of its items, evenly spaced."""
    S_c = data.triplets("S_c")
    sides = (np.flatnonzero(np.bincount(rows)) for rows in (S_c.users, S_c.items))
    users, items = (side[:: -(-len(side) // GRID)] for side in sides)
    rows, columns = np.broadcast_arrays(users[:, None], items[None, :])
    return rows, columns


def personal_share(scorer: Scorer, grid: tuple[np.ndarray, np.ndarray]) -> float:
    """How much of a scorer's ranking is a user's own, on a grid of pairs: see `metrics.personal`."""
    users, items = grid
    return personal(scorer.score_pairs(users.ravel(), items.ravel()).reshape(users.shape))


def _truth_metrics(scorer: Scorer, data: Partition, truth: Truth) -> dict[str, Any]:
    """AUC and nDCG against y^t over all pairs outside the biased log and S_t."""
    users, had = _truth_users(data), union([data.logged, data.pattern("S_t")], data.n_items)
    scores_out, labels_out, gains = [], [], []
    for block in _blocks(users, data.n_items):
        scores, labels = scorer.score_rows(block), np.asarray(truth.label_rows(block))
        excluded = had.mask(block, data.n_items)
        relevant = (labels > 0) & ~excluded
        n_positives = relevant.sum(axis=1)
        hits = _hits(top_k(scores, TRUTH_CUT, excluded), relevant)
        gains.append(ndcg(hits, n_positives, TRUTH_CUT)[n_positives > 0])
        scores_out.append(scores[~excluded])
        labels_out.append(labels[~excluded])
    return {
        "truth_auc": auc(np.concatenate(scores_out), np.concatenate(labels_out)),
        "truth_ndcg": _mean(np.concatenate(gains)),
        "truth_users": len(users),
    }


def _truth_users(data: Partition) -> np.ndarray:
    """All users, or where there are too many pairs a sample that is the same for every model."""
    n = min(max(1, TRUTH_PAIRS // data.n_items), data.n_users)
    return np.sort(generator(0, "truth-users").choice(data.n_users, n, replace=False))


def _mean(values: np.ndarray) -> float:
    """The mean of those that exist."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def _shown(blocks: Iterable[Ranked], quiet: bool) -> Iterable[Ranked]:
    return blocks if quiet else _progress.bar(blocks, desc="evaluate", unit="block", quiet=False)
