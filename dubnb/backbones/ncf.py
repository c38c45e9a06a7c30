"""Neural collaborative filtering: x = [p_u ; q_i] through dense layers to one score; gradients by hand, products by
BLAS.

h_0 = x;  h_l = f(h_{l-1} W_l + b_l);  s = h_L w + b.   With e = dl/ds per sample:
d h_L = e w^T;  d z_l = d h_l * f'(z_l);  dW_l = h_{l-1}^T d z_l;  d b_l = sum d z_l;  d h_{l-1} = d z_l W_l^T.
The first layer is taken apart, x W_1 = p_u W_u + q_i W_i: each half is multiplied once per distinct user or item of a
batch, and backwards d z_1 is summed over a row's samples before it meets W_u or W_i.
All dense parameters lie in one flat array (each layer's weights, then its biases), and so do their moments.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dubnb import _check, losses
from dubnb._check import InputError
from dubnb._jit import njit, span
from dubnb._random import generator
from dubnb.backbones import adam, epochs
from dubnb.backbones import embedding as emb
from dubnb.backbones.activation import ACTIVATIONS, RELU, SIGMOID, TANH, activated, slope, tanh
from dubnb.backbones.protocol import Trainer
from dubnb.beside import Beside
from dubnb.stream import Stream

_BLOCK, _WIDE = 1024, 16384  # pairs scored at a time
_ONE = np.float32(1.0)


def _checked_hidden(name: str, value: Any) -> tuple[int, ...] | None:
    """The widths of the hidden layers; None for one of 2 rank."""
    if value is None:
        return None
    if not isinstance(value, tuple | list):
        raise InputError(f"{name}={_check.shown(value)} must list the widths of the hidden layers, such as (64,)")
    return tuple(_check.whole(name, width) for width in value)


def _layer_sizes(rank: int, hidden: Sequence[int] | None) -> tuple[int, ...]:
    return (2 * rank, *((2 * rank,) if hidden is None else hidden), 1)


class NCF:
    """The weights of one model: what is scored, saved and restored."""

    name: ClassVar[str] = "ncf"
    OPTIONS: ClassVar[Mapping[str, Callable[[str, Any], Any]]] = {
        "hidden": _checked_hidden,
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
        """Bytes of such weights."""
        dense = sum((m + 1) * n for m, n in itertools.pairwise(_layer_sizes(rank, hidden)))
        return 4 * (sum(shape) * emb.padded(rank) + dense)

    @property
    def rank(self) -> int:
        return self.users.shape[1]

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> NCF:
        """From the plain arrays that `arrays` gives."""
        names = list(ACTIVATIONS)
        (n_users, rank), n_items = arrays["user_factors"].shape, len(arrays["item_factors"])
        whole = {"sizes": np.int64, "activation": np.int64}
        emb.checked(arrays, {"sizes": (arrays["sizes"].size,), "activation": (1,)}, whole)
        code, sizes = int(arrays["activation"][0]), arrays["sizes"].tolist()
        if not 0 <= code < len(names) or len(sizes) < 2 or min(sizes) < 1 or (sizes[0], sizes[-1]) != (2 * rank, 1):
            raise InputError(
                "ncf: layer sizes or activation do not fit the tables: the model file was altered; fit again"
            )
        # Python's whole numbers: NumPy's would wrap around for absurd sizes, and kernels do not check bounds
        n_dense = sum((m + 1) * n for m, n in itertools.pairwise(sizes))
        emb.checked(arrays, {"user_factors": (n_users, rank), "item_factors": (n_items, rank), "dense": (n_dense,)})
        return cls(arrays["user_factors"], arrays["item_factors"], arrays["dense"], arrays["sizes"], names[code])

    def arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays, for saving and for other programs."""
        return {
            "user_factors": self.users,
            "item_factors": self.items,
            "dense": self.dense,
            "sizes": self.sizes.astype(np.int64),
            "activation": np.array([ACTIVATIONS[self.activation]], np.int64),
        }

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Raw scores of the pairs (users[j], items[j])."""
        return _score(self._network(_BLOCK), self.users[:, None], self.items[:, None], users, items, out)

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users`, one row each."""
        network = self._network(_BLOCK)
        scores = np.empty((len(users), len(self.items)), np.float32)
        W_u, W_i, biases = _first_layer(network.sizes, network.dense)
        _score_rows(network, self.users[users] @ W_u, self.items @ W_i + biases, scores)
        return scores

    def _network(self, batch_size: int) -> Network:
        dense = np.zeros((3, len(self.dense)), np.float32)
        dense[0] = self.dense
        return new_network(dense, self.sizes, ACTIVATIONS[self.activation], batch_size)

    def gradient(self, batch: Stream, loss: losses.Loss, lam: float, room: Trainer | None = None) -> NCF:
        """The gradient that a batch trains with, as weights."""
        scratch, rank = room if isinstance(room, NCFTrainer) else self.trainer(len(batch.users)), self.rank
        network, sides = scratch.network._replace(dense=self.dense[None]), scratch.tables[2:]
        tables = Batch(self.users[:, None], self.items[:, None], *sides)
        counts = _batch_gradients(tables, network, batch, loss.code, np.zeros(int(batch.terms.max()) + 1))
        gradients = []
        for own, side, count in zip((self.users, self.items), sides, counts, strict=True):
            rows, like = side.slots.row[:count], np.zeros_like(own)
            like[rows] = side.gradients[:count, :rank] + np.float32(lam) * own[rows]
            emb.release_slots(side.slots, count)
            gradients.append(like)
        dense = network.gradient + np.float32(lam) * network.is_weight * self.dense
        return NCF(gradients[0], gradients[1], dense, self.sizes, self.activation)

    def tangent(self, direction: NCF, users: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """s and ds of some pairs by forward mode: dz_l = dh_{l-1} W_l + h_{l-1} dW_l + db_l, dh_l = f'(z_l) dz_l."""
        code = ACTIVATIONS[self.activation]
        h = np.hstack([self.users[users], self.items[items]])
        dh = np.hstack([direction.users[users], direction.items[items]])
        at = 0
        for number, (fan_in, fan_out) in enumerate(itertools.pairwise(self.sizes.tolist())):
            W, dW = (
                dense[at : at + fan_in * fan_out].reshape(fan_in, fan_out) for dense in (self.dense, direction.dense)
            )
            at += fan_in * fan_out
            b, db = self.dense[at : at + fan_out], direction.dense[at : at + fan_out]
            at += fan_out
            h, dh = h @ W + b, dh @ W + h @ dW + db
            if number < len(self.sizes) - 2:
                _activate(h.reshape(-1), code)
                _times_slope(dh.reshape(-1), h.reshape(-1), code)
        return h[:, 0], dh[:, 0]

    def plus(self, step: float, direction: NCF) -> NCF:
        """self + step * direction, coordinate by coordinate."""
        times = np.float32(step)
        users, items = self.users + times * direction.users, self.items + times * direction.items
        return NCF(users, items, self.dense + times * direction.dense, self.sizes, self.activation)

    def trainer(self, batch_size: int, beside: Beside | None = None) -> NCFTrainer:
        """A copy that can be trained, with a fresh optimizer; always on one thread."""
        return NCFTrainer(self, batch_size)


class Network(NamedTuple):
    """Dense parameters with their moments, and room for one batch's layers and gradients."""

    dense: np.ndarray  # (3, parameters) float32: weights, and Adam's two moments
    gradient: np.ndarray  # (parameters,) float32
    is_weight: np.ndarray  # (parameters,) float32: 1 for weights, 0 for biases
    sizes: np.ndarray  # (layers + 1,) int64: 2 rank, hidden ..., 1
    values: np.ndarray  # flat: h_1, h_2, ... of the batch, one after the other
    errors: np.ndarray  # flat, alike: d h_1, d h_2, ...
    activation: int


def new_network(dense: np.ndarray, sizes: np.ndarray, activation: int, batch_size: int) -> Network:
    """A network on given parameters, with room for batches of up to `batch_size`."""
    is_weight = np.concatenate([np.repeat((1.0, 0.0), (m * n, n)) for m, n in itertools.pairwise(sizes)])
    room = np.zeros((2, batch_size * int(sizes[1:].sum())), np.float32)
    return Network(
        dense,
        np.zeros(dense.shape[1], np.float32),
        is_weight.astype(np.float32),
        sizes.astype(np.int64),
        room[0],
        room[1],
        activation,
    )


class Side(NamedTuple):
    """The distinct users, or items, of a batch: their half of the first layer, forwards and backwards."""

    slots: emb.Slots
    x: np.ndarray  # (distinct, rank) p_u or q_i
    z: np.ndarray  # (distinct, first hidden) p_u W_u or q_i W_i
    dz: np.ndarray  # (distinct, first hidden) d z_1 summed over the row's samples
    dx: np.ndarray  # (distinct, rank)
    gradients: np.ndarray  # (distinct, width) dx, padded as the tables are


def new_side(n_rows: int, rank: int, hidden: int, batch_size: int) -> Side:
    """Room for batches of up to `batch_size`, of which no more than `n_rows` rows are distinct."""
    distinct = min(batch_size, n_rows)
    x, z, dz, dx = (np.zeros((distinct, width), np.float32) for width in (rank, hidden, hidden, rank))
    return Side(emb.new_slots(n_rows, batch_size), x, z, dz, dx, emb.aligned((distinct, emb.padded(rank))))


class Batch(NamedTuple):
    """Both embedding tables with their moments, and a Side for each."""

    users: np.ndarray  # (n_users, 3, width)
    items: np.ndarray  # (n_items, 3, width)
    user_side: Side
    item_side: Side


class Model(NamedTuple):
    """What a batch is trained with."""

    tables: Batch
    network: Network
    decay: np.ndarray  # (1, width)
    dense_decay: np.ndarray  # (parameters,)


def _score(
    network: Network,
    users_table: np.ndarray,
    items_table: np.ndarray,
    users: np.ndarray,
    items: np.ndarray,
    out: np.ndarray | None,
) -> np.ndarray:
    """Scores of pairs."""
    out = np.empty(len(users), np.float32) if out is None else out
    rank, hidden = network.sizes[0] // 2, network.sizes[1]
    sizes = min(_BLOCK, len(users)), min(_WIDE, len(users))
    sides = (
        new_side(len(table), rank, hidden, size) for table, size in zip((users_table, items_table), sizes, strict=True)
    )
    _score_pairs(Batch(users_table, items_table, *sides), network, emb.as_rows(users), emb.as_rows(items), out)
    return out


class NCFTrainer:
    """Tables and network with Adam's moments, and the epochs that change them."""

    def __init__(self, weights: NCF, batch_size: int):
        self.sizes, self.activation = weights.sizes, weights.activation
        self.rank, width = weights.rank, emb.padded(weights.rank)
        self.batch_size = batch_size
        tables = [np.pad(table, ((0, 0), (0, width - self.rank))) for table in (weights.users, weights.items)]
        self.network = weights._network(batch_size)
        sides = (new_side(len(table), self.rank, int(weights.sizes[1]), batch_size) for table in tables)
        users, items = map(emb.with_moments, tables)
        self.tables = Batch(users, items, *sides)
        self.step = 0

    def epoch(
        self, stream: Stream, n_terms: int, loss: losses.Loss, lr: float, lam: float, anchors: emb.Anchors | None = None
    ) -> np.ndarray:
        """Train on every sample of `stream`, batch by batch; returns each term's sum of weighted losses."""
        anchors = emb.no_anchors(self.rank) if anchors is None else anchors
        totals = np.zeros(n_terms)
        self.step = epochs.epoch(self.model(lam), stream, anchors, self.batch_size, loss.code, lr, self.step, totals)
        return totals

    def model(self, lam: float) -> Model:
        """What the kernels train, with this regularisation."""
        decay = emb.decay_row(self.tables.users.shape[2], self.rank, lam)
        return Model(self.tables, self.network, decay, self.network.is_weight * np.float32(lam))

    def weights(self) -> NCF:
        """A copy of the weights alone."""
        users, items = (np.ascontiguousarray(table[:, 0, : self.rank]) for table in self.tables[:2])
        return NCF(users, items, self.network.dense[0].copy(), self.sizes, self.activation)

    def subset(self, users: np.ndarray, items: np.ndarray) -> NCF:
        """The current weights of some rows, as a small model of its own."""
        rows = self.factors("users", users), self.factors("items", items)
        return NCF(*rows, self.network.dense[0].copy(), self.sizes, self.activation)

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Raw scores of pairs under the current weights."""
        network = new_network(self.network.dense, self.sizes, ACTIVATIONS[self.activation], _BLOCK)
        return _score(network, self.tables.users, self.tables.items, users, items, out)

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users` under the current weights."""
        return self.weights().score_rows(users)

    def factors(self, side: str, rows: np.ndarray) -> np.ndarray:
        """Current factors of some rows of the "users" or "items" table."""
        return getattr(self.tables, side)[rows, 0, : self.rank]

    def finite(self) -> bool:
        """Whether every weight is a finite number."""
        return emb.all_finite(self.tables.users[:, 0], self.tables.items[:, 0], self.network.dense[0])


@njit
def _activate(z, activation):
    """f(z) in place; a loop for each activation, so that the compiler can use vector instructions."""
    if activation == TANH:
        for j in range(len(z)):
            z[j] = tanh(z[j])
    elif activation == RELU:
        for j in range(len(z)):
            z[j] = activated(z[j], RELU)
    else:
        for j in range(len(z)):
            z[j] = activated(z[j], SIGMOID)


@njit
def _times_slope(error, h, activation):
    """error * f'(z) in place."""
    if activation == TANH:
        for j in range(len(h)):
            error[j] *= slope(h[j], TANH)
    elif activation == RELU:
        for j in range(len(h)):
            error[j] *= slope(h[j], RELU)
    else:
        for j in range(len(h)):
            error[j] *= slope(h[j], SIGMOID)


@njit
def _first_layer(sizes, dense):
    """W_u, W_i and the biases of the first layer, as views."""
    rank, hidden = sizes[0] // 2, sizes[1]
    half = rank * hidden
    flat = dense[0]
    return (
        flat[:half].reshape(rank, hidden),
        flat[half : 2 * half].reshape(rank, hidden),
        flat[2 * half : 2 * half + hidden],
    )


@njit
def _half_forward(table, rows, side, W):
    """Number the distinct rows of the batch and multiply each by its half of the first layer; returns how many."""
    n_slots = emb.assign_slots(rows, side.slots)
    slot_rows, x = side.slots.row, side.x
    for slot in range(n_slots):
        if slot + emb.AHEAD < n_slots:
            emb.prefetch_row(table, slot_rows[slot + emb.AHEAD], 1)
        row = slot_rows[slot]
        for k in range(x.shape[1]):
            x[slot, k] = table[row, 0, k]
    np.dot(x[:n_slots], W, out=side.z[:n_slots])
    return n_slots


@njit
def _add_to_rows(rows, n, biases):
    for j in range(n):
        for k in range(len(biases)):
            rows[j, k] += biases[k]


@njit
def _first_values(batch, n, values, offset=0):
    """z_1 = p_u W_u + (q_i W_i + b_1) of n samples, at the head of `values`; the items' begin at sample `offset`."""
    user_z, item_z = batch.user_side.z, batch.item_side.z
    user_slots, item_slots = batch.user_side.slots.of_sample, batch.item_side.slots.of_sample
    hidden = user_z.shape[1]
    for j in range(n):
        z_u, z_i = span(user_z, user_slots[j] * hidden, hidden), span(item_z, item_slots[offset + j] * hidden, hidden)
        z = span(values, j * hidden, hidden)
        for k in range(hidden):
            z[k] = z_u[k] + z_i[k]


@njit
def _forward(network, n):
    """The later layers of n samples whose z_1 stand at the head of `values`; returns where the scores begin."""
    sizes, dense, values = network.sizes, network.dense[0], network.values
    here, parameter = 0, (sizes[0] + 1) * sizes[1]
    for layer in range(1, len(sizes) - 1):
        fan_in, fan_out = sizes[layer], sizes[layer + 1]
        there = here + n * fan_in
        _activate(values[here:there], network.activation)
        h = values[here:there].reshape(n, fan_in)
        z = values[there : there + n * fan_out].reshape(n, fan_out)
        weights = dense[parameter : parameter + fan_in * fan_out].reshape(fan_in, fan_out)
        biases = dense[parameter + fan_in * fan_out : parameter + (fan_in + 1) * fan_out]
        if fan_out == 1:
            _dots(h, weights, biases[0], z)
        else:
            np.dot(h, weights, out=z)
            _add_to_rows(z, n, biases)
        here, parameter = there, parameter + (fan_in + 1) * fan_out
    return here


@njit
def _dots(h, w, bias, scores):
    """s = h w + b for each row of h: BLAS is slow at products with one column."""
    for j in range(len(h)):
        s = np.float32(0.0)
        for k in range(h.shape[1]):
            s += h[j, k] * w[k, 0]
        scores[j, 0] = s + bias


@njit
def _backward(network, n, scores_at):
    """Gradients of the layers after the first, and d z_1 at the head of `errors`, from ds at `errors[scores_at:]`."""
    sizes, dense, gradient = network.sizes, network.dense[0], network.gradient
    values, errors = network.values, network.errors
    there, parameter = scores_at, dense.shape[0]
    for layer in range(len(sizes) - 2, 0, -1):
        fan_in, fan_out = sizes[layer], sizes[layer + 1]
        here = there - n * fan_in
        parameter -= (fan_in + 1) * fan_out
        biases_at = parameter + fan_in * fan_out
        h, dh = values[here:there].reshape(n, fan_in), errors[here:there].reshape(n, fan_in)
        dz = errors[there : there + n * fan_out].reshape(n, fan_out)
        weights = dense[parameter:biases_at].reshape(fan_in, fan_out)
        if fan_out == 1:
            _backward_dots(h, weights, dz, dh, gradient[parameter:biases_at])
        else:
            np.dot(h.T, dz, out=gradient[parameter:biases_at].reshape(fan_in, fan_out))
            np.dot(dz, weights.T, out=dh)
        _sum_rows(dz, gradient[biases_at : biases_at + fan_out])
        _times_slope(errors[here:there], values[here:there], network.activation)
        there = here


@njit
def _backward_dots(h, w, e, dh, dw):
    """dw = sum e_j h_j and d h_j = e_j w of an output layer."""
    dw[:] = np.float32(0.0)
    for j in range(len(h)):
        error = e[j, 0]
        for k in range(h.shape[1]):
            dw[k] += error * h[j, k]
            dh[j, k] = error * w[k, 0]


@njit
def _sum_rows(rows, out):
    out[:] = np.float32(0.0)
    for j in range(len(rows)):
        for k in range(rows.shape[1]):
            out[k] += rows[j, k]


@njit
def _half_backward(errors, n, side, n_slots, W, dW):
    """Sum d z_1 over each distinct row's samples, then dW = x^T dz and dx = dz W^T."""
    dz, of_sample, first = side.dz, side.slots.of_sample, side.slots.first
    hidden = dz.shape[1]
    for j in range(n):
        slot, at = of_sample[j], j * hidden
        if first[slot] == j:
            for k in range(hidden):
                dz[slot, k] = errors[at + k]
        else:
            for k in range(hidden):
                dz[slot, k] += errors[at + k]
    np.dot(side.x[:n_slots].T, dz[:n_slots], out=dW)
    np.dot(dz[:n_slots], W.T, out=side.dx[:n_slots])
    gradients, dx = side.gradients, side.dx
    for slot in range(n_slots):
        for k in range(dx.shape[1]):
            gradients[slot, k] = dx[slot, k]


@njit
def _score_pairs(batch, network, users, items, out):
    """The items' half is multiplied once for _WIDE pairs, the users', which may be sorted, once for _BLOCK."""
    W_u, W_i, biases = _first_layer(network.sizes, network.dense)
    for wide in range(0, len(users), _WIDE):
        end = min(wide + _WIDE, len(users))
        n_items = _half_forward(batch.items, items[wide:end], batch.item_side, W_i)
        _add_to_rows(batch.item_side.z, n_items, biases)
        emb.release_slots(batch.item_side.slots, n_items)
        for start in range(wide, end, _BLOCK):
            n = min(_BLOCK, end - start)
            n_users = _half_forward(batch.users, users[start : start + n], batch.user_side, W_u)
            emb.release_slots(batch.user_side.slots, n_users)
            _first_values(batch, n, network.values, start - wide)
            scores_at = _forward(network, n)
            out[start : start + n] = network.values[scores_at : scores_at + n]


@njit
def _score_rows(network, user_z, item_z, out):
    """Scores of all pairs of rows, from both halves of the first layer."""
    hidden, values = user_z.shape[1], network.values
    for user in range(len(user_z)):
        for start in range(0, len(item_z), _BLOCK):
            stop = min(start + _BLOCK, len(item_z))
            for item in range(start, stop):
                at = (item - start) * hidden
                for k in range(hidden):
                    values[at + k] = user_z[user, k] + item_z[item, k]
            scores_at = _forward(network, stop - start)
            out[user, start:stop] = values[scores_at : scores_at + stop - start]


@epochs.score_batch.of(Model)
def score_batch(model, users, items, out):
    """Raw scores of pairs, no more than a batch holds: its room serves for them too."""
    _score_pairs(model.tables, model.network, users, items, out)


@epochs.train_batch.of(Model)
def train_batch(model, batch, anchors, loss, now, totals):
    """All gradients of the batch at the current weights, then one Adam step."""
    tables, network = model.tables, model.network
    n_users, n_items = _batch_gradients(tables, network, batch, loss, totals)
    _step_table(tables.users, tables.user_side, n_users, model.decay, anchors.users, anchors, now)
    _step_table(tables.items, tables.item_side, n_items, model.decay, anchors.items, anchors, now)
    _step_dense(network.dense, network.gradient, model.dense_decay, now)


@njit
def _batch_gradients(tables, network, batch, loss, totals):
    """Forward, the loss of every sample, backward: gradients of the batch's mean loss at the current weights.

    Returns the numbers of distinct users and items.
    """
    n, half = len(batch.users), network.sizes[0] // 2 * network.sizes[1]
    W_u, W_i, biases = _first_layer(network.sizes, network.dense)
    n_users = _half_forward(tables.users, batch.users, tables.user_side, W_u)
    n_items = _half_forward(tables.items, batch.items, tables.item_side, W_i)
    _add_to_rows(tables.item_side.z, n_items, biases)
    _first_values(tables, n, network.values)
    scores_at = _forward(network, n)
    _sample_errors(batch, network.values[scores_at:], network.errors[scores_at:], loss, totals)
    _backward(network, n, scores_at)
    gradient = network.gradient
    _half_backward(network.errors, n, tables.user_side, n_users, W_u, gradient[:half].reshape(W_u.shape))
    _half_backward(network.errors, n, tables.item_side, n_items, W_i, gradient[half : 2 * half].reshape(W_i.shape))
    _sum_rows(tables.item_side.dz[:n_items], gradient[2 * half : 2 * half + len(biases)])
    return n_users, n_items


@njit
def _sample_errors(batch, scores, errors, loss, totals):
    """Each sample's loss into its term's total, and dl/ds of the batch's mean."""
    targets, weights, terms = batch.targets, batch.weights, batch.terms
    share = _ONE / np.float32(len(targets))
    for j in range(len(targets)):
        s = scores[j]
        value, slope = losses.value_and_derivative(loss, s, targets[j])
        totals[terms[j]] += weights[j] * value
        errors[j] = share * weights[j] * slope


@njit
def _step_table(table, side, n_slots, decays, rows, anchors, now):
    """Step the batch's distinct rows, then forget the batch."""
    slots, gradients = side.slots, side.gradients
    strength = emb.pull_strength(table, rows, slots, n_slots, anchors)
    slot_rows, first, decay = slots.row, slots.first, emb.slot_of(decays, 0)
    for slot in range(n_slots):
        if slot + emb.AHEAD < n_slots:
            emb.prefetch_row(table, slot_rows[slot + emb.AHEAD], 3)
        w, m, v = emb.row_of(table, slot_rows[slot])
        gradient = emb.slot_of(gradients, slot)
        if strength:
            emb.pull(gradient, w, rows, first[slot], strength, anchors)
        adam.update_row(w, m, v, gradient, decay, now)
    emb.release_slots(slots, n_slots)


@njit
def _step_dense(dense, gradient, decay, now):
    for k in range(len(gradient)):
        g = gradient[k] + decay[k] * dense[0, k]
        dense[0, k], dense[1, k], dense[2, k] = adam.update(dense[0, k], dense[1, k], dense[2, k], g, now)
