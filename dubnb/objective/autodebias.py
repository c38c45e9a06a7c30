"""AutoDebias: the base model and the meta-gradient, in closed form over all pairs and in mini-batches.

**Over all pairs** (mf, loss squared). Base objective, over theta = (P, Q), extended rows as in `all_pairs`:

    sum over S_c of w1 (s - r)^2  +  alpha * sum over all pairs of w2 (s - m)^2  +  wd/2 |rows|^2
    w1 = v exp((a_u + b_i + c_y) / 5),   w2 = exp((a'_u + b'_i + c'_o) / 5),   m = M_y if observed in class y, else M_0

with v the log's own weight of a pair (1 unless it has such a column), o = 1 on observed pairs (S_c), 0 elsewhere, and
M = tanh or sigmoid of mu[class] (unobserved, negative, positive).
The scalars phi = (a, b, c, a', b', c', mu) descend J = sum over S_t of v (s - r)^2 at the look-ahead
theta' = theta - eta grad(theta, phi), in which the step sizes eta are held constant.

Let A_u = exp(a'_u/5), C_i = exp(b'_i/5) and E_o = exp(c'_o/5). The base objective is then an exact all-pairs problem
(see `all_pairs`) of strength alpha E_0 and constant teacher M_0. Its observed pairs have

    curvature  k = w1 + alpha A_u C_i (E_1 - E_0),    pull  c = w1 r + alpha A_u C_i (E_1 M_y - E_0 M_0).

No array of size users x items is formed.

**In mini-batches**, for any backbone and loss with an affine derivative. Unobserved pairs are sampled. A batch of the
base objective holds pairs of S_c and draws from D minus S_c; each draw stands for |D - S_c| / |S_a| pairs. The loss's
derivative is affine in its target (bce, mse, squared). An observed pair has two targets: r with weight w1, and M_y with
weight alpha w2. They merge into y = (w1 r + alpha w2 M_y) / w with weight w = w1 + alpha w2.

Meta-gradient: let theta' = theta - eta grad L(theta, phi), and let g be the gradient of J (S_t's loss) at theta'. Then
dJ/dphi is the derivative in phi of sum_j w_j l_s(s_j, y_j) s'_j. s'_j is the derivative of score j along -eta g; the
backbone's forward mode computes it. The models of theta and theta' have only the rows of the two batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb import _random, losses
from dubnb._jit import njit
from dubnb._random import key
from dubnb.backbones import MF, Trainer, Weights
from dubnb.backbones.mf import Extended, Stream, distinct, power
from dubnb.data.pattern import Pattern, UnobservedPairs
from dubnb.objective import all_pairs
from dubnb.objective.all_pairs import ExactProblem, gram
from dubnb.objective.terms import empty_stream, shuffle, stream_part

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    Decay = float | np.ndarray | tuple[float | np.ndarray, float | np.ndarray]  # one for all rows, or (users, items)
    Rates = Mapping[str, tuple[float, float]]  # {group of phi: Adam's (lr, wd)}
    from dubnb.objective.coupled import Cycle
    from dubnb.train import Stage


SCALE = 5.0  # weights are exp(phi / SCALE)
PHI_SPREAD = 1e-3  # std of the initial c, c' and mu
ACTIVATIONS = ("tanh", "sigmoid")
W1, W2, IMPUTATION = (3e-2, 1e-2), (3e-3, 1e-2), (0.3, 1e-4)  # Adam's (lr, wd)
RATES = {"a": W1, "b": W1, "c": W1, "a_prime": W2, "b_prime": W2, "c_prime": W2, "mu": IMPUTATION}
BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8
WEIGHTS_FROM = 20  # the epoch from which the weight groups move


class Phi(NamedTuple):
    """The meta-parameters, or arrays of their shapes (gradients, moments); float64."""

    a: np.ndarray  # users
    b: np.ndarray  # items
    c: np.ndarray  # classes of S_c: negative, positive
    a_prime: np.ndarray  # users
    b_prime: np.ndarray  # items
    c_prime: np.ndarray  # unobserved, observed
    mu: np.ndarray  # unobserved, negative, positive


class Adam(NamedTuple):
    """The state of Adam on phi; each group counts its own steps."""

    first: Phi
    second: Phi
    steps: np.ndarray  # int64, one per group


class BaseObjective(NamedTuple):
    """The base objective's data and settings, without theta and phi; built by `make_base`."""

    pairs: Pattern  # S_c
    labels: np.ndarray  # float64, r
    logged: np.ndarray  # float64, v
    classes: np.ndarray  # uint8, y: 1 positive
    alpha: float
    wd_u: np.ndarray
    wd_i: np.ndarray
    activation: str


