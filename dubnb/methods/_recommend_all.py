"""Everyone's list, streamed to a Parquet file: memory for one block of users, however many there are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb import _files, _progress
from dubnb._check import InputError
from dubnb._jit import one_blas_thread

if TYPE_CHECKING:
    from dubnb.data.ids import Ids
    from dubnb.methods._recommend import Block

KINDS = {"i": "int64", "u": "uint64", "U": "string"}  # of ids in the file, by NumPy's letter


def recommend_all(
    lists: Iterator[Block],
    users: tuple[np.ndarray, np.ndarray],
    item_ids: Ids,
    path: str | os.PathLike[str],
    overwrite: bool,
    quiet: bool,
) -> int:
    """Write the blocks' lists, a row group each; `users` are (ids, fallback) of all rows. Returns the rows written."""
    names, fallback = users
    arrow, parquet = _arrow(path)
    kinds = [KINDS[ids.dtype.kind] for ids in (names, item_ids.values)]
    columns = {"user": kinds[0], "rank": "int32", "item": kinds[1], "score": "float32"}
    schema = arrow.schema(
        [(name, getattr(arrow, kind)()) for name, kind in columns.items()] + [("fallback", arrow.bool_())]
    )
    written = 0
    with _files.atomic_write(path, overwrite) as file, parquet.ParquetWriter(file, schema) as out, one_blas_thread():
        for block in _counted(lists, len(names), quiet):
            listed = block.top >= 0
            row, rank = np.nonzero(listed)
            place = block.places[row]
            values = names[place], rank + 1, item_ids.values[block.top[listed]], block.scores[listed], fallback[place]
            arrays = [arrow.array(value, type=field.type) for value, field in zip(values, schema, strict=True)]
            out.write_table(arrow.Table.from_arrays(arrays, schema=schema))
            written += len(row)
    return written


def _arrow(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{_files.shown(path)}: Parquet needs pyarrow: install the extra 'parquet'") from None
    return pyarrow, pyarrow.parquet


def _counted(lists: Iterator[Block], n_users: int, quiet: bool) -> Iterator[Block]:
    with _progress.bar(total=n_users, desc="recommend", unit="user", quiet=quiet) as bar:
        for block in lists:
            yield block
            bar.update(len(block.places))
