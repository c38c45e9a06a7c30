"""`Eligibility`: which items a randomized policy could show to whom and when.

Three rules, each optional:

- *windows*: an item can be shown from `start` (inclusive) to `end` (exclusive); without a window, never;
- *exclusions*: an item is hidden from one user after `start` and before `end`, such as from the moment she liked it;
- *strata*: groups of items. The policy first chooses a stratum by any rule, then an eligible item of it uniformly.

A log without propensities gets them from these rules. Let g be the stratum of item i and t_1 .. t_n the times of all
randomized pairs. A user who comes at a random moment of the log is shown i with the probability

    pi_i = 1/n sum over the pairs k of stratum g of [i is open at t_k] / (open items of g at t_k)

and, among the items outside her biased log and her exclusions, with p_ui = pi_i / (1 - sum of pi over those items). An
exclusion counts for the share of the times at which it holds. If the pair itself was shown, the exclusion came later,
and does not count. Without windows and exclusions p_ui is exact. With them it is exact for users who are equally likely
to come at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dubnb._check import InputError
from dubnb.data.pattern import Pattern, Triplets, row_pointers, union


class Windows(NamedTuple):
    """Disjoint periods in which each item is open: item i's are start[indptr[i] : indptr[i + 1]] to `end`."""

    indptr: np.ndarray  # int64, items + 1
    start: np.ndarray  # float64
    end: np.ndarray


class Exclusions(NamedTuple):
    """Periods in which users cannot be shown an item, sorted by user and item."""

    indptr: np.ndarray  # int64, users + 1
    items: np.ndarray  # int32
    start: np.ndarray  # float64
    end: np.ndarray

    def users(self) -> np.ndarray:
        """The user of every exclusion."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))


class Barred(NamedTuple):
    """The pairs that are not candidates: some of each user's items, and items that are closed for all users."""

    pattern: Pattern  # pairs of items that are not closed
    closed: np.ndarray  # bool, by item

    def mask(self, users: np.ndarray, n_items: int) -> np.ndarray:
        """(users, n_items) bool: true where the item is not a candidate."""
        return np.asarray(self.pattern.mask(users, n_items) | self.closed)

    def sizes(self) -> np.ndarray:
        """How many items are not candidates, by user."""
        return np.asarray(self.pattern.sizes() + int(self.closed.sum()))


