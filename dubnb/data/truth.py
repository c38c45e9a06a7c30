"""The truth behind a simulated log: R^t and both labels of every pair, computed on demand.

A label compares a probability with a hash U_ui of (seed, u, i), so two million users times 217 items need no storage:

    R^t_ui = sigmoid(mu + a_u + c_i + t_ui),  t_ui = <p_u, q_i>
    y^t_ui = [U_ui < R^t_ui]
    y^c_ui = [U_ui < sigmoid(logit R^t_ui + h_i)], turned from 1 into 0 with probability nu

So a label is positive where the utility v = logit R^t - logit U (in S_c plus h_i) is above 0. A grade is v in levels;
the noise of v around logit R^t is logistic.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb._check import InputError
from dubnb._jit import njit
from dubnb._random import generator, key, uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dubnb.data.simulate import Config

    RowNumbers = np.ndarray | Sequence[int] | int  # row numbers of users or of items

_TINY = 2.0**-54  # below the least positive uniform number
HIT_FROM = 1.5  # e_i above which an item is a hit
PROBABILITY, LABEL, POLICY_LABEL, UTILITY, POLICY_UTILITY = range(5)  # what `_evaluate` computes


class World(NamedTuple):
    """The parameters of one simulated world, in the letters of the module's formulas."""

    p: np.ndarray  # (n_users, K) float32, taste
    q: np.ndarray  # (n_items, K) float32
    a: np.ndarray  # user generosity
    z: np.ndarray  # how strongly a user selects liked items, N(0, 1)
    c: np.ndarray  # item quality
    h: np.ndarray  # shift of an item's feedback under the policy
    pop: np.ndarray  # item availability, in logs
    mu: float
    kappa: float
    beta: float
    tau: float
    sk: float
    nu: float
    label_key: np.uint64
    pseudo_key: np.uint64


def draw_world(config: Config, seed: int) -> World:
    """A world for a `dubnb.data.simulate.Config`, each parameter from its own stream; mu and kappa are still 0."""

    def normal(name: str, size: int | tuple[int, int]) -> np.ndarray:
        return generator(seed, "simulate", name).standard_normal(size)

    w = np.arange(1, config.K + 1) ** -config.decay
    w /= math.sqrt((w**2).sum())
    q = normal("q", (config.n_items, config.K))
    q /= np.sqrt(((w * q) ** 2).sum(axis=1, keepdims=True))
    p = generator(seed, "simulate", "p").standard_normal((config.n_users, config.K), dtype=np.float32)
    p *= (config.sx * w).astype(np.float32)
    e = generator(seed, "simulate", "e").standard_exponential(config.n_items)
    c = config.si * normal("c", config.n_items) + config.cq * np.maximum(e - HIT_FROM, 0.0)
    return World(
        p=p,
        q=q.astype(np.float32),
        a=generator(seed, "simulate", "a").laplace(scale=config.su / math.sqrt(2.0), size=config.n_users),
        z=normal("z", config.n_users),
        c=c,
        h=config.sh * normal("h", config.n_items) - config.eta * c,
        pop=config.pop_n * normal("pop", config.n_items) + config.pop_e * e,
        mu=0.0,
        kappa=0.0,
        beta=config.beta,
        tau=config.tau,
        sk=config.sk,
        nu=config.nu,
        label_key=key(seed, "simulate", "label"),
        pseudo_key=key(seed, "simulate", "pseudo"),
    )


@njit
def sigmoid64(x):
    """1 / (1 + exp(-x)), in float64."""
    return 1.0 / (1.0 + math.exp(-x))


@njit
def taste(world, user, item):
    """t_ui = <p_u, q_i>."""
    total = np.float32(0.0)
    for k in range(world.p.shape[1]):
        total += world.p[user, k] * world.q[item, k]
    return float(total)


@njit
def logit_truth(world, user, item, t):
    """logit R^t_ui, given t = t_ui."""
    return world.mu + world.a[user] + world.c[item] + t


@njit
def liked_under_policy(world, user, item, t):
    """y^c_ui before pseudo-negatives, given t = t_ui: what drives self-selection."""
    pair = user * world.q.shape[0] + item
    return uniform(world.label_key, pair) < sigmoid64(logit_truth(world, user, item, t) + world.h[item])


@njit
def _value(world, user, item, what):
    """One number about one pair: R^t, y^t, y^c, or the utility behind y^t or y^c."""
    t = taste(world, user, item)
    pair = user * world.q.shape[0] + item
    if what in (UTILITY, POLICY_UTILITY):
        u = uniform(world.label_key, pair)
        u = u if u > _TINY else _TINY
        shift = world.h[item] if what == POLICY_UTILITY else 0.0
        return logit_truth(world, user, item, t) + shift - math.log(u / (1.0 - u))
    if what == PROBABILITY:
        return sigmoid64(logit_truth(world, user, item, t))
    if what == LABEL:
        return 1.0 if uniform(world.label_key, pair) < sigmoid64(logit_truth(world, user, item, t)) else 0.0
    kept = liked_under_policy(world, user, item, t) and uniform(world.pseudo_key, pair) >= world.nu
    return 1.0 if kept else 0.0


@njit
def _evaluate(world, users, items, step, what, out):
    """out[r, j] = `what` of (users[r], items[r * step + j]): step 1 and one column for pairs, step 0 for whole rows."""
    for r in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[r, j] = _value(world, users[r], items[r * step + j], what)


class Truth:
    """R^t and the labels of any pair of a simulated log; `users` and `items` are row numbers, not ids."""

    def __init__(self, world: World):
        self.world = world
        self.n_users, self.n_items = len(world.p), len(world.q)

    def probability(self, users: RowNumbers, items: RowNumbers) -> np.ndarray:
        """R^t, the probability of a positive label under the uniform policy (float64)."""
        return self._pairs(users, items, PROBABILITY)

    def label(self, users: RowNumbers, items: RowNumbers) -> np.ndarray:
        """y^t in {0, 1} (float32): the labels of S_t, S_va and S_te."""
        return self._pairs(users, items, LABEL).astype(np.float32)

    def policy_label(self, users: RowNumbers, items: RowNumbers) -> np.ndarray:
        """y^c in {0, 1} (float32), with pseudo-negatives: the labels of S_c, also for pairs that it lacks."""
        return self._pairs(users, items, POLICY_LABEL).astype(np.float32)

    def utility(self, users: RowNumbers, items: RowNumbers, policy: bool = False) -> np.ndarray:
        """v (float64), positive where y^t is 1; with `policy`, where y^c is 1 before pseudo-negatives."""
        return self._pairs(users, items, POLICY_UTILITY if policy else UTILITY)

    def probability_rows(self, users: RowNumbers) -> np.ndarray:
        """R^t of all items, (len(users), n_items) float64."""
        return self._rows(users, PROBABILITY)

    def label_rows(self, users: RowNumbers) -> np.ndarray:
        """y^t of all items, (len(users), n_items) float32."""
        return self._rows(users, LABEL).astype(np.float32)

    def _pairs(self, users: RowNumbers, items: RowNumbers, what: int) -> np.ndarray:
        users, items = np.broadcast_arrays(
            row_numbers("user", users, self.n_users), row_numbers("item", items, self.n_items)
        )
        out = np.empty((users.size, 1))
        _evaluate(self.world, users.ravel(), items.ravel(), 1, what, out)
        return out.reshape(users.shape)

    def _rows(self, users: RowNumbers, what: int) -> np.ndarray:
        users = np.atleast_1d(row_numbers("user", users, self.n_users))
        out = np.empty((users.size, self.n_items))
        _evaluate(self.world, users, np.arange(self.n_items), 0, what, out)
        return out


def row_numbers(what: str, rows: RowNumbers, size: int) -> np.ndarray:
    """Row numbers as int64, all within 0 .. size-1."""
    rows = np.asarray(rows)
    if rows.size and rows.dtype.kind not in "iu":
        raise InputError(f"{what} rows of dtype {rows.dtype} must be whole numbers: pass rows, not original ids")
    if rows.size and (rows.min() < 0 or rows.max() >= size):
        bad = rows[(rows < 0) | (rows >= size)].flat[0]
        raise InputError(f"{what} row {bad} is outside 0..{size - 1}: this simulation has {size:,} {what}s")
    return np.array(rows, dtype=np.int64)
