"""Neural collaborative filtering: x = [p_u ; q_i] through dense layers to one score; gradients by hand, products by
BLAS.

h_0 = x;  h_l = f(h_{l-1} W_l + b_l);  s = h_L w + b.   With e = dl/ds per sample:
d h_L = e w^T;  d z_l = d h_l * f'(z_l);  dW_l = h_{l-1}^T d z_l;  d b_l = sum d z_l;  d h_{l-1} = d z_l W_l^T.
All dense parameters lie in one flat array (each layer's weights, then its biases), and so do their moments.
"""

import itertools
from typing import NamedTuple

import numpy as np

from dubnb import losses
from dubnb._check import InputError
from dubnb._jit import njit
from dubnb._random import generator
from dubnb.backbones import adam
from dubnb.backbones import embedding as emb
from dubnb.stream import Stream

TANH, RELU, SIGMOID = range(3)
ACTIVATIONS = {"tanh": TANH, "relu": RELU, "sigmoid": SIGMOID}
_BLOCK = 1024  # pairs scored at a time
_SATURATED = np.float32(9.0)  # tanh(9) rounds to 1 in float32
_HALF, _ONE, _TWO = np.float32(0.5), np.float32(1.0), np.float32(2.0)


class NCF:
    """The weights of one model: what is scored, saved and restored."""

    name = "ncf"

    def __init__(self, users, items, dense, sizes, activation):
        self.users, self.items, self.dense, self.sizes, self.activation = users, items, dense, sizes, activation

    @classmethod
    def new(cls, n_users, n_items, rank, seed, model, hidden=None, activation="tanh"):
        """Embeddings normal with std 1/sqrt(rank); dense weights and biases uniform within 1/sqrt(fan-in).

        `hidden` lists the widths of the hidden layers, (2 rank,) by default.
        """
        sizes = (2 * rank, *((2 * rank,) if hidden is None else hidden), 1)
        random = generator(seed, model, "init", "dense")
        dense = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            dense.append(random.uniform(-1, 1, (fan_in + 1) * fan_out) / np.sqrt(fan_in))
        users = generator(seed, model, "init", "users").standard_normal((n_users, rank), dtype=np.float32)
        items = generator(seed, model, "init", "items").standard_normal((n_items, rank), dtype=np.float32)
        scale = np.float32(1.0 / np.sqrt(rank))
        return cls(users * scale, items * scale, np.concatenate(dense).astype(np.float32), np.array(sizes), activation)

    @property
    def rank(self):
        return self.users.shape[1]

    @classmethod
    def from_arrays(cls, arrays):
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

    def arrays(self):
        """Plain arrays, for saving and for other programs."""
        return {
            "user_factors": self.users,
            "item_factors": self.items,
            "dense": self.dense,
            "sizes": self.sizes.astype(np.int64),
            "activation": np.array([ACTIVATIONS[self.activation]], np.int64),
        }

    def score_pairs(self, users, items, out=None):
        """Raw scores of the pairs (users[j], items[j])."""
        out = np.empty(len(users), np.float32) if out is None else out
        _score_pairs(
            self.users[:, None], self.items[:, None], self._network(_BLOCK), emb.as_rows(users), emb.as_rows(items), out
        )
        return out

    def score_rows(self, users):
        """Raw scores of every item for each of `users`, one row each."""
        n_items = len(self.items)
        pairs = np.repeat(np.asarray(users), n_items), np.tile(np.arange(n_items), len(users))
        return self.score_pairs(*pairs).reshape(len(users), n_items)

    def _network(self, batch_size):
        dense = np.zeros((3, len(self.dense)), np.float32)
        dense[0] = self.dense
        return new_network(dense, self.sizes, ACTIVATIONS[self.activation], batch_size)

    def plus(self, step, direction):
        """self + step * direction, coordinate by coordinate; `direction` is a gradient in the form of weights."""
        step = np.float32(step)
        pairs = zip(
            (self.users, self.items, self.dense), (direction.users, direction.items, direction.dense), strict=True
        )
        return NCF(*(own + step * other for own, other in pairs), self.sizes, self.activation)

    def norm(self):
        """Euclidean length of all parameters together."""
        return float(np.sqrt(sum(np.vdot(array, array) for array in (self.users, self.items, self.dense))))

    def trainer(self, batch_size):
        """A copy that can be trained, with a fresh optimizer."""
        return NCFTrainer(self, batch_size)


