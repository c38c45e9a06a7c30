"""One copy of the data for many processes: a small pickled skeleton, and all arrays in one read-only block of bytes.

The block is a file that local workers map into memory, or bytes that Dask scatters; the skeleton travels beside it and
never touches the disk.
"""

import io
import mmap
import os
import pickle
from typing import NamedTuple

import numpy as np

ALIGNMENT = 64


class Packed(NamedTuple):
    """An object without its arrays, where each array lies in the block, and the block itself."""

    skeleton: bytes
    places: list  # (offset, dtype, shape) of each array
    block: object  # bytes, or the path of a file


def pack(thing, path=None):
    """`thing` as a Packed; the block becomes a file at `path` if one is given."""
    out = io.BytesIO()
    pickler = _Pickler(out)
    pickler.dump(thing)
    places, end = [], 0
    for array in pickler.arrays:
        places.append((end, array.dtype.str, array.shape))
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    if path is None:
        file = io.BytesIO()
        _write(file, pickler.arrays, places, end)
        return Packed(out.getvalue(), places, file.getvalue())
    with open(path, "wb") as file:
        _write(file, pickler.arrays, places, end)
    return Packed(out.getvalue(), places, os.fspath(path))


def unpack(packed):
    """What was packed; all its arrays are read-only views of the block."""
    block = packed.block
    if isinstance(block, str):
        with open(block, "rb") as file:
            block = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _Unpickler(io.BytesIO(packed.skeleton), [_view(block, *place) for place in packed.places]).load()


def _write(file, arrays, places, end):
    for array, (offset, _, _) in zip(arrays, places, strict=True):
        file.seek(offset)
        file.write(array.tobytes() if array.ndim == 0 else memoryview(array.reshape(-1).view(np.uint8)))
    file.seek(end)
    file.write(b"\0")  # an empty file cannot be mapped


def _view(block, offset, dtype, shape):
    count = int(np.prod(shape, dtype=np.int64))
    view = np.frombuffer(block, dtype, count, offset) if count else np.empty(0, dtype)
    view = view.reshape(shape)
    view.flags.writeable = False
    return view


class _Pickler(pickle.Pickler):
    """Puts arrays aside; two views of the same memory are kept once."""

    def __init__(self, file):
        super().__init__(file, protocol=5)
        self.arrays, self.known = [], {}

    def persistent_id(self, thing):
        if type(thing) is not np.ndarray or thing.dtype.hasobject:
            return None
        where = thing.__array_interface__["data"][0], thing.dtype.str, thing.shape, thing.strides
        if where not in self.known:
            self.known[where] = len(self.arrays)
            self.arrays.append(np.ascontiguousarray(thing).reshape(thing.shape))
        return self.known[where]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, arrays):
        super().__init__(file)
        self.arrays = arrays

    def persistent_load(self, number):
        return self.arrays[number]
