"""A set of items for every user: what was seen, what is left out of a list, which pairs are observed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dubnb._jit import njit


class Pattern(NamedTuple):
    """Distinct (user, item) pairs in CSR order: user u's items, rising, are items[indptr[u] : indptr[u + 1]].

    Made by `of`, `from_csr` and `empty`, it is read-only: the one kind that the kernels are compiled for.
    """

    indptr: np.ndarray  # int64, users + 1
    items: np.ndarray  # int32

    @classmethod
    def of(cls, users: np.ndarray, items: np.ndarray, n_users: int) -> Pattern:
        """From pairs that stand in CSR order already."""
        return cls.from_csr(row_pointers(users, n_users), items)

    @classmethod
    def from_csr(cls, indptr: np.ndarray, items: np.ndarray) -> Pattern:
        """From row pointers and items, of which it keeps views."""
        pattern = cls(indptr.view(), items.view())
        for array in pattern:
            array.flags.writeable = False
        return pattern

    @classmethod
    def empty(cls, n_users: int) -> Pattern:
        """No pair at all."""
        return cls.from_csr(np.zeros(n_users + 1, np.int64), np.zeros(0, np.int32))

    def users(self) -> np.ndarray:
        """The user of every pair, int64."""
        return np.repeat(np.arange(len(self.indptr) - 1), self.sizes())

    def sizes(self) -> np.ndarray:
        """How many items every user has."""
        return np.diff(self.indptr)

    def places(self, users: np.ndarray, items: np.ndarray, n_items: int) -> np.ndarray:
        """Where each of some pairs, all of which must be here, stands among the pairs."""
        return np.searchsorted(self.users() * n_items + self.items, users.astype(np.int64) * n_items + items)

    def find(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Where each of some pairs stands among the pairs, -1 where it does not: a bisection of each user's items."""
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
    """The stable order that sorts pairs by user, then item: two counting sorts, linear, 8 bytes a pair.

    The answer of np.argsort(users * n_items + items, kind="stable").
    """
    users, items = users.astype(np.int32, copy=False), items.astype(np.int32, copy=False)
    by_item = np.empty(len(items), np.int64 if len(items) > np.iinfo(np.int32).max else np.int32)
    _scatter(items, row_pointers(items, shape[1]), np.arange(len(items), dtype=by_item.dtype), by_item)
    order = np.empty_like(by_item)
    _scatter(users, row_pointers(users, shape[0]), by_item, order)
    return order


def union(patterns: Sequence[Pattern], n_items: int) -> Pattern:
    """The pairs that are in at least one of some patterns of the same users."""
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
    """One pass of a counting sort: `order` comes out sorted by keys[order]; `places` are each key's first place."""
    for k in range(len(order)):
        row = order[k]
        place = places[keys[row]]
        places[keys[row]] = place + 1
        out[place] = row


@njit
def _mark(mask, users, indptr, items):
    for row in range(len(users)):
        for entry in range(indptr[users[row]], indptr[users[row] + 1]):
            mask[row, items[entry]] = True