class PairWeights(NamedTuple):
    """Every factor of w1, w2 and m for one phi, so that no exponential is computed per pair."""

    user_1: np.ndarray  # exp(a_u / 5)
    item_1: np.ndarray  # exp(b_i / 5)
    class_1: np.ndarray  # exp(c_y / 5)
    A: np.ndarray
    C: np.ndarray
    E: np.ndarray  # E_0, E_1
    M: np.ndarray  # M_0, then M_y of the negative and the positive class


class LookAhead(NamedTuple):
    """The directions D = -eta dJ/dtheta' of the rows that occur in S_t: how a step in phi changes J."""

    users: np.ndarray  # the users of S_t
    slot: np.ndarray  # int32, each user's index among them, or -1
    DP: np.ndarray  # one row for each of `users`
    DQ: np.ndarray  # one row for each item, zero where S_t has none
    J: float


def make_base(
    shape: tuple[int, int],
    S_c: tuple[np.ndarray, ...],
    alpha: float,
    wd: Decay,
    activation: str = "tanh",
    positive: np.ndarray | None = None,
) -> BaseObjective:
    """The base objective for S_c = (users, items, labels, weights) in CSR order.

    wd: a number, or the pair (per user, per item); positive: which pairs are of the positive class, by default those
    whose label is above 0.
    """
    users, items, labels, weights = S_c
    wd_u, wd_i = wd if isinstance(wd, tuple) else (wd, wd)
    wd_u, wd_i = (all_pairs.per_row("wd", values, count) for values, count in zip((wd_u, wd_i), shape, strict=True))
    labels = labels.astype(np.float64)
    classes = np.asarray(labels > 0 if positive is None else positive).astype(np.uint8)
    pairs = Pattern.of(users, items, shape[0])
    return BaseObjective(pairs, labels, weights.astype(np.float64), classes, alpha, wd_u, wd_i, activation)


# phi


def init_phi(n_users: int, n_items: int, seed: int, row_weights: tuple[np.ndarray, np.ndarray] | None = None) -> Phi:
    """a, a' normal with std sqrt(2 / users), b, b' with sqrt(2 / items), c, c' and mu with 1e-3.

    row_weights: (A, C) that w2 starts from, as 5 log A added to a' and 5 log C to b'.
    """
    per_user, per_item = (n_users, np.sqrt(2 / n_users)), (n_items, np.sqrt(2 / n_items))
    sizes = (per_user, per_item, (2, PHI_SPREAD), per_user, per_item, (2, PHI_SPREAD), (3, PHI_SPREAD))
    draws = zip(Phi._fields, sizes, strict=True)
    phi = Phi(*(_random.generator(seed, "phi", name).normal(0.0, std, size) for name, (size, std) in draws))
    if row_weights is not None:
        phi.a_prime[:] += SCALE * np.log(row_weights[0])
        phi.b_prime[:] += SCALE * np.log(row_weights[1])
    return phi


def init_adam(phi: Phi) -> Adam:
    """Adam's state before the first step."""
    return Adam(Phi(*map(np.zeros_like, phi)), Phi(*map(np.zeros_like, phi)), np.zeros(len(phi), np.int64))


