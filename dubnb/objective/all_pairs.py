"""Exact sums of squared errors over *all* pairs, by Gram matrices (mf, loss squared): no pair is sampled or enumerated.

Scores are products of extended rows, P_u = [p_u, b_u, 1] and Q_i = [q_i, 1, b_i], s = P_u . Q_i; the constant
coordinates never move. With row weights A_u, C_i and a low-rank or constant target t = P'_u . Q'_i the objective is

    sum_obs w (s - y)^2  +  strength * sum over all pairs but the observed ones of A_u C_i (s - t)^2
    +  sum_u wd_u / 2 |p_u|^2  +  sum_i wd_i / 2 |q_i|^2          (biases are not regularised).

The sum over *every* pair has the gradient 2 strength A_u (G_Q P_u - H_Q P'_u) in P_u, with G_Q = sum_i C_i Q_i Q_i^T
and H_Q = sum_i C_i Q_i Q'_i^T, and symmetrically in Q_i. The observed pairs then enter one by one: what w (s - y)^2
adds there and -strength A_u C_i (s - t)^2 takes back is one quadratic, k s^2 - 2 c s + const, with

    curvature  k = w - strength A_u C_i,    pull  c = w y - strength A_u C_i t.

Cost O(nnz r + (users + items) r^2), memory O(nnz + (users + items) r). All kernels are serial and sum in a fixed order.
"""

from typing import NamedTuple

import numpy as np

from dubnb._check import InputError, real
from dubnb._jit import njit

CHUNK = 4096  # rows that pass through BLAS at once: large enough for its speed, small enough to stay in cache
ROUNDING = (
    1e-5  # a row whose pairs are all excluded keeps this much of the sum over all pairs at most: nothing but rounding
)
FIXED_P, FIXED_Q = -1, -2  # the columns of P and Q that hold the constant 1


class Pairs(NamedTuple):
    """Distinct (user, item) pairs in CSR order."""

    indptr: np.ndarray  # int64, n_users + 1
    items: np.ndarray  # int32


class ExactProblem(NamedTuple):
    """The objective of this module in the form that the kernels read; built by `exact_problem`."""

    pairs: Pairs
    curvature: np.ndarray  # k of each observed pair
    pull: np.ndarray  # c of each observed pair
    constant: float  # what the loss holds beyond P and Q
    strength: float
    A: np.ndarray  # float64 row weights of the users
    C: np.ndarray  # float64 row weights of the items
    teacher_P: np.ndarray  # P', users x any rank; a constant t is P' = 1, Q' = t
    teacher_Q: np.ndarray  # Q'
    wd_u: np.ndarray  # float64 decay of each user's row
    wd_i: np.ndarray  # float64 decay of each item's row
    fixed_P: int = FIXED_P
    fixed_Q: int = FIXED_Q


class Grams(NamedTuple):
    """All that one side needs to know of the other side's rows, in float64."""

    G_P: np.ndarray  # sum_u A_u P_u P_u^T
    H_P: np.ndarray  # sum_u A_u P_u P'_u^T
    G_Q: np.ndarray  # sum_i C_i Q_i Q_i^T
    H_Q: np.ndarray  # sum_i C_i Q_i Q'_i^T


# Building a problem


def extend(p, b_u, q, b_i):
    """The extended rows P = [p, b_u, 1] and Q = [q, 1, b_i] of mf's tables."""
    ones_u, ones_i = np.ones((len(p), 1), p.dtype), np.ones((len(q), 1), q.dtype)
    P = np.hstack([p, np.reshape(b_u, (-1, 1)).astype(p.dtype), ones_u])
    Q = np.hstack([q, ones_i, np.reshape(b_i, (-1, 1)).astype(q.dtype)])
    return P, Q


def make_pairs(users, items, n_users, n_items):
    """(Pairs, slots): the distinct pairs in CSR order, and for each given pair its place among them."""
    users, items = np.asarray(users, np.int64), np.asarray(items, np.int64)
    for name, ids, count in (("user", users, n_users), ("item", items, n_items)):
        if len(ids) and not 0 <= ids.min() <= ids.max() < count:
            wrong = ids[(ids < 0) | (ids >= count)][0]
            raise InputError(
                f"{name} {wrong} must be a row number from 0 to {count - 1}: map original ids to rows first"
            )
    keys, slots = np.unique(users * n_items + items, return_inverse=True)
    indptr = np.searchsorted(keys, np.arange(n_users + 1, dtype=np.int64) * n_items)
    return Pairs(indptr.astype(np.int64), (keys % n_items).astype(np.int32)), slots


