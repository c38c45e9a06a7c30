"""AutoDebias on the device: `objective/autodebias.py` with one thread per pair, row, sample or coordinate.

**Over all pairs.** The seven scalars of phi (c, c', mu) and their sums are on the host; arrays of the log's or a side's
size stay on the device. The constant teacher M_0 needs no Gram matrix of its own: the other side's constant coordinate
is 1, so H = M_0 G e with the unit vector e of that coordinate.

**In mini-batches.** A second trainer of the full size holds the look-ahead. Only rows of the two batches are ever
written or read there: the weights theta' are in the place of its weights, and the direction g, the gradient of J at
theta', in the place of its first moments. So no rows are renumbered and none of them leaves the device. As in closed
form, the seven scalars of phi and their sums are on the host.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, types

from dubnb import losses
from dubnb._random import key
from dubnb.backbones.mf import BIAS_P, BIAS_Q, EXTRA_COLUMNS, ONE_P, ONE_Q, Extended
from dubnb.cuda import mf, ncf, streams
from dubnb.cuda._launch import (
    BYTES,
    DOUBLES,
    F4,
    F8,
    FLOATS,
    I8,
    INTS,
    LONGS,
    MATRIX,
    STREAM,
    TABLE,
    WIDE_MATRIX,
    Totals,
    check_memory,
    device_array,
    kernel,
    stream_to_device,
    to_device,
)
from dubnb.cuda.all_pairs import DeviceRows, Gram
from dubnb.cuda.rows import GROUPS, Batches, Epoch
from dubnb.data.pattern import Pattern
from dubnb.objective import autodebias as meta
from dubnb.objective.all_pairs import ROUNDING, total_norm, transposed_pairs
from dubnb.objective.autodebias import (
    LOOK_AHEAD,
    NEGATIVE,
    POSITIVE,
    SCALE,
    UNOBSERVED,
    SampledProblem,
    mean_losses,
    merged_sample,
    with_draws,
)
from dubnb.objective.terms import empty_stream, stream_part


class RowPairs(NamedTuple):
    """The observed pairs of one side's rows: pair k of row u is number numbers[k] in the users' order."""

    indptr: Any
    partners: Any
    numbers: Any
    bias: int  # the column of this side's bias, where the other side has its constant
    fixed: int  # the column of this side's constant


class Pairs(NamedTuple):
    """Observed pairs in the users' order."""

    users: Any
    items: Any
    labels: Any
    logged: Any
    classes: Any


class Scalars(NamedTuple):
    """The parts of phi and alpha that are the same for all pairs."""

    alpha: float
    negative: float  # exp(c_y / 5)
    positive: float
    E_0: float
    E_1: float
    M_0: float
    M_negative: float
    M_positive: float


class Factors(NamedTuple):
    """exp(phi / 5) of every user and item."""

    user_1: Any
    item_1: Any
    A: Any
    C: Any


ROW_PAIRS = types.NamedTuple((LONGS, INTS, INTS, I8, I8), RowPairs)
PAIRS = types.NamedTuple((INTS, INTS, DOUBLES, DOUBLES, BYTES), Pairs)
SCALARS = types.NamedTuple((F8,) * 8, Scalars)
FACTORS = types.NamedTuple((DOUBLES,) * 4, Factors)


@kernel(DOUBLES, DOUBLES)
def exponentials(phi, out):
    """exp(phi / 5)."""
    for k in range(cuda.grid(1), len(phi), cuda.gridsize(1)):
        out[k] = math.exp(phi[k] / meta.SCALE)


@kernel(PAIRS, FACTORS, SCALARS, FLOATS, FLOATS, FLOATS, FLOATS, DOUBLES)
def quadratics(pairs, factors, scalars, scores, curvature, pull, errors, values):
    """Every observed pair's k, c and e = 2 (k s - c), and its share of the objective."""
    for n in range(cuda.grid(1), len(scores), cuda.gridsize(1)):
        u, i, y, s = pairs.users[n], pairs.items[n], pairs.classes[n], scores[n]
        c_y, M_y = (scalars.positive, scalars.M_positive) if y else (scalars.negative, scalars.M_negative)
        AC, r = scalars.alpha * factors.A[u] * factors.C[i], pairs.labels[n]
        k, c, constant = meta.quadratic(
            pairs.logged[n] * factors.user_1[u] * factors.item_1[i] * c_y,
            r,
            AC,
            scalars.E_0,
            scalars.E_1,
            scalars.M_0,
            M_y,
        )
        curvature[n], pull[n] = k, c
        errors[n] = 2 * (curvature[n] * s - pull[n])
        values[n] = (curvature[n] * np.float64(s) - 2.0 * pull[n]) * np.float64(s) + constant


