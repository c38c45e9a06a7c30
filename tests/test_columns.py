"""A column of a log: what it is read as, cell by cell, and what is said of a cell that cannot be read."""

from decimal import Decimal

import numpy as np
import pytest

from dubnb._check import InputError
from dubnb.data import column
from dubnb.data.column import Column, Place

HERE = Place("mine", "c")
BIG = 2**63


def objects(*values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


def refused(said, function, values, codes=None, *more):
    with pytest.raises(InputError) as caught:
        function(Column(values, codes), HERE, *more)
    assert said in str(caught.value) and str(caught.value).startswith("mine: column 'c', row ")


def test_rows_are_values_or_stand_for_values():
    plain, coded = Column(np.array([5, 6, 7])), Column(np.array([5, 6]), np.array([1, -1, 0, 1], np.int32))
    assert (len(plain), len(coded)) == (3, 4)
    assert plain.per_row(np.array([0.5, 0.6, 0.7])).tolist() == [0.5, 0.6, 0.7]
    np.testing.assert_array_equal(coded.per_row(np.array([0.5, 0.6])), [0.6, np.nan, 0.5, 0.6])
    assert coded.per_row(np.array([5, 6]), 9).tolist() == [6, 9, 5, 6]
    assert plain.take(np.array([2, 0])).values.tolist() == [7, 5]
    some = coded.take(np.array([3, 1]))
    assert some.values.tolist() == [5, 6] and some.codes.tolist() == [1, -1]


def test_long_cells_are_cut_in_messages():
    assert column.shown("x" * 58) == repr("x" * 58) and column.shown(np.int64(5)) == "5"
    assert column.shown("x" * 59) == "'" + "x" * 56 + "..."


@pytest.mark.parametrize(
    ("cells", "dtype"),
    [
        (["1", "-2", "0"], np.int64),
        ([str(BIG - 1), str(-BIG)], np.int64),
        ([str(2 * BIG - 1), "0"], np.uint64),
        ([str(BIG), "7"], np.uint64),
        ([str(BIG), "-1"], object),
        ([str(2 * BIG), "1"], object),
        ([str(-BIG - 1), "1"], object),
        (["007", "1"], object),
        ([], object),
    ],
)
def test_text_is_whole_numbers_where_64_bits_hold_all_of_them(cells, dtype):
    codes = np.zeros(3, np.int32)
    found = column.text_column(cells, codes)
    assert found.values.dtype == dtype and found.codes is codes
    assert found.values.tolist() == (cells if dtype is object else [int(cell) for cell in cells])


def test_whole_numbers_that_were_found_already_are_taken():
    wholes, codes = np.array([3, 4]), np.array([0, 1, 0])
    found = column.text_column([], codes, wholes)
    assert found.values is wholes and found.codes is codes


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        (np.array([4, 2, 4]), np.array([4, 2])),
        (np.array([4.0, 2.0, 4.0]), np.array([4, 2])),
        (np.array([2.0**53 - 1]), np.array([2**53 - 1])),
        (np.array([2, 1], np.uint64), np.array([2, 1], np.uint64)),
        (objects("b", "a", "b"), np.array(["b", "a"])),
        (objects("x" * 512), np.array(["x" * 512])),
        (objects(3, 4.0), np.array([3, 4])),
        (objects(BIG - 1, -BIG), np.array([BIG - 1, -BIG])),
        (objects(0, 2 * BIG - 1), np.array([0, 2 * BIG - 1], np.uint64)),
        (objects(), np.array([], np.int64)),
    ],
)
def test_ids_are_distinct_int_or_str(values, ids):
    found = column.distinct_ids(Column(values), HERE)
    assert found.values.dtype == ids.dtype and found.values.tolist() == ids.tolist()
    assert found.kind == ("str" if ids.dtype.kind == "U" else "int")
    assert [found.values[code] for code in found.codes] == [type(ids[0])(value) for value in values]


MISSING = "is missing: drop such rows or give them an id"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.array([True, False]), "row 1: id True is of type bool: make ids int or str"),
        (np.array([1.0, np.nan]), f"row 2: id nan {MISSING}"),
        (np.array([1.0, 0.5]), "row 2: id 0.5 is not a whole number"),
        (np.array([1.0, -(2.0**53)]), "row 2: id -9007199254740992.0 is a float of 2**53 or more"),
        (objects("a", ""), f"row 2: id '' {MISSING}"),
        (objects("a", "NaN"), f"row 2: id 'NaN' {MISSING}"),
        (objects("a", "b\0c"), "row 2: id 'b\\x00c' holds a NUL character"),
        (objects("a", "x" * 513), "is longer than 512 characters"),
        (objects("a", 3), "row 2: id 3 and id 'a' mix int and str"),
        (objects(3, 3, "a"), "row 3: id 'a' and id 3 mix int and str"),
        (objects(3, True), "is a bool: make ids int or str"),
        (objects(3, (4,)), "is a tuple: make ids int or str"),
        (objects(3, 2 * BIG), "row 2: id 18446744073709551616 has more than 64 bits"),
        (objects(-BIG - 1, 3), "row 1: id -9223372036854775809 has more than 64 bits"),
        (objects(7, BIG, -1), "row 2: id 9223372036854775808 needs uint64, id -1 int64: make the ids str"),
    ],
)
def test_ids_that_are_none_are_refused_by_their_row(values, said):
    refused(said, column.distinct_ids, values)


