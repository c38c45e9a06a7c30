"""Values on a scale, such as ratings or seconds -> 0/1 labels and grades.

Values above the threshold are positive. How a value becomes a grade depends on the values of all logs:

    levels   few values at even steps, such as 1 to 5 stars:    (value - least) / (greatest - least)
    ranks    many or uneven values, such as watch seconds:      r / 2 for a negative, 3/4 + r / 4 for a positive

r is the value's mid-rank among the values of the biased log on its side of the threshold, over their number: the share
of them that are smaller, with ties counted half. Negatives and positives then lie where 1 to 5 stars do with the
threshold 3. A place within the range would squash a heavy tail: of seconds up to 3,600, all below 30 would have grades
below .01. `python -m bench.labels` compares the rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dubnb import _check
from dubnb._check import InputError, option

LEVELS, RANKS = "levels", "ranks"
MOST_STEPS = 20  # between the least and the greatest of a scale's levels
LOOKED_AT = 10_000  # values in which more levels than that may show themselves already
TOP_NEGATIVE, LEAST_POSITIVE = 0.5, 0.75  # grades by rank: the last of the negatives, the first of the positives


@dataclass(frozen=True)
class Scale:
    """How values become labels and grades; made by `scale_of`."""

    threshold: float | None = None  # None: the values are labels
    kind: str | None = None  # LEVELS, RANKS, or None: the values say no more than the labels do
    low: float = 0.0
    high: float = 1.0
    negatives: np.ndarray | None = None  # of RANKS: the values that ranks are taken in, ascending
    positives: np.ndarray | None = None

    def labels(self, values: np.ndarray) -> np.ndarray:
        """0 or 1 for each value; without a threshold the values themselves."""
        return values if self.threshold is None else (values > self.threshold).astype(np.int8)

    def grades(self, values: np.ndarray) -> np.ndarray | None:
        """A grade for each value, or None."""
        if self.kind == LEVELS:
            return np.asarray((values - self.low) / (self.high - self.low))
        if self.kind is None:
            return None
        below, above = _mid_ranks(values, self.negatives), _mid_ranks(values, self.positives)
        return np.where(
            self.labels(values) > 0, LEAST_POSITIVE + (1 - LEAST_POSITIVE) * above, TOP_NEGATIVE * below
        ).astype(np.float32)


def scale_of(logs: Sequence[np.ndarray], threshold: float | None) -> Scale:
    """The scale of some logs' values, the biased log's first. Two levels say no more than the labels do."""
    if threshold is None:
        return Scale()
    threshold = _check.real(option("threshold", ""), threshold, low=-math.inf)
    for values in logs:
        if not np.isfinite(values).all():
            raise InputError(f"label {values[~np.isfinite(values)][0]} is no finite number: correct or drop it")
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


def labels_and_grades(
    logs: Sequence[np.ndarray], threshold: float | None
) -> tuple[list[np.ndarray], list[np.ndarray | None], Scale]:
    """The labels and the grades of each of some logs' values, and the scale they are of."""
    scale = scale_of(logs, threshold)
    return [scale.labels(values) for values in logs], [scale.grades(values) for values in logs], scale


def _has_levels(logs: Sequence[np.ndarray], low: float, high: float) -> bool:
    """Whether all values are among at most 21 at even steps."""
    if high - low <= MOST_STEPS and all(values.dtype.kind in "iub" for values in logs):
        return True
    if any(len(np.unique(values[:LOOKED_AT])) > MOST_STEPS + 1 for values in logs):
        return False
    levels = np.unique(np.concatenate([np.unique(values).astype(np.float64) for values in logs]))
    if len(levels) > MOST_STEPS + 1:
        return False
    steps = (levels - low) / np.diff(levels).min()
    return bool(steps[-1] < MOST_STEPS + 0.5 and np.abs(steps - np.rint(steps)).max() < 1e-6)


def _mid_ranks(values: np.ndarray, among: np.ndarray | None) -> np.ndarray:
    """The share of `among` that is smaller than each value, equal ones counted half."""
    if among is None or not len(among):
        return np.full(len(values), 0.5)
    first, last = (np.searchsorted(among, values, side) for side in ("left", "right"))
    return np.asarray((first + last) / (2.0 * len(among)))
