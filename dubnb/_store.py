"""Model files: an .npz with a JSON header, and never a pickle.

A file is a zip of stored (uncompressed) members: `header.json`, then one `NAME.npy` per array. The header holds

    {"format": 1, "dubnb": "<version>", "arrays": {NAME: {"dtype": "<f4", "shape": [3, 4]}}, "header": <the caller's>}

`np.load` reads the arrays too. `read` does not trust the file. Each member's size and .npy header follow from the
header's table, so they are compared with it instead of being parsed. Memory is allocated only for bytes that the file
is known to contain.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from dubnb import _files, _memory
from dubnb._check import InputError
from dubnb._version import VERSION

FORMAT = 1
HEADER = "header.json"
KEYS = ("format", "dubnb", "arrays", "header")
HEADER_LIMIT = 16_000_000  # bytes of header.json; a long history takes a few
DIRECTORY_LIMIT = 1_000_000  # bytes of the zip's directory, which zipfile holds in memory several times over
ARRAY_LIMIT = 1_000  # arrays in a file
BYTES_LIMIT = 2**40  # limit of one array; keeps shape arithmetic far from overflow
DIMENSIONS_LIMIT = 8
CHUNK = 1 << 20
MAPPED_FROM = 1 << 30  # bytes of an array that is mapped from the file instead of read
PADDING = 0xD935  # the id of a zip's extra field that only fills space
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
DTYPE = re.compile(r"<f4|<f8|<i4|<i8|<u8|\|u1|\|b1|<U[1-9][0-9]{0,5}")
DTYPES = "float32, float64, int32, int64, uint8, uint64, bool or str"
LAST_CODE_POINT = 0x10FFFF
ENCRYPTED = 0x1 | 0x40 | 0x2000  # the zip flags for encrypted data, strong encryption, a masked directory
EPOCH = (1980, 1, 1, 0, 0, 0)  # one date for all members: same model, same bytes
DAMAGE = (zipfile.BadZipFile, RuntimeError, EOFError, struct.error, ValueError, OverflowError)  # from zipfile and json
RESAVE = "copy the file again or save the model anew"


def write(
    path: str | os.PathLike[str], header: dict[str, Any], arrays: Mapping[str, Any], overwrite: bool = False
) -> None:
    """Store `header` (what JSON can hold; tuples come back as lists) and `arrays` ({name: array}) at `path`.

    Arrays are stored little endian in C order. Equal input gives equal bytes. Floats must be finite, in both.
    """
    arrays = {name: _storable(name, array) for name, array in arrays.items()}
    text = _header_text(header, arrays)
    with _files.atomic_write(path, overwrite) as file, zipfile.ZipFile(file, "w") as archive:
        _add(archive, HEADER, text)
        for name in sorted(arrays):
            array = arrays[name]
            _add(archive, f"{name}.npy", _npy_header(array.dtype.str, array.shape), _bytes_of(array))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The `(header, arrays)` that `write` stored at `path`; any fault of the file raises an InputError."""
    try:
        status = _files.stat_or_none(path)
        if status is None:
            raise InputError("does not exist; check the path")
        if not stat.S_ISREG(status.st_mode):
            kind = "is a directory" if stat.S_ISDIR(status.st_mode) else "is not a regular file"
            raise InputError(f"{kind}; give the path of a file that model.save wrote")
        with open(path, "rb") as file:
            return _read_archive(file, os.fstat(file.fileno()).st_size)
    except InputError as error:
        wrong = str(error)
    except OSError as error:
        wrong = f"cannot be read ({error.strerror or error}); check its permissions or {RESAVE}"
    except DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        wrong = f"is damaged ({reason:.200}); {RESAVE}"
    raise InputError(f"model file {_files.quote_path(path)}: {wrong}")


# Writing


