"""Original ids (int or str) of users or items, and their row numbers inside dubnb."""

from __future__ import annotations

from typing import Any

import numpy as np

from dubnb._check import InputError, shown

FIRST_BIG_INT = 2**63  # ids from here on, such as hashes of 64 bits, are kept as uint64


class Ids:
    """A sorted, read-only array of distinct ids; row k of every table belongs to `values[k]`.

    Whole numbers are int64, or uint64 where one of them needs it; text is NumPy's str of the least width.
    """

    def __init__(self, values: Any) -> None:
        values = np.asarray(values)
        if values.ndim != 1 or values.dtype.kind not in "iuU":
            raise InputError(f"ids of dtype {values.dtype}, {values.ndim} dimension(s): pass a 1-d array of int or str")
        if len(values) > 1 and not (values[1:] > values[:-1]).all():
            raise InputError("ids must be sorted and distinct: pass np.unique(ids)")
        # a copy of the least width: the caller's array stays writable, and equal ids have equal bytes
        self.values: np.ndarray = (
            np.array(values.tolist(), dtype=np.str_) if values.dtype.kind == "U" else _narrowest(values)
        )
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
        return "str" if self.values.dtype.kind == "U" else "int"

    def find(self, ids: Any) -> np.ndarray:
        """Row numbers of `ids`; -1 where unknown."""
        wanted = np.asarray(ids)
        if wanted.dtype.kind == "f" and not hasattr(ids, "dtype"):
            wanted = np.asarray(ids, dtype=object)  # Python's ints, if some fit int64 alone and some uint64 alone
        if not len(self.values) or not wanted.size:
            return np.full(wanted.shape, -1, dtype=np.int64)
        wanted, fits = self._of_kind(wanted)
        rows = np.minimum(np.searchsorted(self.values, wanted), len(self.values) - 1)
        return np.where((self.values[rows] == wanted) & fits, rows, -1)

    def _of_kind(self, ids: np.ndarray) -> tuple[np.ndarray, Any]:
        """`ids` in the data's own type, and which of them it can hold; ids of the other kind are an error.

        Nothing is converted from one kind to the other, and int64 never meets uint64, which NumPy compares as float64.
        """
        python_type = (int, np.integer) if self.kind == "int" else str
        if ids.dtype.kind in "OT":
            for value in ids.flat:
                if isinstance(value, bool) or not isinstance(value, python_type):
                    raise InputError(f"id {shown(value)} is not of the data's kind: these ids are {self.kind}")
        elif ids.dtype.kind not in ("iu" if self.kind == "int" else "U"):
            first = shown(ids.astype(object).flat[0])
            raise InputError(f"id {first} is not of the data's kind: these ids are {self.kind}")
        if self.kind == "str":
            return (np.array(ids.tolist(), dtype=np.str_) if ids.dtype.kind in "OT" else ids), True
        limits = np.iinfo(self.values.dtype)
        fits = (ids >= int(limits.min)) & (ids <= int(limits.max))
        return np.where(fits, ids, 0).astype(self.values.dtype), fits.astype(bool)

    def rows(self, ids: Any, what: str) -> np.ndarray:
        """Row numbers of `ids`; an unknown one is an error."""
        rows = self.find(ids)
        if (rows < 0).any():
            unknown = np.asarray(ids)[rows < 0]
            first = shown(unknown.astype(object).flat[0])
            raise InputError(f"{what} {first} is unknown ({len(unknown)} such): it was not in the training data")
        return rows


def _narrowest(values: np.ndarray) -> np.ndarray:
    """A copy as int64, or as uint64 where int64 does not suffice."""
    if values.dtype.kind == "u" and len(values) and values[-1] >= FIRST_BIG_INT:
        return values.astype(np.uint64)
    return values.astype(np.int64)
