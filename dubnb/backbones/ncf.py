"""Neural collaborative filtering: dense layers turn x = [p_u ; q_i] into one score; gradients are written by hand.

h_0 = x;  h_l = f(h_{l-1} W_l + b_l);  s = h_L w + b.   With e = dl/ds per sample:
d h_L = e w^T;  d z_l = d h_l * f'(z_l);  dW_l = h_{l-1}^T d z_l;  d b_l = sum d z_l;  d h_{l-1} = d z_l W_l^T.
The first layer is split, x W_1 = p_u W_u + q_i W_i: each half is multiplied once per distinct user or item of a batch,
and in the backward pass d z_1 is summed over a row's samples before it is multiplied by W_u or W_i.
All dense parameters are in one flat array (each layer's weights, then its biases), and so are their moments.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dubnb import _check, losses
from dubnb._check import InputError
from dubnb._jit import njit, span
from dubnb._random import generator
from dubnb.backbones import mf
from dubnb.backbones.network import (
    ACTIVATIONS,
    BLOCK,
    SAMPLES,
    Network,
    Side,
    add_first_errors,
    backward,
    first_values,
    forward,
    forward_mode,
    gather_gradient,
    half_backward,
    half_forward,
    new_network,
    new_side,
    pack_network,
)
from dubnb.backbones.protocol import Trainer

_WIDE = 16384  # pairs scored at a time
_ONE = np.float32(1.0)


def _layer_sizes(rank: int, hidden: Sequence[int] | None) -> tuple[int, ...]:
    return (2 * rank, *((2 * rank,) if hidden is None else hidden), 1)


class NCF:
    """The weights of one model; `protocol.Weights` documents the methods."""

    name: ClassVar[str] = "ncf"
    OPTIONS: ClassVar[Mapping[str, Callable[[str, Any], Any]]] = {
        "hidden": _check.hidden,
        "activation": _check.choices(tuple(ACTIVATIONS)),
    }

    def __init__(self, users: np.ndarray, items: np.ndarray, dense: np.ndarray, sizes: np.ndarray, activation: str):
        self.users, self.items, self.dense, self.sizes, self.activation = users, items, dense, sizes, activation

    @classmethod
    def new(
        cls,
        shape: tuple[int, int],
        rank: int,
        seed: int,
        model: str,
        hidden: Sequence[int] | None = None,
        activation: str = "tanh",
    ) -> NCF:
        """Embeddings normal with std 1/sqrt(rank); dense weights and biases uniform within 1/sqrt(fan-in).

        `hidden` lists the widths of the hidden layers, (2 rank,) by default.
        """
        n_users, n_items = shape
        sizes = _layer_sizes(rank, hidden)
        random = generator(seed, model, "init", "dense")
        dense = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            dense.append(random.uniform(-1, 1, (fan_in + 1) * fan_out) / np.sqrt(fan_in))
        users = generator(seed, model, "init", "users").standard_normal((n_users, rank), dtype=np.float32)
        items = generator(seed, model, "init", "items").standard_normal((n_items, rank), dtype=np.float32)
        scale = np.float32(1.0 / np.sqrt(rank))
        return cls(users * scale, items * scale, np.concatenate(dense).astype(np.float32), np.array(sizes), activation)

    @staticmethod
    def size(shape: tuple[int, int], rank: int, hidden: Sequence[int] | None = None, activation: str = "tanh") -> int:
        dense = sum((m + 1) * n for m, n in itertools.pairwise(_layer_sizes(rank, hidden)))
        return 4 * (sum(shape) * mf.padded(rank) + dense)

    @property
    def rank(self) -> int:
        return self.users.shape[1]

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> NCF:
        names = list(ACTIVATIONS)
        (n_users, rank), n_items = arrays["user_factors"].shape, len(arrays["item_factors"])
        whole = {"sizes": np.int64, "activation": np.int64}
        mf.checked(arrays, {"sizes": (arrays["sizes"].size,), "activation": (1,)}, whole)
        code, sizes = int(arrays["activation"][0]), arrays["sizes"].tolist()
        if not 0 <= code < len(names) or len(sizes) < 2 or min(sizes) < 1 or (sizes[0], sizes[-1]) != (2 * rank, 1):
            raise InputError(
                "ncf: layer sizes or activation do not fit the tables: the model file was altered; fit again"
            )
        # Python integers, because NumPy's would overflow for absurd sizes, and kernels do not check bounds
        n_dense = sum((m + 1) * n for m, n in itertools.pairwise(sizes))
        mf.checked(arrays, {"user_factors": (n_users, rank), "item_factors": (n_items, rank), "dense": (n_dense,)})
        return cls(arrays["user_factors"], arrays["item_factors"], arrays["dense"], arrays["sizes"], names[code])

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "user_factors": self.users,
            "item_factors": self.items,
            "dense": self.dense,
            "sizes": self.sizes.astype(np.int64),
            "activation": np.array([ACTIVATIONS[self.activation]], np.int64),
        }

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return _scores_of_pairs(self._network(), self.users[:, None], self.items[:, None], users, items, out)

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        scores = np.empty((len(users), len(self.items)), np.float32)
        batch = new_batch((self.users[:, None], self.items[:, None]), self.rank, int(self.sizes[1]), len(self.items))
        _forward_rows(batch, self._network(), mf.as_rows(users), np.arange(len(self.items), dtype=np.int32), scores)
        return scores

    def _network(self) -> Network:
        dense = np.zeros((3, len(self.dense)), np.float32)
        dense[0] = self.dense
        return new_network(dense, self.sizes, ACTIVATIONS[self.activation])

    def gradient(self, batch: mf.Stream, loss: losses.Loss, lam: float, room: Trainer | None = None) -> NCF:
        scratch = room if isinstance(room, NCFTrainer) else self.trainer(len(batch.users))
        network = scratch.network._replace(dense=self.dense[None])
        tables = scratch.tables._replace(users=self.users[:, None], items=self.items[:, None])
        users, items = np.zeros_like(self.users), np.zeros_like(self.items)
        totals = np.zeros(int(batch.terms.max()) + 1)
        _all_gradients(tables, network, batch, loss.code, totals, np.float32(lam), users, items)
        dense = network.gradient + np.float32(lam) * network.is_weight * self.dense
        return NCF(users, items, dense, self.sizes, self.activation)

    def tangent(
        self, direction: NCF, users: np.ndarray, items: np.ndarray, room: Trainer | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """s and ds of some pairs by forward mode."""
        scratch = room if isinstance(room, NCFTrainer) else self.trainer(len(users))
        batch = scratch.tables._replace(users=self.users[:, None], items=self.items[:, None])
        turned, second = scratch.for_tangents
        turned = turned._replace(users=direction.users[:, None], items=direction.items[:, None])
        network, along = scratch.network._replace(dense=self.dense[None]), second._replace(dense=direction.dense[None])
        out = np.empty((2, len(users)), np.float32)
        _tangent(batch, turned, network, along, mf.as_rows(users), mf.as_rows(items), out)
        return out[0], out[1]

    def plus(self, step: float, direction: NCF) -> NCF:
        times = np.float32(step)
        users, items = self.users + times * direction.users, self.items + times * direction.items
        return NCF(users, items, self.dense + times * direction.dense, self.sizes, self.activation)

    def trainer(self, batch_size: int) -> NCFTrainer:
        return NCFTrainer(self, batch_size)


class Batch(NamedTuple):
    """Both embedding tables with their moments, a Side for each, and the batch's samples grouped by user."""

    users: np.ndarray  # (n_users, 3, width)
    items: np.ndarray  # (n_items, 3, width)
    user_side: Side
    item_side: Side
    starts: np.ndarray  # (batch + 1,) int64: where a user's samples begin in `order`
    order: np.ndarray  # (batch,) int64: the samples
    places: np.ndarray  # (2, SAMPLES) int64: where some samples' rows are in the users' block and among the items