@dataclass(frozen=True, eq=False)
class Eligibility:
    """The rules of a randomized policy in row numbers; `shares` and `derived` are set by a Partition."""

    windows: Windows
    exclusions: Exclusions
    strata: np.ndarray  # int64, by item; -1: unknown, never shown
    names: tuple[str, ...]  # of the strata
    shares: np.ndarray | None = None  # pi, by item
    derived: bool = False  # whether the randomized log's propensities come from these rules

    @classmethod
    def of(
        cls,
        shape: tuple[int, int],
        windows: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
        exclusions: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None = None,
        strata: np.ndarray | None = None,
        names: tuple[str, ...] = ("all items",),
    ) -> Eligibility:
        """Rules from columns: windows (items, start, end) and exclusions (users, items, start, end), in any order."""
        n_users, n_items = shape
        if windows is None:
            windows = np.arange(n_items), np.full(n_items, -np.inf), np.full(n_items, np.inf)
        opened = _merged_windows(windows[0], windows[1], windows[2], n_items)
        if exclusions is None:
            exclusions = (np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0), np.zeros(0))
        users, items, start, end = exclusions
        order = np.lexsort((start, items, users))
        hidden = Exclusions(
            row_pointers(users, n_users), items[order].astype(np.int32), start[order] * 1.0, end[order] * 1.0
        )
        strata = np.zeros(n_items, np.int64) if strata is None else np.asarray(strata, np.int64)
        return cls(opened, hidden, strata, names)

    @property
    def timed(self) -> bool:
        """Whether a rule depends on time."""
        return any(np.isfinite(each).any() for each in (*self.windows[1:], *self.exclusions[2:]))

    def open_at(self, items: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Whether each item is in one of its windows at each time (bool)."""
        found = np.zeros(len(items), bool)
        low, high = self.windows.indptr[items], self.windows.indptr[items + 1]
        for k in range(int((high - low).max(initial=0))):
            at = np.minimum(low + k, max(len(self.windows.start) - 1, 0))
            found |= (low + k < high) & (self.windows.start[at] <= times) & (times < self.windows.end[at])
        return found

    def eligible(self, users: np.ndarray, items: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Whether each item could be shown to each user at each time (bool)."""
        fine = self.open_at(items, times) & (self.strata[items] >= 0)
        keys = self.exclusions.users() * len(self.strata) + self.exclusions.items
        wanted = users.astype(np.int64) * len(self.strata) + items
        low, high = (np.searchsorted(keys, wanted, side) for side in ("left", "right"))
        for k in range(int((high - low).max(initial=0))):
            at = np.minimum(low + k, max(len(keys) - 1, 0))
            hidden = (self.exclusions.start[at] < times) & (times < self.exclusions.end[at])
            fine &= ~((low + k < high) & hidden)
        return fine

    def n_open(self, groups: np.ndarray, group: int, times: np.ndarray) -> np.ndarray:
        """The number of items of one group that are open at each time; exclusions are not counted."""
        own = np.repeat((groups == group) & (self.strata >= 0), np.diff(self.windows.indptr))
        starts, ends = np.sort(self.windows.start[own]), np.sort(self.windows.end[own])
        return np.searchsorted(starts, times, "right") - np.searchsorted(ends, times, "right")

    def with_shares(self, items: np.ndarray, times: np.ndarray) -> Eligibility:
        """These rules with pi for a randomized log of these items at these times."""
        shares, indptr = np.zeros(len(self.strata)), self.windows.indptr
        for stratum in range(len(self.names)):
            own = np.sort(times[self.strata[items] == stratum])
            values = 1.0 / np.maximum(self.n_open(self.strata, stratum, own), 1)
            sums = np.append(0.0, np.cumsum(values))
            first, last = (np.searchsorted(own, each, "left") for each in self.windows[1:])
            by_window = (sums[last] - sums[first]) / max(len(times), 1)
            by_item = np.append(0.0, np.cumsum(by_window))
            member = self.strata == stratum
            shares[member] = (by_item[indptr[1:]] - by_item[indptr[:-1]])[member]
        shares[shares < 1e-15] = 0.0
        return replace(self, shares=shares)

    def hidden_shares(self, random: Triplets) -> np.ndarray:
        """The share of the log's times at which each exclusion holds; 0 where the pair itself was shown."""
        times = np.sort(times_of_pairs(random))
        first = np.searchsorted(times, self.exclusions.start, "right")
        last = np.searchsorted(times, self.exclusions.end, "left")
        users = self.exclusions.users()
        keys = random.users.astype(np.int64) * len(self.strata) + random.items
        shown = np.isin(users * len(self.strata) + self.exclusions.items, keys)
        return np.where(shown, 0.0, np.maximum(last - first, 0) / max(len(times), 1))

    def propensities(self, random: Triplets, logged: Pattern) -> np.ndarray:
        """p_ui of every pair of a randomized log; pairs that were not eligible get the mean of the others."""
        assert self.shares is not None
        n_users = len(logged.indptr) - 1
        taken = np.bincount(logged.users(), self.shares[logged.items], n_users)
        users, hidden = self.exclusions.users(), self.hidden_shares(random)
        outside = logged.find(users, self.exclusions.items) < 0
        taken += np.bincount(users, self.shares[self.exclusions.items] * hidden * outside, n_users)
        p = self.shares[random.items] / np.maximum(1.0 - taken[random.users], 1e-9)
        p[p == 0] = p[p > 0].mean() if (p > 0).any() else 1.0
        return np.minimum(p, 1.0)

    def barred(self, pattern: Pattern, random: Triplets) -> Barred:
        """The pairs that are not candidates: those of `pattern`, closed items, and exclusions at all times."""
        assert self.shares is not None
        closed, always = self.shares == 0, self.hidden_shares(random) > 1 - 1e-12
        users, n_users = self.exclusions.users()[always], len(pattern.indptr) - 1
        pairs = union([pattern, Pattern.of(users, self.exclusions.items[always], n_users)], len(self.strata))
        kept = ~closed[pairs.items]
        return Barred(Pattern.of(pairs.users()[kept], pairs.items[kept], n_users), closed)

    def moved(self, users: np.ndarray, items: np.ndarray, shape: tuple[int, int]) -> Eligibility:
        """The rules for other rows: `users` and `items` are the new row of each, or -1; new items are never shown."""
        of_windows = items[np.repeat(np.arange(len(items)), np.diff(self.windows.indptr))]
        known = of_windows >= 0
        pairs = np.stack([users[self.exclusions.users()], items[self.exclusions.items]])
        kept = (pairs >= 0).all(axis=0)
        strata = np.full(shape[1], -1, np.int64)
        strata[items[items >= 0]] = self.strata[items >= 0]
        rules = Eligibility.of(
            shape,
            (of_windows[known], self.windows.start[known], self.windows.end[known]),
            (*pairs[:, kept], self.exclusions.start[kept], self.exclusions.end[kept]),
            strata,
            self.names,
        )
        return replace(rules, derived=self.derived)

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Everything that the rules say, for fingerprints."""
        return (*self.windows, *self.exclusions, self.strata)


def times_of_pairs(random: Triplets) -> np.ndarray:
    """The times of a randomized log's pairs; 0 where it has none."""
    return np.zeros(len(random.users)) if random.times is None else random.times


def _merged_windows(items: np.ndarray, start: np.ndarray, end: np.ndarray, n_items: int) -> Windows:
    """Windows by item and time; overlapping ones become one."""
    order = np.lexsort((start, items))
    found: list[list[Any]] = []
    for item, first, last in zip(items[order].tolist(), start[order].tolist(), end[order].tolist(), strict=True):
        if found and found[-1][0] == item and first <= found[-1][2]:
            found[-1][2] = max(found[-1][2], last)
        else:
            found.append([item, first, last])
    columns = np.array(found, dtype=np.float64).reshape(-1, 3)
    return Windows(row_pointers(columns[:, 0].astype(np.int64), n_items), columns[:, 1].copy(), columns[:, 2].copy())


def of_arrays(shape: tuple[int, int], eligible: Any, stratum: Any) -> Eligibility | None:
    """The rules of `Partition.from_matrices`: a bool array by item or by pair, and a stratum by item."""
    if eligible is None and stratum is None:
        return None
    windows = exclusions = strata = None
    names: tuple[str, ...] = ("all items",)
    if eligible is not None:
        mask = np.asarray(eligible)
        if mask.dtype != bool or mask.shape not in ((shape[1],), shape):
            raise InputError(
                f"eligible of {mask.dtype} and shape {mask.shape}: pass a bool array of shape {(shape[1],)} or {shape}"
            )
        open_items = np.flatnonzero(mask if mask.ndim == 1 else mask.any(axis=0))
        windows = open_items, np.full(len(open_items), -np.inf), np.full(len(open_items), np.inf)
        if mask.ndim == 2:
            users, items = np.nonzero(~mask)
            exclusions = users, items, np.full(len(users), -np.inf), np.full(len(users), np.inf)
    if stratum is not None:
        values = np.asarray(stratum)
        if values.shape != (shape[1],):
            raise InputError(f"stratum of shape {values.shape} for {shape[1]} items: pass one stratum per item")
        names_of, strata = np.unique(values.astype(str), return_inverse=True)
        names = tuple(names_of.tolist())
    return Eligibility.of(shape, windows, exclusions, strata, names)
