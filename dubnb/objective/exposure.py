"""Exposure: weights of unobserved pairs by activity and popularity, and the item rates that serve as targets.

A missing pair is stronger evidence of dislike the more often it was exposed: a busy user who did not choose a popular
item says more than a pair that was never shown. Term d therefore gives a pair the weight A_u C_i,

    A_u = (n_u + 1)^p / mean,    C_i = (n_i + 1)^p / mean,    n = counts in S_c,

so that the mean weight over all pairs is 1. With p = 0 all pairs have equal weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb import _check
from dubnb._check import InputError

if TYPE_CHECKING:
    from dubnb.data.partition import Partition, Triplets
    from dubnb.objective.terms import Observed, Unobserved

PRIOR = 40.0  # k: in an item's rate the base rate counts as k ratings of S_t


def checked_powers(name: str, value: Any) -> float | tuple[float, float]:
    """Check one power for users and items, or a pair of them."""
    if not isinstance(value, tuple | list):
        return _check.real(name, value)
    if len(value) != 2:
        raise InputError(f"{name}={_check.shown(value)} must be a number, or two: (for users, for items)")
    return _check.real(name, value[0]), _check.real(name, value[1])


def powers(exposure_power: float | tuple[float, float]) -> tuple[float, float]:
    """(p of the users, p of the items)."""
    return exposure_power if isinstance(exposure_power, tuple) else (exposure_power, exposure_power)


def row_weights(data: Partition, exposure_power: float | tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """(A, C), float64, each of mean 1."""
    S_c = data.triplets("S_c")
    sides = zip((S_c.users, S_c.items), (data.n_users, data.n_items), powers(exposure_power), strict=True)
    A, C = (_weights(np.bincount(rows, minlength=count), p) for rows, count, p in sides)
    return A, C


def _weights(counts: np.ndarray, p: float) -> np.ndarray:
    weights = (counts + 1.0) ** p
    return weights / weights.mean()


def total_weights(observed: Sequence[Observed], d: Unobserved) -> tuple[np.ndarray, np.ndarray]:
    """(weight of each user's row, of each item's row): its observed samples' weights plus gamma A_u sum C."""
    shape = d.pairs.shape
    A, C = d.row_weights or (np.ones(shape[0]), np.ones(shape[1]))
    users, items, weights = (np.concatenate([getattr(t, n) for t in observed]) for n in ("users", "items", "weights"))
    of_users = np.bincount(users, weights, shape[0]) + d.weight * A * C.sum()
    of_items = np.bincount(items, weights, shape[1]) + d.weight * C * A.sum()
    return of_users, of_items


def noise_scale(weight: float, shape: tuple[int, int]) -> float:
    """sqrt(W_u) + sqrt(W_i), the scale for a decay; W_u and W_i are the mean weights of a user's and an item's row.

    weight: the total weight of all pairs. The objective is a weighted sum of squared errors, so the data enter as a
    matrix of weights times labels. If the labels were pure noise, this would be a noise matrix with independent
    entries, whose largest singular value grows like sqrt(row weight) + sqrt(column weight) (Bai and Yin). A decay
    lam/2 (|p|^2 + |q|^2) removes singular values below lam/2. With lam/2 = c (sqrt(W_u) + sqrt(W_i)), one c removes
    the same share of the noise from logs of any size and density. The best c is .2 to .3 rather than 1 because labels
    have a std well below 1 and rows have unequal weights; above .5 only biases remain.
    """
    return float(np.sqrt(weight / shape[0]) + np.sqrt(weight / shape[1]))


def item_rates(S_t: Triplets, n_items: int, prior: float = PRIOR) -> tuple[np.ndarray, float]:
    """(rates, pi): t_i = (sum of targets + k pi) / (n_i + k), an item's rate drawn towards the base rate pi."""
    weights = S_t.weights.astype(np.float64)
    base_rate = float(np.average(S_t.labels, weights=weights))
    totals = np.bincount(S_t.items, weights * S_t.labels, n_items)
    counts = np.bincount(S_t.items, weights, n_items)
    return (totals + prior * base_rate) / (counts + prior), base_rate
