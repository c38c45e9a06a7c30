"""Model files: round trips; every bad file raises InputError in one line and takes little memory."""

import errno
import io
import json
import os
import pickle
import stat
import struct
import time
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest

from dubnb import _files, _store
from dubnb._check import InputError, cli_option_names
from dubnb._files import atomic_write, spreadsheet_safe

HEADER = {"method": "dub", "params": {"rank": 2, "lam": 4e-5, "lr": None}, "terms": ["a", "c"], "Straße": True}
ARRAYS = {
    "P": np.arange(6, dtype=np.float32).reshape(3, 2) / 7,
    "Q": np.linspace(-1, 1, 8).reshape(2, 2, 2),
    "indptr": np.array([0, 2**31 - 1], dtype=np.int32),
    "ids": np.array([-(2**63), 0, 2**63 - 1]),
    "codes": np.arange(256, dtype=np.uint8),
    "seen": np.array([[True, False]]),
    "names": np.array(["", "=cmd|' /C calc'!A0", "../x", "Zoë 😀", "<script>"]),
    "no_rows": np.empty((0, 3), dtype=np.float32),
    "no_names": np.empty(0, dtype="<U5"),
    "scalar": np.array(2.5),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.npz"


def same(found, arrays):
    return found.keys() == arrays.keys() and all(
        found[name].dtype == a.dtype and found[name].shape == a.shape and np.array_equal(found[name], a)
        for name, a in arrays.items()
    )


def refused(path, pattern):
    """`read` refuses the file in one line that names it, and takes little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=pattern) as caught:
            _store.read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert "\n" not in message and len(message) < 1000
    assert repr(str(path)) in message
    size = path.stat().st_size if path.is_file() else 0
    assert peak < 3e6 + 3 * size


def npy(array, version=(1, 0)):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=version, allow_pickle=True)
    return buffer.getvalue()


def npy_like(descr, shape, data=b""):
    """A .npy file with any header."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"
    padded = text + " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode() + data


def header(arrays=None, **changes):
    """A header.json for one float32 array P of shape (2,), or for `arrays`."""
    arrays = {"P": {"dtype": "<f4", "shape": [2]}} if arrays is None else arrays
    whole = {"format": 1, "dubnb": "0.1.0", "arrays": arrays, "header": {}} | changes
    return json.dumps({key: value for key, value in whole.items() if value is not None})


P = npy_like("<f4", "(2,)", np.ones(2, "<f4").tobytes())


def pack(path, *members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # duplicate names, made on purpose
        for name, content in members:
            archive.writestr(name, content)


def one_array(path, entry, content):
    pack(path, ("header.json", header({"P": entry})), ("P.npy", content))


# Round trips


def test_round_trip_of_every_dtype(path):
    _store.write(path, HEADER, ARRAYS)
    found_header, found = _store.read(str(path))
    assert found_header == HEADER
    assert same(found, ARRAYS)
    assert all(array.flags.writeable and array.flags.c_contiguous for array in found.values())


def test_a_header_without_arrays_round_trips(path):
    _store.write(path, {}, {})
    assert _store.read(path) == ({}, {})


def test_numpy_reads_the_arrays_without_pickle(path):
    _store.write(path, HEADER, ARRAYS)
    with np.load(path, allow_pickle=False) as archive:
        assert same({name: archive[name] for name in ARRAYS}, ARRAYS)
        assert json.loads(archive["header.json"])["format"] == _store.FORMAT


def test_the_file_from_which_bad_files_are_made_is_valid(path):
    pack(path, ("header.json", header()), ("P.npy", P))
    assert same(_store.read(path)[1], {"P": np.ones(2, np.float32)})


def test_other_orders_are_stored_little_endian_and_row_major(path):
    _store.write(
        path, {}, {"F": np.asfortranarray(ARRAYS["P"]), "B": ARRAYS["ids"].astype(">i8"), "U": np.zeros(2, "U0")}
    )
    assert same(_store.read(path)[1], {"F": ARRAYS["P"], "B": ARRAYS["ids"], "U": np.array(["", ""])})


def test_same_input_same_bytes(tmp_path):
    for name, arrays in (("a", ARRAYS), ("b", dict(reversed(ARRAYS.items())))):
        _store.write(tmp_path / name, dict(sorted(HEADER.items(), reverse=name == "b")), arrays)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_members_do_not_depend_on_time_or_system(path):
    _store.write(path, HEADER, ARRAYS)
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            assert (info.date_time, info.create_system) == ((1980, 1, 1, 0, 0, 0), 3)
            assert info.external_attr >> 16 == 0o644 and info.external_attr & 0xFFFF == 0
            assert info.compress_type == zipfile.ZIP_STORED


def test_files_with_64_bit_sizes_round_trip(path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)  # the limit from which zipfile writes 64-bit records
    arrays = {"big": np.arange(2000.0), "small": np.arange(3)}
    _store.write(path, HEADER, arrays)
    assert b"PK\6\6" in path.read_bytes()
    assert same(_store.read(path)[1], arrays)


def test_more_than_one_chunk(path, monkeypatch):
    monkeypatch.setattr(_store, "CHUNK", 100)
    _store.write(path, HEADER, ARRAYS)
    assert same(_store.read(path)[1], ARRAYS)


def test_reading_takes_little_more_memory_than_the_file(path):
    _store.write(path, {}, {"P": np.ones((500_000, 4))})
    tracemalloc.start()
    _store.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * path.stat().st_size


# What `write` refuses


@pytest.mark.parametrize(
    "header, arrays, pattern",
    [
        ({}, {"P": np.array([1.0, np.nan])}, "NaN or infinity"),
        ({}, {"P": np.array([np.inf], np.float32)}, "NaN or infinity"),
        ({}, {"P": np.array([None])}, "dtype '|O'"),
        ({}, {"P": np.zeros(2, np.float16)}, "dtype '<f2'"),
        ({}, {"P": np.zeros(2, np.complex128)}, "dtype"),
        ({}, {"P": np.zeros(2, "M8[s]")}, "dtype"),
        ({}, {"P": np.zeros(2, [("a", "f4")])}, "dtype"),
        ({}, {"P": np.zeros((1,) * 9)}, "shape"),
        ({}, {"../P": np.zeros(2)}, "array name"),
        ({}, {"": np.zeros(2)}, "array name"),
        ({}, {1: np.zeros(2)}, "array name"),
        ({"lam": float("nan")}, {}, "JSON"),
        ({"data": np.zeros(2)}, {}, "JSON"),
        ({"long": "x" * 17_000_000}, {}, "move data into arrays"),
        ([], {}, "must be a dict"),
        ({}, {f"a{k}": np.zeros(0) for k in range(1001)}, "at most 1000"),
    ],
)
def test_bad_content_is_refused_before_anything_is_written(path, header, arrays, pattern):
    with pytest.raises(InputError, match=pattern) as caught:
        _store.write(path, header, arrays)
    assert "\n" not in str(caught.value)
    assert os.listdir(path.parent) == []


# Bad files


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: os.mkfifo(path), "not a regular file"),  # without waiting for a writer
        (lambda path: path.write_bytes(b""), "is empty"),
    ],
)
def test_what_is_not_a_file_with_content_is_refused(path, make, said):
    make(path)
    refused(path, said)


