"""Values on a scale, such as ratings -> 0/1 labels and grades."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dubnb import _check
from dubnb._check import InputError, option


def labels_and_grades(
    logs: Sequence[np.ndarray], threshold: float | None
) -> tuple[list[np.ndarray], list[np.ndarray | None]]:
    """The labels and the grades of each of some logs' values.

    Values above the threshold are positive; the grade is the value's place within the range of all logs,

        (value - least) / (greatest - least).

    Without a threshold the values are the labels. Two levels say no more than the labels do: then no grades.
    """
    if threshold is None:
        return list(logs), [None] * len(logs)
    threshold = _check.real(option("threshold", ""), threshold, low=-math.inf)
    for values in logs:
        if not np.isfinite(values).all():
            raise InputError(f"label {values[~np.isfinite(values)][0]} is no finite number: correct or drop it")
    labels = [(values > threshold).astype(np.int8) for values in logs]
    low = min((float(values.min()) for values in logs if len(values)), default=0.0)
    high = max((float(values.max()) for values in logs if len(values)), default=0.0)
    if not any(((values > low) & (values < high)).any() for values in logs):
        return labels, [None] * len(logs)
    return labels, [(values - low) / (high - low) for values in logs]
