"""One column of a log as distinct values and codes, and its conversion to ids, numbers, weights, flags or times."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dubnb._check import InputError, switch
from dubnb.data.ids import FIRST_BIG_INT

EXACT_FLOAT = 2**53  # from here on, a float column may have lost digits of whole numbers
LONGEST_ID = 512  # one long id widens the whole table of ids
ID_TYPES = ("str", "int")

_WHOLE = re.compile(r"-?[1-9][0-9]{0,19}|0")  # a plain whole number; 007 and -0 are text
_WHOLE_FLOAT = re.compile(r"(-?[1-9][0-9]{0,15}|0)(\.0)?")  # pandas writes 509.0 in a column with missing cells
_NUMBER = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)  # takes linear time
_MISSING_TEXT = ("", "nan", "NaN")
_TRUTH_TEXT = {"true": 1.0, "false": 0.0}


class Column(NamedTuple):
    """Row k holds values[codes[k]], or is missing where the code is -1; without codes, row k holds values[k].

    A log repeats few ids many times, so checks and conversions run over the distinct values only.
    """

    values: np.ndarray  # int64, uint64, float64, bool, datetime64 or str, or object: str and other cells of pandas
    codes: np.ndarray | None = None  # int32

    def __len__(self) -> int:
        return len(self.values if self.codes is None else self.codes)

    def per_row(self, of_values: np.ndarray, missing: Any = np.nan) -> np.ndarray:
        """One number per row from one number per value."""
        if self.codes is None:
            return of_values
        rows: np.ndarray = np.append(of_values, missing)[self.codes]  # code -1 selects the last
        return rows

    def take(self, rows: np.ndarray) -> Column:
        """Some of the rows, with the values that occur in them."""
        if self.codes is None:
            return Column(self.values[rows])
        codes = self.codes[rows]
        used = np.unique(codes[codes >= 0])
        places = np.full(len(self.values) + 1, -1, np.int32)  # the last is the place of a missing value
        places[used] = np.arange(len(used))
        return Column(self.values[used], places[codes])

    def quoted(self, row: int) -> str:
        """One cell as messages show it."""
        if self.codes is None:
            return quote_cell(self.values[row])
        return "nan" if self.codes[row] < 0 else quote_cell(self.values[self.codes[row]])


class CellLocation(NamedTuple):
    """The log and the column of a cell, for messages."""

    log: str
    column: str
    droppable: bool = False  # whether drop_bad= drops rows whose cell cannot be read

    def fault(self, row: int, what: str, unreadable: bool = False) -> InputError:
        """An error about one row, counted from 0."""
        hint = ""
        if unreadable and self.droppable:
            hint = f" ({switch('drop_bad')} drops all such rows)"
        return InputError(f"{self.log}: column {self.column!r}, row {row + 1}: {what}{hint}")


def quote_cell(value: Any) -> str:
    """A cell as messages show it, shortened to 60 characters."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def text_column(distinct: list[str], codes: np.ndarray | None) -> Column:
    """A column of text, or of whole numbers if every cell is written as one.

    509.0 counts as a whole number too, unless a float64 may have lost digits of one of the numbers.
    """
    if distinct and all(map(_WHOLE_FLOAT.fullmatch, distinct)):
        values = [int(cell.removesuffix(".0")) for cell in distinct]
        if all(abs(value) < EXACT_FLOAT for value in values):
            return Column(np.array(values, dtype=np.int64), codes)
    if distinct and all(map(_WHOLE.fullmatch, distinct)):
        values = [int(cell) for cell in distinct]
        low, high = min(values), max(values)
        if low >= -FIRST_BIG_INT and high < FIRST_BIG_INT:
            return Column(np.array(values, dtype=np.int64), codes)
        if low >= 0 and high < 2 * FIRST_BIG_INT:
            return Column(np.array(values, dtype=np.uint64), codes)
    return Column(object_array(distinct), codes)


def id_from_text(text: str, kind: str) -> int | str | None:
    """One cell of a text file as an id of that kind ("int" or "str"), or None; 007 is not a whole number."""
    if kind == "str":
        return text
    value = text_column([text.strip()], None).values[0]
    return int(value) if isinstance(value, np.integer) else None


