"""Epochs of mf on several threads, bit for bit those of one thread.

Samples are arranged beforehand (but for rows wider than `WIDE`), which a thread of its own can do while the epoch
before is trained on: each batch by user, in the order in which one thread meets them, with its items numbered. Batches
are then trained by one thread, which has the less to do, or by several.

By several: within a batch each user is trained by one thread: its samples' errors, its gradient and its step, with a
copy of its old row put aside. Then each item by one thread: its gradient from the users' old rows, summed in the order
in which a single thread meets them, and its step. No two threads add to one sum, so their number cannot matter. That
one thread with the kernel of mf.py gives these bits too rests on all being compiled from the same steps, and is tested:
a change there is a change here.

A row belongs to the shard of its number, so that in every batch the same core trains it, and what a shard writes for
its samples stands side by side: cache lines that went back and forth between two cores cost more than both gained.

Which is faster depends on rank, batch, cores and who else uses them. So pieces of an epoch are timed, and several
threads train where they are found to be faster (`Pace`); on a busy machine a batch may wait 20 times as long for the
other core as it takes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np

from dubnb import losses
from dubnb import stream as streams
from dubnb._jit import njit, prefetch, prefetch_to_write, span
from dubnb.backbones import adam, epochs
from dubnb.backbones import embedding as emb
from dubnb.beside import Beside
from dubnb.stream import Stream, copy_sample, samples_of

if TYPE_CHECKING:
    from dubnb.backbones.mf import MF, MFTrainer, Model

SHARDS = 16  # at most so many threads
FAR = 8  # samples between the prefetch of a row that another core may have written and its use
PIECE = 1 << 15  # samples, at least, that are trained on before the number of threads is chosen anew
TRIAL = (2, 4.0), (6, 2.0), (1 << 30, 1.0)  # rounds: batches, and how many times the time of one thread is too much
WIDE = 128  # floats: wider rows take so long that arranging samples is not worth it
LONGEST = 1 << 10  # pieces, at most, from one trial to the next
CALM = 0.9  # of the wall clock that the training has its core for, at least, before it asks for another
IN_NEED = 4  # times shorter are pieces while the thread beside works, as it may soon be free


class Arranged(NamedTuple):
    """A stream whose batches are grouped by user; items are numbered within each batch, in order of appearance."""

    samples: Stream
    item_slots: np.ndarray  # int32; empty where the stream is as it was drawn


class Arranger:
    """Arranges streams, in place."""

    def __init__(self, shape: tuple[int, int], batch_size: int):
        self.users, self.items = (emb.new_slots(count, batch_size) for count in shape)
        self.order, self.starts = np.zeros(batch_size, np.int32), np.zeros(batch_size + 1, np.int32)
        self.sequence, self.room = np.arange(batch_size, dtype=np.int32), streams.empty(batch_size)

    def __call__(self, stream: Stream) -> Arranged:
        """`stream` itself, arranged."""
        item_slots = np.empty(len(stream.users), np.int32)
        groups = self.sequence, self.starts, self.order
        _arrange(stream, self.users, self.items, groups, self.room, item_slots)
        return Arranged(stream, item_slots)


@njit
def _arrange(stream, users, items, groups, room, item_slots):
    sequence, starts, order = groups
    n, batch_size = len(stream.users), len(order)
    for start in range(0, n, batch_size):
        size = min(batch_size, n - start)
        batch = samples_of(stream, start, start + size)
        n_users = emb.assign_slots(batch.users, users)
        emb.order_by_slot(users, n_users, span(sequence, 0, size), starts, order)
        emb.release_slots(users, n_users)
        for j in range(size):
            copy_sample(batch, j, room, j)
        for j in range(size):
            copy_sample(room, order[j], batch, j)
        n_items = emb.assign_slots(batch.items, items)
        emb.put(items.of_sample[:size], item_slots[start : start + size])
        emb.release_slots(items, n_items)


def _as_drawn(stream: Stream) -> Arranged:
    """A stream that is not arranged."""
    return Arranged(stream, np.empty(0, np.int32))


class Pace:
    """Chooses whether the next piece of an epoch is trained by one thread or by several: whichever was faster.

    Several have to wake up, and rows have to move to their cores, before they show what they can do: so they are tried
    in a few batches, then in more as long as there is hope. Where they lose, the next trial is the later, the worse
    they did; a success halves that pause, lest one lucky piece on a busy machine lead to many bad ones. A thread that
    has not had its own core to itself need not ask whether there is a second one: timings would be noise there.
    """

    def __init__(self) -> None:
        self.of_one = np.inf  # seconds per sample
        self.calm = True
        self.pause, self.left = 1.0, 1  # pieces from one trial to the next, and still to come
        self.round = 0  # of the trial

    def batches(self, whole: int) -> tuple[int, bool]:
        """(How many batches the next piece has, `whole` if it is not for a trial; whether several threads train it)."""
        if self.left > 0 or not self.calm:
            self.left = max(self.left - 1, 0)
            return whole, False
        return min(TRIAL[self.round][0], whole), True

    def took(self, several: bool, seconds_per_sample: float, share: float = 1.0) -> None:
        """What a piece took; `share`: CPU seconds of the thread that trains over those of the clock."""
        self.calm = share >= CALM
        if not several:
            self.of_one = seconds_per_sample
            return
        slower = seconds_per_sample / self.of_one
        if slower < TRIAL[self.round][1]:
            self.pause = max(self.pause / 2, 1.0) if self.round == len(TRIAL) - 1 else self.pause
            self.round = min(self.round + 1, len(TRIAL) - 1)
        else:
            self.round, self.pause = 0, min(2 * slower * self.pause, LONGEST)
            self.left = int(self.pause)


class Team:
    """The threads that train one model, and what they need beyond the scratch space of one."""

    def __init__(self, beside: Beside, weights: MF, batch_size: int):
        self.beside, self.pace = beside, Pace()
        self.spare: Spare | None = None
        shape, narrow = (len(weights.users), len(weights.items)), weights.users.shape[1] <= WIDE
        beside.arrange = Arranger(shape, batch_size) if narrow else _as_drawn

    def epoch(
        self, own: MFTrainer, model: Model, stream: Arranged, loss: losses.Loss, lr: float, totals: np.ndarray
    ) -> None:
        """Train `own`, a trainer, on an arranged stream."""
        n, first, whole = len(stream.samples.users), 0, -(-PIECE // own.batch_size)
        numbers = own.rank, own.batch_size, loss.code, lr
        while first < n:
            self.beside.between()
            in_need = self.beside.in_need()
            batches, several = (-(-whole // IN_NEED), False) if in_need else self.pace.batches(whole)
            size = batches * own.batch_size
            piece = Arranged(streams.part(stream.samples, first, first + size), stream.item_slots[first : first + size])
            start, worked = time.perf_counter(), time.thread_time()
            own.step = self._train(several, own, model, piece, (*numbers, own.step, totals))
            seconds = time.perf_counter() - start
            share = (time.thread_time() - worked) / max(seconds, 1e-9)
            self.pace.took(several, seconds / len(piece.samples.users), share)
            first += size

    def _train(self, several: bool, own: MFTrainer, model: Model, piece: Arranged, numbers: tuple[Any, ...]) -> int:
        if not several and not len(piece.item_slots):
            return int(epochs.epoch(model, piece.samples, emb.unanchored(own.rank), *numbers[1:]))
        if not several:
            return int(_epoch_of_one(model, piece, *numbers))
        if self.spare is None:
            self.spare = new_spare(own.batch_size, own.width)
        return int(epoch(model, piece.samples, self.spare, *numbers))


@njit
def _epoch_of_one(model, arranged, rank, batch_size, loss, lr, step, totals):
    """One pass over an arranged stream; returns the number of steps made since the optimizer was fresh."""
    n = len(arranged.item_slots)
    for start in range(0, n, batch_size):
        step += 1
        size = min(batch_size, n - start)
        batch, slots = samples_of(arranged.samples, start, start + size), span(arranged.item_slots, start, size)
        _train_arranged(model, batch, slots, rank, loss, adam.rates(lr, step), totals)
    return step


@njit
def _train_arranged(model, batch, slots, rank, loss, now, totals):
    """What `mf.train_batch` does."""
    tables, work, decay = model.tables, model.work, emb.slot_of(model.decay, 0)
    users_table, items_table, b0 = tables.users, tables.items, tables.b0[0]
    users, items, targets, weights, terms = batch.users, batch.items, batch.targets, batch.weights, batch.terms
    item_rows, user_gradient, item_gradients = work.item_slots.row, work.user_gradient, work.item_gradients
    n, n_items, j, b0_gradient = len(users), 0, 0, np.float32(0.0)
    share = np.float32(1.0) / np.float32(n)
    while j < n:
        user = users[j]
        p, p_m, p_v = emb.row_of(users_table, user)
        dp = emb.slot_of(user_gradient, 0)
        dp[:] = np.float32(0.0)
        while j < n and users[j] == user:
            if j + emb.AHEAD < n:
                emb.prefetch_row(items_table, items[j + emb.AHEAD], 1)
                if users[j + emb.AHEAD] != users[j + emb.AHEAD - 1]:
                    emb.prefetch_row(users_table, users[j + emb.AHEAD], 3)
            q, dq = emb.weights_of(items_table, items[j]), emb.slot_of(item_gradients, slots[j])
            if slots[j] == n_items:
                item_rows[n_items] = items[j]
                dq[:] = np.float32(0.0)
                n_items += 1
            value, slope = losses.value_and_derivative(loss, b0 + emb.dot(p, q), targets[j])
            totals[terms[j]] += weights[j] * value
            error = share * weights[j] * slope
            b0_gradient += error
            for k in range(len(p)):
                dp[k] += error * q[k]
                dq[k] += error * p[k]
            j += 1
        dp[rank + 1] = np.float32(0.0)  # the constant 1
        adam.update_row(p, p_m, p_v, dp, decay, now)
    for slot in range(n_items):
        q, q_m, q_v = emb.row_of(items_table, item_rows[slot])
        dq = emb.slot_of(item_gradients, slot)
        dq[rank] = np.float32(0.0)  # the constant 1
        adam.update_row(q, q_m, q_v, dq, decay, now)
    tables.b0[0], tables.b0[1], tables.b0[2] = adam.update(b0, tables.b0[1], tables.b0[2], b0_gradient, now)


# Several threads


# What goes into a parallel loop must be a plain array, a number, or a tuple of arrays of one type: hence these.
class BothTables(NamedTuple):
    users: np.ndarray  # (n_users, 3, width)
    items: np.ndarray  # (n_items, 3, width)


class Groups(NamedTuple):
    """The samples of a batch by user, or by item, all int32; slots number the distinct rows.

    Users stand shard by shard, which gives every sample a place; an item lists the places of its samples, in the order
    in which one thread would meet them.
    """

    rows: np.ndarray  # of a slot
    counts: np.ndarray  # samples of a slot
    starts: np.ndarray  # slot k's are list[starts[k] : starts[k] + counts[k]]
    list: np.ndarray  # of users: the sample at each place; of items: places
    members: np.ndarray  # shard s trains the slots members[bounds[s] : bounds[s + 1]]
    bounds: np.ndarray  # (SHARDS + 1,)


class Floats(NamedTuple):
    """Numbers of each sample of a batch, and b0 with its moments."""

    b0: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    errors: np.ndarray  # by place: the derivatives of the weighted losses


class ScratchRows(NamedTuple):
    """Rows that a batch needs for a while."""

    old_users: np.ndarray  # (batch, width)
    gradients: np.ndarray  # (SHARDS, width): one at a time in each shard
    decay: np.ndarray  # (1, width)


class Spare(NamedTuple):
    """Scratch space beyond that of one thread."""

    old_users: np.ndarray
    gradients: np.ndarray
    starts: np.ndarray  # (batch,) int32: of items
    places: np.ndarray  # (batch,) int32: of items
    owners: np.ndarray  # (batch,) int32: the user's slot of each place
    members: np.ndarray  # (2, batch) int32: of users and of items
    bounds: np.ndarray  # (2, SHARDS + 1) int32
    values: np.ndarray  # (batch,) float64: weighted losses by place
    errors: np.ndarray  # (batch,) float32


def new_spare(batch_size: int, width: int) -> Spare:
    """Scratch space for batches of up to `batch_size`."""
    return Spare(
        emb.aligned((batch_size, width)),
        emb.aligned((SHARDS, width)),
        np.zeros(batch_size, np.int32),
        np.zeros(batch_size, np.int32),
        np.zeros(batch_size, np.int32),
        np.zeros((2, batch_size), np.int32),
        np.zeros((2, SHARDS + 1), np.int32),
        np.zeros(batch_size),
        np.zeros(batch_size, np.float32),
    )


@njit
def epoch(model, stream, spare, rank, batch_size, loss, lr, step, totals):
    """One pass over the stream; returns the number of steps made since the optimizer was fresh."""
    tables, work, errors, owners = model.tables, model.work, spare.errors, spare.owners
    both, rows = BothTables(tables.users, tables.items), ScratchRows(spare.old_users, spare.gradients, model.decay)
    for start in range(0, len(stream.users), batch_size):
        step += 1
        now = adam.rates(lr, step)
        batch = samples_of(stream, start, min(start + batch_size, len(stream.users)))
        floats = Floats(tables.b0, batch.targets, batch.weights, errors)
        n_users, n_items = (
            emb.assign_slots(batch.users, work.user_slots),
            emb.assign_slots(batch.items, work.item_slots),
        )
        users, items = _grouped(n_users, n_items, work, spare, len(batch.items))
        _train_users(both, rows, users, batch.items, floats, spare.values, rank, loss, now)
        b0_gradient = _sums(batch.terms, users, n_users, spare.values, errors, totals)
        _train_items(both, rows, owners, items, errors, rank, now)
        tables.b0[0], tables.b0[1], tables.b0[2] = adam.update(
            tables.b0[0], tables.b0[1], tables.b0[2], b0_gradient, now
        )
        emb.release_slots(work.user_slots, n_users)
        emb.release_slots(work.item_slots, n_items)
    return step


@njit
def _grouped(n_users, n_items, work, spare, n):
    """The batch's n samples by user and by item."""
    users, items = work.user_slots, work.item_slots
    by_user = Groups(users.row, users.count, work.starts, span(work.order, 0, n), spare.members[0], spare.bounds[0])
    by_item = Groups(items.row, items.count, spare.starts, span(spare.places, 0, n), spare.members[1], spare.bounds[1])
    _share_out(by_user, n_users)
    _share_out(by_item, n_items)
    samples, starts, counts, of_sample = by_user.list, by_user.starts, by_user.counts, users.of_sample
    for j in range(n):
        slot = emb.place(of_sample[j])
        samples[emb.place(starts[slot])] = j
        starts[slot] += 1
    for slot in range(n_users):
        starts[slot] -= counts[slot]
    _list_places(by_user, n_users, items.of_sample, by_item, spare.owners)
    for slot in range(n_items):
        by_item.starts[slot] -= by_item.counts[slot]
    return by_user, by_item


