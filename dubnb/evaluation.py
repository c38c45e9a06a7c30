"""Evaluation protocols. A result always carries the name of its protocol: numbers of two protocols do not compare.

Users are scored in blocks, and only those that count, so memory is O(block x items) however many users there are.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb._jit import njit
from dubnb._random import generator
from dubnb.data.partition import RANDOMIZED, row_pointers
from dubnb.metrics import auc, ndcg, personal, precision, recall

BLOCK_PAIRS = 1 << 23  # scores of a block: 32 MB in float32
TILE_PAIRS = 1 << 16  # sort keys of a tile: 0.5 MB, so that they are sorted inside the CPU's cache
CALL_PAIRS = 1 << 18  # pairs per call of a scoring function
TRUTH_PAIRS = 4_000_000  # beyond, the truth is compared on a fixed sample of users
TRUTH_CUT = 50
GRID = 64  # users, and items, whose scores tell how personal a ranking is
PROGRESS_AFTER = 2.0  # seconds
BOOTSTRAPS = 1000
EXCLUDED = -(2**63)  # below the sort key of every finite score


class Ranked(NamedTuple):
    """The top of some users' lists."""

    users: np.ndarray  # rows
    hits: np.ndarray  # (users, L) bool, in rank order
    n_positives: np.ndarray  # all the user's positives, listed or not


class Protocol(NamedTuple):
    ranked: Callable  # (scorer, data, part, pair_scores, depth) -> iterator of Ranked
    cut: int  # where nDCG's list ends


def evaluate(score, data, protocol="full-ranking", ks=(5, 10), *, part="S_te", truth=None, per_user=False, quiet=True):
    """Judge raw scores on the randomized set `part`: {"auc", "ndcg", "p@5", ..., "r@10", "personal", "protocol"}.

    `score` is a function (users, items) -> scores on 1-d arrays of *original* ids, or an object with
    `score_pairs(user_rows, item_rows)` and `score_rows(user_rows)` -> (len, n_items) on row numbers. Scores must be
    finite; float32 ranks fastest, other dtypes rank exactly too.

    AUC is global: pooled over all pairs of the part, ties count one half. Ranking metrics are averaged over users;
    equal scores rank by item row, the smaller first. Protocols:

    - "full-ranking": candidates are all items outside the user's S_c; nDCG@50; users with at least one positive in the
      part and one pair in S_c.
    - "test-items": candidates are the user's own items of the part; nDCG@5; users with at least one positive.

    P@K always divides by K and R@K by all the user's positives in the part. "personal" is the share of the ranking that
    is a user's own (see `metrics.personal`): near 0 every user gets the same list. On simulated data (`truth=False`
    leaves it out) "truth_auc" and "truth_ndcg" (@50) compare with y^t on all pairs outside S_c and S_t, pooled and
    averaged over "truth_users" users: all, or a fixed sample if there are more than 4,000,000 pairs. `per_user=True`
    adds a DataFrame "per_user" for `confidence_interval`; `quiet=False` shows progress.
    """
    cut = PROTOCOLS[_check.choice("protocol", protocol, tuple(PROTOCOLS))].cut
    ks = _checked_ks(ks)
    feedback = data.triplets(_check.choice("part", part, RANDOMIZED))
    if not len(feedback.users):
        raise InputError(f"{part} is empty: there is nothing to evaluate on; load data with {part} or pass part=")
    if truth and data.truth is None:
        raise InputError("truth=True needs simulated data: this data's true preferences are unknown; leave truth out")
    scorer = _scorer(score, data)
    pair_scores = scorer.score_pairs(feedback.users, feedback.items)
    blocks = PROTOCOLS[protocol].ranked(scorer, data, part, pair_scores, max(cut, *ks))
    users, values = _collect(_progress(blocks, quiet), cut, ks)
    result = {"auc": auc(pair_scores, feedback.labels)}
    result |= {name: _mean(column) for name, column in values.items()}
    result["personal"] = personal_share(scorer, some_pairs(data))
    result["protocol"] = protocol
    if truth is not False and data.truth is not None:
        result |= _truth_metrics(scorer, data)
    undefined = [name for name, value in result.items() if value != value]
    if undefined:
        warnings.warn(f"{', '.join(undefined)} are nan: {part} lacks a class or has no user that counts", stacklevel=2)
    if per_user:
        import pandas as pd

        result["per_user"] = pd.DataFrame({"user": data.user_ids.values[users], **values})
    return result


def confidence_interval(per_user_values, level=0.95, seed=0):
    """(low, high) of the mean over users: percentile bootstrap, users drawn with replacement."""
    values = np.asarray(per_user_values, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise InputError(f"per-user values of shape {values.shape}: pass a non-empty 1-d array of finite numbers")
    tail = (1 - _check.real("level", level, high=1.0)) / 2
    rng = generator(seed, "confidence-interval")
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(BOOTSTRAPS)]
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def top_k(scores, k, excluded=None):
    """Items of the k largest scores per row, best first; -1 where a row has no candidate left.

    `excluded` is a bool array of the scores' shape: true where an item is no candidate. Equal scores go to the smaller
    item index, always. How: (order-preserving int32 of the float32 score, reversed item index) packed into one int64 is
    distinct for every item, so a plain partition of whole numbers finds the top and keeps ties in order.
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
    """keys = order-preserving whole number of the float32 score in the high half, reversed item index in the low."""
    n_rows, n_items = bits.shape
    for row in range(n_rows):
        for item in range(n_items):
            value = np.int64(bits[row, item])
            value = 0 if value == -(2**31) else value  # -0.0 ties with 0.0
            ordered = value ^ ((value >> 63) & 0x7FFFFFFF)  # floats below zero grow in magnitude as their bits grow
            keys[row, item] = EXCLUDED if excluded[row, item] else (ordered << 32) | (n_items - 1 - item)


def _same_order_float32(scores):
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


class _Rows:
    """Scores of an object that works on row numbers, checked."""

    def __init__(self, model, data):
        self.model = model
        self.n_items = data.n_items

    def score_pairs(self, users, items):
        calls = range(0, len(users), CALL_PAIRS)
        return np.concatenate([self._call(users[at : at + CALL_PAIRS], items[at : at + CALL_PAIRS]) for at in calls])

    def _call(self, users, items):
        return _checked_scores(self.model.score_pairs(users, items), (len(users),))

    def score_rows(self, users):
        return _checked_scores(self.model.score_rows(users), (len(users), self.n_items))


class _Function(_Rows):
    """Scores of a function of original ids, checked."""

    def __init__(self, function, data):
        super().__init__(function, data)
        self.user_ids, self.item_ids = data.user_ids.values, data.item_ids.values

    def _call(self, users, items):
        return _checked_scores(self.model(self.user_ids[users], self.item_ids[items]), (len(users),))

    def score_rows(self, users):
        items = np.tile(np.arange(self.n_items, dtype=np.int32), len(users))
        return self.score_pairs(np.repeat(users, self.n_items), items).reshape(len(users), self.n_items)


def _scorer(score, data):
    if hasattr(score, "score_pairs") and hasattr(score, "score_rows"):
        return _Rows(score, data)
    if callable(score):
        return _Function(score, data)
    raise InputError(
        f"score is a {type(score).__name__}: pass a function (users, items) -> scores, such as model.decision_function"
    )


def _checked_scores(scores, shape):
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


def _checked_ks(ks):
    ks = tuple(_check.whole("K", k) for k in ks)
    if not ks or len(set(ks)) < len(ks):
        raise InputError(f"ks={ks} must hold at least one K and none twice")
    return ks


class _Lists(NamedTuple):
    """A set of items per user."""

    indptr: np.ndarray
    items: np.ndarray

    @classmethod
    def of(cls, data, part, positives=False):
        users, items, labels, *_ = data.triplets(part)
        kept = labels > 0 if positives else slice(None)
        return cls(row_pointers(users[kept], data.n_users), items[kept])

    def mask(self, users, n_items):
        """(users, n_items) bool: true where the item is in the user's set."""
        mask = np.zeros((len(users), n_items), dtype=bool)
        _mark(mask, users, self.indptr, self.items)
        return mask

    def sizes(self):
        return np.diff(self.indptr)


