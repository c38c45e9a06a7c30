"""Row solves of an exact problem in parts: ranges of users on several machines, or on disk, one part at a time.

A part holds the observed pairs of a range of users. Half a sweep solves the users' rows where they are, given the
items' rows Q, which every part gets. The other half solves all items at once, by the conjugate gradients of `als` in
which every item has its own step length. An item's pairs are in all parts, so each step adds up one array of the shape
of Q over the parts. Nothing else of that size is sent: Gram matrices are (rank + 2)^2 numbers.

A part's rows P are a function of what was last sent to it (`UsersAt`). So a part that is lost with its machine is
placed again and computes the same rows. All sums run over the parts in a fixed order. The result therefore depends on
the parts, and not on the number of machines or on interruptions.

Cost of a step of the items: O(pairs rank). Memory of a part: 28 bytes a pair and 4 (rank + 2) bytes a user.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from dubnb._jit import njit
from dubnb.backbones import MF
from dubnb.backbones.mf import BIAS_P, BIAS_Q, ONE_P, ONE_Q, Extended, StoredMF, aligned_array
from dubnb.background import SERIAL, WorkPool
from dubnb.data.pattern import Pattern
from dubnb.objective import all_pairs, als
from dubnb.objective.all_pairs import NO_BIASES, ExactProblem
from dubnb.objective.als import FLUSH, LANES


class ProblemPart(NamedTuple):
    """A range of users and their observed pairs."""

    indptr: np.ndarray
    items: np.ndarray
    curvature: np.ndarray
    pull: np.ndarray
    A: np.ndarray  # of each user
    decay: np.ndarray  # wd_u of each user
    teacher: np.ndarray  # P' of each user
    strength: np.ndarray  # of term d, shape ()

    @property
    def n_users(self) -> int:
        """The number of its users."""
        return len(self.A)


class ItemOrder(NamedTuple):
    """The pairs of a part in the order of the items."""

    indptr: np.ndarray
    users: np.ndarray  # counted from the first user of the part
    curvature: np.ndarray
    pull: np.ndarray

    @classmethod
    def of(cls, part: ProblemPart, n_items: int) -> ItemOrder:
        """The pairs of a part, sorted."""
        pairs, order = all_pairs.transposed_pairs(Pattern.from_csr(part.indptr, part.items), n_items)
        return cls(*pairs, part.curvature[order], part.pull[order])


def user_bounds(indptr: np.ndarray, count: int) -> list[int]:
    """The first user of each of `count` ranges with about equally many pairs each, and the number of users.

    There is at least one user in each, so at most as many ranges as users.
    """
    n_users = len(indptr) - 1
    count = min(count, n_users)
    numbers = np.arange(1, count)
    cuts = np.searchsorted(indptr[1:], indptr[-1] * numbers / count) + 1
    cuts = np.maximum.accumulate(np.maximum(cuts - numbers, 0)) + numbers  # at least one user each
    cuts = np.minimum(cuts, n_users - count + numbers)
    return [0, *cuts.tolist(), n_users]


def parts_of(problem: ExactProblem, count: int) -> list[ProblemPart]:
    """Cut a problem into `count` ranges of users, see `user_bounds`; the pairs are not copied."""
    indptr, items = problem.pairs
    parts = []
    for first, last in itertools.pairwise(user_bounds(indptr, count)):
        low, high = indptr[first], indptr[last]
        pairs = indptr[first : last + 1] - low, items[low:high], problem.curvature[low:high], problem.pull[low:high]
        users = problem.A[first:last], problem.wd_u[first:last], problem.teacher_P[first:last]
        parts.append(ProblemPart(*pairs, *users, np.array(problem.strength)))
    return parts


# What is sent to the parts, and what each does with it


class UsersAt(NamedTuple):
    """What determines all users' rows: the items' rows they are solved for, and their rotation afterwards."""

    version: int
    Q: np.ndarray  # float32, its Gram matrix is diagonal in the factors
    G: np.ndarray
    H: np.ndarray
    bias_ridge: float
    turn: np.ndarray | None = None
    tolerance: float | None = None  # of the users' row solves
    before: tuple[np.ndarray, np.ndarray] | None = None  # Q before its rotation, and the rotation


class PartState:
    """A part, its rows P and its pairs by item, which are computed when they are first needed."""

    def __init__(self, part: ProblemPart, pool: WorkPool = SERIAL):
        self.part, self.pool = part, pool
        self.at = 0, False  # version of the rows, and whether they are rotated
        self.rows: np.ndarray | None = None
        self.order: ItemOrder | None = None

    def P(self, sent: UsersAt) -> np.ndarray:
        """The users' rows at what was sent."""
        if self.rows is None:
            self.rows = np.zeros((self.part.n_users, sent.Q.shape[1]), sent.Q.dtype)
        if self.at[0] != sent.version or (self.at[1] and sent.turn is None):
            self.rows[:, ONE_P] = 1
            how = sent.bias_ridge, self.pool, sent.tolerance
            als.solve_given_grams(self._unknowns(), self.rows, sent.Q, sent.G, sent.H, *how)
            self.at = sent.version, False
        if sent.turn is not None and not self.at[1]:
            als.turn_rows(self.rows, sent.turn)
            self.at = sent.version, True
        return self.rows

    def by_item(self, n_items: int) -> ItemOrder:
        """The part's pairs in the order of the items."""
        if self.order is None:
            self.order = ItemOrder.of(self.part, n_items)
        return self.order

    def _unknowns(self) -> als.Unknowns:
        part = self.part
        a = float(part.strength) * part.A
        return als.Unknowns(
            part.indptr, part.items, part.curvature, part.pull, a, part.decay / 2, part.teacher, ONE_Q, ONE_P
        )


