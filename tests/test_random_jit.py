"""Keyed random numbers, `njit` and the compiler hints."""

import math
import pickle
from typing import NamedTuple

import numba
import numpy as np
import pytest

from dubnb import _jit, _kernel_parts
from dubnb._random import exponential, generator, key, mix, uniform
from tests import naive

FRACTION = 30  # bits after the point of an `exponential`
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")  # uint64, JIT off


@pytest.mark.parametrize("stream", [0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF])
@pytest.mark.parametrize("counter", [0, 1, 7, 2**40])
def test_mix_equals_twin(stream, counter):
    assert int(mix(np.uint64(stream), counter)) == naive.mix(stream, counter)
    assert uniform(np.uint64(stream), counter) == naive.uniform(stream, counter)


def test_splitmix_reference_values():
    """The published first outputs of splitmix64 with seed 1234567 (the generator adds its constant before mixing)."""
    assert [int(mix(np.uint64(1234567), counter)) for counter in (1, 2, 3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_uniform_is_uniform():
    from scipy.stats import chisquare

    stream = key(3, "test")
    numbers = np.array([uniform(stream, j) for j in range(4000)])
    assert numbers.min() >= 0.0 and numbers.max() < 1.0
    assert chisquare(np.histogram(numbers, 20, (0, 1))[0]).pvalue > 1e-4
    pairs = np.histogram2d(numbers[::2], numbers[1::2], 5, [(0, 1), (0, 1)])[0]
    assert chisquare(pairs.ravel()).pvalue > 1e-4


def test_keys_depend_on_seed_and_every_name():
    keys = {
        int(key(*parts)) for parts in [(0,), (1,), (0, "a"), (0, "b"), (0, "a", 1), (0, "a", 2), (0, 1, "a"), (10, "a")]
    }
    assert len(keys) == 8
    assert key(5, "x", 2) == key(np.int64(5), "x", np.int64(2))
    assert key(5).dtype == np.uint64


def test_generators_are_named_not_drawn_in_turn():
    first = generator(0, "c", "init").standard_normal(4)
    generator(0, "t", "init").standard_normal(100)
    assert np.array_equal(first, generator(0, "c", "init").standard_normal(4))
    assert not np.array_equal(first, generator(0, "t", "init").standard_normal(4))


def _double(x):
    return 2 * x


@pytest.mark.needs_jit
def test_kernels_keep_nan_and_divide_like_numpy():
    kernel = _jit.njit(_divide)
    assert math.isnan(kernel(0.0, 0.0)) and kernel(1.0, 0.0) == math.inf
    assert kernel.targetoptions["nogil"] and kernel.targetoptions["error_model"] == "numpy"


def _divide(a, b):
    return a / b


def test_span_is_a_view_and_later_spans_see_earlier_writes():
    table = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found = _double_twice(table, 5, 7)
    expected = np.arange(24, dtype=np.float32)
    expected[5:12] *= 2
    expected[6:13] *= 2
    assert np.array_equal(table.ravel(), expected)
    assert found == expected[6:13].sum()


@_jit.njit
def _write_once(table):
    part = _jit.span(table, 0, 4)
    part[0] = np.float32(7.0)


@_jit.njit
def _write_and_read(table):
    part = _jit.span(table, 0, 4)
    part[0] = np.float32(7.0)
    again = _jit.span(table, 0, 4)
    return again[0]


@_jit.njit
def _write_in_a_loop_of_two(table):
    for row in range(2):
        part = _jit.span(table, row * 4, 4)
        part[0] = np.float32(7.0)


@_jit.njit
def _write_in_a_loop_whose_first_turn_differs(table):
    kept = np.float32(0.0)
    for row in range(len(table)):
        part = _jit.span(table, row * 4, 4)
        part[0] = kept * part[0] + np.float32(7.0)
        kept = np.float32(1.0)


@pytest.mark.parametrize(
    "kernel, rows",
    [
        (_write_once, 1),
        (_write_and_read, 1),
        (_write_in_a_loop_of_two, 2),
        (_write_in_a_loop_whose_first_turn_differs, 3),
    ],
)
def test_no_write_to_a_span_is_lost(kernel, rows):
    """LLVM discards writes to memory that it believes to be local and unread: spans must prevent that."""
    table = np.zeros((3, 4), np.float32)
    assert kernel(table) in (None, 7.0)
    expected = np.zeros((3, 4), np.float32)
    expected[:rows, 0] = 7
    np.testing.assert_array_equal(table, expected)


@pytest.mark.needs_jit
def test_llvm_reads_what_the_intrinsics_write():
    """Otherwise all kernels would silently be slower."""
    assert _jit._llvm_reads(_jit._emit_prefetch) and _jit._llvm_reads(_jit._emit_promise)
    assert not _jit._llvm_reads(lambda builder, pointer: builder.call(pointer, []))


def _sum_of_spans(table):
    total = 0.0
    for row in range(table.shape[0]):
        _jit.prefetch(table, row)
        part = _jit.span(table, row * table.shape[1], table.shape[1])
        for value in part:
            total += value
    return total


@pytest.mark.needs_jit
def test_kernels_work_where_llvm_rejects_the_hints(monkeypatch):
    monkeypatch.setattr(_jit, "_llvm_reads", lambda emit: False)
    kernel = numba.njit(_sum_of_spans)
    table = np.arange(12.0).reshape(3, 4)
    assert kernel(table) == table.sum()
    assert "asm sideeffect" not in next(iter(kernel.inspect_llvm().values()))
    monkeypatch.undo()
    kernel = numba.njit(_sum_of_spans)
    assert kernel(table) == table.sum() and "asm sideeffect" in next(iter(kernel.inspect_llvm().values()))


@pytest.mark.needs_jit
def test_span_refuses_what_is_not_contiguous():
    with pytest.raises(numba.TypingError, match="C-contiguous"):
        _write_once(np.zeros((3, 4), np.float32).T)


@_jit.njit
def _double_twice(table, start, length):
    total = np.float32(0.0)
    for shift in range(2):
        part = _jit.span(table, start + shift, length)
        for k in range(len(part)):
            part[k] *= np.float32(2.0)
    part = _jit.span(table, start + 1, length)
    for k in range(len(part)):
        total += part[k]
    return total


class _Line(NamedTuple):
    slope: float


class _Level(NamedTuple):
    height: float


@_jit.by_type
def _value(model, x):
    """The height of a line or a level."""


@_value.of(_Line)
def _line_value(line, x):
    return line.slope * x


@_value.of(_Level)
def _level_value(level, x):
    if level.height < 0:
        raise ValueError("below the ground")
    return level.height


def _sum_of_values(model, n):
    total = 0.0
    for x in range(n):
        total += _value(model, x)
    return total


def test_the_type_of_the_first_argument_selects_the_kernel():
    kernel = _jit.njit(_sum_of_values)
    assert kernel(_Line(2.0), 4) == 12.0 and kernel(_Level(2.0), 4) == 8.0
    with pytest.raises(ValueError, match="below the ground"):
        kernel(_Level(-1.0), 4)


@pytest.mark.needs_jit
def test_a_kernel_that_kernels_call_is_a_part_until_python_calls_it():
    twice = _jit.njit(_double)
    fourfold = _jit.njit(lambda x: twice(twice(x)))
    assert fourfold(3) == 12
    assert [callable(compiled.entry_point) for compiled in twice.part.overloads.values()] == [False]
    assert not twice.overloads
    assert twice(3) == 6 and len(twice.overloads) == 1
    assert fourfold(3.0) == 12.0


@pytest.mark.needs_jit
def test_without_numbas_internals_kernels_call_the_form_that_python_calls(monkeypatch):
    assert _kernel_parts.has_compiler_internals()
    monkeypatch.setattr(_kernel_parts, "has_compiler_internals", lambda: False)
    twice = _jit.njit(_double)
    fourfold = _jit.njit(lambda x: twice(twice(x)))
    assert fourfold(3) == 12
    assert len(twice.overloads) == 1 and not twice.part.overloads


@pytest.mark.parametrize("kernel", [uniform, _value, _line_value])
def test_a_kernel_is_pickled_by_name(kernel):
    """Also one that is declared by `by_type`."""
    assert pickle.loads(pickle.dumps(kernel)) is kernel


@pytest.mark.needs_jit
def test_sums_of_fixed_order_are_the_same_in_every_caller():
    """A sum that LLVM may reorder: called from Python, and from kernels that add to it in different ways."""
    values = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32)
    ordered = _jit.njit(fixed_order=True)(_plain_sum)
    outside = [ordered(row) for row in values]
    inside = _jit.njit(lambda rows, k: ordered(rows[k]))
    deeper = _jit.njit(lambda rows, k: inside(rows, k) + np.float32(1.0))
    assert outside == [inside(values, k) for k in range(len(values))]
    assert [value + np.float32(1.0) for value in outside] == [deeper(values, k) for k in range(len(values))]
    found = ordered.part.overloads.values()
    assert all("reassoc" not in line or "vector.reduce" in line for each in found for line in _llvm(each))


def _llvm(compiled):
    return compiled.library.get_llvm_str().splitlines()


def _plain_sum(row):
    total = np.float32(0.5)
    for k in range(len(row)):
        total += row[k] * row[k]
    return total


def test_exponentials_are_whole_numbers_within_a_unit_of_the_logarithm():
    """-ln(1 - u) in units of 2^-30, by whole numbers alone."""
    stream = key(5, "exponential")
    found = [int(exponential(stream, j)) for j in range(3000)]
    expected = [-math.log(1.0 - float(uniform(stream, j))) * 2**FRACTION for j in range(3000)]
    assert max(abs(one - other) for one, other in zip(found, expected, strict=True)) <= 0.6
    assert min(found) >= 0 and abs(sum(found) / 3000 / 2**FRACTION - 1.0) < 0.08


def test_keys_and_exponentials_never_change():
    """Every sample of S_u depends on them: a change in the last bit would change models."""
    assert int(key(7, "M_c", "d", 3)) == 10563621499982155452
    stream = key(5, "exponential")
    assert [int(exponential(stream, j)) for j in range(4)] == [1020739865, 530302638, 756945647, 307388736]
    assert sum(int(exponential(stream, j)) for j in range(8000)) == 8525823180136
