"""Matrix factorisation on the device: `backbones/mf.py` with one thread per sample or coordinate.

A batch takes three launches, each of which reads the results of the ones before: every sample's score and error; every
row's gradient, from the errors and the other side's rows; every row's step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from dubnb.backbones.mf import MF, Rates, Stream, update
from dubnb.cuda._launch import (
    DOUBLES,
    F4,
    FLOATS,
    I8,
    INTS,
    MATRIX,
    STREAM,
    TABLE,
    device_array,
    kernel,
    to_device,
    zeros,
)
from dubnb.cuda.rows import GROUPS, RATES, Batches, Epoch, error_of
from dubnb.losses import Loss

B0_LANES = 32  # partial sums of b0's gradient


@cuda.jit(device=True)
def product_of(users_table, user, items_table, item):
    """p_u . q_i, biases included."""
    s = np.float32(0.0)
    for k in range(users_table.shape[2]):
        s += users_table[user, 0, k] * items_table[item, 0, k]
    return s


@kernel(TABLE, TABLE, FLOATS, INTS, INTS, FLOATS)
def score(users_table, items_table, b0, users, items, out):
    """Raw scores of pairs."""
    for j in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        out[j] = b0[0] + product_of(users_table, users[j], items_table, items[j])


@kernel(TABLE, TABLE, FLOATS, INTS, MATRIX)
def score_all(users_table, items_table, b0, users, out):
    """Raw scores of every item for some users."""
    n_items = out.shape[1]
    for at in range(cuda.grid(1), out.shape[0] * n_items, cuda.gridsize(1)):
        j, item = at // n_items, at % n_items
        out[j, item] = b0[0] + product_of(users_table, users[j], items_table, item)


@kernel(TABLE, TABLE, FLOATS, STREAM, I8, I8, I8, DOUBLES, FLOATS)
def sample_errors(users_table, items_table, b0, stream, start, n, loss, values, errors):
    """Weighted loss of each of the n samples from `start`, and its derivative in the batch's mean."""
    share = np.float32(1.0) / np.float32(n)
    for j in range(start + cuda.grid(1), start + n, cuda.gridsize(1)):
        s = b0[0] + product_of(users_table, stream.users[j], items_table, stream.items[j])
        values[j], errors[j] = error_of(stream, j, s, loss, share)


@kernel(GROUPS, I8, I8, FLOATS, TABLE, INTS, I8, MATRIX)
def factor_gradients(groups, start, n, errors, partners_table, partners, fixed, gradients):
    """Every row's sum of error x partner's row; none in column `fixed`, which holds the constant 1."""
    width = gradients.shape[1]
    for at in range(cuda.grid(1), n * width, cuda.gridsize(1)):
        place, k = at // width, at % width
        total = np.float32(0.0)
        for position in range(start + place, start + place + groups.sizes[start + place]):
            j = groups.order[position]
            total += errors[j] * partners_table[partners[j], 0, k]
        gradients[place, k] = np.float32(0.0) if k == fixed else total


@kernel(FLOATS, FLOATS, I8, I8, RATES)
def step_b0(b0, errors, start, n, now):
    """b0's gradient, the batch's sum of errors, and its step; by one block."""
    sums = cuda.shared.array(0, F4)
    for lane in range(cuda.threadIdx.x, B0_LANES, cuda.blockDim.x):
        total = np.float32(0.0)
        for j in range(start + lane, start + n, B0_LANES):
            total += errors[j]
        sums[lane] = total
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        total = np.float32(0.0)
        for lane in range(B0_LANES):
            total += sums[lane]
        b0[0], b0[1], b0[2] = update(b0[0], b0[1], b0[2], total, now)


@kernel(FLOATS, I8, I8, FLOATS)
def sum_errors(errors, start, n, out):
    """b0's gradient, the batch's sum of errors; by one thread."""
    if cuda.grid(1) == 0:
        total = np.float32(0.0)
        for j in range(start, start + n):
            total += errors[j]
        out[0] = total