class Network(NamedTuple):
    """Dense parameters with their moments, and room for one batch's layers and gradients."""

    dense: np.ndarray  # (3, parameters) float32: weights, and Adam's two moments
    gradient: np.ndarray  # (parameters,) float32
    is_weight: np.ndarray  # (parameters,) float32: 1 for weights, 0 for biases
    sizes: np.ndarray  # (layers + 1,) int64: 2 rank, hidden ..., 1
    values: np.ndarray  # flat: h_0, h_1, ... of the batch, one after the other
    errors: np.ndarray  # flat, alike: d h_0, d h_1, ...
    activation: int


def new_network(dense, sizes, activation, batch_size):
    """A network on given parameters, with room for batches of up to `batch_size`."""
    is_weight = np.concatenate([np.repeat((1.0, 0.0), (m * n, n)) for m, n in itertools.pairwise(sizes)])
    room = np.zeros((2, batch_size * int(sizes.sum())), np.float32)
    return Network(
        dense,
        np.zeros(dense.shape[1], np.float32),
        is_weight.astype(np.float32),
        sizes.astype(np.int64),
        room[0],
        room[1],
        activation,
    )


class Tables(NamedTuple):
    """Both embedding tables with their moments."""

    users: np.ndarray  # (n_users, 3, width)
    items: np.ndarray  # (n_items, 3, width)


class Work(NamedTuple):
    """The distinct rows of a batch and their gradients."""

    user_slots: emb.Slots
    item_slots: emb.Slots
    user_gradients: np.ndarray  # (batch, width)
    item_gradients: np.ndarray  # (batch, width)
    free: np.ndarray  # (width,) 1 for factors, 0 in the padding


class NCFTrainer:
    """Tables and network with Adam's moments, and the epochs that change them."""

    def __init__(self, weights, batch_size):
        self.start = weights
        self.rank, width = weights.rank, emb.padded(weights.rank)
        self.batch_size = batch_size
        tables = [np.pad(table, ((0, 0), (0, width - self.rank))) for table in (weights.users, weights.items)]
        self.tables = Tables(*(emb.with_moments(table) for table in tables))
        self.network = weights._network(batch_size)
        slots = [emb.new_slots(len(table), batch_size) for table in self.tables]
        gradients = [emb.aligned((batch_size, width)) for _ in range(2)]
        self.work = Work(*slots, *gradients, (np.arange(width) < self.rank).astype(np.float32))
        self.scoring = (
            self.network if batch_size >= _BLOCK else weights._network(_BLOCK)._replace(dense=self.network.dense)
        )
        self.step = 0

    def epoch(self, stream, n_terms, loss, lr, lam, anchors=None):
        """Train on every sample of `stream`, batch by batch; returns each term's sum of weighted losses."""
        anchors = emb.no_anchors(self.rank) if anchors is None else anchors
        totals = np.zeros(n_terms)
        self.step = _epoch(
            self.tables,
            self.network,
            stream,
            self.work,
            anchors,
            self.batch_size,
            loss.code,
            lr,
            np.float32(lam),
            self.step,
            totals,
        )
        return totals

    def weights(self):
        """A copy of the weights alone."""
        tables = [np.ascontiguousarray(table[:, 0, : self.rank]) for table in self.tables]
        return NCF(*tables, self.network.dense[0].copy(), self.start.sizes, self.start.activation)

    def subset(self, users, items):
        """The current weights of some rows, as a small model of its own."""
        tables = (self.factors("users", users), self.factors("items", items))
        return NCF(*tables, self.network.dense[0].copy(), self.start.sizes, self.start.activation)

    def gradient(self, stream, loss, lam):
        """The gradient that a batch would train with, as weights; needs a fresh optimizer and moves nothing."""
        self.epoch(stream, 1, loss, 0.0, lam)
        scale = np.float32(1.0 / (1.0 - adam.BETA_1))  # after one step from zero, the first moment is (1 - beta_1) g
        tables = (table[:, 1, : self.rank] * scale for table in self.tables)
        return NCF(*tables, self.network.dense[1] * scale, self.start.sizes, self.start.activation)

    def score_pairs(self, users, items, out=None):
        """Raw scores of pairs under the current weights."""
        out = np.empty(len(users), np.float32) if out is None else out
        _score_pairs(self.tables.users, self.tables.items, self.scoring, emb.as_rows(users), emb.as_rows(items), out)
        return out

    def score_rows(self, users):
        """Raw scores of every item for each of `users` under the current weights."""
        return self.weights().score_rows(users)

    def factors(self, side, rows):
        """Current factors of some rows of the "users" or "items" table."""
        return getattr(self.tables, side)[rows, 0, : self.rank]

    def finite(self):
        """Whether every weight is a finite number."""
        return emb.all_finite(self.tables.users[:, 0], self.tables.items[:, 0], self.network.dense[0])