def new_batch(tables: tuple[np.ndarray, np.ndarray], rank: int, hidden: int, batch_size: int) -> Batch:
    """Tables, and scratch space for batches of up to `batch_size`."""
    users, items = tables
    user_side = new_side(len(users), rank, hidden, batch_size, BLOCK)
    item_side = new_side(len(items), rank, hidden, batch_size, batch_size)
    starts, order = np.zeros(batch_size + 1, np.int64), np.zeros(batch_size, np.int64)
    return Batch(users, items, user_side, item_side, starts, order, np.zeros((2, SAMPLES), np.int64))


class Turned(NamedTuple):
    """A direction's rows, and scratch space for the first layer's derivative along it; slots are those of the batch."""

    users: np.ndarray  # (users, 1, rank)
    items: np.ndarray  # (items, 1, rank)
    user_side: Side
    item_side: Side


class NCFModel(NamedTuple):
    """The argument of ncf's batch kernels."""

    tables: Batch
    network: Network
    decay: np.ndarray  # (1, width)
    dense_decay: np.ndarray  # (parameters,)


def _scores_of_pairs(
    network: Network,
    users_table: np.ndarray,
    items_table: np.ndarray,
    users: np.ndarray,
    items: np.ndarray,
    out: np.ndarray | None,
) -> np.ndarray:
    """Scores of pairs."""
    out = np.empty(len(users), np.float32) if out is None else out
    rank, hidden = int(network.sizes[0]) // 2, int(network.sizes[1])
    batch = new_batch((users_table, items_table), rank, hidden, min(_WIDE, len(users)))
    _forward_pairs(batch, network, mf.as_rows(users), mf.as_rows(items), out)
    return out