def exact_problem(
    shape, streams, *, strength, teacher=0.0, A=None, C=None, wd_u=0.0, wd_i=0.0, exclude=True, dtype=np.float32
):
    """The objective of this module for `shape` = (users, items).

    streams: (users, items, targets, weights) of each term on observed pairs; weights may be a scalar. Where a pair
    occurs more than once, its quadratics add up to one of weight w = sum w_k and target y = sum w_k y_k / w. A stream
    of weight 0 only marks pairs as observed. exclude: whether the sum over all pairs leaves those out (S_u) or not (D).
    teacher: the constant t, or the rows (P', Q') of a low-rank one. wd_u, wd_i: a scalar or one value per row.

    dub, Eq. 2: streams c (S_c, r, 1), a (S_t, r_t, 1) and e.2 (S_t, r_t - t, 1); strength gamma.
    """
    n_users, n_items = shape
    strength = real("strength", strength)
    users, items, targets, weights = _joined(streams)
    pairs, slots = make_pairs(users, items, n_users, n_items)
    count = len(pairs.items)
    w = np.bincount(slots, weights, count)
    wy = np.bincount(slots, weights * targets, count)
    wyy = float(weights @ targets**2)
    A, C = per_row("A", A, n_users, 1.0), per_row("C", C, n_items, 1.0)
    teacher_P, teacher_Q = _teacher_rows(teacher, shape, dtype)
    constant = wyy + strength * float(np.vdot(gram(teacher_P, A, exact=True), gram(teacher_Q, C, exact=True)))
    if exclude:
        u = np.repeat(np.arange(n_users), np.diff(pairs.indptr))
        t = score_pairs(pairs, teacher_P, teacher_Q).astype(np.float64)
        taken = strength * A[u] * C[pairs.items]
        w, wy, constant = w - taken, wy - taken * t, constant - float(taken @ t**2)
    wd_u, wd_i = per_row("wd_u", wd_u, n_users), per_row("wd_i", wd_i, n_items)
    return ExactProblem(
        pairs, w.astype(dtype), wy.astype(dtype), constant, strength, A, C, teacher_P, teacher_Q, wd_u, wd_i
    )


def _joined(streams):
    """All streams as four columns; checks that every number is usable."""
    columns = [(np.asarray(u), np.asarray(i), np.asarray(y), np.broadcast_to(w, np.shape(y))) for u, i, y, w in streams]
    if any(len(set(map(len, column))) > 1 for column in columns):
        raise InputError("a stream's users, items and targets differ in length: give one of each per sample")
    users, items, targets, weights = (np.concatenate(column) for column in zip(*columns, strict=True))
    targets, weights = targets.astype(np.float64), weights.astype(np.float64)
    if not np.isfinite(targets).all():
        raise InputError(f"target {targets[~np.isfinite(targets)][0]} must be a finite number: remove the pair")
    wrong = weights[~(np.isfinite(weights) & (weights >= 0))]
    if len(wrong):
        raise InputError(f"weight {wrong[0]} must be finite and at least 0: correct it or remove the pair")
    return users, items, targets, weights


def per_row(name, value, count, default=None):
    """A scalar or a vector as one float64 value per row, finite and at least 0."""
    vector = np.asarray(default if value is None else value, np.float64)
    if vector.shape not in ((), (count,)):
        raise InputError(f"{name} has shape {vector.shape}: give a number or one value for each of the {count} rows")
    if not (np.isfinite(vector) & (vector >= 0)).all():
        raise InputError(f"{name} holds {vector.min()} to {vector.max()}: every value must be finite and at least 0")
    return np.full(count, vector) if vector.ndim == 0 else np.ascontiguousarray(vector)


def _teacher_rows(teacher, shape, dtype):
    """P' and Q' of a low-rank teacher, or of a constant as the rank-one product 1 . t."""
    if isinstance(teacher, tuple):
        P, Q = (np.ascontiguousarray(rows, dtype) for rows in teacher)
        if P.ndim != 2 or Q.ndim != 2 or P.shape[1] != Q.shape[1] or (len(P), len(Q)) != tuple(shape):
            raise InputError(
                f"teacher rows have shapes {P.shape} and {Q.shape}: they must be users x k and items x k of {shape}"
            )
        return P, Q
    return np.ones((shape[0], 1), dtype), np.full((shape[1], 1), real("teacher", teacher, low=-np.inf), dtype)