def _storable(name: str, array: Any) -> np.ndarray:
    """`array` in its stored form: an allowed dtype, little endian, C order, finite."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"array name {name!r} must be a letter, then up to 99 letters, digits or _ . -: rename it")
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("<")
    if dtype.kind == "U" and dtype.itemsize == 0:
        dtype = np.dtype("<U1")
    _check_entry(name, {"dtype": dtype.str, "shape": list(array.shape)})
    stored: np.ndarray = np.asarray(array, dtype=dtype, order="C")
    _check_values(name, stored)
    return stored


def _header_text(header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of header.json."""
    if not isinstance(header, dict):
        raise InputError(f"header of type {type(header).__name__} must be a dict")
    if len(arrays) > ARRAY_LIMIT:
        raise InputError(f"{len(arrays)} arrays must be at most {ARRAY_LIMIT}: join some of them")
    table = {name: {"dtype": array.dtype.str, "shape": list(array.shape)} for name, array in arrays.items()}
    whole = {"format": FORMAT, "dubnb": VERSION, "arrays": table, "header": header}
    try:
        text = json.dumps(whole, allow_nan=False, sort_keys=True).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the header cannot be stored as JSON ({error}): use str, int, finite float, list, dict"
        ) from None
    if len(text) > HEADER_LIMIT:
        raise InputError(
            f"the header takes {len(text)} bytes, at most {HEADER_LIMIT} are allowed: move data into arrays"
        )
    return text


def _add(archive: zipfile.ZipFile, member: str, *parts: bytes | memoryview) -> None:
    """Add an uncompressed member made of `parts`; its bytes do not depend on the clock or the system."""
    info = zipfile.ZipInfo(member, EPOCH)
    info.create_system = 3
    info.external_attr = 0o644 << 16
    info.file_size = sum(len(part) for part in parts)  # zipfile decides by this whether it needs 64-bit sizes
    if _is_large(info.file_size):  # its data begin at a multiple of 64 bytes, so that they can be mapped
        wide = 20 if info.file_size * 1.05 > zipfile.ZIP64_LIMIT else 0
        start = archive.start_dir + 30 + len(member) + wide + 4
        info.extra = struct.pack("<HH", PADDING, -start % 64) + bytes(-start % 64)
    with archive.open(info, "w") as stream:
        for part in parts:
            stream.write(part)


