"""Uniform sampling from S_u, the pairs in neither S_c nor S_t, without ever listing them."""

from collections.abc import Callable
from functools import partial

import numpy as np

from dubnb._check import InputError
from dubnb._jit import njit, span
from dubnb._random import exponential
from dubnb.data.pattern import Pattern


class UnobservedPairs:
    """S_u as the complement of each user's seen items: size, and n uniform draws in O(n + |S_c| + |S_t| + users).

    `seen` holds the pairs that are never drawn; without it every pair of D can be.
    """

    def __init__(self, n_users: int, n_items: int, seen: Pattern | None = None):
        self.shape = n_users, n_items
        self.seen = Pattern.empty(n_users) if seen is None else seen
        self.size = n_users * n_items - len(self.seen.items)

    def draw(self, key: np.uint64, users: np.ndarray, items: np.ndarray) -> None:
        """Fill `users` and `items` (int32) with draws with replacement, sorted by user; `key` alone decides which.

        Sorted draws visit the seen items, and later the teacher's rows, in order; the stream is shuffled afterwards.
        """
        self.draws(key, len(users))(users, items)

    def draws(self, key: np.uint64, n: int) -> Callable[[np.ndarray, np.ndarray], None]:
        """What fills two arrays with the next ones of n such draws."""
        self.check()
        sums, so_far = np.empty(n, np.int64), np.zeros(3, np.int64)
        step = step_of(self.size, _sorted_numbers(key, sums))
        return partial(_next_pairs, sums, step, so_far, *self.seen, self.shape[1], self.size)

    def check(self) -> None:
        """Refuse an S_u without a pair."""
        if self.size == 0:
            raise InputError("S_u is empty: every pair is in S_c or S_t, so term d has no sample; drop d from terms=")


def step_of(size: int, total: int) -> float:
    """What turns a sum into a position in 0..size-1: apart from the product, lest a compiler rearrange the two."""
    return float(size) / float(total)


@njit
def _sorted_numbers(key, sums):
    """Partial sums of standard exponentials; returns the sum of one more."""
    total = np.int64(0)
    for j in range(len(sums)):
        total += exponential(key, j)
        sums[j] = total
    return total + exponential(key, len(sums))


@njit
def _next_pairs(sums, step, so_far, indptr, seen, n_items, size, users, items):
    """The next of n uniform positions in 0..size-1, in ascending order, turned into pairs.

    With E_1..E_{n+1} independent standard exponentials, (E_1 + .. + E_j) / (E_1 + .. + E_{n+1}) are distributed as n
    sorted uniform numbers; so one pass over the rows suffices. `so_far`: the number of draws before, the
    user where they ended, and the unobserved pairs of the users before that one.
    """
    drawn, user, before = so_far[0], so_far[1], so_far[2]
    k = 0  # seen items of `user` below the draw: the k-th has seen[start + k] - k unseen ones below it
    start, stop, sums = indptr[user], indptr[user + 1], span(sums, drawn, len(users))
    for j in range(len(users)):
        position = np.int64(sums[j] * step)
        if position >= size:
            position = size - 1
        while position - before >= n_items - (stop - start):
            before += n_items - (stop - start)
            user += 1
            k, start, stop = 0, indptr[user], indptr[user + 1]
        rank = position - before  # the draw's place among the user's unseen items; it never falls from draw to draw
        while start + k < stop and seen[start + k] - k <= rank:
            k += 1
        users[j] = user
        items[j] = rank + k
    so_far[0], so_far[1], so_far[2] = drawn + len(users), user, before