@kernel(MATRIX, DOUBLES)
def square_norms(rows, out):
    """|row|^2 over the factors."""
    for u in range(cuda.grid(1), len(out), cuda.gridsize(1)):
        total = 0.0
        for j in range(rows.shape[1] - EXTRA_COLUMNS):
            total += np.float64(rows[u, j]) ** 2
        out[u] = total


@kernel(ROW_PAIRS, FLOATS, DOUBLES, DOUBLES, DOUBLES, F8, DOUBLES)
def step_sizes(side, curvature, other_norms, weights, decay, twice_norm, eta):
    """1 / the bound on a row's curvature; 0 for a row without gradient. twice_norm: 2 strength x total norm."""
    for u in range(cuda.grid(1), len(eta), cuda.gridsize(1)):
        everywhere = weights[u] * twice_norm
        bend = everywhere
        for k in range(side.indptr[u], side.indptr[u + 1]):
            bend += 2.0 * curvature[side.numbers[k]] * (other_norms[side.partners[k]] + 1.0)
        bend = decay[u] + (bend if bend > ROUNDING * everywhere else 0.0)
        eta[u] = 1.0 / bend if bend > 0 else 0.0


@kernel(ROW_PAIRS, FLOATS, MATRIX, MATRIX, WIDE_MATRIX, DOUBLES, DOUBLES, F8, F8, MATRIX)
def exact_gradients(side, errors, rows, others, G, weights, decay, twice, M_0, out):
    """Observed pairs, the sum over all pairs 2 strength A_u G (row - M_0 e), and the decay; none in the constant.

    e: the unit vector of the bias' column.
    """
    width = rows.shape[1]
    for at in range(cuda.grid(1), rows.shape[0] * width, cuda.gridsize(1)):
        u, j = at // width, at % width
        total = -M_0 * G[j, width + side.bias]
        for k in range(width):
            total += G[j, k] * rows[u, k]
        total *= twice * weights[u]
        for k in range(side.indptr[u], side.indptr[u + 1]):
            total += errors[side.numbers[k]] * others[side.partners[k], j]
        total += decay[u] * rows[u, j] if j < width - EXTRA_COLUMNS else 0.0
        out[u, j] = 0.0 if j == width + side.fixed else total


@kernel(MATRIX, MATRIX, DOUBLES, MATRIX)
def moved(rows, gradient, eta, out):
    """row - eta gradient."""
    width = rows.shape[1]
    for at in range(cuda.grid(1), rows.shape[0] * width, cuda.gridsize(1)):
        u, j = at // width, at % width
        out[u, j] = rows[u, j] - eta[u] * gradient[u, j]


@kernel(PAIRS, MATRIX, MATRIX, FLOATS, DOUBLES)
def errors_on_S_t(pairs, P, Q, errors, values):
    """v (s - r)^2 of every pair of S_t, and its derivative in s."""
    for n in range(cuda.grid(1), len(errors), cuda.gridsize(1)):
        error = -pairs.labels[n]
        for j in range(P.shape[1]):
            error += P[pairs.users[n], j] * Q[pairs.items[n], j]
        values[n] = pairs.logged[n] * error * error
        errors[n] = 2.0 * pairs.logged[n] * error


@kernel(ROW_PAIRS, FLOATS, MATRIX, DOUBLES, MATRIX)
def directions(side, errors, others, eta, out):
    """D = -eta x J's gradient of every row; 0 where S_t has no pair."""
    width = out.shape[1]
    for at in range(cuda.grid(1), out.shape[0] * width, cuda.gridsize(1)):
        u, j = at // width, at % width
        total = 0.0
        for k in range(side.indptr[u], side.indptr[u + 1]):
            total += errors[side.numbers[k]] * others[side.partners[k], j]
        out[u, j] = 0.0 if j == width + side.fixed else -eta[u] * total