@njit
def _activate(z, activation):
    """f(z) in place.

    tanh is the [7/6] Pade approximant at z / 2, then tanh z = 2 n d / (n^2 + d^2): within 3e-7 of tanh, one division,
    and plain arithmetic that the compiler turns into vector instructions.
    """
    if activation == TANH:
        for j in range(len(z)):
            y = _HALF * min(max(z[j], -_SATURATED), _SATURATED)
            y2 = y * y
            n = y * (np.float32(135135.0) + y2 * (np.float32(17325.0) + y2 * (np.float32(378.0) + y2)))
            d = np.float32(135135.0) + y2 * (np.float32(62370.0) + y2 * (np.float32(3150.0) + y2 * np.float32(28.0)))
            z[j] = _TWO * n * d / (n * n + d * d)
    elif activation == RELU:
        for j in range(len(z)):
            z[j] = max(z[j], np.float32(0.0))
    else:
        for j in range(len(z)):
            z[j] = losses.sigmoid(z[j])


@njit
def _times_slope(error, h, activation):
    """error * f'(z) in place, with the slope written in the activation's own value h = f(z)."""
    if activation == TANH:
        for j in range(len(h)):
            error[j] *= _ONE - h[j] * h[j]
    elif activation == RELU:
        for j in range(len(h)):
            error[j] = error[j] if h[j] > 0 else np.float32(0.0)
    else:
        for j in range(len(h)):
            error[j] *= h[j] * (_ONE - h[j])


@njit
def _gather(users_table, items_table, users, items, x):
    """x_j = [p_u ; q_i]."""
    rank = x.shape[1] // 2
    for j in range(len(users)):
        user, item = users[j], items[j]
        for k in range(rank):
            x[j, k] = users_table[user, 0, k]
        for k in range(rank):
            x[j, rank + k] = items_table[item, 0, k]


@njit
def _forward(network, n):
    """All layers of n samples whose inputs stand at the head of `values`; returns where the scores begin."""
    sizes, dense, values = network.sizes, network.dense[0], network.values
    here, parameter = 0, 0
    for layer in range(len(sizes) - 1):
        fan_in, fan_out = sizes[layer], sizes[layer + 1]
        there = here + n * fan_in
        h = values[here:there].reshape(n, fan_in)
        z = values[there : there + n * fan_out].reshape(n, fan_out)
        weights = dense[parameter : parameter + fan_in * fan_out].reshape(fan_in, fan_out)
        biases = dense[parameter + fan_in * fan_out : parameter + (fan_in + 1) * fan_out]
        np.dot(h, weights, out=z)
        for j in range(n):
            for k in range(fan_out):
                z[j, k] += biases[k]
        if layer < len(sizes) - 2:
            _activate(values[there : there + n * fan_out], network.activation)
        here, parameter = there, parameter + (fan_in + 1) * fan_out
    return here


@njit
def _backward(network, n, scores_at):
    """Gradients of all dense parameters, and d h_0 at the head of `errors`, from ds at `errors[scores_at:]`."""
    sizes, dense, values, errors = network.sizes, network.dense[0], network.values, network.errors
    there, parameter = scores_at, dense.shape[0]
    for layer in range(len(sizes) - 2, -1, -1):
        fan_in, fan_out = sizes[layer], sizes[layer + 1]
        here = there - n * fan_in
        parameter -= (fan_in + 1) * fan_out
        h = values[here:there].reshape(n, fan_in)
        dz = errors[there : there + n * fan_out].reshape(n, fan_out)
        weights = dense[parameter : parameter + fan_in * fan_out].reshape(fan_in, fan_out)
        biases_at = parameter + fan_in * fan_out
        np.dot(h.T, dz, out=network.gradient[parameter:biases_at].reshape(fan_in, fan_out))
        network.gradient[biases_at : biases_at + fan_out] = np.float32(0.0)
        for j in range(n):
            for k in range(fan_out):
                network.gradient[biases_at + k] += dz[j, k]
        np.dot(dz, weights.T, out=errors[here:there].reshape(n, fan_in))
        if layer:
            _times_slope(errors[here:there], values[here:there], network.activation)
        there = here