def transpose(problem):
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
    )


def transposed_pairs(pairs, n_items):
    """(Pairs by item, order): pair k of the item order is pair order[k] of the user order."""
    order = np.argsort(pairs.items, kind="stable")
    users = np.repeat(np.arange(len(pairs.indptr) - 1, dtype=np.int32), np.diff(pairs.indptr))
    indptr = np.zeros(n_items + 1, np.int64)
    np.cumsum(np.bincount(pairs.items, minlength=n_items), out=indptr[1:])
    return Pairs(indptr, users[order]), order


# The sum over all pairs


def gram(rows, weights, other=None, exact=False):
    """sum_k weights_k rows_k other_k^T (other: rows itself by default) in float64, chunk by chunk through BLAS.

    A chunk's product is taken in the rows' own precision, or in float64 if `exact`; chunks are summed in float64.
    """
    other = rows if other is None else other
    dtype = np.float64 if exact else rows.dtype
    total = np.zeros((rows.shape[1], other.shape[1]))
    for part in chunks(len(rows)):
        weighted = rows[part] * weights[part, None].astype(dtype)
        total += weighted.T @ other[part].astype(dtype, copy=False)
    return total


def chunks(count):
    """Slices of at most CHUNK rows that cover `count` rows."""
    return (slice(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK))


def grams(problem, P, Q, exact=False):
    """The Gram matrices of both sides at P, Q."""
    return Grams(
        gram(P, problem.A, exact=exact),
        gram(P, problem.A, problem.teacher_P, exact),
        gram(Q, problem.C, exact=exact),
        gram(Q, problem.C, problem.teacher_Q, exact),
    )


def all_pairs_pull(rows, teacher_rows, G, H):
    """G row - H row' for each of the rows: half the gradient of the sum over all pairs, without its weights."""
    pull = rows @ G.astype(rows.dtype)
    pull -= teacher_rows @ H.T.astype(rows.dtype)
    return pull


def total_norm(G, fixed):
    """sum_k weight_k (|row_k|^2 + 1) over the embedding coordinates, from the Gram matrix of extended rows."""
    return float(np.trace(G[:-2, :-2]) + G[fixed, fixed])


def squares(rows):
    """|row|^2 over the embedding coordinates."""
    return np.einsum("kj,kj->k", rows[:, :-2], rows[:, :-2])


def norms(rows):
    """|row|^2 + 1: the curvature that an extended row gives to a partner's free coordinates."""
    return squares(rows) + rows.dtype.type(1)


# The observed pairs


@njit
def _score(pairs, P, Q, scores):
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

    In the users' order too: P streams through once, and with one thread scattering is as orderly as gathering.
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
def _observed_loss(pairs, curvature, pull, P, Q):
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


def score_pairs(pairs, P, Q):
    """The scores of all pairs, in their order."""
    scores = np.empty(len(pairs.items), P.dtype)
    _score(pairs, P, Q, scores)
    return scores


# Both together


@njit
def complete_rows(rows, pull, weights, decay, fixed, twice_strength, norm, gradient, denominator):
    """Add the sum over all pairs and the decay to what the observed pairs gave; no gradient in `fixed`."""
    rank = rows.shape[1] - 2
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


def row_steps(denominator, rho):
    """eta = rho / denominator; a row that nothing pulls at stays where it is."""
    return np.divide(rho, denominator, out=np.zeros_like(denominator), where=denominator > 0)


def user_rows(problem, rows, users, errors, Q, norms_Q, G):
    """(gradient, denominator) of the users whose rows are `rows`; errors: e of every observed pair."""
    gradient, denominator = np.zeros_like(rows), np.zeros(len(rows))
    observed_to_users(users, problem.pairs, errors, problem.curvature, Q, norms_Q, gradient, denominator)
    pull = all_pairs_pull(rows, problem.teacher_P[users], G.G_Q, G.H_Q)
    norm = total_norm(G.G_Q, problem.fixed_Q)
    weights, decay, twice = problem.A[users], problem.wd_u[users], 2 * problem.strength
    complete_rows(rows, pull, weights, decay, problem.fixed_P, twice, norm, gradient, denominator)
    return gradient, denominator