@kernel(TABLE, TABLE, FLOATS, TABLE, TABLE, FLOATS, INTS, INTS, I8, FLOATS, FLOATS)
def tangents(users_table, items_table, b0, users_D, items_D, b0_D, users, items, start, scores, turns):
    """s of the pairs from `start`, and ds = db0 + dP_u . Q_i + P_u . dQ_i; the tables D have directions."""
    for j in range(cuda.grid(1), len(scores), cuda.gridsize(1)):
        user, item = users[start + j], items[start + j]
        turn = b0_D[1]
        for k in range(users_table.shape[2]):
            turn += users_D[user, 1, k] * items_table[item, 0, k] + users_table[user, 0, k] * items_D[item, 1, k]
        scores[j], turns[j] = b0[0] + product_of(users_table, user, items_table, item), turn


class MFScorer:
    """Weights on the device that score pairs on the device."""

    def __init__(self, weights: MF):
        self.tables = to_device(weights.users[:, None]), to_device(weights.items[:, None])
        self.b0 = to_device(np.array([weights.b0], np.float32))

    def score(self, users: Any, items: Any, out: Any) -> None:
        """Raw scores of pairs into `out`."""
        score(len(out), *self.tables, self.b0, users, items, out)


class CudaMFTrainer(Batches):
    """Trains mf on the device."""

    def __init__(self, weights: MF, batch_size: int):
        super().__init__(weights, batch_size)
        self.b0 = to_device(np.array([weights.b0, 0.0, 0.0], np.float32))
        self.b0_gradient, self.no_decay = zeros(1), zeros(1)

    def add_gradients(self, epoch: Epoch, start: int, n: int, loss: Loss) -> None:
        stream, users, items = epoch.stream, self.tables["users"], self.tables["items"]
        sample_errors(n, users, items, self.b0, stream, start, n, loss.code, epoch.values, epoch.errors)
        for side, groups, *partners, fixed in (
            ("users", epoch.users, items, stream.items, self.rank + 1),
            ("items", epoch.items, users, stream.users, self.rank),
        ):
            factor_gradients(n * self.width, groups, start, n, epoch.errors, *partners, fixed, self.gradients[side])

    def step_other_parameters(self, epoch: Epoch, start: int, n: int, lam: float, now: Rates) -> None:
        """b0's step."""
        step_b0.by_row(1, self.b0, epoch.errors, start, n, now, shared=4 * B0_LANES)

    def other_parameters(self) -> Any:
        """b0 and its two moments, (3, 1)."""
        return self.b0.reshape(3, 1)

    def other_gradient(self, epoch: Epoch, start: int, n: int, lam: float) -> tuple[Any, Any]:
        """b0's gradient after `add_gradients`, and its decay."""
        sum_errors(1, epoch.errors, start, n, self.b0_gradient)
        return self.b0_gradient, self.no_decay

    def tangents(self, along: Batches, stream: Stream, start: int, scores: Any, turns: Any) -> None:
        """Scores of the pairs from `start`, and their derivatives along the directions that `along` holds."""
        theta, D = (*self.tables.values(), self.b0), (*along.tables.values(), along.b0)  # type: ignore[attr-defined]
        tangents(len(scores), *theta, *D, stream.users, stream.items, start, scores, turns)

    def score(self, users: Any, items: Any, out: Any) -> None:
        score(len(out), *self.tables.values(), self.b0, users, items, out)

    def scores_of(self, users: Any) -> Any:
        scores = device_array((len(users), len(self.tables["items"])))
        score_all(scores.size, *self.tables.values(), self.b0, users, scores)
        return scores

    def weights(self) -> MF:
        users, items = self.host_tables()
        return MF(users, items, self.b0.copy_to_host()[0], self.rank)

    def finite(self) -> bool:
        return self.finite_tables() and bool(np.isfinite(self.b0.copy_to_host()[0]))
