"""The randomized log -> S_t, S_va and S_te: by a hash of the pair or of the user, by time, or by a permutation.

One's own logs are split by a number u in [0, 1) that each pair always has: a keyed hash of its user and item id.

    S_te: u < a        S_va: a <= u < b        S_t: b <= u

The limits a and b never rise while a log grows (see `shares_by_size`). So a pair that was trained on never enters S_va
or S_te later, and a pair that was chosen on never enters S_te.

The built-in datasets keep a permutation of their rows, which is the paper's split of Yahoo! R3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError, option, shown
from dubnb._random import mix_arrays
from dubnb.data.ids import Ids
from dubnb.data.pair_hash import hashes_of_both, unit, user_hashes
from dubnb.data.triplets import PAPER_SHARES, RANDOMIZED

FEWEST = 3  # rows, or users: one for each of S_t, S_va and S_te
LAST_SEED = 2**32 - 1  # of NumPy's legacy generator
PERMUTATION = "permutation"  # of built-in datasets
PURPOSE = "split"  # names the hash: a split shares none of its numbers with other uses of the ids

TEST_POSITIVES = 200  # wanted in S_te: docs/evaluation.md derives it from the width of a paired interval
VALIDATION_POSITIVES = 150  # wanted in S_va: with 150 expected, fewer than 100 come once in 30,000 logs
LEAST_SHARE = 0.1  # of S_te and of S_va, however large the log is
MOST_TEST, MOST_VALIDATION = 0.35, 0.25  # S_t keeps 40 %
STEP = 40  # shares are whole multiples of 1 / STEP
FARTHEST_TEST, FARTHEST_VALIDATION = 0.5, 0.8  # a and b, where a part has to reach for its only positive or negative
BY_RANK_BELOW = 20  # rows or users: a smaller log is cut by the rank of u, so that no part stays empty


class RandomizedRows(NamedTuple):
    """What a split reads of a randomized log of distinct pairs."""

    users: np.ndarray  # rows of user_ids
    items: np.ndarray
    labels: np.ndarray  # 0 or 1
    user_ids: Ids
    item_ids: Ids
    times: np.ndarray | None = None
    labelled: bool = True  # else click-only: every row is a positive


class SplitFacts(NamedTuple):
    """How a randomized log was split, as summaries and JSON say it."""

    rule: str
    seed: int
    shares: tuple[float, float, float]  # of S_t, S_va and S_te
    why: str  # the reason for the shares

    def text(self) -> str:
        """One line."""
        parts = ", ".join(f"{part} {100 * share:.3g} %" for part, share in zip(RANDOMIZED, self.shares, strict=True))
        return f"split {SAID[self.rule]}: {parts} ({self.why})"


class Parts(NamedTuple):
    """The row numbers of S_t, S_va and S_te, and how they came about."""

    rows: dict[str, np.ndarray]
    facts: SplitFacts


class Split(NamedTuple):
    """How to split: a rule of SPLITS, the shares of S_t, S_va and S_te (None: by the log's size), and the key."""

    rule: str = "random"
    shares: Sequence[float] | None = None
    seed: int = 0

    def checked(self) -> Split:
        """The same, once it is known to be sound."""
        if not isinstance(self.rule, str):
            raise InputError(
                f"split={shown(self.rule)} must be one of {', '.join(SPLITS)}; shares are given by shares="
            )
        rule = _check.choice(option("split", ""), self.rule, tuple(SPLITS))
        seed = _check.whole(option("split_seed", ""), self.seed, low=0, high=LAST_SEED)
        return Split(rule, None if self.shares is None else _checked_shares(self.shares), seed)

    def parts(self, log: RandomizedRows) -> Parts:
        """Split a log of distinct pairs."""
        wanted, why = self._wanted(log)
        rows, used = SPLITS[self.rule](self.seed, log, wanted)
        facts = SplitFacts(self.rule, self.seed, used[:3], why)
        return Parts(dict(zip(RANDOMIZED, rows, strict=True)), facts)

    def _wanted(self, log: RandomizedRows) -> tuple[Shares, str]:
        """The shares, and the reason for them."""
        if self.shares is not None:
            S_t, S_va, S_te = self.shares
            return Shares(S_t, S_va, S_te), "as given"
        if self.rule == PERMUTATION:
            return Shares(*PAPER_SHARES), "as in the paper"
        positives = int(np.count_nonzero(log.labels))
        negatives = len(log.labels) - positives
        rarer = min(positives, negatives) if log.labelled else positives
        what = "positives" if positives <= negatives or not log.labelled else "negatives"
        wanted = shares_by_size(rarer)
        return wanted, _reason(wanted, rarer, what, len(log.labels))


class Shares(NamedTuple):
    """Shares of S_t, S_va and S_te. Those that follow from the size may move a little, given ones do not."""

    S_t: float
    S_va: float
    S_te: float
    given: bool = True


def shares_by_size(rarer: int) -> Shares:
    """The shares of a log that has `rarer` positives (or negatives, if there are fewer of those).

        a     = clip(TEST_POSITIVES / rarer, LEAST_SHARE, MOST_TEST)
        b - a = clip(VALIDATION_POSITIVES / rarer, LEAST_SHARE, MOST_VALIDATION),    both rounded up to 1/40

    Neither share rises while a log grows. Rows are only added, so the number of positives P and of negatives N do not
    fall, nor does min(P, N); T / min(P, N) does not rise, and clip and rounding up keep that order. A sum of two such
    shares, b, does not rise either.
    """
    test, validation = (
        _in_steps(min(most, max(LEAST_SHARE, wanted / max(rarer, 1))))
        for wanted, most in ((TEST_POSITIVES, MOST_TEST), (VALIDATION_POSITIVES, MOST_VALIDATION))
    )
    return Shares((STEP - test - validation) / STEP, validation / STEP, test / STEP, given=False)


def _in_steps(share: float) -> int:
    return math.ceil(share * STEP - 1e-9)


def _reason(shares: Shares, rarer: int, what: str, n: int) -> str:
    """Why the shares are what they are, in words."""
    wanted = f"{TEST_POSITIVES} {what} are wanted in S_te and {VALIDATION_POSITIVES} in S_va"
    has = f"{rarer:,} {what} among {n:,} pairs"
    if rarer * shares.S_te < TEST_POSITIVES - 1e-6 or rarer * shares.S_va < VALIDATION_POSITIVES - 1e-6:
        return f"{wanted}; the log has {has}, and S_t keeps {100 * shares.S_t:.3g} %"
    return f"{wanted}, and {100 * LEAST_SHARE:.3g} % at least; the log has {has}"


Cut = tuple[list[np.ndarray], Shares]  # the rows of S_t, S_va and S_te, and their shares as used


# ---- by hash -------------------------------------------------------------------------------------------------------


def _by_pair(seed: int, log: RandomizedRows, wanted: Shares) -> Cut:
    """Every pair by its own hash."""
    of_users, of_items = hashes_of_both(log.user_ids, log.item_ids, seed, PURPOSE)
    u = unit(mix_arrays(of_users[log.users], of_items[log.items]))
    if len(u) < BY_RANK_BELOW:
        return _by_rank(u, wanted, "distinct pair"), wanted
    return _below_limits(u, log, wanted)


def _by_user(seed: int, log: RandomizedRows, wanted: Shares) -> Cut:
    """All rows of a user in one part, by the hash of the user."""
    of_users = unit(user_hashes(log.user_ids, seed, PURPOSE))
    present, places = np.unique(log.users, return_inverse=True)
    if len(present) < BY_RANK_BELOW:
        chosen = _by_rank(of_users[present], wanted, "user")
        part = np.empty(len(present), np.int8)
        for number, users in enumerate(chosen):
            part[users] = number
        rows = [np.flatnonzero(part[places] == number) for number in range(len(chosen))]
        return rows, wanted
    return _below_limits(of_users[log.users], log, wanted)


def _below_limits(u: np.ndarray, log: RandomizedRows, wanted: Shares) -> Cut:
    """Rows whose u lies below the limits a = share of S_te and b = a + share of S_va.

    Where the size sets the shares, a rises to the least u at which S_te has a positive and a negative (to 1/2 at most),
    then b to where S_va has both (to .8 at most). That too never rises while a log grows: the least u of a class, or
    the least that is not below a, is a minimum over a set that only gains members while a falls.
    """
    a, b = wanted.S_te, wanted.S_te + wanted.S_va
    if not wanted.given:
        a = min(FARTHEST_TEST, max(a, _first_of_both(u, log, 0.0)))
        b = min(FARTHEST_VALIDATION, max(a + wanted.S_va, _first_of_both(u, log, a)))
    te, va = u < a, (u >= a) & (u < b)
    parts = [np.flatnonzero(~te & ~va), np.flatnonzero(va), np.flatnonzero(te)]
    if not len(parts[0]):
        share = f"{100 * (1 - b):.3g} %"
        raise InputError(
            f"S_t, with a share of {share}, has none of {len(u)} randomized pairs: give it more by {option('shares')}"
        )
    return parts, wanted if (a, b) == (wanted.S_te, wanted.S_te + wanted.S_va) else Shares(1 - b, b - a, a)


def _first_of_both(u: np.ndarray, log: RandomizedRows, low: float) -> float:
    """The least limit such that [low, limit) holds a positive and a negative (click-only: a positive); else inf."""
    first = [u[(u >= low) & (log.labels == label)].min(initial=np.inf) for label in ((0, 1) if log.labelled else (1,))]
    return float(np.nextafter(max(first), np.inf))


def _by_rank(u: np.ndarray, wanted: Shares, what: str) -> list[np.ndarray]:
    """S_te has the lowest u, S_va the next, in numbers that the shares give: no wanted part stays empty."""
    _, n_va, n_te = _sizes(len(u), wanted[:3], what)
    te, va, t = np.split(np.argsort(u, kind="stable"), [n_te, n_te + n_va])
    return [np.sort(t), np.sort(va), np.sort(te)]


# ---- by time, and by permutation -----------------------------------------------------------------------------------


def _by_time(seed: int, log: RandomizedRows, wanted: Shares) -> Cut:
    """From past to future; rows of one moment stay in the log's order, but never fall into two parts.

    So that nothing is tested on a moment that was trained on, each cut moves back to where its moment began, or on to
    where it ends if nothing is before it.
    """
    if log.times is None:
        raise InputError(f"splitting by time needs times: name their column with {option('timestamp')}")
    shares, times = wanted[:3], log.times
    order = np.argsort(times, kind="stable")
    sizes = _sizes(len(order), shares, "distinct pair")
    ordered, cuts, start = times[order], [], 0
    for size in sizes[:-1]:
        cut = start + size
        if 0 < cut < len(order) and size:
            first, last = (int(np.searchsorted(ordered, ordered[cut], side)) for side in ("left", "right"))
            cut = first if first > start else last
        cuts.append(cut)
        start = cut
    parts = np.split(order, cuts)
    if any(share > 0 and not len(rows) for share, rows in zip(shares, parts, strict=True)):
        raise InputError(f"the randomized log has too few distinct times for {FEWEST} parts: split it at random")
    return parts, wanted


def _by_permutation(seed: int, log: RandomizedRows, wanted: Shares) -> Cut:
    """Permuted rows, cut one after the other.

    The generator is NumPy's legacy one: with seed 0 and the 54,000 rows of Yahoo! R3 this is the paper's own split.
    """
    order = np.random.RandomState(seed).permutation(len(log.users))
    sizes = _sizes(len(order), wanted[:3], "distinct pair")
    return np.split(order, np.cumsum(sizes)[:-1]), wanted


SPLITS: dict[str, Callable[[int, RandomizedRows, Shares], Cut]] = {
    "random": _by_pair,
    "time": _by_time,
    "user": _by_user,
    PERMUTATION: _by_permutation,
}
SAID = {
    "random": "by a hash of user and item",
    "time": "by time",
    "user": "by a hash of the user",
    PERMUTATION: "by a permutation of the rows",
}


def _checked_shares(shares: Any) -> tuple[float, ...]:
    name, example = option("shares", ""), "three shares of S_t, S_va and S_te"
    try:
        checked = tuple(_check.real(name, share, high=1.0) for share in shares)
    except TypeError:
        raise InputError(f"{name}={shown(shares)} must be {example}, such as .65, .15, .2") from None
    if len(checked) != len(RANDOMIZED) or abs(sum(checked) - 1) > 1e-9 or checked[0] == 0:
        raise InputError(f"{name}={shown(shares)} must be {example} that sum to 1, with S_t above 0")
    return checked


def _sizes(n: int, shares: Sequence[float], what: str) -> list[int]:
    """Rows of S_t, S_va, S_te: rounded shares of n; the last part takes the rest; no wanted part stays empty."""
    if n < FEWEST:
        raise InputError(
            f"the randomized log has {n} {what}(s): a split needs at least {FEWEST}; collect more randomized traffic"
        )
    sizes = [max(1, round(share * n)) if share else 0 for share in shares]
    last = max(k for k, share in enumerate(shares) if share)
    sizes[last] = max(1, n - sum(sizes[:last]))
    sizes[int(np.argmax(sizes))] -= sum(sizes) - n  # raising a part to one row may have taken too many
    return sizes
