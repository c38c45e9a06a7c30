"""Repeated pairs of a log -> one row each."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dubnb._check import InputError, option
from dubnb.data.pattern import csr_order
from dubnb.data.triplets import repeated


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


def merged(log: Rows, shape: tuple[int, int], rule: str, where: str, pair: Callable[[int, int], str]) -> Rows:
    """A row per pair by a rule of RULES, at the place of the pair's first row; weights are added.

    The randomized log must pass here before it is split, which would scatter a pair over the parts.
    """
    order = csr_order(log.users, log.items, shape)
    again = repeated(log.users, log.items, order)
    n_repeats = int(np.count_nonzero(again))
    if not n_repeats:
        return log
    if rule == "error":
        row = int(order[again][0])
        raise InputError(
            f"{where}: {pair(int(log.users[row]), int(log.items[row]))} stands twice ({n_repeats} such rows): keep one "
            f"row per pair, or say what stays with {option('duplicates')}"
        )
    groups = Groups(order, np.flatnonzero(~again))
    weights = groups.sums(np.ones(len(order)) if log.weights is None else log.weights)
    one = RULES[rule](log, groups)._replace(weights=weights)
    warnings.warn(
        f"{where}: {n_repeats:,} of {len(order):,} rows repeat a pair and were merged: {SAID[rule]}, weights are added",
        stacklevel=2,
    )
    return one.take(np.argsort(order[groups.starts], kind="stable"))


def _chosen(log: Rows, groups: Groups, ranks: list[np.ndarray], last: bool) -> Rows:
    """Of each pair the first or last row by `ranks` (the most important last), ties in the log's order."""
    pairs = groups.pairs()
    by_rank = np.lexsort([*(rank[groups.order] for rank in ranks), pairs])  # stable: ties stay in the log's order
    ends = np.append(groups.starts[1:], len(pairs)) - 1
    return log.take(groups.order[by_rank[ends if last else groups.starts]])


def _first(log: Rows, groups: Groups) -> Rows:
    return _chosen(log, groups, [] if log.times is None else [log.times], last=False)


def _last(log: Rows, groups: Groups) -> Rows:
    return _chosen(log, groups, [] if log.times is None else [log.times], last=True)


def _largest(log: Rows, groups: Groups) -> Rows:
    """By label, then by grade; of equal ones the first."""
    ranks = [-log.labels.astype(np.float64)]
    if log.grades is not None:
        ranks.insert(0, -log.grades)
    return _chosen(log, groups, ranks, last=False)


def _mean(log: Rows, groups: Groups) -> Rows:
    """Means of labels and grades by weight; everything else as in the last row."""
    weights = np.ones(len(log.labels)) if log.weights is None else log.weights
    total = groups.sums(weights)
    kept = _last(log, groups)
    grades = None if log.grades is None else groups.sums(weights * log.grades) / total
    return kept._replace(labels=groups.sums(weights * log.labels) / total, grades=grades)


RULES: dict[str, Callable[[Rows, Groups], Rows]] = {"first": _first, "last": _last, "max": _largest, "mean": _mean}
SAID = {
    "first": "the first of them stays",
    "last": "the last of them stays",
    "max": "the largest label stays",
    "mean": "their labels' mean stays",
}
DUPLICATES = ("error", *RULES)
