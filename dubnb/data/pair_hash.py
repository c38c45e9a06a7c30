"""Keyed 64-bit hashes of ids and of (user, item) pairs.

A hash is a function of the key and of the ids' text alone: not of row numbers, of the other rows of a log or of their
order. So the same pair has the same hash in next week's log, and whether the log came as CSV, Parquet or DataFrame.
The text of a whole number is its decimal digits, so the ids 7 and "7" have one hash.

    hash of a text  h = key;  h = mix(h, word) for each word of two characters
    hash of a pair  mix(hash of the user, hash of the item),    mix(h, x) = splitmix64's finaliser of h + x * golden
"""

from __future__ import annotations

import numpy as np

from dubnb._random import key, mix_arrays
from dubnb.data.ids import Ids

BLOCK = 1 << 16  # ids hashed at a time
WIDEST_INT = 20  # characters of a whole number of 64 bits


def id_hashes(values: np.ndarray, of: np.uint64) -> np.ndarray:
    """A uint64 hash of every id (whole numbers or text) under the key `of`."""
    hashes = np.empty(len(values), np.uint64)
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        width = WIDEST_INT if block.dtype.kind in "iu" else block.dtype.itemsize // 4
        text = block.astype(f"<U{width + width % 2}")
        words = text.view("<u8").reshape(len(text), -1)
        hashed = np.full(len(text), of, np.uint64)
        for column in words.T:  # 0 is padding: ids hold no NUL
            hashed = np.where(column != 0, mix_arrays(hashed, column), hashed)
        hashes[start : start + BLOCK] = hashed
    return hashes


def user_hashes(user_ids: Ids, seed: int = 0, purpose: str = "pair") -> np.ndarray:
    """A hash of every user, row by row; `purpose` and `seed` are the key."""
    return id_hashes(user_ids.values, key(seed, purpose, "user"))


def hashes_of_both(user_ids: Ids, item_ids: Ids, seed: int = 0, purpose: str = "pair") -> tuple[np.ndarray, np.ndarray]:
    """Hashes of every user and of every item. That of a pair is `mix_arrays` of its user's and its item's."""
    return user_hashes(user_ids, seed, purpose), id_hashes(item_ids.values, key(seed, purpose, "item"))


def unit(hashes: np.ndarray) -> np.ndarray:
    """Hashes as numbers in [0, 1), of 53 bits."""
    numbers: np.ndarray = (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers
