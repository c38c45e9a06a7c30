"""Exact sums of squared errors over *all* pairs (mf, loss squared), by Gram matrices, without enumerating the pairs.

Scores are products of extended rows, P_u = [p_u, b_u, 1] and Q_i = [q_i, 1, b_i], s = P_u . Q_i; the constant
coordinates never change. With row weights A_u, C_i and a low-rank or constant target t = P'_u . Q'_i the objective is

    sum_obs w (s - y)^2  +  strength * sum over all unobserved pairs of A_u C_i (s - t)^2
    +  sum_u wd_u / 2 |p_u|^2  +  sum_i wd_i / 2 |q_i|^2          (biases are not regularised).

The sum over *every* pair has the gradient 2 strength A_u (G_Q P_u - H_Q P'_u) in P_u, with G_Q = sum_i C_i Q_i Q_i^T
and H_Q = sum_i C_i Q_i Q'_i^T, and symmetrically in Q_i. The observed pairs are then added one by one: each adds
w (s - y)^2 and subtracts strength A_u C_i (s - t)^2, which together are the quadratic k s^2 - 2 c s + const with

    curvature  k = w - strength A_u C_i,    pull  c = w y - strength A_u C_i t.

Cost O(nnz r + (users + items) r^2), memory O(nnz + (users + items) r). All sums have a fixed order.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb._check import InputError
from dubnb._jit import njit
from dubnb.backbones.mf import EXTRA_COLUMNS, ONE_P, ONE_Q, factors
from dubnb.background import SERIAL, WorkPool
from dubnb.data.pattern import Pattern, UnobservedPairs, union

if TYPE_CHECKING:
    from dubnb.objective.terms import Observed, RangedTerm, RangeOfTerm, Unobserved

BIAS_RIDGE = 0.1  # default ridge on the biases in row solves
NO_BIASES = 1e9  # a ridge of this size sets the biases to 0
AT_ONCE = 64  # chunks whose products are held in memory before they are summed
CHUNK = 4096  # rows per call of BLAS: large enough for its speed, small enough for the cache
ROUNDING = 1e-5  # share of the sum over all pairs below which the rest of a row is rounding error


class ExactProblem(NamedTuple):
    """The objective of this module in the form that kernels read; built by `exact_problem`."""

    pairs: Pattern
    curvature: np.ndarray  # k of each observed pair
    pull: np.ndarray  # c of each observed pair
    constant: float  # the part of the loss that does not depend on P and Q
    strength: float
    A: np.ndarray  # float64 row weights of the users
    C: np.ndarray  # float64 row weights of the items
    teacher_P: np.ndarray  # P', users x any rank; a constant t is P' = 1, Q' = t
    teacher_Q: np.ndarray  # Q'
    wd_u: np.ndarray  # float64 decay of each user's row
    wd_i: np.ndarray  # float64 decay of each item's row
    fixed_P: int = ONE_P
    fixed_Q: int = ONE_Q
    bias_ridge: float = BIAS_RIDGE  # for row solves
    tolerance: float | None = None  # of row solves, a relative residual; None: about that of rounding


class ExactTerms(NamedTuple):
    """What an ExactProblem is built from; a range of users can be built without the others."""

    observed: Sequence[Observed | RangedTerm | RangeOfTerm]  # pairs in the order of the users
    unobserved: Unobserved
    decays: tuple[float | np.ndarray, float | np.ndarray]
    bias_ridge: float
    tolerance: float | None = None

    def problem(self) -> ExactProblem:
        """The problem of all users."""
        observed = [term.whole() for term in self.observed]
        problem = exact_problem(observed, self.unobserved, decays=self.decays, bias_ridge=self.bias_ridge)
        return problem._replace(tolerance=self.tolerance)

    @property
    def folder(self) -> str | None:
        """The directory of pairs on disk; the problem can then only be built range by range."""
        return next((term.folder for term in self.observed if term.folder is not None), None)

    def of_users(self, first: int, last: int) -> ExactTerms:
        """The terms of the users from `first` to before `last`, counted from 0; pairs on disk are not yet read."""
        wd_u, wd_i = self.decays
        return self._replace(
            observed=[term.of_users(first, last) for term in self.observed],  # type: ignore[union-attr]
            unobserved=self.unobserved.of_users(first, last),
            decays=(wd_u[first:last] if isinstance(wd_u, np.ndarray) else wd_u, wd_i),
        )

    def without_seen(self) -> ExactTerms:
        """The same without the pairs that term d leaves out, to be sent to another process; see `with_seen`."""
        d = self.unobserved
        return self._replace(unobserved=dataclasses.replace(d, pairs=UnobservedPairs(*d.pairs.shape)))

    def with_seen(self) -> ExactTerms:
        """The same in memory, where term d leaves out all pairs of the observed terms."""
        observed, d = [term.whole() for term in self.observed], self.unobserved
        n_users, n_items = d.pairs.shape
        seen = union([Pattern.of(term.users, term.items, n_users) for term in observed], n_items)
        pairs = UnobservedPairs(n_users, n_items, seen)
        return self._replace(observed=observed, unobserved=dataclasses.replace(d, pairs=pairs))


class Grams(NamedTuple):
    """Gram matrices of both sides in float64: what one side needs of the other side's rows."""

    G_P: np.ndarray  # sum_u A_u P_u P_u^T
    H_P: np.ndarray  # sum_u A_u P_u P'_u^T
    G_Q: np.ndarray  # sum_i C_i Q_i Q_i^T
    H_Q: np.ndarray  # sum_i C_i Q_i Q'_i^T


