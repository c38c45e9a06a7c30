"""Arrow's tables and Parquet files -> columns, batch by batch: only what is asked for is held, as codes or numbers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dubnb._check import InputError
from dubnb.data.column import Column
from dubnb.data.interning import IntCodes, TextCodes
from dubnb.data.progress import bar

ROWS_AT_ONCE = 1 << 17
MOST_ROWS_PER_BYTE = 20  # of a file: a sorted, well packed log of distinct pairs has about two
BYTES_PER_ROW = 48  # at the peak of building a Partition: three times what it keeps


def read_parquet(
    paths: Sequence[Path], columns: Collection[str] | None, ids: Collection[str], quiet: bool
) -> tuple[dict[str, Column], list[str]]:
    """({name: Column} of the columns asked for that the files have, all their names)."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{paths[0]}: Parquet needs pyarrow: pip install 'dubnb[parquet]', or save the log as CSV"
        ) from None
    collected = _Collected(columns, ids)
    for path in paths:
        with _refusing(path):
            file = parquet.ParquetFile(path)
            rows = file.metadata.num_rows
            _check_rows(path, rows)
            names = collected.start(file.schema_arrow, str(path))
            with bar(path.name, rows, "row", quiet) as progress:
                for batch in file.iter_batches(ROWS_AT_ONCE, columns=names, use_threads=False):
                    collected.add(batch)
                    progress.update(len(batch))
    return collected.columns(), collected.names


def read_stream(
    table: Any, called: str, columns: Collection[str] | None, ids: Collection[str]
) -> tuple[dict[str, Column], list[str]]:
    """The same of an object that exports Arrow's C stream: a polars DataFrame, an Arrow table, ..."""
    try:
        import pyarrow
    except ImportError:
        raise InputError(
            f"{called} is a {type(table).__name__}: that needs pyarrow, pip install 'dubnb[parquet]'; or pass a pandas "
            "DataFrame"
        ) from None
    collected = _Collected(columns, ids)
    with _refusing(called):
        stream = pyarrow.RecordBatchReader.from_stream(table)
        names = collected.start(stream.schema, called)
        for batch in stream:
            collected.add(batch.select(names))
    return collected.columns(), collected.names


@contextlib.contextmanager
def _refusing(where: Any) -> Iterator[None]:
    """Whatever pyarrow cannot read is an InputError."""
    import pyarrow

    try:
        yield
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{where}: cannot be read as Parquet ({reason}): check the file") from None


def _check_rows(path: Path, rows: int) -> None:
    """The number of rows, known before any is read, must be one that this file can mean and this machine can hold."""
    size = os.path.getsize(path)
    if rows > MOST_ROWS_PER_BYTE * size:
        raise InputError(f"{path}: {rows:,} rows in {size:,} bytes: nearly all must be equal; write each pair once")
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return
    if rows * BYTES_PER_ROW > memory:
        raise InputError(
            f"{path}: {rows:,} rows need {rows * BYTES_PER_ROW / 1e9:.0f} GB of the {memory / 1e9:.0f} GB here: take a "
            "sample of the log"
        )


class _Collected:
    """The columns asked for, growing by batches of one or more tables."""

    def __init__(self, wanted: Collection[str] | None, ids: Collection[str]) -> None:
        self.wanted, self.ids = wanted, ids
        self.names: list[str] = []
        self.parts: dict[str, _IntIds | _Text | _Numbers | _Times] = {}

    def start(self, schema: Any, where: str) -> list[str]:
        """The names to read from a table of this schema, which must have the columns of those before."""
        names = list(schema.names)
        chosen = [name for name in dict.fromkeys(names) if self.wanted is None or name in self.wanted]
        for name in chosen:
            if names.count(name) > 1:
                raise InputError(f"{where}: column {name!r} stands {names.count(name)} times: rename one")
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
        if self.parts.keys() != set(chosen):
            lacking = sorted(self.parts.keys() - set(chosen))
            raise InputError(f"{where}: column {lacking[0]!r} is missing, which the files before have: make them alike")
        self.names = self.names or names
        return chosen

    def add(self, batch: Any) -> None:
        for name, part in self.parts.items():
            part.add(batch.column(name))

    def columns(self) -> dict[str, Column]:
        return {name: part.column() for name, part in self.parts.items()}


class _IntIds:
    """Whole numbers by codes."""

    def __init__(self) -> None:
        self.table, self.codes, self.dtype = IntCodes(), [np.empty(0, np.int32)], np.dtype(np.int64)

    def add(self, array: Any) -> None:
        valid = None if not array.null_count else np.asarray(array.is_valid())
        values = _plain(array if valid is None else array.fill_null(0))
        if values.dtype == np.uint64:
            self.dtype = values.dtype
        codes = self.table.codes(values.astype(np.int64))  # of uint64 the same bits
        self.codes.append(codes if valid is None else np.where(valid, codes, np.int32(-1)))

    def column(self) -> Column:
        codes, self.codes = np.concatenate(self.codes), []
        return Column(self.table.distinct().view(self.dtype), codes)


class _Text:
    """Text by codes."""

    def __init__(self) -> None:
        self.table, self.codes = TextCodes(), [np.empty(0, np.int32)]

    def add(self, array: Any) -> None:
        import pyarrow

        if not pyarrow.types.is_dictionary(array.type):
            array = array.cast(pyarrow.large_string()).dictionary_encode()
        texts = array.dictionary.cast(pyarrow.large_string())
        texts.validate(full=True)  # its bytes are UTF-8, its offsets lie within them
        codes = np.full(len(texts) + 1, -1, np.int32)  # the last is that of a missing one
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
        values = np.empty(self.table.size, dtype=object)
        values[:] = self.table.distinct()
        return Column(values, codes)


class _Numbers:
    """Numbers row by row, in as few bytes as hold them."""

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
        self.chunks.append(
            values
            if values.dtype in (np.int8, np.float32, np.uint64)
            else values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
        )

    def column(self) -> Column:
        chunks, self.chunks = self.chunks or [np.empty(0)], []
        return Column(np.concatenate(chunks))


class _Times(_Numbers):
    """Dates row by row."""

    def add(self, array: Any) -> None:
        import pyarrow

        stamps = array.cast(pyarrow.timestamp("us")) if not pyarrow.types.is_timestamp(array.type) else array
        self.chunks.append(stamps.to_numpy(zero_copy_only=False).astype("datetime64[ns]"))


def _part_for(kind: Any, is_id: bool) -> type[_IntIds | _Text | _Numbers | _Times] | None:
    """What collects a column of this type; None where it says nothing that a log can hold."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _Text if _part_for(kind.value_type, is_id) is _Text else None
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return _Text
    if types.is_integer(kind):
        return _IntIds if is_id else _Numbers
    if types.is_floating(kind) or (
        not is_id and (types.is_boolean(kind) or types.is_decimal(kind) or types.is_null(kind))
    ):
        return _Numbers
    return _Times if not is_id and (types.is_timestamp(kind) or types.is_date(kind)) else None


def _plain(array: Any) -> np.ndarray:
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values
