"""An epoch's samples on the device: those of `UnobservedPairs.draw`, in the order of `terms.shuffle`.

The samples are exactly the CPU's. Draws are computed in integers, whose sums do not depend on their order, and the
shuffle is the same permutation. A thread counts, then writes, one piece of the stream, so that samples enter a bucket
in the CPU's order; one thread then shuffles a bucket, swap by swap.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numba import cuda

from dubnb import losses
from dubnb._random import exponential, key, uniform
from dubnb.backbones.mf import Stream
from dubnb.cuda import _launch
from dubnb.cuda._launch import (
    DOUBLES,
    F4,
    F8,
    FLOATS,
    I8,
    INTS,
    LONGS,
    STREAM,
    U8,
    Totals,
    device_array,
    kernel,
    to_device,
)
from dubnb.data.pattern import UnobservedPairs, step_of
from dubnb.objective.terms import (
    ConstantTeacher,
    EpochStreams,
    ItemTeacher,
    ModelTeacher,
    Unobserved,
    empty_stream,
    n_buckets,
    stream_part,
)

PIECES = 256  # the most threads that count a stream
DRAWS = 64  # draws per thread


@kernel(LONGS)
def add_up(sums):
    """Exclusive prefix sums in place, by one thread: sums[k] becomes sums[0] + .. + sums[k - 1]."""
    if cuda.grid(1) == 0:
        total = np.int64(0)
        for k in range(len(sums)):
            here = sums[k]
            sums[k] = total
            total += here


# Draws


@kernel(U8, I8, LONGS)
def sum_exponentials(key, n, sums):
    """sums[c] = the sum of the exponentials that thread c draws, of n in all."""
    for c in range(cuda.grid(1), len(sums), cuda.gridsize(1)):
        total = np.int64(0)
        for j in range(c * DRAWS, min((c + 1) * DRAWS, n)):
            total += exponential(key, j)
        sums[c] = total


@cuda.jit(device=True)
def user_at(position, indptr, n_items):
    """The user whose unobserved pairs hold this position among all of them."""
    low, high = 0, len(indptr) - 2
    while low < high:
        middle = (low + high) // 2
        if (middle + 1) * n_items - indptr[middle + 1] > position:
            high = middle
        else:
            low = middle + 1
    return low


@cuda.jit(device=True)
def seen_below(rank, start, stop, seen):
    """The number of a user's seen items below the unseen item of this rank."""
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        if seen[middle] - (middle - start) <= rank:
            low = middle + 1
        else:
            high = middle
    return low - start


@kernel(U8, LONGS, F8, LONGS, INTS, I8, I8, INTS, INTS)
def draw(key, sums, step, indptr, seen, n_items, size, users, items):
    """Pairs at sorted uniform positions, as `UnobservedPairs.draw` computes them."""
    for c in range(cuda.grid(1), len(sums), cuda.gridsize(1)):
        total = sums[c]
        for j in range(c * DRAWS, min((c + 1) * DRAWS, len(users))):
            total += exponential(key, j)
            position = min(np.int64(total * step), size - 1)
            user = user_at(position, indptr, n_items)
            rank = position - (user * n_items - indptr[user])
            users[j] = user
            items[j] = rank + seen_below(rank, indptr[user], indptr[user + 1], seen)


# Shuffle


@kernel(U8, I8, I8, LONGS)
def count_pieces(key, n, n_pieces, counts):
    """counts[b n_pieces + c] = samples of piece c that fall into bucket b."""
    n_buckets, length = len(counts) // n_pieces, (n + n_pieces - 1) // n_pieces
    for c in range(cuda.grid(1), n_pieces, cuda.gridsize(1)):
        for b in range(n_buckets):
            counts[b * n_pieces + c] = 0
        for j in range(c * length, min((c + 1) * length, n)):
            counts[np.int64(uniform(key, j) * n_buckets) * n_pieces + c] += 1


