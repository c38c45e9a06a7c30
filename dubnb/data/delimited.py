"""Text files of cells between separators (CSV, TSV, either gzipped) -> columns, streamed and bounded.

The dialect is that of Python's csv module with strict=True and skipinitialspace=True: a cell may stand in double
quotes, in which a doubled quote is one, and separators and line ends are text. Blank lines are skipped; every other
line needs as many cells as the header. One kernel finds the cells, another gives equal ones equal codes, so that no
Python object is made per cell.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from dubnb import _files
from dubnb._check import InputError, shown
from dubnb._jit import njit
from dubnb.data.column import Column, text_column
from dubnb.data.interning import TextCodes
from dubnb.data.progress import bar

CHUNK = 1 << 22  # bytes read at once
ROWS_AT_ONCE = 1 << 16
LONGEST_LINE = 1 << 20  # bytes; a longer one is a quote that never closes, or no log
MOST_COLUMNS = 10_000
_BOM = b"\xef\xbb\xbf"
_COMMA, _TAB, _QUOTE, _SPACE, _RETURN, _NEWLINE = b',\t" \r\n'

_FINE, _RAGGED, _BAD_QUOTE, _OPEN_QUOTE = range(4)


class Layout(NamedTuple):
    """How a text file is laid out."""

    names: Sequence[str] | None = None  # of the columns; None: the first line has them
    sep: str | None = None  # None: a tab or comma, or else ; or |, as the first line has it


HEADED = Layout()


def read_delimited(
    paths: Sequence[str | Path],
    columns: Collection[str] | None = None,
    ids: Collection[str] = (),
    layout: Layout = HEADED,
    quiet: bool = True,
) -> tuple[dict[str, Column], list[str]]:
    """({name: Column} of the columns asked for that the files have, all their names); all files have the same columns.

    `ids` are kept as written (whole numbers only where every cell is one); other columns become numbers where every
    cell is written as one without padding, else they are text.
    """
    text: set[str] = set(ids)
    while True:
        try:
            reading = _Reading(columns, text, layout)
            for path in paths:
                with _Source(path, quiet) as source:
                    reading.add(source)
            return reading.columns(), list(reading.names)
        except _NotNumbers as refusal:
            text |= refusal.names  # begin again: what came before may be needed as it was written


class _NotNumbers(Exception):
    def __init__(self, names: set[str]):
        super().__init__()
        self.names = names


class _Reading:
    """The wanted columns of some files, one after the other."""

    def __init__(self, wanted: Collection[str] | None, text: Collection[str], layout: Layout) -> None:
        self.wanted, self.text, self.layout = wanted, text, layout
        self.names: Sequence[str] = ()
        self.readers: dict[str, _Text | _Numbers] = {}

    def add(self, source: _Source) -> None:
        """All lines of a file."""
        names, sep = _header(source, self.layout.sep) if self.layout.names is None else self.layout
        assert names is not None
        chosen = [place for place, name in enumerate(names) if self.wanted is None or name in self.wanted]
        if not self.names:
            self.names = names
            self.readers = {names[k]: _Text() if names[k] in self.text else _Numbers() for k in chosen}
        if {names[k] for k in chosen} != self.readers.keys():
            lacking = sorted({names[k] for k in chosen} ^ self.readers.keys())
            raise InputError(f"{source.path}: column {lacking[0]!r} is not in all of the files: make them alike")
        places = np.full(len(names), -1, np.int32)
        places[chosen] = np.arange(len(chosen))
        for buffer, starts, stops in _cells(source, ord(sep or ","), places, len(chosen)):
            cells = {names[place]: (starts[:, k], stops[:, k]) for k, place in enumerate(chosen)}
            failed = {name for name, bounds in cells.items() if not self.readers[name].add(buffer, *bounds)}
            if failed:
                raise _NotNumbers(failed)

    def columns(self) -> dict[str, Column]:
        return {name: reader.column() for name, reader in self.readers.items()}


# ---- columns -------------------------------------------------------------------------------------------------------


class _Text:
    """A column of text, by codes."""

    def __init__(self) -> None:
        self.table, self.codes = TextCodes(), [np.empty(0, np.int32)]

    def add(self, buffer: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> bool:
        self.codes.append(self.table.codes(buffer, starts, stops))
        return True

    def column(self) -> Column:
        codes, self.codes = np.concatenate(self.codes), []
        wholes = self.table.wholes()
        return text_column([] if wholes is not None else self.table.distinct(), codes, wholes)


class _Numbers:
    """A column of numbers, as int8 or int64 as long as they are whole, else as float64."""

    def __init__(self) -> None:
        self.chunks: list[np.ndarray] = []

    def add(self, buffer: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> bool:
        wholes, reals = np.empty(len(starts), np.int64), np.empty(len(starts), np.float64)
        slow = np.empty(len(starts), np.bool_)
        all_whole = _parse_numbers(buffer, starts, stops, wholes, reals, slow)
        if all_whole:
            small = len(wholes) and wholes.min() >= -128 and wholes.max() <= 127
            self.chunks.append(wholes.astype(np.int8) if small else wholes)
            return True
        for row in np.flatnonzero(slow).tolist():
            cell = buffer[starts[row] : stops[row]].tobytes()
            if not _PLAIN.fullmatch(cell):
                return False
            reals[row] = float(cell)
        self.chunks.append(reals)
        return True

    def column(self) -> Column:
        chunks, self.chunks = self.chunks or [np.empty(0, np.int64)], []
        return Column(np.concatenate(chunks))


# JSON's grammar: 007 and +1 are text; so is a whole number beyond int64, which a float would not hold.
_PLAIN = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)")


# ---- cells ---------------------------------------------------------------------------------------------------------


def _cells(
    source: _Source, sep: int, places: np.ndarray, n_wanted: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(buffer, starts, stops) of the wanted cells, row by row, some rows at a time."""
    starts, stops = (np.empty((ROWS_AT_ONCE, n_wanted), np.int64) for _ in range(2))
    state = np.zeros(4, np.int64)  # position, line, fault, cells of the faulty row
    state[1] = source.lines
    kept = np.empty(0, np.uint8)
    while True:
        chunk, final = source.read()
        buffer = np.concatenate([kept, np.frombuffer(chunk, np.uint8)])  # writable: doubled quotes are closed up in it
        state[0] = 0
        while True:
            rows = _find_cells(buffer, final, sep, places, starts, stops, state)
            if rows:
                yield buffer, starts[:rows], stops[:rows]
            if state[2] != _FINE:
                raise _fault(source, state, len(places))
            if rows < ROWS_AT_ONCE:
                break
        kept = buffer[state[0] :].copy()
        if len(kept) > LONGEST_LINE:
            raise InputError(
                f"{source.path}, line {state[1] + 1}: longer than {LONGEST_LINE:,} bytes: check the quotes, or the file"
            )
        if final:
            return