@njit
def _share_out(groups, n_slots):
    """Every shard's slots, those whose row's number leaves the shard's when divided by SHARDS, and their room."""
    rows, counts, starts, members, bounds = groups.rows, groups.counts, groups.starts, groups.members, groups.bounds
    bounds[:] = 0
    for slot in range(n_slots):
        bounds[emb.place(rows[slot]) % emb.place(SHARDS)] += 1
    for shard in range(SHARDS):
        bounds[shard + 1] += bounds[shard]
    for slot in range(n_slots - 1, -1, -1):
        shard = emb.place(rows[slot]) % emb.place(SHARDS)
        bounds[shard] -= 1
        members[emb.place(bounds[shard])] = slot
    start = 0
    for at in range(n_slots):
        slot = emb.place(members[at])
        starts[slot] = start
        start += counts[slot]


@njit
def _list_places(users, n_users, item_of_sample, items, owners):
    """Every item's places, user by user; the starts of `items` come to their ends."""
    samples, starts, counts, places, ends = users.list, users.starts, users.counts, items.list, items.starts
    for slot in range(n_users):
        for at in range(starts[slot], starts[slot] + counts[slot]):
            owners[emb.place(at)] = slot
            item = emb.place(item_of_sample[emb.place(samples[emb.place(at)])])
            places[emb.place(ends[item])] = at
            ends[item] += 1


