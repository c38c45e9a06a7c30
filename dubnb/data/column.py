"""A column of a log by its distinct values, and what it is read as: ids, numbers, weights, times."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dubnb._check import InputError, option
from dubnb.data.ids import FIRST_BIG_INT

EXACT_FLOAT = 2**53  # above it, whole numbers in a float column have lost digits
LONGEST_ID = 512  # one long id widens the whole table of ids
ID_TYPES = ("str", "int")

_WHOLE = re.compile(r"-?[1-9][0-9]{0,19}|0")  # as a number is written; 007 and -0 are text
_WHOLE_FLOAT = re.compile(r"(-?[1-9][0-9]{0,15}|0)(\.0)?")  # as a table with missing cells writes whole numbers: 509.0
_NUMBER = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)  # linear in its length
_MISSING_TEXT = ("", "nan", "NaN")
_TRUTH_TEXT = {"true": 1.0, "false": 0.0}


class Column(NamedTuple):
    """Row k holds values[codes[k]], or nothing where the code is -1; without codes, row k holds values[k].

    A log repeats few ids many times, so checks and conversions run over the distinct values alone.
    """

    values: np.ndarray  # int64, uint64, float64, bool, datetime64, or object: str, and whatever else pandas may hold
    codes: np.ndarray | None = None  # int32

    def __len__(self) -> int:
        return len(self.values if self.codes is None else self.codes)

    def per_row(self, of_values: np.ndarray, missing: Any = np.nan) -> np.ndarray:
        """One number per row from one per value."""
        if self.codes is None:
            return of_values
        rows: np.ndarray = np.append(of_values, missing)[self.codes]  # code -1 is the last
        return rows

    def take(self, rows: np.ndarray) -> Column:
        """Some rows, with the values that occur in them."""
        if self.codes is None:
            return Column(self.values[rows])
        codes = self.codes[rows]
        used = np.unique(codes[codes >= 0])
        places = np.full(len(self.values) + 1, -1, np.int32)  # the last is that of a missing value
        places[used] = np.arange(len(used))
        return Column(self.values[used], places[codes])


class Place(NamedTuple):
    """Where a value stands, as messages say it."""

    log: str
    column: str
    droppable: bool = False  # whether drop_bad= would drop a row whose value cannot be read

    def fault(self, row: int, what: str, unreadable: bool = False) -> InputError:
        """An error about one row, counted from 0."""
        hint = ""
        if unreadable and self.droppable:
            name = option("drop_bad")
            hint = f" ({name}{'True' if name.endswith('=') else ''} drops all such rows)"
        return InputError(f"{self.log}: column {self.column!r}, row {row + 1}: {what}{hint}")


def shown(value: Any) -> str:
    """A cell as messages show it."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def text_column(distinct: list[str], codes: np.ndarray | None, wholes: np.ndarray | None = None) -> Column:
    """Text, or whole numbers if every cell is written as a plain one; `wholes`: they were found to be int64 already.

    Where every cell is a plain one or ends in .0, such as 509.0, they are whole numbers too, unless a float64 may have
    lost digits.
    """
    if wholes is None and distinct and all(map(_WHOLE_FLOAT.fullmatch, distinct)):
        values = [int(cell.removesuffix(".0")) for cell in distinct]
        if all(abs(value) < EXACT_FLOAT for value in values):
            return Column(np.array(values, dtype=np.int64), codes)
    if wholes is None and distinct and all(map(_WHOLE.fullmatch, distinct)):
        values = [int(cell) for cell in distinct]
        if min(values) >= -FIRST_BIG_INT and max(values) < 2 * FIRST_BIG_INT:
            small = max(values) < FIRST_BIG_INT
            if small or min(values) >= 0:
                return Column(np.array(values, dtype=np.int64 if small else np.uint64), codes)
    if wholes is not None:
        return Column(wholes, codes)
    values_ = np.empty(len(distinct), dtype=object)
    values_[:] = distinct
    return Column(values_, codes)


# ---- ids -----------------------------------------------------------------------------------------------------------


class DistinctIds(NamedTuple):
    """The ids of a column: int64, uint64 or str, perhaps some twice, and each row's place among them."""

    values: np.ndarray
    codes: np.ndarray

    @property
    def kind(self) -> str:
        return "str" if self.values.dtype.kind == "U" else "int"


