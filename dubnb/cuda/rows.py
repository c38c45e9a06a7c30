"""Training on the device, shared by all backbones: batches grouped by row, and Adam's step of their rows.

Every row that a batch touches belongs to as many threads as it has coordinates. All gradients of a batch are computed
before any row moves. No two threads write to one place, so the result does not depend on which of them comes first.

`Ranker.top_k` is `evaluation.top_k` with one block per row. Each position of the list takes one pass over the row's
items, which finds the largest key below the previous one. Keys are distinct, so the list equals the CPU's, ties
included.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba import cuda, types

from dubnb import losses
from dubnb.backbones import Weights, mf
from dubnb.backbones.mf import Stream
from dubnb.cuda import _launch
from dubnb.cuda._launch import DOUBLES, F4, FLOATS, I8, INTS, MATRIX, TABLE, Totals, device_array, kernel, to_device
from dubnb.evaluation import EXCLUDED, sort_key

INT_MATRIX, BYTE_MATRIX = (types.Array(dtype, 2, "C") for dtype in (types.int32, types.uint8))
ABOVE = 2**63 - 1  # above every sort key


@kernel(INT_MATRIX, BYTE_MATRIX, INT_MATRIX)
def top_items(bits, excluded, top):
    """The items of each row's largest scores that are not excluded, best first; -1 where none is left."""
    best = cuda.shared.array(0, I8)  # one key for each thread
    n_items = bits.shape[1]
    for row in range(cuda.blockIdx.x, top.shape[0], cuda.gridDim.x):
        last = ABOVE
        for place in range(top.shape[1]):
            mine = EXCLUDED
            for item in range(cuda.threadIdx.x, n_items, cuda.blockDim.x):
                if not excluded[row, item]:
                    key = sort_key(bits[row, item], item, n_items)
                    if mine < key < last:
                        mine = key
            best[cuda.threadIdx.x] = mine
            cuda.syncthreads()
            last = EXCLUDED
            for thread in range(cuda.blockDim.x):
                last = max(last, best[thread])
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                top[row, place] = -1 if last == EXCLUDED else n_items - 1 - (last & 0xFFFFFFFF)


