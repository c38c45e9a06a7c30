"""Top-k lists for original ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _memory
from dubnb._check import InputError
from dubnb.data.pattern import Pattern, union
from dubnb.methods._fallback import average_user
from dubnb.ranking import top_k

if TYPE_CHECKING:
    from dubnb.backbones import Weights
    from dubnb.data.ids import Ids
    from dubnb.data.partition import Partition

BLOCK_SCORES = 1 << 22  # scores held at a time


class Lists(tuple):  # type: ignore[type-arg]
    """(items, scores) of some users, and `fallback`: true where a list is the average user's."""

    fallback: np.ndarray

    def __new__(cls, items: np.ndarray, scores: np.ndarray, fallback: np.ndarray) -> Lists:
        lists = super().__new__(cls, (items, scores))
        lists.fallback = fallback
        return lists


class Block(NamedTuple):
    """The lists of some users, as rows."""

    places: np.ndarray  # which of the users asked for
    top: np.ndarray  # (users, k) item rows, -1 where a list has ended
    scores: np.ndarray  # (users, k), nan there


class Lister:
    """Ranks items for rows of users; -1 is a user that the model does not know."""

    def __init__(self, weights: Weights, cold: np.ndarray):
        self.weights, self.cold, self.n_items = weights, cold, len(weights.items)
        self.average = average_user(weights, cold)

    def fallback(self, rows: np.ndarray) -> np.ndarray:
        """Who gets the average user's scores: the unknown, and those that the model has learned nothing of."""
        return (rows < 0) | self.cold[rows]

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Scores of all items, a row per user."""
        scores = self.weights.score_rows(np.maximum(rows, 0))
        if (rows < 0).any():
            scores[rows < 0] = self.average.score_rows(np.zeros(1, np.int64))[0]
        return scores

    def blocks(
        self, rows: np.ndarray, k: int, excluded: Pattern, allowed: Pattern | np.ndarray | None = None
    ) -> Iterator[Block]:
        """The k best items of every row outside `excluded`.

        allowed: each user's own candidates (an unknown user has none), or a bool per item, for everyone.
        """
        size = max(1, BLOCK_SCORES // self.n_items)
        for start in range(0, len(rows), size):
            own = rows[start : start + size]
            known = own >= 0
            barred = np.zeros((len(own), self.n_items), dtype=bool)
            barred[known] = excluded.mask(own[known], self.n_items)
            if isinstance(allowed, np.ndarray):
                barred |= ~allowed
            elif allowed is not None:
                barred[known] |= ~allowed.mask(own[known], self.n_items)
                barred[~known] = True
            scores = self.scores(own)
            top = top_k(scores, min(k, self.n_items), barred)
            best = np.take_along_axis(scores, np.maximum(top, 0), axis=1).astype(np.float32)
            yield Block(np.arange(start, start + len(own)), top, np.where(top >= 0, best, np.float32(np.nan)))


def recommend(lister: Lister, rows: np.ndarray, item_ids: Ids, k: int, excluded: Pattern) -> Lists:
    """Two arrays of shape (users, k), padded where a list has ended."""
    dtype = item_ids.values.dtype
    needed = len(rows) * k * (dtype.itemsize + np.dtype(np.float32).itemsize)
    _memory.plan(f"k={k} for {len(rows)} users", needed, "lower k, or ask for fewer users at a time")
    padding = np.int64(-1).astype(dtype) if item_ids.kind == "int" else ""  # hashes may be uint64
    items = np.full((len(rows), k), padding, dtype=dtype)
    scores = np.full((len(rows), k), np.nan, dtype=np.float32)
    for block in lister.blocks(rows, k, excluded):
        width = block.top.shape[1]
        items[block.places, :width] = np.where(block.top >= 0, item_ids.values[block.top], items[block.places, :width])
        scores[block.places, :width] = block.scores
    return Lists(items, scores, lister.fallback(rows))


def had(data: Partition) -> Pattern:
    """What users have had: their items in the biased log, and the positives of S_t."""
    return union([data.logged, data.pattern("S_t", positives=True)], data.n_items)


def excluded_pairs(exclude: Any, seen: Pattern, shape: tuple[int, int]) -> Pattern:
    """What is not to be listed: `seen` unless told otherwise."""
    if exclude is None:
        return seen
    if exclude is False:
        return Pattern.empty(shape[0])
    if getattr(exclude, "shape", None) != shape or not hasattr(exclude, "tocsr"):
        raise InputError(f"exclude must be a sparse matrix of shape {shape}, None (what users had) or False (nothing)")
    matrix = exclude.tocsr()
    return Pattern.from_csr(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))
