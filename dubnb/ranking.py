"""The top of a ranking: the k largest scores of each row, with ties always broken the same way."""

from __future__ import annotations

import numpy as np

from dubnb import _check
from dubnb._jit import njit

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