def item_rows(problem, P, Q, errors, G):
    """(gradient, denominator) of all items; errors: e of every observed pair."""
    gradient, denominator = np.zeros_like(Q), np.zeros(len(Q))
    observed_to_items(problem.pairs, errors, problem.curvature, P, norms(P), gradient, denominator)
    pull = all_pairs_pull(Q, problem.teacher_Q, G.G_P, G.H_P)
    norm = total_norm(G.G_P, problem.fixed_P)
    twice = 2 * problem.strength
    complete_rows(Q, pull, problem.C, problem.wd_i, problem.fixed_Q, twice, norm, gradient, denominator)
    return gradient, denominator


def pair_errors(problem, scores):
    """e = 2 (k s - c): the derivative of the observed part in each pair's score."""
    errors = problem.curvature * scores
    errors -= problem.pull
    errors *= 2
    return errors


def gradient(problem, P, Q):
    """(dP, dQ): the objective's gradient, zero in the constant coordinates."""
    G = grams(problem, P, Q)
    errors = pair_errors(problem, score_pairs(problem.pairs, P, Q))
    dP, norms_Q = np.empty_like(P), norms(Q)
    for part in chunks(len(P)):
        dP[part], _ = user_rows(problem, P[part], np.arange(part.start, part.stop), errors, Q, norms_Q, G)
    dQ, _ = item_rows(problem, P, Q, errors, G)
    return dP, dQ


def step_sizes(problem, P, Q, rho=1.0):
    """(eta_u, eta_i), float64: one step size per row; a single learning rate diverges.

    eta_u = rho / (2 strength A_u sum_i C_i (|q_i|^2 + 1) + sum_obs 2 k_ui (|q_i|^2 + 1) + wd_u), and alike for items.
    The denominator bounds the largest curvature of the row's own quadratic, so a step of one side alone never raises
    the loss for rho <= 1. Both sides step at once, which has no such proof: the cross terms live on the bound's slack
    (a trace stands for the largest eigenvalue). On random problems the loss never rose at rank 0, nor at rank >= 2 from
    rows of std <= .5; it did rise now and then at rank 1, and from rows of std >= 1.
    """
    G = grams(problem, P, Q)
    errors = np.zeros_like(problem.pull)
    norms_Q, eta_u = norms(Q), np.empty(len(P))
    for part in chunks(len(P)):
        _, bends = user_rows(problem, P[part], np.arange(part.start, part.stop), errors, Q, norms_Q, G)
        eta_u[part] = row_steps(bends, rho)
    _, bends = item_rows(problem, P, Q, errors, G)
    return eta_u, row_steps(bends, rho)


def descend(problem, P, Q, rho=1.0, scores=None):
    """One full-batch step of P and Q at once, in place; returns the loss where it started.

    scores: those of the observed pairs at P, Q, if the caller has them.
    """
    scores = score_pairs(problem.pairs, P, Q) if scores is None else scores
    G = grams(problem, P, Q)
    before = _loss(problem, P, Q, G, _sum_quadratics(problem.curvature, problem.pull, scores))
    errors = pair_errors(problem, scores)
    dQ, bends_Q = item_rows(problem, P, Q, errors, G)  # before P moves
    norms_Q = norms(Q)
    for part in chunks(len(P)):
        dP, bends_P = user_rows(problem, P[part], np.arange(part.start, part.stop), errors, Q, norms_Q, G)
        step_rows(P[part], dP, row_steps(bends_P, rho))
    step_rows(Q, dQ, row_steps(bends_Q, rho))
    return before


def loss(problem, P, Q):
    """The objective at P, Q, exactly and in float64: sum_all A C (s - t)^2 = <G_P, G_Q> - 2 <H_P, H_Q> + const."""
    G = grams(problem, P, Q, exact=True)
    return _loss(problem, P, Q, G, _observed_loss(problem.pairs, problem.curvature, problem.pull, P, Q))


def _loss(problem, P, Q, G, observed):
    """The objective from its Gram matrices and its observed part."""
    everywhere = float(np.vdot(G.G_P, G.G_Q)) - 2 * float(np.vdot(G.H_P, G.H_Q))
    decay = 0.5 * float(problem.wd_u @ squares(P) + problem.wd_i @ squares(Q))
    return problem.strength * everywhere + observed + problem.constant + decay