def pair_weights(phi: Phi, activation: str) -> PairWeights:
    """Every factor of w1, w2 and m for phi."""
    user_1, item_1, class_1, A, C, E = (np.exp(group / SCALE) for group in phi[:-1])
    M = np.tanh(phi.mu) if activation == "tanh" else 0.5 * (1.0 + np.tanh(0.5 * phi.mu))  # a sigmoid without overflow
    return PairWeights(user_1, item_1, class_1, A, C, E, M)


@njit(inline=True)
def adam_step(value, gradient, first, second, step, lr, wd):
    """One coordinate's step of Adam with L2 coupled into the gradient: the new (value, first, second)."""
    rate, correction = lr / (1.0 - power(BETA_1, step)), math.sqrt(1.0 - power(BETA_2, step))
    return _corrected_step(value, gradient, first, second, rate, correction, wd)


@njit(inline=True)
def _corrected_step(value, gradient, first, second, rate, correction, wd):
    g = gradient + wd * value
    first = BETA_1 * first + (1.0 - BETA_1) * g
    second = BETA_2 * second + (1.0 - BETA_2) * g * g
    root = math.sqrt(second) / correction
    return value - rate * first / (root + EPS), first, second


@njit
def _adam(value, gradient, first, second, step, lr, wd):
    """One step of Adam, in place; the powers are computed once for all coordinates."""
    rate, correction = lr / (1.0 - power(BETA_1, step)), math.sqrt(1.0 - power(BETA_2, step))
    for k in range(len(value)):
        new = _corrected_step(value[k], gradient[k], first[k], second[k], rate, correction, wd)
        value[k], first[k], second[k] = new


def phi_step(
    phi: Phi,
    gradient: Phi | Mapping[str, np.ndarray],
    adam: Adam,
    weights_move: bool = True,
    rates: Rates = RATES,
    groups: Sequence[str] = Phi._fields,
) -> None:
    """One step of Adam on these groups of phi, in place; without `weights_move` only mu and its moments change."""
    by_name = gradient._asdict() if isinstance(gradient, Phi) else gradient
    for n, name in enumerate(Phi._fields):
        if name in groups and (name == "mu" or weights_move):
            adam.steps[n] += 1
            _adam(phi[n], by_name[name], adam.first[n], adam.second[n], int(adam.steps[n]), *rates[name])


# The base model


@njit(inline=True)
def quadratic(w1, r, AC, E_0, E_1, M_0, M_y):
    """k = w1 + alpha A C (E_1 - E_0), c = w1 r + alpha A C (E_1 M_y - E_0 M_0), and the part that is constant in s.

    AC: alpha A_u C_i.
    """
    k = w1 + AC * (E_1 - E_0)
    c = w1 * r + AC * (E_1 * M_y - E_0 * M_0)
    return k, c, w1 * r * r + AC * (E_1 * M_y * M_y - E_0 * M_0 * M_0)


@njit
def _observed_quadratics(observed, weights, alpha, curvature, pull):
    """Compute k and c of every observed pair; returns the sum of the parts that are constant in s."""
    pairs, labels, logged, classes = observed
    constant = 0.0
    E, M = weights.E, weights.M
    for u in range(len(pairs.indptr) - 1):
        for n in range(pairs.indptr[u], pairs.indptr[u + 1]):
            i, y = pairs.items[n], classes[n]
            w1 = logged[n] * weights.user_1[u] * weights.item_1[i] * weights.class_1[y]
            AC = alpha * weights.A[u] * weights.C[i]
            k, c, rest = quadratic(w1, labels[n], AC, E[0], E[1], M[0], M[1 + y])
            curvature[n], pull[n] = k, c
            constant += rest
    return constant


