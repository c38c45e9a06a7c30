"""Everyone's list, streamed to a CSV or Parquet file: memory for one block of users, however many there are."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np

from dubnb import _files, _progress
from dubnb._check import InputError
from dubnb._jit import one_blas_thread

if TYPE_CHECKING:
    from dubnb.data.ids import Ids
    from dubnb.methods._recommend import Block

KINDS = {"i": "int64", "u": "uint64", "U": "string"}  # of ids in a Parquet file, by NumPy's letter
COLUMNS = ("user", "rank", "item", "score", "fallback")

Columns = tuple[np.ndarray, ...]  # the values of COLUMNS


class Writer(Protocol):
    """A file of lists that is being written."""

    def write(self, columns: Columns) -> None:
        """Add some rows."""

    def close(self) -> None:
        """Finish; the file itself stays open."""


def recommend_all(
    lists: Iterator[Block],
    users: tuple[np.ndarray, np.ndarray],
    item_ids: Ids,
    path: str | os.PathLike[str],
    overwrite: bool,
    quiet: bool,
) -> int:
    """Write the blocks' lists piece by piece; `users` are (ids, fallback) of all rows. Returns the rows written."""
    names, fallback = users
    new_writer = writer_of(path)
    written = 0
    with _files.atomic_write(path, overwrite) as file, one_blas_thread():
        out = new_writer(file, names, item_ids.values)
        for block in _counted(lists, len(names), quiet):
            listed = block.top >= 0
            row, rank = np.nonzero(listed)
            place = block.places[row]
            out.write(
                (names[place], rank + 1, item_ids.values[block.top[listed]], block.scores[listed], fallback[place])
            )
            written += len(row)
        out.close()
    return written


def writer_of(path: Any) -> Callable[[BinaryIO, np.ndarray, np.ndarray], Writer]:
    """What writes a file of this ending, from (file, ids of users, ids of items); refused where nothing can."""
    ending = os.path.splitext(os.fsdecode(path))[1].lower()
    if ending == ".csv":
        return _Csv
    if ending != ".parquet":
        raise InputError(f"{_files.quote_path(path)} must end in .csv or .parquet: the ending says what is written")
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise InputError(
            f"{_files.quote_path(path)}: Parquet needs pyarrow: install the extra 'parquet', or write .csv"
        ) from None
    return _Parquet


class _Csv:
    """UTF-8 with a header line. Ids that a spreadsheet would run as a formula get an apostrophe in front."""

    def __init__(self, file: BinaryIO, users: np.ndarray, items: np.ndarray):
        self.text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogatepass", newline="")
        self.rows = csv.writer(self.text, lineterminator="\n")
        self.rows.writerow(COLUMNS)

    def write(self, columns: Columns) -> None:
        users, ranks, items, scores, fallback = columns
        safe_users, safe_items = (map(_files.spreadsheet_safe, ids.tolist()) for ids in (users, items))
        digits = np.char.mod("%.9g", scores).tolist()  # as many as a float32 has
        words = np.where(fallback, "true", "false").tolist()
        self.rows.writerows(zip(safe_users, ranks.tolist(), safe_items, digits, words, strict=True))

    def close(self) -> None:
        self.text.detach()


class _Parquet:
    """A row group per block."""

    def __init__(self, file: BinaryIO, users: np.ndarray, items: np.ndarray):
        import pyarrow
        from pyarrow import parquet

        kinds = [KINDS[users.dtype.kind], "int32", KINDS[items.dtype.kind], "float32", "bool_"]
        self.arrow = pyarrow
        self.schema = pyarrow.schema(
            [(name, getattr(pyarrow, kind)()) for name, kind in zip(COLUMNS, kinds, strict=True)]
        )
        self.out = parquet.ParquetWriter(file, self.schema)

    def write(self, columns: Columns) -> None:
        arrays = [self.arrow.array(value, type=field.type) for value, field in zip(columns, self.schema, strict=True)]
        self.out.write_table(self.arrow.Table.from_arrays(arrays, schema=self.schema))

    def close(self) -> None:
        self.out.close()


def _counted(lists: Iterator[Block], n_users: int, quiet: bool) -> Iterator[Block]:
    with _progress.bar(total=n_users, desc="recommend", unit="user", quiet=quiet) as bar:
        for block in lists:
            yield block
            bar.update(len(block.places))
