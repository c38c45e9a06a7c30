"""Original ids (int or str) of users or items, and their row numbers inside dubnb."""

import numpy as np

from dubnb._check import InputError


class Ids:
    """A sorted, read-only array of distinct ids; row k of every table belongs to `values[k]`."""

    def __init__(self, values):
        values = np.asarray(values)
        if values.ndim != 1 or values.dtype.kind not in "iU":
            raise InputError(f"ids of dtype {values.dtype}, {values.ndim} dimension(s): pass a 1-d array of int or str")
        if len(values) > 1 and not (values[1:] > values[:-1]).all():
            raise InputError("ids must be sorted and distinct: pass np.unique(ids)")
        # a copy of the least width: the caller's array stays writable, and equal ids have equal bytes
        self.values = values.astype(np.int64) if values.dtype.kind == "i" else np.array(values.tolist(), dtype=np.str_)
        self.values.flags.writeable = False

    @classmethod
    def count(cls, n):
        """The ids 0 .. n-1."""
        return cls(np.arange(n))

    def __len__(self):
        return len(self.values)

    @property
    def kind(self):
        return "int" if self.values.dtype.kind == "i" else "str"

    def find(self, ids):
        """Row numbers of `ids`; -1 where unknown."""
        ids = np.asarray(ids)
        if not len(self.values) or not ids.size:
            return np.full(ids.shape, -1, dtype=np.int64)
        ids = self._of_kind(ids)
        wanted = ids.astype(np.int64) if self.kind == "int" else ids  # int64 with uint64 would meet as float64
        rows = np.minimum(np.searchsorted(self.values, wanted), len(self.values) - 1)
        return np.where(self.values[rows] == ids, rows, -1)

    def _of_kind(self, ids):
        """`ids` as an array of the data's kind, or an error: nothing is converted from one kind to the other."""
        wanted = (int, np.integer) if self.kind == "int" else str
        if ids.dtype.kind in "OT":
            for value in ids.flat:
                if isinstance(value, bool) or not isinstance(value, wanted):
                    raise InputError(f"id {value!r} is not of the data's kind: these ids are {self.kind}")
            ids = np.array(ids.tolist(), dtype=None if self.kind == "int" else np.str_)
        if ids.dtype.kind not in ("iu" if self.kind == "int" else "U"):
            raise InputError(f"id {ids.astype(object).flat[0]!r} is not of the data's kind: these ids are {self.kind}")
        return ids

    def rows(self, ids, what):
        """Row numbers of `ids`; an unknown one is an error."""
        rows = self.find(ids)
        if (rows < 0).any():
            unknown = np.asarray(ids)[rows < 0]
            first = unknown.astype(object).flat[0]
            raise InputError(f"{what} {first!r} is unknown ({len(unknown)} such): it was not in the training data")
        return rows