@kernel(U8, I8, I8, LONGS, LONGS, INTS)
def fill_buckets(key, n, n_pieces, counts, starts, order):
    """Write every sample's number to its bucket; `counts` (prefix sums) is where each piece begins in each bucket."""
    n_buckets, length = len(counts) // n_pieces, (n + n_pieces - 1) // n_pieces
    for c in range(cuda.grid(1), n_pieces, cuda.gridsize(1)):
        if c == 0:
            for b in range(n_buckets):
                starts[b] = counts[b * n_pieces]
        for j in range(c * length, min((c + 1) * length, n)):
            place = np.int64(uniform(key, j) * n_buckets) * n_pieces + c
            order[counts[place]] = j
            counts[place] += 1


@kernel(U8, I8, LONGS, INTS)
def shuffle_buckets(key, n, starts, order):
    """Shuffle each bucket by the swaps of `terms.shuffle`."""
    for b in range(cuda.grid(1), len(starts), cuda.gridsize(1)):
        start, stop = starts[b], (starts[b + 1] if b + 1 < len(starts) else n)
        for j in range(stop - 1, start, -1):
            k = start + np.int64(uniform(key, n + j) * (j - start + 1))
            order[j], order[k] = order[k], order[j]


@kernel(STREAM, INTS, STREAM)
def reorder(source, order, target):
    """target[k] = source[order[k]]."""
    for k in range(cuda.grid(1), len(order), cuda.gridsize(1)):
        j = order[k]
        target.users[k] = source.users[j]
        target.items[k] = source.items[j]
        target.targets[k] = source.targets[j]
        target.weights[k] = source.weights[j]
        target.terms[k] = source.terms[j]


# Targets and weights of drawn pairs


@kernel(FLOATS, I8, F4, F4)
def soften(scores, link, keep, add):
    """t = keep x prediction + add, in place."""
    for j in range(cuda.grid(1), len(scores), cuda.gridsize(1)):
        s = scores[j]
        scores[j] = keep * (losses.sigmoid(s) if link else s) + add


@kernel(FLOATS, INTS, FLOATS)
def take_items(values, items, out):
    """out = values[items]."""
    for j in range(cuda.grid(1), len(items), cuda.gridsize(1)):
        out[j] = values[items[j]]


@kernel(F4, DOUBLES, DOUBLES, INTS, INTS, FLOATS, DOUBLES)
def weigh(weight, A, C, users, items, weights, wide):
    """weight A_u C_i of every pair, also in float64 for their sum."""
    for j in range(cuda.grid(1), len(users), cuda.gridsize(1)):
        weights[j] = np.float64(weight) * (A[users[j]] * C[items[j]])
        wide[j] = weights[j]


@kernel(FLOATS, DOUBLES)
def widen(values, wide):
    """wide = values, in float64."""
    for j in range(cuda.grid(1), len(values), cuda.gridsize(1)):
        wide[j] = values[j]