@njit
def _score_pairs(users_table, items_table, network, users, items, out):
    size = network.sizes[0]
    room = len(network.values) // network.sizes.sum()
    for start in range(0, len(users), room):
        stop = min(start + room, len(users))
        n = stop - start
        _gather(
            users_table, items_table, users[start:stop], items[start:stop], network.values[: n * size].reshape(n, size)
        )
        scores_at = _forward(network, n)
        out[start:stop] = network.values[scores_at : scores_at + n]


@njit
def _epoch(tables, network, stream, work, anchors, batch_size, loss, lr, lam, step, totals):
    """One pass over the stream; returns the number of steps made since the optimizer was fresh."""
    decay = lam * work.free
    dense_decay = lam * network.is_weight
    for start in range(0, len(stream.users), batch_size):
        stop = min(start + batch_size, len(stream.users))
        step += 1
        now = adam.rates(lr, step)
        batch = Stream(
            stream.users[start:stop],
            stream.items[start:stop],
            stream.targets[start:stop],
            stream.weights[start:stop],
            stream.terms[start:stop],
        )
        _batch_gradients(tables, network, batch, loss, totals)
        _step_rows(tables, network.errors, batch, work, decay, anchors, now)
        _step_dense(network.dense, network.gradient, dense_decay, now)
    return step


@njit
def _batch_gradients(tables, network, batch, loss, totals):
    """Forward, the loss of every sample, backward: gradients of the batch's mean loss at the current weights."""
    n, size = len(batch.users), network.sizes[0]
    _gather(tables.users, tables.items, batch.users, batch.items, network.values[: n * size].reshape(n, size))
    scores_at = _forward(network, n)
    values, errors = network.values, network.errors
    targets, weights, terms = batch.targets, batch.weights, batch.terms
    share = _ONE / np.float32(n)
    for j in range(n):
        s = values[scores_at + j]
        totals[terms[j]] += weights[j] * losses.value(loss, s, targets[j])
        errors[scores_at + j] = share * weights[j] * losses.derivative(loss, s, targets[j])
    _backward(network, n, scores_at)


@njit
def _step_rows(tables, errors, batch, work, decay, anchors, now):
    """Gather d h_0 = [d p_u ; d q_i] into the batch's distinct rows and step them."""
    n_users = emb.assign_slots(batch.users, work.user_slots)
    n_items = emb.assign_slots(batch.items, work.item_slots)
    rank = anchors.users.shape[1]
    dx = errors[: len(batch.users) * 2 * rank].reshape(len(batch.users), 2 * rank)
    _gather_gradients(dx, 0, rank, work.user_slots, n_users, work.user_gradients)
    _gather_gradients(dx, rank, rank, work.item_slots, n_items, work.item_gradients)
    _step_table(
        tables.users, work.user_slots, n_users, work.user_gradients, work.free, decay, anchors.users, anchors, now
    )
    _step_table(
        tables.items, work.item_slots, n_items, work.item_gradients, work.free, decay, anchors.items, anchors, now
    )
    emb.release_slots(work.user_slots, n_users)
    emb.release_slots(work.item_slots, n_items)


@njit
def _gather_gradients(dx, shift, rank, slots, n_slots, gradients):
    gradients[:n_slots] = np.float32(0.0)
    of_sample = slots.of_sample
    for j in range(dx.shape[0]):
        slot = of_sample[j]
        for k in range(rank):
            gradients[slot, k] += dx[j, shift + k]


@njit
def _step_table(table, slots, n_slots, gradients, free, decay, rows, anchors, now):
    strength = emb.pull_strength(table, rows, slots, n_slots, anchors)
    slot_rows, first = slots.row, slots.first
    for slot in range(n_slots):
        if strength:
            emb.pull(gradients, slot, table, slot_rows[slot], rows, first[slot], strength, anchors)
        adam.update_row(table, slot_rows[slot], gradients, slot, free, decay, now)


@njit
def _step_dense(dense, gradient, decay, now):
    for k in range(len(gradient)):
        g = gradient[k] + decay[k] * dense[0, k]
        w, m, v = adam.update(dense[0, k], dense[1, k], dense[2, k], g, now)
        dense[0, k] = w
        dense[1, k] = m
        dense[2, k] = v