class NCFTrainer:
    """Trains ncf: tables and network with Adam's moments, and scratch space for a batch; see `protocol.Trainer`."""

    def __init__(self, weights: NCF, batch_size: int):
        self.sizes, self.activation = weights.sizes, weights.activation
        self.rank, width = weights.rank, mf.padded(weights.rank)
        self.batch_size = batch_size
        tables = [np.pad(table, ((0, 0), (0, width - self.rank))) for table in (weights.users, weights.items)]
        self.network = weights._network()
        users, items = map(mf.with_moments, tables)
        self.tables = new_batch((users, items), self.rank, int(weights.sizes[1]), batch_size)
        self.step = 0

    def epoch(
        self,
        stream: mf.Stream,
        n_terms: int,
        loss: losses.Loss,
        lr: float,
        lam: float,
        anchors: mf.Anchors | None = None,
    ) -> np.ndarray:
        pulls = mf.unanchored(self.rank) if anchors is None else anchors
        totals = np.zeros(n_terms)
        self.step = mf.train_epoch(self.model(lam), stream, pulls, self.batch_size, loss.code, lr, self.step, totals)
        return totals

    def model(self, lam: float) -> NCFModel:
        decay = mf.decay_row(self.tables.users.shape[2], self.rank, lam)
        return NCFModel(self.tables, self.network, decay, self.network.is_weight * np.float32(lam))

    @functools.cached_property
    def for_tangents(self) -> tuple[Turned, Network]:
        """Scratch space for a direction, made on first use: O(batch hidden + parameters)."""
        sides = [side._replace(x=np.zeros_like(side.x), z=np.zeros_like(side.z)) for side in self.tables[2:4]]
        network = new_network(self.network.dense, self.sizes, self.network.activation)
        return Turned(self.tables.users, self.tables.items, *sides), network

    def weights(self) -> NCF:
        users, items = (np.ascontiguousarray(table[:, 0, : self.rank]) for table in self.tables[:2])
        return NCF(users, items, self.network.dense[0].copy(), self.sizes, self.activation)

    def subset(self, users: np.ndarray, items: np.ndarray) -> NCF:
        rows = self.factors("users", users), self.factors("items", items)
        return NCF(rows[0], rows[1], self.network.dense[0].copy(), self.sizes, self.activation)

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        network = new_network(self.network.dense, self.sizes, ACTIVATIONS[self.activation])
        return _scores_of_pairs(network, self.tables.users, self.tables.items, users, items, out)

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        return self.weights().score_rows(users)

    def factors(self, side: str, rows: np.ndarray) -> np.ndarray:
        found = np.empty((len(rows), self.rank), np.float32)
        mf.copy_factors(getattr(self.tables, side), mf.as_rows(rows), found)
        return found

    def finite(self) -> bool:
        return mf.all_finite(self.tables.users[:, 0], self.tables.items[:, 0], self.network.dense[0])


@njit
def _forward_pairs(batch, network, users, items, out):
    """Raw scores of pairs. The items' half is multiplied once per _WIDE pairs, the users' half once per block."""
    user_side, item_side, places = batch.user_side, batch.item_side, batch.places
    pack_network(network, False)
    for wide in range(0, len(users), _WIDE):
        end = min(wide + _WIDE, len(users))
        _distinct_forward(network, 1, batch.items, items[wide:end], item_side)
        for block in range(wide, end, BLOCK):
            stop = min(block + BLOCK, end)
            _distinct_forward(network, 0, batch.users, users[block:stop], user_side)
            for start in range(block, stop, SAMPLES):
                n = min(SAMPLES, stop - start)
                for j in range(n):
                    places[0, j] = user_side.slots.of_sample[start - block + j]
                    places[1, j] = item_side.slots.of_sample[start - wide + j]
                _score_places(network, batch, n, out[start : start + n])