@njit
def _mark(mask, users, indptr, items):
    for row in range(len(users)):
        for entry in range(indptr[users[row]], indptr[users[row] + 1]):
            mask[row, items[entry]] = True


def _blocks(users, n_items):
    """Consecutive pieces of `users` whose scores fill BLOCK_PAIRS."""
    size = max(1, BLOCK_PAIRS // n_items)
    for start in range(0, len(users), size):
        yield users[start : start + size]


def _hits(scores, excluded, relevant, depth):
    """(users, L) bool: is the item at each rank relevant? False where the list has ended."""
    top = top_k(scores, depth, excluded)
    return np.take_along_axis(relevant, top, axis=1) & (top >= 0)


def _full_ranking(scorer, data, part, pair_scores, depth):
    """Rank all items outside the user's S_c."""
    S_c, positives = _Lists.of(data, "S_c"), _Lists.of(data, part, positives=True)
    n_positives = positives.sizes()
    for users in _blocks(np.flatnonzero((n_positives > 0) & (S_c.sizes() > 0)), data.n_items):
        excluded, relevant = (lists.mask(users, data.n_items) for lists in (S_c, positives))
        yield Ranked(users, _hits(scorer.score_rows(users), excluded, relevant, depth), n_positives[users])


def _test_items(scorer, data, part, pair_scores, depth):
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


def _collect(blocks, cut, ks):
    """User rows and {metric: value per user} over all blocks."""
    names = ["ndcg", *(f"p@{k}" for k in ks), *(f"r@{k}" for k in ks)]
    users, columns = [np.empty(0, dtype=np.int64)], [np.empty((len(names), 0))]
    for block in blocks:
        values = [ndcg(block.hits, block.n_positives, cut)]
        values += [precision(block.hits, k) for k in ks]
        values += [recall(block.hits, block.n_positives, k) for k in ks]
        users.append(block.users)
        columns.append(np.array(values))
    return np.concatenate(users), dict(zip(names, np.concatenate(columns, axis=1), strict=True))


def some_pairs(data):
    """(users, items), each (k, l): a grid of at most 64 of S_c's users and 64 of its items, evenly spaced."""
    S_c = data.triplets("S_c")
    sides = (np.flatnonzero(np.bincount(rows)) for rows in (S_c.users, S_c.items))
    users, items = (side[:: -(-len(side) // GRID)] for side in sides)
    return np.broadcast_arrays(users[:, None], items[None, :])


def personal_share(scorer, grid):
    """How much of a scorer's ranking is a user's own, on a grid of pairs: see `metrics.personal`."""
    users, items = grid
    return personal(scorer.score_pairs(users.ravel(), items.ravel()).reshape(users.shape))


def _truth_metrics(scorer, data):
    """AUC and nDCG against y^t over all pairs outside S_c and S_t."""
    users = _truth_users(data)
    seen = _Lists(*data.seen)
    scores_out, labels_out, gains = [], [], []
    for block in _blocks(users, data.n_items):
        scores, labels = scorer.score_rows(block), np.asarray(data.truth.label_rows(block))
        excluded = seen.mask(block, data.n_items)
        relevant = (labels > 0) & ~excluded
        n_positives = relevant.sum(axis=1)
        gains.append(ndcg(_hits(scores, excluded, relevant, TRUTH_CUT), n_positives, TRUTH_CUT)[n_positives > 0])
        scores_out.append(scores[~excluded])
        labels_out.append(labels[~excluded])
    return {
        "truth_auc": auc(np.concatenate(scores_out), np.concatenate(labels_out)),
        "truth_ndcg": _mean(np.concatenate(gains)),
        "truth_users": len(users),
    }


def _truth_users(data):
    """All users, or where there are too many pairs a sample that is the same for every model."""
    n = max(1, TRUTH_PAIRS // data.n_items)
    if n >= data.n_users:
        return np.arange(data.n_users)
    return np.sort(generator(0, "truth-users").choice(data.n_users, n, replace=False))


def _mean(values):
    return float(values.mean()) if len(values) else float("nan")


def _progress(blocks, quiet):
    if quiet:
        return blocks
    from tqdm import tqdm

    return tqdm(blocks, desc="evaluate", unit="block", leave=False, delay=PROGRESS_AFTER)