def test_missing_ids_of_a_coded_column_are_refused_by_their_row():
    refused(f"row 3: id nan {MISSING}", column.distinct_ids, np.array([5, 6]), np.array([0, 1, -1], np.int32))
    fine = column.distinct_ids(Column(np.array([5, 6]), np.array([], np.int32)), HERE)
    assert fine.values.tolist() == [5, 6] and len(fine.codes) == 0


def test_ids_become_what_is_asked_for():
    def ids(values, kind):
        return column.distinct_ids(Column(objects(*values)), HERE, kind).values.tolist()

    assert ids([7, 12], "str") == ["7", "12"] and ids(["07", "x"], "str") == ["07", "x"]
    assert ids(["007", "-12", "+5"], "int") == [7, -12, 5] and ids([7, 12], "int") == [7, 12]
    assert ids([str(2 * BIG - 1)], "int") == [2 * BIG - 1]
    refused("row 2: id 'x' is no whole number", column.distinct_ids, objects("1", "x"), None, "int")
    refused("row 1: id '18446744073709551616' has more", column.distinct_ids, objects(str(2 * BIG)), None, "int")
    refused("row 2: id '-9223372036854775809' has", column.distinct_ids, objects("1", str(-BIG - 1)), None, "int")


def test_numbers():
    def numbers(values, codes=None):
        return column.numbers_of(Column(values, codes), HERE)

    assert numbers(np.array([3, 4])).dtype == np.int64 and numbers(np.array([True, False])).dtype == np.int8
    coded = numbers(np.array([3, 4]), np.array([1, 1, 0], np.int32))
    assert coded.tolist() == [4, 4, 3] and coded.dtype == np.int64
    text = numbers(objects("1.5", "TRUE", "false", " 2e1 ", Decimal("0.25"), 3))
    assert text.tolist() == [1.5, 1.0, 0.0, 20.0, 0.25, 3.0]
    assert numbers(np.array([1.5, 2.0])).tolist() == [1.5, 2.0]
    assert len(numbers(np.array([3]), np.array([], np.int32))) == 0


@pytest.mark.parametrize(
    ("values", "codes", "said"),
    [
        (np.array([1.0, np.inf]), None, "row 2: inf is no finite number: correct or drop it"),
        (objects("1", "1_0"), None, "row 2: '1_0' is no finite number"),
        (objects("x", "1"), [1, 0, 1], "row 2: 'x' is no finite number"),
        (objects("1", "x"), [0, 1], "row 2: 'x' is no finite number"),
        (np.array([3, 4]), [0, 1, -1], "row 3: nan is no finite number"),
        (objects(1, 10**400), None, "row 2: 1000"),
        (objects(1, (2,)), None, "row 2: (2,) is no finite number"),
        (np.array(["2020-01-01"], "M8[D]"), None, "row 1: datetime.date(2020, 1, 1) is of type datetime64[D]"),
    ],
)
def test_cells_that_are_no_numbers_are_refused_by_their_row(values, codes, said):
    refused(said, column.numbers_of, values, None if codes is None else np.array(codes, np.int32))


def test_weights_are_above_zero_and_finite_as_float32():
    limits = np.finfo(np.float32)
    ends = np.array([limits.tiny, limits.max], np.float64)
    found = column.weights_of(Column(ends), HERE)
    assert found.tolist() == ends.tolist() and found.dtype == np.float64
    for bad in (0.0, -1.0, np.nextafter(ends[0], 0), np.nextafter(ends[1], np.inf)):
        refused("row 2: weight", column.weights_of, np.array([1.0, bad]))


def test_flags_are_yes_or_no():
    assert column.flags_of(Column(objects("1", "0", "true", "False")), HERE).tolist() == [True, False, True, False]
    for bad in (2, -1, 0.5):
        refused(f"row 2: {bad} is neither 1 nor 0", column.flags_of, np.array([1, bad]))


def test_times_rise_with_time():
    def times(values, codes=None):
        return column.times_of(Column(values, codes), HERE).tolist()

    assert times(np.array([5, 3])) == [5, 3] and times(objects("5", "3.5")) == [5.0, 3.5]
    assert times(np.array(["1970-01-01T00:00:01"], "M8[s]")) == [10**9]
    zones = objects("1970-01-01T01:00:00+01:00", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.5")
    assert times(zones, np.array([2, 0, 1, 0], np.int32)) == [5 * 10**8, 0, 0, 0]
    refused("row 2: 'soon' is no time", column.times_of, objects("1970-01-01", "soon"))
    refused("row 1: nan is no time", column.times_of, np.array(["1970-01-01"], "M8[s]"), np.array([-1, 0], np.int32))


@pytest.mark.parametrize(
    ("one", "other", "cause"),
    [
        (7, "7", "one is int, the other str"),
        (7, " 7 ", "one is int, the other str"),
        ("a", " a", "stray spaces"),
        ("A", "a ", "upper and lower case"),
        ("007", "7", "padding zeros"),
        ("7.0", "7", "a number written with a decimal point"),
        ("a", "b", None),
        (7, 8, None),
        (7, "8", None),
    ],
)
def test_why_two_ids_are_two(one, other, cause):
    assert column.likely_cause(one, other) == column.likely_cause(other, one) == cause