@kernel(PAIRS, FACTORS, SCALARS, FLOATS, MATRIX, MATRIX, MATRIX, MATRIX, WIDE_MATRIX)
def pair_shares(pairs, factors, scalars, scores, P, Q, DP, DQ, shares):
    """f, h1, h0 and 2 alpha A C s' of every observed pair, see `autodebias._observed_meta`."""
    for n in range(cuda.grid(1), len(scores), cuda.gridsize(1)):
        u, i, y, s = pairs.users[n], pairs.items[n], pairs.classes[n], scores[n]
        turn = np.float32(0.0)
        for j in range(P.shape[1]):
            turn += P[u, j] * DQ[i, j] + DP[u, j] * Q[i, j]
        c_y, M_y = (scalars.positive, scalars.M_positive) if y else (scalars.negative, scalars.M_negative)
        AC = 2.0 * scalars.alpha * factors.A[u] * factors.C[i] * turn
        w1 = pairs.logged[n] * factors.user_1[u] * factors.item_1[i] * c_y
        shares[0, n] = 2.0 * w1 * (s - pairs.labels[n]) * turn
        shares[1, n] = AC * scalars.E_1 * (s - M_y)
        shares[2, n] = AC * scalars.E_0 * (s - scalars.M_0)
        shares[3, n] = AC


@kernel(ROW_PAIRS, WIDE_MATRIX, DOUBLES, DOUBLES)
def row_shares(side, shares, of_1, of_2):
    """Each row's sum of f, for w1, and of h1 - h0, for w2."""
    for u in range(cuda.grid(1), len(of_1), cuda.gridsize(1)):
        f, h = 0.0, 0.0
        for k in range(side.indptr[u], side.indptr[u + 1]):
            n = side.numbers[k]
            f += shares[0, n]
            h += shares[1, n] - shares[2, n]
        of_1[u], of_2[u] = f, h


@kernel(MATRIX, MATRIX, WIDE_MATRIX, WIDE_MATRIX, I8, F8, DOUBLES, F8, DOUBLES, DOUBLES)
def all_pairs_shares(rows, D, K, G, bias, M_0, weights, twice, of_2, shares):
    """2 strength A_u T_u, T_u = P^T K P + P^T G D - M_0 (K e . P + G e . D); added to `of_2`, and kept for its sum."""
    width = rows.shape[1]
    for u in range(cuda.grid(1), len(shares), cuda.gridsize(1)):
        total = 0.0
        for j in range(width):
            from_K, from_G = -M_0 * K[width + bias, j], -M_0 * G[width + bias, j]
            for k in range(width):
                from_K += rows[u, k] * K[k, j]
                from_G += rows[u, k] * G[k, j]
            total += from_K * rows[u, j] + from_G * D[u, j]
        shares[u] = twice * weights[u] * total
        of_2[u] += shares[u]


@kernel(DOUBLES, DOUBLES, DOUBLES, DOUBLES, I8, F8, F8)
def step_phi(phi, gradient, first, second, step, lr, wd):
    """Adam's step of a group of phi; the gradient comes without the factor 1/5."""
    for k in range(cuda.grid(1), len(phi), cuda.gridsize(1)):
        phi[k], first[k], second[k] = meta.adam_step(
            phi[k], gradient[k] / meta.SCALE, first[k], second[k], step, lr, wd
        )


PER_ROW = ("a", "b", "a_prime", "b_prime")


