"""The memory traffic of an MF epoch and nothing else: what no kernel with this layout can beat."""

from dubnb._jit import njit
from dubnb.backbones import embedding as emb
from dubnb.stream import samples_of


@njit
def move_rows(users_table, items_table, stream, slots, batch_size):
    """Per batch: flip the sign of every row that an epoch updates, and add up the item rows that it reads."""
    total = 0.0
    for start in range(0, len(stream.users), batch_size):
        batch = samples_of(stream, start, min(start + batch_size, len(stream.users)))
        users, items = batch.users, batch.items
        for j in range(len(users)):
            if j + emb.AHEAD < len(users):
                emb.prefetch_row(users_table, users[j + emb.AHEAD], 3)
                emb.prefetch_row(items_table, items[j + emb.AHEAD], 1)
            for weight in emb.weights_of(items_table, items[j]):
                total += weight
            _flip(users_table, users[j])
        n_items = emb.assign_slots(items, slots)
        for slot in range(n_items):
            _flip(items_table, slots.row[slot])
        emb.release_slots(slots, n_items)
    return total


@njit(inline=True)
def _flip(table, row):
    w, m, v = emb.row_of(table, row)
    for k in range(len(w)):
        w[k], m[k], v[k] = -w[k], -m[k], -v[k]