@pytest.mark.parametrize("bad", [None, 0, "a\0b", "x" * 5000, b"nowhere"])
def test_impossible_paths(bad):
    with pytest.raises(InputError):
        _store.read(bad)


@pytest.mark.parametrize("keep", [1, 3, 4, 21, 22, 100, 500, -1, -22, -23])
def test_truncated_zip(path, keep):
    _store.write(path, HEADER, ARRAYS)
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, "cut short|not a model file")


def test_bytes_added_at_the_end(path):
    _store.write(path, HEADER, ARRAYS)
    path.write_bytes(path.read_bytes() + b"\0")
    refused(path, "bytes added")


def test_flipped_byte_in_the_data(path):
    _store.write(path, HEADER, ARRAYS)
    content = path.read_bytes()
    at = content.index(ARRAYS["codes"].tobytes()) + 100
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    refused(path, "CRC")


class Evil:
    ran = False

    def __reduce__(self):
        return (setattr, (Evil, "ran", True))


@pytest.mark.parametrize("content", [pickle.dumps(ARRAYS), pickle.dumps(Evil()), npy(ARRAYS["P"]), b"{}", b"\0" * 5000])
def test_a_pickle_or_something_else_renamed_npz(path, content):
    path.write_bytes(content)
    refused(path, "not a model file")
    assert not Evil.ran


