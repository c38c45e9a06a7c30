"""Data made from data: the same log with less of S_c, or with other randomized parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dubnb.data.partition import Partition, Triplets


def with_parts(
    data: Partition, name: str, S_c_rows: np.ndarray | None = None, keep_truth: bool = True, **parts: Triplets
) -> Partition:
    """`data` with some rows of S_c only, and other Triplets in some of the randomized parts."""
    rows = slice(None) if S_c_rows is None else S_c_rows
    return data.replace(
        S_c=data.triplets("S_c").take(rows),
        propensities=None if data.propensities is None else data.propensities[rows],
        truth=data.truth if keep_truth else None,
        name=name,
        **parts,
    )
