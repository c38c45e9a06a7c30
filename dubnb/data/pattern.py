"""Pairs of users and items: as rows of a matrix, and as parallel arrays.

`Pattern` is a set of items for every user; `UnobservedPairs` draws uniformly from the pairs outside of one. `Triplets`
is the feedback of one part of a Partition, with the checks of its columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dubnb._check import InputError, option
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
        _find_pairs(self.indptr, self.items, users, items, found)
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
def _find_pairs(indptr, row_items, users, items, found):
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
    sorted uniform numbers, so one pass over the rows suffices. `so_far` holds three numbers: earlier draws, the user of
    the last one, and unobserved pairs of the users before.
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


# ---- triplets --------------------------------------------------------------------------------------------------------


PARTS = ("S_c", "S_t", "S_va", "S_te")
RANDOMIZED = PARTS[1:]
PAPER_SHARES = (0.1, 0.1, 0.8)
# dtypes of the columns of Triplets
_STORED = (np.int32, np.int32, np.float32, np.float32, np.float32, np.float32, np.float64)


class Triplets(NamedTuple):
    """Feedback as parallel arrays, in CSR order."""

    users: np.ndarray  # int32 rows
    items: np.ndarray  # int32 columns
    labels: np.ndarray  # float32, 0 or 1
    weights: np.ndarray  # float32; 1 unless the log has weights or repeated pairs
    grades: np.ndarray | None = None  # float32 in [0, 1], how much it was liked; None if the log has no grades
    propensities: np.ndarray | None = None  # float32 in (0, 1], of S_t, S_va and S_te: P(shown | user, context)
    times: np.ndarray | None = None  # float64, of S_t, S_va and S_te: when the pair was shown

    def take(self, rows: Any) -> Triplets:
        """Some of the rows, selected by an index or a mask."""
        return Triplets(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]


class BiasedCounts(NamedTuple):
    """Counts of the pairs and of the positives of S_c, int64."""

    users: np.ndarray  # pairs of each user
    items: np.ndarray  # pairs of each item
    liked_by_users: np.ndarray  # positives of each user
    liked_of_items: np.ndarray  # positives of each item


def joined(*logs: Triplets) -> Triplets:
    """The rows of all logs, one log after the other; a log without rows may lack grades and propensities."""
    filled = [log for log in logs if len(log.users)] or [logs[0]]
    columns = (
        None if any(each is None for each in column) else np.concatenate(column) for column in zip(*filled, strict=True)
    )
    return Triplets(*columns)  # type: ignore[arg-type]


def checked_propensities(propensities: Any, n: int) -> np.ndarray:
    """P(observed) of n pairs as float64, each checked to be in (0, 1]."""
    propensities = np.asarray(propensities, dtype=np.float64)
    if propensities.shape != (n,):
        raise InputError(f"propensities of shape {propensities.shape} for {n} pairs of S_c: pass one per pair")
    fine = (propensities > 0) & (propensities <= 1)
    if not fine.all():
        raise InputError(f"propensity {propensities[~fine][0]:g} must be above 0 and at most 1")
    return propensities


def columns_of(part: str, triplets: Mapping[str, Sequence[Any]]) -> Triplets:
    """The columns of one part as arrays of one length, dtypes unchanged; weights may be None."""
    if part not in triplets:
        raise InputError(
            f"{part} is missing: give the columns of all of {', '.join(PARTS)}, empty ones as ([], [], [])"
        )
    given = list(triplets[part])
    if not 3 <= len(given) <= len(Triplets._fields):
        raise InputError(
            f"{part} has {len(given)} columns: pass users, items, labels and, if any, weights, grades, propensities "
            "and times"
        )
    given += [None] * (len(Triplets._fields) - len(given))
    named = zip(Triplets._fields, given, strict=True)
    columns = [None if values is None else _column(part, field, values) for field, values in named]
    if any(column is None for column in columns[:3]):
        raise InputError(f"{part} lacks users, items or labels: pass all three")
    sizes = {len(column) for column in columns if column is not None}
    if len(sizes) > 1:
        raise InputError(f"{part} has columns of {' and '.join(map(str, sorted(sizes)))} rows: make them of one length")
    return Triplets(*columns)  # type: ignore[arg-type]


def _column(part: str, field: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"{part}: {field} have {array.ndim} dimensions: pass a 1-d array")
    if not len(array):
        return array.astype(np.int32 if field in ("users", "items") else np.float32)
    if field in ("users", "items"):
        if array.dtype.kind not in "iu":
            raise InputError(
                f"{part}: {field} are of type {array.dtype}: row numbers must be whole numbers, of type int"
            )
        return array
    if array.dtype.kind not in "biuf":
        raise InputError(f"{part}: {field} are of type {array.dtype}: they must be numbers")
    return array


def check_grades(parts: Mapping[str, Triplets], sided: bool = True) -> None:
    """Refuse grades outside [0, 1], and logs in which only some of the parts with feedback have grades.

    If `sided`, the grades of negatives must lie below those of positives. Mean labels of impressions are not sided.
    """
    filled = {part: triplets for part, triplets in parts.items() if len(triplets.users)}
    without = [part for part, triplets in filled.items() if triplets.grades is None]
    if len(without) == len(filled):
        return
    if without:
        raise InputError(f"{without[0]} has no grades but another part has: give grades in all logs, or in none")
    negative, positive = -np.inf, np.inf
    for part, triplets in filled.items():
        grades = np.asarray(triplets.grades)
        fine = (grades >= 0) & (grades <= 1)  # false for nan
        if not fine.all():
            raise InputError(f"{part}: grade {grades[~fine][0]:g} must be a number from 0 to 1: rescale it")
        negative = max(negative, grades[triplets.labels == 0].max(initial=-np.inf))
        positive = min(positive, grades[triplets.labels == 1].min(initial=np.inf))
    if sided and not negative < positive:
        raise InputError(
            f"a negative pair has the grade {negative:g} and a positive one {positive:g}: grades must lie on their "
            "label's side of the threshold; correct the labels or the grades"
        )


def check_exploration(parts: Mapping[str, Triplets]) -> None:
    """Either every randomized part with feedback has propensities, all in (0, 1], or none has; S_c has none here."""
    with_column = [part for part, triplets in parts.items() if triplets.propensities is not None]
    outside = [part for part in with_column if part not in RANDOMIZED]
    if outside:
        raise InputError(
            f"{outside[0]} has a sixth column: only S_t, S_va and S_te hold P(shown) there; pass those of the biased "
            "log as propensities="
        )
    for part in RANDOMIZED:
        propensities = parts[part].propensities
        if propensities is None:
            if with_column and len(parts[part].users):
                raise InputError(
                    f"{part} has no propensities but {with_column[0]} has: give them to all randomized parts or none"
                )
            continue
        fine = (propensities >= np.finfo(np.float32).tiny) & (propensities <= 1)  # false for nan
        if not fine.all():
            raise InputError(
                f"{part}: propensity {propensities[~fine][0]:g} must be above 0 and at most 1: pass P(shown)"
            )


def vary(propensities: np.ndarray | None) -> bool:
    """Whether propensities differ by more than rounding; uniform traffic may be logged with equal ones."""
    if propensities is None or not len(propensities):
        return False
    return bool(propensities.max() > propensities.min() * (1 + 1e-6))


def importance_of(propensities: np.ndarray | None) -> np.ndarray | None:
    """1 / propensity, divided by its mean, truncated at sqrt(n) for n pairs (Ionides, 2008), and divided by its mean.

    None where propensities do not vary. This is the only place where propensities become weights.
    """
    if propensities is None or not vary(propensities):
        return None
    weights = 1.0 / np.asarray(propensities, np.float64)
    weights = np.minimum(weights / weights.mean(), np.sqrt(len(weights)))
    return np.asarray(weights / weights.mean())


def pair_keys(triplets: Triplets, n_items: int) -> np.ndarray:
    """user row * n_items + item row of every pair, int64."""
    keys: np.ndarray = triplets.users.astype(np.int64)
    keys *= n_items
    keys += triplets.items
    return keys


def check_binary(labels: np.ndarray, where: str) -> None:
    """Refuse labels other than 0 and 1."""
    fine = (labels == 0) | (labels == 1)
    if not fine.all():
        raise InputError(
            f"{where}: label {float(labels[~fine][0]):g} is neither 0 nor 1: pass {option('threshold')} "
            "(labels above it are positive)"
        )


def checked_order(triplets: Triplets, shape: tuple[int, int], part: str, pair: Any) -> np.ndarray:
    """The CSR order of the rows, after checks: rows in range, labels 0/1, weights above 0, no pair with two labels."""
    users, items, labels, weights, *_ = triplets
    for column, size, what in ((users, shape[0], "user"), (items, shape[1], "item")):
        if len(column) and (column.min() < 0 or column.max() >= size):
            bad = column[(column < 0) | (column >= size)][0]
            raise InputError(f"{part}: {what} row {bad} is outside 0..{size - 1}")
    check_binary(labels, part)
    if weights is not None:
        fine = (weights >= np.finfo(np.float32).tiny) & (weights <= np.finfo(np.float32).max)  # stored as float32
        if not fine.all():
            raise InputError(f"{part}: weight {weights[~fine][0]:g} must be above 0 and finite (as float32)")
    order = csr_order(users, items, shape)
    repeats = repeated(users, items, order)
    if not repeats.any():
        return order
    clash = repeats & (labels[order] != labels[np.roll(order, 1)])
    if clash.any():
        row = order[clash][0]
        where = pair(int(users[row]), int(items[row]))
        raise InputError(f"{part}: {where} occurs twice with different labels: keep one row per pair")
    warnings.warn(f"{part}: {int(repeats.sum())} repeated pairs with equal labels dropped", stacklevel=3)
    return order[~repeats]


def repeated(users: np.ndarray, items: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Which rows, taken in CSR order, have the same pair as the row before (bool)."""
    again = np.zeros(len(order), dtype=bool)
    for column in (users, items):
        ordered = column[order]
        equal = ordered[1:] == ordered[:-1]
        again[1:] = equal if column is users else again[1:] & equal
    return again


def stored(triplets: Triplets, order: np.ndarray) -> Triplets:
    """The rows in the given order and in the dtypes of a Partition."""
    columns = [
        None if column is None else column[order].astype(dtype, copy=False)
        for column, dtype in zip(triplets, _STORED, strict=True)
    ]
    if columns[3] is None:
        columns[3] = np.ones(len(order), dtype=np.float32)
    return Triplets(*columns)  # type: ignore[arg-type]


def read_only(triplets: Triplets) -> Triplets:
    """The same columns, made read-only in place."""
    for column in triplets:
        if column is not None:
            column.flags.writeable = False
    return triplets