class PhiOnDevice:
    """phi and Adam's state: groups with a number per row are on the device, the seven scalars on the host."""

    def __init__(self, phi: meta.Phi, alpha: float, activation: str):
        self.small, self.alpha, self.activation = phi, alpha, activation
        self.adam = meta.init_adam(phi)
        state = phi._asdict(), self.adam.first._asdict(), self.adam.second._asdict()
        self.groups = {name: [to_device(of[name]) for of in state] for name in PER_ROW}
        self.gradients = {name: device_array(len(getattr(phi, name)), np.float64) for name in PER_ROW}  # without 1/5
        self.factors = Factors(*(device_array(len(getattr(phi, name)), np.float64) for name in PER_ROW))
        self._refresh()

    def _refresh(self) -> None:
        """Compute the factors and scalars of the current phi."""
        for name, out in zip(PER_ROW, self.factors, strict=True):
            exponentials(len(out), self.groups[name][0], out)
        nothing = np.zeros(0)
        small = meta.pair_weights(
            self.small._replace(a=nothing, b=nothing, a_prime=nothing, b_prime=nothing), self.activation
        )
        self.scalars = Scalars(self.alpha, *map(float, (*small.class_1, *small.E, *small.M)))

    def imputed(self) -> np.ndarray:
        """M_0 and M_y of the negative and the positive class."""
        return np.array([self.scalars.M_0, self.scalars.M_negative, self.scalars.M_positive])

    def step(self, small: dict[str, np.ndarray], weights_move: bool, rates: meta.Rates = meta.RATES) -> None:
        """Adam's step by `gradients` and by those of the small groups."""
        for name in (name for name in PER_ROW if weights_move):
            n = meta.Phi._fields.index(name)
            self.adam.steps[n] += 1
            value, *moments = self.groups[name]
            step_phi(len(value), value, self.gradients[name], *moments, int(self.adam.steps[n]), *rates[name])
        meta.phi_step(self.small, small, self.adam, weights_move, rates, groups=("c", "c_prime", "mu"))
        self._refresh()