# Building a problem


def exact_problem(
    observed: Sequence[Observed],
    unobserved: Unobserved,
    *,
    decays: tuple[float | np.ndarray, float | np.ndarray],
    bias_ridge: float = BIAS_RIDGE,
    dtype: type = np.float32,
) -> ExactProblem:
    """Build the objective of this module from the terms that the sampled solver streams.

    The sum over all pairs has strength `unobserved.weight` and leaves out the pairs that term d is never drawn from;
    `observed` terms hold such pairs only. Where a pair is in several of them, its quadratics add up to one with weight
    w = sum w_k and target y = sum w_k y_k / w. `decays` are wd_u and wd_i, each a number or one value per row.
    """
    pairs, shape, strength = unobserved.pairs.seen, unobserved.pairs.shape, unobserved.weight
    slots = np.concatenate([pairs.places(term.users, term.items, shape[1]) for term in observed])
    targets = np.concatenate([np.asarray(term.targets, np.float64) for term in observed])
    weights = np.concatenate([np.asarray(term.weights, np.float64) for term in observed])
    w, wy = np.zeros((2, len(pairs.items)))  # bincount of no pairs at all would give integers
    w += np.bincount(slots, weights, len(pairs.items))
    wy += np.bincount(slots, weights * targets, len(pairs.items))
    A, C = unobserved.row_weights or (1.0, 1.0)
    A, C = per_row("A", A, shape[0]), per_row("C", C, shape[1])
    if unobserved.teacher is None:
        raise TypeError("term d has no teacher: an exact objective needs the target of every pair")
    teacher_P, teacher_Q = unobserved.teacher.low_rank(shape)
    teacher_P, teacher_Q = np.ascontiguousarray(teacher_P, dtype), np.ascontiguousarray(teacher_Q, dtype)
    constant = float(weights @ targets**2)
    constant += strength * float(np.vdot(gram(teacher_P, A, exact=True), gram(teacher_Q, C, exact=True)))
    t = score_pairs(pairs, teacher_P, teacher_Q).astype(np.float64)
    taken = np.repeat(strength * A, pairs.sizes())
    taken *= C[pairs.items]
    w -= taken
    constant -= float(taken @ t**2)
    taken *= t
    wy -= taken
    wd_u, wd_i = (per_row("decay", decay, count) for decay, count in zip(decays, shape, strict=True))
    return ExactProblem(
        pairs,
        w.astype(dtype),
        wy.astype(dtype),
        constant,
        strength,
        A,
        C,
        teacher_P,
        teacher_Q,
        wd_u,
        wd_i,
        bias_ridge=bias_ridge,
    )


def per_row(name: str, value: float | np.ndarray, count: int) -> np.ndarray:
    """A number or a vector as one float64 value per row, finite and at least 0."""
    vector = np.asarray(value, np.float64)
    if vector.shape not in ((), (count,)):
        raise InputError(f"{name} has shape {vector.shape}: give a number or one value for each of the {count} rows")
    if not (np.isfinite(vector) & (vector >= 0)).all():
        raise InputError(f"{name} holds {vector.min()} to {vector.max()}: every value must be finite and at least 0")
    return np.full(count, vector) if vector.ndim == 0 else np.ascontiguousarray(vector)


