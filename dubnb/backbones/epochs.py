"""The loops over batches that all backbones share: one model on a stream, and two models in joint training.

A backbone registers its `train_batch` and `score_batch` for its own Model type, a NamedTuple of tables, scratch space
and decays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dubnb import losses
from dubnb._jit import by_type, njit, span
from dubnb.backbones import adam
from dubnb.backbones import embedding as emb
from dubnb.stream import Stream, copy_sample, samples_of


@by_type
def train_batch(model, batch, anchors, loss, now, totals):
    """One Adam step on a batch; each term's weighted losses are added to `totals`."""


@by_type
def score_batch(model, users, items, out):
    """Raw scores of at most a batch of pairs."""


@njit
def epoch(model, stream, anchors, batch_size, loss, lr, step, totals):
    """One pass over the stream; returns the optimizer's number of steps, which was `step` before."""
    n = len(stream.users)
    for start in range(0, n, batch_size):
        step += 1
        stop = start + batch_size
        batch = samples_of(stream, start, stop if stop < n else n)
        train_batch(model, batch, anchors, loss, adam.rates(lr, step), totals)
    return step


class JointRoom(NamedTuple):
    """Scratch space for a batch of joint training."""

    for_t: Stream  # M_t's batch: e.1's samples, then term d's
    targets: np.ndarray  # (batch of M_c,) float32: term d's, from M_t
    pull_c: emb.Anchors  # where M_c's rows are pulled to; a side without alignment has no rows
    pull_t: emb.Anchors


class Sides(NamedTuple):
    """The settings of joint training."""

    batch_sizes: tuple[int, int]  # of M_c's stream and of S_t
    d: int  # the number of term d, -1 without
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
        train_batch(M_c, batch, pull_c, sides.loss, adam.rates(sides.lr, steps[0]), totals[0])
        if n > 0:
            steps[1] += 1
            train_batch(M_t, for_t, pull_t, sides.loss, adam.rates(sides.lr, steps[1]), totals[1])


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
    return emb.Anchors(users, items, np.float32(room.strength / np.float32(max(n, 1))), room.kind)


@njit
def copy_factors(table, rows, out):
    """Copy the current factors of some rows to `out`."""
    rank = out.shape[1]
    for j in range(len(out)):
        if j + emb.PREFETCH_DISTANCE < len(out):
            emb.prefetch_row(table, rows[j + emb.PREFETCH_DISTANCE], 1)
        source, target = emb.weights_of(table, rows[j]), span(out, j * rank, rank)
        for k in range(rank):
            target[k] = source[k]
