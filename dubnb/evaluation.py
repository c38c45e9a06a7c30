"""Evaluation protocols. A result always carries the name of its protocol: numbers of two protocols do not compare.

Users are scored in blocks, and only those that count, so memory is O(block x items) however many users there are.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check, _progress, metrics
from dubnb._check import InputError
from dubnb._jit import one_blas_thread
from dubnb._random import generator
from dubnb.backbones.extended import Extended
from dubnb.backbones.protocol import Scorer
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.data.pattern import row_pointers
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
COMPARED = ("auc", "ndcg")  # metrics that stand beside popularity's


class Ranked(NamedTuple):
    """The top of some users' lists."""

    users: np.ndarray  # rows
    hits: np.ndarray  # (users, L) bool, in rank order
    n_positives: np.ndarray  # all the user's positives, listed or not


class Protocol(NamedTuple):
    """How lists are made."""

    ranked: Callable[[_Rows, Partition, str, np.ndarray, int], Iterator[Ranked]]  # (.., part, pair scores, depth)
    cut: int  # where nDCG's list ends


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
    """Judge raw scores on the randomized set `part`: {"auc", "ndcg", "p@5", ..., "r@10", "personal", "protocol"}.

    AUC is pooled over all pairs of the part, ties count one half; ranking metrics are averaged over users, and equal
    scores rank by item row. "personal" is the share of the ranking that is a user's own, see `metrics.personal`.
    "popularity_auc" and "popularity_ndcg" are those of ranking by the positives in S_c; a result below is warned of.
    "truth_auc" and "truth_ndcg" (@50), on simulated data, compare with y^t on the pairs outside S_c and S_t of
    "truth_users" users: all, or a fixed sample beyond 4,000,000 pairs.

    Parameters
    ----------
    score : function or Scorer
        A function (users, items) -> finite scores on 1-d arrays of *original* ids, or an object with
        `score_pairs(user_rows, item_rows)` and `score_rows(user_rows)` -> (len, n_items) on row numbers. If it has
        `probabilities(scores)` too, "log_loss", "brier" and "ece" are told (see `calibration`).
    data : Partition
        The logs.
    protocol : {"full-ranking", "test-items"}
        Lists of all items outside the user's S_c, for users with a positive in the part and a pair in S_c (nDCG@50), or
        of the user's own items of the part, for users with a positive (nDCG@5).
    ks : sequence of int
        K of P@K and R@K.
    part : {"S_te", "S_va", "S_t"}
        What is judged on.
    truth : bool, optional
        Whether to compare with the truth; by default where it is known.
    per_user, quiet : bool
        Whether to add a DataFrame "per_user", a row for each user that counts; whether to show no progress.
    """
    scorer = _scorer(score, data)
    if truth and data.truth is None:
        raise InputError("truth=True needs simulated data: this data's true preferences are unknown; leave truth out")
    result, users, values = _judge(scorer, data, protocol, _checked_ks(ks), part, quiet)
    beside = _popularity(data, protocol, part)
    result |= {"personal": personal_share(scorer, some_pairs(data)), "protocol": protocol}
    result |= {f"popularity_{name}": beside[name] for name in COMPARED}
    if truth is not False and data.truth is not None:
        result |= _truth_metrics(scorer, data, data.truth)
    _warn(result, beside, part)
    return result | (_per_user(data, users, values) if per_user else {})


def _warn(result: Mapping[str, Any], beside: Mapping[str, Any], part: str) -> None:
    """Of metrics that do not exist, or fall below popularity's."""
    undefined = [name for name, value in result.items() if value != value and not name.startswith("popularity_")]
    if undefined:
        warnings.warn(f"{', '.join(undefined)} are nan: {part} lacks a class or has no user that counts", stacklevel=4)
    below = _below(result, beside)
    if below:
        warnings.warn(below, stacklevel=4)


def _per_user(data: Partition, users: np.ndarray, values: Mapping[str, np.ndarray]) -> dict[str, pd.DataFrame]:
    import pandas as pd

    return {"per_user": pd.DataFrame({"user": data.user_ids.values[users], **values})}


def validation_ndcg(scorer: Scorer, data: Partition, part: str = "S_va") -> float:
    """The nDCG of full-ranking alone, for early stopping."""
    return float(_judge(_Rows(scorer, data), data, "full-ranking", (), part)[0]["ndcg"])


def _judge(
    scorer: _Rows,
    data: Partition,
    protocol: str,
    ks: Sequence[int],
    part: str,
    quiet: bool = True,
) -> tuple[dict[str, Any], np.ndarray, dict[str, np.ndarray]]:
    """(every metric, the users that count, their own values)."""
    how = PROTOCOLS[_check.choice("protocol", protocol, tuple(PROTOCOLS))]
    feedback = data.triplets(_check.choice("part", part, RANDOMIZED))
    if not len(feedback.users):
        raise InputError(f"{part} is empty: there is nothing to evaluate on; load data with {part} or pass part=")
    with one_blas_thread():  # the same scores to the bit, and so the same lists, on any number of cores
        pair_scores = scorer.score_pairs(feedback.users, feedback.items)
        blocks = how.ranked(scorer, data, part, pair_scores, max((how.cut, *ks)))
        users, values = _collect(_shown(blocks, quiet), how.cut, ks)
        given = {"pairs": pair_scores}
        if hasattr(scorer.model, "probabilities"):
            given["probabilities"] = scorer.model.probabilities(pair_scores)
        return _summary(given, feedback.labels, values, ks), users, values


_by_popularity: weakref.WeakKeyDictionary[Partition, dict[tuple[str, str], dict[str, Any]]]
_by_popularity = weakref.WeakKeyDictionary()


def _popularity(data: Partition, protocol: str, part: str) -> dict[str, Any]:
    """What ranking by popularity gives; found once for each log, as sweeps judge many models on one."""
    known = _by_popularity.setdefault(data, {})
    if (protocol, part) not in known:
        rows = Extended.of_items(data.n_users, popularity(data).astype(np.float32))
        known[protocol, part] = _judge(_Rows(rows, data), data, protocol, (), part)[0]
    return known[protocol, part]


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
        if result[name] < beside[name]
    ]
    return f"{' and '.join(worse)}: listing the most popular items would do better" if worse else None


def _summary(
    given: Mapping[str, np.ndarray], labels: np.ndarray, values: dict[str, np.ndarray], ks: Sequence[int]
) -> dict[str, Any]:
    """Every metric whose kind of numbers is given, in the registry's order."""
    summary = {}
    for name in metrics.names(ks):
        metric, _ = metrics.parts(name)
        if name in values:
            summary[name] = _mean(values[name])
        elif metric.of in given:
            summary[name] = float(metric.function(given[metric.of], labels))
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


def _full_ranking(scorer: _Rows, data: Partition, part: str, pair_scores: np.ndarray, depth: int) -> Iterator[Ranked]:
    """Rank all items outside the user's S_c."""
    S_c, positives = data.pattern("S_c"), data.pattern(part, positives=True)
    n_positives = positives.sizes()
    for users in _blocks(np.flatnonzero((n_positives > 0) & (S_c.sizes() > 0)), data.n_items):
        excluded, relevant = (lists.mask(users, data.n_items) for lists in (S_c, positives))
        yield Ranked(users, _hits(scorer.top_k(users, depth, excluded), relevant), n_positives[users])


def _test_items(scorer: _Rows, data: Partition, part: str, pair_scores: np.ndarray, depth: int) -> Iterator[Ranked]:
    """Rank the user's own items of the part: the pairs' scores, sorted within each user."""
    users, _, labels, *_ = data.triplets(part)
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


PROTOCOLS = {"full-ranking": Protocol(_full_ranking, 50), "test-items": Protocol(_test_items, 5)}


def _collect(blocks: Iterable[Ranked], cut: int, ks: Sequence[int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """User rows and {metric: value per user} over all blocks."""
    names = metrics.names(ks, of="lists")
    users, columns = [np.empty(0, dtype=np.int64)], [np.empty((len(names), 0))]
    for block in blocks:
        values = []
        for name in names:
            metric, k = metrics.parts(name)
            values.append(metric.function(block.hits, block.n_positives, cut if k is None else k))
        users.append(block.users)
        columns.append(np.array(values))
    return np.concatenate(users), dict(zip(names, np.concatenate(columns, axis=1), strict=True))


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
    """AUC and nDCG against y^t over all pairs outside S_c and S_t."""
    users = _truth_users(data)
    scores_out, labels_out, gains = [], [], []
    for block in _blocks(users, data.n_items):
        scores, labels = scorer.score_rows(block), np.asarray(truth.label_rows(block))
        excluded = data.seen.mask(block, data.n_items)
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
    return float(values.mean()) if len(values) else float("nan")


def _shown(blocks: Iterable[Ranked], quiet: bool) -> Iterable[Ranked]:
    return blocks if quiet else _progress.bar(blocks, desc="evaluate", unit="block", quiet=False)
