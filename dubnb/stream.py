"""A stream of weighted samples: the one thing every bound term is, and the one thing an epoch kernel consumes."""

from typing import NamedTuple

import numpy as np

from dubnb._jit import njit, span
from dubnb._random import uniform

_BUCKET = 8192  # samples shuffled at a time: 17 bytes each, so that a bucket stays in the L2 cache


class Stream(NamedTuple):
    """Parallel arrays: (user, item, target, weight) and the number of the term a sample belongs to."""

    users: np.ndarray  # int32
    items: np.ndarray  # int32
    targets: np.ndarray  # float32, any real number
    weights: np.ndarray  # float32
    terms: np.ndarray  # uint8


def empty(size: int) -> Stream:
    """A stream of `size` samples with nothing in it yet."""
    return Stream(
        np.zeros(size, np.int32),
        np.zeros(size, np.int32),
        np.zeros(size, np.float32),
        np.ones(size, np.float32),
        np.zeros(size, np.uint8),
    )


def part(stream: Stream, start: int, stop: int | None) -> Stream:
    """Samples start..stop as a view."""
    return Stream(*(column[start:stop] for column in stream))


@njit(inline=True)
def samples_of(stream, start, stop):
    """`part` for kernels."""
    n = stop - start
    return Stream(
        span(stream.users, start, n),
        span(stream.items, start, n),
        span(stream.targets, start, n),
        span(stream.weights, start, n),
        span(stream.terms, start, n),
    )


def n_buckets(n: int) -> int:
    """How many buckets the shuffle of n samples has."""
    return n // _BUCKET + 1


def shuffle(key: np.uint64, source: Stream, target: Stream) -> None:
    """Write `source` to `target` in a uniformly random order that depends on `key` alone.

    Every sample is thrown into a random bucket, then each bucket is shuffled (Rao, 1961; Sandelius, 1962): uniform like
    Fisher-Yates, but it touches memory bucket by bucket, so that the cost per sample does not grow with the stream.
    """
    count = n_buckets(len(source.users))
    _shuffle(key, source, target, np.zeros(count + 1, np.int64), np.empty(count, np.int64))


@njit
def _shuffle(key, source, target, starts, fill):
    """`shuffle`, with scratch space for the buckets' first places, zeros, and for their next ones."""
    n, count = len(source.users), len(fill)
    for j in range(n):
        starts[np.int64(uniform(key, j) * count) + 1] += 1
    for b in range(count):
        starts[b + 1] += starts[b]
        fill[b] = starts[b]
    for j in range(n):
        b = np.int64(uniform(key, j) * count)
        copy_sample(source, j, target, fill[b])
        fill[b] += 1
    for b in range(count):
        for j in range(starts[b + 1] - 1, starts[b], -1):
            k = starts[b] + np.int64(uniform(key, n + j) * (j - starts[b] + 1))
            _swap_samples(target, j, k)


@njit
def copy_sample(source, j, target, k):
    target.users[k] = source.users[j]
    target.items[k] = source.items[j]
    target.targets[k] = source.targets[j]
    target.weights[k] = source.weights[j]
    target.terms[k] = source.terms[j]


@njit
def _swap_samples(stream, j, k):
    stream.users[j], stream.users[k] = stream.users[k], stream.users[j]
    stream.items[j], stream.items[k] = stream.items[k], stream.items[j]
    stream.targets[j], stream.targets[k] = stream.targets[k], stream.targets[j]
    stream.weights[j], stream.weights[k] = stream.weights[k], stream.weights[j]
    stream.terms[j], stream.terms[k] = stream.terms[k], stream.terms[j]