def grams_of_users(state: PartState, sent: UsersAt) -> tuple[np.ndarray, np.ndarray]:
    """(sum A_u P_u P_u^T, sum A_u P_u P'_u^T) of the part."""
    P = state.P(sent)
    return all_pairs.gram(P, state.part.A), all_pairs.gram(P, state.part.A, state.part.teacher)


def start_of_items(state: PartState, sent: UsersAt) -> np.ndarray:
    """(2, items, width): sum (c - k b_u) z and sum k z^2 over the part's pairs of each item, z = P_u."""
    P, order = state.P(sent), state.by_item(len(sent.Q))
    out = np.zeros((2, *sent.Q.shape))

    def start_lane(lane: int) -> None:
        scratch = np.zeros((2, P.shape[1]), P.dtype)
        _start_items(lane, order, P, scratch, out)

    state.pool.each(start_lane, LANES)
    return out


def product_of_items(state: PartState, sent: UsersAt, directions: np.ndarray) -> np.ndarray:
    """(items, width): sum k (z . direction) z over the part's pairs of each item; zero directions are passed over."""
    P, order = state.P(sent), state.by_item(len(sent.Q))
    out = np.zeros(directions.shape)

    def multiply_lane(lane: int) -> None:
        scratch = np.zeros(P.shape[1], P.dtype)
        _multiply_items(lane, order, P, directions, scratch, out)

    state.pool.each(multiply_lane, LANES)
    return out