class CudaMetaSolver(DeviceRows):
    """Trains the rows and phi on the device."""

    def __init__(
        self, base: meta.BaseObjective, phi: meta.Phi, rows: Extended, S_t: Any, weights_from: int, quiet: bool = True
    ):
        width, shape, n = rows.P.shape[1], rows.shape, len(base.labels)
        per_row = 8 * sum(shape) * (4 * width + 12)
        check_memory({"rows": per_row, "logs": n * 90 + len(S_t[0]) * 60}, quiet)
        super().__init__(rows)
        self.alpha, self.activation, self.weights_from = base.alpha, base.activation, weights_from
        users = base.pairs.users().astype(np.int32)
        self.pairs = Pairs(*map(to_device, (users, base.pairs.items, base.labels, base.logged, base.classes)))
        self.sides = _sides(base.pairs, shape[1])
        order = np.argsort(S_t[0], kind="stable")
        u, i, r, v = (np.asarray(column)[order] for column in S_t)
        double = (column.astype(np.float64) for column in (r, v))
        S_t_pairs = u.astype(np.int32), i.astype(np.int32), *double, np.zeros(len(u), np.uint8)
        self.S_t = Pairs(*map(to_device, S_t_pairs))
        self.S_t_sides = _sides(Pattern.of(u, i.astype(np.int32), shape[0]), shape[1])
        self.decay = to_device(base.wd_u), to_device(base.wd_i)
        self.phi = PhiOnDevice(phi, base.alpha, base.activation)
        self.factors, gradients = self.phi.factors, self.phi.gradients
        self.of_1, self.of_2 = (gradients["a"], gradients["b"]), (gradients["a_prime"], gradients["b_prime"])
        self.scores, self.errors, self.curvature, self.pull = (device_array(n) for _ in range(4))
        self.shares, self.values = device_array((4, n), np.float64), device_array(n, np.float64)
        self.ahead, self.gradient, self.D = ((device_array(rows.P.shape), device_array(rows.Q.shape)) for _ in range(3))
        self.eta, self.norms = (tuple(device_array(count, np.float64) for count in shape) for _ in range(2))
        self.errors_t, self.values_t = device_array(len(u)), device_array(len(u), np.float64)
        self.grams, self.turned = ([Gram(count, width, width) for count in shape] for _ in range(2))

    def step(self, number: int) -> float:
        """Epoch `number`, from 1: phi's step, then the rows'; returns the base objective where it started."""
        mf.score(len(self.scores), *self.tables(), self.b0, self.pairs.users, self.pairs.items, self.scores)
        self._row_steps()
        self.phi.step(self._meta_gradient(), weights_move=number > self.weights_from)
        objective = self._row_steps()
        for rows, of, eta in zip((self.P, self.Q), self.gradient, self.eta, strict=True):
            moved(rows.size, rows, of, eta, rows)
        return objective

    def _row_steps(self) -> float:
        """Gradients and step sizes of both sides under the current phi; returns the base objective."""
        scalars = self.phi.scalars
        room = self.curvature, self.pull, self.errors, self.values
        quadratics(len(self.scores), self.pairs, self.factors, scalars, self.scores, *room)
        strength, M_0 = self.alpha * scalars.E_0, scalars.M_0
        weights, rows = (self.factors.A, self.factors.C), (self.P, self.Q)
        self.G = [gram.of(own, w, own) for gram, own, w in zip(self.grams, rows, weights, strict=True)]
        G = [matrix.copy_to_host() for matrix in self.G]
        fixed = ONE_P, ONE_Q
        decay = 0.0
        for side in (0, 1):
            square_norms(len(rows[side]), rows[side], self.norms[side])
        for side in (0, 1):
            other = 1 - side
            own = rows[side], rows[other], self.G[other], weights[side], self.decay[side], 2 * strength
            exact_gradients(rows[side].size, self.sides[side], self.errors, *own, M_0, self.gradient[side])
            norm = 2 * strength * total_norm(G[other], fixed[other])
            bounds = self.curvature, self.norms[other], weights[side], self.decay[side], norm
            step_sizes(len(self.eta[side]), self.sides[side], *bounds, self.eta[side])
            decay += 0.5 * float(self.decay[side].copy_to_host() @ self.norms[side].copy_to_host())
        h_P, h_Q = G[0][ONE_P], G[1][ONE_Q]
        everywhere = float(np.vdot(G[0], G[1])) - 2 * M_0 * float(h_P @ h_Q) + M_0**2 * h_P[ONE_P] * h_Q[ONE_Q]
        return strength * everywhere + float(Totals().of(self.values)[0]) + decay

    def _meta_gradient(self) -> dict[str, np.ndarray]:
        """dJ/dphi: groups per row go to the gradients of `phi`; returns the others."""
        rows, weights, fixed = (self.P, self.Q), (self.factors.A, self.factors.C), (ONE_P, ONE_Q)
        for side in (0, 1):
            moved(rows[side].size, rows[side], self.gradient[side], self.eta[side], self.ahead[side])
        errors_on_S_t(len(self.errors_t), self.S_t, *self.ahead, self.errors_t, self.values_t)
        for side in (0, 1):
            arguments = self.errors_t, self.ahead[1 - side], self.eta[side], self.D[side]
            directions(rows[side].size, self.S_t_sides[side], *arguments)
        s = self.phi.scalars
        pair_shares(len(self.scores), self.pairs, self.factors, s, self.scores, *rows, *self.D, self.shares)
        twice, M_0 = 2 * self.alpha * s.E_0, s.M_0
        K = [gram.of(own, w, D) for gram, own, w, D in zip(self.turned, rows, weights, self.D, strict=True)]
        for side in (0, 1):
            other = 1 - side
            row_shares(len(self.eta[side]), self.sides[side], self.shares, self.of_1[side], self.of_2[side])
            matrices = K[other], self.G[other], fixed[other], M_0, weights[side], twice
            all_pairs_shares(
                len(self.eta[side]), rows[side], self.D[side], *matrices, self.of_2[side], self.norms[side]
            )
        f, h1, h0, AC = (Totals(2).of(self.shares[k], self.pairs.classes) for k in range(4))
        h, k = ([matrix.copy_to_host()[at] for matrix, at in zip(of, fixed, strict=True)] for of in (self.G, K))
        c_prime = np.array([float(Totals().of(self.norms[0])[0]) - h0.sum(), h1.sum()])
        mu = np.array([AC.sum() * s.E_0 - twice * float(h[1] @ k[0] + k[1] @ h[0]), *(-AC * s.E_1)])
        M = self.phi.imputed()
        slopes = 1.0 - M**2 if self.activation == "tanh" else M * (1.0 - M)
        return {"c": f / meta.SCALE, "c_prime": c_prime / meta.SCALE, "mu": mu * slopes}


