"""Open a log: the options of reading, and the requested columns of a DataFrame, an Arrow table or files."""

from __future__ import annotations

import contextlib
import glob
import inspect
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar

import numpy as np

from dubnb import _check, _progress
from dubnb._check import InputError, option, short_repr
from dubnb.data.column import ID_TYPES, Column, object_array
from dubnb.data.delimited import Layout, TextCodes, check_alike, check_rows, read_delimited

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_LABEL = "label"  # the column of the labels if no other is named
NAMED_AT_MOST = 20  # columns that a message lists
BATCH_ROWS = 1 << 17  # of a Parquet file that are decoded at a time
PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
Reader = TypeVar("Reader", bound=Callable[..., Any])


# ---- options -------------------------------------------------------------------------------------------------------


class ReadOptions(TypedDict, total=False):
    """The options of `Partition.from_frames` and `from_table`, for type checkers; `LogOptions` has their defaults."""

    user: str
    item: str
    label: str | None
    weight: str | None
    propensity: str | None
    random_propensity: str | None
    grade: str | None
    timestamp: str | None
    eligible: Any
    stratum: str | None
    user_type: str | None
    item_type: str | None
    threshold: float | None
    duplicates: str | None
    drop_bad: bool
    split: str
    shares: Sequence[float] | None
    split_seed: int
    sep: str | None
    name: str | None
    quiet: bool


@dataclass(frozen=True)
class LogOptions:
    """The options of `Partition.from_frames`, which documents them, with their defaults."""

    user: str = "user"
    item: str = "item"
    label: str | None = None
    weight: str | None = None
    propensity: str | None = None
    random_propensity: str | None = None
    grade: str | None = None
    timestamp: str | None = None
    eligible: Any = None
    stratum: str | None = None
    user_type: str | None = None
    item_type: str | None = None
    threshold: float | None = None
    duplicates: str | None = None
    drop_bad: bool = False
    split: str = "random"
    shares: Sequence[float] | None = None
    split_seed: int = 0
    sep: str | None = None
    name: str | None = None
    quiet: bool = True

    @classmethod
    def of(cls, options: ReadOptions) -> LogOptions:
        """Options from keyword arguments; for an unknown one the message suggests the closest name."""
        known = tuple(field.name for field in fields(cls))
        for name in options:
            _check.choice("parameter", name, known)
        return cls(**options)

    def roles(self) -> dict[str, str]:
        """{role: column} of the columns that are read, which must be distinct, except the two propensities."""
        roles = {"user": self.user, "item": self.item, "label": self.label or DEFAULT_LABEL}
        others = ["weight", "propensity", "random_propensity", "grade", "timestamp", "stratum"]
        if self.random_propensity == self.propensity:  # one column, for biased and for randomized rows
            others.remove("random_propensity")
        roles |= {role: getattr(self, role) for role in others if getattr(self, role) is not None}
        if len(set(roles.values())) < len(roles):
            raise InputError(f"columns {roles} must be distinct: name each with {', '.join(map(option, roles))}")
        return roles