def transpose(problem: ExactProblem) -> ExactProblem:
    """The same problem with users and items exchanged, for solvers that visit the items' rows: use it with (Q, P)."""
    pairs, order = transposed_pairs(problem.pairs, len(problem.C))
    return ExactProblem(
        pairs,
        problem.curvature[order],
        problem.pull[order],
        problem.constant,
        problem.strength,
        A=problem.C,
        C=problem.A,
        teacher_P=problem.teacher_Q,
        teacher_Q=problem.teacher_P,
        wd_u=problem.wd_i,
        wd_i=problem.wd_u,
        fixed_P=problem.fixed_Q,
        fixed_Q=problem.fixed_P,
        bias_ridge=problem.bias_ridge,
        tolerance=problem.tolerance,
    )


def transposed_pairs(pairs: Pattern, n_items: int) -> tuple[Pattern, np.ndarray]:
    """(the pairs ordered by item, order): pair k of the item order is pair order[k] of the user order."""
    narrow = np.uint16 if n_items <= 1 << 16 else np.int32  # NumPy sorts 16 bits by radix, in a third of the time
    order = np.argsort(pairs.items.astype(narrow), kind="stable")
    return Pattern.of(pairs.items, pairs.users().astype(np.int32)[order], n_items), order


# The sum over all pairs


def gram(
    rows: np.ndarray,
    weights: np.ndarray,
    other: np.ndarray | None = None,
    exact: bool = False,
    pool: WorkPool = SERIAL,
) -> np.ndarray:
    """sum_k weights_k rows_k other_k^T (other: rows itself by default) in float64, chunk by chunk through BLAS.

    A chunk's product is computed in the rows' own precision, or in float64 if `exact`. Chunks are summed in float64 and
    in their order, for any number of threads.
    """
    partner = rows if other is None else other
    some_rows = np.flatnonzero(weights)
    if 2 * len(some_rows) < len(rows):  # most users are outside a sample
        partner = partner[some_rows]
        rows, weights = rows[some_rows] if other is not None else partner, weights[some_rows]
    dtype = np.float64 if exact else rows.dtype
    total, parts = np.zeros((rows.shape[1], partner.shape[1])), chunks(len(rows))

    some: list[slice] = []

    def product(number: int) -> np.ndarray:
        part = some[number]
        weighted = rows[part] * weights[part, None].astype(dtype)
        return weighted.T @ partner[part].astype(dtype, copy=False)

    while some := list(itertools.islice(parts, AT_ONCE)):
        for each in pool.each(product, len(some)):
            total += each
    return total


def chunks(count: int) -> Iterator[slice]:
    """Slices of at most CHUNK rows that cover `count` rows."""
    return (slice(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK))


def grams(problem: ExactProblem, P: np.ndarray, Q: np.ndarray, exact: bool = False, pool: WorkPool = SERIAL) -> Grams:
    """The Gram matrices of both sides at P, Q."""
    return Grams(
        gram(P, problem.A, None, exact, pool),
        gram(P, problem.A, problem.teacher_P, exact, pool),
        gram(Q, problem.C, None, exact, pool),
        gram(Q, problem.C, problem.teacher_Q, exact, pool),
    )


def all_pairs_pull(rows: np.ndarray, teacher_rows: np.ndarray, G: np.ndarray, H: np.ndarray) -> np.ndarray:
    """G row - H row' for each of the rows: half the gradient of the sum over all pairs, without its weights."""
    pull = rows @ G.astype(rows.dtype)
    pull -= teacher_rows @ H.T.astype(rows.dtype)
    return pull


def total_norm(G: np.ndarray, fixed: int) -> float:
    """sum_k weight_k (|row_k|^2 + 1) over the embedding coordinates, from the Gram matrix of extended rows."""
    return float(np.trace(factors(G)[:-EXTRA_COLUMNS]) + G[fixed, fixed])


def squares(rows: np.ndarray) -> np.ndarray:
    """|row|^2 over the embedding coordinates."""
    return np.einsum("kj,kj->k", factors(rows), factors(rows))


def norms(rows: np.ndarray) -> np.ndarray:
    """|row|^2 + 1: the curvature that an extended row gives to a partner's free coordinates."""
    return squares(rows) + rows.dtype.type(1)


# The observed pairs