def base_problem(base: BaseObjective, phi: Phi, dtype: DTypeLike = np.float32) -> ExactProblem:
    """The base objective for phi as an exact all-pairs problem."""
    weights = pair_weights(phi, base.activation)
    curvature, pull = np.empty(len(base.labels), dtype), np.empty(len(base.labels), dtype)
    constant = _observed_quadratics(base[:4], weights, base.alpha, curvature, pull)
    strength, M_0 = base.alpha * float(weights.E[0]), float(weights.M[0])
    constant += strength * float(weights.A.sum()) * float(weights.C.sum()) * M_0**2
    ones, teacher_Q = np.ones((len(phi.a), 1), dtype), np.full((len(phi.b), 1), M_0, dtype)
    rows = (weights.A, weights.C, ones, teacher_Q, base.wd_u, base.wd_i)
    return ExactProblem(base.pairs, curvature, pull, constant, strength, *rows)


def base_step(
    base: BaseObjective, phi: Phi, P: np.ndarray, Q: np.ndarray, rho: float = 1.0, scores: np.ndarray | None = None
) -> float:
    """One simultaneous step of P and Q, in place; returns the base objective where it started."""
    return all_pairs.descend(base_problem(base, phi, P.dtype), P, Q, rho, scores)


# The meta-gradient


@njit
def _loss_on_S_t(S_t, slot, P, Q, gradient_P, gradient_Q):
    """J = sum v (s - r)^2 over S_t, with its gradients added to gradient_P (by slot) and gradient_Q."""
    users, items, labels, logged = S_t
    J = 0.0
    for k in range(len(users)):
        n, i = slot[users[k]], items[k]
        error = -labels[k]
        for j in range(P.shape[1]):
            error += P[n, j] * Q[i, j]
        J += logged[k] * error * error
        e = 2.0 * logged[k] * error
        for j in range(P.shape[1]):
            gradient_P[n, j] += e * Q[i, j]
            gradient_Q[i, j] += e * P[n, j]
    return J


def look_ahead(
    problem: ExactProblem,
    P: np.ndarray,
    Q: np.ndarray,
    S_t: tuple[np.ndarray, ...],
    scores: np.ndarray,
    G: all_pairs.Grams,
    rho: float = 1.0,
) -> LookAhead:
    """J and the directions DP = -eta_P g_P, DQ = -eta_Q g_Q, where g is J's gradient at theta' = theta - eta grad.

    g is zero except in rows that occur in S_t, so the look-ahead of users is computed for those only.
    """
    users = np.unique(S_t[0])
    slot = np.full(len(P), -1, np.int32)
    slot[users] = np.arange(len(users), dtype=np.int32)
    errors = all_pairs.pair_errors(problem, scores)
    P_ahead, Q_ahead = P[users], Q.copy()
    dP, bends = all_pairs.user_gradients(problem, P_ahead, users, errors, Q, all_pairs.norms(Q), G)
    eta_P = all_pairs.row_steps(bends, rho)
    dQ, bends = all_pairs.item_gradients(problem, P, Q, errors, G)
    eta_Q = all_pairs.row_steps(bends, rho)
    all_pairs.step_rows(P_ahead, dP, eta_P)
    all_pairs.step_rows(Q_ahead, dQ, eta_Q)
    DP, DQ = np.zeros_like(P_ahead), np.zeros_like(Q)
    J = _loss_on_S_t(S_t, slot, P_ahead, Q_ahead, DP, DQ)
    for D, eta, fixed in ((DP, eta_P, problem.fixed_P), (DQ, eta_Q, problem.fixed_Q)):
        D *= -eta[:, None].astype(D.dtype)
        D[:, fixed] = 0
    return LookAhead(users, slot, DP, DQ, J)


