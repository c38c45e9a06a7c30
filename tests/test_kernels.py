"""Rules for every kernel: no allocations, the bits of Numba's powers, garbage collection as it was."""

import gc

import numba
import numpy as np
import pytest

from dubnb import _jit
from dubnb.backbones import mf
from dubnb.data.pattern import Pattern


def _makes_an_array(x):
    return np.zeros(len(x))[0]


def _copies_an_array(x):
    return x.copy()[0]


def _adds_arrays(x):
    return (x + x)[0]


def _tail(x):
    return x[1:]


def _both_ends(x):
    return x[:1], x[1:]


def _itself(x):
    return x


def _power(base, n):
    return base**n


def _doubled(x):
    return x + x


@pytest.mark.needs_jit
@pytest.mark.parametrize("function", [_makes_an_array, _copies_an_array, _adds_arrays])
def test_a_kernel_that_makes_an_array_is_refused(function):  # it would never be freed
    with pytest.raises(numba.core.errors.NumbaError):
        _jit.njit(function)(np.ones(3))


@pytest.mark.needs_jit
@pytest.mark.parametrize("function", [_tail, _both_ends])
def test_a_kernel_that_returns_a_view_to_python_is_refused(function):  # Python would receive the whole of x
    with pytest.raises(numba.core.errors.NumbaError):
        _jit.njit(function)(np.ones(3))


@pytest.mark.needs_jit
def test_a_kernel_may_return_its_argument_and_its_parts_views():
    tail, x = _jit.njit(_tail), np.arange(3.0)
    first_of_tail = _jit.njit(lambda x: tail(x)[0])
    assert _jit.njit(_itself)(x) is x and first_of_tail(x) == 1.0


@pytest.mark.needs_jit
@pytest.mark.parametrize("base", [mf.BETA_1, mf.BETA_2])
def test_powers_have_the_bits_of_numbas(base):
    numbas = numba.njit(_power)
    for n in (0, 1, 2, 3, 7, 100, 999, 4097, 0xFFFF, 0x10000, 0x10001, 300_000):
        assert mf.power(base, n) == numbas(base, n), n


@pytest.mark.needs_jit
@pytest.mark.parametrize("was_on", [True, False])
def test_compiling_leaves_garbage_collection_as_it_was(was_on):
    before = gc.isenabled()
    (gc.enable if was_on else gc.disable)()
    try:
        assert _jit.njit(_doubled)(21) == 42
        assert gc.isenabled() is was_on
        with pytest.raises(numba.core.errors.NumbaError):
            _jit.njit(_makes_an_array)(np.ones(3))
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()


def test_patterns_have_one_dtype_and_are_writable():
    users, items = np.array([0, 0, 1], np.int32), np.array([1, 2, 0], np.int32)
    made = Pattern.of(users, items, 2), Pattern.from_csr(np.array([0, 2, 3]), items), Pattern.empty(2)
    assert not any(array.flags.writeable for pattern in made for array in pattern)
    assert {tuple(str(numba.typeof(array)) for array in pattern) for pattern in made} == {
        ("readonly array(int64, 1d, C)", "readonly array(int32, 1d, C)")
    }
    assert items.flags.writeable  # the caller's own array stays as it was
