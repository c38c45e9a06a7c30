"""`indifferent`: a world in which popularity says nothing, graded, with a known R^t.

On Yahoo! R3 popular items are the better ones, so that an absence tells something. Elsewhere it need not. Here

1. Taste U_u . V_i over 8 factors, U = N(0, I) / sqrt(8), V = N(0, I) / 8^(1/4); quality b_i = N(0, .4^2).
2. Rating = round(2.4 + 1.2 U.V + b_i + noise) within 1..5, positive above 3; the noise is logistic with standard
   deviation .6, so that R^t is a sigmoid as in the other worlds.
3. S_c: draws of (user by activity, item by availability), kept with probability sigmoid(2 U.V), the first 200,000, a
   pair once. Activity is Pareto(1.5) + .2, availability Pareto(1.2) + .1, independent of quality.
4. Randomized log: 8,000 pairs drawn uniformly; permuted by RandomState(0): 10 % S_t, 10 % S_va, the rest S_te.
"""

import math

import numpy as np

from dubnb._random import generator, key
from dubnb.data.partition import Partition, Triplets
from dubnb.data.simulate import split_randomized
from dubnb.data.truth import Truth, World

NAME = "indifferent"
N_USERS, N_ITEMS, K = 5_000, 800, 8
N_DRAWN, N_KEPT, N_RANDOM = 600_000, 200_000, 8_000
CENTRE, TASTE, QUALITY, NOISE = 2.4, 1.2, 0.4, 0.6
POSITIVE_FROM = 3.5  # before rounding
UNIT = NOISE * math.sqrt(3) / math.pi  # scale of the logistic noise, in ratings
SELECTION = 2.0  # how strongly taste selects


def simulate(seed: int = 0) -> Partition:
    """The Partition; the same seed gives the same bytes."""
    world = _world(seed)
    truth = Truth(world)
    users, items = _biased_pairs(world, seed)
    chosen = generator(seed, NAME, "random").choice(N_USERS * N_ITEMS, N_RANDOM, replace=False)
    parts = {"S_c": _log(truth, users, items), **split_randomized(_log(truth, *np.divmod(chosen, N_ITEMS)))}
    return Partition(parts, (N_USERS, N_ITEMS), truth=truth, name=NAME)


def _world(seed: int) -> World:
    """In units of the noise, so that R^t = sigmoid(mu + c_i + t_ui)."""

    def normal(name: str, *size: int) -> np.ndarray:
        return generator(seed, NAME, name).standard_normal(size)

    return World(
        p=(TASTE / UNIT * normal("U", N_USERS, K) / math.sqrt(K)).astype(np.float32),
        q=(normal("V", N_ITEMS, K) / K**0.25).astype(np.float32),
        a=np.zeros(N_USERS),
        z=np.zeros(N_USERS),
        c=QUALITY / UNIT * normal("b", N_ITEMS),
        h=np.zeros(N_ITEMS),
        pop=np.log(generator(seed, NAME, "availability").pareto(1.2, N_ITEMS) + 0.1),
        mu=(CENTRE - POSITIVE_FROM) / UNIT,
        kappa=0.0,
        beta=0.0,
        tau=0.0,
        sk=0.0,
        nu=0.0,
        label_key=key(seed, NAME, "label"),
        pseudo_key=key(seed, NAME, "pseudo"),
    )


def _biased_pairs(world: World, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """S_c's pairs, each once."""
    activity = generator(seed, NAME, "activity").pareto(1.5, N_USERS) + 0.2
    availability = np.exp(world.pop)
    users = generator(seed, NAME, "users").choice(N_USERS, N_DRAWN, p=activity / activity.sum())
    items = generator(seed, NAME, "items").choice(N_ITEMS, N_DRAWN, p=availability / availability.sum())
    taste = UNIT / TASTE * np.einsum("jk,jk->j", world.p[users], world.q[items], dtype=np.float64)
    kept = generator(seed, NAME, "selection").random(N_DRAWN) < 1.0 / (1.0 + np.exp(-SELECTION * taste))
    pairs = np.unique(users[kept][:N_KEPT] * N_ITEMS + items[kept][:N_KEPT])
    return np.divmod(pairs, N_ITEMS)


def _log(truth: Truth, users: np.ndarray, items: np.ndarray) -> Triplets:
    """Pairs with their labels, and their ratings as grades."""
    labels = truth.label(users, items)
    ratings = np.round(POSITIVE_FROM + UNIT * truth.utility(users, items)).clip(1, 5)
    ratings = np.where(labels > 0, np.maximum(ratings, 4), np.minimum(ratings, 3))  # a half is rounded to even
    return Triplets(users, items, labels, np.ones(len(labels), dtype=np.float32), (ratings - 1) / 4)
