"""The memory accesses of an MF epoch almost without arithmetic: how far the kernel is from the speed of memory."""

import numpy as np

from dubnb._jit import njit
from dubnb.backbones import mf
from dubnb.backbones.mf import samples_of


@njit
def move_rows(users_table, items_table, stream, work, batch_size):
    """Per batch: flip the sign of every row that an epoch updates, and add up the item rows that it reads."""
    total = np.float32(0.0)
    for start in range(0, len(stream.users), batch_size):
        batch = samples_of(stream, start, min(start + batch_size, len(stream.users)))
        users, items = batch.users, batch.items
        for j in range(len(items)):
            if j + mf.PREFETCH_DISTANCE < len(items):
                mf.prefetch_row(items_table, items[j + mf.PREFETCH_DISTANCE], 1)
            for weight in mf.weight_row(items_table, items[j]):
                total += weight
        _flip_rows(users_table, users, work.user_slots)
        _flip_rows(items_table, items, work.item_slots)
    return total


@njit
def _flip_rows(table, rows, slots):
    n, row = mf.assign_slots(rows, slots), slots.row
    for slot in range(n):
        if slot + mf.PREFETCH_DISTANCE < n:
            mf.prefetch_row(table, row[slot + mf.PREFETCH_DISTANCE], 3)
        w, m, v = mf.row_of(table, row[slot])
        for k in range(len(w)):
            w[k], m[k], v[k] = -w[k], -m[k], -v[k]
    mf.release_slots(slots, n)
