"""Alternating least squares for the all-pairs objective (mf, loss squared): each row is solved given the other side.

The objective is that of `all_pairs` plus a small ridge on the biases, bias_ridge (b_u^2 + b_i^2), so that a row's
minimum is unique. Given Q, with z_i = (q_i, 1) the partner of the free coordinates x = (p_u, b_u), user u solves

    [a G + R + sum_obs k z z^T] x = a (H P'_u - h) + sum_obs (c - k b_i) z_i,      a = strength A_u,

G = sum_i C_i z_i z_i^T, h = sum_i C_i b_i z_i, H = sum_i C_i z_i Q'_i^T, R = diag(wd_u / 2, ..., bias_ridge). Items are
solved in the same way. Two things make this cheap:

- The objective does not change when p and q are rotated together. So the other side is first rotated until G is
  diagonal in the factors; then a G + R is an arrow (a diagonal, and a border for the bias) for *every* row, with any
  a and R.
- The rest is solved by conjugate gradients to rounding: a few steps of O(n rank) for n observed pairs, without a
  matrix. Jitted Cholesky solves of the normal equations, O(n rank^2 + rank^3), end at the same objective and
  took 3x as long at rank 50 (1.7x with Woodbury's identity for rows of fewer pairs than factors; 3.5x at rank 200);
  block-coordinate solves took as long as Cholesky at rank 50.

Every row is computed by one thread in a fixed order: the result does not depend on the number of threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dubnb._jit import njit, prefetch, span
from dubnb.backbones import MF
from dubnb.backbones.mf import EXTRA_COLUMNS, Extended, put
from dubnb.background import SERIAL, WorkPool
from dubnb.objective import all_pairs
from dubnb.objective.all_pairs import BIAS_RIDGE, NO_BIASES

TOLERANCE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-13}  # CG stops at this relative residual
LANES = 32  # shares of the rows; a thread takes one share after another, each with its own scratch space
FLUSH = 256  # pairs that are summed in the rows' own type before the sum is added in float64
PREFETCH_PAIRS = 4  # pairs between the prefetch of a partner's row and its use


class Unknowns(NamedTuple):
    """One side's rows, which are solved given the other side's rows."""

    indptr: np.ndarray
    partners: np.ndarray  # the other side's row of each observed pair
    curvature: np.ndarray
    pull: np.ndarray
    weights: np.ndarray  # a = strength A_u
    ridge: np.ndarray  # wd_u / 2
    teacher: np.ndarray  # P'
    bias: int  # the column of this side's bias
    fixed: int  # the column of this side's constant


class BothSides(NamedTuple):
    """An exact problem as seen by users and by items; built by `prepare`."""

    exact: all_pairs.ExactProblem
    users: Unknowns
    items: Unknowns
    bias_ridge: float


def prepare(exact: all_pairs.ExactProblem, bias_ridge: float | None = None) -> BothSides:
    """An `all_pairs.ExactProblem` in the form that `sweep_rows` needs, with its own ridge of the biases or another."""
    bias_ridge = exact.bias_ridge if bias_ridge is None else bias_ridge
    return BothSides(exact, _users_side(exact), _users_side(all_pairs.transpose(exact)), bias_ridge)


def _users_side(exact: all_pairs.ExactProblem) -> Unknowns:
    """The users' rows of a problem; those of the transposed one are the items'."""
    return Unknowns(
        *exact.pairs,
        exact.curvature,
        exact.pull,
        exact.strength * exact.A,
        exact.wd_u / 2,
        exact.teacher_P,
        exact.fixed_Q,  # a side's bias is the partner of the other side's constant
        exact.fixed_P,
    )


def objective(problem: BothSides, P: np.ndarray, Q: np.ndarray, pool: WorkPool = SERIAL) -> float:
    """The objective at P, Q, exactly and in float64."""
    b_u, b_i = P[:, problem.users.bias].astype(np.float64), Q[:, problem.items.bias].astype(np.float64)
    return all_pairs.loss(problem.exact, P, Q, pool) + problem.bias_ridge * float(b_u @ b_u + b_i @ b_i)


def sweep_rows(problem: BothSides, P: np.ndarray, Q: np.ndarray, pool: WorkPool = SERIAL) -> None:
    """Solve for all users given the items, then for all items given the new users; in place.

    P and Q come back rotated, which changes no score.
    """
    exact = problem.exact
    how = problem.bias_ridge, pool, exact.tolerance
    solve_rows(problem.users, P, Q, exact.C, exact.teacher_Q, *how)
    solve_rows(problem.items, Q, P, exact.A, exact.teacher_P, *how)


def solve_rows(
    rows: Unknowns,
    out: np.ndarray,
    other: np.ndarray,
    other_weights: np.ndarray,
    other_teacher: np.ndarray,
    bias_ridge: float = BIAS_RIDGE,
    pool: WorkPool = SERIAL,
    tolerance: float | None = None,
) -> None:
    """Set every row of `out` to its optimum given `other`, which is rotated first.

    A pool of Python threads shares out the lanes. Numba's prange would take longer to compile, would assign the lanes
    before their run time is known, and in some of Numba's threading layers must not be entered by two threads.
    """
    G = rotate(other, all_pairs.gram(other, other_weights, pool=pool), pool)
    H = all_pairs.gram(other, other_weights, other_teacher, pool=pool)
    solve_given_grams(rows, out, other, G, H, bias_ridge, pool, tolerance)


def solve_given_grams(
    rows: Unknowns,
    out: np.ndarray,
    other: np.ndarray,
    G: np.ndarray,
    H: np.ndarray,
    bias_ridge: float,
    pool: WorkPool = SERIAL,
    tolerance: float | None = None,
) -> None:
    """Set every row of `out` to its optimum given `other`, whose Gram matrix G is diagonal in the factors.

    Conjugate gradients stop at the relative residual `tolerance`; None: at that of TOLERANCE.
    """
    enough, width = squared_tolerance(tolerance, out.dtype), out.shape[1]

    def solve_lane(lane: int) -> None:
        scratch = RowSystem._make([*np.zeros((7, width)), np.zeros((3, width), out.dtype)])
        _solve_lane(lane, rows, other, G, H, float(bias_ridge), enough, scratch, out)

    pool.each(solve_lane, LANES)
    if bias_ridge >= NO_BIASES:
        out[:, rows.bias] = 0.0  # the huge ridge leaves only rounding errors


def squared_tolerance(tolerance: float | None, dtype: np.dtype) -> float:
    """What the kernels compare squared residuals with."""
    return (TOLERANCE[dtype] if tolerance is None else tolerance) ** 2


def rotate(rows: np.ndarray, G: np.ndarray, pool: WorkPool = SERIAL) -> np.ndarray:
    """Rotate the factors in `rows`, in place, so that their weighted Gram matrix G is diagonal; returns the new G."""
    turn, turned = turn_of(G)
    turn_rows(rows, turn, pool)
    return turned


def turn_rows(rows: np.ndarray, turn: np.ndarray, pool: WorkPool = SERIAL) -> None:
    """Rotate the factors in `rows`, in place."""
    rank, parts, narrow = len(turn), list(all_pairs.chunks(len(rows))), turn.astype(rows.dtype)

    def turn_some(number: int) -> None:
        part = parts[number]
        rows[part, :rank] = rows[part, :rank] @ narrow

    pool.each(turn_some, len(parts))


def turn_of(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the rotation of the factors that makes the Gram matrix G diagonal in them, G after the rotation)."""
    rank = len(G) - EXTRA_COLUMNS
    spread, turn = np.linalg.eigh(G[:rank, :rank])
    turned = G.copy()
    turned[:rank, :rank] = np.diag(np.maximum(spread, 0.0))
    turned[:rank, rank:] = turn.T @ G[:rank, rank:]
    turned[rank:, :rank] = turned[:rank, rank:].T
    return turn, turned


class RowSolver:
    """An exact problem and its rows; each epoch is one sweep, which changes the rows in place."""

    def __init__(self, problem: all_pairs.ExactProblem, rows: Extended, threads: int = 1):
        self.ready, self.rows, self.pool = prepare(problem), rows, WorkPool(threads)
        self.score_pairs, self.score_rows, self.finite = rows.score_pairs, rows.score_rows, rows.finite

    def step(self, epoch: int) -> float:
        """A sweep over all users, then all items; returns the objective."""
        sweep_rows(self.ready, *self.rows, self.pool)
        return objective(self.ready, *self.rows, self.pool)

    def weights(self) -> MF:
        """A copy of the rows as weights."""
        return MF.from_extended(self.rows)

    def fetch(self, rows: Extended) -> None:
        """Do nothing: the rows are changed in place."""


# Kernels. Vectors are as wide as the rows; their constant coordinate is always 0.


class RowSystem(NamedTuple):
    """One row's system M x = right without its observed pairs, and scratch space; all float64 except `narrow`."""

    diagonal: np.ndarray  # the diagonal of a G + R
    border: np.ndarray  # a G between factors and bias; 0 elsewhere
    right: np.ndarray  # the right-hand side, then the residual
    inverse: np.ndarray  # 1 / the diagonal of M
    step: np.ndarray  # the search direction
    product: np.ndarray  # M step
    x: np.ndarray  # the solution
    narrow: np.ndarray  # (3, width) in the rows' type: the direction, and sums over some pairs


@njit
def _solve_lane(lane, rows, other, G, H, bias_ridge, tolerance, row, out):
    """Solve one lane's rows, which are runs of neighbouring rows."""
    n_rows, width = out.shape
    bias, x = width + rows.bias, row.x
    run = 1 + n_rows // (16 * LANES)
    for first in range(lane * run, n_rows, LANES * run):
        for u in range(first, min(first + run, n_rows)):
            pairs = slice(rows.indptr[u], rows.indptr[u + 1])
            if pairs.start == pairs.stop and rows.weights[u] == 0:  # outside of a sample
                for j in range(width - EXTRA_COLUMNS):
                    out[u, j] = 0.0
                out[u, bias] = 0.0
                continue
            partners, k, c = rows.partners[pairs], rows.curvature[pairs], rows.pull[pairs]
            _all_pairs_part(rows, u, G, H, bias_ridge, row)
            _observed_part(partners, k, c, other, rows.fixed, row)
            _conjugate_gradients(partners, k, other, bias, width + rows.fixed, tolerance, row)
            for j in range(width - EXTRA_COLUMNS):
                out[u, j] = x[j]
            out[u, bias] = x[bias]