@njit
def _observed_meta(observed, weights, alpha, scores, P, Q, ahead, out):
    """Add each observed pair's share of dJ/dphi to `out`, without the factor 1/5 and the activation's derivative.

    With s' = DP_u . Q_i + P_u . DQ_i: f = 2 w1 (s - r) s', h1 = 2 alpha A C E_1 (s - M_y) s' and
    h0 = 2 alpha A C E_0 (s - M_0) s'.
    """
    pairs, labels, logged, classes = observed
    E, M = weights.E, weights.M
    width = P.shape[1]
    for u in range(len(P)):
        n = ahead.slot[u]
        for k in range(pairs.indptr[u], pairs.indptr[u + 1]):
            i, y, s = pairs.items[k], classes[k], scores[k]
            turn = np.float32(0)  # s', in the rows' type
            for j in range(width):
                turn += P[u, j] * ahead.DQ[i, j]
            if n >= 0:
                for j in range(width):
                    turn += ahead.DP[n, j] * Q[i, j]
            AC = 2.0 * alpha * weights.A[u] * weights.C[i] * turn
            w1 = logged[k] * weights.user_1[u] * weights.item_1[i] * weights.class_1[y]
            f = 2.0 * w1 * (s - labels[k]) * turn
            h1, h0 = AC * E[1] * (s - M[1 + y]), AC * E[0] * (s - M[0])
            out.a[u] += f
            out.b[i] += f
            out.c[y] += f
            out.a_prime[u] += h1 - h0
            out.b_prime[i] += h1 - h0
            out.c_prime[0] -= h0
            out.c_prime[1] += h1
            out.mu[0] += AC * E[0]
            out.mu[1 + y] -= AC * E[1]


def _quadratic_forms(rows: np.ndarray, K: np.ndarray) -> np.ndarray:
    """row^T K row of every row, in float64."""
    forms, K = np.empty(len(rows)), K.astype(rows.dtype)
    for part in all_pairs.chunks(len(rows)):
        forms[part] = np.einsum("kj,kj->k", rows[part] @ K, rows[part])
    return forms


def _all_pairs_meta(
    problem: ExactProblem, P: np.ndarray, Q: np.ndarray, G: all_pairs.Grams, M_0: float, ahead: LookAhead, out: Phi
) -> None:
    """Add the share of the sum over all pairs to `out`, without the factor 1/5 and the activation's derivative.

    With K_Q = sum C Q DQ^T, k_Q = sum C DQ and l_u = h_Q . DP_u + k_Q . P_u,
    T_u = P_u^T G_Q DP_u + P_u^T K_Q P_u - M_0 l_u, and T_i likewise. The shares are
    a'_u: 2 alpha E_0 A_u T_u; b'_i: 2 alpha E_0 C_i T_i; c'_0: 2 alpha E_0 sum_u A_u T_u;
    M_0: -2 alpha E_0 sum_u A_u l_u.
    """
    users, DP, DQ = ahead.users, ahead.DP, ahead.DQ
    A, C, twice = problem.A, problem.C, 2.0 * problem.strength
    K_P, K_Q = gram(P[users], A[users], DP), gram(Q, C, DQ)
    # the constant coordinate is 1: its row or column of a Gram matrix is the weighted sum of the other factor's rows
    h_P, h_Q = G.G_P[problem.fixed_P], G.G_Q[problem.fixed_Q]
    k_P, k_Q = K_P[problem.fixed_P], K_Q[problem.fixed_Q]
    T_u = _quadratic_forms(P, K_Q) - M_0 * (P @ k_Q.astype(P.dtype))
    T_u[users] += np.einsum("kj,kj->k", P[users] @ G.G_Q.astype(P.dtype), DP) - M_0 * (DP @ h_Q)
    T_i = _quadratic_forms(Q, K_P) - M_0 * (Q @ k_P)
    T_i += np.einsum("kj,kj->k", Q @ G.G_P.astype(Q.dtype), DQ) - M_0 * (DQ @ h_P)
    out.a_prime[:] += twice * A * T_u
    out.b_prime[:] += twice * C * T_i
    out.c_prime[0] += twice * float(A @ T_u)
    out.mu[0] -= twice * float(h_Q @ k_P + k_Q @ h_P)


