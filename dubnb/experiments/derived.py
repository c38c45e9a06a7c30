"""Data made from data: the same log with less of S_c, or with other randomized parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dubnb.data.partition import PARTS, Partition

if TYPE_CHECKING:
    from dubnb.data.partition import Triplets


def with_parts(
    data: Partition, name: str, S_c_rows: np.ndarray | None = None, keep_truth: bool = True, **parts: Triplets
) -> Partition:
    """`data` with some rows of S_c only, and other Triplets in some of the randomized parts."""
    rows = slice(None) if S_c_rows is None else S_c_rows
    triplets = {part: parts.get(part, data.triplets(part)) for part in PARTS}
    triplets["S_c"] = data.triplets("S_c").take(rows)
    return Partition(
        triplets,
        (data.n_users, data.n_items),
        user_ids=data.user_ids,
        item_ids=data.item_ids,
        truth=data.truth if keep_truth else None,
        propensities=None if data.propensities is None else data.propensities[rows],
        name=name,
    )
