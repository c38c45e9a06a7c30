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

from dubnb import _progress
from dubnb._check import InputError
from dubnb.data import delimited
from dubnb.data.delimited import Layout, TextCodes, read_delimited

CELLS = ("a", "1", "", " b", '"x"', '"x""y"', '"a,b"', '"l\nm"', "é", 'a"b', '" q "', '"r\r\nz"', '"u\rv\n"', '"\r\rw"')
CELLS += ('"s\r"', '"""', "0" * 20, '""""')
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


NUMBERS = ["0", "1", "-1", "12.5", "-0.5", "0.1", "123456789012345", "999999999999999.5", "1e3", "1.5E-7"]
NUMBERS += ["0.30000000000000004"]
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


WHOLE = re.compile(r"0|-?[1-9][0-9]*")
DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")


def test_cells_are_numbers_where_they_are_written_as_plain_ones(tmp_path):
    rng = random.Random(1)
    cells = ["-", ".", "-.", "0", "-0", "0.0", "-0.0", "00", "01", "-01", "1.", ".1", "-.5", "1..2", "1.2.3", "10"]
    cells += ["-7", "5:", "5/", "/5", "1-", "--1", "0." + "0" * 14 + "1"]
    for n in range(12, 22):
        cells += ["1" * n, "-" + "9" * n, "1." + "2" * n, "-" + "3" * n + ".5"]
    cells += ["".join(rng.choices("0123456789.-", k=rng.randint(1, 6))) for _ in range(200)]
    for cell in cells:
        found = column_of(tmp_path, [cell])
        value = found.values[0 if found.codes is None else found.codes[0]]
        if (DECIMAL.fullmatch(cell) and len(cell) < 19) or (WHOLE.fullmatch(cell) and abs(int(cell)) < 2**63):
            assert found.values.dtype.kind in "if" and value == float(cell), cell
        elif not DECIMAL.fullmatch(cell) and not WHOLE.fullmatch(cell):
            assert value == cell and found.values.dtype == object, cell


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
def test_invalid_utf8_is_reported_with_its_line_for_any_chunk_size(tmp_path, chunks, monkeypatch, content, said):
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
def test_one_cell_that_is_not_a_plain_number_makes_the_column_text(tmp_path, odd):
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
    monkeypatch.setattr(delimited, "_FIRST_SLOTS", 4)
    monkeypatch.setattr(delimited, "_FIRST_BYTES", 8)
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
    plain = _progress.bar
    monkeypatch.setattr(_progress, "bar", lambda **told: shown.append((told["total"], told["quiet"])) or plain(**told))
    read_delimited([tmp_path / "w.csv"])
    read_delimited([tmp_path / "w.csv"], quiet=False)
    assert shown == [(4, True), (4, False)]
    with gzip.open(tmp_path / "w.csv.gz", "wt") as file:
        file.write("a\n1\n")
    read_delimited([tmp_path / "w.csv.gz"])
    assert shown[-1] == (None, True)  # the unpacked size is not known


def test_a_cell_of_a_million_digits_is_refused_quickly():
    """In a process of its own, which is ended if the time grows with the square of the length: that would be hours."""
    program = """
from dubnb.data.column import _number
many = "1" * 10**6
for start in (many, "1." + many, "1e" + many, " " * 10**6, "1" + " " * 10**6):
    text = start + "x"
    assert _number(text) != _number(text), text[:10]
assert [_number(text) for text in ("1", "-1.", ".5", "+2.5e1", " 3 ", "1E-1")] == [1.0, -1.0, 0.5, 25.0, 3.0, 0.1]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=3600)
