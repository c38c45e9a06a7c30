"""The rows of a log after reading: 0/1 labels and grades from raw labels, one row per pair, and the split in parts.

**Grades.** Labels above the threshold are positive. A grade says how much a pair was liked, from 0 to 1. The labels of
all logs together decide how a label becomes a grade:

    levels   few labels at even steps, such as 1 to 5 stars:    (label - least) / (greatest - least)
    ranks    many or uneven labels, such as watch seconds:      r / 2 for a negative, 3/4 + r / 4 for a positive

r is the label's mid-rank among the biased log's labels on the same side of the threshold. It is the share of them that
are smaller, with ties counted half. So negatives and positives lie where 1 to 5 stars do with the threshold 3. Scaling
by the range instead would compress a heavy tail: of seconds up to 3,600, all below 30 would get grades below .01.
`python -m bench.labels` compares the rules.

**Repeated pairs** become one row each, by a rule of `DUPLICATES`.

**The split** makes S_t, S_va and S_te of a randomized log: by a hash of the pair or of the user, by time, or by a
permutation. A user's own logs are split by a number u in [0, 1) that never changes for a pair: a keyed hash of its two
ids.

    S_te: u < a        S_va: a <= u < b        S_t: b <= u

The limits a and b never rise while a log grows (see `shares_by_size`). So a pair that was trained on never enters S_va
or S_te later, and a pair of S_va never enters S_te.

The built-in datasets use a permutation of their rows, which is the paper's split of Yahoo! R3.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError, option, short_repr
from dubnb._random import mix_arrays
from dubnb.data.ids import hash_fraction, hashes_of_both, user_hashes
from dubnb.data.pattern import PAPER_SHARES, RANDOMIZED, check_binary, csr_order, repeated, vary

LEVELS, RANKS = "levels", "ranks"
MOST_STEPS = 20  # between the least and the greatest of a scale's levels
SAMPLED_LABELS = 10_000  # labels that are checked first for more levels than that
TOP_NEGATIVE, LEAST_POSITIVE = 0.5, 0.75  # grades by rank: limits of the negatives and of the positives
IMPRESSIONS = "impressions"
DUPLICATE_RULES = {  # rules for repeated pairs, with the words of the warning
    IMPRESSIONS: "the label is that of one row, the mean is kept as the grade, n rows weigh 2n / (n + 1)",
    "first": "the first row is kept",
    "last": "the last row is kept",
    "max": "the row with the largest label is kept",
    "mean": "the mean of the labels is kept",
}
DUPLICATES = (*DUPLICATE_RULES, "error")


class LogRows(NamedTuple):
    """The rows of one log, column by column; labels may still be ratings."""

    users: np.ndarray  # int32 places in user_ids
    items: np.ndarray  # int32 places in item_ids
    labels: np.ndarray
    user_ids: np.ndarray  # int64, uint64 or str
    item_ids: np.ndarray
    weights: np.ndarray | None = None  # float64
    grades: np.ndarray | None = None
    times: np.ndarray | None = None
    propensities: np.ndarray | None = None  # biased log: P(observed); randomized log: P(shown)
    labelled: bool = True  # False: a click-only log, every row is a positive
    where: str = "log"  # the log's name in messages

    @property
    def shape(self) -> tuple[int, int]:
        """The number of users and of items."""
        return len(self.user_ids), len(self.item_ids)

    def take(self, rows: Any) -> LogRows:
        """Some of the rows, selected by an index or a mask."""
        columns: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[rows]
            for name in ("users", "items", "labels", "weights", "grades", "times", "propensities")
        }
        return self._replace(**columns)

    def feedback(self, part: str = "S_c") -> tuple[Any, ...]:
        """The columns of a Partition: users, items, labels, weights, grades and, except for S_c, P(shown) and times."""
        columns = self.users, self.items, self.labels, self.weights, self.grades
        return columns if part == "S_c" else (*columns, self.propensities, self.times)


# ---- labels and grades ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """How raw labels become 0/1 labels and grades; made by `scale_of`."""

    threshold: float | None = None  # None: the labels are 0 and 1 already
    kind: str | None = None  # LEVELS, RANKS, or None: there are only two levels, so no grades
    low: float = 0.0
    high: float = 1.0
    negatives: np.ndarray | None = None  # for RANKS: the sorted labels that define the ranks
    positives: np.ndarray | None = None

    def labels(self, values: np.ndarray) -> np.ndarray:
        """0 or 1 for each raw label; without a threshold, the raw labels."""
        return values if self.threshold is None else (values > self.threshold).astype(np.int8)

    def grades(self, values: np.ndarray) -> np.ndarray | None:
        """A grade for each raw label, or None."""
        if self.kind == LEVELS:
            return np.asarray((values - self.low) / (self.high - self.low))
        if self.kind is None:
            return None
        below, above = _mid_ranks(values, self.negatives), _mid_ranks(values, self.positives)
        positive = LEAST_POSITIVE + (1 - LEAST_POSITIVE) * above
        return np.where(self.labels(values) > 0, positive, TOP_NEGATIVE * below).astype(np.float32)


def scale_of(logs: Sequence[np.ndarray], threshold: float | None) -> Scale:
    """The scale of the raw labels of some logs, the biased log first."""
    if threshold is None:
        return Scale()
    threshold = _check.real(option("threshold", ""), threshold, low=-math.inf)
    for values in logs:
        if not np.isfinite(values).all():
            raise InputError(f"label {values[~np.isfinite(values)][0]} is not finite: correct or drop it")
    low = min((float(values.min()) for values in logs if len(values)), default=0.0)
    high = max((float(values.max()) for values in logs if len(values)), default=0.0)
    if not any(((values > low) & (values < high)).any() for values in logs):
        return Scale(threshold, None, low, high)
    if _has_levels(logs, low, high):
        return Scale(threshold, LEVELS, low, high)
    sides = []
    for wanted in (False, True):
        found = [values[(values > threshold) == wanted].astype(np.float64) for values in logs]
        sides.append(np.sort(next((values for values in found if len(values)), np.empty(0))))
    return Scale(threshold, RANKS, low, high, *sides)


def _has_levels(logs: Sequence[np.ndarray], low: float, high: float) -> bool:
    """Whether all labels are among at most 21 levels at even steps."""
    if high - low <= MOST_STEPS and all(values.dtype.kind in "iub" for values in logs):
        return True
    if any(len(np.unique(values[:SAMPLED_LABELS])) > MOST_STEPS + 1 for values in logs):
        return False
    levels = np.unique(np.concatenate([np.unique(values).astype(np.float64) for values in logs]))
    if len(levels) > MOST_STEPS + 1:
        return False
    steps = (levels - low) / np.diff(levels).min()
    return bool(steps[-1] < MOST_STEPS + 0.5 and np.abs(steps - np.rint(steps)).max() < 1e-6)


def _mid_ranks(values: np.ndarray, among: np.ndarray | None) -> np.ndarray:
    """The share of `among` that is smaller than each value, with equal ones counted half."""
    if among is None or not len(among):
        return np.full(len(values), 0.5)
    first, last = (np.searchsorted(among, values, side) for side in ("left", "right"))
    return np.asarray((first + last) / (2.0 * len(among)))


# ---- repeated pairs ------------------------------------------------------------------------------------------------


class PairGroups(NamedTuple):
    """The rows of a log grouped by pair: `order` lists rows, those of pair k begin at starts[k], in the log's order."""

    order: np.ndarray
    starts: np.ndarray

    def counts(self) -> np.ndarray:
        """The number of rows of each pair."""
        return np.diff(np.append(self.starts, len(self.order)))

    def sums(self, values: np.ndarray) -> np.ndarray:
        """The sum over each pair's rows of one value per row of the log."""
        return np.add.reduceat(values[self.order], self.starts)

    def sorted_by(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        """The rows pair by pair, within a pair sorted by the columns (the last matters most); the sort is stable."""
        pairs = np.repeat(np.arange(len(self.starts)), self.counts())
        return self.order[np.lexsort([*(column[self.order] for column in columns), pairs])]


def merged(log: LogRows, rule: str, scale: Scale = Scale(), shown: bool = False) -> LogRows:
    """One row per pair by a rule of DUPLICATES; a warning counts the rows that repeat a pair, see `merge_repeats`."""
    one, repeats = merge_repeats(log, rule, scale, shown)
    repeats.report(log.where, len(log.users))
    return one


class Repeats(NamedTuple):
    """The rows of a log that repeat a pair."""

    rows: int = 0
    what_was_done: str = ""
    refused: str = ""  # the first such pair, if the log is refused

    def __add__(self, other: Repeats) -> Repeats:  # type: ignore[override]
        """Add the repeats of two ranges of users; the second follows the first."""
        first = self if self.rows else other
        return first._replace(rows=self.rows + other.rows)

    def report(self, where: str, n_rows: int) -> None:
        """Warn, or refuse the log."""
        if self.refused:
            raise InputError(
                f"{where}: {self.refused} occurs twice ({self.rows} such rows): keep one row per pair, or choose a "
                f"rule with {option('duplicates')}"
            )
        if self.rows:
            warnings.warn(
                f"{where}: {self.rows:,} of {n_rows:,} rows repeat a pair and were merged: {self.what_was_done}",
                stacklevel=3,
            )


def merge_repeats(log: LogRows, rule: str, scale: Scale = Scale(), shown: bool = False) -> tuple[LogRows, Repeats]:
    """One row per pair by a rule of DUPLICATES, at the place of the pair's first row, and what was merged.

    A randomized log must be merged before it is split: otherwise a pair could fall into two parts. With `shown`,
    propensities are P(shown). A pair gets the weighted harmonic mean of its rows' propensities, so that 1/p is
    averaged. Where they vary, weights are added under every rule: only then is weight / propensity the sum over the
    pair's rows.
    """
    order = csr_order(log.users, log.items, log.shape)
    again = repeated(log.users, log.items, order)
    n_repeats = int(np.count_nonzero(again))
    if not n_repeats:
        return log, Repeats()
    if rule == "error":
        row = int(order[again][0])
        pair = f"pair (user {log.user_ids[log.users[row]]}, item {log.item_ids[log.items[row]]})"
        return log, Repeats(n_repeats, refused=pair)
    groups, what_was_done = PairGroups(order, np.flatnonzero(~again)), DUPLICATE_RULES[rule]
    weights = np.ones(len(order)) if log.weights is None else log.weights
    if rule == IMPRESSIONS:
        one = _one_impression(log, groups, weights, scale)
    else:
        one = _one_row(log, groups, weights, rule)._replace(weights=groups.sums(weights))
        what_was_done += ", weights are added"
    if shown and log.propensities is not None:
        one = one._replace(propensities=groups.sums(weights) / groups.sums(weights / log.propensities))
        if vary(log.propensities):
            one = one._replace(weights=groups.sums(weights))
            what_was_done = what_was_done.replace("n rows weigh 2n / (n + 1)", "weights are added")
    return one.take(np.argsort(order[groups.starts], kind="stable")), Repeats(n_repeats, what_was_done)


def _one_row(log: LogRows, groups: PairGroups, weights: np.ndarray, rule: str) -> LogRows:
    """The row of each pair that the rules first, last, max and mean keep; ties are in the log's order.

    "max": the largest label, then the largest grade. "mean": the last row with the weighted means of label and grade.
    """
    by_time = [] if log.times is None else [log.times]
    if rule == "max":
        largest = [-log.labels.astype(np.float64)]
        return log.take(groups.sorted_by(largest if log.grades is None else [-log.grades, *largest])[groups.starts])
    if rule == "first":
        return log.take(groups.sorted_by(by_time)[groups.starts])
    last = log.take(groups.sorted_by(by_time)[groups.starts + groups.counts() - 1])
    if rule == "last":
        return last
    total = groups.sums(weights)
    grades = None if log.grades is None else groups.sums(weights * log.grades) / total
    return last._replace(labels=groups.sums(weights * log.labels) / total, grades=grades)


def _one_impression(log: LogRows, groups: PairGroups, weights: np.ndarray, scale: Scale) -> LogRows:
    """The label of one row, the mean over the rows as grade, and a weight that saturates.

    The row is the first by time. If several rows are the first, or there is no time, a hash of the pair's ids draws
    one, independently of the log's order. With 0/1 labels, the grade is the mean label. With ratings or grades, it is
    their mean over the rows on the label's side of the threshold. n rows weigh 2n / (n + 1) times their mean weight:
    as much as the effective number of independent rows among n with correlation 1/2.
    """
    positive = scale.labels(log.labels)
    if scale.threshold is None:
        check_binary(log.labels, log.where)
    sorting = (log.propensities, log.weights, log.grades, log.labels, log.times)
    by_time = groups.sorted_by([column for column in sorting if column is not None])
    n_first = counts = groups.counts()
    if log.times is not None:
        times = log.times[by_time]
        n_first = np.add.reduceat((times == np.repeat(times[groups.starts], counts)).astype(np.int64), groups.starts)
    first = groups.order[groups.starts]
    of_users, of_items = hashes_of_both(log.user_ids, log.item_ids, purpose=IMPRESSIONS)
    drawn = hash_fraction(mix_arrays(of_users[log.users[first]], of_items[log.items[first]]))
    one = log.take(by_time[groups.starts + (drawn * n_first).astype(np.int64)])

    one = one._replace(weights=groups.sums(weights) / counts * (2 * counts / (counts + 1)))
    if log.grades is None and scale.kind is None:
        return one._replace(grades=groups.sums(weights * positive) / groups.sums(weights))
    label = np.empty(len(log.labels), positive.dtype)
    label[groups.order] = np.repeat(scale.labels(one.labels), counts)
    same = weights * (positive == label)
    total = groups.sums(same)
    if log.grades is not None:
        one = one._replace(grades=groups.sums(same * log.grades) / total)
    if scale.kind is None or scale.threshold is None:
        return one
    mean = groups.sums(same * log.labels) / total
    above = np.maximum(mean, np.nextafter(scale.threshold, np.inf))  # rounding must not change sides
    return one._replace(labels=np.where(scale.labels(one.labels) > 0, above, np.minimum(mean, scale.threshold)))


# ---- splitting -------------------------------------------------------------------------------------------------------


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
    until S_va has both, but at most to .8. These limits never rise while a log grows either. Each is a minimum over a
    set of u: those of a class, or those of a class that are not below a. The set only gains members while the log grows
    and a falls.
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

    So no row of S_te has a time that S_t has too. Each cut moves back to the first row with its time. If no earlier row
    is left, it moves forward to the end of that time.
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
