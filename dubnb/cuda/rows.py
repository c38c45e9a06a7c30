"""What training on the device shares between backbones: batches grouped by row, and Adam's step of a batch's rows.

As on the CPU's threads (`backbones/mf_threads.py`) every user of a batch and every item belongs to one worker; here a
worker is as many threads as a row has coordinates. All gradients of a batch are put aside before any row moves. No two
threads write to one place, so that nothing depends on which comes first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda, types

from dubnb import losses
from dubnb.backbones import adam
from dubnb.backbones import embedding as emb
from dubnb.cuda._launch import DOUBLES, F4, I8, INTS, MATRIX, TABLE, Totals, empty, kernel, to_device
from dubnb.stream import Stream


class Groups(NamedTuple):
    """The samples of each batch by row: place p of the batch at `start` is sample order[start + p]."""

    order: Any  # samples of one row stand together, in ascending order
    sizes: Any  # samples of the row whose first stands here; 0 elsewhere


RATES = types.NamedTuple((F4, F4), adam.Rates)
GROUPS = types.NamedTuple((INTS, INTS), Groups)


@kernel(INTS, I8, GROUPS)
def group(rows, batch_size, groups):
    """Group every batch of an epoch by row, by counting: batch_size steps for each sample, and no order of threads."""
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
def step_rows(table, rows, groups, start, n, gradients, lam, rank, now):
    """Adam's step of the rows of the n samples from `start`; the first `rank` coordinates decay by lam."""
    width = table.shape[2]
    for at in range(cuda.grid(1), n * width, cuda.gridsize(1)):
        place, k = at // width, at % width
        if groups.sizes[start + place] > 0:
            row = rows[groups.order[start + place]]
            w = table[row, 0, k]
            g = gradients[place, k] + (lam if k < rank else np.float32(0.0)) * w
            w, m, v = adam.update(w, table[row, 1, k], table[row, 2, k], g, now)
            table[row, 0, k], table[row, 1, k], table[row, 2, k] = w, m, v


class Epoch(NamedTuple):
    """An epoch's samples by row, and room for what they give."""

    stream: Stream
    users: Groups
    items: Groups
    values: Any  # DOUBLES, weighted losses
    errors: Any  # FLOATS


class Batches:
    """What trainers share: epochs over a stream on the device, batch by batch. They say what a batch does."""

    batch_size: int
    room: Epoch | None = None

    def epoch(self, stream: Stream, n_terms: int, loss: losses.Loss, lr: float, lam: float) -> np.ndarray:
        """Train on every sample of a stream on the device; returns each term's sum of weighted losses."""
        n, epoch = len(stream.users), self._room_for(stream)
        for side, groups in ((stream.users, epoch.users), (stream.items, epoch.items)):
            group(n, side, self.batch_size, groups)
        for start in range(0, n, self.batch_size):
            self.batch(epoch, start, min(self.batch_size, n - start), loss, lr, lam)
        return Totals(n_terms).of(epoch.values, stream.terms)

    def _room_for(self, stream: Stream) -> Epoch:
        """Room for an epoch, kept while epochs have the same number of samples."""
        n = len(stream.users)
        if self.room is None or len(self.room.errors) != n:
            groups = (Groups(empty(n, np.int32), empty(n, np.int32)) for _ in range(2))
            self.room = Epoch(stream, *groups, empty(n, np.float64), empty(n))
        return self.room._replace(stream=stream)

    def batch(self, epoch: Epoch, start: int, n: int, loss: losses.Loss, lr: float, lam: float) -> None:
        """One step on the n samples from `start`."""
        raise NotImplementedError


# CausE's pull towards the rows of another model


@kernel(TABLE, TABLE, INTS, GROUPS, I8, I8, DOUBLES)
def square_distances(table, other, rows, groups, start, rank, squares):
    """|w - w'|^2 over the factors of every row of a batch; 0 at places where no row begins."""
    for place in range(cuda.grid(1), len(squares), cuda.gridsize(1)):
        total = 0.0
        if groups.sizes[start + place] > 0:
            row = rows[groups.order[start + place]]
            for k in range(rank):
                total += (table[row, 0, k] - other[row, 0, k]) ** 2
        squares[place] = total


@kernel(TABLE, TABLE, INTS, GROUPS, I8, I8, F4, I8, MATRIX)
def pull(table, other, rows, groups, start, rank, strength, kind, gradients):
    """Add the gradient of strength sum |w - w'| (l1), or of strength |W - W'|_F (divided by that norm already)."""
    for at in range(cuda.grid(1), gradients.shape[0] * rank, cuda.gridsize(1)):
        place, k = at // rank, at % rank
        if groups.sizes[start + place] > 0:
            row = rows[groups.order[start + place]]
            gradients[place, k] += strength * emb.pull_direction(table[row, 0, k] - other[row, 0, k], kind)


# Tables


@kernel(TABLE, MATRIX)
def take_weights(table, weights):
    """A table's weights without their moments."""
    width = table.shape[2]
    for at in range(cuda.grid(1), len(table) * width, cuda.gridsize(1)):
        weights[at // width, at % width] = table[at // width, 0, at % width]


def weights_of(table: Any) -> Any:
    """A copy of a table's weights, on the device."""
    weights = empty((len(table), table.shape[2]))
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


def finite(table: Any, sums: Any) -> bool:
    """Whether every weight of a table is a finite number, told by a sum."""
    row_sums(len(sums), table, sums)
    return bool(np.isfinite(Totals().of(sums)).all())


def with_moments(weights: np.ndarray) -> Any:
    """A training table on the device, its moments at zero."""
    table = np.zeros((len(weights), 3, emb.padded(weights.shape[1])), np.float32)
    table[:, 0, : weights.shape[1]] = weights
    return to_device(table)
