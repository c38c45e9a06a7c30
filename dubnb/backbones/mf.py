"""Matrix factorisation, and what every backbone shares: embedding tables, Adam, and the loops over batches.

    s = b0 + b_u + b_i + p_u . q_i

A user's weights are (p_u, b_u, 1), an item's (q_i, 1, b_i), so that the score is b0 plus one dot product. The constant
coordinates get no gradient, and the biases no regularisation. One fused kernel trains an epoch.

A training table is a (rows, 3, width) array of float32. For each user or item it holds the weights and Adam's two
moments side by side. Each is padded to a multiple of 16 floats and the table is aligned to 64 bytes, so that an update
touches neighbouring cache lines only.

A backbone registers its `train_batch` and `score_batch` for its own Model type, a NamedTuple of tables, scratch space
and decays. Adam is lazy for embedding rows (only rows in the batch move) and dense for other parameters:

m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  w <- w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

t is the global step, as in torch's SparseAdam; eps is added to the bias-corrected root. Rows outside the batch keep
their moments.

Exact objectives use extended rows, in which b0 is part of the users' biases. The bias of one side is in the column
where the other side has its constant:

    P_u = [p_u, b_u, 1],   Q_i = [q_i, 1, b_i],   s = P_u . Q_i = p_u . q_i + b_u + b_i
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dubnb import _files, losses
from dubnb._check import InputError
from dubnb._jit import by_type, njit, prefetch, span
from dubnb._random import generator

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from dubnb.backbones.protocol import Trainer, Weights

LANE = 16  # floats in 64 bytes
L1, FROBENIUS = range(2)
unsigned = np.uint64  # for an index in a hot loop: Numba then omits the test for negative indices
PREFETCH_DISTANCE = 4  # rows between the prefetch of a row and its use
BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8
_KEEP_1, _NEW_1 = np.float32(BETA_1), np.float32(1.0 - BETA_1)
_KEEP_2, _NEW_2 = np.float32(BETA_2), np.float32(1.0 - BETA_2)
_EPS = np.float32(EPS)
_LONG = 0x10000  # above this exponent Numba's `**` calls the C library's pow
ONE_P, ONE_Q = -1, -2  # the columns that hold the constant 1
BIAS_P, BIAS_Q = ONE_Q, ONE_P
EXTRA_COLUMNS = 2  # the bias and the constant
STORED_AT_ONCE = 1 << 18  # users or pairs of a `StoredMF` in memory at a time


# ---- samples ---------------------------------------------------------------------------------------------------------


class Stream(NamedTuple):
    """Parallel arrays: each sample's user, item, target, weight, and the number of its term."""

    users: np.ndarray  # int32
    items: np.ndarray  # int32
    targets: np.ndarray  # float32, any real number
    weights: np.ndarray  # float32
    terms: np.ndarray  # uint8


@njit(inline=True)
def samples_of(stream, start, stop):
    """The samples from `start` to `stop`, as spans."""
    n = stop - start
    return Stream(
        span(stream.users, start, n),
        span(stream.items, start, n),
        span(stream.targets, start, n),
        span(stream.weights, start, n),
        span(stream.terms, start, n),
    )


@njit
def copy_sample(source, j, target, k):
    target.users[k] = source.users[j]
    target.items[k] = source.items[j]
    target.targets[k] = source.targets[j]
    target.weights[k] = source.weights[j]
    target.terms[k] = source.terms[j]


# ---- embedding tables ------------------------------------------------------------------------------------------------


def padded(width: int) -> int:
    """`width` rounded up to whole cache lines."""
    return -(-width // LANE) * LANE


def aligned_array(shape: tuple[int, ...], zeros: bool = True) -> np.ndarray:
    """A float32 array that begins on a 64-byte boundary: zeros, or uninitialised."""
    size = math.prod(shape)
    buffer = (np.zeros if zeros else np.empty)(size + LANE, dtype=np.float32)
    shift = (-buffer.ctypes.data % 64) // 4
    return buffer[shift : shift + size].reshape(shape)


def with_moments(weights: np.ndarray) -> np.ndarray:
    """A training table with these weights and zero moments."""
    table = aligned_array((len(weights), 3, weights.shape[1]))
    table[:, 0] = weights
    return table


def decay_row(width: int, rank: int, lam: float) -> np.ndarray:
    """The decay of each column, (1, width): lam for factors, 0 for biases, constants and padding."""
    decay = aligned_array((1, width))
    decay[0, :rank] = lam
    return decay


def checked(
    arrays: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, DTypeLike] | None = None,
) -> None:
    """Raise InputError unless the arrays have these shapes ({name: shape}) and dtypes (default: float32)."""
    for name, shape in shapes.items():
        array = arrays.get(name)
        dtype = np.dtype((dtypes or {}).get(name, np.float32))
        if array is None or array.shape != shape or array.dtype != dtype:
            actual = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
            raise InputError(
                f"array {name!r} is {actual}, not {dtype} of shape {shape}: the file was altered; fit again"
            )


