"""One door for logs: a DataFrame, an Arrow table or the path of files -> the columns that are asked for."""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError, option, shown
from dubnb.data.column import ID_TYPES, Column
from dubnb.data.delimited import Layout, read_delimited

if TYPE_CHECKING:
    import pandas as pd

NAMED_AT_MOST = 20  # columns that a message lists
PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")


class ReadLog(NamedTuple):
    """Columns of one log."""

    where: str  # what messages call it: its file, if it came from one
    columns: dict[str, Column]
    names: list[str]  # of all its columns, wanted or not
    is_text: bool = False  # whether its cells were read as text, so that ids are whole numbers only if all look so
    unread: tuple[str, ...] = ()  # names that its directories have: day, of day=0/part.parquet

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def column(self, name: str, role: str) -> Column:
        """A column that must be there."""
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
        """The names of its columns, as a message lists them."""
        more = ", ..." if len(self.names) > NAMED_AT_MOST else ""
        return ", ".join(map(shown, self.names[:NAMED_AT_MOST])) + more


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
) -> pd.DataFrame:
    """A log from a file, as a pandas DataFrame whose text columns are categorical: to look at, to change, to pass on to
    `Partition.from_frames` or `Partition.from_table`, which take the path itself too.

    Parameters
    ----------
    path : str or path
        A CSV or TSV file with a header (either may end in .gz), a Parquet file, a directory of such files (nested ones
        too), or a pattern such as "logs/*.parquet".
    user, item : str
        Columns of ids. In a text file they are whole numbers only if every cell is written as a plain one: 007 stays
        text.
    user_type, item_type : {"str", "int"}
        What those ids are to be; by default as found.
    columns : list of str
        What to read; by default everything.
    sep : str
        What stands between cells; by default a tab or comma, or else ; or |, as the header has it.
    quiet : bool
        No progress bar, which otherwise appears after two seconds.
    """
    import pandas as pd

    log = open_log(path, "log", None if columns is None else set(columns), {user, item}, sep, quiet)
    for name in columns or ():
        log.column(name, "columns")
    types = {user: checked_type("user_type", user_type), item: checked_type("item_type", item_type)}
    frame = pd.DataFrame(
        {name: _series(column, log.where, name, types.get(name)) for name, column in log.columns.items()}
    )
    frame.attrs["source"] = log.where
    return frame


def checked_type(name: str, id_type: str | None) -> str | None:
    """A type of ids, or None."""
    return None if id_type is None else _check.choice(option(name, ""), id_type, ID_TYPES)


def _series(column: Column, where: str, name: str, id_type: str | None) -> Any:
    import pandas as pd

    from dubnb.data.column import Place, distinct_ids

    values, codes = column
    if id_type is not None:
        values, codes = distinct_ids(column, Place(where, name), id_type)
    if codes is None:
        return values.astype(np.int64) if values.dtype == np.int8 else values
    if values.dtype.kind not in "OU" and codes.min(initial=0) >= 0:
        return values[codes]
    return pd.Categorical.from_codes(codes, categories=pd.Index(values.astype(object)))


def open_log(
    table: Any, called: str, columns: Collection[str] | None, ids: Collection[str], sep: str | None, quiet: bool
) -> ReadLog:
    """Those of the columns that the log has (all, if None are named); `called` is what messages call it."""
    import pandas as pd

    if isinstance(table, str | os.PathLike):
        log = _open_files(os.fspath(table), columns, ids, sep, quiet)
    elif isinstance(table, pd.DataFrame):
        log = _open_frame(table, called, columns, ids)
    elif hasattr(table, "__arrow_c_stream__"):
        from dubnb.data.arrow import read_stream

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


def _open_files(
    path: str, columns: Collection[str] | None, ids: Collection[str], sep: str | None, quiet: bool
) -> ReadLog:
    if sep is not None and (not isinstance(sep, str) or len(sep) != 1 or not sep.isascii() or sep in '"\r\n\0 '):
        raise InputError(f"{option('sep', '')}={shown(sep)} must be one character, such as ; or a tab")
    paths = _paths(path)
    unread = _partition_columns(path, paths)
    if all(_ends(each, PARQUET) for each in paths):
        from dubnb.data.arrow import read_parquet

        return ReadLog(path, *read_parquet(paths, columns, ids, quiet), unread=unread)
    if any(_ends(each, PARQUET) for each in paths):
        raise InputError(f"{path}: Parquet and text files together: keep them in directories of their own")
    return ReadLog(path, *read_delimited(paths, columns, ids, Layout(sep=sep), quiet), is_text=True, unread=unread)


def _paths(path: str) -> list[Path]:
    """The file itself, the files below a directory, or those that a pattern matches; in the order of their names."""
    if os.path.isdir(path):
        files = _files_below(Path(path))
        if not files:
            raise InputError(
                f"{path}: cannot be read (Is a directory without logs): expected {', '.join(PARQUET + TEXT)}"
            )
        return files
    if glob.has_magic(path) and not os.path.exists(path):
        matches = [Path(each) for each in sorted(glob.glob(path))]
        files = [file for each in matches for file in (_files_below(each) if each.is_dir() else [each])]
        if not files:
            raise InputError(f"{path}: no file matches this pattern: check the path")
        return files
    return [Path(path)]


def _files_below(folder: Path) -> list[Path]:
    """The logs in a directory and in those below it; names that begin with _ or . are a writer's own."""
    return [
        file
        for file in sorted(folder.rglob("*"))
        if _ends(file, PARQUET + TEXT)
        and file.is_file()
        and not any(part.startswith(("_", ".")) for part in file.relative_to(folder).parts)
    ]


def _partition_columns(path: str, paths: list[Path]) -> tuple[str, ...]:
    """The columns that the directories of a partitioned log are named after, as in day=0/part.parquet."""
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


def _ends(path: Path, suffixes: tuple[str, ...]) -> bool:
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
                raise InputError(f"{where}: column {name!r} stands {times} times: rename all but one")
            by_name[name] = _column_of(frame[name], name in ids)
    return ReadLog(where, by_name, [str(name) for name in names])


def _column_of(series: pd.Series, is_id: bool) -> Column:
    import pandas as pd

    if isinstance(series.dtype, pd.CategoricalDtype):
        values = series.cat.categories
        return Column(_array(values), series.cat.codes.to_numpy(dtype=np.int32))
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        series = series.dt.tz_convert(None)
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iufbM" and not is_id:
        return Column(series.to_numpy())
    if not is_id and pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_complex_dtype(series):
        return Column(series.to_numpy(dtype=np.float64, na_value=np.nan))
    codes, values = pd.factorize(series)
    return Column(_array(values), codes.astype(np.int32))


def _array(values: Any) -> np.ndarray:
    """Distinct values as an array of numbers, dates or objects."""
    array = np.asarray(values)
    return array.astype(object) if array.dtype.kind in "UT" else array
