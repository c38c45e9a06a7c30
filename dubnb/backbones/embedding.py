"""Embedding tables: their memory layout, the distinct rows of a batch, and the alignment of two models' rows.

A training table is a (rows, 3, width) array of float32. For each user or item it holds the weights and Adam's two
moments side by side. Each is padded to a multiple of 16 floats and the table is aligned to 64 bytes, so that an update
touches neighbouring cache lines only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb._check import InputError
from dubnb._jit import by_type, njit, prefetch, span

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

LANE = 16  # floats in 64 bytes
L1, FROBENIUS = range(2)
unsigned = np.uint64  # for an index in a hot loop: Numba then omits the test for negative indices
PREFETCH_DISTANCE = 4  # rows between the prefetch of a row and its use


def padded(width: int) -> int:
    """`width` rounded up to whole cache lines."""
    return -(-width // LANE) * LANE


def aligned(shape: tuple[int, ...], zeros: bool = True) -> np.ndarray:
    """A float32 array that begins on a 64-byte boundary: zeros, or uninitialised."""
    size = math.prod(shape)
    buffer = (np.zeros if zeros else np.empty)(size + LANE, dtype=np.float32)
    shift = (-buffer.ctypes.data % 64) // 4
    return buffer[shift : shift + size].reshape(shape)


def with_moments(weights: np.ndarray) -> np.ndarray:
    """A training table with these weights and zero moments."""
    table = aligned((len(weights), 3, weights.shape[1]))
    table[:, 0] = weights
    return table


def decay_row(width: int, rank: int, lam: float) -> np.ndarray:
    """The decay of each column, (1, width): lam for factors, 0 for biases, constants and padding."""
    decay = aligned((1, width))
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


class Slots(NamedTuple):
    """The distinct rows of a batch, numbered in order of appearance; a number is called a slot."""

    of_row: np.ndarray  # (rows,) slot of a row, -1 while the batch does not touch it
    row: np.ndarray  # (batch,) row of a slot
    first: np.ndarray  # (batch,) first sample of a slot
    of_sample: np.ndarray  # (batch,) slot of a sample
    count: np.ndarray  # type: ignore[assignment]  # (batch,) samples of a slot; hides tuple.count


def new_slots(n_rows: int, batch_size: int) -> Slots:
    """Empty slots for batches of up to `batch_size` samples."""
    of_row = np.full(n_rows, -1, dtype=np.int32)
    return Slots(of_row, *(np.zeros(batch_size, dtype=np.int32) for _ in range(4)))


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
def weights_of(table, row):
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
