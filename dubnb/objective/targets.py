"""Targets: the rule that turns an observed pair's (label, grade, set) into (target, weight), for every method.

    binary   S_t: y = label                          S_c: y = 1 if positive, else `negative`
    graded   S_t: y = 1 if positive, else the grade    S_c: y = 1 if positive, else 1/4 + spread (grade - 1/4)
    rates    S_t: y = rate                           S_c: y = negative + (1 - negative) rate

    weight   S_t: 1                                   S_c: 1 - slope/2 + slope y, that is 1/2 + y with slope 1

each times the log's own weight. With negative = 0 and slope = 0 the binary rule is the paper's. Being chosen is itself
a signal, so an observed and disliked pair may deserve a higher target than an unobserved pair. `negative` sets it where
there are no grades. A rate is the share of a pair's impressions that are positive: the label where a pair was shown
once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dubnb._check import InputError

if TYPE_CHECKING:
    from dubnb.data.partition import Partition, Triplets

KINDS = ("binary", "graded", "rates")
MIDDLE = 0.25


@dataclass(frozen=True)
class Targets:
    """The rule and its settings; part of a stage of training."""

    kind: str = "binary"
    negative: float = 0.0
    slope: float = 0.0
    spread: float = 1.0

    def of(self, data: Partition, part: str) -> Triplets:
        """The feedback of S_c or S_t with targets in place of its labels, and the rule's weights."""
        feedback = data.triplets(part)
        negative = np.float32(self.negative if part == "S_c" else 0.0)
        if self.kind == "rates":
            y = rates_of(data, part)
            return self._weighed(feedback._replace(labels=negative + (1 - negative) * y if negative else y), part)
        below: np.ndarray | np.float32 = negative
        if self.kind == "graded":
            if not data.graded:
                raise InputError(
                    f"targets='graded' needs grades, and {data.name} has none: load it with threshold= or grade=, or "
                    "take targets='binary'"
                )
            grades = np.asarray(feedback.grades)
            below = grades if part != "S_c" else spread_grades(grades, self.spread)
        y = feedback.labels
        if self.kind == "graded" or negative:  # else labels are targets as they are, and are not copied
            y = np.where(y > 0, np.float32(1.0), np.float32(0.0) + below).astype(np.float32, copy=False)
        return self._weighed(feedback._replace(labels=y), part)

    def _weighed(self, feedback: Triplets, part: str) -> Triplets:
        """Feedback whose labels are targets already, with the rule's weights."""
        if part != "S_c" or not self.slope:
            return feedback
        factors = np.float32(1 - self.slope / 2) + np.float32(self.slope) * feedback.labels
        return feedback._replace(weights=feedback.weights * np.maximum(factors, np.float32(0)))


def rates_of(data: Partition, part: str) -> np.ndarray:
    """The share of each pair's impressions that are positive: its label where the log says no more."""
    feedback = data.triplets(part)
    return np.asarray(feedback.grades) if data.has_rates else feedback.labels


def spread_grades(grades: np.ndarray, spread: float) -> np.ndarray:
    """Grades spread about MIDDLE, the middle of the three negative levels of five; unchanged with spread 1."""
    return grades if spread == 1 else MIDDLE + spread * (grades - MIDDLE)


BINARY = Targets()
