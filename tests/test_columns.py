"""A column of a log: what it is read as, cell by cell, and what is said of a cell that cannot be read."""

from decimal import Decimal

import numpy as np
import pytest

from dubnb._check import InputError
from dubnb.data import arrow, column
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
    assert some.values.tolist() == [6] and some.codes.tolist() == [0, -1], "values that occur no more are left out"


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


# ---- Arrow ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pa():
    return pytest.importorskip("pyarrow")


def collected(part, *arrays):
    for array in arrays:
        part.add(array)
    return part.column()


def cells(own):
    return [None if code < 0 else own.values[code] for code in own.codes]


def test_whole_ids_of_arrow_by_codes(pa):
    own = collected(arrow._IntIds(), pa.array([7, None, 9, 7]), pa.array([0, 9], pa.int8()), pa.array([], pa.int64()))
    assert own.values.tolist() == [7, 0, 9] and cells(own) == [7, None, 9, 7, 0, 9]
    assert own.values.dtype == np.int64 and own.codes.dtype == np.int32
    big = collected(arrow._IntIds(), pa.array([2**64 - 1, 5], pa.uint64()))
    assert big.values.dtype == np.uint64 and cells(big) == [2**64 - 1, 5]
    assert len(collected(arrow._IntIds())) == 0


def test_texts_of_arrow_by_codes(pa):
    texts = pa.array(["left out", "b", "é", None, "b", "", "left out"])
    coded = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1], pa.int8()), pa.array(["c", "b"]))
    none = pa.array([None, None], pa.string())
    own = collected(arrow._Text(), texts.slice(1, 5), coded, none, pa.array(["c"], pa.large_string()))
    assert cells(own) == ["b", "é", None, "b", "", "b", None, "c", "b", None, None, "c"]
    assert own.values.tolist() == ["b", "é", "", "c"] and own.values.dtype == object
    part = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["z", "x", "y"]).slice(1))
    assert cells(collected(arrow._Text(), part)) == ["x", "y"]
    assert len(collected(arrow._Text())) == 0


def test_numbers_of_arrow_take_as_few_bytes_as_hold_them(pa):
    def numbers(*arrays):
        return collected(arrow._Numbers(), *arrays).values

    for values, kind, expected in (
        ([127, -128], pa.int64(), np.int8),
        ([128, 0], pa.int64(), np.int64),
        ([-129, 0], pa.int16(), np.int64),
        ([True, False], pa.bool_(), np.int8),
        ([1.5, 2.0], pa.float32(), np.float32),
        ([1.5, 2.0], pa.float64(), np.float64),
        ([np.float16(1.5), np.float16(2.0)], pa.float16(), np.float64),
        ([2**64 - 1, 0], pa.uint64(), np.uint64),
        ([3, 4], pa.uint64(), np.int8),
        ([Decimal("1.25"), Decimal("2.50")], pa.decimal128(5, 2), np.float64),
    ):
        found = numbers(pa.array(values, kind))
        assert found.dtype == expected and all(a == b for a, b in zip(found.tolist(), values, strict=True)), kind
    missing = numbers(pa.array([3, None]), pa.array([None, None], pa.null()))
    np.testing.assert_array_equal(missing, [3.0, np.nan, np.nan, np.nan])
    assert len(numbers()) == 0 and len(numbers(pa.array([], pa.int64()))) == 0


def test_times_of_arrow(pa):
    stamps = pa.array([1_500, None], pa.timestamp("ms"))
    days = pa.array([1], pa.date32())
    found = collected(arrow._Times(), stamps, days).values
    assert found.dtype == "datetime64[ns]" and np.isnat(found[1])
    assert found[[0, 2]].astype(np.int64).tolist() == [15 * 10**8, 86_400 * 10**9]


def test_what_collects_a_column_of_arrow(pa):
    ids = {
        pa.int8(): arrow._IntIds,
        pa.uint64(): arrow._IntIds,
        pa.string(): arrow._Text,
        pa.large_string(): arrow._Text,
    }
    ids |= {pa.float64(): arrow._Numbers, pa.dictionary(pa.int8(), pa.string()): arrow._Text}
    others = ids | {pa.int8(): arrow._Numbers, pa.uint64(): arrow._Numbers, pa.bool_(): arrow._Numbers}
    others |= {pa.null(): arrow._Numbers, pa.decimal128(5, 2): arrow._Numbers, pa.timestamp("s"): arrow._Times}
    others |= {pa.date32(): arrow._Times, pa.date64(): arrow._Times}
    nothing = (pa.binary(), pa.list_(pa.int8()), pa.dictionary(pa.int8(), pa.int8()), pa.time32("s"))
    for kind in (*others, *nothing):
        assert arrow._part_for(kind, is_id=True) is ids.get(kind), kind
        assert arrow._part_for(kind, is_id=False) is others.get(kind), kind


def test_columns_of_a_stream_of_arrow(pa):
    table = pa.table({"user": ["a", "b", "a"], "label": [1, 0, 1], "more": [[1], [2], [3]]})
    columns, names = arrow.read_stream(table, "mine", {"label", "user", "absent"}, {"user"})
    assert list(columns) == ["user", "label"] and names == ["user", "label", "more"]
    assert cells(columns["user"]) == ["a", "b", "a"] and columns["label"].values.tolist() == [1, 0, 1]
    with pytest.raises(InputError, match=r"mine: column 'more' is of type list<"):
        arrow.read_stream(table, "mine", None, {"user"})
    twice = pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(InputError, match="mine: column 'x' stands 2 times"):
        arrow.read_stream(twice, "mine", None, ())
