"""The epoch of mf on several threads, bit for bit that of one thread.

Within a batch each user is trained by one thread: its samples' errors, its gradient and its step, with a copy of its
old row put aside. Then each item by one thread: its gradient from the users' old rows, summed in the order in which a
single thread meets them, and its step. No two threads add to one sum, so their number cannot matter. That one thread
with the kernel of mf.py gives these bits too rests on both being compiled from the same steps, and is tested: a change
there is a change here.
"""

from typing import NamedTuple

import numba
import numpy as np

from dubnb import losses
from dubnb._jit import njit, span
from dubnb.backbones import adam
from dubnb.backbones import embedding as emb
from dubnb.stream import samples_of

SHARDS = 16  # at most so many threads; a shard takes every 16th user, then every 16th item


# What goes into a parallel loop must be a plain array, a number, or a tuple of arrays of one type: hence these three.
class BothTables(NamedTuple):
    users: np.ndarray  # (n_users, 3, width)
    items: np.ndarray  # (n_items, 3, width)


class Places(NamedTuple):
    """Who is where in a batch, all int32; slots number the distinct users and items."""

    items: np.ndarray  # of a sample
    user_rows: np.ndarray  # of a slot
    user_slots: np.ndarray  # of a sample
    user_starts: np.ndarray  # slot k's samples are user_order[user_starts[k] : user_starts[k + 1]]
    user_order: np.ndarray
    item_rows: np.ndarray
    item_starts: np.ndarray
    item_order: np.ndarray


class ScratchRows(NamedTuple):
    """Rows that a batch needs for a while."""

    old_users: np.ndarray  # (batch, width)
    gradients: np.ndarray  # (SHARDS, width): one at a time in each shard


class Spare(NamedTuple):
    """Scratch space beyond that of one thread."""

    rows: ScratchRows
    item_starts: np.ndarray  # (batch + 1,) int32
    item_order: np.ndarray  # (batch,) int32
    values: np.ndarray  # (batch,) float64: weighted losses
    errors: np.ndarray  # (batch,) float32: their derivatives


def new_spare(batch_size: int, width: int) -> Spare:
    """Scratch space for batches of up to `batch_size`."""
    return Spare(
        ScratchRows(emb.aligned((batch_size, width)), emb.aligned((SHARDS, width))),
        np.zeros(batch_size + 1, np.int32),
        np.zeros(batch_size, np.int32),
        np.zeros(batch_size),
        np.zeros(batch_size, np.float32),
    )


@njit
def epoch(tables, stream, work, spare, rank, decays, batch_size, loss, lr, step, totals):
    """One pass over the stream; returns the number of steps made since the optimizer was fresh."""
    both, rows, values, errors = BothTables(tables.users, tables.items), spare.rows, spare.values, spare.errors
    for start in range(0, len(stream.users), batch_size):
        step += 1
        now = adam.rates(lr, step)
        batch = samples_of(stream, start, min(start + batch_size, len(stream.users)))
        targets, weights, b0 = batch.targets, batch.weights, tables.b0[0]
        n_users, n_items, places = _grouped(batch, work, spare)
        _train_users(n_users, both, rows, places, targets, weights, values, errors, decays, rank, b0, loss, now)
        b0_gradient = _sums(batch.terms, places.user_order, values, errors, totals)
        _train_items(n_items, both, rows, places, errors, decays, rank, now)
        tables.b0[0], tables.b0[1], tables.b0[2] = adam.update(b0, tables.b0[1], tables.b0[2], b0_gradient, now)
        emb.release_slots(work.user_slots, n_users)
        emb.release_slots(work.item_slots, n_items)
    return step


@njit
def _grouped(batch, work, spare):
    """The batch grouped by user, and that order grouped by item."""
    users, items, n = work.user_slots, work.item_slots, len(batch.items)
    n_users, n_items = emb.assign_slots(batch.users, users), emb.assign_slots(batch.items, items)
    order = span(work.order, 0, n)
    emb.order_by_slot(users, n_users, span(work.sequence, 0, n), work.starts, order)
    emb.order_by_slot(items, n_items, order, spare.item_starts, spare.item_order)
    by_user = users.row, users.of_sample, work.starts, order
    return n_users, n_items, Places(batch.items, *by_user, items.row, spare.item_starts, spare.item_order)


@njit(parallel=True)
def _train_users(n_users, tables, rows, places, targets, weights, values, errors, decays, rank, b0, loss, now):
    """Every user of the batch: errors, gradient, step."""
    for shard in numba.prange(SHARDS):
        _train_shard_of_users(
            np.int64(shard),
            n_users,
            tables,
            rows,
            places,
            targets,
            weights,
            values,
            errors,
            decays,
            rank,
            b0,
            loss,
            now,
        )


@njit
def _train_shard_of_users(
    shard, n_users, tables, rows, places, targets, weights, values, errors, decays, rank, b0, loss, now
):
    users_table, items_table = tables.users, tables.items
    items, user_rows, starts, order = places.items, places.user_rows, places.user_starts, places.user_order
    old_users, gradients = rows.old_users, rows.gradients
    share, decay = np.float32(1.0) / np.float32(len(order)), emb.slot_of(decays, 0)
    for slot in range(shard, n_users, SHARDS):
        if slot + SHARDS < n_users:
            emb.prefetch_row(users_table, user_rows[slot + SHARDS], 3)
        p, m, v = emb.row_of(users_table, user_rows[slot])
        dp, old = emb.slot_of(gradients, shard), emb.slot_of(old_users, slot)
        dp[:] = np.float32(0.0)
        for position in range(starts[slot], starts[slot + 1]):
            j = emb.place(order[position])
            q = emb.weights_of(items_table, items[j])
            value, slope = losses.value_and_derivative(loss, b0 + emb.dot(p, q), targets[j])
            values[j] = weights[j] * value
            errors[j] = error = share * weights[j] * slope
            for k in range(len(p)):
                dp[k] += error * q[k]
        for k in range(len(p)):
            old[k] = p[k]
        dp[rank + 1] = np.float32(0.0)  # the constant 1
        adam.update_row(p, m, v, dp, decay, now)


@njit
def _sums(terms, order, values, errors, totals):
    """Add each term's losses to `totals`; returns b0's gradient. In the order of one thread."""
    b0_gradient = np.float32(0.0)
    for position in range(len(order)):
        j = order[position]
        totals[terms[j]] += values[j]
        b0_gradient += errors[j]
    return b0_gradient


@njit(parallel=True)
def _train_items(n_items, tables, rows, places, errors, decays, rank, now):
    """Every item of the batch: gradient, step."""
    for shard in numba.prange(SHARDS):
        _train_shard_of_items(np.int64(shard), n_items, tables, rows, places, errors, decays, rank, now)


@njit
def _train_shard_of_items(shard, n_items, tables, rows, places, errors, decays, rank, now):
    items_table, old_users, gradients, decay = tables.items, rows.old_users, rows.gradients, emb.slot_of(decays, 0)
    item_rows, user_slots, starts, order = places.item_rows, places.user_slots, places.item_starts, places.item_order
    for slot in range(shard, n_items, SHARDS):
        q, m, v = emb.row_of(items_table, item_rows[slot])
        dq = emb.slot_of(gradients, shard)
        dq[:] = np.float32(0.0)
        for position in range(starts[slot], starts[slot + 1]):
            j = emb.place(order[position])
            error, old = errors[j], emb.slot_of(old_users, user_slots[j])
            for k in range(len(dq)):
                dq[k] += error * old[k]
        dq[rank] = np.float32(0.0)  # the constant 1
        adam.update_row(q, m, v, dq, decay, now)