def test_object_array_is_never_unpickled(path):
    content = npy(np.array([Evil(), Evil()], dtype=object))
    one_array(path, {"dtype": "|O", "shape": [2]}, content)
    refused(path, r"dtype '\|O'")
    # The same under a table that promises floats of just that size.
    one_array(path, {"dtype": "|u1", "shape": [len(content) - 128]}, content)
    refused(path, "npy header")
    assert not Evil.ran


def test_a_plain_npz_is_not_a_model(path):
    np.savez(path, P=ARRAYS["P"])
    refused(path, "lacks header.json")


@pytest.mark.parametrize(
    "shape, pattern",
    [
        ([2**30], "needs"),
        ([2**38 + 1], "above"),
        ([0, 2**38 + 1], "above"),
        ([2**70], "above"),
        ([10**4000], "above"),
        ([-2], "at least 0"),
        ([True, 2], "at least 0"),
        ([2.0], "at least 0"),
        ([[2]], "at least 0"),
        (2, "not a list"),
        ({"2": 2}, "not a list"),
        ([1] * 9, "not a list"),
        ([3], "needs"),
        ([0], "needs"),
    ],
)
def test_wrong_shapes_are_refused(path, shape, pattern):
    """The shape is wrong in the table alone, or in the .npy header too."""
    data = np.ones(2, "<f4").tobytes()
    for content in (P, npy_like("<f4", "(" + str(shape).strip("[]")[:200] + ",)", data)):
        one_array(path, {"dtype": "<f4", "shape": shape}, content)
        refused(path, pattern)


@pytest.mark.parametrize(
    "shape", ["(1099511627776,)", f"({2**70},)", "(-2,)", "(True, 2)", "(1, 2)", "(2, 1)", "[2]", "3", "x"]
)
def test_a_npy_header_that_differs_from_the_table(path, shape):
    one_array(path, {"dtype": "<f4", "shape": [2]}, npy_like("<f4", shape, np.ones(2, "<f4").tobytes()))
    refused(path, "npy header")


def test_short_data(path):
    one_array(path, {"dtype": "<f4", "shape": [2]}, P[:-1])
    refused(path, "needs")


@pytest.mark.parametrize("claimed", [2**20, 2**31, 2**32 - 2])
def test_a_member_that_claims_more_bytes_than_the_file_has(path, claimed):
    one_array(path, {"dtype": "|u1", "shape": [claimed - 64 - 64]}, npy_like("|u1", f"({claimed - 128},)"))
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\1\2")
    content[entry + 20 : entry + 28] = struct.pack("<II", claimed, claimed)
    path.write_bytes(content)
    refused(path, "claims")


def test_giant_headers(path):
    pack(path, ("header.json", header(header={"x": "x" * 17_000_000})), ("P.npy", P))
    refused(path, "header of")
    long = np.lib.format.magic(2, 0) + struct.pack("<I", 2**20) + b" " * 2**20
    pack(path, ("header.json", header()), ("P.npy", long))
    refused(path, "needs")
    one_array(path, {"dtype": "|u1", "shape": [len(long) - 128]}, long)
    refused(path, "npy header")