def distinct_ids(column: Column, place: Place, id_type: str | None = None) -> DistinctIds:
    """The ids of a column; the checks run over the distinct ones only."""
    values, codes = _factorized(column)

    def refuse(code: int, reason: str, unreadable: bool = False) -> InputError:
        row = int(np.argmax(codes == code))
        value = None if code < 0 else values[code]
        return place.fault(row, f"id {'nan' if value is None else shown(value)} {reason}", unreadable)

    if len(codes) and codes.min() < 0:
        raise refuse(-1, "is missing: drop such rows or give them an id", unreadable=True)
    ids = values
    if values.dtype.kind not in "iu":
        if values.dtype.kind not in "fOUT":
            raise refuse(0, f"is of type {values.dtype}: make ids int or str")
        ids = _checked_ids(values, refuse)
    if id_type == "str" and ids.dtype.kind != "U":
        ids = np.array(list(map(str, ids.tolist())), dtype=np.str_)
    elif id_type == "int" and ids.dtype.kind == "U":
        ids = _as_ints(ids, refuse)
    return DistinctIds(ids, codes)


def _factorized(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """(distinct values, codes) of any column."""
    if column.codes is not None:
        return column.values, column.codes
    import pandas as pd

    codes, values = pd.factorize(column.values)
    return np.asarray(values), codes.astype(np.int32)


def _checked_ids(values: np.ndarray, refuse: Callable[..., InputError]) -> np.ndarray:
    """Values of mixed or unsuitable type as int64, uint64 or str."""
    ids = values.tolist()
    if set(map(type, ids)) == {str} and not _has_faulty_text(ids):
        return np.array(ids, dtype=np.str_)
    for code, value in enumerate(ids):
        reason = _id_fault(value)
        if reason:
            raise refuse(code, reason, unreadable=True)
        if isinstance(value, str) != isinstance(ids[0], str):
            raise refuse(code, f"and id {shown(ids[0])} mix int and str: make the whole column one of them")
    if ids and isinstance(ids[0], str):
        return np.array(ids, dtype=np.str_)
    return _int_array([int(value) for value in ids], refuse)


def _has_faulty_text(ids: list[str]) -> bool:
    """Whether one of them is at fault, told without looking at each: a log may have millions."""
    return max(map(len, ids)) > LONGEST_ID or not set(_MISSING_TEXT).isdisjoint(ids) or "\0" in "".join(ids)


def _id_fault(value: Any) -> str | None:
    """Why `value` cannot be an id, with the remedy, or None."""
    if isinstance(value, str):
        if value in _MISSING_TEXT:
            return "is missing: drop such rows or give them an id"
        if "\0" in value:
            return "holds a NUL character: remove it"
        return f"is longer than {LONGEST_ID} characters: shorten it" if len(value) > LONGEST_ID else None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return f"is a {type(value).__name__}: make ids int or str"
    if isinstance(value, numbers.Integral):
        fits = -FIRST_BIG_INT <= int(value) < 2 * FIRST_BIG_INT
        return None if fits else "has more than 64 bits: make the ids str"
    if not float(value).is_integer():
        return "is not a whole number: make ids int or str"
    return (
        None
        if abs(float(value)) < EXACT_FLOAT
        else "is a float of 2**53 or more, which loses digits: read ids as int or str"
    )


def _as_ints(ids: np.ndarray, refuse: Callable[[int, str], InputError]) -> np.ndarray:
    """Text as whole numbers; padding zeros are dropped."""
    values = []
    for code, text in enumerate(ids.tolist()):
        if not re.fullmatch(r"[+-]?[0-9]{1,30}(\.0)?", text, re.ASCII):
            raise refuse(code, "is no whole number: leave the ids as str")
        values.append(int(text.removesuffix(".0")))
    return _int_array(values, refuse)


def _int_array(values: list[int], refuse: Callable[[int, str], InputError]) -> np.ndarray:
    low, high = min(values, default=0), max(values, default=0)
    if low >= -FIRST_BIG_INT and high < FIRST_BIG_INT:
        return np.array(values, dtype=np.int64)
    if low >= 0 and high < 2 * FIRST_BIG_INT:
        return np.array(values, dtype=np.uint64)
    worst = low if low < -FIRST_BIG_INT else high
    why = (
        "has more than 64 bits" if not -FIRST_BIG_INT <= worst < 2 * FIRST_BIG_INT else f"needs uint64, id {low} int64"
    )
    raise refuse(values.index(worst), f"{why}: make the ids str")


# ---- numbers -------------------------------------------------------------------------------------------------------


def numbers_of(column: Column, place: Place) -> np.ndarray:
    """A column as finite numbers, integer or float; text is read as numbers, true and false as 1 and 0."""
    rows = _numbers(column, place)
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        row = int(np.argmin(np.isfinite(rows)))
        raise place.fault(row, f"{_cell(column, row)} is no finite number: correct or drop it", unreadable=True)
    return rows


def _numbers(column: Column, place: Place) -> np.ndarray:
    """A column as numbers, nan where a cell is missing or holds none."""
    values = column.values
    if values.dtype.kind in "iub":
        converted = values.astype(np.int8) if values.dtype.kind == "b" else values
    elif values.dtype.kind == "f":
        converted = values
    elif values.dtype.kind in "OUT":
        converted = np.array([_number(value) for value in values.tolist()], dtype=np.float64)
    else:
        raise place.fault(0, f"{shown(values[0])} is of type {values.dtype}: make it a number")
    missing = column.codes is not None and len(column.codes) and column.codes.min() < 0
    return column.per_row(converted.astype(np.float64) if missing else converted, np.nan if missing else 0)


def _cell(column: Column, row: int) -> str:
    if column.codes is None:
        return shown(column.values[row])
    return "nan" if column.codes[row] < 0 else shown(column.values[column.codes[row]])


def _number(value: Any) -> float:
    if isinstance(value, str):
        if value.lower() in _TRUTH_TEXT:
            return _TRUTH_TEXT[value.lower()]
        return float(value) if _NUMBER.fullmatch(value) else math.nan  # float alone also takes 1_0
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def weights_of(column: Column, place: Place) -> np.ndarray:
    """Finite numbers above 0, as float64."""
    values = numbers_of(column, place).astype(np.float64)
    single = np.finfo(np.float32)
    fine = (values >= single.tiny) & (values <= single.max)
    if not fine.all():
        row = int(np.argmin(fine))
        raise place.fault(row, f"weight {values[row]:g} must be above 0 and finite as float32: correct or drop it")
    return values


def flags_of(column: Column, place: Place) -> np.ndarray:
    """A column of yes and no (1 and 0, true and false) as bool."""
    values = numbers_of(column, place)
    fine = (values == 0) | (values == 1)
    if not fine.all():
        row = int(np.argmin(fine))
        raise place.fault(row, f"{_cell(column, row)} is neither 1 nor 0: 1 marks a row of randomized traffic")
    return values == 1


def times_of(column: Column, place: Place) -> np.ndarray:
    """Times as numbers that rise with time: numbers as they are, dates as nanoseconds."""
    rows = _times(column, place)
    if rows.dtype.kind != "M":
        return numbers_of(column, place)
    if np.isnat(rows).any():
        row = int(np.argmax(np.isnat(rows)))
        raise place.fault(row, f"{_cell(column, row)} is no time: correct or drop it", unreadable=True)
    return rows.astype(np.int64)


def _times(column: Column, place: Place) -> np.ndarray:
    """A column as numbers or, where most of its text is no number, as dates; nan or NaT where a cell holds none."""
    values = column.values
    if values.dtype.kind in "OUT":
        texts = [value for value in values.tolist() if not (isinstance(value, str) and value in _MISSING_TEXT)]
        if sum(math.isnan(_number(value)) for value in texts) > len(texts) / 2:
            values = _dates(column, place)
    if values.dtype.kind != "M":
        return _numbers(column, place)
    return column.per_row(values.astype("datetime64[ns]"), np.datetime64("NaT"))


def _dates(column: Column, place: Place) -> np.ndarray:
    """Text as dates; NaT where it is none."""
    import pandas as pd

    try:
        dates = pd.to_datetime(
            pd.Series(list(map(str, column.values.tolist()))), errors="coerce", utc=True, format="ISO8601"
        )
    except (ValueError, TypeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{place.log}: column {place.column!r} holds no times ({reason}): correct it") from None
    return dates.dt.tz_convert(None).to_numpy(dtype="datetime64[ns]")


# ---- rows that cannot be read --------------------------------------------------------------------------------------


def readable_ids(column: Column) -> np.ndarray:
    """Which rows hold an id."""
    values, codes = _factorized(column)
    fine = np.ones(len(values) + 1, bool)
    fine[-1] = False  # that of a missing one
    if values.dtype.kind in "fOUT":
        fine[:-1] = [_id_fault(value) is None for value in values.tolist()]
    return fine[codes]


def readable_numbers(column: Column, place: Place) -> np.ndarray:
    """Which rows hold a finite number."""
    return np.isfinite(_numbers(column, place))


def readable_times(column: Column, place: Place) -> np.ndarray:
    """Which rows hold a time."""
    times = _times(column, place)
    return ~np.isnat(times) if times.dtype.kind == "M" else np.isfinite(times)


def likely_cause(one: str | int, other: str | int) -> str | None:
    """Why two ids that should be one are two, or None."""
    a, b = str(one), str(other)
    if type(one) is not type(other) and a.strip() == b.strip():
        return "one is int, the other str"
    if a.strip() == b.strip():
        return "stray spaces"
    if a.strip().casefold() == b.strip().casefold():
        return "upper and lower case"
    if a.strip().lstrip("0") == b.strip().lstrip("0"):
        return "padding zeros"
    if a.strip().removesuffix(".0") == b.strip().removesuffix(".0"):
        return "a number written with a decimal point"
    return None
