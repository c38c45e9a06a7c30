"""Uniform sampling from S_u, the pairs in neither S_c nor S_t, without ever listing them."""

import math

import numpy as np

from dubnb._check import InputError
from dubnb._jit import njit
from dubnb._random import uniform


class UnobservedPairs:
    """S_u as the complement of each user's seen items: size, and uniform draws in O(log row) each.

    `seen` is (indptr, items) with each user's items sorted; without it every pair of D can be drawn.
    """

    def __init__(self, n_users, n_items, seen=None):
        self.n_items = n_items
        self.indptr, self.items = seen if seen is not None else (np.zeros(n_users + 1, np.int64), np.zeros(0, np.int32))
        self.size = n_users * n_items - len(self.items)

    def draw(self, key, users, items):
        """Fill `users` and `items` (int32) with draws with replacement, sorted by user; `key` alone decides which.

        Sorted draws visit the seen items, and later the teacher's rows, in order; the stream is shuffled afterwards.
        """
        if self.size == 0:
            raise InputError("S_u is empty: every pair is in S_c or S_t, so term d has no sample; drop d from terms=")
        _draw_sorted(key, self.indptr, self.items, self.n_items, self.size, users, items)


@njit
def _draw_sorted(key, indptr, seen, n_items, size, users, items):
    """n uniform positions in 0..size-1, in ascending order, turned into pairs.

    With E_1..E_{n+1} independent standard exponentials, (E_1 + .. + E_j) / (E_1 + .. + E_{n+1}) are distributed as n
    sorted uniform numbers; so one pass over the rows suffices.
    """
    n = len(users)
    sums = np.empty(n + 1)
    total = 0.0
    for j in range(n + 1):
        total -= math.log(1.0 - uniform(key, j))
        sums[j] = total
    user = 0
    before = 0  # unobserved pairs of the users before `user`
    unseen = n_items - (indptr[1] - indptr[0])
    for j in range(n):
        position = min(np.int64(sums[j] / total * size), size - 1)
        while position >= before + unseen:
            before += unseen
            user += 1
            unseen = n_items - (indptr[user + 1] - indptr[user])
        users[j] = user
        items[j] = _unseen_item(seen, indptr[user], indptr[user + 1], position - before)


@njit
def _unseen_item(seen, start, stop, rank):
    """The item number `rank` (from 0) among those not in the sorted seen[start:stop].

    seen[start + k] - k unseen items come before the k-th seen one; find by bisection how many seen ones precede the
    answer.
    """
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        if seen[middle] - (middle - start) <= rank:
            low = middle + 1
        else:
            high = middle
    return rank + (low - start)
