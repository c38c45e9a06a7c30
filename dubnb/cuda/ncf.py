"""Neural collaborative filtering on the device: `backbones/ncf.py` with one tiled matrix product per layer.

The first layer is multiplied for every sample, not once per distinct row: a GPU has enough arithmetic for it, and a
row's gradient is then a sum over its samples in a fixed order.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, types

from dubnb.backbones import NCF
from dubnb.backbones.mf import Rates, Stream, update
from dubnb.backbones.network import ACTIVATIONS, activated, activation_slope
from dubnb.cuda._launch import (
    DOUBLES,
    F4,
    FLOATS,
    I8,
    INTS,
    MATRIX,
    SIMULATED,
    STREAM,
    TABLE,
    device_array,
    kernel,
    to_device,
)
from dubnb.cuda.rows import GROUPS, RATES, Batches, Epoch, error_of
from dubnb.losses import Loss

TILE = 2 if SIMULATED else 16  # a block computes TILE x TILE numbers
BLOCK = 1 << 14  # pairs scored at a time
PLAIN, ADDED, ACTIVATED, SLOPED = range(4)  # what is done with a product, see `finished`


class Operand(NamedTuple):
    """A matrix inside a flat array: element (i, j) is flat[at + i down + j across]."""

    flat: Any
    at: int
    down: int
    across: int


OPERAND = types.NamedTuple((FLOATS, I8, I8, I8), Operand)


@cuda.jit(device=True)
def element(operand, i, j):
    """Element (i, j)."""
    return operand.flat[operand.at + i * operand.down + j * operand.across]


@cuda.jit(device=True)
def finished(total, other, becomes, activation):
    """The product itself, plus `other`, the activation of that sum, or times the activation's slope at `other`."""
    if becomes == PLAIN:
        return total
    if becomes == SLOPED:
        return total * activation_slope(other, activation)
    return activated(total + other, activation) if becomes == ACTIVATED else total + other