def loss_of_users(state: PartState, sent: UsersAt, Q: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """(observed part of the loss, decay and bias ridge; exact Gram matrices G_P and H_P) of the part."""
    P, part = state.P(sent), state.part
    pairs = Pattern.from_csr(part.indptr, part.items)
    total = all_pairs.observed_loss(pairs, part.curvature, part.pull, P, Q)
    b_u = P[:, BIAS_P].astype(np.float64)
    total += 0.5 * float(part.decay @ all_pairs.squares(P)) + sent.bias_ridge * float(b_u @ b_u)
    return total, all_pairs.gram(P, part.A, exact=True), all_pairs.gram(P, part.A, part.teacher, exact=True)


def rows_of_users(state: PartState, sent: UsersAt, users: np.ndarray | None) -> np.ndarray:
    """The rows P of some users, counted from the part's first; None: of all."""
    P = state.P(sent)
    return P.copy() if users is None else P[users]


class PartedRows(Protocol):
    """All parts of a problem, wherever they are. Tasks are functions of this module: task(state, sent, *shared)."""

    @property
    def sizes(self) -> Sequence[int]:
        """The users of each part."""
        ...

    @property
    def folder(self) -> str | None:
        """The directory for the rows of all users, if they must not be in memory together."""
        ...

    def each(
        self, task: Callable[..., Any], sent: UsersAt, *shared: Any, own: Sequence[Any] | None = None
    ) -> list[Any]:
        """The task's result for each part; `own` holds one more argument for each part."""
        ...

    def one_by_one(self, task: Callable[..., Any], sent: UsersAt, *shared: Any) -> Iterable[Any]:
        """The task's result for each part, in their order; a result need not be kept while the next is computed."""
        ...

    def total(self, task: Callable[..., np.ndarray], sent: UsersAt, *shared: Any) -> np.ndarray:
        """The sum of the task's results over the parts, in the order of `tree_sum`."""
        ...


def tree_sum(values: Iterable[Any], add: Callable[[Any, Any], Any]) -> Any:
    """The sum of some values in a fixed order: neighbours first, then neighbouring sums of two, of four ..."""
    sums: list[tuple[int, Any]] = []  # (level, sum of 2^level values)
    for value in values:
        level = 0
        while sums and sums[-1][0] == level:
            level, value = level + 1, add(sums.pop()[1], value)
        sums.append((level, value))
    total = sums.pop()[1]
    while sums:
        total = add(sums.pop()[1], total)
    return total


class LocalParts:
    """Parts in this process, which works on one after another."""

    folder = None

    def __init__(self, states: Sequence[PartState]):
        self.states = states
        self.sizes = [state.part.n_users for state in states]

    def each(
        self, task: Callable[..., Any], sent: UsersAt, *shared: Any, own: Sequence[Any] | None = None
    ) -> list[Any]:
        own = [()] * len(self.states) if own is None else [(each,) for each in own]
        return [task(state, sent, *shared, *more) for state, more in zip(self.states, own, strict=True)]

    def one_by_one(self, task: Callable[..., Any], sent: UsersAt, *shared: Any) -> Iterable[Any]:
        return (task(state, sent, *shared) for state in self.states)

    def total(self, task: Callable[..., np.ndarray], sent: UsersAt, *shared: Any) -> np.ndarray:
        return tree_sum(self.one_by_one(task, sent, *shared), np.add)


# The solver


class ItemsSide(NamedTuple):
    """What the items' half of a sweep needs of a problem, without its pairs and users."""

    C: np.ndarray
    decay: np.ndarray  # wd_i
    teacher: np.ndarray  # Q'
    strength: float
    bias_ridge: float
    constant: float  # of the loss
    tolerance: float | None = None  # of row solves

    @classmethod
    def of(cls, problem: ExactProblem) -> ItemsSide:
        """The items' side of a whole problem."""
        rows = problem.C, problem.wd_i, problem.teacher_Q
        return cls(*rows, problem.strength, problem.bias_ridge, problem.constant, problem.tolerance)


class PartedSolver:
    """An exact problem in parts; each epoch is one sweep over the users of all parts, then over all items."""

    def __init__(self, items: ItemsSide, Q: np.ndarray, parts: PartedRows):
        self.items, self.parts, self.Q = items, parts, Q.copy()
        self.firsts = np.concatenate([[0], np.cumsum(parts.sizes)])
        self.sent: UsersAt | None = None
        self.known = np.zeros(0, np.int64)  # users whose rows are here
        self.rows = Q[:0]

    def step(self, epoch: int) -> float:
        """A sweep over all users, then all items; returns the objective."""
        items, version = self.items, 1 if self.sent is None else self.sent.version + 1
        self.known = self.known[:0]  # old rows
        turn, G = als.turn_of(all_pairs.gram(self.Q, items.C))
        before, self.Q = (self.Q, turn), self.Q.copy()
        als.turn_rows(self.Q, turn)
        H = all_pairs.gram(self.Q, items.C, items.teacher)
        sent = UsersAt(version, self.Q, G, H, items.bias_ridge, tolerance=items.tolerance, before=before)
        grams = self.parts.each(grams_of_users, sent)
        G_P, H_P = (tree_sum(matrices, np.add) for matrices in zip(*grams, strict=True))
        turn, G_P = als.turn_of(G_P)
        H_P[: len(turn)] = turn.T @ H_P[: len(turn)]
        self.sent = sent._replace(turn=turn, before=None)
        self._solve_items(self.sent, G_P, H_P)
        return self.objective()

    def _solve_items(self, sent: UsersAt, G: np.ndarray, H: np.ndarray) -> None:
        """Conjugate gradients for all items at once, see `als`; an item that has converged has direction 0."""
        items, width = self.items, self.Q.shape[1]
        bias, fixed = width + BIAS_Q, width + ONE_Q
        a = (items.strength * items.C)[:, None]
        right, squares = self.parts.total(start_of_items, sent)
        diagonal = a * np.diag(G) + items.decay[:, None] / 2
        diagonal[:, bias] = a[:, 0] * G[bias, bias] + items.bias_ridge
        diagonal[:, fixed] = 1.0
        border = a * G[:, bias]
        border[:, [bias, fixed]] = 0.0
        right += a * (items.teacher @ H.T - G[:, fixed])
        right[:, fixed] = 0.0
        curvature = diagonal + squares
        inverse = np.divide(1.0, curvature, out=np.zeros_like(curvature), where=curvature > 0)
        x, step = np.zeros_like(right), inverse * right
        size = np.einsum("ij,ij->i", right, step)
        enough = als.squared_tolerance(items.tolerance, self.Q.dtype) * size
        for _ in range(2 * width):
            active = size > enough
            if not active.any():
                break
            step[~active] = 0.0
            product = diagonal * step + border * step[:, [bias]]
            product[:, bias] += np.einsum("ij,ij->i", border, step)
            product += self.parts.total(product_of_items, sent, step.astype(self.Q.dtype))
            product[:, fixed] = 0.0
            bend = np.einsum("ij,ij->i", step, product)
            length = np.divide(size, bend, out=np.zeros_like(size), where=active)[:, None]
            x += length * step
            right -= length * product
            before, size = size, np.where(active, np.einsum("ij,ij,ij->i", right, right, inverse), size)
            step = inverse * right + np.divide(size, before, out=np.zeros_like(size), where=active)[:, None] * step
        x[:, fixed] = 1.0
        if items.bias_ridge >= NO_BIASES:
            x[:, bias] = 0.0
        self.Q = x.astype(self.Q.dtype)

    def objective(self) -> float:
        """The objective at the current rows, in float64."""
        items, Q = self.items, self.Q
        losses, G_P, H_P = zip(*self.parts.each(loss_of_users, self._at(), Q), strict=True)
        G_Q, H_Q = (all_pairs.gram(Q, items.C, other, exact=True) for other in (None, items.teacher))
        b_i = Q[:, BIAS_Q].astype(np.float64)
        total = tree_sum(losses, float.__add__) + items.constant + items.bias_ridge * float(b_i @ b_i)
        total += 0.5 * float(items.decay @ all_pairs.squares(Q))
        everywhere = float(np.vdot(tree_sum(G_P, np.add), G_Q)) - 2 * float(np.vdot(tree_sum(H_P, np.add), H_Q))
        return total + items.strength * everywhere

    def _at(self) -> UsersAt:
        if self.sent is None:
            raise RuntimeError("no sweep has run")
        return self.sent

    # -- scores

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Scores of the pairs (users[j], items[j])."""
        return np.einsum("jk,jk->j", self._P(users), self.Q[items])

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Scores of every item for each of `users`, one row each."""
        return self._P(users) @ self.Q.T

    def finite(self) -> bool:
        """Whether the items' rows are finite; they are not if a user's row is not."""
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(self.Q.sum()))

    def _P(self, users: np.ndarray) -> np.ndarray:
        """Rows of some users; rows that were fetched stay here until the next sweep."""
        users = np.asarray(users, np.int64)
        new = np.setdiff1d(users, self.known)
        if len(new):
            cuts = np.searchsorted(new, self.firsts)
            own = [new[low:high] - first for low, high, first in zip(cuts, cuts[1:], self.firsts, strict=False)]
            rows = np.concatenate(self.parts.each(rows_of_users, self._at(), own=own))
            both = np.concatenate([self.known, new])
            order = np.argsort(both)
            self.known, self.rows = both[order], np.concatenate([self.rows[: len(self.known)], rows])[order]
        return self.rows[np.searchsorted(self.known, users)]

    def weights(self) -> UnfetchedRows:
        """The current rows; the users' are computed again and fetched when they are asked for."""
        return UnfetchedRows(self.parts, self._at(), self.Q.copy())

    def resume(self, at: UnfetchedRows) -> None:
        """Go on from the rows after an earlier sweep."""
        self.sent, self.Q, self.known = at.sent, at.Q.copy(), self.known[:0]

    def fetch(self, rows: Extended) -> None:
        """Copy the items' rows into `rows`; a sweep begins with the users, whose old rows do not matter."""
        rows.Q[...] = self.Q


