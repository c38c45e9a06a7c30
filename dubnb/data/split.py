"""The randomized log -> S_t, S_va and S_te: at random, by time, or by user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError, option, shown
from dubnb.data.triplets import PAPER_SHARES, RANDOMIZED

FEWEST = 3  # rows, or users: one for each of S_t, S_va and S_te
LAST_SEED = 2**32 - 1  # of NumPy's legacy generator


class Split(NamedTuple):
    """How to split: a rule of SPLITS, the shares of S_t, S_va and S_te, and the seed of the permutation."""

    rule: str = "random"
    shares: Sequence[float] = PAPER_SHARES
    seed: int = 0

    def checked(self) -> Split:
        """The same, once it is known to be sound."""
        if not isinstance(self.rule, str):
            raise InputError(
                f"split={shown(self.rule)} must be one of {', '.join(SPLITS)}; shares are given by shares="
            )
        rule = _check.choice(option("split", ""), self.rule, tuple(SPLITS))
        seed = _check.whole(option("split_seed", ""), self.seed, low=0, high=LAST_SEED)
        return Split(rule, _checked_shares(self.shares), seed)

    def rows(self, users: np.ndarray, times: np.ndarray | None) -> dict[str, np.ndarray]:
        """{"S_t": ..., "S_va": ..., "S_te": ...}: the row numbers of each part of a log of distinct pairs."""
        return dict(zip(RANDOMIZED, SPLITS[self.rule](self, users, times), strict=True))


def _by_permutation(split: Split, users: np.ndarray, times: np.ndarray | None) -> list[np.ndarray]:
    """Permuted rows, cut one after the other.

    The generator is NumPy's legacy one: with seed 0 and the 54,000 rows of Yahoo! R3 this is the paper's own split.
    """
    return _cut(np.random.RandomState(split.seed).permutation(len(users)), split.shares, "distinct pair")


def _by_time(split: Split, users: np.ndarray, times: np.ndarray | None) -> list[np.ndarray]:
    """From past to future; rows of one moment stay in the log's order, but never fall into two parts.

    So that nothing is tested on a moment that was trained on, each cut moves back to where its moment began, or on to
    where it ends if nothing is before it.
    """
    if times is None:
        raise InputError(f"splitting by time needs times: name their column with {option('timestamp')}")
    order = np.argsort(times, kind="stable")
    sizes = _sizes(len(order), split.shares, "distinct pair")
    ordered, cuts, start = times[order], [], 0
    for size in sizes[:-1]:
        cut = start + size
        if 0 < cut < len(order) and size:
            first, last = (int(np.searchsorted(ordered, ordered[cut], side)) for side in ("left", "right"))
            cut = first if first > start else last
        cuts.append(cut)
        start = cut
    parts = np.split(order, cuts)
    if any(share and not len(rows) for share, rows in zip(split.shares, parts, strict=True)):
        raise InputError(f"the randomized log has too few distinct times for {FEWEST} parts: split it at random")
    return parts


def _by_user(split: Split, users: np.ndarray, times: np.ndarray | None) -> list[np.ndarray]:
    """All rows of a user in one part: permuted users, cut one after the other."""
    distinct, places = np.unique(users, return_inverse=True)
    cuts = _cut(np.random.RandomState(split.seed).permutation(len(distinct)), split.shares, "user")
    part = np.empty(len(distinct), np.int8)
    for number, chosen in enumerate(cuts):
        part[chosen] = number
    return [np.flatnonzero(part[places] == number) for number in range(len(cuts))]


SPLITS: dict[str, Callable[[Split, np.ndarray, Any], list[np.ndarray]]] = {
    "random": _by_permutation,
    "time": _by_time,
    "user": _by_user,
}


def _cut(order: np.ndarray, shares: Sequence[float], what: str) -> list[np.ndarray]:
    return np.split(order, np.cumsum(_sizes(len(order), shares, what))[:-1])


def _checked_shares(shares: Any) -> tuple[float, ...]:
    name, example = option("shares", ""), "three shares of S_t, S_va and S_te"
    try:
        checked = tuple(_check.real(name, share, high=1.0) for share in shares)
    except TypeError:
        raise InputError(f"{name}={shown(shares)} must be {example}, such as .1, .1, .8") from None
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