def meta_gradient(
    base: BaseObjective,
    phi: Phi,
    P: np.ndarray,
    Q: np.ndarray,
    S_t: tuple[np.ndarray, ...],
    rho: float = 1.0,
    scores: np.ndarray | None = None,
) -> tuple[Phi, float]:
    """(dJ/dphi, J): the derivative in phi of sum_obs 2 w1 (s - r) s' + alpha sum_all 2 w2 (s - m) s', in closed form.

    S_t = (users, items, labels, weights). s' = DP_u . Q_i + P_u . DQ_i is the derivative of a score along the
    look-ahead's directions.
    """
    problem = base_problem(base, phi, P.dtype)
    scores = all_pairs.score_pairs(base.pairs, P, Q) if scores is None else scores
    G = all_pairs.grams(problem, P, Q)
    ahead = look_ahead(problem, P, Q, S_t, scores, G, rho)
    weights = pair_weights(phi, base.activation)
    out = Phi(*map(np.zeros_like, phi))
    _observed_meta(base[:4], weights, base.alpha, scores, P, Q, ahead, out)
    _all_pairs_meta(problem, P, Q, G, weights.M[0], ahead, out)
    for group in out[:-1]:
        group /= SCALE
    out.mu[:] *= 1.0 - weights.M**2 if base.activation == "tanh" else weights.M * (1.0 - weights.M)
    return out, ahead.J


def epoch(
    base: BaseObjective,
    phi: Phi,
    adam: Adam,
    rows: tuple[np.ndarray, np.ndarray],
    S_t: tuple[np.ndarray, ...],
    number: int,
    weights_from: int = WEIGHTS_FROM,
) -> tuple[float, float]:
    """Epoch `number` (from 0), in place: meta-gradient, phi step, then theta step with the new phi.

    Returns (base objective before the theta step, J).
    """
    P, Q = rows
    scores = all_pairs.score_pairs(base.pairs, P, Q)  # theta is the same in the meta-gradient and in the base step
    gradient, J = meta_gradient(base, phi, P, Q, S_t, scores=scores)
    phi_step(phi, gradient, adam, number >= weights_from)
    return base_step(base, phi, P, Q, scores=scores), J


class MetaSolver:
    """Trains the rows and phi in place, by the epochs of this module."""

    def __init__(self, base: BaseObjective, phi: Phi, rows: Extended, S_t: tuple[np.ndarray, ...], weights_from: int):
        self.base, self.phi, self.rows, self.S_t, self.weights_from = base, phi, rows, S_t, weights_from
        self.adam = init_adam(phi)
        self.score_pairs, self.score_rows, self.finite = rows.score_pairs, rows.score_rows, rows.finite

    def step(self, number: int) -> float:
        """Epoch `number`, from 1; returns the base objective where it started."""
        objective, _ = epoch(self.base, self.phi, self.adam, self.rows, self.S_t, number - 1, self.weights_from)
        return objective

    def weights(self) -> MF:
        """A copy of the rows as weights."""
        return MF.from_extended(self.rows)

    def fetch(self, rows: Extended) -> None:
        """Do nothing: the rows are changed in place."""


# ---- in mini-batches -------------------------------------------------------------------------------------------------


NEGATIVE, POSITIVE, UNOBSERVED = range(3)  # the classes of samples, as the terms of their stream
LOOK_AHEAD = 1.0  # eta: on a batch's mean loss, such a step is about as long as one of Adam with lr 1e-3


class Sampled(NamedTuple):
    """The weights for one phi, and the factors that scale them."""

    weights: PairWeights
    observed: float  # alpha
    unobserved: float  # alpha |D - S_c| / |S_a|


class Logged(NamedTuple):
    """The log's weight and target of each sample of a batch; draws do not use theirs."""

    weights: np.ndarray  # multiply w1
    targets: np.ndarray  # r

    @classmethod
    def of(cls, batch: Stream) -> Logged:
        """Copies from a batch that `weigh_batch` has not changed yet."""
        return cls(batch.weights.copy(), batch.targets.copy())