class DeviceDraws:
    """Draws from S_u on the device."""

    def __init__(self, pairs: UnobservedPairs, n: int):
        self.pairs, self.n = pairs, n
        self.indptr, self.seen = to_device(pairs.seen.indptr), to_device(pairs.seen.items)
        self.sums = device_array(n // DRAWS + 2, np.int64)

    def draw(self, key: np.uint64, users: Any, items: Any) -> None:
        """Fill `users` and `items` with the draws of `UnobservedPairs.draw`."""
        self.pairs.check()
        sum_exponentials(len(self.sums), key, self.n + 1, self.sums)
        add_up(1, self.sums)
        step = step_of(self.pairs.size, int(self.sums[-1:].copy_to_host()[0]))
        numbers = self.pairs.shape[1], self.pairs.size
        draw(len(self.sums), key, self.sums, step, self.indptr, self.seen, *numbers, users, items)


class CudaShuffle:
    """The shuffle of a stream of n samples."""

    def __init__(self, n: int):
        self.n, self.pieces = n, max(1, min(PIECES, n // DRAWS))
        count = n_buckets(n)
        self.counts, self.starts = device_array(count * self.pieces, np.int64), device_array(count, np.int64)
        self.order = device_array(n, np.int32)

    def __call__(self, key: np.uint64, source: Stream, target: Stream) -> None:
        """`terms.shuffle` of streams on the device."""
        count_pieces(self.pieces, key, self.n, self.pieces, self.counts)
        add_up(1, self.counts)
        fill_buckets(self.pieces, key, self.n, self.pieces, self.counts, self.starts, self.order)
        shuffle_buckets(len(self.starts), key, self.n, self.starts, self.order)
        reorder(self.n, source, self.order, target)


class ItemTargets:
    """Targets of a teacher with one value per item, or one for all."""

    def __init__(self, given: float | np.ndarray, n_items: int):
        self.values = to_device(np.broadcast_to(given, n_items), np.float32)

    def predict(self, users: Any, items: Any, out: Any) -> None:
        take_items(len(items), self.values, items, out)


class ModelTargets:
    """Targets of a model teacher: predictions drawn towards a mean."""

    def __init__(self, teacher: ModelTeacher, scorer: Any):
        self.scorer, self.link = scorer, int(teacher.link)
        self.keep = np.float32(1 - teacher.shrink)
        self.add = np.float32(teacher.shrink * teacher.mean + teacher.shift)

    def predict(self, users: Any, items: Any, out: Any) -> None:
        self.scorer.score(users, items, out)
        soften(len(out), out, self.link, self.keep, self.add)


class DeviceTerm:
    """Term d or n on the device."""

    def __init__(self, term: Unobserved, scorer_of: Any):
        self.draws, self.weight = DeviceDraws(term.pairs, term.size), np.float32(term.weight)
        (n_users, n_items), teacher = term.pairs.shape, term.teacher
        self.A, self.C = map(to_device, term.row_weights or (np.ones(n_users), np.ones(n_items)))
        self.wide = device_array(term.size, np.float64)
        self.teacher: ItemTargets | ModelTargets | None = None
        if isinstance(teacher, ModelTeacher):
            self.teacher = ModelTargets(teacher, scorer_of(teacher.M_t))
        elif isinstance(teacher, ConstantTeacher | ItemTeacher):
            given = teacher.value if isinstance(teacher, ConstantTeacher) else teacher.values
            self.teacher = ItemTargets(given, n_items)
        elif teacher is not None:
            raise TypeError(f"a teacher of type {type(teacher).__name__} has no counterpart on the device: add one")

    def fill(self, part: Stream, key: np.uint64) -> float:
        """Draw the epoch's pairs with their targets and weights; returns the sum of the weights."""
        self.draws.draw(key, part.users, part.items)
        if self.teacher is not None:
            self.teacher.predict(part.users, part.items, part.targets)
        weigh(len(part.users), self.weight, self.A, self.C, part.users, part.items, part.weights, self.wide)
        return float(Totals().of(self.wide)[0])


class DeviceStreams(EpochStreams):
    """Epochs of some terms on the device: observed pairs are copied there once, terms d and n are drawn there."""

    def __init__(self, terms: Any, seed: int, stage: str, scorer_of: Any):
        super().__init__(terms, seed, stage)
        bounds = list(itertools.pairwise(np.cumsum([0, *(term.size for term in self.terms)]).tolist()))
        source = empty_stream(self.size)
        for number, (term, where) in enumerate(zip(self.terms, bounds, strict=True)):
            part = stream_part(source, *where)
            part.terms[:] = number
            if not term.redrawn:
                term.samples(seed, stage, 0)(part)
                self.weight_sums[number] = part.weights.sum(dtype=np.float64)
        self.source, self.shuffled = _launch.stream_to_device(source), _launch.stream_to_device(self.shuffled)
        self.parts = [stream_part(self.source, *where) for where in bounds]
        self.drawn = {
            k: DeviceTerm(term, scorer_of) for k, term in enumerate(self.terms) if isinstance(term, Unobserved)
        }
        self.shuffle = CudaShuffle(self.size)

    def draw(self, epoch: int) -> Stream:
        """The samples of one epoch, in the CPU's random order."""
        for number, term in self.drawn.items():
            named = key(self.seed, self.stage, self.names[number], epoch)
            self.weight_sums[number] = term.fill(self.parts[number], named)
        self.shuffle(key(self.seed, self.stage, "shuffle", epoch), self.source, self.shuffled)
        return self.shuffled
