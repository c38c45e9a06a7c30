"""Text files of cells between separators (CSV, TSV, either gzipped) -> columns, read in chunks of bounded size.

The dialect is that of Python's csv module with strict=True and skipinitialspace=True. A cell may be in double quotes;
inside, a doubled quote means one quote, and separators and line ends are text. Blank lines are skipped; every other
line needs as many cells as the header.

One kernel finds the cells. `TextCodes` gives equal texts equal codes 0, 1, 2 ... in the order of first occurrence, with
an open-addressing table that grows as it fills. No Python object is made per cell: a log of n rows over m distinct
ids costs 4 n bytes of codes and O(m) for the table. bench/README.md compares pandas and pyarrow.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import itertools
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from dubnb import _files, _progress
from dubnb._check import InputError, short_repr
from dubnb._jit import njit
from dubnb.data.column import Column, text_column

CHUNK = 1 << 22  # bytes that are read at once
ROWS_AT_ONCE = 1 << 16
LONGEST_LINE = 1 << 20  # bytes; a longer line has a quote that never closes, or is not from a log
MOST_COLUMNS = 10_000
MOST_DISTINCT = 2**31 - 1  # codes are int32
MOST_ROWS_PER_BYTE = 20  # limit: a sorted, well compressed log of distinct pairs has about two
BYTES_PER_ROW = 48  # peak while a Partition is built: three times what it keeps
_BOM = b"\xef\xbb\xbf"
_QUOTE, _SPACE, _RETURN, _NEWLINE = b'" \r\n'
_FINE, _RAGGED, _BAD_QUOTE, _OPEN_QUOTE = range(4)
# JSON's grammar: 007 and +1 are text; so is a whole number beyond int64, which a float would not hold.
_PLAIN = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)")

_FIRST_SLOTS = 1 << 12
_FIRST_BYTES = 1 << 16
_WHOLE_IN_KEYS = 15  # bytes of a text that its two keys hold completely, with its length
_MASK = 0xFFFFFFFF
_PRIME = 16_777_619  # FNV's: 32-bit values in int64 cannot overflow, so the code also runs without the JIT
# A random start of the hash: otherwise a file could put all its ids into one slot. Codes do not depend on it.
_START = int.from_bytes(os.urandom(4), "little")


class Layout(NamedTuple):
    """How a text file is laid out."""

    names: Sequence[str] | None = None  # column names; None: they are in the first line
    sep: str | None = None  # None: a tab or comma, or else ; or |, as found in the first line


HEADED = Layout()


def check_alike(where: str, names: Iterable[str], before: Iterable[str]) -> None:
    """Refuse a file of a log whose columns are not those of the files before."""
    lacking = sorted(set(names) ^ set(before))
    if lacking:
        raise InputError(f"{where}: column {lacking[0]!r} is not in all of the files: make them alike")


def read_delimited(
    paths: Sequence[str | Path],
    columns: Collection[str] | None = None,
    ids: Collection[str] = (),
    layout: Layout = HEADED,
    quiet: bool = True,
) -> tuple[dict[str, Column], list[str]]:
    """({name: Column} of the requested columns that the files have, all their names); all files need the same columns.

    `ids` keep their spelling (whole numbers only if every cell is one). Other columns become numbers if every cell is
    written as a number without padding; otherwise they are text.
    """
    text: set[str] = set(ids)
    while True:
        all_names: list[str] = []
        readers: dict[str, _TextCells | _NumberCells] = {}
        try:
            for path in paths:
                with _Source(path, quiet) as source:
                    names, sep = (
                        _first_line_names(source, layout.sep) if layout.names is None else (layout.names, layout.sep)
                    )
                    chosen = [place for place, name in enumerate(names) if columns is None or name in columns]
                    if not all_names:
                        all_names = list(names)
                        readers = {names[k]: _TextCells() if names[k] in text else _NumberCells() for k in chosen}
                    check_alike(str(path), (names[k] for k in chosen), readers)
                    places = np.full(len(names), -1, np.int32)
                    places[chosen] = np.arange(len(chosen))
                    rows = 0
                    for buffer, starts, stops in _cells(source, ord(sep or ","), places, len(chosen)):
                        rows += len(starts)
                        check_rows(path, rows)  # a small .gz file can hold any number of equal rows
                        bounds = {names[place]: (starts[:, k], stops[:, k]) for k, place in enumerate(chosen)}
                        failed = {name for name, each in bounds.items() if not readers[name].add(buffer, *each)}
                        if failed:
                            raise _NotNumbers(failed)
            return {name: reader.column() for name, reader in readers.items()}, all_names
        except _NotNumbers as refusal:
            text |= refusal.args[0]  # start again: earlier cells are needed as they were written


def check_rows(path: str | Path, rows: int) -> None:
    """Refuse a number of rows that is implausible for the file's size or exceeds the memory of the machine."""
    size = os.path.getsize(path)
    if rows > MOST_ROWS_PER_BYTE * size:
        raise InputError(f"{path}: {rows:,} rows in {size:,} bytes: nearly all must be equal; write each pair once")
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not available on every system
        return
    if rows * BYTES_PER_ROW > memory:
        raise InputError(
            f"{path}: {rows:,} rows need {rows * BYTES_PER_ROW / 1e9:.0f} GB of the {memory / 1e9:.0f} GB here: take a "
            "sample of the log"
        )


