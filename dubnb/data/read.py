"""`dubnb.read_log`: a log as a DataFrame, or one that may be larger than memory as a Partition."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.data.column import CellLocation, Column, distinct_ids
from dubnb.data.log import LogOptions, ReadOptions, checked_id_type, open_log
from dubnb.data.partition import Partition

if TYPE_CHECKING:
    import pandas as pd


@overload
def read_log(
    path: str | Path,
    *,
    distributed: Literal[False] = False,
    user: str = "user",
    item: str = "item",
    user_type: str | None = None,
    item_type: str | None = None,
    columns: Collection[str] | None = None,
    sep: str | None = None,
    quiet: bool = True,
) -> pd.DataFrame: ...


@overload
def read_log(
    path: str | Path,
    *,
    distributed: Literal[True],
    random: Any,
    parts_dir: Any,
    scheduler: Any = None,
    **options: Unpack[ReadOptions],
) -> Partition: ...


def read_log(
    path: str | Path,
    *,
    user: str = "user",
    item: str = "item",
    user_type: str | None = None,
    item_type: str | None = None,
    columns: Collection[str] | None = None,
    sep: str | None = None,
    quiet: bool = True,
    distributed: bool = False,
    random: Any = None,
    parts_dir: Any = None,
    scheduler: Any = None,
    **options: Any,
) -> pd.DataFrame | Partition:
    """Read a log from files into a pandas DataFrame, to inspect or change it before `Partition.from_frames`.

    `Partition.from_frames` and `Partition.from_table` also take the path itself. Text columns are categorical. With
    `distributed`, a log that may be larger than memory becomes a Partition whose S_c stays on disk.

    Parameters
    ----------
    path : str or path
        A CSV or TSV file with a header (either may end in .gz), a Parquet file, a directory of such files (nested ones
        too), or a pattern such as "logs/*.parquet".
    user, item : str
        Columns of ids. In a text file they are whole numbers only if every cell is a plain whole number: 007 stays
        text.
    user_type, item_type : {"str", "int"}
        The type of the ids; by default as found. "int" drops padding zeros.
    columns : collection of str
        The columns to read; by default all.
    sep : str
        The separator of a text file; by default a tab or comma, or else ; or |, as found in its header.
    quiet : bool
        Whether to hide the progress bar, which otherwise appears after two seconds.
    distributed : bool
        Whether to return `Partition.from_frames(path, random, parts_dir=parts_dir, scheduler=scheduler, ...)`: the
        biased log is read file by file and never in memory as a whole. See docs/large-logs.md.
    random : table or path
        With `distributed`: the randomized log, as in `Partition.from_frames`.
    parts_dir : path
        With `distributed`: the directory for the pairs of S_c, which workers must see too.
    scheduler : str or distributed.Client, optional
        With `distributed`: a Dask cluster whose workers read the files. Without it they are read here.
    **options
        With `distributed`: the other options of `Partition.from_frames`, such as `threshold`.

    Examples
    --------
    >>> log = dubnb.read_log("clicks.csv", user="customer", item="sku")  # doctest: +SKIP
    >>> log = log[log["country"] == "NO"]  # doctest: +SKIP
    >>> data = dubnb.Partition.from_frames(log, "random.csv", user="customer", item="sku")  # doctest: +SKIP

    >>> data = dubnb.read_log(  # doctest: +SKIP
    ...     "logs/", distributed=True, random="random.parquet", parts_dir="/shared/parts", scheduler="tcp://head:8786"
    ... )
    """
    if distributed:
        options |= {"user": user, "item": item, "user_type": user_type, "item_type": item_type}
        return _read_distributed(path, columns, random, parts_dir, scheduler, options | {"sep": sep, "quiet": quiet})
    given = {"random": random, "parts_dir": parts_dir, "scheduler": scheduler}
    known = ("columns", "distributed", *given, *LogOptions.__dataclass_fields__)
    for name, value in (given | options).items():
        _check.choice("parameter", name, known)
        if value is not None:
            raise InputError(f"{name}= goes with distributed=True: add it, or leave {name}= out")
    import pandas as pd

    log = open_log(path, "log", None if columns is None else set(columns), {user, item}, sep, quiet)
    for name in columns or ():
        log.column(name, "columns")
    types = {user: checked_id_type("user_type", user_type), item: checked_id_type("item_type", item_type)}
    frame = pd.DataFrame(
        {name: _series(column, CellLocation(log.where, name), types.get(name)) for name, column in log.columns.items()}
    )
    frame.attrs["source"] = log.where
    return frame


def _read_distributed(
    path: Any, columns: Any, random: Any, parts_dir: Any, scheduler: Any, options: dict[str, Any]
) -> Partition:
    """The Partition of `read_log(distributed=True)`."""
    if columns is not None:
        raise InputError("columns= is for a DataFrame: leave it or distributed=True out")
    if parts_dir is None:
        raise InputError("distributed=True keeps the log's pairs on disk: say where with parts_dir=, on a shared disk")
    if random is None:
        raise InputError("distributed=True returns a Partition of both logs: give the randomized one as random=")
    return Partition.from_frames(path, random, parts_dir=parts_dir, scheduler=scheduler, **options)


def _series(column: Column, cell: CellLocation, id_type: str | None) -> Any:
    import pandas as pd

    values, codes = column if id_type is None else distinct_ids(column, cell, id_type)
    if codes is None:
        return values.astype(np.int64) if values.dtype == np.int8 else values
    if values.dtype.kind not in "OU" and codes.min(initial=0) >= 0:
        return values[codes]
    return pd.Categorical.from_codes(codes, categories=pd.Index(values.astype(object)))
