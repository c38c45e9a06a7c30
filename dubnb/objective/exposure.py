"""Exposure: how much an unobserved pair tells, and what it is taken to say.

That a busy user did not take a popular item tells more than a pair that nobody ever met. Term d weighs a pair A_u C_i,

    A_u = (n_u + 1)^p / mean,    C_i = (n_i + 1)^p / mean,    n = counts in S_c,

so that the mean weight over all pairs is 1 and p = 0 treats every pair alike.
"""

import numpy as np

from dubnb import _check
from dubnb._check import InputError

PRIOR = 40.0  # k: how many ratings of S_t the base rate is worth in an item's rate


def powers(exposure_power):
    """(p of the users, p of the items), from one number for both or from a pair."""
    pair = exposure_power if isinstance(exposure_power, tuple | list) else (exposure_power, exposure_power)
    if len(pair) != 2:
        raise InputError(f"exposure_power={exposure_power!r} must be a number, or two: (for users, for items)")
    return tuple(_check.real("exposure_power", p) for p in pair)


def row_weights(data, exposure_power):
    """(A, C), float64, each of mean 1."""
    S_c = data.triplets("S_c")
    sides = zip((S_c.users, S_c.items), (data.n_users, data.n_items), powers(exposure_power), strict=True)
    return tuple(_weights(np.bincount(rows, minlength=count), p) for rows, count, p in sides)


def _weights(counts, p):
    weights = (counts + 1.0) ** p
    return weights / weights.mean()


def scaled_decays(lam, streams, strength, A, C):
    """(of the users, of the items): lam x row weight / mean row weight.

    A row's weight is that of its samples in `streams`, (users, items, targets, weights) each, plus strength A_u sum C.
    """
    users, items, _, weights = (np.concatenate(columns) for columns in zip(*streams, strict=True))
    of_users = np.bincount(users, weights, len(A)) + strength * A * C.sum()
    of_items = np.bincount(items, weights, len(C)) + strength * C * A.sum()
    return lam * of_users / of_users.mean(), lam * of_items / of_items.mean()


def item_rates(data, prior=PRIOR):
    """(rates, pi) from S_t: t_i = (positives_i + k pi) / (n_i + k), an item's rate drawn towards the base rate pi."""
    _, items, labels, weights, _ = data.triplets("S_t")
    weights = weights.astype(np.float64)
    base_rate = float(np.average(labels, weights=weights))
    positives = np.bincount(items, weights * labels, data.n_items)
    counts = np.bincount(items, weights, data.n_items)
    return (positives + prior * base_rate) / (counts + prior), base_rate


def item_teacher(data, level):
    """t_i as `item_rates` gives it, shifted by `level` - pi: an item of average rate sits at `level`."""
    rates, base_rate = item_rates(data)
    return rates + (level - base_rate)