@njit
def _dot_products(pairs, P, Q, scores):
    """s = P_u . Q_i of every pair."""
    width = P.shape[1]
    for u in range(len(P)):
        for k in range(pairs.indptr[u], pairs.indptr[u + 1]):
            i = pairs.items[k]
            s = np.float32(0)  # takes the rows' type in the loop
            for j in range(width):
                s += P[u, j] * Q[i, j]
            scores[k] = s


@njit
def observed_to_users(rows, pairs, errors, curvature, Q, norms_Q, gradient, denominator):
    """Add sum_i e_ui Q_i to the gradient, and sum_i 2 k_ui (|q_i|^2 + 1) to the denominator, of each user in `rows`."""
    width = Q.shape[1]
    for n in range(len(rows)):
        u = rows[n]
        bend = 0.0
        for k in range(pairs.indptr[u], pairs.indptr[u + 1]):
            i = pairs.items[k]
            e = errors[k]
            bend += 2.0 * curvature[k] * norms_Q[i]
            for j in range(width):
                gradient[n, j] += e * Q[i, j]
        denominator[n] += bend


@njit
def observed_to_items(pairs, errors, curvature, P, norms_P, gradient, denominator):
    """Add sum_u e_ui P_u to each item's gradient, and sum_u 2 k_ui (|p_u|^2 + 1) to its denominator.

    Pairs are visited in the users' order, so that P is read once; with one thread the order of sums is fixed.
    """
    width = P.shape[1]
    for u in range(len(P)):
        for k in range(pairs.indptr[u], pairs.indptr[u + 1]):
            i = pairs.items[k]
            e = errors[k]
            denominator[i] += 2.0 * curvature[k] * norms_P[u]
            for j in range(width):
                gradient[i, j] += e * P[u, j]


@njit
def _sum_quadratics(curvature, pull, scores):
    """sum k s^2 - 2 c s in float64."""
    total = 0.0
    for k in range(len(scores)):
        s = np.float64(scores[k])
        total += (curvature[k] * s - 2.0 * pull[k]) * s
    return total


@njit
def observed_loss(pairs, curvature, pull, P, Q):
    """sum k s^2 - 2 c s over the observed pairs with scores in float64."""
    total = 0.0
    for u in range(len(P)):
        for k in range(pairs.indptr[u], pairs.indptr[u + 1]):
            i = pairs.items[k]
            s = 0.0
            for j in range(P.shape[1]):
                s += np.float64(P[u, j]) * np.float64(Q[i, j])
            total += (curvature[k] * s - 2.0 * pull[k]) * s
    return total


