"""Users of whom the model has learned nothing: they get the average user.

Scores of mf are linear in the user's row, so that the mean row's scores are the mean scores of all users that the model
has learned from: the item side, its biases and what the average taste adds. (With ncf the mean row stands in likewise,
though its scores are no longer the mean scores.)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dubnb.backbones import Weights
    from dubnb.data.partition import Partition


def cold_users(data: Partition, parts: Sequence[str]) -> np.ndarray:
    """Bool per user: without a single pair in `parts`, the sets that a model has learned from."""
    if not parts:  # nothing is learned, and nobody is the colder for it
        return np.zeros(data.n_users, dtype=bool)
    met = np.zeros(data.n_users, dtype=bool)
    for part in parts:
        met[data.triplets(part).users] = True
    return ~met


def average_user(weights: Weights, cold: np.ndarray) -> Weights:
    """Weights with one user, the mean of all that are not cold, and the same items."""
    mean = weights.users.mean(axis=0, dtype=np.float64, where=~cold[:, None])
    alone = copy.copy(weights)
    alone.users = mean.astype(np.float32)[None]
    return alone


def with_average(weights: Weights, cold: np.ndarray) -> Weights:
    """The same weights with the average user's row in place of every cold one."""
    if not cold.any() or cold.all():
        return weights
    filled = copy.copy(weights)
    filled.users = weights.users.copy()
    filled.users[cold] = average_user(weights, cold).users[0]
    return filled