@njit(parallel=True)
def _train_users(tables, rows, users, items, floats, values, rank, loss, now):
    """Every user of the batch: errors, gradient, step."""
    for shard in numba.prange(SHARDS):
        _train_shard_of_users(np.int64(shard), tables, rows, users, items, floats, values, rank, loss, now)


@njit
def _train_shard_of_users(shard, tables, rows, users, items, floats, values, rank, loss, now):
    users_table, items_table, old_users, gradients = tables.users, tables.items, rows.old_users, rows.gradients
    user_rows, counts, starts, samples, members = users.rows, users.counts, users.starts, users.list, users.members
    targets, weights, errors, b0 = floats.targets, floats.weights, floats.errors, floats.b0[0]
    share, decay = np.float32(1.0) / np.float32(len(samples)), emb.slot_of(rows.decay, 0)
    end = users.bounds[shard + 1]
    for at in range(users.bounds[shard], end):
        if at + emb.AHEAD < end:
            emb.prefetch_row(users_table, user_rows[members[at + emb.AHEAD]], 3)
            _claim(old_users, members[at + emb.AHEAD], old_users.shape[1])
        slot = members[at]
        p, m, v = emb.row_of(users_table, user_rows[slot])
        dp, old = emb.slot_of(gradients, shard), emb.slot_of(old_users, slot)
        dp[:] = np.float32(0.0)
        for spot in range(starts[slot], starts[slot] + counts[slot]):
            if spot + FAR < len(samples):
                emb.prefetch_row(items_table, items[samples[spot + FAR]], 1)
            j = emb.place(samples[spot])
            q = emb.weights_of(items_table, items[j])
            value, slope = losses.value_and_derivative(loss, b0 + emb.dot(p, q), targets[j])
            values[spot] = weights[j] * value
            errors[spot] = error = share * weights[j] * slope
            for k in range(len(p)):
                dp[k] += error * q[k]
        for k in range(len(p)):
            old[k] = p[k]
        dp[rank + 1] = np.float32(0.0)  # the constant 1
        adam.update_row(p, m, v, dp, decay, now)


@njit
def _sums(terms, users, n_users, values, errors, totals):
    """Add each term's losses to `totals`; returns b0's gradient. In the order of one thread."""
    starts, counts, samples = users.starts, users.counts, users.list
    b0_gradient = np.float32(0.0)
    for slot in range(n_users):
        for spot in range(starts[slot], starts[slot] + counts[slot]):
            totals[terms[samples[spot]]] += values[spot]
            b0_gradient += errors[spot]
    return b0_gradient


@njit(parallel=True)
def _train_items(tables, rows, owners, items, errors, rank, now):
    """Every item of the batch: gradient, step."""
    for shard in numba.prange(SHARDS):
        _train_shard_of_items(np.int64(shard), tables, rows, owners, items, errors, rank, now)


@njit
def _train_shard_of_items(shard, tables, rows, owners, items, errors, rank, now):
    items_table, old_users, gradients = tables.items, rows.old_users, rows.gradients
    item_rows, counts, starts, places, members = items.rows, items.counts, items.starts, items.list, items.members
    decay, end, n = emb.slot_of(rows.decay, 0), items.bounds[shard + 1], len(places)
    for at in range(items.bounds[shard], end):
        if at + emb.AHEAD < end:
            _claim(items_table, item_rows[members[at + emb.AHEAD]], 3 * items_table.shape[2])
        slot = members[at]
        q, m, v = emb.row_of(items_table, item_rows[slot])
        dq = emb.slot_of(gradients, shard)
        dq[:] = np.float32(0.0)
        for position in range(starts[slot], starts[slot] + counts[slot]):
            if position + FAR < n:
                _prefetch_slot(old_users, owners[places[position + FAR]])
            spot = emb.place(places[position])
            error, old = errors[spot], emb.slot_of(old_users, owners[spot])
            for k in range(len(dq)):
                dq[k] += error * old[k]
        dq[rank] = np.float32(0.0)  # the constant 1
        adam.update_row(q, m, v, dq, decay, now)


@njit
def _prefetch_slot(rows, slot):
    """A row that another core has written."""
    for k in range(np.int64(slot) * rows.shape[1], (np.int64(slot) + 1) * rows.shape[1], emb.LANE):
        prefetch(rows, k)


@njit
def _claim(rows, row, width):
    """A row that another core has read, and that this one will write: asked for early, as the other must let it go."""
    for k in range(np.int64(row) * width, (np.int64(row) + 1) * width, emb.LANE):
        prefetch_to_write(rows, k)
