"""A column of a log: how cells are read, and the errors for cells that cannot be read."""

from decimal import Decimal

import numpy as np
import pytest

from dubnb._check import InputError
from dubnb.data import column
from dubnb.data.column import CellLocation, Column
from dubnb.data.log import read_stream

HERE = CellLocation("mine", "c")
BIG = 2**63


def objects(*values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


def refused(said, function, values, codes=None, *more):
    with pytest.raises(InputError) as caught:
        function(Column(values, codes), HERE, *more)
    assert said in str(caught.value) and str(caught.value).startswith("mine: column 'c', row ")


def test_columns_with_and_without_codes():
    plain, coded = Column(np.array([5, 6, 7])), Column(np.array([5, 6]), np.array([1, -1, 0, 1], np.int32))
    assert (len(plain), len(coded)) == (3, 4)
    assert plain.per_row(np.array([0.5, 0.6, 0.7])).tolist() == [0.5, 0.6, 0.7]
    np.testing.assert_array_equal(coded.per_row(np.array([0.5, 0.6])), [0.6, np.nan, 0.5, 0.6])
    assert coded.per_row(np.array([5, 6]), 9).tolist() == [6, 9, 5, 6]
    assert plain.take(np.array([2, 0])).values.tolist() == [7, 5]
    some = coded.take(np.array([3, 1]))
    assert some.values.tolist() == [6] and some.codes.tolist() == [0, -1], "values that occur no more are left out"


def test_long_cells_are_cut_in_messages():
    assert column.quote_cell("x" * 58) == repr("x" * 58) and column.quote_cell(np.int64(5)) == "5"
    assert column.quote_cell("x" * 59) == "'" + "x" * 56 + "..."


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
    assert [found.values[code] for code in found.codes] == [type(ids[0])(value) for value in values]


MISSING = "is missing: drop such rows or give them an id"


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
    refused("row 2: id 'x' is not a whole number", column.distinct_ids, objects("1", "x"), None, "int")
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
        (np.array([1.0, np.inf]), None, "row 2: inf is not a finite number: correct or drop it"),
        (objects("1", "1_0"), None, "row 2: '1_0' is not a finite number"),
        (objects("x", "1"), [1, 0, 1], "row 2: 'x' is not a finite number"),
        (objects("1", "x"), [0, 1], "row 2: 'x' is not a finite number"),
        (np.array([3, 4]), [0, 1, -1], "row 3: nan is not a finite number"),
        (objects(1, 10**400), None, "row 2: 1000"),
        (objects(1, (2,)), None, "row 2: (2,) is not a finite number"),
        (np.array(["2020-01-01"], "M8[D]"), None, "row 1: datetime.date(2020, 1, 1) is of type datetime64[D]"),
    ],
)
def test_cells_that_are_not_numbers_are_refused_with_their_row(values, codes, said):
    refused(said, column.numbers_of, values, None if codes is None else np.array(codes, np.int32))


def test_weights_are_above_zero_and_finite_as_float32():
    limits = np.finfo(np.float32)
    ends = np.array([limits.tiny, limits.max], np.float64)
    found = column.weights_of(Column(ends), HERE)
    assert found.tolist() == ends.tolist() and found.dtype == np.float64
    for bad in (0.0, -1.0, np.nextafter(ends[0], 0), np.nextafter(ends[1], np.inf)):
        refused("row 2: weight", column.weights_of, np.array([1.0, bad]))


