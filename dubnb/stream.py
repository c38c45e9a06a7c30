"""Streams of weighted samples: bound terms produce them, epoch kernels train on them."""

from typing import NamedTuple

import numpy as np

from dubnb._jit import njit, span
from dubnb._random import uniform

_BUCKET = 8192  # samples shuffled at a time: at 17 bytes each, a bucket fits into the L2 cache


class Stream(NamedTuple):
    """Parallel arrays: each sample's user, item, target, weight, and the number of its term."""

    users: np.ndarray  # int32
    items: np.ndarray  # int32
    targets: np.ndarray  # float32, any real number
    weights: np.ndarray  # float32
    terms: np.ndarray  # uint8


def empty(size: int) -> Stream:
    """A stream with room for `size` samples."""
    return Stream(
        np.zeros(size, np.int32),
        np.zeros(size, np.int32),
        np.zeros(size, np.float32),
        np.ones(size, np.float32),
        np.zeros(size, np.uint8),
    )


def part(stream: Stream, start: int, stop: int | None) -> Stream:
    """The samples from `start` to `stop`, as a view."""
    return Stream(*(column[start:stop] for column in stream))


@njit(inline=True)
def samples_of(stream, start, stop):
    """The same as `part`, for kernels."""
    n = stop - start
    return Stream(
        span(stream.users, start, n),
        span(stream.items, start, n),
        span(stream.targets, start, n),
        span(stream.weights, start, n),
        span(stream.terms, start, n),
    )


def n_buckets(n: int) -> int:
    """The number of buckets in the shuffle of n samples."""
    return n // _BUCKET + 1


def shuffle(key: np.uint64, source: Stream, target: Stream) -> None:
    """Write `source` to `target` in a uniformly random order that depends on `key` alone."""
    Shuffle(key, target).add(source)


class Shuffle:
    """`shuffle` for samples that arrive in pieces; the order does not depend on how they are cut.

    Every sample goes to a random bucket, then each bucket is shuffled (Rao, 1961; Sandelius, 1962). The order is
    uniform, as with Fisher-Yates, but memory is touched bucket by bucket, so the cost per sample does not grow with
    the stream.
    """

    def __init__(self, key: np.uint64, target: Stream):
        count = n_buckets(len(target.users))
        self.key, self.target, self.first = key, target, 0
        self.starts, self.fill = np.zeros(count + 1, np.int64), np.zeros(count, np.int64)

    def add(self, piece: Stream) -> None:
        """Add the next samples; the order is complete after the last of them."""
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