def _fault(source: _Source, state: np.ndarray, width: int) -> InputError:
    where = f"{source.path}, line {state[1] + 1}"
    if state[2] == _RAGGED:
        return InputError(f"{where}: {state[3]} cell(s) instead of {width}: every line needs the same columns")
    reason = "a quote is never closed" if state[2] == _OPEN_QUOTE else "text after a closing quote"
    return InputError(f"{where}: {reason}: check the quotes")


@njit
def _find_cells(buffer, final, sep, places, starts, stops, state):
    """Cells of complete lines from state[0] on; returns how many rows were found, and leaves the state behind them.

    The wanted cells' places go to starts and stops, one row per line; a fault ends it, with its line in state[1].
    """
    rows, position, line = 0, state[0], state[1]
    while rows < len(starts) and position < len(buffer):
        at, cells, lines, fault = position, 0, 0, _FINE
        blank = buffer[at] == _NEWLINE or buffer[at] == _RETURN
        more = not blank
        while more:
            start, end, at, inside, fault = _next_cell(buffer, at, sep)
            if cells < len(places) and places[cells] >= 0:
                starts[rows, places[cells]], stops[rows, places[cells]] = start, end
            cells, lines = cells + 1, lines + inside
            more = fault == _FINE and at < len(buffer) and buffer[at] == sep
            at += more
        ended, at = _line_end(buffer, at, final)
        if not ended and fault != _BAD_QUOTE:
            break  # the line goes on in the next chunk
        if fault == _FINE and not blank and cells != len(places):
            fault = _RAGGED
        if fault != _FINE:
            state[1], state[2], state[3] = line + lines, fault, cells
            return rows
        if not blank:
            _close_up(buffer, starts[rows], stops[rows])
            rows += 1
        position, line = at, line + lines + 1
    state[0], state[1] = position, line
    return rows