def test_times_rise_with_time():
    def times(values, codes=None):
        found = column.times_of(Column(values, codes), HERE)
        return (found.astype(np.int64) if found.dtype.kind == "M" else found).tolist()

    assert times(np.array([5, 3])) == [5, 3] and times(objects("5", "3.5")) == [5.0, 3.5]
    assert times(np.array(["1970-01-01T00:00:01"], "M8[s]")) == [10**9]
    zones = objects("1970-01-01T01:00:00+01:00", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.5")
    assert times(zones, np.array([2, 0, 1, 0], np.int32)) == [5 * 10**8, 0, 0, 0]
    refused("row 2: 'soon' is not a time", column.times_of, objects("1970-01-01", "soon"))
    refused("row 1: nan is not a time", column.times_of, np.array(["1970-01-01"], "M8[s]"), np.array([-1, 0], np.int32))


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
def test_likely_cause_of_ids_that_differ(one, other, cause):
    assert column.likely_cause(one, other) == column.likely_cause(other, one) == cause


# ---- Arrow ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def pa():
    return pytest.importorskip("pyarrow")


def from_arrow(pa, *arrays, is_id=False):
    """The column that some chunks of Arrow become."""
    stream = pa.RecordBatchReader.from_batches(
        pa.schema([("x", arrays[0].type)]), [pa.record_batch([array], ["x"]) for array in arrays]
    )
    return read_stream(stream, "mine", None, {"x"} if is_id else ())[0]["x"]


def cells(own):
    return [None if code < 0 else own.values[code] for code in own.codes]


def test_whole_ids_of_arrow_by_codes(pa):
    own = from_arrow(pa, pa.array([7, None, 9, 7]), pa.array([0, 9]), pa.array([], pa.int64()), is_id=True)
    assert own.values.tolist() == [7, 0, 9] and cells(own) == [7, None, 9, 7, 0, 9]
    assert own.values.dtype == np.int64 and own.codes.dtype == np.int32
    big = from_arrow(pa, pa.array([2**64 - 1, 5], pa.uint64()), is_id=True)
    assert big.values.dtype == np.uint64 and cells(big) == [2**64 - 1, 5]


def test_texts_of_arrow_by_codes(pa):
    texts = pa.array(["left out", "b", "é", None, "b", "", "left out"]).slice(1, 5)
    own = from_arrow(pa, texts, pa.array([None, None], pa.string()), pa.array(["c", "b"]), is_id=True)
    assert cells(own) == ["b", "é", None, "b", "", None, None, "c", "b"]
    assert own.values.tolist() == ["b", "é", "", "c"] and own.values.dtype == object
    coded = pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1], pa.int8()), pa.array(["a", "c", "b"]).slice(1))
    assert cells(from_arrow(pa, coded, is_id=True)) == ["b", None, "c", "b"]
    assert cells(from_arrow(pa, pa.array(["c"], pa.large_string()), is_id=True)) == ["c"]


def test_numbers_of_arrow_take_as_few_bytes_as_hold_them(pa):
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
        found = from_arrow(pa, pa.array(values, kind)).values
        assert found.dtype == expected and all(a == b for a, b in zip(found.tolist(), values, strict=True)), kind
    np.testing.assert_array_equal(from_arrow(pa, pa.array([3, None])).values, [3.0, np.nan])
    np.testing.assert_array_equal(from_arrow(pa, pa.array([None, None], pa.null())).values, [np.nan, np.nan])
    assert len(from_arrow(pa, pa.array([], pa.int64())).values) == 0


def test_times_of_arrow(pa):
    for array in (pa.array([1_500, None], pa.timestamp("ms")), pa.array([1, None], pa.date32())):
        found = from_arrow(pa, array).values
        assert found.dtype == "datetime64[ns]" and np.isnat(found[1])
        assert int(found[0].astype(np.int64)) in (15 * 10**8, 86_400 * 10**9)


def test_types_of_arrow_that_a_log_cannot_hold_are_refused(pa):
    no_ids = {pa.bool_(): [True], pa.null(): [None], pa.timestamp("s"): [1], pa.decimal128(5, 2): [Decimal(1)]}
    never = {pa.binary(): [b"x"], pa.list_(pa.int8()): [[1]], pa.time32("s"): [1]}
    for kind, values in (no_ids | never).items():
        with pytest.raises(InputError, match="mine: column 'x' is of type "):
            from_arrow(pa, pa.array(values, kind), is_id=True)
    for kind, values in never.items():
        with pytest.raises(InputError, match="mine: column 'x' is of type "):
            from_arrow(pa, pa.array(values, kind))


def test_columns_of_a_stream_of_arrow(pa):
    table = pa.table({"user": ["a", "b", "a"], "label": [1, 0, 1], "more": [[1], [2], [3]]})
    columns, names = read_stream(table, "mine", {"label", "user", "absent"}, {"user"})
    assert list(columns) == ["user", "label"] and names == ["user", "label", "more"]
    assert cells(columns["user"]) == ["a", "b", "a"] and columns["label"].values.tolist() == [1, 0, 1]
    twice = pa.table([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(InputError, match="mine: column 'x' occurs 2 times"):
        read_stream(twice, "mine", None, ())


@pytest.mark.parametrize(
    ("cells", "dates", "ends"),
    [
        (objects("2026-01-01", ""), True, [1_767_225_600 * 10**9, 7.0]),
        (np.array(["2026-01-01", "NaT"], "datetime64[ns]"), True, [1_767_225_600 * 10**9, 7.0]),
        (np.array([1_767_225_600.0, np.nan]), False, [1_767_225_600.0, 7.0]),
        (np.array([3, 4]), False, [3.0, 4.0]),
        (objects("", ""), None, [7.0, 7.0]),
        (np.array([np.nan]), None, [7.0]),
    ],
)
def test_times_that_may_be_missing_are_dates_or_numbers(cells, dates, ends):
    assert column.holds_dates(Column(cells), HERE) is dates
    assert column.ends_of(Column(cells), HERE, 7.0).tolist() == ends
