"""Pre-trained models, kept as files by what their training read, so that each is trained once."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from typing import TYPE_CHECKING, Any

from dubnb import _store
from dubnb._check import InputError
from dubnb.backbones import BACKBONES

if TYPE_CHECKING:
    from dubnb.backbones import Weights


class Pretrained:
    """The store that `Method.fit` takes: get(key) and put(key, weights, rows), with a count of what it saved.

    Equal keys mean equal content, so it does not matter which of two writers comes last; a file that is damaged is
    removed and its model trained again; a directory that cannot be written costs time, never a trial.
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
        return weights, rows

    def put(self, key: str, weights: Weights, rows: list[dict[str, Any]]) -> None:
        self.trained += 1
        finite = [{name: None if value != value else value for name, value in row.items()} for row in rows]
        header = {"key": key, "backbone": weights.name, "rows": finite}
        with contextlib.suppress(OSError, InputError):
            _store.write(self._path(key), header, weights.arrays(), overwrite=True)

    def _path(self, key: str) -> str:
        return os.path.join(self.directory, hashlib.blake2b(key.encode(), digest_size=12).hexdigest() + ".npz")