def with_options(function: Reader) -> Reader:
    """Give a function that takes **options: ReadOptions a signature with every option, for help() and the docs."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(LogOptions)
    ]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return function


# ---- one log -------------------------------------------------------------------------------------------------------


class ReadLog(NamedTuple):
    """The columns of one log."""

    where: str  # its name in messages: the file, if it came from one
    columns: dict[str, Column]
    names: list[str]  # names of all its columns, requested or not
    is_text: bool = False  # whether it came from text files, whose ids are whole numbers only if all look like it
    unread: tuple[str, ...] = ()  # columns that only occur in names of directories: day, of day=0/part.parquet

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def column(self, name: str, role: str) -> Column:
        """A required column."""
        if name in self.columns:
            return self.columns[name]
        if name in self.unread:
            raise InputError(
                f"{self.where}: column {name!r} is only in the names of directories, which are not read: write it into "
                "the files"
            )
        raise InputError(
            f"{self.where}: column {name!r} is missing: name the column with {option(role)}; there are {self.listed()}"
        )

    def listed(self) -> str:
        """The names of its columns, for messages."""
        more = ", ..." if len(self.names) > NAMED_AT_MOST else ""
        return ", ".join(map(short_repr, self.names[:NAMED_AT_MOST])) + more


def checked_id_type(name: str, id_type: str | None) -> str | None:
    """A type of ids, or None."""
    return None if id_type is None else _check.choice(option(name, ""), id_type, ID_TYPES)


def open_log(
    table: Any, called: str, columns: Collection[str] | None, ids: Collection[str], sep: str | None, quiet: bool
) -> ReadLog:
    """Open a log and read the named columns that it has, or all of them; `called` is its name in messages."""
    import pandas as pd

    if isinstance(table, str | os.PathLike):
        log = open_files(os.fspath(table), columns, ids, sep, quiet)
    elif isinstance(table, pd.DataFrame):
        log = _open_frame(table, called, columns, ids)
    elif hasattr(table, "__arrow_c_stream__"):
        log = ReadLog(called, *read_stream(table, called, columns, ids))
    else:
        raise InputError(
            f"{called} is a {type(table).__name__}: pass a pandas DataFrame, a polars or Arrow table, or a file's path"
        )
    if not len(log) and log.columns:
        below = " below the header" if isinstance(table, str | os.PathLike) else ""
        raise InputError(f"{log.where}: no rows{below}: at least one is needed")
    return log


# ---- files ---------------------------------------------------------------------------------------------------------


def open_files(
    path: str, columns: Collection[str] | None, ids: Collection[str], sep: str | None, quiet: bool
) -> ReadLog:
    if sep is not None and (not isinstance(sep, str) or len(sep) != 1 or not sep.isascii() or sep in '"\r\n\0 '):
        raise InputError(f"{option('sep', '')}={short_repr(sep)} must be one character, such as ; or a tab")
    paths = log_paths(path)
    unread = partition_columns(path, paths)
    if all(has_suffix(each, PARQUET) for each in paths):
        return ReadLog(path, *read_parquet(paths, columns, ids, quiet), unread=unread)
    if any(has_suffix(each, PARQUET) for each in paths):
        raise InputError(f"{path}: Parquet and text files together: keep them in directories of their own")
    return ReadLog(path, *read_delimited(paths, columns, ids, Layout(sep=sep), quiet), is_text=True, unread=unread)


def log_paths(path: str) -> list[Path]:
    """The file itself, the files below a directory, or those that a pattern matches; sorted by name."""
    if os.path.isdir(path):
        files = _files_below(Path(path))
        if not files:
            expected = ", ".join(PARQUET + TEXT)
            raise InputError(f"{path}: cannot be read (Is a directory without logs): expected {expected}")
        return files
    if glob.has_magic(path) and not os.path.exists(path):
        matches = [Path(each) for each in sorted(glob.glob(path))]
        files = [file for each in matches for file in (_files_below(each) if each.is_dir() else [each])]
        if not files:
            raise InputError(f"{path}: no file matches this pattern: check the path")
        return files
    return [Path(path)]


def _files_below(folder: Path) -> list[Path]:
    """The logs in a directory and its subdirectories, without names that begin with _ or . (a writer's own files)."""
    return [
        file
        for file in sorted(folder.rglob("*"))
        if has_suffix(file, PARQUET + TEXT)
        and file.is_file()
        and not any(part.startswith(("_", ".")) for part in file.relative_to(folder).parts)
    ]


def partition_columns(path: str, paths: list[Path]) -> tuple[str, ...]:
    """The columns in the directory names of a partitioned log, as in day=0/part.parquet; a warning names them."""
    folders = dict.fromkeys(part for file in paths for part in file.parts[:-1] if re.fullmatch(r"\w+=.*", part))
    below = [folder for folder in folders if folder not in Path(path).parts]
    names = tuple(dict.fromkeys(folder.partition("=")[0] for folder in below))
    if names:
        warnings.warn(
            f"{path}: {len(paths)} files are read; what their directories are named after ({', '.join(names)}) is not "
            "read as a column",
            stacklevel=2,
        )
    return names


def has_suffix(path: Path, suffixes: tuple[str, ...]) -> bool:
    return path.name.lower().endswith(suffixes)


# ---- pandas --------------------------------------------------------------------------------------------------------


def _open_frame(frame: pd.DataFrame, called: str, columns: Collection[str] | None, ids: Collection[str]) -> ReadLog:
    where = frame.attrs.get("source", called)
    names = list(frame.columns)
    by_name = {}
    for name in dict.fromkeys(names):
        if columns is None or name in columns:
            times = sum(each is name or each == name for each in names)
            if times > 1:
                raise InputError(f"{where}: column {name!r} occurs {times} times: rename all but one")
            by_name[name] = _column_of(frame[name], name in ids)
    return ReadLog(where, by_name, [str(name) for name in names])


def _column_of(series: pd.Series, is_id: bool) -> Column:
    import pandas as pd

    if isinstance(series.dtype, pd.CategoricalDtype):
        codes, values = series.cat.codes.to_numpy(), series.cat.categories
    else:
        if isinstance(series.dtype, pd.DatetimeTZDtype):
            series = series.dt.tz_convert(None)
        if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iufbM" and not is_id:
            return Column(series.to_numpy())
        if not is_id and pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_complex_dtype(series):
            return Column(series.to_numpy(dtype=np.float64, na_value=np.nan))
        codes, values = pd.factorize(series)
    array = np.asarray(values)
    return Column(array.astype(object) if array.dtype.kind in "UT" else array, codes.astype(np.int32))


# ---- Arrow and Parquet, batch by batch; only the requested columns are kept in memory ------------------------------


def read_parquet(
    paths: Sequence[Path], columns: Collection[str] | None, ids: Collection[str], quiet: bool
) -> tuple[dict[str, Column], list[str]]:
    """({name: Column} of the requested columns that the files have, all their names)."""
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise InputError(
            f"{paths[0]}: Parquet needs pyarrow: pip install 'dubnb[parquet]', or save the log as CSV"
        ) from None
    collected = _TableColumns(columns, ids)
    for path in paths:
        with _refusing(path):
            file = parquet.ParquetFile(path)
            rows = file.metadata.num_rows
            check_rows(path, rows)
            names = collected.start(file.schema_arrow, str(path))
            described = f"reading {path.name}"
            with _progress.bar(quiet=quiet, total=rows, desc=described, unit="row", unit_scale=True) as progress:
                for batch in file.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                    collected.add(batch)
                    progress.update(len(batch))
    return collected.columns(), collected.names


def read_stream(
    table: Any, called: str, columns: Collection[str] | None, ids: Collection[str]
) -> tuple[dict[str, Column], list[str]]:
    """Read columns from an object that exports Arrow's C stream, such as a polars DataFrame or an Arrow table."""
    try:
        import pyarrow
    except ModuleNotFoundError:
        raise InputError(
            f"{called} is a {type(table).__name__}: that needs pyarrow, pip install 'dubnb[parquet]'; or pass a pandas "
            "DataFrame"
        ) from None
    collected = _TableColumns(columns, ids)
    with _refusing(called):
        stream = pyarrow.RecordBatchReader.from_stream(table)
        names = collected.start(stream.schema, called)
        for batch in stream:
            collected.add(batch.select(names))
    return collected.columns(), collected.names


@contextlib.contextmanager
def _refusing(where: Any) -> Iterator[None]:
    """Turn pyarrow's errors into an InputError."""
    import pyarrow

    try:
        yield
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{where}: cannot be read as Parquet ({reason}): check the file") from None


class _TableColumns:
    """The requested columns of one or more tables, collected batch by batch."""

    def __init__(self, wanted: Collection[str] | None, ids: Collection[str]) -> None:
        self.wanted, self.ids = wanted, ids
        self.names: list[str] = []
        self.parts: dict[str, _IntIdChunks | _TextChunks | _NumberChunks] = {}

    def start(self, schema: Any, where: str) -> list[str]:
        """The names to read from a table with this schema, which must match the tables before."""
        names = list(schema.names)
        chosen = [name for name in dict.fromkeys(names) if self.wanted is None or name in self.wanted]
        if self.names:
            check_alike(where, chosen, self.parts)
        for name in chosen:
            if names.count(name) > 1:
                raise InputError(f"{where}: column {name!r} occurs {names.count(name)} times: rename one")
            cls = _part_for(schema.field(name).type, name in self.ids)
            if cls is None:
                kind = str(schema.field(name).type)[:60]
                raise InputError(
                    f"{where}: column {name!r} is of type {kind}: ids are int or str, all else numbers or times"
                )
            if not isinstance(self.parts.setdefault(name, cls()), cls):
                raise InputError(
                    f"{where}: column {name!r} is of another type than in the files before: make them alike"
                )
        self.names = self.names or names
        return chosen

    def add(self, batch: Any) -> None:
        for name, part in self.parts.items():
            part.add(batch.column(name))

    def columns(self) -> dict[str, Column]:
        return {name: part.column() for name, part in self.parts.items()}


class _IntIdChunks:
    """Whole numbers that are ids."""

    def __init__(self) -> None:
        self.chunks, self.valid, self.dtype = [np.empty(0, np.int64)], [np.empty(0, bool)], np.dtype(np.int64)

    def add(self, array: Any) -> None:
        self.valid.append(np.asarray(array.is_valid()) if array.null_count else np.ones(len(array), bool))
        values = _plain(array.fill_null(0) if array.null_count else array)
        if values.dtype == np.uint64:
            self.dtype = values.dtype
        self.chunks.append(values.astype(np.int64))  # uint64 keeps its bits

    def column(self) -> Column:
        import pandas as pd

        whole, self.chunks = np.concatenate(self.chunks), []
        codes, values = pd.factorize(whole)
        return Column(values.view(self.dtype), np.where(np.concatenate(self.valid), codes, -1).astype(np.int32))


class _TextChunks:
    """Text, collected as codes."""

    def __init__(self) -> None:
        self.table, self.codes = TextCodes(), [np.empty(0, np.int32)]

    def add(self, array: Any) -> None:
        import pyarrow

        if not pyarrow.types.is_dictionary(array.type):
            array = array.cast(pyarrow.large_string()).dictionary_encode()
        texts = array.dictionary.cast(pyarrow.large_string())
        texts.validate(full=True)  # the bytes are UTF-8, and the offsets lie within them
        codes = np.full(len(texts) + 1, -1, np.int32)  # the last is the code of a missing text
        if len(texts):
            _, offsets, data = texts.buffers()
            ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
            content = np.frombuffer(data or b"", np.uint8)
            codes[:-1] = self.table.codes(content, ends[:-1], ends[1:])
        places = array.indices
        missing = np.asarray(places.is_null()) if places.null_count else None
        places = _plain(places.fill_null(0) if places.null_count else places)
        self.codes.append(codes[places if missing is None else np.where(missing, len(texts), places)])

    def column(self) -> Column:
        codes, self.codes = np.concatenate(self.codes), []
        return Column(object_array(self.table.distinct()), codes)


class _NumberChunks:
    """Numbers, one per row, in the narrowest suitable dtype."""

    def __init__(self) -> None:
        self.chunks: list[np.ndarray] = []

    def add(self, array: Any) -> None:
        import pyarrow

        if array.null_count or pyarrow.types.is_decimal(array.type) or pyarrow.types.is_null(array.type):
            array = array.cast(pyarrow.float64())
        values = _plain(array)
        if values.dtype == bool:
            values = values.astype(np.int8)
        if values.dtype.kind in "iu" and len(values) and values.min() >= -128 and values.max() <= 127:
            values = values.astype(np.int8)
        if values.dtype not in (np.int8, np.float32, np.uint64):
            values = values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
        self.chunks.append(values)

    def column(self) -> Column:
        chunks, self.chunks = self.chunks or [np.empty(0)], []
        return Column(np.concatenate(chunks))


class _TimeChunks(_NumberChunks):
    """Dates, one per row."""

    def add(self, array: Any) -> None:
        import pyarrow

        stamps = array.cast(pyarrow.timestamp("us")) if not pyarrow.types.is_timestamp(array.type) else array
        self.chunks.append(stamps.to_numpy(zero_copy_only=False).astype("datetime64[ns]"))


def _part_for(kind: Any, is_id: bool) -> type[_IntIdChunks | _TextChunks | _NumberChunks] | None:
    """The class that collects a column of this Arrow type; None if a log cannot hold that type."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _TextChunks if _part_for(kind.value_type, is_id) is _TextChunks else None
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _TextChunks
    if types.is_integer(kind):
        return _IntIdChunks if is_id else _NumberChunks
    if types.is_floating(kind) or (
        not is_id and (types.is_boolean(kind) or types.is_decimal(kind) or types.is_null(kind))
    ):
        return _NumberChunks
    return _TimeChunks if not is_id and (types.is_timestamp(kind) or types.is_date(kind)) else None


def _plain(array: Any) -> np.ndarray:
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values
