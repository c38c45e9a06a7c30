"""The exact row solves on the device: `objective/als.py` with one warp per row.

The threads of a block share one row's vectors, and each owns some coordinates. Every thread computes the same scalars
(the step's length, the residual) in the same order, so all stop at the same iteration without communication.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, types

from dubnb._check import InputError
from dubnb.backbones.mf import EXTRA_COLUMNS, Extended
from dubnb.cuda._launch import (
    DOUBLES,
    F8,
    FLOATS,
    I8,
    INTS,
    LONGS,
    MATRIX,
    WIDE_MATRIX,
    Totals,
    check_memory,
    device_array,
    kernel,
    to_device,
)
from dubnb.cuda.all_pairs import DeviceRows, Gram, row_losses
from dubnb.objective import als
from dubnb.objective.all_pairs import ExactProblem

DIAGONAL, BORDER, RIGHT, INVERSE, STEP, PRODUCT, X = range(7)  # a row's vectors, see `als.RowSystem`, in shared memory
VECTORS = 7
SHARED_MEMORY = 48 * 1024  # bytes of shared memory that every GPU gives a block
UNKNOWNS = types.NamedTuple((LONGS, INTS, FLOATS, FLOATS, DOUBLES, DOUBLES, MATRIX, I8, I8), als.Unknowns)


@cuda.jit(device=True)
def start_row(rows, u, other, G, H, bias_ridge, width, v):
    """This thread's coordinates of the row's system, see `als._all_pairs_part` and `als._observed_part`."""
    a, bias, fixed = rows.weights[u], width + rows.bias, width + rows.fixed
    for j in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        diagonal = a * G[j, j] + (bias_ridge if j == bias else rows.ridge[u])
        right = -G[j, fixed]
        for t in range(H.shape[1]):
            right += H[j, t] * rows.teacher[u, t]
        right, full = a * right, diagonal
        for n in range(rows.indptr[u], rows.indptr[u + 1]):
            i, k = rows.partners[n], rows.curvature[n]
            z = other[i, j]
            right += (rows.pull[n] - k * other[i, fixed]) * z
            full += k * z * z
        moves = j != fixed
        v[DIAGONAL * width + j] = diagonal if moves else 1.0
        v[BORDER * width + j] = a * G[j, bias] if moves and j != bias else 0.0
        v[RIGHT * width + j] = right if moves else 0.0
        v[INVERSE * width + j] = 1.0 / full if moves else 1.0
        v[STEP * width + j] = v[INVERSE * width + j] * v[RIGHT * width + j]
        v[X * width + j] = 0.0


@cuda.jit(device=True)
def score_step(rows, u, other, width, v, products):
    """k (z . step) of this thread's observed pairs."""
    for n in range(rows.indptr[u] + cuda.threadIdx.x, rows.indptr[u + 1], cuda.blockDim.x):
        s = np.float32(0.0)
        for j in range(width):
            s += other[rows.partners[n], j] * np.float32(v[STEP * width + j])
        products[n] = rows.curvature[n] * s


@cuda.jit(device=True)
def multiply_step(rows, u, other, width, v, products):
    """This thread's coordinates of M step: the arrow, then the observed pairs."""
    bias, fixed = width + rows.bias, width + rows.fixed
    for j in range(cuda.threadIdx.x, width, cuda.blockDim.x):
        total = v[DIAGONAL * width + j] * v[STEP * width + j] + v[BORDER * width + j] * v[STEP * width + bias]
        if j == bias:
            for k in range(width):
                total += v[BORDER * width + k] * v[STEP * width + k]
        for n in range(rows.indptr[u], rows.indptr[u + 1]):
            total += products[n] * other[rows.partners[n], j]
        v[PRODUCT * width + j] = 0.0 if j == fixed else total


@cuda.jit(device=True)
def sum_of_products(width, v, first, second):
    """The inner product of two of the row's vectors, the same in every thread."""
    total = 0.0
    for j in range(width):
        total += v[first * width + j] * v[second * width + j]
    return total


@cuda.jit(device=True)
def residual(width, v):
    """The squared residual in the preconditioner's norm, the same in every thread."""
    total = 0.0
    for j in range(width):
        total += v[RIGHT * width + j] * v[RIGHT * width + j] * v[INVERSE * width + j]
    return total


@kernel(UNKNOWNS, MATRIX, WIDE_MATRIX, WIDE_MATRIX, F8, F8, FLOATS, MATRIX)
def solve_row_blocks(rows, other, G, H, bias_ridge, tolerance, products, out):
    """Set every row to its optimum given the other side, by conjugate gradients; one block per row."""
    width = out.shape[1]
    v = cuda.shared.array(0, F8)
    bias = width + rows.bias
    for u in range(cuda.blockIdx.x, len(out), cuda.gridDim.x):
        start_row(rows, u, other, G, H, bias_ridge, width, v)
        cuda.syncthreads()
        size = sum_of_products(width, v, RIGHT, STEP)
        enough = tolerance * size
        for _ in range(2 * width):
            if not size > enough:
                break
            score_step(rows, u, other, width, v, products)
            cuda.syncthreads()
            multiply_step(rows, u, other, width, v, products)
            cuda.syncthreads()
            length = size / sum_of_products(width, v, STEP, PRODUCT)
            for j in range(cuda.threadIdx.x, width, cuda.blockDim.x):
                v[X * width + j] += length * v[STEP * width + j]
                v[RIGHT * width + j] -= length * v[PRODUCT * width + j]
            cuda.syncthreads()
            before, size = size, residual(width, v)
            for j in range(cuda.threadIdx.x, width, cuda.blockDim.x):
                v[STEP * width + j] = (
                    v[INVERSE * width + j] * v[RIGHT * width + j] + size / before * v[STEP * width + j]
                )
            cuda.syncthreads()
        for j in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            if j < width - EXTRA_COLUMNS or j == bias:
                out[u, j] = v[X * width + j]
        cuda.syncthreads()