@njit
def _all_pairs_part(rows, u, G, H, bias_ridge, row):
    """a G + R as an arrow, its diagonal as the start of M's, and a (H P'_u - h) as the start of the right-hand side."""
    diagonal, border, right = row.diagonal, row.border, row.right
    width = len(right)
    a, bias, fixed = rows.weights[u], width + rows.bias, width + rows.fixed
    for j in range(width):
        diagonal[j] = a * G[j, j] + rows.ridge[u]
        border[j] = a * G[j, bias]
        total = -G[j, fixed]
        for t in range(H.shape[1]):
            total += H[j, t] * rows.teacher[u, t]
        right[j] = a * total
    diagonal[bias] = a * G[bias, bias] + bias_ridge
    border[bias] = border[fixed] = right[fixed] = 0.0
    diagonal[fixed] = 1.0
    put(diagonal, row.inverse)


@njit
def _prefetch_row(rows, row):
    """Ask for a row before it is used: rows of partners are far apart, and a CPU does not foresee the next one."""
    width = rows.shape[1]
    for j in range(0, width, 16):
        prefetch(rows, row * width + j)


@njit
def _observed_part(partners, k, c, other, fixed, row):
    """Add sum (c - k offset) z to the right-hand side and sum k z^2 to M's diagonal, which is then inverted."""
    right, inverse, width = row.right, row.inverse, len(row.right)
    pulls, squares = span(row.narrow, width, width), span(row.narrow, 2 * width, width)
    for first in range(0, len(partners), FLUSH):
        pulls[:] = 0
        squares[:] = 0
        for n in range(first, min(first + FLUSH, len(partners))):
            if n + PREFETCH_PAIRS < len(partners):
                _prefetch_row(other, partners[n + PREFETCH_PAIRS])
            z = span(other, partners[n] * width, width)
            pull = c[n] - k[n] * z[width + fixed]
            for j in range(width):
                pulls[j] += pull * z[j]
                squares[j] += k[n] * z[j] * z[j]
        for j in range(width):
            right[j] += pulls[j]
            inverse[j] += squares[j]
    for j in range(width):
        inverse[j] = 1.0 / inverse[j] if inverse[j] > 0 else 0.0  # a row without pairs and decay: its solution is 0
    right[fixed] = 0.0


@njit
def _multiply(partners, k, other, bias, fixed, row):
    """product = M step: the arrow, then sum k z (z . step) over the observed pairs."""
    step, product, diagonal, border = row.step, row.product, row.diagonal, row.border
    width = len(step)
    narrow, sums = span(row.narrow, 0, width), span(row.narrow, width, width)
    crossing = 0.0
    for j in range(width):
        product[j] = diagonal[j] * step[j] + border[j] * step[bias]
        crossing += border[j] * step[j]
        narrow[j] = step[j]
    product[bias] += crossing
    for first in range(0, len(partners), FLUSH):
        sums[:] = 0
        for n in range(first, min(first + FLUSH, len(partners))):
            if n + PREFETCH_PAIRS < len(partners):
                _prefetch_row(other, partners[n + PREFETCH_PAIRS])
            z = span(other, partners[n] * width, width)
            s = np.float32(0)  # takes the rows' type in the loop
            for j in range(width):
                s += z[j] * narrow[j]
            s *= k[n]
            for j in range(width):
                sums[j] += s * z[j]
        for j in range(width):
            product[j] += sums[j]
    product[fixed] = 0.0


@njit
def _conjugate_gradients(partners, k, other, bias, fixed, tolerance, row):
    """Solve M x = right from x = 0, preconditioned by M's diagonal, until the squared residual fell by `tolerance`."""
    right, inverse, step, product, x = row.right, row.inverse, row.step, row.product, row.x
    width = len(x)
    x[:] = 0.0
    size = 0.0
    for j in range(width):
        step[j] = inverse[j] * right[j]
        size += right[j] * step[j]
    enough = tolerance * size
    for _ in range(2 * width):  # without rounding errors, `width` steps would be enough
        if not size > enough:
            break
        _multiply(partners, k, other, bias, fixed, row)
        bend = 0.0
        for j in range(width):
            bend += step[j] * product[j]
        length, before, size = size / bend, size, 0.0
        for j in range(width):
            x[j] += length * step[j]
            right[j] -= length * product[j]
            size += right[j] * right[j] * inverse[j]
        for j in range(width):
            step[j] = inverse[j] * right[j] + size / before * step[j]