@pytest.mark.parametrize("member", ["header.json", "P.npy"])
def test_zip_bomb(path, member):
    contents = {
        "header.json": header({"P": {"dtype": "|u1", "shape": [2**26 - 64]}}),
        "P.npy": b"",
        member: bytes(2**26),
    }
    pack(path, *contents.items(), compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**17
    refused(path, "compressed member")


def test_overlapping_members_do_not_multiply(path):
    """A zip bomb with many names for the same bytes."""
    data = np.zeros(50_000, np.uint8)
    table = {f"a{k}": {"dtype": "|u1", "shape": [50_000]} for k in range(100)}
    pack(path, ("header.json", header(table)), *((f"a{k}.npy", b"") for k in range(99)), ("a99.npy", npy(data)))
    content = bytearray(path.read_bytes())
    size, at = len(npy(data)), content.index(b"PK\1\2")
    last = content[content.rindex(b"PK\1\2") :]
    while (at := content.find(b"PK\1\2", at + 1)) >= 0:
        content[at + 16 : at + 28] = last[16:28]
        content[at + 42 : at + 46] = last[42:46]
    path.write_bytes(content)
    assert size > 50_000
    refused(path, "claims")


def test_giant_directory(path):
    with zipfile.ZipFile(path, "w") as archive:
        for k in range(20_000):
            archive.writestr(f"{k}.npy", b"")
    refused(path, "directory of")


def test_giant_directory_behind_64_bit_records(path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    with zipfile.ZipFile(path, "w") as archive:
        for k in range(20_000):
            archive.writestr(f"{k}.npy", b"")
    content = bytearray(path.read_bytes())
    content[-10:-6] = struct.pack("<I", 100)  # a wrong, small size in the old record
    path.write_bytes(content)
    refused(path, "directory of")
    content[-34:-26] = struct.pack("<Q", 0)  # and a wrong pointer
    path.write_bytes(content)
    refused(path, "64-bit directory")


@pytest.mark.parametrize("place,value", [(10, 8), (20, 99)], ids=["kind", "size"])
def test_a_member_is_stored_by_its_kind_and_by_its_sizes(path, place, value):
    pack(path, ("header.json", header()), ("P.npy", P))
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\1\2") + place
    content[at : at + 2] = struct.pack("<H", value)
    path.write_bytes(content)
    refused(path, "compressed member 'P.npy'")


@pytest.mark.parametrize("twice", ["P.npy", "header.json"])
def test_duplicate_members(path, twice):
    members = {"header.json": header(), "P.npy": P}
    pack(path, *members.items(), (twice, members[twice]))
    refused(path, "twice")


@pytest.mark.parametrize("member", ["readme.txt", "Q.npy", "../P.npy", "P.npy\n", "x" * 5000])
def test_unexpected_members(path, member):
    pack(path, ("header.json", header()), ("P.npy", P), (member, P))
    refused(path, "unexpected member")


def test_a_member_that_is_not_an_array(path):
    pack(path, ("header.json", header()), ("P.npy", b"x" * len(P)))
    refused(path, "npy header")


@pytest.mark.parametrize("flag", [0x1, 0x40, 0x2000])
def test_encrypted_flag(path, flag):
    pack(path, ("header.json", header()), ("P.npy", P))
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\1\2") + 8
    content[at : at + 2] = struct.pack("<H", flag)
    path.write_bytes(content)
    refused(path, "encrypted")


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite(path, dtype, value):
    one_array(path, {"dtype": dtype, "shape": [2]}, npy_like(dtype, "(2,)", np.array([1, value], dtype).tobytes()))
    refused(path, "NaN or infinity")


@pytest.mark.parametrize(
    "dtype",
    [
        ">f4",
        ">i8",
        "f4",
        "float32",
        "<f2",
        "<c8",
        "<i2",
        "|S3",
        "<U0",
        "<U9999999",
        "|V4",
        "<M8[s]",
        "O",
        "",
        4,
        None,
        [],
    ],
)
def test_wrong_dtype_or_byte_order(path, dtype):
    one_array(path, {"dtype": dtype, "shape": [2]}, npy_like(dtype, "(2,)", bytes(8)))
    refused(path, "dtype")


def test_bytes_that_are_not_a_value_of_their_dtype(path):
    one_array(path, {"dtype": "|b1", "shape": [2]}, npy_like("|b1", "(2,)", b"\1\2"))
    refused(path, "neither true nor false")
    one_array(path, {"dtype": "<U1", "shape": [1]}, npy_like("<U1", "(1,)", b"\xff\xff\xff\xff"))
    refused(path, "not Unicode")


@pytest.mark.parametrize("key", ["dubnb", "arrays", "header"])
def test_missing_key(path, key):
    whole = json.loads(header())
    del whole[key]
    pack(path, ("header.json", json.dumps(whole)), ("P.npy", P))
    refused(path, f"without the key '{key}'")


def test_missing_array(path):
    pack(path, ("header.json", header()))
    refused(path, "lacks the member 'P.npy'")


@pytest.mark.parametrize("entry", [None, [], {"dtype": "<f4"}, {"shape": [2]}, {"dtype": "<f4", "shape": [2], "x": 1}])
def test_bad_rows_of_the_table(path, entry):
    pack(path, ("header.json", header({"P": entry})), ("P.npy", P))
    refused(path, "without dtype and shape")


@pytest.mark.parametrize(
    "text, pattern",
    [
        (b"", "damaged"),
        (b"\xff\xfe", "damaged"),
        (b"{" * 10, "damaged"),
        (b"[" * 900_000, "damaged"),
        (b"[]", "not a JSON object"),
        (b"1" * 5000, "damaged"),
        (header()[:-1] + ', "format": 1}', "key twice"),
        (header(header=[]), "not a JSON object"),
        (header(arrays=[]), "not a JSON object"),
        (header(header={"x": float("nan")}), "NaN"),
        (header({"../P": {"dtype": "<f4", "shape": [2]}}), "bad name"),
        (header({f"a{k}": {} for k in range(1001)}), "1001 arrays"),
    ],
)
def test_bad_header(path, text, pattern):
    pack(path, ("header.json", text), ("P.npy", P))
    refused(path, pattern)


def test_future_format(path):
    pack(path, ("header.json", header(format=2, dubnb="9.0.0", arrays="new")), ("P.bin", P))
    refused(path, "'9.0.0' in format 2.*upgrade dubnb")


@pytest.mark.parametrize("number", [None, 0, -1, True, "1", 1.0])
def test_bad_format(path, number):
    pack(path, ("header.json", header(format=number)), ("P.npy", P))
    refused(path, "whole number")


def test_fuzz(path):
    """A damaged file is refused; if the damaged bytes are not read, it is read correctly."""
    _store.write(path, HEADER, ARRAYS)
    whole = path.read_bytes()
    random = np.random.default_rng(7)
    outcomes = {"refused": 0, "same": 0}
    for trial in range(600):
        content = bytearray(whole)
        if trial % 3 == 0:
            content = content[: random.integers(len(content))]
        else:  # half of these in the directory, which zipfile parses
            low = 0 if trial % 3 == 1 else whole.index(b"PK\1\2")
            for at in random.integers(low, len(content), random.integers(1, 4)):
                content[at] = random.integers(256)
        path.write_bytes(content)
        try:
            found_header, found = _store.read(path)
        except InputError as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
        else:
            assert found_header == HEADER and same(found, ARRAYS)
            outcomes["same"] += 1
    assert outcomes["refused"] > 300 and outcomes["same"] > 0


# Writing all or nothing


def test_a_file_is_on_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    """After a crash there is the old file or the new one: bytes are synced, renamed, then the directory is synced."""
    path, events = tmp_path / "m.npz", []
    path.write_bytes(b"old")
    fsync, replace = os.fsync, os.replace

    def sync(descriptor):
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        events.append(("synced", os.fstat(descriptor).st_size) if is_file else "directory synced")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", lambda *paths: events.append("renamed") or replace(*paths))
    with open(path, "rb") as reader:
        with atomic_write(path, overwrite=True) as file:
            file.write(b"new, and longer")
            file.flush()
            assert path.read_bytes() == b"old"
        assert reader.read() == b"old", "who has the old file open still reads it"
    assert (
        events == [("synced", 15), "renamed", *["directory synced"] * (os.name == "posix")]
        and path.read_bytes() == b"new, and longer"
    )


def test_an_existing_file_is_kept_without_overwrite(path):
    path.write_bytes(b"mine")
    with pytest.raises(InputError, match=r"exists already.*overwrite=True"):
        _store.write(path, HEADER, ARRAYS)
    with pytest.raises(InputError, match="use --overwrite"), cli_option_names({}):
        _store.write(path, HEADER, ARRAYS)
    assert path.read_bytes() == b"mine"
    _store.write(path, HEADER, ARRAYS, overwrite=True)
    assert same(_store.read(path)[1], ARRAYS)
    assert os.listdir(path.parent) == [path.name]


def test_a_file_that_appears_meanwhile_is_kept(path):
    with pytest.raises(InputError, match="exists already"), atomic_write(path) as file:
        file.write(b"late")
        path.write_bytes(b"early")
    assert path.read_bytes() == b"early"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failure_in_the_middle_leaves_the_old_file_and_no_other(path, error):
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_write(path, overwrite=True) as file:
        file.write(b"half")
        assert len(os.listdir(path.parent)) == 2
        raise error
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


class FullDisk(io.FileIO):
    """A file on a disk with 500 free bytes."""

    def write(self, data):
        if self.tell() + len(data) > 500:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("buffered", [False, True])
def test_disk_full(path, monkeypatch, buffered):
    """The error says that the disk is full and the old file stays, even if it occurs only at the flush."""
    _store.write(path, HEADER, {})
    old = path.read_bytes()

    def create(temporary, target):
        raw = FullDisk(temporary, "xb")
        return io.BufferedWriter(raw, 1 << 20) if buffered else raw

    monkeypatch.setattr(_files, "_create", create)
    with pytest.raises(OSError, match="No space left"):
        _store.write(path, HEADER, ARRAYS, overwrite=True)
    assert path.read_bytes() == old
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("overwrite", [False, True])
def test_paths_that_cannot_be_written(tmp_path, overwrite):
    (tmp_path / "file").write_bytes(b"")
    cases = {
        tmp_path: "is a directory",
        tmp_path / "no" / "m.npz": "does not exist; create it",
        tmp_path / "file" / "m.npz": "cannot be used",
        tmp_path / ("x" * 300): "cannot be used",
        f"{tmp_path}/new/": "does not name a file",
        "": "does not name a file",
        "a\0b": "cannot be used",
        os.devnull: "not a regular file",
        7: "cannot be used",
    }
    for bad, pattern in cases.items():
        with pytest.raises(InputError, match=pattern) as caught, atomic_write(bad, overwrite):
            raise RuntimeError("the block must not be entered")
        assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_without_permission(path, monkeypatch):
    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    with pytest.raises(InputError, match=r"Permission denied.*directory you may write"), atomic_write(path):
        pass


@pytest.mark.skipif(os.name != "posix", reason="permissions and links of POSIX")
def test_links_and_permissions_stay(tmp_path):
    (tmp_path / "link").symlink_to("real")
    old = os.umask(0o022)
    try:
        with atomic_write(tmp_path / "link") as file:
            file.write(b"x")
    finally:
        os.umask(old)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"x"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd", "-x", "@SUM(A1)", "\t=1", "\r=1", "\0=1", "-1+1", "+", "-", "-1\n", "--1"]
)
def test_cells_that_spreadsheets_would_run(text):
    assert spreadsheet_safe(text) == "'" + text


@pytest.mark.parametrize(
    "text", ["", "dub", "1-2", "-1", "+2.5", "-.5", "-3.", "-4e-05", "+1E5", "a=b", "'x", -1.5, None]
)
def test_cells_that_stay(text):
    assert spreadsheet_safe(text) == text


# What writers share


def test_disk_errors_name_the_file_and_a_remedy():
    words = "full; make room there, then run the same command again"
    with pytest.raises(OSError, match=words) as caught, _files.disk_errors("m.npz"):
        raise OSError(errno.ENOSPC, "full")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "m.npz")
    for own in (OSError(errno.ENOENT, "gone", "other.npz"), OSError("without a number")):
        with pytest.raises(OSError) as caught, _files.disk_errors("m.npz"):
            raise own
        assert caught.value is own


def test_a_write_that_numpy_could_not_finish_names_the_file_and_a_remedy(tmp_path):
    """NumPy says how many items it wrote, and not why."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # Python ignores the signal that comes with it
    try:
        with (
            pytest.raises(OSError, match=r"make room there.*vectors\.npy"),
            atomic_write(tmp_path / "vectors.npy") as file,
        ):
            np.save(file, np.zeros(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_old_temporary_files_of_killed_writers_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(_files.time, "time", lambda: 1000.0)
    directory = tmp_path / "a[b]*"  # not a glob pattern
    directory.mkdir()

    def left(older_than=None):
        for name, age in ((".dubnb-1.tmp", 0), (".dubnb-2.tmp", 60), (".dubnb-3.tmp", 61), ("mine.tmp", 61)):
            (directory / name).touch()
            os.utime(directory / name, (1000 - age, 1000 - age))
        _files.remove_temporaries(str(directory), *([] if older_than is None else [older_than]))
        return sorted(os.listdir(directory))

    assert left(61) == [".dubnb-1.tmp", ".dubnb-2.tmp", "mine.tmp"] and left(60) == [".dubnb-1.tmp", "mine.tmp"]
    assert left() == ["mine.tmp"] and left(62) == [".dubnb-1.tmp", ".dubnb-2.tmp", ".dubnb-3.tmp", "mine.tmp"]


def test_a_write_removes_what_killed_writers_left_and_spares_living_ones(tmp_path):
    old, young = tmp_path / ".dubnb-1.tmp", tmp_path / ".dubnb-2.tmp"
    for path, age in ((old, _files.STALE + 60), (young, _files.STALE - 60)):
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    with _files.atomic_write(tmp_path / "m") as file:
        file.write(b"m")
    assert sorted(os.listdir(tmp_path)) == [young.name, "m"]


# -- arrays that stay in the file


@pytest.mark.parametrize("wide", [False, True])
def test_large_arrays_are_mapped_from_aligned_places(path, monkeypatch, wide):
    monkeypatch.setattr(_store, "MAPPED_FROM", 150)
    if wide:
        monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 150)
    _store.write(path, HEADER, ARRAYS)
    found = _store.read(path)[1]
    assert same(found, ARRAYS)
    mapped = [name for name, array in found.items() if isinstance(array, np.memmap)]
    assert {"Q", "codes", "names"} <= set(mapped) and all(found[name].ctypes.data % 64 == 0 for name in mapped)
    assert np.array_equal(np.load(path)["Q"], ARRAYS["Q"])
    with pytest.raises(ValueError, match="read-only"):
        found["Q"][0] = 1


def test_damage_in_a_mapped_array_is_found(path, monkeypatch):
    monkeypatch.setattr(_store, "MAPPED_FROM", 150)
    _store.write(path, HEADER, ARRAYS)
    content = bytearray(path.read_bytes())
    content[content.index(bytes(range(100, 200)))] ^= 1
    path.write_bytes(content)
    refused(path, "CRC")