class UnfetchedRows(NamedTuple):
    """The rows after some sweep, of which only the items' are here."""

    parts: PartedRows
    sent: UsersAt
    Q: np.ndarray

    def fetch(self) -> MF:
        """All rows as weights; those of one part at a time are in memory twice, or once if the parts have a folder."""
        blocks = self.parts.one_by_one(rows_of_users, self.sent, None)
        if self.parts.folder is not None:
            return StoredMF.of_blocks(self.parts.folder, blocks, self.Q)
        weights = MF.from_extended(Extended(self.Q[:0], self.Q))
        weights.users = aligned_array((sum(self.parts.sizes), weights.users.shape[1]))
        first = 0
        for P in blocks:
            weights.users[first : first + len(P), : P.shape[1]] = P
            first += len(P)
        return weights


# Kernels


@njit
def _start_items(lane, order, P, scratch, out):
    """`start_of_items` of one lane's items."""
    indptr, users, k, c = order.indptr, order.users, order.curvature, order.pull
    width, n_items = P.shape[1], out.shape[1]
    pulls, squares = scratch[0], scratch[1]
    for i in range(lane, n_items, LANES):
        stop = indptr[i + 1]
        for first in range(indptr[i], stop, FLUSH):
            pulls[:] = 0
            squares[:] = 0
            for n in range(first, min(first + FLUSH, stop)):
                u = users[n]
                pull = c[n] - k[n] * P[u, width + BIAS_P]
                for j in range(width):
                    z = P[u, j]
                    pulls[j] += pull * z
                    squares[j] += k[n] * z * z
            for j in range(width):
                out[0, i, j] += pulls[j]
                out[1, i, j] += squares[j]


@njit
def _multiply_items(lane, order, P, directions, scratch, out):
    """`product_of_items` of one lane's items."""
    indptr, users, k = order.indptr, order.users, order.curvature
    width, n_items = P.shape[1], out.shape[0]
    for i in range(lane, n_items, LANES):
        active = False
        for j in range(width):
            active = active or directions[i, j] != 0
        stop = indptr[i + 1] if active else indptr[i]
        for first in range(indptr[i], stop, FLUSH):
            scratch[:] = 0
            for n in range(first, min(first + FLUSH, stop)):
                u = users[n]
                s = np.float32(0)  # takes the rows' type in the loop
                for j in range(width):
                    s += P[u, j] * directions[i, j]
                s *= k[n]
                for j in range(width):
                    scratch[j] += s * P[u, j]
            for j in range(width):
                out[i, j] += scratch[j]
