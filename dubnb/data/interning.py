"""Values -> codes 0, 1, 2 ... in the order of their first occurrence, chunk by chunk: a log repeats few ids many times.

Two open-addressing tables, one of whole numbers and one of UTF-8 text, that grow as they fill. A log of n rows over m
distinct ids costs 4 n bytes of codes and O(m) beside them, however many chunks it comes in.
"""

from __future__ import annotations

import itertools
import os

import numpy as np

from dubnb._check import InputError
from dubnb._jit import njit

MOST_DISTINCT = 2**31 - 1  # codes are int32
_FIRST_SLOTS = 1 << 12
_FIRST_BYTES = 1 << 16
_WHOLE_IN_KEYS = 15  # bytes of a text that its two keys hold, beside its length
_MASK = 0xFFFFFFFF
_PRIME = 16_777_619  # FNV's: with 32-bit values in int64 nothing overflows, so that it also runs without the JIT
# A start that no file can know, or its ids could be made to meet in one slot; codes do not depend on it.
_START = int.from_bytes(os.urandom(4), "little")


class IntCodes:
    """Codes of whole numbers (int64; uint64 as its bits)."""

    def __init__(self) -> None:
        self.values = np.empty(_FIRST_SLOTS // 2, np.int64)
        self.slots = np.full(_FIRST_SLOTS, -1, np.int32)
        self.size = 0

    def codes(self, keys: np.ndarray) -> np.ndarray:
        """The code of each key, int32."""
        codes = np.empty(len(keys), np.int32)
        done = 0
        while done < len(keys):
            self.size, done = _intern_ints(keys, codes, done, self.slots, self.values, self.size, _START)
            if self.size == len(self.values):
                self._grow()
        return codes

    def _grow(self) -> None:
        _check_room(self.size)
        self.values = np.concatenate([self.values, np.empty_like(self.values)])
        self.slots = np.full(2 * len(self.slots), -1, np.int32)
        _place_ints(self.slots, self.values, self.size, _START)

    def distinct(self) -> np.ndarray:
        """The value of each code."""
        return self.values[: self.size].copy()


class TextCodes:
    """Codes of pieces of text, given as UTF-8 in a buffer.

    A slot holds (key, key, hash, code + 1), or a 0 last. Of a text of up to 15 bytes the two keys are the text itself
    and its length, so that a look-up reads one line of memory; of a longer one they are its ends, and its bytes decide.
    """

    def __init__(self) -> None:
        self.bytes = np.empty(_FIRST_BYTES, np.uint8)
        self.ends = np.zeros(_FIRST_SLOTS // 2 + 1, np.int64)  # text k is bytes[ends[k] : ends[k + 1]]
        self.slots = np.zeros((_FIRST_SLOTS, 4), np.int64)
        self.size = 0

    def codes(self, buffer: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """The code of each piece buffer[starts[k] : stops[k]], int32."""
        codes, keys = np.empty(len(starts), np.int32), np.empty((len(starts), 3), np.int64)
        _text_keys(buffer, starts, stops, keys, _START)
        done = 0
        while done < len(starts):
            self.size, done = _intern_text(
                buffer, starts, stops, keys, codes, done, self.slots, self.bytes, self.ends, self.size
            )
            if self.size == len(self.ends) - 1:
                self._grow()
            elif done < len(starts):
                room = max(len(self.bytes), int(stops[done] - starts[done]))
                self.bytes = np.concatenate([self.bytes, np.empty(room, np.uint8)])
        return codes

    def _grow(self) -> None:
        _check_room(self.size)
        self.ends = np.concatenate([self.ends, np.empty(len(self.ends) - 1, np.int64)])
        old, self.slots = self.slots, np.zeros((2 * len(self.slots), 4), np.int64)
        _move_slots(old, self.slots)

    def distinct(self) -> list[str]:
        """The text of each code."""
        raw = self.bytes[: self.ends[self.size]].tobytes()
        ends = self.ends[: self.size + 1].tolist()
        text = raw.decode("utf-8")
        if len(text) == len(raw):  # ASCII: a byte is a character
            return [text[a:b] for a, b in itertools.pairwise(ends)]
        return [raw[a:b].decode("utf-8") for a, b in itertools.pairwise(ends)]

    def wholes(self) -> np.ndarray | None:
        """The texts as int64, if each is written as a plain whole number and fits; else None."""
        values = np.empty(self.size, np.int64)
        return values if self.size and _parse_wholes(self.bytes, self.ends, values) else None


def _check_room(size: int) -> None:
    if 2 * size > MOST_DISTINCT:
        raise InputError(f"more than {size:,} distinct ids in one column: such a log is too large; take a sample of it")


@njit
def _intern_ints(keys, codes, done, slots, values, size, start):
    """Codes of keys[done:], until the values are full; returns the number of values and of keys done."""
    mask = len(slots) - 1
    while done < len(keys) and size < len(values):
        key = keys[done]
        slot = _hash_int(key, start) & mask
        while slots[slot] >= 0 and values[slots[slot]] != key:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = size
            values[size] = key
            size += 1
        codes[done] = slots[slot]
        done += 1
    return size, done


@njit
def _place_ints(slots, values, size, start):
    mask = len(slots) - 1
    for code in range(size):
        slot = _hash_int(values[code], start) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = code


@njit
def _hash_int(key, start):
    h = start
    for shift in (0, 16, 32, 48):
        h = ((h ^ ((key >> shift) & 0xFFFF)) * _PRIME) & _MASK
    return h ^ (h >> 15)


@njit
def _text_keys(buffer, starts, stops, keys, start):
    """The two keys and the hash of every piece; apart from the look-up, whose waits for memory then overlap."""
    for k in range(len(starts)):
        a, n = starts[k], stops[k] - starts[k]
        if n <= _WHOLE_IN_KEYS:
            one, two = _word(buffer, a, min(n, 8)), _word(buffer, a + 8, max(n - 8, 0)) | n << 56
        else:
            one, two = _word(buffer, a, 8), _word(buffer, a + n - 7, 7) | np.int64(127) << 56
        h = start
        for piece in (one, one >> 24, one >> 48, two, two >> 24, two >> 48):
            h = ((h ^ (piece & 0xFFFFFF)) * _PRIME) & _MASK
            h ^= h >> 15
        if n > _WHOLE_IN_KEYS:
            for at in range(a + 8, a + n - 7):
                h = ((h ^ np.int64(buffer[at])) * _PRIME) & _MASK
            h ^= h >> 15
        keys[k, 0], keys[k, 1], keys[k, 2] = one, two, h


@njit
def _word(buffer, a, n):
    """Up to 8 bytes as one number."""
    word = np.int64(0)
    for k in range(n):
        word |= np.int64(buffer[a + k]) << 8 * k
    return word


@njit
def _intern_text(buffer, starts, stops, keys, codes, done, slots, texts, ends, size):
    """Codes of the pieces from `done` on, until texts or their bytes are full."""
    mask = len(slots) - 1
    while done < len(starts) and size < len(ends) - 1:
        one, two, slot = keys[done, 0], keys[done, 1], keys[done, 2] & mask
        a, n = starts[done], stops[done] - starts[done]
        while slots[slot, 3] != 0:
            alike = slots[slot, 0] == one and slots[slot, 1] == two
            if alike and (n <= _WHOLE_IN_KEYS or _same(buffer, a, n, texts, ends, slots[slot, 3] - 1)):
                break
            slot = (slot + 1) & mask
        if slots[slot, 3] == 0:
            if ends[size] + n > len(texts):
                return size, done
            for k in range(n):
                texts[ends[size] + k] = buffer[a + k]
            ends[size + 1] = ends[size] + n
            size += 1
            slots[slot, 0], slots[slot, 1], slots[slot, 2], slots[slot, 3] = one, two, keys[done, 2], size
        codes[done] = slots[slot, 3] - 1
        done += 1
    return size, done


@njit
def _move_slots(old, new):
    mask = len(new) - 1
    for k in range(len(old)):
        if old[k, 3] != 0:
            slot = old[k, 2] & mask
            while new[slot, 3] != 0:
                slot = (slot + 1) & mask
            for j in range(4):
                new[slot, j] = old[k, j]


@njit
def _same(buffer, a, n, texts, ends, code):
    b = ends[code]
    if ends[code + 1] - b != n:
        return False
    k = 0
    while k < n and buffer[a + k] == texts[b + k]:
        k += 1
    return k == n


@njit
def _parse_wholes(texts, ends, values):
    """Fill `values` with the texts as numbers; False at the first that is not -?[1-9][0-9]* or 0, or beyond int64."""
    for k in range(len(values)):
        a, b = ends[k], ends[k + 1]
        negative = b > a and texts[a] == 45  # -
        a += negative
        if b == a or b - a > 19 or (texts[a] == 48 and (b - a > 1 or negative)):
            return False
        total = np.int64(0)  # below zero all the way: -2**63 has no positive twin
        for j in range(a, b):
            digit = np.int64(texts[j]) - 48
            if digit < 0 or digit > 9 or total < -922337203685477580 or (total == -922337203685477580 and digit > 8):
                return False
            total = total * 10 - digit
        if not negative and total == np.iinfo(np.int64).min:
            return False
        values[k] = total if negative else -total
    return True
