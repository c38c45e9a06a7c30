"""The top of rankings on the device: `ranking.top_k` with one block per row.

Each position of the list takes one pass over the row's items, which finds the largest key below the previous one. Keys
are distinct, so the list equals the CPU's, ties included.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numba import cuda, types

from dubnb.cuda import _launch
from dubnb.cuda._launch import I8, INTS, device_array, kernel, to_device
from dubnb.ranking import EXCLUDED, sort_key

INT_MATRIX, BYTE_MATRIX = (types.Array(dtype, 2, "C") for dtype in (types.int32, types.uint8))
ABOVE = 2**63 - 1  # above every sort key


@kernel(INT_MATRIX, BYTE_MATRIX, INT_MATRIX)
def top_items(bits, excluded, top):
    """The items of each row's largest scores that are not excluded, best first; -1 where none is left."""
    best = cuda.shared.array(0, I8)  # one key for each thread
    n_items = bits.shape[1]
    for row in range(cuda.blockIdx.x, top.shape[0], cuda.gridDim.x):
        last = ABOVE
        for place in range(top.shape[1]):
            mine = EXCLUDED
            for item in range(cuda.threadIdx.x, n_items, cuda.blockDim.x):
                if not excluded[row, item]:
                    key = sort_key(bits[row, item], item, n_items)
                    if mine < key < last:
                        mine = key
            best[cuda.threadIdx.x] = mine
            cuda.syncthreads()
            last = EXCLUDED
            for thread in range(cuda.blockDim.x):
                last = max(last, best[thread])
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                top[row, place] = -1 if last == EXCLUDED else n_items - 1 - (last & 0xFFFFFFFF)


@kernel(INTS, INTS, INTS)
def all_items_of(users, pair_users, pair_items):
    """Pairs of some users with every item, user by user."""
    n_items = len(pair_users) // len(users)
    for at in range(cuda.grid(1), len(pair_users), cuda.gridsize(1)):
        pair_users[at], pair_items[at] = users[at // n_items], at % n_items


class DeviceScorer(Protocol):
    """A model that scores on the device."""

    def scores_of(self, users: Any) -> Any:
        """Raw scores of every item for users on the device, (users, items), which stay there."""


class Ranker:
    """Mixin for models that score on the device: rows of scores, and top lists."""

    def score_rows(self: DeviceScorer, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users` under the current weights."""
        return self.scores_of(to_device(users, np.int32)).copy_to_host()

    def top_k(self: DeviceScorer, users: np.ndarray, k: int, excluded: np.ndarray) -> np.ndarray:
        """Items of the k largest scores for each of `users`, see `ranking.top_k`: only the lists leave the device."""
        scores = self.scores_of(to_device(users, np.int32))
        top = device_array((len(users), min(k, scores.shape[1])), np.int32)
        shared = 8 * _launch.ROW_THREADS
        top_items.by_row(len(users), scores.view(np.int32), to_device(excluded, np.uint8), top, shared=shared)
        return top.copy_to_host().astype(np.int64)
