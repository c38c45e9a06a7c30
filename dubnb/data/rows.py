"""The rows of a log between reading and splitting: 0/1 labels and grades from raw labels, one row per pair.

**Grades.** Labels above the threshold are positive. A grade says how much a pair was liked, from 0 to 1. The labels of
all logs together decide how a label becomes a grade:

    levels   few labels at even steps, such as 1 to 5 stars:    (label - least) / (greatest - least)
    ranks    many or uneven labels, such as watch seconds:      r / 2 for a negative, 3/4 + r / 4 for a positive

r is the label's mid-rank among the biased log's labels on the same side of the threshold: the share of them that are
smaller, with ties counted half. So negatives and positives lie where 1 to 5 stars do with the threshold 3. Scaling by
the range instead would compress a heavy tail: of seconds up to 3,600, all below 30 would get grades below .01.
`python -m bench.labels` compares the rules.

**Repeated pairs** become one row each, by a rule of `DUPLICATES`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError, option
from dubnb._random import mix_arrays
from dubnb.data.ids import hash_fraction, hashes_of_both
from dubnb.data.pattern import check_binary, csr_order, repeated, vary

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
        """Those of two ranges of users of one log, the second after the first."""
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

    A randomized log must be merged before it is split: otherwise a pair could fall into two parts. `shown`: the
    propensities are P(shown), and a pair gets the harmonic mean of its rows', by weight, so that 1/p is averaged. Where
    they vary, weights are added under every rule: only then is weight / propensity the sum over the pair's rows.
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
