"""Item-item ridge regression on the objective of dub-x: the numerical core of dub-i.

A user's score for an item is a weighted sum of her own items, plus a constant of her own:

    x_uj = s_u (1/2 + y_uj / 2) for her items j in S_c,  s_u = (max(n_u, 1) / mean n)^-1/2,  and a feature that is 1
    S_ui = c_u + sum_f x_uf B_if,    B_ii = 0

B and c minimise the objective of `all_pairs` with a ridge instead of factors:

    sum_obs w (S - y)^2  +  sum over S_u of a_u C_i (S - t)^2  +  sum pen_if B_if^2  +  sum c_u^2,    a_u = gamma A_u

    k_ui = w - a_u C_i on observed pairs,    D_if = C_i sum_u a_u x_uf^2 + sum over u observing i of k_ui x_uf^2
    pen_if = lam + D_if, and .1 for the constant feature

D is what dropping inputs at random would add in expectation. lam removes noise: it is 1.8 (sqrt W_u + sqrt W_i), see
`terms.noise_scale`. The normalisation s_u keeps busy users from outweighing all others.

The minimum is found by conjugate gradients from zero, preconditioned by the diagonal. With K = X' diag(a) X, computed
once, the operator needs no sum over all pairs:

    o_ui = k_ui (c_u + x_u . B_i) on observed pairs
    G_i = C_i (B_i K + X'(a c)) + sum over u observing i of o_ui x_u + pen_i B_i,    G_ii = 0
    g_u = a_u (x_u . sum_i C_i B_i + c_u sum_i C_i) + sum_i o_ui + c_u

A step costs O(I^3 + sum n_u^2) for I items. There are six arrays of I x (I + 1) numbers and no array of users x items.
Rows of B are computed in blocks of a fixed size, each by one thread. So the result does not depend on the number of
threads. Sums over users are accumulated in float64; B itself is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _memory
from dubnb._check import InputError
from dubnb._jit import njit, one_blas_thread
from dubnb.backbones.mf import Extended, checked
from dubnb.background import SERIAL, WorkPool
from dubnb.data.pattern import Pattern, row_pointers
from dubnb.objective.all_pairs import transposed_pairs

if TYPE_CHECKING:
    from dubnb.objective.all_pairs import ExactProblem

PENALTY = 1.8  # lam in units of `terms.noise_scale`
CONSTANT_PENALTY = 0.1  # ridge on the constant feature's coefficients
STEPS = 12  # steps of conjugate gradients
BLOCK = 256  # items whose coefficients one call of BLAS multiplies
ARRAYS = 6  # arrays of I x (I + 1) float32 numbers: K, D, B, the residual, the direction and its image
MOST_ITEMS = 12_000  # six arrays then take 3.5 GB, and a step 3.5e12 operations: about a minute on one core


class Inputs(NamedTuple):
    """x: the features of some users, without the constant one, as CSR rows."""

    indptr: np.ndarray  # int64
    items: np.ndarray  # int32
    values: np.ndarray  # float32


def input_rows(users: np.ndarray, items: np.ndarray, y: np.ndarray, n_users: int, mean_pairs: float) -> Inputs:
    """x of users from their pairs in CSR order with targets y in [0, 1].

    mean_pairs: the mean number of pairs per user in the log that the model is trained on.
    """
    indptr = row_pointers(users, n_users)
    scale = np.sqrt(mean_pairs / np.maximum(np.diff(indptr), 1))
    values = scale[users] * (0.5 + 0.5 * np.asarray(y, np.float64))
    return Inputs(indptr, np.ascontiguousarray(items, np.int32), values.astype(np.float32))


def check_size(n_items: int, method: str = "dub-i") -> None:
    """Raise InputError for more items than the solver is meant for, or than fit into memory."""
    if n_items > MOST_ITEMS:
        raise InputError(
            f"{n_items:,} items: {method} has a coefficient for every two items and takes at most {MOST_ITEMS:,}; use "
            "dub-x, or leave rare items out"
        )
    needed = 4 * ARRAYS * n_items * (n_items + 1)
    _memory.require(f"{method} with {n_items:,} items", needed, "use dub-x, or leave rare items out")


class NewUserRule(NamedTuple):
    """What the constant of a user outside the log depends on, apart from the user's own history."""

    item_weights: np.ndarray  # float32, gamma C_i
    item_targets: np.ndarray  # float32, t_i
    power: float  # p of the users
    mean_activity: float  # mean of (n_u + 1)^p over the users of the log
    mean_pairs: float  # mean of n_u


