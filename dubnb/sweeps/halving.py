"""Successive halving in synchronous rungs: every point gets a few epochs, the better third more, the best all of them.

A rung begins when the one before has ended, so that which points go on depends on the results alone, never on the order
in which trials happened to end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

KEEP = 3  # one in so many points goes on to the next rung
SHARES = (1 / KEEP**2, 1 / KEEP, 1.0)  # of the epochs, by rung


def sizes(n_points: int) -> list[int]:
    """How many points each rung has."""
    rungs = [n_points]
    for _ in SHARES[1:]:
        rungs.append(math.ceil(rungs[-1] / KEEP))
    return rungs


def epochs(full: int, share: float) -> int:
    """The epochs of a trial in a rung."""
    return max(1, math.ceil(full * share))


def survivors(values: Sequence[float], n: int) -> list[int]:
    """Indices of the n best values in their own order; equal ones go to the first, and -inf (not finished) never."""
    order = sorted(range(len(values)), key=lambda index: (-values[index], index))
    return sorted(index for index in order[:n] if values[index] != -math.inf)


def saved(n_points: int) -> float:
    """The share of a full grid's epochs that halving leaves out."""
    return 1 - sum(n * share for n, share in zip(sizes(n_points), SHARES, strict=True)) / n_points
