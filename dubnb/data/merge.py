"""Repeated pairs of a log -> one row each."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dubnb._check import InputError, option
from dubnb._random import mix_arrays
from dubnb.data.grades import Scale
from dubnb.data.ids import Ids
from dubnb.data.pair_hash import hashes_of_both, unit
from dubnb.data.pattern import csr_order
from dubnb.data.triplets import check_binary, repeated


class Rows(NamedTuple):
    """Feedback as a log has it, row by row; labels may still be ratings."""

    users: np.ndarray  # int32 rows
    items: np.ndarray  # int32 columns
    labels: np.ndarray
    weights: np.ndarray | None = None  # float64
    grades: np.ndarray | None = None
    times: np.ndarray | None = None
    propensities: np.ndarray | None = None

    def take(self, rows: Any) -> Rows:
        """Some rows, as an index or a mask."""
        return Rows(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]


class Groups(NamedTuple):
    """The rows of a log pair by pair: `order` lists rows, those of pair k begin at starts[k], in the log's order."""

    order: np.ndarray
    starts: np.ndarray

    def pairs(self) -> np.ndarray:
        """The number of the pair of each row in `order`."""
        return np.repeat(np.arange(len(self.starts)), np.diff(np.append(self.starts, len(self.order))))

    def sums(self, values: np.ndarray) -> np.ndarray:
        """One sum per pair of one value per row of the log."""
        return np.add.reduceat(values[self.order], self.starts)


class Merging(NamedTuple):
    """What a rule may need to know beside the rows."""

    shape: tuple[int, int]
    where: str  # what messages call the log
    pair: Callable[[int, int], str]  # a pair in words, by its row numbers
    ids: tuple[Ids, Ids]  # of users and items
    scale: Scale = Scale()


def merged(log: Rows, rule: str, merging: Merging) -> Rows:
    """A row per pair by a rule of RULES, at the place of the pair's first row.

    The randomized log must pass here before it is split, which would scatter a pair over the parts.
    """
    order = csr_order(log.users, log.items, merging.shape)
    again = repeated(log.users, log.items, order)
    n_repeats = int(np.count_nonzero(again))
    if not n_repeats:
        return log
    if rule == "error":
        row = int(order[again][0])
        pair = merging.pair(int(log.users[row]), int(log.items[row]))
        raise InputError(
            f"{merging.where}: {pair} stands twice ({n_repeats} such rows): keep one row per pair, or say what stays "
            f"with {option('duplicates')}"
        )
    groups = Groups(order, np.flatnonzero(~again))
    one, said = RULES[rule](log, groups, merging), SAID[rule]
    if rule != IMPRESSIONS:
        one = one._replace(weights=groups.sums(np.ones(len(order)) if log.weights is None else log.weights))
        said += ", weights are added"
    warnings.warn(
        f"{merging.where}: {n_repeats:,} of {len(order):,} rows repeat a pair and were merged: {said}", stacklevel=2
    )
    return one.take(np.argsort(order[groups.starts], kind="stable"))


def _impressions(log: Rows, groups: Groups, merging: Merging) -> Rows:
    """The label of one row, the mean of what the rows say, and a weight that saturates.

    The row is the first by time; where several are the first, or none has a time, it is drawn by a hash of the pair's
    ids, whatever the order of the log. 0/1 labels: the grade is the mean label. Ratings, or grades: their mean over
    the rows on the same side of the threshold as the label. n rows weigh 2n / (n + 1) times their mean weight: as many
    independent ones as n with a correlation of 1/2 are worth.
    """
    positive = merging.scale.labels(log.labels)
    if merging.scale.threshold is None:
        check_binary(log.labels, merging.where)
    pairs, ends = groups.pairs(), np.append(groups.starts[1:], len(groups.order))
    sorting = [
        column for column in (log.propensities, log.weights, log.grades, log.labels, log.times) if column is not None
    ]
    by_time = groups.order[np.lexsort([*(column[groups.order] for column in sorting), pairs])]
    n_first = ends - groups.starts
    if log.times is not None:
        times = log.times[by_time]
        n_first = np.add.reduceat((times == np.repeat(times[groups.starts], n_first)).astype(np.int64), groups.starts)
    first = groups.order[groups.starts]
    of_users, of_items = hashes_of_both(*merging.ids, purpose=IMPRESSIONS)
    drawn = unit(mix_arrays(of_users[log.users[first]], of_items[log.items[first]]))
    one = log.take(by_time[groups.starts + (drawn * n_first).astype(np.int64)])

    counts = ends - groups.starts
    weights = np.ones(len(log.labels)) if log.weights is None else log.weights
    one = one._replace(weights=groups.sums(weights) / counts * (2 * counts / (counts + 1)))
    if log.grades is None and merging.scale.kind is None:
        return one._replace(grades=groups.sums(weights * positive) / groups.sums(weights))
    label = np.empty(len(log.labels), positive.dtype)
    label[groups.order] = np.repeat(merging.scale.labels(one.labels), counts)
    same = weights * (positive == label)

    total = groups.sums(same)
    if log.grades is not None:
        one = one._replace(grades=groups.sums(same * log.grades) / total)
    threshold = merging.scale.threshold
    if merging.scale.kind is None or threshold is None:
        return one
    mean = groups.sums(same * log.labels) / total
    above = merging.scale.labels(one.labels) > 0  # rounding must not change sides
    return one._replace(
        labels=np.where(above, np.maximum(mean, np.nextafter(threshold, np.inf)), np.minimum(mean, threshold))
    )


def _chosen(log: Rows, groups: Groups, ranks: list[np.ndarray], last: bool) -> Rows:
    """Of each pair the first or last row by `ranks` (the most important last), ties in the log's order."""
    pairs = groups.pairs()
    by_rank = np.lexsort([*(rank[groups.order] for rank in ranks), pairs])  # stable: ties stay in the log's order
    ends = np.append(groups.starts[1:], len(pairs)) - 1
    return log.take(groups.order[by_rank[ends if last else groups.starts]])


def _first(log: Rows, groups: Groups, merging: Merging) -> Rows:
    return _chosen(log, groups, [] if log.times is None else [log.times], last=False)


def _last(log: Rows, groups: Groups, merging: Merging) -> Rows:
    return _chosen(log, groups, [] if log.times is None else [log.times], last=True)


def _largest(log: Rows, groups: Groups, merging: Merging) -> Rows:
    """By label, then by grade; of equal ones the first."""
    ranks = [-log.labels.astype(np.float64)]
    if log.grades is not None:
        ranks.insert(0, -log.grades)
    return _chosen(log, groups, ranks, last=False)


def _mean(log: Rows, groups: Groups, merging: Merging) -> Rows:
    """Means of labels and grades by weight; everything else as in the last row."""
    weights = np.ones(len(log.labels)) if log.weights is None else log.weights
    total = groups.sums(weights)
    kept = _last(log, groups, merging)
    grades = None if log.grades is None else groups.sums(weights * log.grades) / total
    return kept._replace(labels=groups.sums(weights * log.labels) / total, grades=grades)


IMPRESSIONS = "impressions"
RULES: dict[str, Callable[[Rows, Groups, Merging], Rows]] = {
    IMPRESSIONS: _impressions,
    "first": _first,
    "last": _last,
    "max": _largest,
    "mean": _mean,
}
SAID = {
    IMPRESSIONS: "the label is that of one row, the mean is kept as the grade, n rows weigh 2n / (n + 1)",
    "first": "the first of them stays",
    "last": "the last of them stays",
    "max": "the largest label stays",
    "mean": "their labels' mean stays",
}
DUPLICATES = (*RULES, "error")