def _sides(pairs: Pattern, n_items: int) -> tuple[RowPairs, RowPairs]:
    """The pairs by user and by item, on the device."""
    by_item, order = transposed_pairs(pairs, n_items)
    numbers = np.arange(len(pairs.items), dtype=np.int32)
    of_users = to_device(pairs.indptr), to_device(pairs.items), to_device(numbers)
    of_items = to_device(by_item.indptr), to_device(by_item.items), to_device(order.astype(np.int32))
    return RowPairs(*of_users, BIAS_P, ONE_P), RowPairs(*of_items, BIAS_Q, ONE_Q)


# ---- in mini-batches -------------------------------------------------------------------------------------------------


@kernel(STREAM, FLOATS, FLOATS, I8, I8, FACTORS, SCALARS, F8)
def weigh_samples(stream, logged_weights, logged_targets, start, n, factors, scalars, draw_factor):
    """Weights and targets of the n samples from `start`; a draw stands for `draw_factor` / alpha pairs."""
    for j in range(start + cuda.grid(1), start + n, cuda.gridsize(1)):
        u, i, y = stream.users[j], stream.items[j], stream.terms[j]
        AC = factors.A[u] * factors.C[i]
        if y == UNOBSERVED:
            stream.weights[j], stream.targets[j] = draw_factor * AC * scalars.E_0, scalars.M_0
        else:
            c_y, M_y = (scalars.positive, scalars.M_positive) if y else (scalars.negative, scalars.M_negative)
            w1 = logged_weights[j] * factors.user_1[u] * factors.item_1[i] * c_y
            w2 = scalars.alpha * AC * scalars.E_1
            stream.weights[j], stream.targets[j] = merged_sample(w1, np.float64(logged_targets[j]), w2, M_y)


@kernel(TABLE, TABLE, INTS, GROUPS, I8, I8, MATRIX, F4, F4, I8)
def look_ahead_rows(table, ahead, rows, groups, start, n, gradients, eta, lam, rank):
    """theta' = w - eta (gradient + lam w) of the rows of the n samples from `start`; their direction becomes 0."""
    width = table.shape[2]
    for at in range(cuda.grid(1), n * width, cuda.gridsize(1)):
        place, k = at // width, at % width
        if groups.sizes[start + place] > 0:
            row = rows[groups.order[start + place]]
            w = table[row, 0, k]
            g = gradients[place, k] + (lam if k < rank else np.float32(0.0)) * w
            ahead[row, 0, k], ahead[row, 1, k] = w - eta * g, np.float32(0.0)


@kernel(TABLE, TABLE, INTS, GROUPS, I8)
def copy_rows(table, ahead, rows, groups, n):
    """theta' = w for the rows of the first n samples, which the look-ahead does not move unless its batch has them."""
    width = table.shape[2]
    for at in range(cuda.grid(1), n * width, cuda.gridsize(1)):
        place, k = at // width, at % width
        if groups.sizes[place] > 0:
            row = rows[groups.order[place]]
            ahead[row, 0, k] = table[row, 0, k]


@kernel(TABLE, INTS, GROUPS, I8, MATRIX)
def put_directions(ahead, rows, groups, n, gradients):
    """The direction of the rows of the first n samples: their gradient."""
    width = ahead.shape[2]
    for at in range(cuda.grid(1), n * width, cuda.gridsize(1)):
        place, k = at // width, at % width
        if groups.sizes[place] > 0:
            ahead[rows[groups.order[place]], 1, k] = gradients[place, k]


@kernel(MATRIX, MATRIX, FLOATS, FLOATS, F4)
def look_ahead_dense(parameters, ahead, gradient, decay, eta):
    """theta' of the parameters outside the tables."""
    for k in range(cuda.grid(1), len(gradient), cuda.gridsize(1)):
        w = parameters[0, k]
        ahead[0, k] = w - eta * (gradient[k] + decay[k] * w)


@kernel(MATRIX, FLOATS)
def put_direction_dense(ahead, gradient):
    """The direction of the parameters outside the tables."""
    for k in range(cuda.grid(1), len(gradient), cuda.gridsize(1)):
        ahead[1, k] = gradient[k]