def _npy_header(dtype: str, shape: Sequence[int]) -> bytes:
    """The start of a version 1.0 .npy file: magic, length, and a dict padded to a multiple of 64 bytes.

    NumPy's own function is not used because its padding has changed between versions.
    """
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    padded = text + " " * (-(10 + len(text) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode("ascii")


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a C-ordered array as a flat view of bytes."""
    return array.reshape(-1).view(np.uint8).data


# Reading


def _read_archive(file: BinaryIO, size: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    _check_directory(file, size)
    with zipfile.ZipFile(file) as archive:
        members = _members(archive, size)
        whole = _read_header(archive, members)
        table = whole["arrays"]
        expected = {HEADER, *(f"{name}.npy" for name in table)}
        for member in sorted(expected ^ members.keys()):
            state = "lacks the member" if member in expected else "holds the unexpected member"
            raise InputError(f"{state} {member[:100]!r}; {RESAVE}")
        # Check all sizes before reading data, so that a wrong table costs no memory.
        for name, entry in table.items():
            _check_size(name, entry, members[f"{name}.npy"].file_size)
        sizes = [info.file_size for info in members.values() if not _is_large(info.file_size)]
        _memory.require("its content", sum(sizes), "load it on a larger machine")
        arrays = {name: _read_array(archive, members[f"{name}.npy"], name, table[name]) for name in table}
    return whole["header"], arrays


def _check_directory(file: BinaryIO, size: int) -> None:
    """Check that the zip ends as `write` ends it, with a directory of bounded size: zipfile loads it whole."""
    if size == 0:
        raise InputError(f"is empty; {RESAVE}")
    magic = file.read(4)
    file.seek(-min(98, size), os.SEEK_END)
    tail = file.read()
    if magic != b"PK\3\4":
        raise InputError("is not a model file; give the path of a file that model.save wrote")
    if tail[-22:-18] != b"PK\5\6" or tail[-2:] != b"\0\0":
        raise InputError(f"is cut short or has bytes added at its end; {RESAVE}")
    length = int.from_bytes(tail[-10:-6], "little")
    if tail[-42:-38] == b"PK\6\7":  # files above 2 GB have a 56-byte record and a 20-byte pointer to it as well
        if tail[:4] != b"PK\6\6" or int.from_bytes(tail[-34:-26], "little") != size - 98:
            raise InputError(f"has a damaged 64-bit directory; {RESAVE}")
        length = int.from_bytes(tail[40:48], "little")
    if length > min(size, DIRECTORY_LIMIT):
        raise InputError(f"has a directory of {length} bytes, more than a model file can have; {RESAVE}")


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """{name: ZipInfo} after checks: names are distinct, members are uncompressed, unencrypted and inside the file."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.orig_filename  # `filename` is cut at a NUL
        if name in members:
            raise InputError(f"holds the member {name[:100]!r} twice; {RESAVE}")
        if info.flag_bits & ENCRYPTED:
            raise InputError(f"holds the encrypted member {name[:100]!r}; model files are never encrypted, {RESAVE}")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise InputError(f"holds the compressed member {name[:100]!r}; model files are not compressed, {RESAVE}")
        members[name] = info
    total = sum(info.file_size for info in members.values())
    if total > size:
        raise InputError(f"claims {total} bytes of content in a file of {size}; {RESAVE}")
    return members


def _read_header(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> dict[str, Any]:
    """header.json as a dict, with its format and its table of arrays checked."""
    if HEADER not in members:
        raise InputError(f"lacks {HEADER}, so dubnb did not write it; give the path of a file that model.save wrote")
    length = members[HEADER].file_size
    if length > HEADER_LIMIT:
        raise InputError(f"has a header of {length} bytes, at most {HEADER_LIMIT} are allowed; {RESAVE}")
    text = archive.read(members[HEADER]).decode("utf-8")
    whole = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
    if not isinstance(whole, dict):
        raise InputError(f"has a header that is not a JSON object; {RESAVE}")
    _check_format(whole.get("format"), whole.get("dubnb"))
    for key in KEYS:
        if key not in whole:
            raise InputError(f"has a header without the key {key!r}; {RESAVE}")
    if not isinstance(whole["arrays"], dict) or not isinstance(whole["header"], dict):
        raise InputError(f"has a header whose 'arrays' or 'header' is not a JSON object; {RESAVE}")
    if len(whole["arrays"]) > ARRAY_LIMIT:
        raise InputError(f"lists {len(whole['arrays'])} arrays, at most {ARRAY_LIMIT} are allowed; {RESAVE}")
    for name, entry in whole["arrays"].items():
        _check_entry(name, entry)
    return whole


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise InputError(f"has a header that gives a key twice; {RESAVE}")
    return members


def _no_constant(word: str) -> None:
    raise InputError(f"has {word} in its header, which JSON does not allow; {RESAVE}")


def _check_format(number: Any, version: Any) -> None:
    if type(number) is not int or number < 1:
        raise InputError(f"has the format {str(number)[:40]!r}, which must be a whole number of at least 1; {RESAVE}")
    if number > FORMAT:
        raise InputError(
            f"was written by dubnb {str(version)[:40]!r} in format {str(number)[:40]}, newer than the format {FORMAT} "
            f"that dubnb {VERSION} reads; upgrade dubnb"
        )


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, entry: dict[str, Any]) -> np.ndarray:
    """Read one array; its .npy header must equal, byte for byte, the one that `write` makes."""
    expected = _npy_header(entry["dtype"], entry["shape"])
    with archive.open(info) as stream:
        if stream.read(len(expected)) != expected:
            raise InputError(f"has an array {name!r} whose .npy header is not the one its table promises; {RESAVE}")
        if _is_large(info.file_size):
            while stream.read(CHUNK):  # at the end zipfile compares the checksum
                pass
            array = _mapped(archive, info, len(expected), entry)
        else:
            array = np.empty(entry["shape"], dtype=entry["dtype"])
            _fill(stream, _bytes_of(array))
    _check_values(name, array)
    return array


def _is_large(size: int) -> bool:
    """Whether an array is mapped from the file instead of read."""
    return size >= MAPPED_FROM


def _mapped(archive: zipfile.ZipFile, info: zipfile.ZipInfo, skip: int, entry: dict[str, Any]) -> np.ndarray:
    """An array that stays in the file: read-only, its pages are in memory while they are used."""
    file: Any = archive.fp
    file.seek(info.header_offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    offset = info.header_offset + 30 + name + extra + skip
    return np.memmap(file, entry["dtype"], "r", offset, tuple(entry["shape"]))


def _fill(stream: Any, view: memoryview) -> None:
    """Fill `view` from `stream` in chunks; at the end zipfile compares the checksum and raises if it differs."""
    done = 0
    while done < len(view):
        got = stream.readinto(view[done : done + CHUNK])
        if not got:
            raise EOFError("data ends early")
        done += got


# Both ways


def _check_entry(name: str, entry: Any) -> None:
    """Check a row of the table: an allowed name and dtype, and a shape of bounded integers."""
    if not NAME.fullmatch(name):
        raise InputError(f"has an array with the bad name {name[:100]!r}; {RESAVE}")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape"}:
        raise InputError(f"has an array {name!r} without dtype and shape; {RESAVE}")
    dtype, shape = entry["dtype"], entry["shape"]
    if not isinstance(dtype, str) or not DTYPE.fullmatch(dtype):
        raise InputError(f"array {name!r} has dtype {str(dtype)[:40]!r}; convert it to {DTYPES}")
    if not isinstance(shape, list) or len(shape) > DIMENSIONS_LIMIT:
        raise InputError(
            f"array {name!r} has a shape that is not a list of at most {DIMENSIONS_LIMIT} numbers; {RESAVE}"
        )
    if any(type(d) is not int or d < 0 for d in shape):
        raise InputError(f"array {name!r} has the shape {str(shape)[:100]}, not whole numbers of at least 0; {RESAVE}")
    # Zeros count as ones, so that an empty array cannot have a huge dimension either.
    if math.prod(max(d, 1) for d in shape) * np.dtype(dtype).itemsize > BYTES_LIMIT:
        raise InputError(f"array {name!r} has the shape {str(shape)[:100]}, above {BYTES_LIMIT} bytes; {RESAVE}")


def _check_size(name: str, entry: dict[str, Any], size: int) -> None:
    """Check that the member is as long as the .npy header and the data of its row in the table."""
    data = math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize
    needed = len(_npy_header(entry["dtype"], entry["shape"])) + data
    if size != needed:
        raise InputError(
            f"has {size} bytes for array {name!r} of shape {entry['shape']}, which needs {needed}; {RESAVE}"
        )


def _check_values(name: str, array: np.ndarray) -> None:
    """Check that floats are finite, bools are 0 or 1, and text consists of valid code points."""
    kind, rows = array.dtype.kind, max(1, CHUNK * len(array) // max(array.size, 1)) if array.ndim else 1
    some = (array[first : first + rows] for first in range(0, len(array), rows)) if array.ndim else iter([array])
    if kind == "f" and not all(np.isfinite(each).all() for each in some):
        raise InputError(
            f"array {name!r} holds NaN or infinity; fit the model again, with a lower lr if training diverged"
        )
    if kind == "b" and (array.view(np.uint8) > 1).any():
        raise InputError(f"array {name!r} holds bytes that are neither true nor false; {RESAVE}")
    if kind == "U" and (array.reshape(-1).view(np.dtype("<u4")) > LAST_CODE_POINT).any():
        raise InputError(f"array {name!r} holds text that is not Unicode; {RESAVE}")