class _NotNumbers(Exception):
    """Columns that were read as numbers have a cell that is not a number."""


# ---- columns -------------------------------------------------------------------------------------------------------


class _TextCells:
    """A column of text, collected as codes."""

    def __init__(self) -> None:
        self.table, self.codes = TextCodes(), [np.empty(0, np.int32)]

    def add(self, buffer: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> bool:
        self.codes.append(self.table.codes(buffer, starts, stops))
        return True

    def column(self) -> Column:
        codes, self.codes = np.concatenate(self.codes), []
        wholes = self.table.wholes()
        return text_column(self.table.distinct(), codes) if wholes is None else Column(wholes, codes)


class _NumberCells:
    """A column of numbers: int8 or int64 while all are whole, else float64."""

    def __init__(self) -> None:
        self.chunks: list[np.ndarray] = []

    def add(self, buffer: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> bool:
        """Parse some cells; False if one of them is not a plain number."""
        wholes, reals = np.empty(len(starts), np.int64), np.empty(len(starts), np.float64)
        slow = np.empty(len(starts), np.bool_)
        if _parse_numbers(buffer, starts, stops, wholes, reals, slow):
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


# ---- cells ---------------------------------------------------------------------------------------------------------


def _cells(
    source: _Source, sep: int, places: np.ndarray, n_wanted: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(buffer, starts, stops) of the wanted cells, some rows at a time."""
    starts, stops = (np.empty((ROWS_AT_ONCE, n_wanted), np.int64) for _ in range(2))
    state = np.zeros(4, np.int64)  # position, line, fault, number of cells of the faulty row
    state[1] = source.lines
    kept = np.empty(0, np.uint8)
    while True:
        chunk, final = source.read()
        buffer = np.concatenate([kept, np.frombuffer(chunk, np.uint8)])  # a copy: doubled quotes are removed in it
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
    """Find the cells of complete lines from state[0] on; return the number of rows and advance `state` past them.

    `starts` and `stops` get the bounds of the wanted cells, one row per line. A fault ends the search; its line is in
    state[1].
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
            break  # the line continues in the next chunk
        if fault == _FINE and not blank and cells != len(places):
            fault = _RAGGED
        if fault != _FINE:
            state[1], state[2], state[3] = line + lines, fault, cells
            return rows
        if not blank:
            _undouble_quotes(buffer, starts[rows], stops[rows])
            rows += 1
        position, line = at, line + lines + 1
    state[0], state[1] = position, line
    return rows


@njit
def _next_cell(buffer, at, sep):
    """(start, end, next position, line ends inside, fault) of a cell; a negative end marks doubled quotes inside."""
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
        lines -= buffer[at - 1] == _NEWLINE  # no line begins after the last line end of the file
        return start, at, at, lines, _OPEN_QUOTE
    follows = buffer[at + 1] if at + 1 < len(buffer) else _NEWLINE
    return start, sign * at, at + 1, lines, _FINE if follows in (sep, _NEWLINE, _RETURN) else _BAD_QUOTE


@njit
def _line_end(buffer, at, final):
    """(whether the line certainly ends here, where the next line begins); lines end with \\n, \\r or \\r\\n."""
    if at >= len(buffer):
        return final, at
    if buffer[at] == _RETURN:
        if at + 1 >= len(buffer) and not final:
            return False, at
        if at + 1 < len(buffer) and buffer[at + 1] == _NEWLINE:
            at += 1
    return True, at + 1


@njit
def _undouble_quotes(buffer, starts, stops):
    """Replace doubled quotes by single ones in the cells whose stop is negative."""
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
    """Parse cells as numbers; return whether all are plain whole numbers of at most 18 digits.

    A decimal of at most 15 digits is the quotient of two whole numbers that a float64 holds exactly, so the division
    rounds correctly. All other cells are marked in `slow` and left to the caller.
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


def _first_line_names(source: _Source, sep: str | None) -> tuple[list[str], str]:
    """(column names, separator) of the first line."""
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
        raise InputError(f"{source.path}, line 1: column {short_repr(name)} occurs twice: rename one")
    return names, sep


def _separator(line: str) -> str:
    """The separator of a header: a tab or a comma or, if it has neither, the more frequent of ; and |."""
    for sep in "\t,":
        if sep in line:
            return sep
    return max(";|", key=line.count) if ";" in line or "|" in line else ","


class _Source:
    """The bytes of a text file, unpacked if it ends in .gz, and checked while they are read: UTF-8 without NUL."""

    def __init__(self, path: str | Path, quiet: bool) -> None:
        self.path, self.quiet = path, quiet
        self.lines = 0  # before the next byte
        self.rest = b""
        self.done = 0  # bytes read so far
        self.decoder = codecs.getincrementaldecoder("utf-8")()

    def __enter__(self) -> _Source:
        self.file = _open(self.path)
        total = None if _is_packed(self.path) else os.path.getsize(self.path)
        self.bar = _progress.bar(
            quiet=self.quiet, total=total, desc=f"reading {Path(self.path).name}", unit="B", unit_scale=True
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
        pending = len(self.decoder.getstate()[0])  # bytes of a character that began in the previous chunk
        try:
            self.decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            line = self._line_of(self.done + error.start - pending)
            raise InputError(f"{self.path}, line {line}: not UTF-8 text: save the file as UTF-8") from None
        nul = chunk.find(b"\0")
        if nul >= 0:
            raise InputError(
                f"{self.path}, line {self._line_of(self.done + nul)}: a NUL byte: the file is damaged or not text; "
                "write it again"
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
        """The number of the line with the byte at `offset`; reads the file again."""
        lines, before = 1, b""
        with _open(self.path) as file:
            while offset > 0 and (chunk := file.read(min(CHUNK, offset))):
                offset -= len(chunk)
                lines += chunk.count(b"\n") + chunk.count(b"\r") - (before + chunk).count(b"\r\n")
                before = chunk[-1:]
        return lines


def _open(path: str | Path) -> BinaryIO:
    status = _files.stat_or_none(path)
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


# ---- codes ---------------------------------------------------------------------------------------------------------


class TextCodes:
    """Codes of pieces of text, given as UTF-8 in a buffer.

    A slot holds (key, key, hash, code + 1); the last entry of an empty slot is 0. The two keys of a text of up to 15
    bytes are the text and its length, so a look-up reads one cache line. The keys of a longer text are its two ends,
    and its bytes are compared too.
    """

    def __init__(self) -> None:
        self.bytes = np.empty(_FIRST_BYTES, np.uint8)
        self.ends = np.zeros(_FIRST_SLOTS // 2 + 1, np.int64)  # text k is bytes[ends[k] : ends[k + 1]]
        self.slots = np.zeros((_FIRST_SLOTS, 4), np.int64)
        self.size = 0

    def codes(self, buffer: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """The code of each piece buffer[starts[k] : stops[k]], int32."""
        codes, keys = np.empty(len(starts), np.int32), np.empty((len(starts), 3), np.int64)
        _text_keys(buffer, starts, stops, keys, _START)
        done = 0
        while done < len(starts):
            self.size, done = _intern_text(
                buffer, starts, stops, keys, codes, done, self.slots, self.bytes, self.ends, self.size
            )
            if self.size == len(self.ends) - 1:
                self._grow()
            elif done < len(starts):
                room = max(len(self.bytes), int(stops[done] - starts[done]))
                self.bytes = np.concatenate([self.bytes, np.empty(room, np.uint8)])
        return codes

    def _grow(self) -> None:
        _check_room(self.size)
        self.ends = np.concatenate([self.ends, np.empty(len(self.ends) - 1, np.int64)])
        old, self.slots = self.slots, np.zeros((2 * len(self.slots), 4), np.int64)
        _move_slots(old, self.slots)

    def distinct(self) -> list[str]:
        """The text of each code."""
        raw = self.bytes[: self.ends[self.size]].tobytes()
        ends = self.ends[: self.size + 1].tolist()
        text = raw.decode("utf-8")
        if len(text) == len(raw):  # ASCII: a byte is a character
            return [text[a:b] for a, b in itertools.pairwise(ends)]
        return [raw[a:b].decode("utf-8") for a, b in itertools.pairwise(ends)]

    def wholes(self) -> np.ndarray | None:
        """The texts as int64 if each is a plain whole number that fits; else None."""
        values = np.empty(self.size, np.int64)
        return values if self.size and _parse_wholes(self.bytes, self.ends, values) else None


def _check_room(size: int) -> None:
    if 2 * size > MOST_DISTINCT:
        raise InputError(f"more than {size:,} distinct ids in one column: the log is too large; take a sample of it")


@njit
def _text_keys(buffer, starts, stops, keys, start):
    """The two keys and the hash of every piece. A loop of its own, so that the look-ups' memory accesses overlap."""
    for k in range(len(starts)):
        a, n = starts[k], stops[k] - starts[k]
        if n <= _WHOLE_IN_KEYS:
            one, two = _word(buffer, a, min(n, 8)), _word(buffer, a + 8, max(n - 8, 0)) | n << 56
        else:
            one, two = _word(buffer, a, 8), _word(buffer, a + n - 7, 7) | np.int64(127) << 56
        h = start
        for piece in (one, one >> 24, one >> 48, two, two >> 24, two >> 48):
            h = ((h ^ (piece & 0xFFFFFF)) * _PRIME) & _MASK
            h ^= h >> 15
        if n > _WHOLE_IN_KEYS:
            for at in range(a + 8, a + n - 7):
                h = ((h ^ np.int64(buffer[at])) * _PRIME) & _MASK
            h ^= h >> 15
        keys[k, 0], keys[k, 1], keys[k, 2] = one, two, h


@njit
def _word(buffer, a, n):
    """Up to 8 bytes as one number."""
    word = np.int64(0)
    for k in range(n):
        word |= np.int64(buffer[a + k]) << 8 * k
    return word


@njit
def _intern_text(buffer, starts, stops, keys, codes, done, slots, texts, ends, size):
    """Codes of the pieces from `done` on, until the table of texts or of bytes is full."""
    mask = len(slots) - 1
    while done < len(starts) and size < len(ends) - 1:
        one, two, slot = keys[done, 0], keys[done, 1], keys[done, 2] & mask
        a, n = starts[done], stops[done] - starts[done]
        while slots[slot, 3] != 0:
            alike = slots[slot, 0] == one and slots[slot, 1] == two
            if alike and (n <= _WHOLE_IN_KEYS or _same(buffer, a, n, texts, ends, slots[slot, 3] - 1)):
                break
            slot = (slot + 1) & mask
        if slots[slot, 3] == 0:
            if ends[size] + n > len(texts):
                return size, done
            for k in range(n):
                texts[ends[size] + k] = buffer[a + k]
            ends[size + 1] = ends[size] + n
            size += 1
            slots[slot, 0], slots[slot, 1], slots[slot, 2], slots[slot, 3] = one, two, keys[done, 2], size
        codes[done] = slots[slot, 3] - 1
        done += 1
    return size, done


@njit
def _move_slots(old, new):
    mask = len(new) - 1
    for k in range(len(old)):
        if old[k, 3] != 0:
            slot = old[k, 2] & mask
            while new[slot, 3] != 0:
                slot = (slot + 1) & mask
            for j in range(4):
                new[slot, j] = old[k, j]


@njit
def _same(buffer, a, n, texts, ends, code):
    b = ends[code]
    if ends[code + 1] - b != n:
        return False
    k = 0
    while k < n and buffer[a + k] == texts[b + k]:
        k += 1
    return k == n


@njit
def _parse_wholes(texts, ends, values):
    """Fill `values` with the texts as numbers; False if one is not -?[1-9][0-9]* or 0, or does not fit int64."""
    for k in range(len(values)):
        a, b = ends[k], ends[k + 1]
        negative = b > a and texts[a] == 45  # -
        a += negative
        if b == a or b - a > 19 or (texts[a] == 48 and (b - a > 1 or negative)):
            return False
        total = np.int64(0)  # negative throughout: -2**63 has no positive counterpart
        for j in range(a, b):
            digit = np.int64(texts[j]) - 48
            if digit < 0 or digit > 9 or total < -922337203685477580 or (total == -922337203685477580 and digit > 8):
                return False
            total = total * 10 - digit
        if not negative and total == np.iinfo(np.int64).min:
            return False
        values[k] = total if negative else -total
    return True
