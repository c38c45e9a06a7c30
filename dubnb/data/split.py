"""Split a randomized log into S_t, S_va and S_te: by a hash of the pair or of the user, by time, or by a permutation.

A user's own logs are split by a number u in [0, 1) that never changes for a pair: a keyed hash of its two ids.

    S_te: u < a        S_va: a <= u < b        S_t: b <= u

The limits a and b never rise while a log grows (see `shares_by_size`). So a pair that was trained on never enters S_va
or S_te later, and a pair of S_va never enters S_te.

The built-in datasets use a permutation of their rows, which is the paper's split of Yahoo! R3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError, option, short_repr
from dubnb._random import mix_arrays
from dubnb.data.ids import hash_fraction, hashes_of_both, user_hashes
from dubnb.data.pattern import PAPER_SHARES, RANDOMIZED
from dubnb.data.rows import LogRows

FEWEST = 3  # rows, or users: one for each of S_t, S_va and S_te
LAST_SEED = 2**32 - 1  # the largest seed of NumPy's legacy generator
PERMUTATION = "permutation"  # the rule of built-in datasets
PURPOSE = "split"  # part of the hash key: no other use of the ids shares these numbers

TEST_POSITIVES = 200  # wanted in S_te: docs/splits.md derives it from the width of a paired interval
VALIDATION_POSITIVES = 150  # wanted in S_va: with 150 expected, one log in 30,000 has fewer than 100
LEAST_SHARE = 0.1  # smallest share of S_te and of S_va, for logs of any size
MOST_TEST, MOST_VALIDATION = 0.35, 0.25  # S_t keeps 40 %
STEP = 40  # shares are whole multiples of 1 / STEP
FARTHEST_TEST, FARTHEST_VALIDATION = 0.5, 0.8  # limits of a and b when they rise to reach a positive and a negative
BY_RANK_BELOW = 20  # rows or users: a smaller log is cut by the rank of u, so that no part is empty


class SplitFacts(NamedTuple):
    """How a randomized log was split, for summaries and JSON."""

    rule: str
    seed: int
    shares: tuple[float, float, float]  # shares of S_t, S_va and S_te
    why: str  # the reason for the shares

    def text(self) -> str:
        """One line."""
        parts = ", ".join(f"{part} {100 * share:.3g} %" for part, share in zip(RANDOMIZED, self.shares, strict=True))
        return f"split {SPLIT_TEXTS[self.rule]}: {parts} ({self.why})"


def checked_split(rule: Any, shares: Any, seed: Any) -> tuple[str, tuple[float, ...] | None, int]:
    """A rule of SPLITS, the shares of S_t, S_va and S_te (None: by the log's size) and the seed, each checked."""
    if not isinstance(rule, str):
        raise InputError(f"split={short_repr(rule)} must be one of {', '.join(SPLITS)}; shares are given by shares=")
    rule = _check.choice(option("split", ""), rule, tuple(SPLITS))
    seed = _check.whole(option("split_seed", ""), seed, low=0, high=LAST_SEED)
    return rule, None if shares is None else _checked_shares(shares), seed


def split_rows(
    log: LogRows, rule: str = "random", shares: Sequence[float] | None = None, seed: int = 0
) -> tuple[dict[str, np.ndarray], SplitFacts]:
    """The row numbers of S_t, S_va and S_te in a log of distinct pairs, and how they were chosen."""
    if shares is not None:
        S_t, S_va, S_te = shares
        wanted, why = Shares(S_t, S_va, S_te), "as given"
    elif rule == PERMUTATION:
        wanted, why = Shares(*PAPER_SHARES), "as in the paper"
    else:
        positives = int(np.count_nonzero(log.labels))
        negatives = len(log.labels) - positives
        rarer = min(positives, negatives) if log.labelled else positives
        what = "positives" if positives <= negatives or not log.labelled else "negatives"
        wanted = shares_by_size(rarer)
        why = _reason(wanted, rarer, what, len(log.labels))
    rows, used = SPLITS[rule](seed, log, wanted)
    return dict(zip(RANDOMIZED, rows, strict=True)), SplitFacts(rule, seed, used[:3], why)


class Shares(NamedTuple):
    """Shares of S_t, S_va and S_te. `given` shares are kept exactly; shares by size may move a little."""

    S_t: float
    S_va: float
    S_te: float
    given: bool = True


def shares_by_size(rarer: int) -> Shares:
    """The shares of a log that has `rarer` positives (or negatives, if there are fewer of those).

        a     = clip(TEST_POSITIVES / rarer, LEAST_SHARE, MOST_TEST)
        b - a = clip(VALIDATION_POSITIVES / rarer, LEAST_SHARE, MOST_VALIDATION),    both rounded up to 1/40

    Neither share rises while a log grows. Rows are only added, so the number of positives P, of negatives N and
    min(P, N) do not fall. Hence T / min(P, N) does not rise, and clipping and rounding up keep that order. The sum b
    of the two shares does not rise either.
    """
    test, validation = (
        math.ceil(min(most, max(LEAST_SHARE, wanted / max(rarer, 1))) * STEP - 1e-9)
        for wanted, most in ((TEST_POSITIVES, MOST_TEST), (VALIDATION_POSITIVES, MOST_VALIDATION))
    )
    return Shares((STEP - test - validation) / STEP, validation / STEP, test / STEP, given=False)


def _reason(shares: Shares, rarer: int, what: str, n: int) -> str:
    """The reason for the shares, in words."""
    wanted = f"{TEST_POSITIVES} {what} are wanted in S_te and {VALIDATION_POSITIVES} in S_va"
    has = f"{rarer:,} {what} among {n:,} pairs"
    if rarer * shares.S_te < TEST_POSITIVES - 1e-6 or rarer * shares.S_va < VALIDATION_POSITIVES - 1e-6:
        return f"{wanted}; the log has {has}, and S_t keeps {100 * shares.S_t:.3g} %"
    return f"{wanted}, and {100 * LEAST_SHARE:.3g} % at least; the log has {has}"


Cut = tuple[list[np.ndarray], Shares]  # the rows of S_t, S_va and S_te, and their shares as used


# ---- by hash -------------------------------------------------------------------------------------------------------


def _by_pair(seed: int, log: LogRows, wanted: Shares) -> Cut:
    """Split by a hash of each pair."""
    of_users, of_items = hashes_of_both(log.user_ids, log.item_ids, seed, PURPOSE)
    u = hash_fraction(mix_arrays(of_users[log.users], of_items[log.items]))
    if len(u) < BY_RANK_BELOW:
        return _by_rank(u, wanted, "distinct pair"), wanted
    return _below_limits(u, log, wanted)


def _by_user(seed: int, log: LogRows, wanted: Shares) -> Cut:
    """Split by a hash of the user, so that a user's rows stay together."""
    of_users = hash_fraction(user_hashes(log.user_ids, seed, PURPOSE))
    present, places = np.unique(log.users, return_inverse=True)
    if len(present) < BY_RANK_BELOW:
        chosen = _by_rank(of_users[present], wanted, "user")
        part = np.empty(len(present), np.int8)
        for number, users in enumerate(chosen):
            part[users] = number
        rows = [np.flatnonzero(part[places] == number) for number in range(len(chosen))]
        return rows, wanted
    return _below_limits(of_users[log.users], log, wanted)


def _below_limits(u: np.ndarray, log: LogRows, wanted: Shares) -> Cut:
    """Cut at the limits a = share of S_te and b = a + share of S_va.

    If the size sets the shares, a rises until S_te has a positive and a negative, but at most to 1/2. Then b rises
    until S_va has both, but at most to .8. These limits never rise while a log grows either: the least u of
    a class, or the least that is not below a, is a minimum over a set that only gains members while a falls.
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


def _first_of_both(u: np.ndarray, log: LogRows, low: float) -> float:
    """The least limit such that [low, limit) has a positive and a negative (click-only: a positive), or inf."""
    first = [u[(u >= low) & (log.labels == label)].min(initial=np.inf) for label in ((0, 1) if log.labelled else (1,))]
    return float(np.nextafter(max(first), np.inf))


def _by_rank(u: np.ndarray, wanted: Shares, what: str) -> list[np.ndarray]:
    """S_te gets the lowest u, S_va the next, in numbers set by the shares; no part with a share is empty."""
    _, n_va, n_te = _sizes(len(u), wanted[:3], what)
    te, va, t = np.split(np.argsort(u, kind="stable"), [n_te, n_te + n_va])
    return [np.sort(t), np.sort(va), np.sort(te)]


# ---- by time, and by permutation -----------------------------------------------------------------------------------


def _by_time(seed: int, log: LogRows, wanted: Shares) -> Cut:
    """Split from past to future; rows with the same time stay in the log's order and in one part.

    So no row of S_te has a time that S_t has too. Each cut moves back to the first row with its time, or forward to
    the end of that time if no earlier row is left.
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


def _by_permutation(seed: int, log: LogRows, wanted: Shares) -> Cut:
    """Permute the rows and cut them in order.

    The generator is NumPy's legacy one: with seed 0 and the 54,000 rows of Yahoo! R3 this is the paper's split.
    """
    order = np.random.RandomState(seed).permutation(len(log.users))
    sizes = _sizes(len(order), wanted[:3], "distinct pair")
    return np.split(order, np.cumsum(sizes)[:-1]), wanted


SPLITS: dict[str, Callable[[int, LogRows, Shares], Cut]] = {
    "random": _by_pair,
    "time": _by_time,
    "user": _by_user,
    PERMUTATION: _by_permutation,
}
SPLIT_TEXTS = {
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
        raise InputError(f"{name}={short_repr(shares)} must be {example}, such as .65, .15, .2") from None
    if len(checked) != len(RANDOMIZED) or abs(sum(checked) - 1) > 1e-9 or checked[0] == 0:
        raise InputError(f"{name}={short_repr(shares)} must be {example} that sum to 1, with S_t above 0")
    return checked


def _sizes(n: int, shares: Sequence[float], what: str) -> list[int]:
    """The number of rows of S_t, S_va and S_te: rounded shares of n; no part with a share is empty."""
    if n < FEWEST:
        raise InputError(
            f"the randomized log has {n} {what}(s): a split needs at least {FEWEST}; collect more randomized traffic"
        )
    sizes = [max(1, round(share * n)) if share else 0 for share in shares]
    last = max(k for k, share in enumerate(shares) if share)
    sizes[last] = max(1, n - sum(sizes[:last]))
    sizes[int(np.argmax(sizes))] -= sum(sizes) - n  # parts that were raised to one row may exceed n
    return sizes
