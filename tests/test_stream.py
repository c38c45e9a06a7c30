"""Streams: a shuffle is a uniform permutation of samples that depends on its key alone."""

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chisquare

from dubnb._jit import njit
from dubnb._random import key
from dubnb.backbones import mf
from dubnb.objective import terms as streams
from tests import naive

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")  # uint64, JIT off


def numbered(n):
    """A stream in which every column identifies sample j."""
    stream = streams.empty_stream(n)
    j = np.arange(n)
    stream.users[:], stream.items[:], stream.targets[:] = j, 7 * j, j / 4 - 10
    stream.weights[:], stream.terms[:] = j + 0.5, j % 5
    return stream


def shuffled(n, *names):
    source, target = numbered(n), streams.empty_stream(n)
    before = [column.copy() for column in source]
    streams.shuffle(key(0, *names), source, target)
    assert all(np.array_equal(old, new) for old, new in zip(before, source, strict=True))
    return target


def is_permutation(stream, n):
    j = stream.users
    return (
        np.array_equal(np.sort(j), np.arange(n))
        and np.array_equal(stream.items, 7 * j)
        and np.array_equal(stream.targets, (j / 4 - 10).astype(np.float32))
        and np.array_equal(stream.weights, (j + 0.5).astype(np.float32))
        and np.array_equal(stream.terms, j % 5)
    )


@pytest.mark.parametrize("n", [0, 1, 2, 3, 100])
def test_shuffle_keeps_samples_whole(n):
    assert is_permutation(shuffled(n, "whole"), n)


@pytest.mark.needs_jit
@pytest.mark.parametrize("n", [streams._BUCKET - 1, streams._BUCKET, 5 * streams._BUCKET + 3])
def test_shuffle_of_several_buckets(n):
    stream = shuffled(n, "buckets")
    assert is_permutation(stream, n)
    tenth = n // 10  # every tenth of the result has samples from all tenths of the source
    for start in range(0, n - tenth, tenth):
        counts = np.histogram(stream.users[start : start + tenth], 8, (0, n))[0]
        assert chisquare(counts).pvalue > 1e-6


def test_shuffle_with_small_buckets_is_uniform(monkeypatch):
    """The two-stage path itself, with three buckets: all 24 orders of 4 samples are equally likely."""
    monkeypatch.setattr(streams, "n_buckets", lambda n: n // 2 + 1)
    counts, source, target = Counter(), numbered(4), streams.empty_stream(4)
    for round_ in range(2400):
        streams.shuffle(key(0, "small", round_), source, target)
        counts[tuple(target.users.tolist())] += 1
    assert chisquare([counts[order] for order in permutations(range(4))]).pvalue > 1e-4


def test_shuffle_is_uniform():
    counts = Counter(tuple(shuffled(4, "uniform", round_).users.tolist()) for round_ in range(2400))
    assert len(counts) == math.factorial(4)
    assert chisquare([counts[order] for order in permutations(range(4))]).pvalue > 1e-4


def twin_order(stream_key, n, count):
    """The same shuffle with plain lists: samples go to buckets, then Fisher-Yates in each."""
    buckets = [[] for _ in range(count)]
    for j in range(n):
        buckets[int(naive.uniform(stream_key, j) * count)].append(j)
    order = []
    for bucket in buckets:
        first = len(order)
        for j in range(first + len(bucket) - 1, first, -1):
            k = int(naive.uniform(stream_key, n + j) * (j - first + 1))
            bucket[j - first], bucket[k] = bucket[k], bucket[j - first]
        order += bucket
    return order


@pytest.mark.parametrize("n,count", [(1, 1), (50, 1), (50, 4), (200, 13)])
def test_shuffle_equals_twin(n, count, monkeypatch):
    monkeypatch.setattr(streams, "n_buckets", lambda n: count)
    assert shuffled(n, "twin").users.tolist() == twin_order(key(0, "twin"), n, count)


def test_a_bucket_has_at_most_its_share_on_average():
    size = streams._BUCKET
    assert [streams.n_buckets(n) for n in (0, size - 1, size, 2 * size - 1, 5 * size + 3)] == [1, 1, 2, 2, 6]


def test_shuffle_depends_on_the_key_alone():
    first, again, other = (shuffled(60, name) for name in ("x", "x", "y"))
    assert np.array_equal(first.users, again.users)
    assert not np.array_equal(first.users, other.users)


@pytest.mark.parametrize("size", [1, 7, 60, 100])
def test_shuffle_by_pieces_gives_the_same_order(size, monkeypatch):
    monkeypatch.setattr(streams, "n_buckets", lambda n: n // 16 + 1)
    source, target = numbered(60), streams.empty_stream(60)
    shuffle = streams.Shuffle(key(0, "pieces"), target)
    for first in range(0, 60, size):
        shuffle.add(streams.stream_part(source, first, first + size))
    for found, expected in zip(target, shuffled(60, "pieces"), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_part_is_a_view():
    stream = numbered(10)
    part = streams.stream_part(stream, 3, 6)
    part.targets[:] = -1
    assert part.users.tolist() == [3, 4, 5]
    assert stream.targets[3:6].tolist() == [-1, -1, -1] and stream.targets[2] == np.float32(2 / 4 - 10)


@njit
def marked(stream, start, stop):
    part = mf.samples_of(stream, start, stop)
    part.targets[:] = np.float32(-1.0)
    return len(part.users), part.users[0], part.items[0], part.weights[0], part.terms[0]


def test_kernels_take_the_same_part():
    stream = numbered(10)
    assert marked(stream, 3, 6) == (3, 3, 21, 3.5, 3)
    assert np.flatnonzero(stream.targets == -1).tolist() == [3, 4, 5]


def test_empty_streams_have_weights_1_and_zeros_elsewhere():
    stream = streams.empty_stream(2)
    assert [column.tolist() for column in stream] == [[0, 0], [0, 0], [0.0, 0.0], [1.0, 1.0], [0, 0]]