def score_pairs(pairs: Pattern, P: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """The scores of all pairs, in their order."""
    scores = np.empty(len(pairs.items), P.dtype)
    _dot_products(pairs, P, Q, scores)
    return scores


# Both together


@njit
def complete_rows(rows, pull, weights, decay, fixed, twice_strength, norm, gradient, denominator):
    """Add the sum over all pairs and the decay to the observed pairs' gradient, which is 0 in column `fixed`."""
    rank = rows.shape[1] - EXTRA_COLUMNS
    for n in range(len(rows)):
        strength = twice_strength * weights[n]
        bend = denominator[n] + strength * norm
        denominator[n] = decay[n] + (bend if bend > ROUNDING * strength * norm else 0.0)
        for j in range(rows.shape[1]):
            gradient[n, j] += strength * pull[n, j]
        for j in range(rank):
            gradient[n, j] += decay[n] * rows[n, j]
        gradient[n, fixed] = 0.0


@njit
def step_rows(rows, gradient, eta):
    """row -= eta gradient, in place."""
    for n in range(len(rows)):
        for j in range(rows.shape[1]):
            rows[n, j] -= eta[n] * gradient[n, j]


def row_steps(denominator: np.ndarray, rho: float) -> np.ndarray:
    """eta = rho / denominator; 0 for a row with denominator 0, which has no gradient."""
    return np.divide(rho, denominator, out=np.zeros_like(denominator), where=denominator > 0)


def user_gradients(
    problem: ExactProblem,
    rows: np.ndarray,
    users: np.ndarray,
    errors: np.ndarray,
    Q: np.ndarray,
    norms_Q: np.ndarray,
    G: Grams,
) -> tuple[np.ndarray, np.ndarray]:
    """(gradient, denominator) of the users whose rows are `rows`; errors: e of every observed pair."""
    gradient, denominator = np.zeros_like(rows), np.zeros(len(rows))
    observed_to_users(users, problem.pairs, errors, problem.curvature, Q, norms_Q, gradient, denominator)
    pull = all_pairs_pull(rows, problem.teacher_P[users], G.G_Q, G.H_Q)
    norm = total_norm(G.G_Q, problem.fixed_Q)
    weights, decay, twice = problem.A[users], problem.wd_u[users], 2 * problem.strength
    complete_rows(rows, pull, weights, decay, problem.fixed_P, twice, norm, gradient, denominator)
    return gradient, denominator


def item_gradients(
    problem: ExactProblem, P: np.ndarray, Q: np.ndarray, errors: np.ndarray, G: Grams
) -> tuple[np.ndarray, np.ndarray]:
    """(gradient, denominator) of all items; errors: e of every observed pair."""
    gradient, denominator = np.zeros_like(Q), np.zeros(len(Q))
    observed_to_items(problem.pairs, errors, problem.curvature, P, norms(P), gradient, denominator)
    pull = all_pairs_pull(Q, problem.teacher_Q, G.G_P, G.H_P)
    norm = total_norm(G.G_P, problem.fixed_P)
    twice = 2 * problem.strength
    complete_rows(Q, pull, problem.C, problem.wd_i, problem.fixed_Q, twice, norm, gradient, denominator)
    return gradient, denominator


def pair_errors(problem: ExactProblem, scores: np.ndarray) -> np.ndarray:
    """e = 2 (k s - c): the derivative of the observed part in each pair's score."""
    errors = problem.curvature * scores
    errors -= problem.pull
    errors *= 2
    return errors


def descend(
    problem: ExactProblem, P: np.ndarray, Q: np.ndarray, rho: float = 1.0, scores: np.ndarray | None = None
) -> float:
    """One full-batch gradient step of P and Q at once, in place; returns the loss where it started.

    Every row has its own step size, because a single learning rate diverges:
    eta_u = rho / (2 strength A_u sum_i C_i (|q_i|^2 + 1) + sum_obs 2 k_ui (|q_i|^2 + 1) + wd_u), likewise for items.
    The denominator bounds the largest curvature of the row's own quadratic, so a step of one side alone never raises
    the loss for rho <= 1. For a step of both sides at once there is no such proof: the cross terms rely on the slack of
    the bound, which uses a trace instead of the largest eigenvalue. On random problems the loss never rose at rank 0,
    nor at rank >= 2 from rows of std <= .5; it sometimes rose at rank 1, and from rows of std >= 1.

    scores: those of the observed pairs at P, Q, if the caller has them.
    """
    scores = score_pairs(problem.pairs, P, Q) if scores is None else scores
    G = grams(problem, P, Q)
    before = _loss(problem, P, Q, G, _sum_quadratics(problem.curvature, problem.pull, scores))
    errors = pair_errors(problem, scores)
    dQ, bends_Q = item_gradients(problem, P, Q, errors, G)  # before P moves
    norms_Q = norms(Q)
    for part in chunks(len(P)):
        dP, bends_P = user_gradients(problem, P[part], np.arange(part.start, part.stop), errors, Q, norms_Q, G)
        step_rows(P[part], dP, row_steps(bends_P, rho))
    step_rows(Q, dQ, row_steps(bends_Q, rho))
    return before


def loss(problem: ExactProblem, P: np.ndarray, Q: np.ndarray, pool: WorkPool = SERIAL) -> float:
    """The objective at P, Q, exactly and in float64: sum_all A C (s - t)^2 = <G_P, G_Q> - 2 <H_P, H_Q> + const."""
    observed = pool.begin(lambda: observed_loss(problem.pairs, problem.curvature, problem.pull, P, Q))
    G = grams(problem, P, Q, exact=True, pool=pool)
    return _loss(problem, P, Q, G, observed())


def _loss(problem: ExactProblem, P: np.ndarray, Q: np.ndarray, G: Grams, observed: float) -> float:
    """The objective from its Gram matrices and its observed part."""
    everywhere = float(np.vdot(G.G_P, G.G_Q)) - 2 * float(np.vdot(G.H_P, G.H_Q))
    decay = 0.5 * float(problem.wd_u @ squares(P) + problem.wd_i @ squares(Q))
    return problem.strength * everywhere + observed + problem.constant + decay