@dataclass(frozen=True)
class ItemItem:
    """A solved model: coefficients of items for items, and the rows and constants of the users that it scores."""

    coefficients: np.ndarray  # (I + 1, I) float32: [f, i] is B_if, what having item f adds to item i; last the constant
    inputs: Inputs
    constants: np.ndarray  # float32, c_u
    rule: NewUserRule | None = None

    @property
    def users(self) -> np.ndarray:
        """A number for each user."""
        return self.constants

    @property
    def items(self) -> np.ndarray:
        """A row for each item: the coefficients with which other items and the constant add to its score."""
        return self.coefficients.T

    def extended(self) -> Extended:
        """Raise InputError: the score has no vector of a user."""
        raise InputError(
            "a score of coefficients between items is not an inner product of two short vectors: use dub-x, or "
            "dub-xi with blend=0"
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays, for saving."""
        if self.rule is None:
            raise ValueError("a model without a rule for new users is not complete")
        weights, targets, *numbers = self.rule
        named = {"coefficients": self.coefficients, "constants": self.constants}
        named |= {f"inputs.{name}": array for name, array in zip(Inputs._fields, self.inputs, strict=True)}
        return named | {"rule.weights": weights, "rule.targets": targets, "rule.numbers": np.array(numbers)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> ItemItem:
        """A model from what `arrays` returns; raises InputError if the arrays do not fit together."""
        n_users, n_items = len(arrays["constants"]), arrays["coefficients"].shape[1]
        n_pairs = len(arrays["inputs.items"])
        shapes = {"coefficients": (n_items + 1, n_items), "constants": (n_users,), "inputs.values": (n_pairs,)}
        shapes |= {"inputs.indptr": (n_users + 1,), "inputs.items": (n_pairs,), "rule.numbers": (3,)}
        shapes |= {"rule.weights": (n_items,), "rule.targets": (n_items,)}
        checked(arrays, shapes, {"inputs.indptr": np.int64, "inputs.items": np.int32, "rule.numbers": np.float64})
        indptr, items = arrays["inputs.indptr"], arrays["inputs.items"]
        fits = indptr[0] == 0 and indptr[-1] == n_pairs and (np.diff(indptr) >= 0).all()
        if not fits or (n_pairs and not 0 <= items.min() <= items.max() < n_items):
            raise InputError("the users' items are inconsistent in the model file: the file was altered; fit again")
        rule = NewUserRule(arrays["rule.weights"], arrays["rule.targets"], *arrays["rule.numbers"].tolist())
        inputs = Inputs(indptr, items, arrays["inputs.values"])
        return cls(arrays["coefficients"], inputs, arrays["constants"], rule)

    def with_offsets(self, users: np.ndarray, items: np.ndarray) -> ItemItem:
        """The same model with numbers added to users' constants and to the constant feature's coefficients."""
        coefficients = self.coefficients.copy()
        coefficients[-1] += items.astype(np.float32)
        return replace(self, coefficients=coefficients, constants=self.constants + users.astype(np.float32))

    def average_user(self, cold: np.ndarray) -> ItemItem:
        """The same coefficients with one user, who has no item and the mean constant of those that are not cold."""
        mean = self.constants.mean(dtype=np.float64, where=~cold) if not cold.all() else 0.0
        nothing = Inputs(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
        return replace(self, inputs=nothing, constants=np.array([mean], np.float32))

    def new_user(self, items: np.ndarray, y: np.ndarray, observed: tuple[np.ndarray, np.ndarray]) -> ItemItem:
        """The same coefficients with one user, from a history.

        items, y: item rows and what they are as inputs, in [0, 1]. observed: the (targets, weights) of these pairs in
        the objective; a weight of nan means that the pair counts as one of S_u.
        """
        if self.rule is None:
            raise ValueError("a model without a rule for new users is not complete")
        order = np.argsort(items)
        items, y = items[order], np.asarray(y, np.float64)[order]
        targets, weights = (np.asarray(column, np.float64)[order] for column in observed)
        inputs = input_rows(np.zeros(len(items), np.int32), items, y, 1, self.rule.mean_pairs)
        alone = replace(self, inputs=inputs, constants=np.zeros(1, np.float32))
        activity = (len(items) + 1.0) ** self.rule.power / self.rule.mean_activity
        w, t = activity * self.rule.item_weights.astype(np.float64), self.rule.item_targets.astype(np.float64)
        unseen = np.isnan(weights)
        w[items], t[items] = np.where(unseen, w[items], weights), np.where(unseen, t[items], targets)
        constant = w @ (t - alone.score_rows(np.array([0]))[0]) / (1 + w.sum())
        return replace(alone, constants=np.array([constant], np.float32))

    def contributions(self, user: int, item: int) -> tuple[np.ndarray, np.ndarray]:
        """(a user's items, what each adds to the score of `item`)."""
        own = slice(self.inputs.indptr[user], self.inputs.indptr[user + 1])
        items = self.inputs.items[own]
        return items, self.inputs.values[own] * self.coefficients[items, item]

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Raw scores of the pairs (users[j], items[j])."""
        out = np.empty(len(users), np.float32) if out is None else out
        _predict_pairs(self.coefficients, self.inputs, self.constants, np.asarray(users), np.asarray(items), out)
        return out

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users`, one row each."""
        out = np.empty((len(users), self.coefficients.shape[1]), np.float32)
        _predict_rows(self.coefficients, self.inputs, self.constants, np.asarray(users), out)
        return out

    def finite(self) -> bool:
        """Whether every number is finite."""
        return bool(np.isfinite(self.coefficients).all() and np.isfinite(self.constants).all())


def solve_item_item(
    problem: ExactProblem, inputs: Inputs, lam: float, steps: int = STEPS, pool: WorkPool = SERIAL
) -> ItemItem:
    """The coefficients after `steps` steps of conjugate gradients, and each user's best constant given them.

    problem: the objective; its decays are not read. inputs: x of every user of the problem.
    """
    check_size(len(problem.C))
    with one_blas_thread():
        coefficients = np.ascontiguousarray(LinearSystem(problem, inputs, lam, pool).solve(steps).T)
        return ItemItem(coefficients, inputs, user_constants(problem, inputs, coefficients))


def user_constants(problem: ExactProblem, inputs: Inputs, coefficients: np.ndarray) -> np.ndarray:
    """c_u of each user of a problem given B, also of users that B was not trained on.

    c_u = [a_u (sum_i C_i t_ui - x_u . sum_i C_i B_i) + sum_obs (r_ui - k_ui x_u . B_i)] / (1 + a_u sum C + sum_obs k),
    r = w y - a_u C_i t_ui.
    """
    m, a = coefficients.astype(np.float64) @ problem.C, problem.strength * problem.A
    c, curvature = a * _target_sums(problem), 1 + a * problem.C.sum()
    _add_to_constants(problem.pairs, problem.curvature, problem.pull, inputs, coefficients, m, a, c, curvature)
    return (c / curvature).astype(np.float32)


class Incidence(NamedTuple):
    """The observed pairs sorted by item, and every user's x: what kernels over items read."""

    indptr: np.ndarray  # where each item's pairs begin
    users: np.ndarray  # the user of each pair
    order: np.ndarray  # the position of each pair in the users' order
    x: Inputs


class LinearSystem:
    """The linear equations of B and c. A vector is (B, c): an I x (I + 1) float32 array and a float64 array."""

    def __init__(self, problem: ExactProblem, inputs: Inputs, lam: float, pool: WorkPool = SERIAL):
        self.problem, self.inputs, self.lam, self.pool = problem, inputs, float(lam), pool
        self.n_items, self.a, self.C = len(problem.C), problem.strength * problem.A, problem.C
        by_item, order = transposed_pairs(problem.pairs, self.n_items)
        self.observed = Incidence(*by_item, order, inputs)
        self.o = np.empty(len(problem.curvature))
        self.K = np.empty((self.n_items + 1, self.n_items + 1), np.float32)
        by_item, order = transposed_pairs(Pattern(inputs.indptr, inputs.items), self.n_items)
        own = Incidence(*by_item, order, inputs)
        self._each_block(_gram_rows, own, self.a, self.K)
        self.K[-1] = self._x_transposed(self.a)
        self.D = self._empty()
        self.D[:] = self.C[:, None] * self._x_transposed(self.a, squared=True)
        self._add_observed(problem.curvature, self.D, squared=True)
        np.maximum(self.D, 0, out=self.D)  # only rounding can make it negative
        self.preconditioner = 1 + self.a * self.C.sum() + _user_sums(problem, problem.curvature)

    def right_side(self) -> tuple[np.ndarray, np.ndarray]:
        """The right-hand side: G_i = C_i sum_u a_u t_ui x_u + sum r_ui x_u, g_u = a_u sum_i C_i t_ui + sum_i r_ui."""
        problem, R = self.problem, self._empty()
        teacher = np.stack([self._x_transposed(self.a * column) for column in problem.teacher_P.T.astype(np.float64)])
        R[:] = (self.C[:, None] * problem.teacher_Q) @ teacher
        self._add_observed(problem.pull, R, squared=False)
        np.fill_diagonal(R, 0)
        return R, self.a * _target_sums(problem) + _user_sums(problem, problem.pull)

    def multiply(self, B: np.ndarray, c: np.ndarray, G: np.ndarray) -> np.ndarray:
        """Apply the operator: G is written, g is returned."""
        h = self._x_transposed(self.a * c).astype(np.float32)
        C, k, m = self.C.astype(np.float32), self.problem.curvature, np.zeros(self.n_items + 1)

        def rows(first: int, stop: int, row: np.ndarray) -> np.ndarray:
            part = slice(first, stop)
            np.matmul(B[part], self.K, out=G[part])
            G[part] += h
            G[part] *= C[part, None]
            _multiply_rows(first, stop, row, self.observed, k, B, c, self.D, self.lam, G, self.o)
            weighted: np.ndarray = self.C[part] @ B[part].astype(np.float64)
            return weighted

        for weighted in self._each_block(rows):
            m += weighted
        g = c * (1 + self.a * self.C.sum()) + _user_sums(self.problem, self.o)
        _add_products(self.inputs, m, self.a, g)
        return g

    def solve(self, steps: int) -> np.ndarray:
        """B after some steps of conjugate gradients from zero."""
        R, r = self.right_side()
        B, P, image = np.zeros_like(R), self._empty(), self._empty()
        p, M = np.zeros_like(r), self.preconditioner
        size = sum(self._each_block(_residual_size, R, self.D, self.lam)) + float(r @ (r / M))
        shrink = 0.0
        for _ in range(steps):
            if not size > 0:  # the right-hand side is zero, or the solution is exact
                break
            self._each_block(_redirect, R, self.D, self.lam, shrink, P)
            p = r / M + shrink * p
            g = self.multiply(P, p, image)
            length = size / (sum(self._each_block(_inner, P, image)) + float(p @ g))
            sizes = self._each_block(_advance, length, P, image, self.D, self.lam, B, R)
            r -= length * g
            size, before = sum(sizes) + float(r @ (r / M)), size
            shrink = size / before
        return B

    def _empty(self) -> np.ndarray:
        return np.empty((self.n_items, self.n_items + 1), np.float32)

    def _each_block(self, job: Callable[..., Any], *arguments: Any) -> list[Any]:
        """job(first, stop, scratch row, *arguments) for every block of items; the results in their order."""
        blocks = range(0, self.n_items, BLOCK)

        def run(number: int) -> Any:
            first = blocks[number]
            return job(first, min(first + BLOCK, self.n_items), np.empty(self.n_items + 1), *arguments)

        return self.pool.each(run, len(blocks))

    def _x_transposed(self, v: np.ndarray, squared: bool = False) -> np.ndarray:
        """X' v in float64; squared: with x^2 instead of x."""
        out = np.zeros(self.n_items + 1)
        _add_inputs(self.inputs, v, squared, out)
        return out

    def _add_observed(self, values: np.ndarray, out: np.ndarray, squared: bool) -> None:
        """Add sum over u observing i of values_ui x_u, or x_u^2, to each row i of `out`."""
        self._each_block(_add_observed_rows, self.observed, values, squared, out)


def _user_sums(problem: ExactProblem, values: np.ndarray) -> np.ndarray:
    """The sum of some values over each user's observed pairs."""
    return np.bincount(problem.pairs.users(), values, len(problem.A))


def _target_sums(problem: ExactProblem) -> np.ndarray:
    """sum_i C_i t_ui of each user."""
    sums: np.ndarray = problem.teacher_P.astype(np.float64) @ (problem.C @ problem.teacher_Q.astype(np.float64))
    return sums


# Kernels. Feature number I, the last, is the constant. `row` is scratch space of I + 1 numbers.


@njit
def _gram_rows(first, stop, row, own, a, K):
    """K_f = sum_u a_u x_uf x_u of the items f in a block; `own` are the pairs of the inputs."""
    x = own.x
    last = len(row) - 1
    for f in range(first, stop):
        row[:] = 0.0
        for n in range(own.indptr[f], own.indptr[f + 1]):
            u = own.users[n]
            v = a[u] * x.values[own.order[n]]
            for e in range(x.indptr[u], x.indptr[u + 1]):
                row[x.items[e]] += v * x.values[e]
            row[last] += v
        for j in range(last + 1):
            K[f, j] = row[j]


@njit
def _add_inputs(x, v, squared, out):
    """Add sum_u v_u x_u, or x_u^2, to `out`."""
    last = len(out) - 1
    for u in range(len(v)):
        for e in range(x.indptr[u], x.indptr[u + 1]):
            value = np.float64(x.values[e])
            out[x.items[e]] += v[u] * (value * value if squared else value)
        out[last] += v[u]


@njit
def _add_products(x, m, a, out):
    """Add a_u x_u . m to each out_u."""
    last = len(m) - 1
    for u in range(len(out)):
        total = m[last]
        for e in range(x.indptr[u], x.indptr[u + 1]):
            total += x.values[e] * m[x.items[e]]
        out[u] += a[u] * total


@njit
def _add_observed_rows(first, stop, row, observed, values, squared, out):
    """Add sum over u observing i of values_ui x_u, or x_u^2, to the rows i in a block."""
    x = observed.x
    last = len(row) - 1
    for i in range(first, stop):
        for f in range(last + 1):
            row[f] = out[i, f]
        for n in range(observed.indptr[i], observed.indptr[i + 1]):
            u = observed.users[n]
            v = np.float64(values[observed.order[n]])
            for e in range(x.indptr[u], x.indptr[u + 1]):
                value = np.float64(x.values[e])
                row[x.items[e]] += v * (value * value if squared else value)
            row[last] += v
        for f in range(last + 1):
            out[i, f] = row[f]


@njit
def _multiply_rows(first, stop, row, observed, k, B, c, D, lam, G, o):
    """Add the observed pairs and the penalty to the rows G_i in a block, and write o_ui of their pairs."""
    x = observed.x
    last = len(row) - 1
    for i in range(first, stop):
        row[:] = 0.0
        for n in range(observed.indptr[i], observed.indptr[i + 1]):
            u = observed.users[n]
            s = c[u] + B[i, last]
            for e in range(x.indptr[u], x.indptr[u + 1]):
                s += x.values[e] * B[i, x.items[e]]
            s *= k[observed.order[n]]
            o[observed.order[n]] = s
            for e in range(x.indptr[u], x.indptr[u + 1]):
                row[x.items[e]] += s * x.values[e]
            row[last] += s
        for f in range(last):
            G[i, f] += row[f] + (lam + D[i, f]) * B[i, f]
        G[i, last] += row[last] + CONSTANT_PENALTY * B[i, last]
        G[i, i] = 0.0


@njit(inline=True)
def _curvature(D, lam, i, f, last):
    """The preconditioner: the operator's diagonal, D + pen."""
    return 2.0 * D[i, f] + lam if f < last else D[i, f] + CONSTANT_PENALTY


@njit
def _residual_size(first, stop, row, R, D, lam):
    """sum R^2 / preconditioner over the rows in a block."""
    last = R.shape[1] - 1
    total = 0.0
    for i in range(first, stop):
        for f in range(last + 1):
            r = np.float64(R[i, f])
            total += r * r / _curvature(D, lam, i, f, last)
    return total


@njit
def _redirect(first, stop, row, R, D, lam, shrink, P):
    """P = R / preconditioner + shrink P; with shrink 0, P is not read."""
    last = R.shape[1] - 1
    for i in range(first, stop):
        for f in range(last + 1):
            before = shrink * P[i, f] if shrink > 0 else 0.0
            P[i, f] = R[i, f] / _curvature(D, lam, i, f, last) + before


@njit
def _inner(first, stop, row, P, image):
    """sum P image over the rows in a block."""
    total = 0.0
    for i in range(first, stop):
        for f in range(P.shape[1]):
            total += np.float64(P[i, f]) * image[i, f]
    return total


@njit
def _advance(first, stop, row, length, P, image, D, lam, B, R):
    """B += length P and R -= length image; returns the size of the new residual."""
    last = R.shape[1] - 1
    total = 0.0
    for i in range(first, stop):
        for f in range(last + 1):
            B[i, f] += length * P[i, f]
            r = R[i, f] - length * image[i, f]
            R[i, f] = r
            total += r * r / _curvature(D, lam, i, f, last)
    return total


@njit
def _add_to_constants(pairs, k, pull, x, coefficients, m, a, c, curvature):
    """Turn c_u = a_u sum C t into the numerator of a user's constant, and add sum k to its denominator."""
    last = len(m) - 1
    for u in range(len(c)):
        total = m[last]
        for e in range(x.indptr[u], x.indptr[u + 1]):
            total += x.values[e] * m[x.items[e]]
        c[u] -= a[u] * total
        for n in range(pairs.indptr[u], pairs.indptr[u + 1]):
            i = pairs.items[n]
            s = np.float64(coefficients[last, i])
            for e in range(x.indptr[u], x.indptr[u + 1]):
                s += x.values[e] * coefficients[x.items[e], i]
            c[u] += pull[n] - k[n] * s
            curvature[u] += k[n]


@njit
def _predict_pairs(coefficients, x, constants, users, items, out):
    """out_n = c_u + x_u . B_i."""
    last = len(coefficients) - 1
    for n in range(len(out)):
        u, i = users[n], items[n]
        s = np.float64(constants[u]) + coefficients[last, i]
        for e in range(x.indptr[u], x.indptr[u + 1]):
            s += x.values[e] * coefficients[x.items[e], i]
        out[n] = s


@njit
def _predict_rows(coefficients, x, constants, users, out):
    """out_n = c_u + B x_u for all items."""
    last = len(coefficients) - 1
    for n in range(len(out)):
        u = users[n]
        for i in range(out.shape[1]):
            out[n, i] = constants[u] + coefficients[last, i]
        for e in range(x.indptr[u], x.indptr[u + 1]):
            f, value = x.items[e], x.values[e]
            for i in range(out.shape[1]):
                out[n, i] += value * coefficients[f, i]