@njit(inline=True)
def merged_sample(w1, r, w2, m):
    """The weight and target of one sample that stands for target r with weight w1 and target m with weight w2."""
    return w1 + w2, (w1 * r + w2 * m) / (w1 + w2)


@njit
def weigh_batch(batch, logged, sampled):
    """Fill in the weights and targets of a batch; its `terms` are the classes of its samples."""
    w = sampled.weights
    for j in range(len(batch.users)):
        u, i, y = batch.users[j], batch.items[j], batch.terms[j]
        AC = w.A[u] * w.C[i]
        if y == UNOBSERVED:
            batch.weights[j] = sampled.unobserved * AC * w.E[0]
            batch.targets[j] = w.M[0]
        else:
            w1 = logged.weights[j] * w.user_1[u] * w.item_1[i] * w.class_1[y]
            w2 = sampled.observed * AC * w.E[1]
            batch.weights[j], batch.targets[j] = merged_sample(w1, logged.targets[j], w2, w.M[1 + y])


@njit
def _add_meta(batch, logged, scores, turns, sampled, loss, out):
    """Add each sample's share of dJ/dphi, without the factor 1/5 and the activation's derivative. `turns` are s'."""
    w = sampled.weights
    for j in range(len(batch.users)):
        u, i, y, s, turn = batch.users[j], batch.items[j], batch.terms[j], scores[j], turns[j]
        at_zero = losses.derivative(loss, s, np.float32(0.0))
        slope = losses.derivative(loss, s, np.float32(1.0)) - at_zero  # the derivative is affine in the target
        AC = w.A[u] * w.C[i] * turn
        o = 0 if y == UNOBSERVED else 1
        k = 0 if y == UNOBSERVED else 1 + y
        h = (sampled.observed if o else sampled.unobserved) * AC * w.E[o]
        out.a_prime[u] += h * (at_zero + slope * w.M[k])
        out.b_prime[i] += h * (at_zero + slope * w.M[k])
        out.c_prime[o] += h * (at_zero + slope * w.M[k])
        out.mu[k] += h * slope
        if o:
            w1 = logged.weights[j] * w.user_1[u] * w.item_1[i] * w.class_1[y]
            f = w1 * (at_zero + slope * np.float64(logged.targets[j])) * turn
            out.a[u] += f
            out.b[i] += f
            out.c[y] += f


def sampled_meta_gradient(
    trainer: Trainer,
    batch: Stream,
    logged: Logged,
    S_t: Stream,
    phi: Phi,
    sampled: Sampled,
    loss: losses.Loss,
    lam: float,
) -> Phi:
    """dJ/dphi of one batch at the trainer's current weights; J is the mean loss of the stream S_t."""
    users, user_rows = distinct(np.concatenate([batch.users, S_t.users]), len(phi.a))
    items, item_rows = distinct(np.concatenate([batch.items, S_t.items]), len(phi.b))
    here = trainer.subset(users, items)
    n = len(batch.users)
    base = _renumbered(batch, user_rows[:n], item_rows[:n])
    ahead = here.plus(-LOOK_AHEAD, here.gradient(base, loss, lam, trainer))
    g = ahead.gradient(_renumbered(S_t, user_rows[n:], item_rows[n:]), loss, 0.0, trainer)
    out = Phi(*map(np.zeros_like, phi))
    scores, turns = here.tangent(g, base.users, base.items, trainer)
    _add_meta(batch, logged, scores, turns * np.float32(-LOOK_AHEAD / n), sampled, loss.code, out)
    for group in out[:-1]:
        group /= SCALE
    M = sampled.weights.M
    out.mu[:] *= M * (1.0 - M)
    return out


def _renumbered(batch: Stream, users: np.ndarray, items: np.ndarray) -> Stream:
    """The batch with row numbers of a small model, all samples in term 0."""
    return Stream(users, items, batch.targets, batch.weights, np.zeros(len(users), np.uint8))