def all_finite(*arrays: np.ndarray) -> bool:
    """Whether every number is finite, tested by one sum per array."""
    with np.errstate(over="ignore", invalid="ignore"):
        return all(bool(np.isfinite(array.sum())) for array in arrays)


def as_rows(numbers: np.ndarray) -> np.ndarray:
    """Row numbers as a writable, contiguous int32 array, the type that kernels are compiled for."""
    return np.require(numbers, dtype=np.int32, requirements=("C", "W"))


class RowSlots(NamedTuple):
    """The distinct rows of a batch, numbered in order of appearance; a number is called a slot."""

    of_row: np.ndarray  # (rows,) slot of a row, -1 while the batch does not touch it
    row: np.ndarray  # (batch,) row of a slot
    first: np.ndarray  # (batch,) first sample of a slot
    of_sample: np.ndarray  # (batch,) slot of a sample
    count: np.ndarray  # type: ignore[assignment]  # (batch,) samples of a slot; hides tuple.count


def new_slots(n_rows: int, batch_size: int) -> RowSlots:
    """Empty slots for batches of up to `batch_size` samples."""
    of_row = np.full(n_rows, -1, dtype=np.int32)
    return RowSlots(of_row, *(np.zeros(batch_size, dtype=np.int32) for _ in range(4)))


@njit
def assign_slots(rows, slots):
    """Number the distinct values of `rows`; returns how many there are."""
    n_slots = 0
    for j in range(len(rows)):
        row = unsigned(rows[j])
        slot = slots.of_row[row]
        if slot < 0:
            slot = n_slots
            slots.of_row[row] = slot
            slots.row[unsigned(slot)] = row
            slots.first[unsigned(slot)] = j
            slots.count[unsigned(slot)] = 0
            n_slots += 1
        slots.of_sample[j] = slot
        slots.count[unsigned(slot)] += 1
    return n_slots


@njit
def release_slots(slots, n_slots):
    """Reset `of_row` for the next batch."""
    for slot in range(n_slots):
        slots.of_row[unsigned(slots.row[slot])] = -1