@kernel(OPERAND, OPERAND, I8, I8, I8, OPERAND, I8, I8, OPERAND)
def product(a, b, m, n, depth, other, becomes, activation, out):
    """out = finished(a b, other), a (m x depth), b (depth x n): one block per tile, sums in a fixed order."""
    tiles = cuda.shared.array(0, F4)  # a's, then b's
    y, x = cuda.threadIdx.x // TILE, cuda.threadIdx.x % TILE
    columns = (n + TILE - 1) // TILE
    for tile in range(cuda.blockIdx.x, (m + TILE - 1) // TILE * columns, cuda.gridDim.x):
        i, j = tile // columns * TILE + y, tile % columns * TILE + x
        total = np.float32(0.0)
        for first in range(0, depth, TILE):
            here = y * TILE + x
            tiles[here] = element(a, i, first + x) if i < m and first + x < depth else np.float32(0.0)
            tiles[TILE * TILE + here] = element(b, first + y, j) if first + y < depth and j < n else np.float32(0.0)
            cuda.syncthreads()
            for k in range(TILE):
                total += tiles[y * TILE + k] * tiles[TILE * TILE + k * TILE + x]
            cuda.syncthreads()
        if i < m and j < n:
            beside = element(other, i, j) if becomes != PLAIN else total
            out.flat[out.at + i * out.down + j * out.across] = finished(total, beside, becomes, activation)


@kernel(TABLE, TABLE, I8, INTS, INTS, I8, I8, I8, FLOATS)
def gather(users_table, items_table, place, users, items, start, n, rank, x):
    """x = [p_u ; q_i] of the n pairs from `start`; place 0 of a row has its weights, 1 its first moments."""
    for at in range(cuda.grid(1), n * 2 * rank, cuda.gridsize(1)):
        j, k = start + at // (2 * rank), at % (2 * rank)
        x[at] = users_table[users[j], place, k] if k < rank else items_table[items[j], place, k - rank]


@kernel(STREAM, I8, I8, I8, FLOATS, I8, DOUBLES, FLOATS)
def score_errors(stream, start, n, loss, layers, at, values, errors):
    """Weighted losses, and ds of the batch's mean, of n samples; their scores are in `layers` from `at`."""
    share = np.float32(1.0) / np.float32(n)
    for j in range(cuda.grid(1), n, cuda.gridsize(1)):
        values[start + j], errors[at + j] = error_of(stream, start + j, layers[at + j], loss, share)


@kernel(GROUPS, I8, I8, FLOATS, I8, I8, MATRIX)
def input_gradients(groups, start, n, dx, first, rank, gradients):
    """Every row's sum of dx over its samples; the row's part of dx begins at `first`; 0 in the padding."""
    width = gradients.shape[1]
    for at in range(cuda.grid(1), n * width, cuda.gridsize(1)):
        place, k = at // width, at % width
        total = np.float32(0.0)
        if k < rank:
            for position in range(start + place, start + place + groups.sizes[start + place]):
                total += dx[(groups.order[position] - start) * 2 * rank + first + k]
        gradients[place, k] = total


@kernel(MATRIX, FLOATS, FLOATS, RATES)
def step_dense(dense, gradient, decay, now):
    """Adam's step of the dense parameters."""
    for k in range(cuda.grid(1), len(gradient), cuda.gridsize(1)):
        w = dense[0, k]
        g = gradient[k] + decay[k] * w
        dense[0, k], dense[1, k], dense[2, k] = update(w, dense[1, k], dense[2, k], g, now)


@kernel(FLOATS, FLOATS, I8, I8, I8)
def multiply_slopes(turned, values, at, n, activation):
    """Multiply n derivatives from `at` by the activation's slope at its `values`."""
    for j in range(at + cuda.grid(1), at + n, cuda.gridsize(1)):
        turned[j] *= activation_slope(values[j], activation)


@kernel(FLOATS, I8, FLOATS, I8, I8)
def copy(source, at, target, start, n):
    """target[start : start + n] = source[at : at + n]."""
    for j in range(cuda.grid(1), n, cuda.gridsize(1)):
        target[start + j] = source[at + j]


class Layer(NamedTuple):
    """A layer's shape and offsets: its weights and biases in the parameters, its input and output in the values."""

    fan_in: int
    fan_out: int
    weights: int
    biases: int
    before: int
    after: int
    last: bool


class CudaNetwork:
    """Dense parameters on the device, and scratch space for the layers of `capacity` samples."""

    def __init__(self, weights: NCF, capacity: int):
        self.rank, self.activation, self.capacity = weights.rank, ACTIVATIONS[weights.activation], capacity
        sizes = [int(size) for size in weights.sizes]
        self.layers, weights_at, values_at = [], 0, 0
        for number, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            biases_at, after = weights_at + fan_in * fan_out, values_at + capacity * fan_in
            last = number == len(sizes) - 2
            self.layers.append(Layer(fan_in, fan_out, weights_at, biases_at, values_at, after, last))
            weights_at, values_at = biases_at + fan_out, after
        dense = np.zeros((3, weights_at), np.float32)
        dense[0] = weights.dense
        self.dense, self.values = to_device(dense), device_array(values_at + capacity)
        self.scores_at = values_at

    def parameters(self) -> Any:
        """The parameters as a flat array; their moments follow."""
        return self.dense.reshape(self.dense.size)

    def forward(self, tables: tuple[Any, Any], users: Any, items: Any, start: int, n: int) -> None:
        """Compute the scores of the n pairs from `start`, into `values` from `scores_at`."""
        gather(n * 2 * self.rank, *tables, 0, users, items, start, n, self.rank, self.values)
        dense = self.parameters()
        for layer in self.layers:
            h = Operand(self.values, layer.before, layer.fan_in, 1)
            W, b = Operand(dense, layer.weights, layer.fan_out, 1), Operand(dense, layer.biases, 0, 1)
            out = Operand(self.values, layer.after, layer.fan_out, 1)
            becomes = ADDED if layer.last else ACTIVATED
            self._product(h, W, (n, layer.fan_out, layer.fan_in), b, becomes, out)

    def score(self, tables: tuple[Any, Any], users: Any, items: Any, out: Any) -> None:
        """Raw scores of pairs into `out`, `capacity` at a time."""
        for start in range(0, len(out), self.capacity):
            n = min(self.capacity, len(out) - start)
            self.forward(tables, users, items, start, n)
            copy(n, self.values, self.scores_at, out, start, n)

    def tangent(self, along: CudaNetwork, n: int) -> None:
        """Derivatives of n scores, whose `forward` was computed, along the directions in the first moments of `along`.

        `along.values` has the directions of the inputs and gets the derivatives: dh W + h dW + db of each layer.
        """
        dense, D, first = self.parameters(), along.parameters(), along.dense.shape[1]
        for layer in self.layers:
            sizes = n, layer.fan_out, layer.fan_in
            h, dh = (Operand(of.values, layer.before, layer.fan_in, 1) for of in (self, along))
            W, dW = Operand(dense, layer.weights, layer.fan_out, 1), Operand(D, first + layer.weights, layer.fan_out, 1)
            db, out = Operand(D, first + layer.biases, 0, 1), Operand(along.values, layer.after, layer.fan_out, 1)
            self._product(h, dW, sizes, db, ADDED, out)
            self._product(dh, W, sizes, out, ADDED, out)
            if not layer.last:
                many = n * layer.fan_out
                multiply_slopes(many, along.values, self.values, layer.after, many, self.activation)

    def backward(self, n: int, errors: Any, ones: Any, gradient: Any) -> None:
        """Gradients of all parameters, and dx at the start of `errors`, from ds in `errors` at `scores_at`."""
        dense = self.parameters()
        for layer in reversed(self.layers):
            h, dz = Operand(self.values, layer.before, 1, layer.fan_in), Operand(errors, layer.after, layer.fan_out, 1)
            dW, db = (
                Operand(gradient, layer.weights, layer.fan_out, 1),
                Operand(gradient, layer.biases, layer.fan_out, 1),
            )
            self._product(h, dz, (layer.fan_in, layer.fan_out, n), dW, PLAIN, dW)
            self._product(Operand(ones, 0, 0, 1), dz, (1, layer.fan_out, n), db, PLAIN, db)
            turned, dh = Operand(dense, layer.weights, 1, layer.fan_out), Operand(errors, layer.before, layer.fan_in, 1)
            values = Operand(self.values, layer.before, layer.fan_in, 1)
            becomes = PLAIN if layer.before == 0 else SLOPED
            self._product(dz, turned, (n, layer.fan_in, layer.fan_out), values, becomes, dh)

    def _product(self, a: Operand, b: Operand, sizes: tuple[int, int, int], other: Any, becomes: int, out: Any) -> None:
        tiles = -(-sizes[0] // TILE) * -(-sizes[1] // TILE)
        product.by_row(
            tiles, a, b, *sizes, other, becomes, self.activation, out, threads=TILE * TILE, shared=8 * TILE * TILE
        )


class NCFScorer:
    """Weights on the device that score pairs on the device."""

    def __init__(self, weights: NCF):
        self.tables = to_device(weights.users[:, None]), to_device(weights.items[:, None])
        self.network = CudaNetwork(weights, BLOCK)

    def score(self, users: Any, items: Any, out: Any) -> None:
        """Raw scores of pairs into `out`."""
        self.network.score(self.tables, users, items, out)


class CudaNCFTrainer(Batches):
    """Trains ncf on the device."""

    def __init__(self, weights: NCF, batch_size: int):
        super().__init__(weights, batch_size)
        self.sizes, self.activation, self.network = weights.sizes, weights.activation, CudaNetwork(weights, batch_size)
        self.errors, self.gradient = device_array(len(self.network.values)), device_array(len(weights.dense))
        self.is_weight = np.concatenate([np.repeat((1.0, 0.0), (m * n, n)) for m, n in itertools.pairwise(self.sizes)])
        self.ones = to_device(np.ones(batch_size, np.float32))
        self.decay = 0.0, to_device(np.zeros(len(weights.dense), np.float32))

    def add_gradients(self, epoch: Epoch, start: int, n: int, loss: Loss) -> None:
        stream, network, at = epoch.stream, self.network, self.network.scores_at
        network.forward(tuple(self.tables.values()), stream.users, stream.items, start, n)
        score_errors(n, stream, start, n, loss.code, network.values, at, epoch.values, self.errors)
        network.backward(n, self.errors, self.ones, self.gradient)
        for side, first in (("users", 0), ("items", self.rank)):
            groups, gradients = getattr(epoch, side), self.gradients[side]
            input_gradients(n * self.width, groups, start, n, self.errors, first, self.rank, gradients)

    def step_other_parameters(self, epoch: Epoch, start: int, n: int, lam: float, now: Rates) -> None:
        """The dense parameters' step."""
        step_dense(len(self.gradient), self.network.dense, *self.other_gradient(epoch, start, n, lam), now)

    def other_parameters(self) -> Any:
        """The dense parameters and their two moments."""
        return self.network.dense

    def other_gradient(self, epoch: Epoch, start: int, n: int, lam: float) -> tuple[Any, Any]:
        """The dense parameters' gradient after `add_gradients`, and their decay."""
        if self.decay[0] != lam:
            self.decay = lam, to_device(self.is_weight * lam, np.float32)
        return self.gradient, self.decay[1]

    def tangents(self, along: Batches, stream: Stream, start: int, scores: Any, turns: Any) -> None:
        """Scores of the pairs from `start`, and their derivatives along the directions that `along` holds."""
        n, other = len(scores), along.network  # type: ignore[attr-defined]
        pairs = stream.users, stream.items, start, n
        self.network.forward(tuple(self.tables.values()), *pairs)
        gather(n * 2 * self.rank, *along.tables.values(), 1, *pairs, self.rank, other.values)
        self.network.tangent(other, n)
        for values, out in ((self.network.values, scores), (other.values, turns)):
            copy(n, values, self.network.scores_at, out, 0, n)

    def score(self, users: Any, items: Any, out: Any) -> None:
        self.network.score(tuple(self.tables.values()), users, items, out)

    def weights(self) -> NCF:
        users, items = (np.ascontiguousarray(table[:, : self.rank]) for table in self.host_tables())
        return NCF(users, items, self.network.dense.copy_to_host()[0].copy(), self.sizes, self.activation)

    def finite(self) -> bool:
        return self.finite_tables() and bool(np.isfinite(self.network.dense.copy_to_host()[0]).all())
