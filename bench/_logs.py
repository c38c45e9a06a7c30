"""Logs for the benchmarks: random pairs with skewed activity and popularity, in the shapes that are compared."""

import numpy as np

from dubnb._random import generator
from dubnb.data.partition import Partition, Triplets

YAHOO = {"n_users": 15_400, "n_items": 1_000, "sizes": (311_704, 5_400, 5_400, 43_200)}
PRODUCT = {"n_users": 2_000_000, "n_items": 217, "sizes": (4_798_776, 34_755, 34_755, 278_043)}
SKEW = 1.0  # std of log activity and log popularity
POSITIVES = (0.4, 0.09, 0.09, 0.09)


def partition(shape=YAHOO, scale=1, seed=0):
    """A Partition of that shape; `scale` divides users and samples, for a quick run."""
    n_users, n_items = shape["n_users"] // scale, shape["n_items"]
    sizes = [size // scale for size in shape["sizes"]]
    rng = generator(seed, "bench", n_users, n_items)
    keys = _distinct_pairs(rng, n_users, n_items, sum(sizes))
    parts, start = {}, 0
    for name, size, positive in zip(("S_c", "S_t", "S_va", "S_te"), sizes, POSITIVES, strict=True):
        users, items = np.divmod(keys[start : start + size], n_items)
        parts[name] = triplets(rng, users, items, positive)
        start += size
    return Partition(parts, (n_users, n_items), name="bench")


def triplets(rng, users, items, positive=POSITIVES[0]):
    """Pairs with random labels."""
    labels = (rng.random(len(users)) < positive).astype(np.float32)
    return Triplets(users.astype(np.int32), items.astype(np.int32), labels, np.ones(len(users), np.float32))


def _distinct_pairs(rng, n_users, n_items, n):
    """n distinct pairs as user * n_items + item, in random order."""
    keys = np.zeros(0, np.int64)
    while len(keys) < n:
        users, items = (_skewed(rng, count, 2 * n) for count in (n_users, n_items))
        keys = np.unique(np.concatenate([keys, users * n_items + items]))
    return rng.permutation(keys)[:n]


def _skewed(rng, count, n):
    """n row numbers below `count`, by log-normal popularity."""
    ends = np.cumsum(np.exp(rng.normal(0.0, SKEW, count)))
    return np.minimum(np.searchsorted(ends, rng.random(n) * ends[-1], side="right"), count - 1)