def object_array(values: list[str]) -> np.ndarray:
    """A list as a 1-d array of objects."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


# ---- ids -----------------------------------------------------------------------------------------------------------


def distinct_ids(column: Column, cell: CellLocation, id_type: str | None = None) -> Column:
    """The column with values that are ids: int64, uint64 or str; `id_type` converts them. Values may repeat."""
    values, codes = _factorized(column)

    def refuse(code: int, reason: str, unreadable: bool = False) -> InputError:
        row = int(np.argmax(codes == code))
        value = None if code < 0 else values[code]
        return cell.fault(row, f"id {'nan' if value is None else quote_cell(value)} {reason}", unreadable)

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
        for code, text in enumerate(ids.tolist()):
            if not re.fullmatch(r"[+-]?[0-9]{1,30}(\.0)?", text, re.ASCII):
                raise refuse(code, "is not a whole number: leave the ids as str")
        ids = _int_array([int(text.removesuffix(".0")) for text in ids.tolist()], refuse)
    return Column(ids, codes)


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
    if set(map(type, ids)) == {str}:  # a log may have millions: check them together first
        faulty = max(map(len, ids)) > LONGEST_ID or not set(_MISSING_TEXT).isdisjoint(ids) or "\0" in "".join(ids)
        if not faulty:
            return np.array(ids, dtype=np.str_)
    for code, value in enumerate(ids):
        reason = _id_fault(value)
        if reason:
            raise refuse(code, reason, unreadable=True)
        if isinstance(value, str) != isinstance(ids[0], str):
            raise refuse(code, f"and id {quote_cell(ids[0])} mix int and str: make the whole column one of them")
    if ids and isinstance(ids[0], str):
        return np.array(ids, dtype=np.str_)
    return _int_array([int(value) for value in ids], refuse)


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
    exact = abs(float(value)) < EXACT_FLOAT
    return None if exact else "is a float of 2**53 or more, which loses digits: read ids as int or str"


def _int_array(values: list[int], refuse: Callable[[int, str], InputError]) -> np.ndarray:
    low, high = min(values, default=0), max(values, default=0)
    if low >= -FIRST_BIG_INT and high < FIRST_BIG_INT:
        return np.array(values, dtype=np.int64)
    if low >= 0 and high < 2 * FIRST_BIG_INT:
        return np.array(values, dtype=np.uint64)
    worst = low if low < -FIRST_BIG_INT else high
    fits = -FIRST_BIG_INT <= worst < 2 * FIRST_BIG_INT
    why = f"needs uint64, id {low} int64" if fits else "has more than 64 bits"
    raise refuse(values.index(worst), f"{why}: make the ids str")


def likely_cause(one: str | int, other: str | int) -> str | None:
    """Why two ids that probably mean the same differ, or None."""
    a, b = str(one).strip(), str(other).strip()
    if a == b:
        return "one is int, the other str" if type(one) is not type(other) else "stray spaces"
    if a.casefold() == b.casefold():
        return "upper and lower case"
    if a.lstrip("0") == b.lstrip("0"):
        return "padding zeros"
    return "a number written with a decimal point" if a.removesuffix(".0") == b.removesuffix(".0") else None


# ---- numbers -------------------------------------------------------------------------------------------------------


def numbers_of(column: Column, cell: CellLocation) -> np.ndarray:
    """A column as finite numbers, integer or float; text is read as numbers, true and false as 1 and 0."""
    rows = _numbers(column, cell)
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        row = int(np.argmin(np.isfinite(rows)))
        raise cell.fault(row, f"{column.quoted(row)} is not a finite number: correct or drop it", unreadable=True)
    return rows


def _numbers(column: Column, cell: CellLocation) -> np.ndarray:
    """A column as numbers, nan where a cell is missing or is not a number."""
    values = column.values
    if values.dtype.kind == "b":
        values = values.astype(np.int8)
    elif values.dtype.kind in "OUT":
        values = np.array([_number(value) for value in values.tolist()], dtype=np.float64)
    elif values.dtype.kind not in "iuf":
        raise cell.fault(0, f"{quote_cell(values[0])} is of type {values.dtype}: make it a number")
    missing = column.codes is not None and len(column.codes) and column.codes.min() < 0
    return column.per_row(values.astype(np.float64) if missing else values, np.nan if missing else 0)


def _number(value: Any) -> float:
    if isinstance(value, str):
        if value.lower() in _TRUTH_TEXT:
            return _TRUTH_TEXT[value.lower()]
        return float(value) if _NUMBER.fullmatch(value) else math.nan  # float() would accept 1_0 too
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def weights_of(column: Column, cell: CellLocation) -> np.ndarray:
    """A column as finite numbers above 0, float64."""
    values = numbers_of(column, cell).astype(np.float64)
    single = np.finfo(np.float32)
    fine = (values >= single.tiny) & (values <= single.max)
    if not fine.all():
        row = int(np.argmin(fine))
        raise cell.fault(row, f"weight {values[row]:g} must be above 0 and finite as float32: correct or drop it")
    return values


def chances_of(column: Column, cell: CellLocation, rows: np.ndarray | None = None) -> np.ndarray:
    """A column as numbers above 0 and at most 1, float64; with `rows`, a mask, only these rows are checked and kept."""
    values = _numbers(column, cell).astype(np.float64)
    fine = (values >= np.finfo(np.float32).tiny) & (values <= 1)  # false for nan
    if rows is not None:
        fine |= ~rows
    if not fine.all():
        row = int(np.argmin(fine))
        if column.quoted(row).strip("'") in (*_MISSING_TEXT, "None"):
            said = (
                f"is missing but must be above 0 and at most 1: log it ({switch('drop_bad')} does not drop such rows)"
            )
            raise cell.fault(row, f"propensity {said}")
        raise cell.fault(row, f"propensity {column.quoted(row)} must be above 0 and at most 1: correct the row")
    return values if rows is None else values[rows]


def flags_of(column: Column, cell: CellLocation) -> np.ndarray:
    """A column of 1 and 0, or true and false, as bool."""
    values = numbers_of(column, cell)
    fine = (values == 0) | (values == 1)
    if not fine.all():
        row = int(np.argmin(fine))
        raise cell.fault(row, f"{column.quoted(row)} is neither 1 nor 0: 1 marks a row of randomized traffic")
    return values == 1


def times_of(column: Column, cell: CellLocation) -> np.ndarray:
    """A column of times: numbers unchanged, dates as datetime64[ns]."""
    rows = _time_values(column, cell)
    if rows.dtype.kind != "M":
        return numbers_of(column, cell)
    if np.isnat(rows).any():
        row = int(np.argmax(np.isnat(rows)))
        raise cell.fault(row, f"{column.quoted(row)} is not a time: correct or drop it", unreadable=True)
    return rows


def ends_of(column: Column, cell: CellLocation, missing: float) -> np.ndarray:
    """A column of times in which empty cells are allowed: float64 (dates in nanoseconds), `missing` where empty."""
    rows = _time_values(column, cell)
    unknown = np.isnat(rows) if rows.dtype.kind == "M" else ~np.isfinite(rows.astype(np.float64))
    cells = column.values.tolist()
    values = np.array([each is None or each in _MISSING_TEXT or each != each for each in cells], dtype=bool)
    bad = unknown & ~column.per_row(values, True).astype(bool)
    if bad.any():
        row = int(np.argmax(bad))
        raise cell.fault(row, f"{column.quoted(row)} is not a time: correct it, or leave it empty for always")
    return np.where(unknown, missing, rows.astype(np.int64 if rows.dtype.kind == "M" else np.float64))


def holds_dates(column: Column, cell: CellLocation) -> bool | None:
    """Whether a column of times holds dates; None if all its cells are empty."""
    rows = _time_values(column, cell)
    known = ~np.isnat(rows) if rows.dtype.kind == "M" else np.isfinite(rows.astype(np.float64))
    return rows.dtype.kind == "M" if known.any() else None


def _time_values(column: Column, cell: CellLocation) -> np.ndarray:
    """A column as numbers or, if most of its text is not numeric, as dates; nan or NaT where a cell is neither."""
    values = column.values
    if values.dtype.kind in "OUT":
        texts = [value for value in values.tolist() if not (isinstance(value, str) and value in _MISSING_TEXT)]
        if sum(math.isnan(_number(value)) for value in texts) > len(texts) / 2:
            values = _dates(column, cell)
    if values.dtype.kind != "M":
        return _numbers(column, cell)
    return column.per_row(values.astype("datetime64[ns]"), np.datetime64("NaT"))


def _dates(column: Column, cell: CellLocation) -> np.ndarray:
    """Text as dates; NaT where it is not a date."""
    import pandas as pd

    texts = pd.Series(list(map(str, column.values.tolist())))
    try:
        dates = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
    except (ValueError, TypeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{cell.log}: column {cell.column!r} holds no times ({reason}): correct it") from None
    return dates.dt.tz_convert(None).to_numpy(dtype="datetime64[ns]")


# ---- rows that cannot be read --------------------------------------------------------------------------------------


def readable_ids(column: Column) -> np.ndarray:
    """Which rows have an id (bool)."""
    values, codes = _factorized(column)
    fine = np.ones(len(values) + 1, bool)
    fine[-1] = False  # code -1 is a missing id
    if values.dtype.kind in "fOUT":
        fine[:-1] = [_id_fault(value) is None for value in values.tolist()]
    return fine[codes]


def readable_numbers(column: Column, cell: CellLocation) -> np.ndarray:
    """Which rows have a finite number (bool)."""
    return np.isfinite(_numbers(column, cell))


def readable_times(column: Column, cell: CellLocation) -> np.ndarray:
    """Which rows have a time (bool)."""
    times = _time_values(column, cell)
    return ~np.isnat(times) if times.dtype.kind == "M" else np.isfinite(times)
