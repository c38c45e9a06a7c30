"""Top-k lists for original ids."""

import warnings

import numpy as np

from dubnb import _memory
from dubnb._check import InputError
from dubnb.data.pattern import Pattern
from dubnb.ranking import top_k

_BLOCK_SCORES = 1 << 22  # scores held at a time


def recommend(weights, user_ids, item_ids, seen, users, k, exclude):
    """See `Method.recommend`."""
    users = np.atleast_1d(np.asarray(users))
    if users.ndim > 1:
        raise InputError(f"users of shape {users.shape}: pass one id or a 1-d list of ids")
    rows = user_ids.find(users)
    if (rows < 0).any():
        names = ", ".join(str(user) for user in users[rows < 0][:10])
        warnings.warn(f"{int((rows < 0).sum())} unknown users, not in the training data: {names}", stacklevel=3)
    needed = len(users) * k * (item_ids.values.itemsize + np.dtype(np.float32).itemsize)
    _memory.plan(f"k={k} for {len(users)} users", needed, "lower k, or ask for fewer users at a time")
    excluded = _excluded(exclude, seen, (len(user_ids), len(item_ids)))
    padding = np.int64(-1).astype(item_ids.values.dtype) if item_ids.kind == "int" else ""
    items = np.full((len(users), k), padding, dtype=item_ids.values.dtype)
    scores = np.full((len(users), k), np.nan, dtype=np.float32)
    known = np.flatnonzero(rows >= 0)
    block = max(1, _BLOCK_SCORES // len(item_ids))
    for start in range(0, len(known), block):
        places = known[start : start + block]
        block_scores = weights.score_rows(rows[places])
        top = top_k(block_scores, min(k, len(item_ids)), excluded.mask(rows[places], len(item_ids)))
        for line, place in enumerate(places):
            best = top[line][top[line] >= 0]
            items[place, : len(best)] = item_ids.values[best]
            scores[place, : len(best)] = block_scores[line, best]
    return items, scores


def _excluded(exclude, seen, shape):
    if exclude is None:
        return seen
    if exclude is False:
        return Pattern.empty(shape[0])
    if getattr(exclude, "shape", None) != shape or not hasattr(exclude, "tocsr"):
        raise InputError(f"exclude must be a sparse matrix of shape {shape}, None (S_c) or False (nothing)")
    matrix = exclude.tocsr()
    return Pattern(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32))
