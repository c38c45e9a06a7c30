"""`Pattern`, a set of items for every user, and `UnobservedPairs`, uniform draws from the pairs outside of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from dubnb._check import InputError
from dubnb._jit import njit, span
from dubnb._random import exponential


class Pattern(NamedTuple):
    """Distinct (user, item) pairs in CSR order: user u's items, ascending, are items[indptr[u] : indptr[u + 1]].

    Build one with `of`, `from_csr` or `empty`: they make the arrays read-only, as the compiled kernels expect.
    """

    indptr: np.ndarray  # int64, users + 1
    items: np.ndarray  # int32

    @classmethod
    def of(cls, users: np.ndarray, items: np.ndarray, n_users: int) -> Pattern:
        """A pattern from pairs that are in CSR order already."""
        return cls.from_csr(row_pointers(users, n_users), items)

    @classmethod
    def from_csr(cls, indptr: np.ndarray, items: np.ndarray) -> Pattern:
        """A pattern from row pointers and items; it keeps views of them."""
        pattern = cls(indptr.view(), items.view())
        for array in pattern:
            array.flags.writeable = False
        return pattern

    @classmethod
    def empty(cls, n_users: int) -> Pattern:
        """A pattern without pairs."""
        return cls.from_csr(np.zeros(n_users + 1, np.int64), np.zeros(0, np.int32))

    def users(self) -> np.ndarray:
        """The user of every pair, int64."""
        return np.repeat(np.arange(len(self.indptr) - 1), self.sizes())

    def sizes(self) -> np.ndarray:
        """How many items every user has."""
        return np.diff(self.indptr)

    def places(self, users: np.ndarray, items: np.ndarray, n_items: int) -> np.ndarray:
        """The position of each given pair among the pairs; every given pair must be present."""
        found = np.empty(len(users), np.int64)
        _bisect(self.indptr, self.items, users, items, found)
        return found

    def find(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """The position of each given pair, or -1 where it is absent, by a bisection of each user's items."""
        if not len(self.items):
            return np.full(len(users), -1, np.int64)
        low, stop = self.indptr[users], self.indptr[users + 1]
        high, last = stop.copy(), len(self.items) - 1
        while (low < high).any():
            middle = (low + high) // 2
            below = self.items[np.minimum(middle, last)] < items
            low, high = np.where((low < high) & below, middle + 1, low), np.where((low < high) & ~below, middle, high)
        there = (low < stop) & (self.items[np.minimum(low, last)] == items)
        return np.where(there, low, -1)

    def mask(self, users: np.ndarray, n_items: int) -> np.ndarray:
        """(users, n_items) bool: true where the item is in the user's set."""
        mask = np.zeros((len(users), n_items), dtype=bool)
        _mark(mask, users, self.indptr, self.items)
        return mask


def row_pointers(users: np.ndarray, n_users: int) -> np.ndarray:
    """CSR row pointers (int64) of sorted or unsorted row numbers."""
    pointers = np.zeros(n_users + 1, dtype=np.int64)
    np.cumsum(np.bincount(users, minlength=n_users), out=pointers[1:])
    return pointers