@kernel(INTS, INTS, INTS)
def all_items_of(users, pair_users, pair_items):
    """Pairs of some users with every item, user by user."""
    n_items = len(pair_users) // len(users)
    for at in range(cuda.grid(1), len(pair_users), cuda.gridsize(1)):
        pair_users[at], pair_items[at] = users[at // n_items], at % n_items


class DeviceScorer(Protocol):
    """A model that scores on the device."""

    def scores_of(self, users: Any) -> Any:
        """Raw scores of every item for users on the device, (users, items), which stay there."""


class Ranker:
    """Mixin for models that score on the device: rows of scores, and top lists."""

    def score_rows(self: DeviceScorer, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users` under the current weights."""
        return self.scores_of(to_device(users, np.int32)).copy_to_host()

    def top_k(self: DeviceScorer, users: np.ndarray, k: int, excluded: np.ndarray) -> np.ndarray:
        """Items of the k largest scores for each of `users`, see `evaluation.top_k`; only lists leave the device."""
        scores = self.scores_of(to_device(users, np.int32))
        top = device_array((len(users), min(k, scores.shape[1])), np.int32)
        shared = 8 * _launch.ROW_THREADS
        top_items.by_row(len(users), scores.view(np.int32), to_device(excluded, np.uint8), top, shared=shared)
        return top.copy_to_host().astype(np.int64)


# ---- batches and steps -----------------------------------------------------------------------------------------------


class RowGroups(NamedTuple):
    """Each batch's samples grouped by row: position p of the batch at `start` is sample order[start + p]."""

    order: Any  # samples of one row are adjacent, in ascending order
    sizes: Any  # at the first sample of a row: the row's number of samples; elsewhere 0


RATES = types.NamedTuple((F4, F4), mf.Rates)
GROUPS = types.NamedTuple((INTS, INTS), RowGroups)


@kernel(INTS, I8, GROUPS)
def group(rows, batch_size, groups):
    """Group every batch of an epoch by row, by counting: batch_size steps per sample, in any order of threads."""
    for j in range(cuda.grid(1), len(rows), cuda.gridsize(1)):
        start = j // batch_size * batch_size
        row, below, earlier, later = rows[j], 0, 0, 0
        for k in range(start, min(start + batch_size, len(rows))):
            if rows[k] < row:
                below += 1
            elif rows[k] == row and k < j:
                earlier += 1
            elif rows[k] == row:
                later += 1
        place = start + below + earlier
        groups.order[place] = j
        groups.sizes[place] = later if earlier == 0 else 0


@cuda.jit(device=True)
def error_of(stream, j, s, loss, share):
    """Sample j's weighted loss at score s, and its derivative times `share`."""
    value, slope = losses.value_and_derivative(loss, s, stream.targets[j])
    return stream.weights[j] * value, share * stream.weights[j] * slope


@kernel(TABLE, INTS, GROUPS, I8, I8, MATRIX, F4, I8, RATES)
def adam_rows(table, rows, groups, start, n, gradients, lam, rank, now):
    """Adam's step of the rows of the n samples from `start`; the first `rank` coordinates decay by lam."""
    width = table.shape[2]
    for at in range(cuda.grid(1), n * width, cuda.gridsize(1)):
        place, k = at // width, at % width
        if groups.sizes[start + place] > 0:
            row = rows[groups.order[start + place]]
            w = table[row, 0, k]
            g = gradients[place, k] + (lam if k < rank else np.float32(0.0)) * w
            w, m, v = mf.update(w, table[row, 1, k], table[row, 2, k], g, now)
            table[row, 0, k], table[row, 1, k], table[row, 2, k] = w, m, v


class Epoch(NamedTuple):
    """An epoch's samples grouped by row, and arrays for their losses and errors."""

    stream: Stream
    users: RowGroups
    items: RowGroups
    values: Any  # DOUBLES, weighted losses
    errors: Any  # FLOATS


class Batches(Ranker):
    """Base class of trainers: two tables, and epochs over a stream on the device; subclasses define the batch."""

    def __init__(self, weights: Any, batch_size: int):
        self.rank, self.batch_size, self.step = weights.rank, batch_size, 0
        self.tables = {"users": device_table(weights.users), "items": device_table(weights.items)}
        self.width = self.tables["users"].shape[2]
        self.gradients = {side: device_array((batch_size, self.width)) for side in self.tables}
        self.sums = {side: device_array(len(table), np.float64) for side, table in self.tables.items()}
        self.room: Epoch | None = None

    def add_gradients(self, epoch: Epoch, start: int, n: int, loss: losses.Loss) -> None:
        """Losses and gradients of the n samples from `start`."""
        raise NotImplementedError

    def step_other_parameters(self, epoch: Epoch, start: int, n: int, lam: float, now: mf.Rates) -> None:
        """Adam's step of parameters outside the tables."""
        raise NotImplementedError

    def other_parameters(self) -> Any:
        """The parameters outside the tables and their two moments, (3, n)."""
        raise NotImplementedError

    def other_gradient(self, epoch: Epoch, start: int, n: int, lam: float) -> tuple[Any, Any]:
        """Gradient and decay of the parameters outside the tables, after `add_gradients`."""
        raise NotImplementedError

    def tangents(self, along: Batches, stream: Stream, start: int, scores: Any, turns: Any) -> None:
        """Scores of the pairs from `start`, and their derivatives along the directions that `along` holds."""
        raise NotImplementedError

    def score(self, users: Any, items: Any, out: Any) -> None:
        """Raw scores of pairs on the device into `out`."""
        raise NotImplementedError

    def weights(self) -> Weights:
        """A copy of the weights, on the host."""
        raise NotImplementedError

    def finite(self) -> bool:
        """Whether every weight is finite."""
        raise NotImplementedError

    def epoch(self, stream: Stream, n_terms: int, loss: losses.Loss, lr: float, lam: float) -> np.ndarray:
        """Train on every sample of a stream on the device; returns each term's sum of weighted losses."""
        epoch, n = self.begin(stream), len(stream.users)
        for start in range(0, n, self.batch_size):
            size = min(self.batch_size, n - start)
            self.add_gradients(epoch, start, size, loss)
            self.take_step(epoch, start, size, lr, lam)
        return Totals(n_terms).of(epoch.values, stream.terms)

    def begin(self, stream: Stream) -> Epoch:
        """Group an epoch's samples by row; arrays are reused while epochs have the same number of samples."""
        n = len(stream.users)
        if self.room is None or len(self.room.errors) != n:
            groups = {side: RowGroups(device_array(n, np.int32), device_array(n, np.int32)) for side in self.tables}
            self.room = Epoch(stream, **groups, values=device_array(n, np.float64), errors=device_array(n))
        for side in self.tables:
            group(n, getattr(stream, side), self.batch_size, getattr(self.room, side))
        return self.room._replace(stream=stream)

    def take_step(self, epoch: Epoch, start: int, n: int, lr: float, lam: float) -> None:
        """Adam's step of all parameters of the batch."""
        self.step += 1
        now = mf.rates(lr, self.step)
        for side, table in self.tables.items():
            own, groups, gradients = getattr(epoch.stream, side), getattr(epoch, side), self.gradients[side]
            adam_rows(n * self.width, table, own, groups, start, n, gradients, np.float32(lam), self.rank, now)
        self.step_other_parameters(epoch, start, n, lam, now)

    def add_pull(self, epoch: Epoch, start: int, n: int, other: Batches, alignment: Any, room: Any) -> None:
        """Add the gradient of CausE's pull towards the current rows of another model; `room`: (squares, strength)."""
        squares, strength = room
        for side in alignment.sides:
            places = self.tables[side], other.tables[side], getattr(epoch.stream, side), getattr(epoch, side)
            square_distances(n, *places, start, n, self.rank, squares)
            pull_factor(1, squares, n, np.float32(alignment.strength / np.float32(n)), alignment.kind, strength)
            add_pull(n * self.rank, *places, start, n, self.rank, strength, alignment.kind, self.gradients[side])

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Raw scores of pairs under the current weights."""
        scores = device_array(len(users))
        self.score(to_device(users, np.int32), to_device(items, np.int32), scores)
        return scores.copy_to_host(out)

    def scores_of(self, users: Any) -> Any:
        """Raw scores of every item for users on the device, one row each."""
        n_items = len(self.tables["items"])
        n = len(users) * n_items
        pairs, scores = (device_array(n, np.int32), device_array(n, np.int32)), device_array((len(users), n_items))
        all_items_of(n, users, *pairs)
        self.score(*pairs, scores.reshape(n))
        return scores

    def host_tables(self) -> list[np.ndarray]:
        """Copies of the users' and the items' weights, padding included."""
        copies = [mf.aligned_array((len(table), self.width)) for table in self.tables.values()]
        for table, own in zip(self.tables.values(), copies, strict=True):
            table_weights(table).copy_to_host(own)
        return copies

    def finite_tables(self) -> bool:
        """Whether every weight of the tables is finite, tested by a sum."""
        total = 0.0
        for side, table in self.tables.items():
            row_sums(len(table), table, self.sums[side])
            total += float(Totals().of(self.sums[side])[0])
        return bool(np.isfinite(total))


# CausE's pull towards the rows of another model


@kernel(TABLE, TABLE, INTS, GROUPS, I8, I8, I8, DOUBLES)
def square_distances(table, other, rows, groups, start, n, rank, squares):
    """|w - w'|^2 over the factors of every row of a batch; 0 at positions where no row begins."""
    for place in range(cuda.grid(1), n, cuda.gridsize(1)):
        total = 0.0
        if groups.sizes[start + place] > 0:
            row = rows[groups.order[start + place]]
            for k in range(rank):
                total += (table[row, 0, k] - other[row, 0, k]) ** 2
        squares[place] = total


@kernel(DOUBLES, I8, F4, I8, FLOATS)
def pull_factor(squares, n, strength, kind, out):
    """The factor of the pull: the strength (l1), or the strength over |W - W'|_F of the distinct rows (Frobenius)."""
    if cuda.grid(1) == 0:
        total = 0.0
        for place in range(n):
            total += squares[place]
        if kind == mf.L1:
            out[0] = strength
        else:
            out[0] = strength / math.sqrt(total) if total > 0 else np.float32(0.0)


@kernel(TABLE, TABLE, INTS, GROUPS, I8, I8, I8, FLOATS, I8, MATRIX)
def add_pull(table, other, rows, groups, start, n, rank, strength, kind, gradients):
    """Add the gradient of strength sum |w - w'| (l1), or of strength |W - W'|_F (`strength` includes 1 / norm)."""
    for at in range(cuda.grid(1), n * rank, cuda.gridsize(1)):
        place, k = at // rank, at % rank
        if groups.sizes[start + place] > 0:
            row = rows[groups.order[start + place]]
            gradients[place, k] += strength[0] * mf.pull_direction(table[row, 0, k] - other[row, 0, k], kind)


# Tables


@kernel(TABLE, MATRIX)
def take_weights(table, weights):
    """A table's weights without their moments."""
    width = table.shape[2]
    for at in range(cuda.grid(1), len(table) * width, cuda.gridsize(1)):
        weights[at // width, at % width] = table[at // width, 0, at % width]


def table_weights(table: Any) -> Any:
    """A copy of a table's weights, on the device."""
    weights = device_array((len(table), table.shape[2]))
    take_weights(weights.size, table, weights)
    return weights


@kernel(TABLE, DOUBLES)
def row_sums(table, sums):
    """The sum of every row's weights."""
    for row in range(cuda.grid(1), len(sums), cuda.gridsize(1)):
        total = 0.0
        for k in range(table.shape[2]):
            total += table[row, 0, k]
        sums[row] = total


def device_table(weights: np.ndarray) -> Any:
    """A training table on the device with zero moments."""
    table = np.zeros((len(weights), 3, mf.padded(weights.shape[1])), np.float32)
    table[:, 0, : weights.shape[1]] = weights
    return to_device(table)
