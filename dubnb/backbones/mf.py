"""Matrix factorisation: s = b0 + b_u + b_i + p_u . q_i, trained by one fused epoch kernel.

A user's weights are (p_u, b_u, 1), an item's (q_i, 1, b_i), so that the score is b0 plus one dot product; the constant
coordinates get no gradient and the biases no regularisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dubnb import losses
from dubnb._jit import njit, span
from dubnb._random import generator
from dubnb.backbones import adam, epochs
from dubnb.backbones import embedding as emb
from dubnb.backbones.extended import Extended
from dubnb.backbones.protocol import Trainer, Weights
from dubnb.stream import Stream


class MF:
    """The weights of one model, which are scored, saved and restored."""

    name: ClassVar[str] = "mf"
    OPTIONS: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, users: np.ndarray, items: np.ndarray, b0: np.float32, rank: int):
        self.users, self.items, self.b0, self.rank = users, items, b0, rank

    @classmethod
    def new(cls, shape: tuple[int, int], rank: int, seed: int, model: str) -> MF:
        """p and q normal with std sqrt(2 / (rows + rank)), biases 0; `model` names the random stream: "c" or "t"."""
        n_users, n_items = shape
        return cls.from_arrays(
            {
                "user_factors": _normal(n_users, rank, generator(seed, model, "init", "users")),
                "item_factors": _normal(n_items, rank, generator(seed, model, "init", "items")),
                "user_bias": np.zeros(n_users, np.float32),
                "item_bias": np.zeros(n_items, np.float32),
                "b0": np.zeros(1, np.float32),
            }
        )

    @staticmethod
    def size(shape: tuple[int, int], rank: int) -> int:
        """Bytes of such weights."""
        return 4 * sum(shape) * emb.padded(rank + 2)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> MF:
        """Weights from the arrays that `arrays` returns."""
        (n_users, rank), n_items = arrays["user_factors"].shape, len(arrays["item_factors"])
        shapes = {"user_factors": (n_users, rank), "item_factors": (n_items, rank)}
        emb.checked(arrays, shapes | {"user_bias": (n_users,), "item_bias": (n_items,), "b0": (1,)})
        users = emb.aligned((len(arrays["user_factors"]), emb.padded(rank + 2)))
        items = emb.aligned((len(arrays["item_factors"]), emb.padded(rank + 2)))
        users[:, :rank], users[:, rank], users[:, rank + 1] = arrays["user_factors"], arrays["user_bias"], 1.0
        items[:, :rank], items[:, rank], items[:, rank + 1] = arrays["item_factors"], 1.0, arrays["item_bias"]
        return cls(users, items, np.float32(arrays["b0"][0]), rank)

    @classmethod
    def from_extended(cls, rows: Extended, b0: float = 0.0) -> MF:
        """Weights from extended rows, the form that exact objectives use."""
        users, items = (emb.aligned((len(side), emb.padded(side.shape[1]))) for side in rows)
        users[:, : rows.P.shape[1]], items[:, : rows.Q.shape[1]] = rows
        return cls(users, items, np.float32(b0), rows.P.shape[1] - 2)

    def extended(self) -> Extended:
        """Copies of the extended rows; b0 is added to the users' biases."""
        rows = Extended(*(np.ascontiguousarray(side[:, : self.rank + 2]) for side in (self.users, self.items)))
        return rows.affine(1.0, float(self.b0))

    def arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays, for saving and for other programs."""
        return {
            "user_factors": self.users[:, : self.rank].copy(),
            "item_factors": self.items[:, : self.rank].copy(),
            "user_bias": self.users[:, self.rank].copy(),
            "item_bias": self.items[:, self.rank + 1].copy(),
            "b0": np.array([self.b0], np.float32),
        }

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Raw scores of the pairs (users[j], items[j])."""
        out = np.empty(len(users), np.float32) if out is None else out
        _score_pairs(self.users[:, None], self.items[:, None], self.b0, emb.as_rows(users), emb.as_rows(items), out)
        return out

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users`, one row each."""
        return self.users[users] @ self.items.T + self.b0

    def gradient(self, batch: Stream, loss: losses.Loss, lam: float, room: Trainer | None = None) -> MF:
        """The gradient that training on a batch uses, as weights."""
        like = MF(np.zeros_like(self.users), np.zeros_like(self.items), np.float32(0.0), self.rank)
        like.b0 = _add_gradients(self.users, self.items, self.b0, batch, loss.code, like.users, like.items)
        like.users[:, self.rank + 1] = like.items[:, self.rank] = 0.0  # the constants
        for own, rows, touched in ((self.users, like.users, batch.users), (self.items, like.items, batch.items)):
            touched, _ = emb.distinct(touched, len(own))
            rows[touched, : self.rank] += np.float32(lam) * own[touched, : self.rank]
        return like

    def tangent(
        self, direction: MF, users: np.ndarray, items: np.ndarray, room: Trainer | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """s and ds = db0 + dP_u . Q_i + P_u . dQ_i of some pairs."""
        turned = np.einsum("jk,jk->j", direction.users[users], self.items[items])
        turned += np.einsum("jk,jk->j", self.users[users], direction.items[items])
        return self.score_pairs(users, items), turned + direction.b0

    def plus(self, step: float, direction: MF) -> MF:
        """self + step * direction, coordinate by coordinate."""
        times = np.float32(step)
        b0 = self.b0 + times * direction.b0
        return MF(self.users + times * direction.users, self.items + times * direction.items, b0, self.rank)

    def finite(self) -> bool:
        """Whether every weight is finite."""
        return emb.all_finite(self.users, self.items, np.array([self.b0]))

    def trainer(self, batch_size: int) -> MFTrainer:
        """A trainer that starts at these weights, with a fresh optimizer."""
        return MFTrainer(self, batch_size)


def rows_of(weights: Weights) -> Extended:
    """The extended rows of mf's weights; exact objectives are for mf only."""
    if not isinstance(weights, MF):
        raise TypeError(f"{weights.name} has no extended rows: exact objectives are for mf")
    return weights.extended()


def _normal(rows: int, rank: int, random: np.random.Generator) -> np.ndarray:
    return random.standard_normal((rows, rank), dtype=np.float32) * np.float32(np.sqrt(2.0 / (rows + rank)))


class Tables(NamedTuple):
    """The arrays that an epoch changes."""

    users: np.ndarray  # (n_users, 3, width)
    items: np.ndarray  # (n_items, 3, width)
    b0: np.ndarray  # (3,) float32: b0 and its two moments


class Work(NamedTuple):
    """Scratch space for one batch."""

    user_slots: emb.Slots
    item_slots: emb.Slots
    sequence: np.ndarray  # (batch,) int32: 0, 1, 2, ...
    starts: np.ndarray  # (batch + 1,) int32
    order: np.ndarray  # (batch,) int32
    user_gradient: np.ndarray  # (1, width)
    item_gradients: np.ndarray  # (batch, width)


class MFModel(NamedTuple):
    """The argument of mf's batch kernels."""

    tables: Tables
    work: Work
    decay: np.ndarray  # (1, width)


class MFTrainer:
    """Trains mf: tables with Adam's moments, and scratch space for a batch."""

    def __init__(self, weights: MF, batch_size: int):
        self.rank, self.width = weights.rank, weights.users.shape[1]
        self.batch_size = batch_size
        b0 = np.array([weights.b0, 0.0, 0.0], dtype=np.float32)
        self.tables = Tables(emb.with_moments(weights.users), emb.with_moments(weights.items), b0)
        self.step = 0
        self.work = Work(
            emb.new_slots(len(weights.users), batch_size),
            emb.new_slots(len(weights.items), batch_size),
            np.arange(batch_size, dtype=np.int32),
            np.zeros(batch_size + 1, np.int32),
            np.zeros(batch_size, np.int32),
            emb.aligned((1, self.width)),
            emb.aligned((batch_size, self.width)),
        )

    def epoch(
        self, stream: Stream, n_terms: int, loss: losses.Loss, lr: float, lam: float, anchors: emb.Anchors | None = None
    ) -> np.ndarray:
        """Train on every sample of `stream`, batch by batch; returns each term's sum of weighted losses."""
        pulls = emb.unanchored(self.rank) if anchors is None else anchors
        totals = np.zeros(n_terms)
        self.step = epochs.epoch(self.model(lam), stream, pulls, self.batch_size, loss.code, lr, self.step, totals)
        return totals

    def model(self, lam: float) -> MFModel:
        """The argument of the batch kernels, with regularisation `lam`."""
        return MFModel(self.tables, self.work, emb.decay_row(self.width, self.rank, lam))

    def weights(self) -> MF:
        """A copy of the weights alone."""
        users, items = (
            emb.aligned((len(self.tables.users), self.width), zeros=False),
            emb.aligned((len(self.tables.items), self.width), zeros=False),
        )
        users[:], items[:] = self.tables.users[:, 0], self.tables.items[:, 0]
        return MF(users, items, self.tables.b0[0], self.rank)

    def subset(self, users: np.ndarray, items: np.ndarray) -> MF:
        """The current weights of some rows, as a small model."""
        return MF(self.tables.users[users, 0], self.tables.items[items, 0], self.tables.b0[0], self.rank)

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Raw scores of pairs under the current weights."""
        out = np.empty(len(users), np.float32) if out is None else out
        _score_pairs(
            self.tables.users, self.tables.items, self.tables.b0[0], emb.as_rows(users), emb.as_rows(items), out
        )
        return out

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users` under the current weights."""
        rows, columns = self.tables.users[users, 0], self.tables.items[:, 0]
        return rows @ columns.T + self.tables.b0[0]

    def factors(self, side: str, rows: np.ndarray) -> np.ndarray:
        """Current factors of some rows of the "users" or "items" table."""
        return getattr(self.tables, side)[rows, 0, : self.rank]

    def finite(self) -> bool:
        """Whether every weight is finite."""
        return emb.all_finite(self.tables.users[:, 0], self.tables.items[:, 0], self.tables.b0[:1])


@njit(fixed_order=True)
def _score_pairs(users_table, items_table, b0, users, items, out):
    for j in range(len(users)):
        out[j] = b0 + emb.dot(emb.weights_of(users_table, users[j]), emb.weights_of(items_table, items[j]))


@njit
def _add_gradients(users_table, items_table, b0, batch, loss, users_gradient, items_gradient):
    """Add the gradient of a batch's mean loss to two tables; returns b0's."""
    users, items, targets, weights = batch.users, batch.items, batch.targets, batch.weights
    share = np.float32(1.0) / np.float32(len(users))
    b0_gradient = np.float32(0.0)
    for j in range(len(users)):
        p, q = users_table[users[j]], items_table[items[j]]
        _, slope = losses.value_and_derivative(loss, b0 + emb.dot(p, q), targets[j])
        error = share * weights[j] * slope
        b0_gradient += error
        for k in range(len(p)):
            users_gradient[users[j], k] += error * q[k]
            items_gradient[items[j], k] += error * p[k]
    return b0_gradient


@epochs.score_batch.of(MFModel)
def score_batch(model, users, items, out):
    """Raw scores of pairs."""
    _score_pairs(model.tables.users, model.tables.items, model.tables.b0[0], users, items, out)


@epochs.train_batch.of(MFModel)
def train_batch(model, batch, anchors, loss, now, totals):
    """Compute all gradients of the batch's mean loss at the current weights, then make one Adam step.

    Users are visited one by one. While a user's row is in the cache, one pass computes its samples' errors, adds to
    both gradients and makes the user's step. Item gradients are summed in compact slots, and items step last, so that
    every gradient is computed from the old item rows.
    """
    # Unpack tuples into local arrays before the loops, which makes the loops faster.
    tables, work, decay = model.tables, model.work, emb.slot_of(model.decay, 0)
    users_table, items_table, b0 = tables.users, tables.items, tables.b0[0]
    items, targets, weights, terms = batch.items, batch.targets, batch.weights, batch.terms
    user_rows, item_rows, item_slot_of = work.user_slots.row, work.item_slots.row, work.item_slots.of_sample
    starts, order, user_gradient, item_gradients = work.starts, work.order, work.user_gradient, work.item_gradients
    n, rank = len(items), anchors.users.shape[1]
    n_users = emb.assign_slots(batch.users, work.user_slots)
    n_items = emb.assign_slots(items, work.item_slots)
    emb.order_by_slot(work.user_slots, n_users, span(work.sequence, 0, n), starts, order)
    item_gradients[:n_items] = np.float32(0.0)
    share = np.float32(1.0) / np.float32(n)
    b0_gradient = np.float32(0.0)
    user_pull = emb.pull_strength(anchors, anchors.users, users_table, work.user_slots, n_users)
    item_pull = emb.pull_strength(anchors, anchors.items, items_table, work.item_slots, n_items)
    for slot in range(n_users):
        if slot + emb.PREFETCH_DISTANCE < n_users:
            emb.prefetch_row(users_table, user_rows[slot + emb.PREFETCH_DISTANCE], 3)
        p, p_m, p_v = emb.row_of(users_table, user_rows[slot])
        dp = emb.slot_of(user_gradient, 0)
        dp[:] = np.float32(0.0)
        for position in range(starts[slot], starts[slot + 1]):
            if position + emb.PREFETCH_DISTANCE < n:
                emb.prefetch_row(items_table, items[order[position + emb.PREFETCH_DISTANCE]], 1)
            j = emb.unsigned(order[position])
            q, dq = emb.weights_of(items_table, items[j]), emb.slot_of(item_gradients, item_slot_of[j])
            s = b0 + emb.dot(p, q)
            value, slope = losses.value_and_derivative(loss, s, targets[j])
            totals[terms[j]] += weights[j] * value
            error = share * weights[j] * slope
            b0_gradient += error
            for k in range(len(p)):
                dp[k] += error * q[k]
                dq[k] += error * p[k]
        if user_pull:
            emb.pull(anchors, anchors.users, work.user_slots.first[slot], p, user_pull, dp)
        dp[rank + 1] = np.float32(0.0)  # the constant 1
        adam.update_row(p, p_m, p_v, dp, decay, now)
    for slot in range(n_items):
        q, q_m, q_v = emb.row_of(items_table, item_rows[slot])
        dq = emb.slot_of(item_gradients, slot)
        if item_pull:
            emb.pull(anchors, anchors.items, work.item_slots.first[slot], q, item_pull, dq)
        dq[rank] = np.float32(0.0)  # the constant 1
        adam.update_row(q, q_m, q_v, dq, decay, now)
    tables.b0[0], tables.b0[1], tables.b0[2] = adam.update(b0, tables.b0[1], tables.b0[2], b0_gradient, now)
    emb.release_slots(work.user_slots, n_users)
    emb.release_slots(work.item_slots, n_items)