@njit
def _forward_rows(batch, network, users, items, out):
    """Scores of all items for each of `users`; each half of the first layer is multiplied once per row."""
    n_items, places = len(items), batch.places
    pack_network(network, False)
    _distinct_forward(network, 1, batch.items, items, batch.item_side)
    for row in range(len(users)):
        _distinct_forward(network, 0, batch.users, users[row : row + 1], batch.user_side)
        for start in range(0, n_items, SAMPLES):
            n = min(SAMPLES, n_items - start)
            for j in range(n):
                places[0, j], places[1, j] = 0, start + j
            _score_places(network, batch, n, out[row, start : start + n])


@njit
def _distinct_forward(network, number, table, rows, side):
    """One half of the first layer for the distinct values of `rows`."""
    n_slots = mf.assign_slots(rows, side.slots)
    half_forward(network, number, table, side, 0, n_slots, 1, False)
    mf.release_slots(side.slots, n_slots)


@njit
def _score_places(network, batch, n, out):
    """Scores of n pairs; `places` are the positions of their rows in both halves."""
    places = batch.places
    users, items = span(places, 0, n), span(places, SAMPLES, n)
    first_values(network, batch.user_side.z, batch.item_side.z, users, items)
    forward(network, n)
    mf.put(network.scores[:n], out)


@mf.score_batch.of(NCFModel)
def _score_ncf_batch(model, users, items, out):
    """Raw scores of at most a batch of pairs, with the batch's scratch space."""
    _forward_pairs(model.tables, model.network, users, items, out)


@mf.train_batch.of(NCFModel)
def _train_ncf_batch(model, batch, anchors, loss, now, totals):
    """Compute all gradients of the batch at the current weights and make one Adam step, rows as early as possible."""
    tables, network, decay = model.tables, model.network, model.decay
    user_side, item_side = tables.user_side, tables.item_side
    n_users, n_items = _begin(tables, network, batch)
    strength = mf.pull_strength(anchors, anchors.users, tables.users, user_side.slots, n_users)
    for start in range(0, n_users, BLOCK):
        stop = min(start + BLOCK, n_users)
        _user_gradients(tables, network, batch, start, stop, loss, totals)
        _step_rows(tables.users, user_side, start, stop, strength, decay, anchors.users, anchors, now)
    strength = mf.pull_strength(anchors, anchors.items, tables.items, item_side.slots, n_items)
    for start in range(0, n_items, BLOCK):
        stop = min(start + BLOCK, n_items)
        half_backward(network, 1, item_side, start, stop, start != 0)
        _step_rows(tables.items, item_side, start, stop, strength, decay, anchors.items, anchors, now)
    _release(tables, n_users, n_items)
    gather_gradient(network)
    _step_dense(network.dense, network.gradient, model.dense_decay, now)


@njit
def _begin(tables, network, batch):
    """Pack the weights, number the batch's users and items, group its samples by user, multiply the items' half.

    Returns (number of distinct users, number of distinct items).
    """
    user_side, item_side = tables.user_side, tables.item_side
    pack_network(network, True)
    n_users = mf.assign_slots(batch.users, user_side.slots)
    n_items = mf.assign_slots(batch.items, item_side.slots)
    mf.order_by_slot(user_side.slots, n_users, range(len(batch.users)), tables.starts, tables.order)
    half_forward(network, 1, tables.items, item_side, 0, n_items, 1, False)
    item_side.dz[:n_items] = np.float32(0.0)
    return n_users, n_items


@njit
def _user_gradients(tables, network, batch, first, last, loss, totals):
    """Compute the gradients of a block of users, and add their samples' share to those of items and layers."""
    places, order = tables.places, tables.order
    user_side, item_side = tables.user_side, tables.item_side
    half_forward(network, 0, tables.users, user_side, first, last, 3, False)
    user_side.dz[:] = np.float32(0.0)
    end = tables.starts[last]
    for start in range(tables.starts[first], end, SAMPLES):
        n = min(SAMPLES, end - start)
        samples, users, items = span(order, start, n), span(places, 0, n), span(places, SAMPLES, n)
        for j in range(n):
            users[j] = user_side.slots.of_sample[samples[j]] - first
            items[j] = item_side.slots.of_sample[samples[j]]
        first_values(network, user_side.z, item_side.z, users, items)
        forward(network, n)
        _sample_errors(batch, samples, network, loss, totals)
        backward(network, n, start != 0)
        add_first_errors(network, user_side.dz, item_side.dz, users, items)
    half_backward(network, 0, user_side, 0, last - first, first != 0)


@njit
def _release(tables, n_users, n_items):
    """Release the slots of the batch."""
    mf.release_slots(tables.user_side.slots, n_users)
    mf.release_slots(tables.item_side.slots, n_items)