def sampled_weights(phi: Phi, alpha: float, n_unobserved: int, n_draws: int) -> Sampled:
    """The weights and factors that `weigh_batch` needs for phi; imputations are probabilities, sigmoid(mu)."""
    return Sampled(pair_weights(phi, "sigmoid"), alpha, alpha * n_unobserved / n_draws)


class SampledProblem(NamedTuple):
    """What a fit in mini-batches trains on; its arrays may change."""

    weights: Weights  # theta at the start
    stage: Stage
    loss: losses.Loss
    observed: Stream  # S_c: targets r, the log's weights, and the classes as terms
    pairs: UnobservedPairs
    S_t: Cycle
    phi: Phi
    rates: Rates  # of phi
    alpha: float
    meta_every: int  # batches between two look-aheads
    weights_from: int  # the epoch after which w1 and w2 change


class SampledSolver:
    """Trains theta by Adam on pairs of S_c and of D - S_c, and phi by a look-ahead before some batches."""

    def __init__(self, problem: SampledProblem):
        self.problem, self.phi, self.n = problem, problem.phi, len(problem.observed.users)
        self.source, self.shuffled = with_draws(problem.observed), empty_stream(2 * self.n)
        self.adam, self.sampled = init_adam(self.phi), self._weights()
        self.trainer = problem.weights.trainer(problem.stage.batch_size)
        self.score_pairs, self.score_rows = self.trainer.score_pairs, self.trainer.score_rows
        self.weights, self.finite = self.trainer.weights, self.trainer.finite

    def epoch(self, epoch: int) -> dict[str, float]:
        """Train; returns the mean loss of S_c and of the draws."""
        problem, stage, draws = self.problem, self.problem.stage, stream_part(self.source, self.n, 2 * self.n)
        problem.pairs.draw(key(stage.seed, "refine", "d", epoch), draws.users, draws.items)
        shuffle(key(stage.seed, "refine", "shuffle", epoch), self.source, self.shuffled)
        totals, weights, size = np.zeros(3), np.zeros(3), stage.batch_size
        for start in range(0, 2 * self.n, size * problem.meta_every):
            # phi does not change until the next look-ahead: the batches up to it are weighed and trained together
            batches = stream_part(self.shuffled, start, start + size * problem.meta_every)
            logged, first = Logged.of(batches), stream_part(batches, 0, size)
            weigh_batch(first, logged, self.sampled)
            self._learn_phi(first, logged, weights_move=epoch > problem.weights_from)
            weigh_batch(batches, logged, self.sampled)
            totals += self.trainer.epoch(batches, 3, problem.loss, stage.lr, stage.lam)
            weights += np.bincount(batches.terms, batches.weights, 3)
        return mean_losses(totals, weights, problem.alpha)

    def _learn_phi(self, batch: Stream, logged: Logged, weights_move: bool) -> None:
        problem = self.problem
        gradient = sampled_meta_gradient(
            self.trainer, batch, logged, problem.S_t.next(), self.phi, self.sampled, problem.loss, problem.stage.lam
        )
        phi_step(self.phi, gradient, self.adam, weights_move, problem.rates)
        self.sampled = self._weights()

    def _weights(self) -> Sampled:
        return sampled_weights(self.phi, self.problem.alpha, self.problem.pairs.size, self.n)


def with_draws(observed: Stream) -> Stream:
    """S_c followed by as many samples for draws, whose pairs are not filled in."""
    n = len(observed.users)
    source = empty_stream(2 * n)
    for own, given in zip(source, observed, strict=True):
        own[:n] = given
    source.terms[n:] = UNOBSERVED
    return source


def mean_losses(totals: np.ndarray, weights: np.ndarray, alpha: float) -> dict[str, float]:
    """The mean loss of terms c and d from sums over each class."""
    return {"c": totals[:2].sum() / weights[:2].sum(), "d": totals[2] / weights[2] if alpha else 0.0}
