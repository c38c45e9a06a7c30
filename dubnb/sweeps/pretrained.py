"""Pre-trained models, kept as files by what their training read, so that each is trained once."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import mmap
import os
import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb import _store
from dubnb._check import InputError
from dubnb._files import atomic_write
from dubnb.backbones import BACKBONES

if TYPE_CHECKING:
    from dubnb.backbones import Weights

ALIGNMENT = 64  # bytes: where a table begins in a file of rows
WORTH_MAPPING = 1 << 20  # bytes of tables: of smaller models every worker has a copy of its own


class Pretrained:
    """The store that `Method.fit` takes: get(key) and put(key, weights, rows), with a count of what it saved.

    Equal keys mean equal content, so it does not matter which of two writers comes last; a file that is damaged is
    removed and its model trained again; a directory that cannot be written costs time, never a trial.

    Tables are given as maps of a second file, .rows: the workers of a machine have one M_t in memory, not one each.
    Each machine has a file of its own, since what another one replaces on a shared disk may not stay readable.
    """

    def __init__(self, directory: str):
        self.directory = directory
        self.trained, self.reused, self.saved_seconds = 0, 0, 0.0

    def get(self, key: str) -> tuple[Weights, list[dict[str, Any]]] | None:
        path = self._path(key)
        if not os.path.exists(path):
            return None
        try:
            header, arrays = _store.read(path)
            if header["key"] != key:
                raise InputError("another key")
            weights = BACKBONES[header["backbone"]].from_arrays(arrays)
            rows = [
                {name: math.nan if value is None else value for name, value in row.items()} for row in header["rows"]
            ]
        except (InputError, OSError, KeyError, TypeError, ValueError, AttributeError):
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None
        self.reused += 1
        self.saved_seconds += sum(row["seconds"] for row in rows)
        return self._mapped(key, weights), rows

    def put(self, key: str, weights: Weights, rows: list[dict[str, Any]]) -> Weights:
        self.trained += 1
        finite = [{name: None if value != value else value for name, value in row.items()} for row in rows]
        header = {"key": key, "backbone": weights.name, "rows": finite}
        with contextlib.suppress(OSError, InputError):
            _store.write(self._path(key), header, weights.arrays(), overwrite=True)
        return self._mapped(key, weights)

    def _mapped(self, key: str, weights: Weights) -> Weights:
        """The same weights, both tables mapped; the file is believed only if it equals them."""
        tables, path = (weights.users, weights.items), self._path(f"{key} {platform.node()}", ".rows")
        if sum(table.nbytes for table in tables) < WORTH_MAPPING:
            return weights
        with contextlib.suppress(OSError, InputError, ValueError):  # a map of a file that was cut short meanwhile
            if not _equal(path, tables):
                _write_rows(path, tables)
            mapped = copy.copy(weights)
            mapped.users, mapped.items = _map(path, tables)
            return mapped
        return weights

    def _path(self, key: str, suffix: str = ".npz") -> str:
        return os.path.join(self.directory, hashlib.blake2b(key.encode(), digest_size=12).hexdigest() + suffix)


def _write_rows(path: str, tables: tuple[np.ndarray, ...]) -> None:
    with atomic_write(path, overwrite=True) as file:
        for table in tables:
            file.write(np.ascontiguousarray(table).reshape(-1).view(np.uint8).data)
            file.write(bytes(-table.nbytes % ALIGNMENT))


def _equal(path: str, tables: tuple[np.ndarray, ...]) -> bool:
    """Whether the file holds these tables."""
    try:
        return all(map(np.array_equal, _map(path, tables), tables))
    except (OSError, ValueError):  # there is none, or it is cut short
        return False


def _map(path: str, like: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Tables as large as those of `like`. They can be written to, which kernels are compiled for, but nobody does: a
    page that is written to would become this process's own."""
    with open(path, "rb") as file:
        block, start, tables = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), 0, []
    for table in like:
        tables.append(np.frombuffer(block, table.dtype, table.size, start).reshape(table.shape))
        start += -(-table.nbytes // ALIGNMENT) * ALIGNMENT
    return tables
