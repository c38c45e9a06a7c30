"""Original ids (int or str) of users or items: their row numbers inside dubnb, and keyed 64-bit hashes of them.

A hash depends on the key and on the id's text alone. Row numbers, other rows of a log and their order do not matter. So
a pair has the same hash in next week's log, and in CSV, Parquet and DataFrames. The text of a whole number is its
decimal digits, so the ids 7 and "7" have the same hash.

    hash of a text  h = key;  h = mix(h, word) for each word of two characters
    hash of a pair  mix(hash of the user, hash of the item),    mix(h, x) = splitmix64's finaliser of h + x * golden
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dubnb._check import InputError, short_repr
from dubnb._random import key, mix_arrays

FIRST_BIG_INT = 2**63  # ids from here on, such as 64-bit hashes, are stored as uint64
BLOCK = 1 << 16  # ids that are hashed at a time
WIDEST_INT = 20  # characters of a 64-bit whole number


class Ids:
    """A sorted, read-only array of distinct ids; row k of every table belongs to `values[k]`.

    Whole numbers are int64, or uint64 where one of them needs it. Text is NumPy's str of the smallest width.
    """

    def __init__(self, values: Any) -> None:
        values = np.asarray(values)
        if values.ndim != 1 or values.dtype.kind not in "iuU":
            raise InputError(f"ids of dtype {values.dtype}, {values.ndim} dimension(s): pass a 1-d array of int or str")
        if len(values) > 1 and not (values[1:] > values[:-1]).all():
            raise InputError("ids must be sorted and distinct: pass np.unique(ids)")
        # A copy of the smallest width: the caller's array stays writable, and equal ids have equal bytes.
        self.values: np.ndarray
        if values.dtype.kind == "U":
            self.values = np.array(values.tolist(), dtype=np.str_)
        else:
            big = values.dtype.kind == "u" and len(values) and values[-1] >= FIRST_BIG_INT
            self.values = values.astype(np.uint64 if big else np.int64)
        self.values.flags.writeable = False

    @classmethod
    def count(cls, n: int) -> Ids:
        """The ids 0 .. n-1."""
        return cls(np.arange(n))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def kind(self) -> str:
        """ "int" or "str"."""
        return kind_of_ids(self.values)

    def listed(self, ids: Any, what: str) -> np.ndarray:
        """`ids` as a 1-d array of int64, uint64 or str, known or not; one id is a list of one."""
        wanted = np.atleast_1d(id_array(ids))
        if wanted.ndim > 1:
            raise InputError(f"{what}s of shape {wanted.shape}: pass one id or a 1-d list of ids")
        if not wanted.size:
            return self.values[:0]
        self._of_kind(wanted)  # refuses the other kind
        if wanted.dtype.kind in "iuU":
            return wanted
        if self.kind == "str":
            return np.array(wanted.tolist(), dtype=np.str_)
        low, high = min(wanted), max(wanted)
        if low < -FIRST_BIG_INT or high >= (FIRST_BIG_INT if low < 0 else 2 * FIRST_BIG_INT):
            if low < -FIRST_BIG_INT or high >= 2 * FIRST_BIG_INT:
                wide = low if low < -FIRST_BIG_INT else high
                raise InputError(f"{what} {wide} does not fit into 64 bits: such ids cannot be in a log")
            raise InputError(f"{what}s {low} and {high} do not fit into one 64-bit column: pass them in two lists")
        return wanted.astype(np.uint64 if high >= FIRST_BIG_INT else np.int64)

    def find(self, ids: Any) -> np.ndarray:
        """Row numbers of `ids`; -1 where unknown."""
        wanted = id_array(ids)
        if not len(self.values) or not wanted.size:
            return np.full(wanted.shape, -1, dtype=np.int64)
        wanted, fits = self._of_kind(wanted)
        rows = np.minimum(np.searchsorted(self.values, wanted), len(self.values) - 1)
        return np.where((self.values[rows] == wanted) & fits, rows, -1)

    def _of_kind(self, ids: np.ndarray) -> tuple[np.ndarray, Any]:
        """`ids` in the dtype of `values`, and which of them that dtype can hold; ids of the other kind are an error.

        Text never becomes a number or the reverse. int64 is never compared with uint64: NumPy would use float64.
        """
        python_type = (int, np.integer) if self.kind == "int" else str
        wrong: list[Any] = []
        if ids.dtype.kind in "OT":
            wrong = [value for value in ids.flat if isinstance(value, bool) or not isinstance(value, python_type)]
        elif ids.dtype.kind not in ("iu" if self.kind == "int" else "U"):
            missing = np.isnan(ids) if ids.dtype.kind == "f" else np.zeros(ids.shape, bool)
            wrong = (ids[missing] if missing.any() else ids).astype(object).ravel()[:1].tolist()
        if wrong:
            raise InputError(f"id {short_repr(wrong[0])} is not of the data's kind: these ids are {self.kind}")
        if self.kind == "str":
            return (np.array(ids.tolist(), dtype=np.str_) if ids.dtype.kind in "OT" else ids), True
        limits = np.iinfo(self.values.dtype)
        fits = (ids >= int(limits.min)) & (ids <= int(limits.max))
        return np.where(fits, ids, 0).astype(self.values.dtype), fits.astype(bool)

    def rows(self, ids: Any, what: str) -> np.ndarray:
        """Row numbers of `ids`; an unknown id is an error."""
        rows = self.find(ids)
        if (rows < 0).any():
            unknown = id_array(ids)[rows < 0]
            first = short_repr(unknown.astype(object).flat[0])
            raise InputError(f"{what} {first} is unknown ({len(unknown)} such): it was not in the training data")
        return rows


def id_array(ids: Any) -> np.ndarray:
    """Ids from a list, array, set, column of a table or any other iterable, as an array without lost digits."""
    if np.ma.is_masked(ids):  # NumPy would take the values below the mask
        ids = ids.tolist()
    if isinstance(ids, list | tuple) and len(set(map(type, ids))) > 1:
        dtype: Any = object  # NumPy would make text of 7 in ["a", 7], and 1 of True in [True, 7]
    else:
        dtype = None
    try:
        array = np.asarray(ids, dtype=dtype)
    except ValueError:
        raise InputError(f"{short_repr(ids)} has lists of several lengths: pass one id or a 1-d list of ids") from None
    if array.dtype.kind == "f" and not isinstance(getattr(ids, "dtype", None), np.dtype):
        # Python ints of which some need int64 and others uint64, or a column of whole numbers with missing ones
        return np.asarray(ids, dtype=object)
    if array.ndim == 0 and array.dtype.kind == "O" and isinstance(ids, Iterable):  # a set, the keys of a dict
        return id_array(list(ids))
    if array.dtype.kind in "OT" or (array.dtype.kind == "U" and isinstance(ids, str | list | tuple)):
        for text in np.asarray(ids, dtype=object).flat:  # in an array of texts NumPy drops NULs at the end of one
            if isinstance(text, str) and "\0" in text:
                raise InputError(f"id {short_repr(text)} holds a NUL character: such ids cannot be in a log")
    return array


def kind_of_ids(values: np.ndarray) -> str:
    """ "int" or "str": the kind of an array of ids."""
    return "str" if values.dtype.kind == "U" else "int"


def id_hashes(values: np.ndarray, of: np.uint64) -> np.ndarray:
    """A uint64 hash of every id (whole numbers or text) under the key `of`."""
    hashes = np.empty(len(values), np.uint64)
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        width = WIDEST_INT if block.dtype.kind in "iu" else block.dtype.itemsize // 4
        text = block.astype(f"<U{width + width % 2}")
        words = text.view("<u8").reshape(len(text), -1)
        hashed = np.full(len(text), of, np.uint64)
        for column in words.T:  # 0 is padding: ids contain no NUL
            hashed = np.where(column != 0, mix_arrays(hashed, column), hashed)
        hashes[start : start + BLOCK] = hashed
    return hashes


def user_hashes(user_ids: np.ndarray, seed: int = 0, purpose: str = "pair") -> np.ndarray:
    """A hash of every user id; `purpose` and `seed` are the key."""
    return id_hashes(user_ids, key(seed, purpose, "user"))


def hashes_of_both(
    user_ids: np.ndarray, item_ids: np.ndarray, seed: int = 0, purpose: str = "pair"
) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of every user id and of every item id; the hash of a pair is `mix_arrays` of the two."""
    return user_hashes(user_ids, seed, purpose), id_hashes(item_ids, key(seed, purpose, "item"))


def hash_fraction(hashes: np.ndarray) -> np.ndarray:
    """Hashes as numbers in [0, 1), of 53 bits."""
    numbers: np.ndarray = (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers
