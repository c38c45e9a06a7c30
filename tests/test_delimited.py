"""The kernels that read text: cells as Python's csv module finds them, numbers as float reads them, codes as a dict."""

import csv
import gzip
import io
import math
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from dubnb._check import InputError
from dubnb.data import delimited, interning
from dubnb.data.delimited import Layout, read_delimited
from dubnb.data.interning import IntCodes, TextCodes

CELLS = (
    "a",
    "1",
    "",
    " b",
    '"x"',
    '"x""y"',
    '"a,b"',
    '"l\nm"',
    "é",
    'a"b',
    '" q "',
    '"r\r\nz"',
    '"u\rv\n"',
    '"\r\rw"',
    '"s\r"',
    '"""',
    "0" * 20,
    '""""',
)
ENDS = ("\n", "\r\n", "\r", "\n\n")


@pytest.fixture
def chunks(monkeypatch):
    """Sets how many bytes are read at once."""

    def set_size(n):
        monkeypatch.setattr(delimited._Source.read, "__defaults__", (n,))

    return set_size


def twin(text):
    """(rows, line of a fault or None) by the csv module, every row as wide as the first."""
    rows = []
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    try:
        for row in reader:
            if row and rows and len(row) != len(rows[0]):
                return rows, reader.line_num
            if row:
                rows.append(row)
    except csv.Error:
        return rows, reader.line_num
    return rows, None


def ours(path, width):
    """The same by our kernels."""
    names = [f"c{k}" for k in range(width)]
    try:
        columns, _ = read_delimited([path], ids=names, layout=Layout(names, ","))
    except InputError as error:
        return int(re.search(r", line (\d+): ", str(error))[1])
    return [list(row) for row in zip(*([str(v) for v in c.values[c.codes]] for c in columns.values()), strict=True)]


@pytest.mark.parametrize("seed", range(6))
def test_cells_are_those_of_the_csv_module(tmp_path, chunks, seed):
    rng, path, faults = random.Random(seed), tmp_path / "log.csv", 0
    for _ in range(60):
        width = rng.randint(1, 3)
        lines = [",".join(rng.choices(CELLS, k=width)) + rng.choice(ENDS) for _ in range(rng.randint(0, 6))]
        text = ",".join(["h"] * width) + "\n" + "".join(lines)
        if rng.random() < 0.5:
            place = rng.randrange(1, len(text))
            text = text[:place] + rng.choice('a,"\n\r 1é') + text[place + rng.randint(0, 1) :]
        rows, fault = twin(text)
        if not rows:
            continue
        path.write_bytes(text.encode())
        chunks(rng.choice([7, 64, delimited.CHUNK]))
        found = ours(path, len(rows[0]))
        assert found == (rows if fault is None else fault), text
        faults += fault is not None
    assert faults > 5


NUMBERS = [
    "0",
    "1",
    "-1",
    "12.5",
    "-0.5",
    "0.1",
    "123456789012345",
    "999999999999999.5",
    "1e3",
    "1.5E-7",
    "0.30000000000000004",
]
NUMBERS += ["123456.789012345678", "-0.0", "18446744073709551615.0", "3.141592653589793", "5e-324"]


def column_of(tmp_path, cells):
    path = tmp_path / "n.csv"
    path.write_text("n\n" + "\n".join(cells) + "\n")
    return read_delimited([path])[0]["n"]


def test_numbers_are_read_to_the_last_bit(tmp_path):
    rng = random.Random(0)
    cells = NUMBERS + [repr(rng.uniform(-1e3, 1e3)) for _ in range(200)] + [f"{rng.random():.5f}" for _ in range(200)]
    found = column_of(tmp_path, cells)
    assert found.codes is None and found.values.dtype == np.float64
    for cell, value in zip(cells, found.values.tolist(), strict=True):
        assert value == float(cell) and math.copysign(1, value) == math.copysign(1, float(cell)), cell


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"x,1,2', "line 2: a quote is never closed"),
        ('1,2,"x', "line 2: a quote is never closed"),
        ('"x"y,1,2', "line 2: text after a closing quote"),
        ('1,2,"x"y', "line 2: text after a closing quote"),
        ("1,2", r"line 2: 2 cell\(s\) instead of 3"),
        ("1,2,3,4", r"line 2: 4 cell\(s\) instead of 3"),
    ],
)
def test_what_is_wrong_with_a_line_is_told(tmp_path, line, said):
    (tmp_path / "w.csv").write_text(f"a,b,c\n{line}\n")
    with pytest.raises(InputError, match=said):
        read_delimited([tmp_path / "w.csv"])


WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")


def test_plain_numbers_are_read_at_once_and_all_others_left():
    """Whole numbers of at most 18 digits and decimals of at most 15, but no zero below zero."""
    rng = random.Random(1)
    cells = [
        "",
        "-",
        ".",
        "-.",
        "0",
        "-0",
        "0.0",
        "-0.0",
        "00",
        "01",
        "-01",
        "1.",
        ".1",
        "-.5",
        "1..2",
        "1.2.3",
        "10",
        "-7",
    ]
    cells += ["1" * n for n in range(14, 22)] + ["-" + "9" * n for n in range(14, 22)] + ["5:", "5/", "/5", "1-", "--1"]
    cells += (
        ["1." + "2" * n for n in range(12, 20)]
        + ["-" + "3" * n + ".5" for n in range(12, 20)]
        + ["0." + "0" * 14 + "1"]
    )
    cells += ["".join(rng.choices("0123456789.-", k=rng.randint(1, 6))) for _ in range(400)]
    raw = [cell.encode() for cell in cells]
    ends = np.cumsum([0, *map(len, raw)])
    buffer = np.frombuffer(b"".join(raw) + b"9", np.uint8)
    wholes, reals, slow = np.zeros(len(cells), np.int64), np.zeros(len(cells)), np.zeros(len(cells), bool)
    assert not delimited._parse_numbers(buffer, ends[:-1], ends[1:], wholes, reals, slow)
    for k, cell in enumerate(cells):
        decimal = bool(DECIMAL.fullmatch(cell)) and sum(map(str.isdigit, cell)) <= 15
        decimal = decimal and (cell[0] != "-" or float(cell) != 0)
        assert slow[k] != (bool(WHOLE.fullmatch(cell)) or decimal), cell
        assert slow[k] or reals[k] == float(cell), cell
        one = [np.zeros(1, dtype) for dtype in (np.int64, np.float64, np.bool_)]
        all_whole = delimited._parse_numbers(buffer, ends[k : k + 1], ends[k + 1 : k + 2], *one)
        assert all_whole == bool(WHOLE.fullmatch(cell)) and (not all_whole or one[0][0] == int(cell)), cell


def test_small_whole_numbers_take_a_byte(tmp_path):
    assert [column_of(tmp_path, [cell, "0"]).values.dtype.itemsize for cell in ("127", "-128", "128", "-129")] == [
        1,
        1,
        8,
        8,
    ]
    assert len(column_of(tmp_path, []).values) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,b\r\n1,2\r3,4\n\xc3\xa9,\xff\n", "line 4: not UTF-8"),
        (b"a\n\n\xc3\xa9\r\n\r\n\xe2\x82x", "line 5: not UTF-8"),
        (b"a\r\rx\r\n\xe2\x82", "line 4: not UTF-8"),
        (b"a\r\nb\r\nc\0\n", "line 3: a NUL byte"),
        (b"\0", "line 1: a NUL byte"),
        (b"a\r\n\0", "line 2: a NUL byte"),
    ],
)
def test_bytes_that_are_no_text_are_told_by_their_line_in_chunks_of_any_size(
    tmp_path, chunks, monkeypatch, content, said
):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    for size in (*range(1, 9), 64):
        chunks(size)
        monkeypatch.setattr(delimited, "CHUNK", size)
        with pytest.raises(InputError, match=said):
            read_delimited([path], layout=Layout(["a", "b"] if b"," in content else ["a"], ","))


@pytest.mark.parametrize(
    "odd", ["", "007", "-0", "+1", "1.", ".5", "1_0", "nan", "inf", "0x1", "1 2", "1e", "--1", "x", "1.2.3"]
)
def test_a_column_with_a_cell_that_is_no_plain_number_is_text_throughout(tmp_path, odd):
    found = column_of(tmp_path, ["1", "2.50", odd or '""', "3"])
    assert found.values[found.codes].tolist() == ["1", "2.50", odd, "3"]


def test_whole_numbers_stay_whole(tmp_path):
    assert column_of(tmp_path, ["1", "0", "1"]).values.dtype == np.int8
    big = column_of(tmp_path, [str(10**17), "-5"])
    assert big.values.tolist() == [10**17, -5] and big.values.dtype == np.int64
    edge = column_of(tmp_path, [str(2**63 - 1), str(-(2**63))])
    assert edge.values[edge.codes].tolist() == [2**63 - 1, -(2**63)] and edge.values.dtype == np.int64
    hashes = column_of(tmp_path, [str(2**64 - 1), "7"])
    assert hashes.values[hashes.codes].tolist() == [2**64 - 1, 7] and hashes.values.dtype == np.uint64


@pytest.mark.parametrize("seed", range(3))
def test_codes_are_those_of_a_dict(monkeypatch, seed):
    monkeypatch.setattr(interning, "_FIRST_SLOTS", 4)
    monkeypatch.setattr(interning, "_FIRST_BYTES", 8)
    rng = random.Random(seed)
    texts = ["", "a", "aé", "x" * 15, "x" * 16, "x" * 15 + "y", "x" * 40, "x" * 20 + "z" + "x" * 19, "\0", "\0\0"]
    texts += [str(rng.randrange(300)) * rng.randint(1, 8) for _ in range(200)]
    table, expected = TextCodes(), {}
    for _ in range(4):
        cells = rng.choices(texts, k=150)
        raw = [cell.encode() for cell in cells]
        ends = np.cumsum([0, *map(len, raw)])
        codes = table.codes(np.frombuffer(b"".join(raw) + b"?", np.uint8), ends[:-1], ends[1:])
        assert codes.tolist() == [expected.setdefault(cell, len(expected)) for cell in cells]
    assert table.distinct() == list(expected)


@pytest.mark.parametrize(
    ("texts", "wholes"),
    [
        (["1", "-5", "0", "70"], [1, -5, 0, 70]),
        ([str(2**63 - 1), str(-(2**63))], [2**63 - 1, -(2**63)]),
        ([str(2**63 - 10), str(10 - 2**63), str(10**18)], [2**63 - 10, 10 - 2**63, 10**18]),
        *(([text], None) for text in ("", "-", ".5", "-0", "007", "-07", "1a", "a1", "1/", "1:", "+1", "1.0", "--1")),
        *(([str(beyond)], None) for beyond in (2**63, -(2**63) - 1, 2**63 + 10, 10**19, -(10**19), 10**18 * 95)),
        (["7", "x"], None),
        ([], None),
    ],
)
def test_texts_are_whole_numbers_if_each_is_written_as_one_of_64_bits(texts, wholes):
    table = TextCodes()
    raw = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, raw)])
    table.codes(np.frombuffer(b"".join(raw) + b"?", np.uint8), ends[:-1], ends[1:])
    found = table.wholes()
    assert (found if found is None else found.tolist()) == wholes


def test_codes_of_whole_numbers(monkeypatch):
    monkeypatch.setattr(interning, "_FIRST_SLOTS", 4)
    keys = np.random.default_rng(0).integers(-50, 50, 500) * 2**57
    table, expected = IntCodes(), {}
    for chunk in np.split(keys, 5):
        assert table.codes(chunk).tolist() == [expected.setdefault(key, len(expected)) for key in chunk.tolist()]
    assert table.distinct().tolist() == list(expected)


def test_gzip_and_several_files(tmp_path):
    for k in range(3):
        with gzip.open(tmp_path / f"{k}.csv.gz", "wt") as file:
            file.write(f"a,b\n{k},x\n{k + 1},y\n")
    columns, names = read_delimited(sorted(tmp_path.iterdir()), ids=["b"])
    assert names == ["a", "b"] and columns["a"].values.tolist() == [0, 1, 1, 2, 2, 3]
    assert columns["b"].values[columns["b"].codes].tolist() == ["x", "y"] * 3
    (tmp_path / "3.csv.gz").write_bytes((tmp_path / "2.csv.gz").read_bytes()[:-9])
    with pytest.raises(InputError, match=r"3.csv.gz: cannot be read"):
        read_delimited([tmp_path / "3.csv.gz"])


def test_reading_is_quiet_unless_asked_not_to_be(tmp_path, monkeypatch):
    (tmp_path / "w.csv").write_text("a\n1\n")
    shown = []
    plain = delimited.bar
    monkeypatch.setattr(delimited, "bar", lambda *told: shown.append(told) or plain(*told))
    read_delimited([tmp_path / "w.csv"])
    read_delimited([tmp_path / "w.csv"], quiet=False)
    assert shown == [("w.csv", 4, "B", True), ("w.csv", 4, "B", False)]
    with gzip.open(tmp_path / "w.csv.gz", "wt") as file:
        file.write("a\n1\n")
    read_delimited([tmp_path / "w.csv.gz"])
    assert shown[-1] == ("w.csv.gz", None, "B", True)  # how much it unpacks to is not known before


def test_only_what_is_asked_for_is_kept(tmp_path):
    (tmp_path / "w.csv").write_text("a,b,c\n1,2,3\n4,5,6\n")
    columns, names = read_delimited([tmp_path / "w.csv"], columns={"c", "a", "z"})
    assert list(columns) == ["a", "c"] and names == ["a", "b", "c"] and columns["c"].values.tolist() == [3, 6]


def test_a_cell_of_a_million_digits_that_is_no_number_is_told_at_once():
    """In a process of its own, which is ended if the time grows with the square of the length: that would be hours."""
    program = """
from dubnb.data.column import _number
many = "1" * 10**6
for start in (many, "1." + many, "1e" + many, " " * 10**6, "1" + " " * 10**6):
    text = start + "x"
    assert _number(text) != _number(text), text[:10]
assert [_number(text) for text in ("1", "-1.", ".5", "+2.5e1", " 3 ", "1E-1")] == [1.0, -1.0, 0.5, 25.0, 3.0, 0.1]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_numbers_that_meet_in_one_slot_have_codes_of_their_own():
    """With the first of all, also once the table has grown, and when they come again."""
    codes = interning.IntCodes()
    first = interning._hash_int(0, interning._START) % 8192
    meeting = [k for k in range(1 << 16) if interning._hash_int(k, interning._START) % 8192 == first]
    keys = np.array([0, *meeting[1:4], *range(100_000, 102_100), *meeting[4:], *meeting], np.int64)  # the table grows
    found = codes.codes(keys)
    distinct = list(dict.fromkeys(keys.tolist()))
    assert codes.distinct().tolist() == distinct and len(codes.slots) == 8192
    assert found.tolist() == [distinct.index(key) for key in keys]


def test_texts_that_meet_in_one_slot_have_codes_of_their_own():
    """Short ones, and long ones that differ in one byte of the middle, in their length or in nothing."""
    long = [b"abcdefgh-0-tuvwxyz", b"abcdefgh-1-tuvwxyz", b"Zbcdefgh-0-tuvwxyz", b"abcdefgh-0-0-tuvwxyz"]
    texts = [b"", b"a", b"aa", b"b", *long, b"fifteen bytes..", b"a", long[1], b""]
    buffer = np.frombuffer(b"".join(texts) + bytes(8), np.uint8)
    stops = np.cumsum([len(text) for text in texts])
    starts = stops - [len(text) for text in texts]
    keys = np.empty((len(texts), 3), np.int64)
    interning._text_keys(buffer, starts, stops, keys, interning._START)
    keys[:, 2] = 5
    table, expected = interning.TextCodes(), [*range(9), 1, 5, 0]
    for _ in range(2):
        codes = np.empty(len(texts), np.int32)
        state = codes, 0, table.slots, table.bytes, table.ends, table.size
        table.size, done = interning._intern_text(buffer, starts, stops, keys, *state)
        assert (table.size, done) == (9, 12) and codes.tolist() == expected
        table._grow()
    assert table.distinct() == [text.decode() for text in texts[:9]]
