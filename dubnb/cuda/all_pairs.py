"""Sums over all pairs on the device: weighted Gram matrices, scores of observed pairs, the exact objective.

Sums are in float64 where the CPU sums in float64. Gram matrices are sums over chunks of rows. Each thread computes one
entry of one chunk, and the chunks are then added in their order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from dubnb.backbones import MF
from dubnb.backbones.mf import EXTRA_COLUMNS, Extended
from dubnb.cuda import mf
from dubnb.cuda._launch import (
    DOUBLES,
    F8,
    FLOATS,
    I8,
    INTS,
    LONGS,
    MATRIX,
    WIDE_MATRIX,
    WIDE_TABLE,
    Totals,
    device_array,
    kernel,
    to_device,
    zeros,
)
from dubnb.cuda.rows import Ranker, row_sums

CHUNK = 256  # rows whose products one thread adds up


@kernel(MATRIX, DOUBLES, MATRIX, WIDE_TABLE)
def gram_of_chunks(rows, weights, other, parts):
    """parts[c, a, b] = sum over chunk c of weight x row[a] x other[b]."""
    n_chunks, height, width = parts.shape
    for at in range(cuda.grid(1), n_chunks * height * width, cuda.gridsize(1)):
        c, a, b = at // (height * width), at // width % height, at % width
        total = 0.0
        for row in range(c * CHUNK, min((c + 1) * CHUNK, len(weights))):
            total += weights[row] * np.float64(rows[row, a]) * np.float64(other[row, b])
        parts[c, a, b] = total


@kernel(WIDE_TABLE, WIDE_MATRIX)
def sum_chunks(parts, out):
    """The sum of the chunks' matrices."""
    width = out.shape[1]
    for at in range(cuda.grid(1), out.shape[0] * width, cuda.gridsize(1)):
        total = 0.0
        for c in range(parts.shape[0]):
            total += parts[c, at // width, at % width]
        out[at // width, at % width] = total


class Gram:
    """sum_k weights_k rows_k other_k^T of rows on the device."""

    def __init__(self, n_rows: int, height: int, width: int):
        self.parts = device_array((max(1, -(-n_rows // CHUNK)), height, width), np.float64)
        self.out = device_array((height, width), np.float64)

    def of(self, rows: Any, weights: Any, other: Any) -> Any:
        """The matrix on the device, valid until the next one."""
        gram_of_chunks(self.parts.size, rows, weights, other, self.parts)
        sum_chunks(self.out.size, self.parts, self.out)
        return self.out


@kernel(LONGS, INTS, FLOATS, FLOATS, MATRIX, MATRIX, DOUBLES, F8, I8, DOUBLES)
def row_losses(indptr, partners, curvature, pull, rows, others, ridge, bias_ridge, bias, out):
    """Each row's share of the objective: k s^2 - 2 c s of its observed pairs, its decay and its bias's ridge."""
    width = rows.shape[1]
    for u in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        total = 0.0
        for n in range(indptr[u], indptr[u + 1]):
            s = 0.0
            for j in range(width):
                s += np.float64(rows[u, j]) * np.float64(others[partners[n], j])
            total += (curvature[n] * s - 2.0 * pull[n]) * s
        for j in range(width - EXTRA_COLUMNS):
            total += ridge[u] * np.float64(rows[u, j]) * np.float64(rows[u, j])
        out[u] = total + bias_ridge * np.float64(rows[u, width + bias]) ** 2


class DeviceRows(Ranker):
    """Extended rows of both sides on the device; an exact solver changes them, early stopping judges them."""

    def __init__(self, rows: Extended):
        self.P, self.Q = to_device(rows.P, np.float32), to_device(rows.Q, np.float32)
        self.sums = device_array(len(rows.P), np.float64), device_array(len(rows.Q), np.float64)
        self.b0 = zeros(1)

    def tables(self) -> tuple[Any, Any]:
        """Both sides as tables of weights without moments."""
        return self.P.reshape(len(self.P), 1, self.P.shape[1]), self.Q.reshape(len(self.Q), 1, self.Q.shape[1])

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Scores of the pairs (users[j], items[j])."""
        out = device_array(len(users))
        mf.score(len(users), *self.tables(), self.b0, to_device(users, np.int32), to_device(items, np.int32), out)
        return out.copy_to_host()

    def scores_of(self, users: Any) -> Any:
        """Scores of every item for users on the device, one row each."""
        scores = device_array((len(users), len(self.Q)))
        mf.score_all(scores.size, *self.tables(), self.b0, users, scores)
        return scores

    def finite(self) -> bool:
        """Whether every number is finite, tested by one sum per side."""
        total = 0.0
        for table, sums in zip(self.tables(), self.sums, strict=True):
            row_sums(len(sums), table, sums)
            total += Totals().of(sums)[0]
        return bool(np.isfinite(total))

    def fetch(self, rows: Extended) -> None:
        """Copy the current rows to `rows` on the host."""
        self.P.copy_to_host(rows.P)
        self.Q.copy_to_host(rows.Q)

    def weights(self) -> MF:
        """A copy of the rows as weights, on the host."""
        return MF.from_extended(Extended(self.P.copy_to_host(), self.Q.copy_to_host()))
