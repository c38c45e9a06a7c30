"""Exposure: how much an unobserved pair tells, and what it is taken to say.

That a busy user did not take a popular item tells more than a pair that nobody ever met. Term d weighs a pair A_u C_i,

    A_u = (n_u + 1)^p / mean,    C_i = (n_i + 1)^p / mean,    n = counts in S_c,

so that the mean weight over all pairs is 1 and p = 0 treats every pair alike.
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

PRIOR = 40.0  # k: how many ratings of S_t the base rate is worth in an item's rate


def checked_powers(name: str, value: Any) -> float | tuple[float, float]:
    """One power for users and items, or one for each."""
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
    """(of the users, of the items): a row's weight is that of its observed samples, plus gamma A_u sum C."""
    shape = d.pairs.shape
    A, C = d.row_weights or (np.ones(shape[0]), np.ones(shape[1]))
    users, items, weights = (np.concatenate([getattr(t, n) for t in observed]) for n in ("users", "items", "weights"))
    of_users = np.bincount(users, weights, shape[0]) + d.weight * A * C.sum()
    of_items = np.bincount(items, weights, shape[1]) + d.weight * C * A.sum()
    return of_users, of_items


def noise_scale(weight: float, shape: tuple[int, int]) -> float:
    """sqrt(W_u) + sqrt(W_i), W the mean weight of a user's and of an item's row: `weight`, of all pairs, over each.

    What a decay has to be compared with: the objective is a weighted sum of squared errors, so its data enter as a
    matrix of weights times labels, and labels that say nothing would make it a noise matrix with independent entries.
    The largest singular value of such a matrix grows like sqrt(row weight) + sqrt(column weight) (Bai and Yin), and a
    decay lam/2 (|p|^2 + |q|^2) removes singular values below lam/2: with lam/2 = c (sqrt(W_u) + sqrt(W_i)) one c cuts
    the same share of the noise from logs of any size and density. Labels of std well below 1, and rows of unequal
    weight, are why the best c is .2 to .3 rather than 1; above .5 only biases are left.
    """
    return float(np.sqrt(weight / shape[0]) + np.sqrt(weight / shape[1]))


def item_rates(S_t: Triplets, n_items: int, prior: float = PRIOR) -> tuple[np.ndarray, float]:
    """(rates, pi): t_i = (sum of targets + k pi) / (n_i + k), an item's rate drawn towards the base rate pi."""
    weights = S_t.weights.astype(np.float64)
    base_rate = float(np.average(S_t.labels, weights=weights))
    totals = np.bincount(S_t.items, weights * S_t.labels, n_items)
    counts = np.bincount(S_t.items, weights, n_items)
    return (totals + prior * base_rate) / (counts + prior), base_rate