@kernel(STREAM, FLOATS, FLOATS, I8, FLOATS, FLOATS, F4, FACTORS, SCALARS, F8, I8, WIDE_MATRIX)
def sample_shares(
    stream, logged_weights, logged_targets, start, scores, turns, times, factors, scalars, draw_factor, loss, shares
):
    """Every sample's share of dJ/dphi by w1, by w2 and by mu, see `_add_meta` there; s' = times x turn."""
    for n in range(cuda.grid(1), len(scores), cuda.gridsize(1)):
        j, s, turn = start + n, scores[n], times * turns[n]
        u, i, y = stream.users[j], stream.items[j], stream.terms[j]
        at_zero = losses.derivative(loss, s, np.float32(0.0))
        slope = losses.derivative(loss, s, np.float32(1.0)) - at_zero
        AC, f = factors.A[u] * factors.C[i] * turn, 0.0
        h, M = draw_factor * AC * scalars.E_0, scalars.M_0
        if y <= POSITIVE:
            c_y, M = (scalars.positive, scalars.M_positive) if y else (scalars.negative, scalars.M_negative)
            h = scalars.alpha * AC * scalars.E_1
            w1 = logged_weights[j] * factors.user_1[u] * factors.item_1[i] * c_y
            f = w1 * (at_zero + slope * np.float64(logged_targets[j])) * turn
        shares[0, n], shares[1, n], shares[2, n] = f, h * (at_zero + slope * M), h * slope


@kernel(DOUBLES, DOUBLES)
def clear(of_1, of_2):
    """Zeros."""
    for k in range(cuda.grid(1), len(of_1), cuda.gridsize(1)):
        of_1[k] = of_2[k] = 0.0


@kernel(INTS, GROUPS, I8, I8, WIDE_MATRIX, DOUBLES, DOUBLES)
def sum_shares(rows, groups, start, n, shares, of_1, of_2):
    """Each row's sums of the shares of w1 and w2 over its samples, in ascending order."""
    for place in range(cuda.grid(1), n, cuda.gridsize(1)):
        size = groups.sizes[start + place]
        if size > 0:
            f, h = 0.0, 0.0
            for position in range(start + place, start + place + size):
                f += shares[0, groups.order[position] - start]
                h += shares[1, groups.order[position] - start]
            row = rows[groups.order[start + place]]
            of_1[row], of_2[row] = f, h


