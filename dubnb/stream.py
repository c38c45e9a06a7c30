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
    """Write `source` to `target` in a uniformly random order that depends on `key` alone."""
    Shuffle(key, target).add(source)


class Shuffle:
    """The same for samples that come piece by piece, the same order whatever the pieces: there is no room for all.

    Every sample is thrown into a random bucket, then each bucket is shuffled (Rao, 1961; Sandelius, 1962): uniform like
    Fisher-Yates, but it touches memory bucket by bucket, so that the cost per sample does not grow with the stream.
    """

    def __init__(self, key: np.uint64, target: Stream):
        count = n_buckets(len(target.users))
        self.key, self.target, self.first = key, target, 0
        self.starts, self.fill = np.zeros(count + 1, np.int64), np.zeros(count, np.int64)

    def add(self, piece: Stream) -> None:
        """The next samples; the order is there with the last of them."""
        _shuffle_piece(self.key, self.first, piece, self.target, self.starts, self.fill)
        self.first += len(piece.users)


@njit
def _shuffle_piece(key, first, piece, target, starts, fill):
    n, size, count = len(target.users), len(piece.users), len(fill)
    starts, fill = span(starts, 0, count + 1), span(fill, 0, count)
    if first == 0:
        for j in range(n):
            starts[np.uint64(uniform(key, j) * count) + np.uint64(1)] += 1
        for b in range(count):
            starts[b + 1] += starts[b]
            fill[b] = starts[b]
    for j in range(size):
        b = np.uint64(uniform(key, first + j) * count)
        copy_sample(piece, j, target, np.uint64(fill[b]))
        fill[b] += 1
    if first + size < n:
        return
    for b in range(count):
        for j in range(starts[b + 1] - 1, starts[b], -1):
            k = starts[b] + np.int64(uniform(key, n + j) * (j - starts[b] + 1))
            _swap_samples(target, np.uint64(j), np.uint64(k))


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
