"""One copy of the data for many processes: a small pickled skeleton, and all arrays in one read-only block of bytes.

The block is a file that local workers map into memory, or bytes that Dask scatters; the skeleton travels beside it and
never touches the disk.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from dubnb._files import disk_errors

ALIGNMENT = 64
Place = tuple[int, str, tuple[int, ...]]  # offset, dtype, shape


class Packed(NamedTuple):
    """An object without its arrays, where each array lies in the block, and the block itself."""

    skeleton: bytes
    places: list[Place]  # of each array
    block: bytes | str  # itself, or the path of a file


def pack(thing: Any, path: str | os.PathLike[str] | None = None) -> Packed:
    """`thing` as a Packed; the block becomes a file at `path` if one is given."""
    out = io.BytesIO()
    pickler = _Pickler(out)
    pickler.dump(thing)
    places: list[Place] = []
    end = 0
    for array in pickler.arrays:
        places.append((end, array.dtype.str, array.shape))
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    if path is None:
        block = io.BytesIO()
        _write(block, pickler.arrays, places, end)
        return Packed(out.getvalue(), places, block.getvalue())
    with disk_errors(os.fspath(path)), open(path, "wb") as file:
        _write(file, pickler.arrays, places, end)
    return Packed(out.getvalue(), places, os.fspath(path))


def unpack(packed: Packed) -> Any:
    """What was packed; all its arrays are read-only views of the block."""
    block: bytes | str | mmap.mmap = packed.block
    if isinstance(block, str):
        with open(block, "rb") as file:
            block = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _Unpickler(io.BytesIO(packed.skeleton), [_view(block, *place) for place in packed.places]).load()


def _write(file: BinaryIO, arrays: Sequence[np.ndarray], places: Sequence[Place], end: int) -> None:
    for array, (offset, _, _) in zip(arrays, places, strict=True):
        file.seek(offset)
        file.write(array.reshape(-1).view(np.uint8).data)
    file.seek(end)
    file.write(b"\0")  # an empty file cannot be mapped


def _view(block: bytes | mmap.mmap, offset: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape, dtype=np.int64))
    view = np.frombuffer(block, dtype, count, offset) if count else np.empty(0, dtype)
    view = view.reshape(shape)
    view.flags.writeable = False
    return view


class _Pickler(pickle.Pickler):
    """Puts arrays aside; two views of the same memory are kept once."""

    def __init__(self, file: BinaryIO):
        super().__init__(file, protocol=5)
        self.arrays: list[np.ndarray] = []
        self.known: dict[Any, int] = {}

    def persistent_id(self, thing: Any) -> int | None:
        if type(thing) is not np.ndarray or thing.dtype.hasobject:
            return None
        where = thing.__array_interface__["data"][0], thing.dtype.str, thing.shape, thing.strides
        if where not in self.known:
            self.known[where] = len(self.arrays)
            self.arrays.append(np.ascontiguousarray(thing).reshape(thing.shape))
        return self.known[where]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, arrays: Sequence[np.ndarray]):
        super().__init__(file)
        self.arrays = arrays

    def persistent_load(self, number: int) -> np.ndarray:
        return self.arrays[number]