class CudaSampledSolver:
    """Trains theta and phi on the device; `trainers` are the model and its look-ahead."""

    def __init__(self, problem: SampledProblem, trainers: tuple[Batches, Batches], phi: PhiOnDevice):
        self.problem, self.phi = problem, phi
        self.trainer, self.ahead = trainers
        self.n, batch_size = len(problem.observed.users), problem.stage.batch_size
        self.source = stream_to_device(with_draws(problem.observed))
        self.shuffled = stream_to_device(empty_stream(2 * self.n))
        self.logged = device_array(2 * self.n), device_array(2 * self.n)  # weights and targets before they change
        self.draws, self.shuffle = streams.DeviceDraws(problem.pairs, self.n), streams.CudaShuffle(2 * self.n)
        self.draw_factor = problem.alpha * problem.pairs.size / self.n
        self.shares, self.wide = device_array((3, batch_size), np.float64), device_array(2 * self.n, np.float64)
        self.scores, self.turns = device_array(batch_size), device_array(batch_size)
        self.by_class = Totals(3)
        self.score_pairs, self.score_rows = self.trainer.score_pairs, self.trainer.score_rows
        self.weights, self.finite = self.trainer.weights, self.trainer.finite

    def epoch(self, epoch: int) -> dict[str, float]:
        """Train; returns the mean loss of S_c and of the draws."""
        problem, stage, samples, n = self.problem, self.problem.stage, self.shuffled, 2 * self.n
        draws = stream_part(self.source, self.n, n)
        self.draws.draw(key(stage.seed, "refine", "d", epoch), draws.users, draws.items)
        self.shuffle(key(stage.seed, "refine", "shuffle", epoch), self.source, samples)
        for column, own in zip((samples.weights, samples.targets), self.logged, strict=True):
            ncf.copy(n, column, 0, own, 0, n)
        here, chunk = self.trainer.begin(samples), stage.batch_size * problem.meta_every
        for start in range(0, n, stage.batch_size):
            size = min(stage.batch_size, n - start)
            if start % chunk == 0:
                self._weigh(start, size)
                self._learn_phi(here, start, size, weights_move=epoch > problem.weights_from)
                self._weigh(start, min(chunk, n - start))
            self.trainer.add_gradients(here, start, size, problem.loss)
            self.trainer.take_step(here, start, size, stage.lr, stage.lam)
        streams.widen(n, samples.weights, self.wide)
        totals, weights = (self.by_class.of(of, samples.terms) for of in (here.values, self.wide))
        return mean_losses(totals, weights, problem.alpha)

    def _weigh(self, start: int, n: int) -> None:
        phi = self.phi.factors, self.phi.scalars, self.draw_factor
        weigh_samples(n, self.shuffled, *self.logged, start, n, *phi)

    def _learn_phi(self, here: Epoch, start: int, n: int, weights_move: bool) -> None:
        """One step of phi by the look-ahead from the batch at `start`."""
        trainer, ahead, stream, loss = self.trainer, self.ahead, here.stream, self.problem.loss
        self._step_ahead(here, start, n)
        scores, turns, shares = self.scores[:n], self.turns[:n], self.shares
        trainer.tangents(ahead, stream, start, scores, turns)
        times = np.float32(-LOOK_AHEAD / n)
        phi = self.phi.factors, self.phi.scalars, self.draw_factor
        sample_shares(n, stream, *self.logged, start, scores, turns, times, *phi, loss.code, shares)
        for side, names in (("users", ("a", "a_prime")), ("items", ("b", "b_prime"))):
            sums = [self.phi.gradients[name] for name in names]
            clear(len(sums[0]), *sums)
            sum_shares(n, getattr(stream, side), getattr(here, side), start, n, shares, *sums)
        classes = stream.terms[start : start + n]
        f, h, slopes = (self.by_class.of(shares[k][:n], classes) for k in range(3))
        c_prime, M = np.array([h[UNOBSERVED], h[:UNOBSERVED].sum()]), self.phi.imputed()
        mu = slopes[[UNOBSERVED, NEGATIVE, POSITIVE]] * M * (1.0 - M)
        small = {"c": f[:UNOBSERVED] / SCALE, "c_prime": c_prime / SCALE, "mu": mu}
        self.phi.step(small, weights_move, self.problem.rates)

    def _step_ahead(self, here: Epoch, start: int, n: int) -> None:
        """Compute theta' from the batch at `start`, and the gradient of J there, on the next batch of S_t."""
        trainer, ahead, stage, loss = self.trainer, self.ahead, self.problem.stage, self.problem.loss
        S_t = self.problem.S_t.next()
        there, n_t, eta = ahead.begin(S_t), len(S_t.users), np.float32(LOOK_AHEAD)
        trainer.add_gradients(here, start, n, loss)
        for side, table in trainer.tables.items():
            pair, width, gradients = (table, ahead.tables[side]), table.shape[2], trainer.gradients[side]
            copy_rows(n_t * width, *pair, getattr(S_t, side), getattr(there, side), n_t)
            of_c = getattr(here.stream, side), getattr(here, side), start, n
            look_ahead_rows(n * width, *pair, *of_c, gradients, eta, np.float32(stage.lam), trainer.rank)
        others, ahead_others = trainer.other_parameters(), ahead.other_parameters()
        gradient, decay = trainer.other_gradient(here, start, n, stage.lam)
        look_ahead_dense(len(gradient), others, ahead_others, gradient, decay, eta)
        ahead.add_gradients(there, 0, n_t, loss)
        for side, table in ahead.tables.items():
            of_t = getattr(S_t, side), getattr(there, side), n_t
            put_directions(n_t * table.shape[2], table, *of_t, ahead.gradients[side])
        put_direction_dense(len(gradient), ahead_others, ahead.other_gradient(there, 0, n_t, 0.0)[0])