@kernel(MATRIX, MATRIX, MATRIX)
def rotate_factors(rows, turn, out):
    """Rotate the factors of every row; bias and constant stay."""
    width, rank = rows.shape[1], turn.shape[0]
    for at in range(cuda.grid(1), rows.shape[0] * width, cuda.gridsize(1)):
        row, j = at // width, at % width
        total = rows[row, j]
        if j < rank:
            total = np.float32(0.0)
            for k in range(rank):
                total += rows[row, k] * turn[k, j]
        out[row, j] = total


class CudaRowSolver(DeviceRows):
    """An exact problem and its rows on the device."""

    def __init__(self, problem: ExactProblem, rows: Extended, quiet: bool = True):
        ready = als.prepare(problem)
        sides = [_converted(side) for side in (ready.users, ready.items)]
        width, shape = rows.P.shape[1], rows.shape
        if VECTORS * 8 * width > SHARED_MEMORY:
            raise InputError(f"rank={width - EXTRA_COLUMNS} is more than a GPU's shared memory holds: use device='cpu'")
        logs = sum(array.nbytes for side in sides for array in side if isinstance(array, np.ndarray))
        grams = 8 * sum(shape) // 256 * width * (width + max(side.teacher.shape[1] for side in sides))
        check_memory({"rows": 8 * sum(shape) * width, "logs": logs, "Gram matrices": grams}, quiet)
        super().__init__(rows)
        self.constant, self.strength, self.bias_ridge = problem.constant, problem.strength, ready.bias_ridge
        self.tolerance = als.squared_tolerance(problem.tolerance, np.dtype(np.float32))
        self.sides = [side._replace(**_uploaded(side)) for side in sides]
        self.pair_weights = to_device(problem.A), to_device(problem.C)
        self.products = device_array(max(1, len(problem.pull)))
        self.spare = device_array(rows.P.shape), device_array(rows.Q.shape)
        widths = width, problem.teacher_P.shape[1]
        self.grams = [[Gram(count, width, other) for other in widths] for count in shape]

    def step(self, epoch: int) -> float:
        """A sweep over all users, then all items; returns the objective."""
        self._solve(0)
        self._solve(1)
        return self.objective()

    def _solve(self, side: int) -> None:
        """Set one side's rows to their optimum given the other's, which are rotated first."""
        other = 1 - side
        G = self._rotate(other, self._gram(other, with_teacher=False).copy_to_host())
        H = self._gram(other, with_teacher=True)
        rows, own = self.sides[side], (self.P, self.Q)[side]
        shared = VECTORS * 8 * own.shape[1]
        arguments = (self.P, self.Q)[other], to_device(G), H, self.bias_ridge, self.tolerance, self.products, own
        solve_row_blocks.by_row(len(own), rows, *arguments, shared=shared)

    def _gram(self, side: int, with_teacher: bool) -> Any:
        rows = (self.P, self.Q)[side]
        partner = self.sides[side].teacher if with_teacher else rows
        return self.grams[side][with_teacher].of(rows, self.pair_weights[side], partner)

    def _rotate(self, side: int, G: np.ndarray) -> np.ndarray:
        turn, turned = als.turn_of(G)
        rows, spare = (self.P, self.Q)[side], self.spare[side]
        rotate_factors(rows.size, rows, to_device(turn, np.float32), spare)
        spares = list(self.spare)
        spares[side] = rows
        self.spare = tuple(spares)
        self.P, self.Q = (spare, self.Q) if side == 0 else (self.P, spare)
        return turned

    def objective(self) -> float:
        """The objective, exactly and in float64."""
        G = [[self._gram(side, teacher).copy_to_host() for teacher in (False, True)] for side in (0, 1)]
        everywhere = float(np.vdot(G[0][0], G[1][0])) - 2 * float(np.vdot(G[0][1], G[1][1]))
        total = self.strength * everywhere + self.constant
        for side, own, other in ((0, self.P, self.Q), (1, self.Q, self.P)):
            rows, out = self.sides[side], self.sums[side]
            # the users' loss already includes all pairs, so the items' rows get none
            pairs = rows[:4] if side == 0 else (to_device(np.zeros(len(own) + 1, np.int64)), *rows[1:4])
            row_losses(len(own), *pairs, own, other, rows.ridge, self.bias_ridge, rows.bias, out)
            total += float(Totals().of(out)[0])
        return total


def _converted(side: als.Unknowns) -> als.Unknowns:
    """The same side in the types that the kernels take."""
    floats = {name: getattr(side, name).astype(np.float32) for name in ("curvature", "pull", "teacher")}
    return side._replace(partners=side.partners.astype(np.int32), **floats)


def _uploaded(side: als.Unknowns) -> dict[str, Any]:
    return {name: to_device(value) for name, value in side._asdict().items() if isinstance(value, np.ndarray)}