@njit
def _next_cell(buffer, at, sep):
    """(start, end, what follows, line ends inside, fault) of a cell; with doubled quotes inside the end is negative."""
    while at < len(buffer) and buffer[at] == _SPACE:
        at += 1
    if at >= len(buffer) or buffer[at] != _QUOTE:
        start = at
        while at < len(buffer) and buffer[at] != sep and buffer[at] != _NEWLINE and buffer[at] != _RETURN:
            at += 1
        return start, at, at, 0, _FINE
    start, lines, sign = at + 1, 0, 1
    at += 1
    while at < len(buffer):
        if buffer[at] == _QUOTE:
            if at + 1 >= len(buffer) or buffer[at + 1] != _QUOTE:
                break
            sign = -1
            at += 1
        elif buffer[at] == _NEWLINE or (buffer[at] == _RETURN and at + 1 < len(buffer) and buffer[at + 1] != _NEWLINE):
            lines += 1
        at += 1
    if at >= len(buffer):
        lines -= buffer[at - 1] == _NEWLINE  # the file's last line end begins no line
        return start, at, at, lines, _OPEN_QUOTE
    follows = buffer[at + 1] if at + 1 < len(buffer) else _NEWLINE
    return start, sign * at, at + 1, lines, _FINE if follows in (sep, _NEWLINE, _RETURN) else _BAD_QUOTE


@njit
def _line_end(buffer, at, final):
    """(whether the line surely ends here, where the next one begins): \\n, \\r or \\r\\n."""
    if at >= len(buffer):
        return final, at
    if buffer[at] == _RETURN:
        if at + 1 >= len(buffer) and not final:
            return False, at
        if at + 1 < len(buffer) and buffer[at + 1] == _NEWLINE:
            at += 1
    return True, at + 1


@njit
def _close_up(buffer, starts, stops):
    """Make one quote of each doubled one in the cells whose stop is marked by its sign."""
    for k in range(len(starts)):
        if stops[k] < 0:
            at, out = starts[k], starts[k]
            while at < -stops[k]:
                buffer[out] = buffer[at]
                at += 2 if buffer[at] == _QUOTE else 1
                out += 1
            stops[k] = out


@njit
def _parse_numbers(buffer, starts, stops, wholes, reals, slow):
    """Cells as numbers; returns whether all are plain whole ones of at most 18 digits.

    A decimal of at most 15 digits is the quotient of two whole numbers that a float64 holds exactly, so its one
    rounding is the right one. Everything else, in `slow`, is left to the caller.
    """
    all_whole = True
    for row in range(len(starts)):
        a, b = starts[row], stops[row]
        negative = b > a and buffer[a] == 45  # -
        a += negative
        total, digits, fraction, scale = np.int64(0), 0, False, 1.0
        fine = b > a and b - a <= 19
        for at in range(a, b) if fine else range(0):
            digit = np.int64(buffer[at]) - 48
            if digit >= 0 and digit <= 9:
                total = total * 10 + digit if digits < 18 else total
                digits += 1
                scale = scale * 10.0 if fraction else scale
            elif buffer[at] == 46 and not fraction and at > a and at + 1 < b:  # .
                fraction = True
            else:
                fine = False
                break
        padded = fine and buffer[a] == 48 and b - a > 1 and buffer[a + 1] != 46
        fine = fine and not padded and digits <= (15 if fraction else 18) and not (negative and total == 0)
        slow[row] = not fine
        wholes[row] = -total if negative else total
        reals[row] = wholes[row] / scale
        all_whole = all_whole and fine and not fraction
    return all_whole


# ---- files ---------------------------------------------------------------------------------------------------------