@njit
def _sample_errors(batch, samples, network, loss, totals):
    """Add the losses of some samples to their terms' totals, and compute dl/ds of the batch's mean loss."""
    targets, weights, terms, scores, slopes = batch.targets, batch.weights, batch.terms, network.scores, network.slopes
    share = _ONE / np.float32(len(targets))
    for j in range(len(samples)):
        at = mf.unsigned(samples[j])
        value, slope = losses.value_and_derivative(loss, scores[j], targets[at])
        totals[terms[at]] += weights[at] * value
        slopes[j] = share * weights[at] * slope


@njit
def _step_rows(table, side, start, stop, strength, decays, rows, anchors, now):
    """Adam step of a block of the batch's distinct rows."""
    first, slot_rows, gradients = side.slots.first, side.slots.row, side.gradients
    decay = mf.slot_of(decays, 0)
    for slot in range(start, stop):
        if slot + mf.PREFETCH_DISTANCE < stop:
            mf.prefetch_row(table, slot_rows[slot + mf.PREFETCH_DISTANCE], 3)
        w, m, v = mf.row_of(table, slot_rows[slot])
        gradient = mf.slot_of(gradients, slot - start)
        if strength:
            mf.pull(anchors, rows, first[slot], w, strength, gradient)
        mf.update_row(w, m, v, gradient, decay, now)


@njit
def _all_gradients(tables, network, batch, loss, totals, lam, users, items):
    """Write every row's gradient, decay included, to `users` and `items`, and the layers' to the network, without."""
    n_users, n_items = _begin(tables, network, batch)
    for start in range(0, n_users, BLOCK):
        stop = min(start + BLOCK, n_users)
        _user_gradients(tables, network, batch, start, stop, loss, totals)
        _copy_gradients(tables.users, tables.user_side, start, stop, lam, users)
    for start in range(0, n_items, BLOCK):
        stop = min(start + BLOCK, n_items)
        half_backward(network, 1, tables.item_side, start, stop, start != 0)
        _copy_gradients(tables.items, tables.item_side, start, stop, lam, items)
    _release(tables, n_users, n_items)
    gather_gradient(network)


@njit
def _copy_gradients(table, side, start, stop, lam, out):
    """The gradients of a block of rows, with that of lam/2 |row|^2."""
    gradients = side.gradients
    for slot in range(start, stop):
        row = side.slots.row[slot]
        for k in range(out.shape[1]):
            out[row, k] = gradients[slot - start, k] + lam * table[row, 0, k]


@njit
def _tangent(batch, turned, network, direction, users, items, out):
    """Scores of the pairs into out[0], and their derivatives along a direction into out[1]."""
    user_side, item_side, places = batch.user_side, batch.item_side, batch.places
    pack_network(network, False)
    pack_network(direction, False)
    _half_tangent(network, direction, 1, batch.items, turned.items, item_side, turned.item_side, items)
    for block in range(0, len(users), BLOCK):
        stop = min(block + BLOCK, len(users))
        rows = users[block:stop]
        _half_tangent(network, direction, 0, batch.users, turned.users, user_side, turned.user_side, rows)
        for start in range(block, stop, SAMPLES):
            n = min(SAMPLES, stop - start)
            user_places, item_places = span(places, 0, n), span(places, SAMPLES, n)
            for j in range(n):
                user_places[j] = user_side.slots.of_sample[start - block + j]
                item_places[j] = item_side.slots.of_sample[start + j]
            first_values(network, user_side.z, item_side.z, user_places, item_places)
            first_values(direction, turned.user_side.z, turned.item_side.z, user_places, item_places)
            forward(network, n)
            forward_mode(network, direction, n)
            mf.put(network.scores[:n], out[0, start : start + n])
            mf.put(direction.scores[:n], out[1, start : start + n])


@njit
def _half_tangent(network, direction, number, table, turned_table, side, turned, rows):
    """x W and x dW + dx W for the distinct values of `rows`."""
    n_slots = mf.assign_slots(rows, side.slots)
    half_forward(network, number, table, side, 0, n_slots, 1, False)
    half_forward(direction, number, table, turned, 0, n_slots, 1, False)
    half_forward(network, number, turned_table, turned, 0, n_slots, 1, True)
    mf.release_slots(side.slots, n_slots)


@njit
def _step_dense(dense, gradient, decay, now):
    for k in range(len(gradient)):
        g = gradient[k] + decay[k] * dense[0, k]
        dense[0, k], dense[1, k], dense[2, k] = mf.update(dense[0, k], dense[1, k], dense[2, k], g, now)