def csr_order(users: np.ndarray, items: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """np.argsort(users * n_items + items, kind="stable"), by two counting sorts: linear time, 8 bytes a pair."""
    users, items = users.astype(np.int32, copy=False), items.astype(np.int32, copy=False)
    by_item = np.empty(len(items), np.int64 if len(items) > np.iinfo(np.int32).max else np.int32)
    _scatter(items, row_pointers(items, shape[1]), np.arange(len(items), dtype=by_item.dtype), by_item)
    order = np.empty_like(by_item)
    _scatter(users, row_pointers(users, shape[0]), by_item, order)
    return order


def union(patterns: Sequence[Pattern], n_items: int) -> Pattern:
    """The pairs that are in at least one of the patterns, which have the same users."""
    n_users = len(patterns[0].indptr) - 1
    users = np.concatenate([pattern.users().astype(np.int32) for pattern in patterns])
    items = np.concatenate([pattern.items for pattern in patterns])
    order = csr_order(users, items, (n_users, n_items))
    users, items = users[order], items[order]
    first = np.ones(len(users), dtype=bool)
    first[1:] = (users[1:] != users[:-1]) | (items[1:] != items[:-1])
    return Pattern.of(users[first], items[first], n_users)


@njit
def _scatter(keys, places, order, out):
    """One pass of a counting sort: `out` is `order` sorted by keys[order]; `places` has each key's first place."""
    for k in range(len(order)):
        row = order[k]
        place = places[keys[row]]
        places[keys[row]] = place + 1
        out[place] = row


@njit
def _bisect(indptr, row_items, users, items, found):
    """The position of each pair (users[k], items[k]), which must be present."""
    for k in range(len(users)):
        item, low, high = items[k], indptr[users[k]], indptr[users[k] + 1] - 1
        while low < high:
            middle = (low + high) // 2
            if row_items[middle] < item:
                low = middle + 1
            else:
                high = middle
        found[k] = low


@njit
def _mark(mask, users, indptr, items):
    for row in range(len(users)):
        for entry in range(indptr[users[row]], indptr[users[row] + 1]):
            mask[row, items[entry]] = True


# ---- draws from the pairs outside of a pattern ----------------------------------------------------------------------


class UnobservedPairs:
    """S_u, the pairs in neither S_c nor S_t: its size, and n uniform draws in O(n + |S_c| + |S_t| + users).

    The pairs are never listed. `seen` holds the pairs that are not drawn; without it, every pair can be drawn.
    """

    def __init__(self, n_users: int, n_items: int, seen: Pattern | None = None):
        self.shape = n_users, n_items
        self.seen = Pattern.empty(n_users) if seen is None else seen
        self.size = n_users * n_items - len(self.seen.items)

    def draw(self, key: np.uint64, users: np.ndarray, items: np.ndarray) -> None:
        """Fill `users` and `items` (int32) with draws with replacement, sorted by user; `key` determines them.

        Sorted draws read the seen items, and later the teacher's rows, in order. The stream is shuffled afterwards.
        """
        self.draws(key, len(users))(users, items)

    def draws(self, key: np.uint64, n: int) -> Callable[[np.ndarray, np.ndarray], None]:
        """A function that fills two arrays with the next of n such draws."""
        self.check()
        sums, so_far = np.empty(n, np.int64), np.zeros(3, np.int64)
        step = step_of(self.size, _sorted_numbers(key, sums))
        return partial(_next_pairs, sums, step, so_far, *self.seen, self.shape[1], self.size)

    def check(self) -> None:
        """Refuse an empty S_u."""
        if self.size == 0:
            raise InputError("S_u is empty: every pair is in S_c or S_t, so term d has no sample; drop d from terms=")


def step_of(size: int, total: int) -> float:
    """The factor that turns a sum into a position in 0..size-1.

    It is computed outside of the kernel, where a compiler cannot reorder the division and the product.
    """
    return float(size) / float(total)


@njit
def _sorted_numbers(key, sums):
    """Fill `sums` with partial sums of standard exponentials; return the sum with one more term."""
    total = np.int64(0)
    for j in range(len(sums)):
        total += exponential(key, j)
        sums[j] = total
    return total + exponential(key, len(sums))


@njit
def _next_pairs(sums, step, so_far, indptr, seen, n_items, size, users, items):
    """Turn the next of n sorted uniform positions in 0..size-1 into pairs.

    With E_1..E_{n+1} independent standard exponentials, (E_1 + .. + E_j) / (E_1 + .. + E_{n+1}) are distributed as n
    sorted uniform numbers, so one pass over the rows suffices. `so_far` holds the number of earlier draws, the user
    of the last one, and the number of unobserved pairs of the users before that user.
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
        rank = position - before  # place among the user's unseen items; it never falls from draw to draw
        while start + k < stop and seen[start + k] - k <= rank:
            k += 1
        users[j] = user
        items[j] = rank + k
    so_far[0], so_far[1], so_far[2] = drawn + len(users), user, before
