"""A directory of pre-trained models, so that trials that share a pre-training stage train it once."""

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
WORTH_MAPPING = 1 << 20  # bytes of tables: every worker holds its own copy of a smaller model


class Pretrained:
    """The `store` of `Method.fit`: get(key) and put(key, weights, rows), and counts of models trained and reused.

    A key is a text that names all that the training reads. Equal keys mean equal content, so either of two writers may
    be the last. A damaged file is removed and its model trained again. If the directory cannot be written, models are
    trained again, and no trial fails.

    The user and item tables are memory maps of a second file, .rows, so that the workers of a machine share one M_t.
    Each machine has its own .rows file, because a mapped file that another machine replaces can become unreadable.
    """

    def __init__(self, directory: str):
        self.directory = directory
        self.trained, self.reused, self.saved_seconds = 0, 0, 0.0

    def get(self, key: str) -> tuple[Weights, list[dict[str, Any]]] | None:
        """Return (weights, rows of the training history), or None if they are not stored."""
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
        """Store a model and its training history; return the weights, mapped if they are large."""
        self.trained += 1
        finite = [{name: None if value != value else value for name, value in row.items()} for row in rows]
        header = {"key": key, "backbone": weights.name, "rows": finite}
        with contextlib.suppress(OSError, InputError):
            _store.write(self._path(key), header, weights.arrays(), overwrite=True)
        return self._mapped(key, weights)

    def _mapped(self, key: str, weights: Weights) -> Weights:
        """Return the weights with both tables mapped from the .rows file, which is written again if it differs."""
        tables, path = (weights.users, weights.items), self._path(f"{key} {platform.node()}", ".rows")
        if sum(table.nbytes for table in tables) < WORTH_MAPPING:
            return weights
        with contextlib.suppress(OSError, InputError, ValueError):  # the file may be truncated while it is mapped
            try:
                is_there = all(map(np.array_equal, _map(path, tables), tables))
            except (OSError, ValueError):  # the file is missing or too short
                is_there = False
            if not is_there:
                with atomic_write(path, overwrite=True) as file:
                    for table in tables:
                        file.write(np.ascontiguousarray(table).reshape(-1).view(np.uint8).data)
                        file.write(bytes(-table.nbytes % ALIGNMENT))
            mapped = copy.copy(weights)
            mapped.users, mapped.items = _map(path, tables)
            return mapped
        return weights

    def _path(self, key: str, suffix: str = ".npz") -> str:
        return os.path.join(self.directory, hashlib.blake2b(key.encode(), digest_size=12).hexdigest() + suffix)


def _map(path: str, like: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Map tables of the shapes and dtypes of `like`.

    They are writeable, as the kernels are compiled for, but are never written: a page that is written is copied.
    """
    with open(path, "rb") as file:
        block, start, tables = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), 0, []
    for table in like:
        tables.append(np.frombuffer(block, table.dtype, table.size, start).reshape(table.shape))
        start += -(-table.nbytes // ALIGNMENT) * ALIGNMENT
    return tables
