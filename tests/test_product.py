"""Tiled matrix products: every element against NumPy, at every width, and independent of its neighbours."""

import numpy as np
import pytest

from dubnb.backbones import network
from dubnb.backbones.network import BLOCK, LANES, MARGIN, n_vectors


def padded(matrix, rows, width):
    """`matrix` in the corner of a larger array whose other elements are noise."""
    room = np.full((rows, width), 7.5, np.float32)
    room[: len(matrix), : matrix.shape[1]] = matrix
    return room


def packed(weights, transposed=False):
    depth, columns = weights.shape[::-1] if transposed else weights.shape
    out = np.zeros((n_vectors(columns), depth, LANES), np.float32)
    (network.pack_transposed if transposed else network.pack_panels)(weights.ravel(), depth, columns, out)
    return out


def test_the_number_of_vectors_is_the_smallest_that_fits_and_at_least_two():
    assert [n_vectors(columns) for columns in (1, LANES, LANES + 1, 2 * LANES, 2 * LANES + 1)] == [2, 2, 2, 2, 3]


def test_products_of_some_rows_do_not_change_the_rows_before():
    random, n, first = np.random.default_rng(0), BLOCK + 20, 7
    a, b = random.normal(size=(n, 4)).astype(np.float32), random.normal(size=(4, 17)).astype(np.float32)
    out = np.full((n + MARGIN, n_vectors(17) * LANES), 9.0, np.float32)
    network.multiply(padded(a, n + MARGIN, 4), first, n, packed(b), out, False)
    np.testing.assert_allclose(out[first:n, :17], a[first:] @ b, rtol=1e-5, atol=1e-5)
    assert (out[:first] == 9.0).all()
    right = random.normal(size=(n, 2 * LANES)).astype(np.float32)
    out = np.full((4 + MARGIN, 2 * LANES), 9.0, np.float32)
    network.multiply_transposed(padded(a, n, 4 + MARGIN), 4, right, first, n, out, False)
    np.testing.assert_allclose(out[:4], a[first:].T @ right[first:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n,depth,columns", [(1, 1, 1), (4, 3, 8), (7, 5, 17), (13, 9, 24), (BLOCK + 7, 6, 33)])
@pytest.mark.parametrize("more", [False, True])
def test_products_equal_numpys(n, depth, columns, more):
    random = np.random.default_rng(n)
    a, b = random.normal(size=(n, depth)), random.normal(size=(depth, columns))
    a, b = a.astype(np.float32), b.astype(np.float32)
    width = n_vectors(columns) * LANES
    for right in (packed(b), packed(np.ascontiguousarray(b.T), transposed=True)):
        out = np.ones((n + MARGIN, width), np.float32)
        network.multiply(padded(a, n + MARGIN, depth), 0, n, right, out, more)
        np.testing.assert_allclose(out[:n, :columns], a @ b + more, rtol=1e-5, atol=1e-5)
        assert (out[:n, columns:] == more).all()


@pytest.mark.parametrize("n,columns,wide", [(1, 1, 2), (30, 7, 3), (BLOCK, 5, 5), (2 * BLOCK + 9, 12, 4)])
def test_transposed_products_equal_numpys(n, columns, wide):
    random = np.random.default_rng(n)
    a, b = random.normal(size=(n, columns)).astype(np.float32), random.normal(size=(n, wide * LANES)).astype(np.float32)
    room, out = padded(a, n, columns + MARGIN), np.zeros((columns + MARGIN, wide * LANES), np.float32)
    network.multiply_transposed(room, columns, b, 0, n, out, False)
    np.testing.assert_allclose(out[:columns], a.T @ b, rtol=1e-4, atol=1e-4)
    network.multiply_transposed(room, columns, b, 0, n, out, True)
    np.testing.assert_allclose(out[:columns], 2 * (a.T @ b), rtol=1e-4, atol=1e-4)


@pytest.mark.needs_jit
def test_an_element_does_not_depend_on_its_tile():
    """The same row and column at another position of another product give the same bits."""
    random = np.random.default_rng(0)
    a, b = random.normal(size=(40, 50)).astype(np.float32), random.normal(size=(50, 40)).astype(np.float32)
    found = []
    for rows, columns in ((slice(0, 40), slice(0, 40)), (slice(17, 25), slice(3, 40)), (slice(30, 31), slice(30, 31))):
        left, right = a[rows], np.ascontiguousarray(b[:, columns])
        out = np.zeros((len(left) + MARGIN, n_vectors(right.shape[1]) * LANES), np.float32)
        network.multiply(padded(left, len(left) + MARGIN, 50), 0, len(left), packed(right), out, False)
        whole = np.full((40, 40), np.nan, np.float32)
        whole[rows, columns] = out[: len(left), : right.shape[1]]
        found.append(whole)
    for part in found[1:]:
        known = ~np.isnan(part)
        assert known.any() and np.array_equal(part[known], found[0][known])