def _header(source: _Source, sep: str | None) -> tuple[list[str], str]:
    """(names, separator) of the first line."""
    line = source.first_line()
    if not line.strip():
        raise InputError(f"{source.path}: empty: the first line must name the columns, such as user,item,label")
    sep = sep or _separator(line)
    try:
        names = [name.strip() for name in next(csv.reader([line], delimiter=sep, skipinitialspace=True))]
    except csv.Error as error:
        raise InputError(f"{source.path}, line 1: {error}: the first line must name the columns") from None
    if len(names) > MOST_COLUMNS:
        raise InputError(
            f"{source.path}, line 1: {len(names):,} columns are more than {MOST_COLUMNS:,}: a log has a line per pair, "
            "such as user,item,label"
        )
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise InputError(f"{source.path}, line 1: column {shown(name)} stands twice: rename one")
    return names, sep


def _separator(line: str) -> str:
    """What separates the names of a header: a tab or a comma; where it has neither, the more frequent of ; and |."""
    for sep in "\t,":
        if sep in line:
            return sep
    return max(";|", key=line.count) if ";" in line or "|" in line else ","


class _Source:
    """The bytes of a text file, checked as they come: UTF-8, no NUL; .gz is unpacked."""

    def __init__(self, path: str | Path, quiet: bool) -> None:
        self.path, self.quiet = path, quiet
        self.lines = 0  # before the next byte
        self.rest = b""
        self.done = 0  # bytes given out
        self.decoder = codecs.getincrementaldecoder("utf-8")()

    def __enter__(self) -> _Source:
        self.file = _open(self.path)
        self.bar = bar(
            Path(self.path).name, None if _is_packed(self.path) else os.path.getsize(self.path), "B", self.quiet
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        self.file.close()

    def read(self, n: int = CHUNK) -> tuple[bytes, bool]:
        """(the next bytes, whether they are the last)."""
        if self.rest:
            chunk, self.rest = self.rest, b""
            return chunk, False
        try:
            chunk = self.file.read(n)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{self.path}: cannot be read ({reason}): check the file") from None
        final = len(chunk) < n
        pending = len(self.decoder.getstate()[0])  # bytes of a character that began in the chunk before
        try:
            self.decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            line = self._line_of(self.done + error.start - pending)
            raise InputError(f"{self.path}, line {line}: not UTF-8 text: save the file as UTF-8") from None
        nul = chunk.find(b"\0")
        if nul >= 0:
            raise InputError(
                f"{self.path}, line {self._line_of(self.done + nul)}: a NUL byte: this is no text file, or a damaged "
                "one; write it again"
            )
        self.bar.update(len(chunk))
        first, self.done = not self.done, self.done + len(chunk)
        return chunk.removeprefix(_BOM) if first else chunk, final

    def first_line(self) -> str:
        """The first line, without its end."""
        chunk, _ = self.read()
        end = re.search(rb"\r\n|\n|\r", chunk)
        stop, after = (len(chunk), len(chunk)) if end is None else end.span()
        if stop > LONGEST_LINE:
            raise InputError(
                f"{self.path}, line 1: longer than {LONGEST_LINE:,} bytes: the first line must name the columns"
            )
        self.rest, self.lines = chunk[after:], 1
        return chunk[:stop].decode("utf-8")

    def _line_of(self, offset: int) -> int:
        """The number of the line that holds a byte; the file is read again."""
        lines, before = 1, b""
        with _open(self.path) as file:
            while offset > 0 and (chunk := file.read(min(CHUNK, offset))):
                offset -= len(chunk)
                lines += chunk.count(b"\n") + chunk.count(b"\r") - (before + chunk).count(b"\r\n")
                before = chunk[-1:]
        return lines


def _open(path: str | Path) -> BinaryIO:
    status = _files.status(path)
    if status is not None and not stat.S_ISREG(status.st_mode):
        what = "Is a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise InputError(f"{path}: cannot be read ({what}): give the path of a file")
    try:
        if _is_packed(path):
            return gzip.open(path, "rb")  # type: ignore[return-value]
        return open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}): check the path") from None


def _is_packed(path: str | Path) -> bool:
    return os.fspath(path).lower().endswith(".gz")