def distinct(rows: np.ndarray, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(distinct values of `rows` in order of appearance, index of each row among them); all are below n_rows."""
    slots = new_slots(n_rows, len(rows))
    return slots.row[: assign_slots(as_rows(rows), slots)], slots.of_sample


@njit
def order_by_slot(slots, n_slots, sequence, starts, order):
    """Group samples by slot: those of slot k are order[starts[k] : starts[k + 1]], in the order of `sequence`."""
    position = 0
    for slot in range(n_slots):
        starts[slot] = position
        position += slots.count[slot]
    for j in sequence:
        slot = unsigned(slots.of_sample[unsigned(j)])
        order[starts[slot]] = j
        starts[slot] += 1
    for slot in range(n_slots, 0, -1):
        starts[slot] = starts[slot - 1]
    starts[0] = 0


@njit
def put(values, out):
    """out[:] = values. Assigning slices would compile Numba's error message for unequal shapes, which takes 4 s."""
    for k in range(len(values)):
        out[k] = values[k]


@njit
def weight_row(table, row):
    """A row's weights as a span."""
    width = _whole_lines(table.shape[2])
    return span(table, np.int64(row) * table.shape[1] * width, width)


@njit
def row_of(table, row):
    """A row's weights and both moments as spans."""
    width = _whole_lines(table.shape[2])
    start = np.int64(row) * 3 * width
    return span(table, start, width), span(table, start + width, width), span(table, start + 2 * width, width)


@njit
def slot_of(gradients, slot):
    """One slot of a batch's gradients as a span."""
    width = _whole_lines(gradients.shape[1])
    return span(gradients, slot * width, width)


@njit
def as_span(row):
    """A whole row as a span. A function must make its own: it is optimised before its callers' spans are known."""
    return span(row, 0, _whole_lines(len(row)))


@njit(inline=True)
def dot(p, q):
    """p . q of two rows."""
    s = np.float32(0.0)
    for k in range(len(p)):
        s += p[k] * q[k]
    return s


@njit
def _whole_lines(width):
    """`width`, written so that the compiler sees a multiple of LANE and omits the remainder of loops."""
    return width // LANE * LANE


@njit
def prefetch_row(table, row, parts):
    """Prefetch a row of a training table: its weights (parts = 1), or the moments too (parts = 3)."""
    width = table.shape[2]
    start = np.int64(row) * table.shape[1] * width
    for k in range(0, parts * width, LANE):
        prefetch(table, start + k)


class Anchors(NamedTuple):
    """Rows of another model towards which CausE pulls a batch's rows: one per sample, or none."""

    users: np.ndarray  # (batch or 0, rank)
    items: np.ndarray  # (batch or 0, rank)
    strength: np.float32
    kind: int  # L1 or FROBENIUS


class Unanchored(NamedTuple):
    """No pull. A type of its own, so that a model that is trained alone does not compile the code of pulls."""

    users: np.ndarray  # (0, rank)
    items: np.ndarray  # (0, rank)


def no_anchors(rank: int) -> Anchors:
    """Anchors without rows, for joint training without alignment."""
    return Anchors(*unanchored(rank), np.float32(0.0), L1)


def unanchored(rank: int) -> Unanchored:
    """The anchors of a model that is trained alone."""
    nothing = np.zeros((0, rank), dtype=np.float32)
    return Unanchored(nothing, nothing)


@by_type
def pull_strength(anchors, rows, table, slots, n_slots):
    """The factor of the pull towards `rows`, which are the anchors of users or of items; 0 means no pull."""


@by_type
def pull(anchors, rows, sample, w, strength, gradient):
    """Add the pull of a row of weights towards the anchor of a sample to the row's gradient."""


@pull_strength.of(Unanchored)
def _no_strength(anchors, rows, table, slots, n_slots):
    return np.float32(0.0)


@pull.of(Unanchored)
def _no_pull(anchors, rows, sample, w, strength, gradient):
    pass


@pull_strength.of(Anchors)
def _pull_strength(anchors, rows, table, slots, n_slots):
    """The strength for l1; for Frobenius, divided by |W - W'|_F over the distinct rows."""
    if len(rows) == 0:
        return np.float32(0.0)
    if anchors.kind == L1:
        return anchors.strength
    total = 0.0
    for slot in range(n_slots):
        row, sample = slots.row[slot], slots.first[slot]
        for k in range(rows.shape[1]):
            difference = table[row, 0, k] - rows[sample, k]
            total += difference * difference
    return np.float32(anchors.strength / math.sqrt(total)) if total > 0 else np.float32(0.0)


@pull.of(Anchors, inline=True)
def _pull(anchors, rows, sample, w, strength, gradient):
    """Add the gradient of strength sum |w - w'| (l1), or of strength |W - W'|_F (`strength` includes 1 / norm)."""
    for k in range(rows.shape[1]):
        gradient[k] += strength * pull_direction(w[k] - rows[sample, k], anchors.kind)


@njit(inline=True)
def pull_direction(difference, kind):
    """The derivative of |w - w'| in w (l1), or of |w - w'|^2 / 2."""
    if kind == L1:
        return np.float32(1.0) if difference > 0 else np.float32(-1.0) if difference < 0 else np.float32(0.0)
    return difference


# ---- Adam ------------------------------------------------------------------------------------------------------------


class Rates(NamedTuple):
    """Step t's constants: lr / (1 - b1^t) and 1 / (1 - b2^t)."""

    step: np.float32
    inverse: np.float32


@njit
def power(base, n):
    """base^n for n = 0, 1, ..., bit for bit Numba's `**`, whose other cases would take .3 s to compile."""
    if n > _LONG:
        return math.pow(base, float(n))
    result = 1.0
    while n != 0:
        if n & 1:
            result *= base
        n >>= 1
        base *= base
    return result


@njit
def rates(lr, t):
    """The constants of step t = 1, 2, ..."""
    return Rates(np.float32(lr / (1.0 - power(BETA_1, t))), np.float32(1.0 / (1.0 - power(BETA_2, t))))


@njit
def update(w, m, v, g, now):
    """One coordinate's Adam step: the new (w, m, v)."""
    m = _KEEP_1 * m + _NEW_1 * g
    v = _KEEP_2 * v + _NEW_2 * g * g
    return w - now.step * m / (math.sqrt(v * now.inverse) + _EPS), m, v


@njit(inline=True)
def update_row(w, m, v, gradient, decay, now):
    """Adam step of a row with g = gradient + decay w, coordinate by coordinate."""
    w, m, v, gradient, decay = as_span(w), as_span(m), as_span(v), as_span(gradient), as_span(decay)
    for k in range(len(gradient)):
        w[k], m[k], v[k] = update(w[k], m[k], v[k], gradient[k] + decay[k] * w[k], now)


# ---- loops over batches --------------------------------------------------------------------------------------------


@by_type
def train_batch(model, batch, anchors, loss, now, totals):
    """One Adam step on a batch; each term's weighted losses are added to `totals`."""


@by_type
def score_batch(model, users, items, out):
    """Raw scores of at most a batch of pairs."""


@njit
def train_epoch(model, stream, anchors, batch_size, loss, lr, step, totals):
    """One pass over the stream; returns the optimizer's number of steps, which was `step` before."""
    n = len(stream.users)
    for start in range(0, n, batch_size):
        step += 1
        stop = start + batch_size
        batch = samples_of(stream, start, stop if stop < n else n)
        train_batch(model, batch, anchors, loss, rates(lr, step), totals)
    return step


class JointRoom(NamedTuple):
    """Scratch space for a batch of joint training."""

    for_t: Stream  # M_t's batch: e.1's samples, then term d's
    targets: np.ndarray  # (batch of M_c,) float32: term d's, from M_t
    pull_c: Anchors  # where M_c's rows are pulled to; a side without alignment has no rows
    pull_t: Anchors


class Sides(NamedTuple):
    """The settings of joint training."""

    batch_sizes: tuple[int, int]  # samples per batch of M_c's stream, and of S_t
    d: int  # the number of term d; -1 if there is no term d
    loss: int
    link: bool
    symmetric: bool
    lr: float


@njit
def side_by_side(n_batches, models, samples, S_t, sides, room, steps, totals):
    """Train M_c on `n_batches` of `samples`, and M_t on as many of S_t, which may be empty.

    Within a batch each model sees the other's weights from before the batch. `steps` counts the steps of both
    optimizers, `totals` sums the losses of both models by term.
    """
    M_c, M_t = models
    size_c, size_t = sides.batch_sizes
    for number in range(n_batches):
        batch = samples_of(samples, number * size_c, min((number + 1) * size_c, len(samples.users)))
        n_t = len(S_t.users)
        e1 = samples_of(S_t, min(number * size_t, n_t), min((number + 1) * size_t, n_t))
        n = _fill_in(batch, e1, M_c, M_t, sides, room)
        for_t = samples_of(room.for_t, 0, n)
        pull_c, pull_t = _anchors(M_t, batch, room.pull_c), _anchors(M_c, for_t, room.pull_t)
        steps[0] += 1
        train_batch(M_c, batch, pull_c, sides.loss, rates(sides.lr, steps[0]), totals[0])
        if n > 0:
            steps[1] += 1
            train_batch(M_t, for_t, pull_t, sides.loss, rates(sides.lr, steps[1]), totals[1])


@njit
def _fill_in(batch, e1, M_c, M_t, sides, room):
    """Fill in term d's targets in M_c's batch, and M_t's batch; returns the number of samples of M_t's batch.

    M_t's batch holds samples of S_t. Where the loss is symmetric, it also holds term d's pairs with M_c's predictions
    as targets.
    """
    for_t, first = room.for_t, len(e1.users)
    for j in range(first):
        copy_sample(e1, j, for_t, j)
    n = first
    for j in range(len(batch.users)):
        if batch.terms[j] == sides.d:
            copy_sample(batch, j, for_t, n)
            for_t.terms[n] = 1
            n += 1
    n_d = n - first
    if n_d == 0:
        return first
    users, items = span(for_t.users, first, n_d), span(for_t.items, first, n_d)
    targets = span(room.targets, 0, n_d)
    score_batch(M_t, users, items, targets)
    losses.predict(targets, sides.link)
    k = 0
    for j in range(len(batch.users)):
        if batch.terms[j] == sides.d:
            batch.targets[j] = targets[k]
            k += 1
    if not sides.symmetric:
        return first
    mutual = span(for_t.targets, first, n_d)
    score_batch(M_c, users, items, mutual)
    losses.predict(mutual, sides.link)
    return n


@njit
def _anchors(other, batch, room):
    """The other model's current factors for the rows of `batch`; the strength is divided by the batch's size."""
    n = len(batch.users)
    users, items = room.users[: min(n, len(room.users))], room.items[: min(n, len(room.items))]
    copy_factors(other.tables.users, batch.users, users)
    copy_factors(other.tables.items, batch.items, items)
    return Anchors(users, items, np.float32(room.strength / np.float32(max(n, 1))), room.kind)


@njit
def copy_factors(table, rows, out):
    """Copy the current factors of some rows to `out`."""
    rank = out.shape[1]
    for j in range(len(out)):
        if j + PREFETCH_DISTANCE < len(out):
            prefetch_row(table, rows[j + PREFETCH_DISTANCE], 1)
        source, target = weight_row(table, rows[j]), span(out, j * rank, rank)
        for k in range(rank):
            target[k] = source[k]


# ---- extended rows ---------------------------------------------------------------------------------------------------


def factors(rows: np.ndarray) -> np.ndarray:
    """The embedding coordinates of some rows, as a view."""
    return rows[:, :-EXTRA_COLUMNS]


class Extended(NamedTuple):
    """Extended rows of all users and items; a score is the product of two rows."""

    P: np.ndarray  # (users, rank + 2)
    Q: np.ndarray  # (items, rank + 2)

    @classmethod
    def of_items(cls, n_users: int, values: np.ndarray) -> Extended:
        """Rank 0: every user's score of item i is values[i]."""
        values = np.asarray(values)
        P = np.tile(np.array([0, 1], values.dtype), (n_users, 1))
        return cls(P, np.stack([np.ones_like(values), values], axis=1))

    @classmethod
    def constant(cls, shape: tuple[int, int], value: float) -> Extended:
        """Rank 0: every score is `value`."""
        return cls.of_items(shape[0], np.full(shape[1], float(value)))

    @property
    def shape(self) -> tuple[int, int]:
        """(users, items)."""
        return len(self.P), len(self.Q)

    def affine(self, scale: float, shift: float) -> Extended:
        """Rows whose scores are scale * s + shift."""
        P, Q = self.P.copy(), self.Q.copy()
        P[:, :ONE_P] *= P.dtype.type(scale)
        P[:, BIAS_P] += P.dtype.type(shift)
        Q[:, BIAS_Q] *= Q.dtype.type(scale)
        return Extended(P, Q)

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Scores of the pairs (users[j], items[j])."""
        return np.einsum("jk,jk->j", self.P[users], self.Q[items])

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Scores of every item for each of `users`, one row each."""
        with np.errstate(invalid="ignore"):  # OpenBLAS can raise the flag for finite rows (numpy issue 24067)
            return self.P[users] @ self.Q.T

    def finite(self) -> bool:
        """Whether every number is finite, tested by one sum per side."""
        with np.errstate(over="ignore", invalid="ignore"):
            return all(bool(np.isfinite(rows.sum())) for rows in self)


# ---- the model -------------------------------------------------------------------------------------------------------


class MF:
    """The weights of one model; `protocol.Weights` documents the methods."""

    name: ClassVar[str] = "mf"
    OPTIONS: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, users: np.ndarray, items: np.ndarray, b0: np.float32, rank: int):
        self.users, self.items, self.b0, self.rank = users, items, b0, rank

    @classmethod
    def new(cls, shape: tuple[int, int], rank: int, seed: int, model: str) -> MF:
        """p and q normal with std sqrt(2 / (rows + rank)), biases 0; `model` names the random stream: "c" or "t"."""
        n_users, n_items = shape
        return cls.from_arrays(
            {
                "user_factors": _normal(n_users, rank, generator(seed, model, "init", "users")),
                "item_factors": _normal(n_items, rank, generator(seed, model, "init", "items")),
                "user_bias": np.zeros(n_users, np.float32),
                "item_bias": np.zeros(n_items, np.float32),
                "b0": np.zeros(1, np.float32),
            }
        )

    @staticmethod
    def size(shape: tuple[int, int], rank: int) -> int:
        return 4 * sum(shape) * padded(rank + 2)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> MF:
        (n_users, rank), n_items = arrays["user_factors"].shape, len(arrays["item_factors"])
        shapes = {"user_factors": (n_users, rank), "item_factors": (n_items, rank)}
        checked(arrays, shapes | {"user_bias": (n_users,), "item_bias": (n_items,), "b0": (1,)})
        items, b0 = aligned_array((n_items, padded(rank + 2))), np.float32(arrays["b0"][0])
        items[:, :rank], items[:, rank], items[:, rank + 1] = arrays["item_factors"], 1.0, arrays["item_bias"]
        if isinstance(arrays["user_factors"], np.memmap):
            return StoredMF(arrays["user_factors"], arrays["user_bias"], items, b0)
        users = aligned_array((n_users, padded(rank + 2)))
        users[:, :rank], users[:, rank], users[:, rank + 1] = arrays["user_factors"], arrays["user_bias"], 1.0
        return cls(users, items, b0, rank)

    @classmethod
    def from_extended(cls, rows: Extended, b0: float = 0.0) -> MF:
        """Weights from extended rows, the form that exact objectives use."""
        users, items = (aligned_array((len(side), padded(side.shape[1]))) for side in rows)
        users[:, : rows.P.shape[1]], items[:, : rows.Q.shape[1]] = rows
        return cls(users, items, np.float32(b0), rows.P.shape[1] - 2)

    def extended(self) -> Extended:
        """Copies of the extended rows; b0 is added to the users' biases."""
        rows = Extended(*(np.ascontiguousarray(side[:, : self.rank + 2]) for side in (self.users, self.items)))
        return rows.affine(1.0, float(self.b0))

    def extended_users(self, first: int, last: int) -> np.ndarray:
        """The extended rows of the users from `first` to before `last`."""
        rows = self.users[first:last][:, : self.rank + 2].copy()
        rows[:, BIAS_P] += self.b0
        return rows

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "user_factors": self.users[:, : self.rank].copy(),
            "item_factors": self.items[:, : self.rank].copy(),
            "user_bias": self.users[:, self.rank].copy(),
            "item_bias": self.items[:, self.rank + 1].copy(),
            "b0": np.array([self.b0], np.float32),
        }

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        out = np.empty(len(users), np.float32) if out is None else out
        _score_pairs(self.users[:, None], self.items[:, None], self.b0, as_rows(users), as_rows(items), out)
        return out

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        return self.users[users] @ self.items.T + self.b0

    def gradient(self, batch: Stream, loss: losses.Loss, lam: float, room: Trainer | None = None) -> MF:
        like = MF(np.zeros_like(self.users), np.zeros_like(self.items), np.float32(0.0), self.rank)
        like.b0 = _add_gradients(self.users, self.items, self.b0, batch, loss.code, like.users, like.items)
        like.users[:, self.rank + 1] = like.items[:, self.rank] = 0.0  # the constants
        for own, rows, touched in ((self.users, like.users, batch.users), (self.items, like.items, batch.items)):
            touched, _ = distinct(touched, len(own))
            rows[touched, : self.rank] += np.float32(lam) * own[touched, : self.rank]
        return like

    def tangent(
        self, direction: MF, users: np.ndarray, items: np.ndarray, room: Trainer | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """s and ds = db0 + dP_u . Q_i + P_u . dQ_i of some pairs."""
        turned = np.einsum("jk,jk->j", direction.users[users], self.items[items])
        turned += np.einsum("jk,jk->j", self.users[users], direction.items[items])
        return self.score_pairs(users, items), turned + direction.b0

    def plus(self, step: float, direction: MF) -> MF:
        times = np.float32(step)
        b0 = self.b0 + times * direction.b0
        return MF(self.users + times * direction.users, self.items + times * direction.items, b0, self.rank)

    def with_offsets(self, users: np.ndarray, items: np.ndarray) -> MF:
        """The same weights with numbers added to the biases of users and items."""
        new = MF(self.users.copy(), self.items.copy(), self.b0, self.rank)
        new.users[:, self.rank] += users.astype(np.float32)
        new.items[:, self.rank + 1] += items.astype(np.float32)
        return new

    def finite(self) -> bool:
        return all_finite(self.users, self.items, np.array([self.b0]))

    def trainer(self, batch_size: int) -> MFTrainer:
        return MFTrainer(self, batch_size)


class StoredUsers:
    """The table of users of a `StoredMF`: rows are put together when they are indexed."""

    def __init__(self, factors: np.ndarray, bias: np.ndarray, width: int):
        self.factors, self.bias, self.shape = factors, bias, (len(bias), width)

    def __len__(self) -> int:
        return len(self.bias)

    def __getitem__(self, rows: Any) -> np.ndarray:
        bias, rank = self.bias[rows], self.factors.shape[1]
        table = aligned_array((len(bias), self.shape[1]))
        table[:, :rank], table[:, rank], table[:, rank + 1] = self.factors[rows], bias, 1.0
        return table


class StoredMF(MF):
    """Weights whose users' factors are in a file, for more users than fit into memory.

    Rows are read when they are scored. Scores and arrays are those of `MF` to the bit. `folder` is the directory for
    changed factors.
    """

    def __init__(
        self,
        user_factors: np.ndarray,
        user_bias: np.ndarray,
        items: np.ndarray,
        b0: np.float32,
        folder: str = "",
    ):
        users: Any = StoredUsers(user_factors, user_bias, items.shape[1])
        super().__init__(users, items, b0, user_factors.shape[1])
        self.user_factors, self.user_bias, self.folder = user_factors, user_bias, folder

    @classmethod
    def of_blocks(cls, folder: str, blocks: Iterable[np.ndarray], Q: np.ndarray) -> StoredMF:
        """Weights from blocks of the users' extended rows, which go to a file of `folder`, and those of the items."""
        rank, bias = Q.shape[1] - EXTRA_COLUMNS, []

        def factors_of(P: np.ndarray) -> np.ndarray:
            bias.append(P[:, BIAS_P].astype(np.float32))
            return P[:, :rank].astype(np.float32)

        factors = _files.unnamed_array(folder, map(factors_of, blocks), np.float32).reshape(-1, rank)
        return cls(factors, np.concatenate(bias), MF.from_extended(Extended(Q[:0], Q)).items, np.float32(0.0), folder)

    def arrays(self) -> dict[str, np.ndarray]:
        """The same as of `MF`, but the users' factors stay in their file."""
        few = MF(self.users[:0], self.items, self.b0, self.rank).arrays()
        return few | {"user_factors": self.user_factors, "user_bias": self.user_bias.copy()}

    def extended(self) -> Extended:
        """Copies of all extended rows, in memory."""
        return MF(self.users[:], self.items, self.b0, self.rank).extended()

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        out = np.empty(len(users), np.float32) if out is None else out
        for first in range(0, len(users), STORED_AT_ONCE):
            some = slice(first, first + STORED_AT_ONCE)
            own, places = np.unique(users[some], return_inverse=True)
            rows = as_rows(places), as_rows(items[some])
            _score_pairs(self.users[own][:, None], self.items[:, None], self.b0, *rows, out[some])
        return out

    def with_offsets(self, users: np.ndarray, items: np.ndarray) -> MF:
        table = self.items.copy()
        table[:, self.rank + 1] += items.astype(np.float32)
        return StoredMF(self.user_factors, self.user_bias + users.astype(np.float32), table, self.b0, self.folder)

    def average_user(self, cold: np.ndarray) -> MF:
        """Weights with one user, the mean of all that are not cold, and the same items."""
        total = np.zeros((1, self.users.shape[1]))
        for first in range(0, len(cold), STORED_AT_ONCE):
            some = slice(first, first + STORED_AT_ONCE)
            rows = np.concatenate([total, self.users[some][~cold[some]]])
            total = rows.sum(axis=0, keepdims=True)  # row by row, as in a sum over all users
        mean = total / np.count_nonzero(~cold)
        return MF(mean.astype(np.float32), self.items, self.b0, self.rank)

    def with_average(self, cold: np.ndarray) -> MF:
        """The same weights with the average user's row in place of every cold user's."""
        if not cold.any() or cold.all():
            return self
        average = self.average_user(cold).users[0]

        def filled(first: int) -> np.ndarray:
            some = slice(first, first + STORED_AT_ONCE)
            return np.where(cold[some, None], average[: self.rank], self.user_factors[some])

        blocks = map(filled, range(0, len(cold), STORED_AT_ONCE))
        factors = _files.unnamed_array(self.folder, blocks, np.float32).reshape(-1, self.rank)
        bias = np.where(cold, average[self.rank], self.user_bias)
        return StoredMF(factors, bias, self.items, self.b0, self.folder)

    def finite(self) -> bool:
        return all_finite(self.user_factors, self.user_bias, self.items, np.array([self.b0]))


def rows_of(weights: Weights) -> Extended:
    """The extended rows of mf's weights; exact objectives are for mf only."""
    if not isinstance(weights, MF):
        raise TypeError(f"{weights.name} has no extended rows: exact objectives are for mf")
    return weights.extended()


def mf_of_users(weights: Weights, first: int, last: int) -> MF:
    """Mf's weights of the users from `first` to before `last`, who are counted from 0."""
    if not isinstance(weights, MF):
        raise TypeError(f"{weights.name} has no rows of users alone: exact objectives are for mf")
    return MF(weights.users[first:last], weights.items, weights.b0, weights.rank)


def _normal(rows: int, rank: int, random: np.random.Generator) -> np.ndarray:
    return random.standard_normal((rows, rank), dtype=np.float32) * np.float32(np.sqrt(2.0 / (rows + rank)))


class Tables(NamedTuple):
    """The arrays that an epoch changes."""

    users: np.ndarray  # (n_users, 3, width)
    items: np.ndarray  # (n_items, 3, width)
    b0: np.ndarray  # (3,) float32: b0 and its two moments


class Work(NamedTuple):
    """Scratch space for one batch."""

    user_slots: RowSlots
    item_slots: RowSlots
    sequence: np.ndarray  # (batch,) int32: 0, 1, 2, ...
    starts: np.ndarray  # (batch + 1,) int32
    order: np.ndarray  # (batch,) int32
    user_gradient: np.ndarray  # (1, width)
    item_gradients: np.ndarray  # (batch, width)


class MFModel(NamedTuple):
    """The argument of mf's batch kernels."""

    tables: Tables
    work: Work
    decay: np.ndarray  # (1, width)


class MFTrainer:
    """Trains mf: tables with Adam's moments, and scratch space for a batch; see `protocol.Trainer`."""

    def __init__(self, weights: MF, batch_size: int):
        self.rank, self.width = weights.rank, weights.users.shape[1]
        self.batch_size = batch_size
        b0 = np.array([weights.b0, 0.0, 0.0], dtype=np.float32)
        self.tables = Tables(with_moments(weights.users), with_moments(weights.items), b0)
        self.step = 0
        self.work = Work(
            new_slots(len(weights.users), batch_size),
            new_slots(len(weights.items), batch_size),
            np.arange(batch_size, dtype=np.int32),
            np.zeros(batch_size + 1, np.int32),
            np.zeros(batch_size, np.int32),
            aligned_array((1, self.width)),
            aligned_array((batch_size, self.width)),
        )

    def epoch(
        self, stream: Stream, n_terms: int, loss: losses.Loss, lr: float, lam: float, anchors: Anchors | None = None
    ) -> np.ndarray:
        pulls = unanchored(self.rank) if anchors is None else anchors
        totals = np.zeros(n_terms)
        self.step = train_epoch(self.model(lam), stream, pulls, self.batch_size, loss.code, lr, self.step, totals)
        return totals

    def model(self, lam: float) -> MFModel:
        return MFModel(self.tables, self.work, decay_row(self.width, self.rank, lam))

    def weights(self) -> MF:
        users, items = (
            aligned_array((len(self.tables.users), self.width), zeros=False),
            aligned_array((len(self.tables.items), self.width), zeros=False),
        )
        users[:], items[:] = self.tables.users[:, 0], self.tables.items[:, 0]
        return MF(users, items, self.tables.b0[0], self.rank)

    def subset(self, users: np.ndarray, items: np.ndarray) -> MF:
        return MF(self.tables.users[users, 0], self.tables.items[items, 0], self.tables.b0[0], self.rank)

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        out = np.empty(len(users), np.float32) if out is None else out
        _score_pairs(self.tables.users, self.tables.items, self.tables.b0[0], as_rows(users), as_rows(items), out)
        return out

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        rows, columns = self.tables.users[users, 0], self.tables.items[:, 0]
        return rows @ columns.T + self.tables.b0[0]

    def factors(self, side: str, rows: np.ndarray) -> np.ndarray:
        return getattr(self.tables, side)[rows, 0, : self.rank]

    def finite(self) -> bool:
        return all_finite(self.tables.users[:, 0], self.tables.items[:, 0], self.tables.b0[:1])


@njit(fixed_order=True)
def _score_pairs(users_table, items_table, b0, users, items, out):
    for j in range(len(users)):
        out[j] = b0 + dot(weight_row(users_table, users[j]), weight_row(items_table, items[j]))


@njit
def _add_gradients(users_table, items_table, b0, batch, loss, users_gradient, items_gradient):
    """Add the gradient of a batch's mean loss to two tables; returns b0's."""
    users, items, targets, weights = batch.users, batch.items, batch.targets, batch.weights
    share = np.float32(1.0) / np.float32(len(users))
    b0_gradient = np.float32(0.0)
    for j in range(len(users)):
        p, q = users_table[users[j]], items_table[items[j]]
        _, slope = losses.value_and_derivative(loss, b0 + dot(p, q), targets[j])
        error = share * weights[j] * slope
        b0_gradient += error
        for k in range(len(p)):
            users_gradient[users[j], k] += error * q[k]
            items_gradient[items[j], k] += error * p[k]
    return b0_gradient


@score_batch.of(MFModel)
def _score_mf_batch(model, users, items, out):
    """Raw scores of pairs."""
    _score_pairs(model.tables.users, model.tables.items, model.tables.b0[0], users, items, out)


@train_batch.of(MFModel)
def _train_mf_batch(model, batch, anchors, loss, now, totals):
    """Compute all gradients of the batch's mean loss at the current weights, then make one Adam step.

    Users are visited one by one. While a user's row is in the cache, one pass computes its samples' errors, adds to
    both gradients and makes the user's step. Item gradients are summed in compact slots, and items step last, so that
    every gradient is computed from the old item rows.
    """
    # Unpack tuples into local arrays before the loops, which makes the loops faster.
    tables, work, decay = model.tables, model.work, slot_of(model.decay, 0)
    users_table, items_table, b0 = tables.users, tables.items, tables.b0[0]
    items, targets, weights, terms = batch.items, batch.targets, batch.weights, batch.terms
    user_rows, item_rows, item_slot_of = work.user_slots.row, work.item_slots.row, work.item_slots.of_sample
    starts, order, user_gradient, item_gradients = work.starts, work.order, work.user_gradient, work.item_gradients
    n, rank = len(items), anchors.users.shape[1]
    n_users = assign_slots(batch.users, work.user_slots)
    n_items = assign_slots(items, work.item_slots)
    order_by_slot(work.user_slots, n_users, span(work.sequence, 0, n), starts, order)
    item_gradients[:n_items] = np.float32(0.0)
    share = np.float32(1.0) / np.float32(n)
    b0_gradient = np.float32(0.0)
    user_pull = pull_strength(anchors, anchors.users, users_table, work.user_slots, n_users)
    item_pull = pull_strength(anchors, anchors.items, items_table, work.item_slots, n_items)
    for slot in range(n_users):
        if slot + PREFETCH_DISTANCE < n_users:
            prefetch_row(users_table, user_rows[slot + PREFETCH_DISTANCE], 3)
        p, p_m, p_v = row_of(users_table, user_rows[slot])
        dp = slot_of(user_gradient, 0)
        dp[:] = np.float32(0.0)
        for position in range(starts[slot], starts[slot + 1]):
            if position + PREFETCH_DISTANCE < n:
                prefetch_row(items_table, items[order[position + PREFETCH_DISTANCE]], 1)
            j = unsigned(order[position])
            q, dq = weight_row(items_table, items[j]), slot_of(item_gradients, item_slot_of[j])
            s = b0 + dot(p, q)
            value, slope = losses.value_and_derivative(loss, s, targets[j])
            totals[terms[j]] += weights[j] * value
            error = share * weights[j] * slope
            b0_gradient += error
            for k in range(len(p)):
                dp[k] += error * q[k]
                dq[k] += error * p[k]
        if user_pull:
            pull(anchors, anchors.users, work.user_slots.first[slot], p, user_pull, dp)
        dp[rank + 1] = np.float32(0.0)  # the constant 1
        update_row(p, p_m, p_v, dp, decay, now)
    for slot in range(n_items):
        q, q_m, q_v = row_of(items_table, item_rows[slot])
        dq = slot_of(item_gradients, slot)
        if item_pull:
            pull(anchors, anchors.items, work.item_slots.first[slot], q, item_pull, dq)
        dq[rank] = np.float32(0.0)  # the constant 1
        update_row(q, q_m, q_v, dq, decay, now)
    tables.b0[0], tables.b0[1], tables.b0[2] = update(b0, tables.b0[1], tables.b0[2], b0_gradient, now)
    release_slots(work.user_slots, n_users)
    release_slots(work.item_slots, n_items)
