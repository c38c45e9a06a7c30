"""Logs as DataFrames or files (CSV, Parquet, plain triplets) -> Partition."""

import csv
import itertools
import math
import numbers
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.data.ids import Ids
from dubnb.data.partition import PARTS, RANDOMIZED, Partition, Triplets

PAPER_SPLIT = (0.1, 0.1, 0.8)
FIRST_BIG_INT = 2**63  # ids are int64
EXACT_FLOAT = 2**53  # above it, whole numbers in a float column have lost digits
LONGEST_ID = 512  # one long id widens the whole table of ids
MOST_ROWS = 10_000_000  # of a triplet file, whose ids are row numbers: a larger one is not such a file
ROWS_AT_ONCE = 1_000  # small: measured 2.4 times as fast as 100,000, whose rows keep the garbage collector busy
FEWEST_RANDOM_ROWS = 3  # one for each of S_t, S_va and S_te

_WHOLE = re.compile(r"-?[1-9][0-9]*|0")
_MISSING_TEXT = ("", "nan", "NaN")
_TRUTH_TEXT = {"True": 1.0, "False": 0.0}


# ---- DataFrames ----------------------------------------------------------------------------------------------------


def from_frames(
    biased,
    random,
    *,
    user="user",
    item="item",
    label="label",
    weight=None,
    propensity=None,
    threshold=None,
    split=PAPER_SPLIT,
    split_seed=0,
    name="own data",
):
    """A Partition from a biased and a randomized log with original ids (int or str).

    `random` is one DataFrame, split into S_t, S_va and S_te by `split` after a permutation of its rows seeded with
    `split_seed` (0 on the paper's data gives the paper's split), or a mapping of ready-made splits {"S_t": ...,
    "S_va": ..., "S_te": ...}, the last two optional. `user`, `item`, `label` and `weight` name columns, and so does
    `propensity`, P(observed), of the biased log alone. With `threshold`, labels above it are positive; without, they
    must be 0 or 1.
    """
    roles = {"user": user, "item": item, "label": label} | ({} if weight is None else {"weight": weight})
    frames = _named_frames(biased, random)
    for log, frame in frames.items():
        _check_frame(frame, log, roles)
    if propensity is not None:
        _check_frame(biased, "biased", roles | {"propensity": propensity})
    if threshold is not None:
        threshold = _check.real("threshold", threshold, low=-math.inf)
    user_ids, users = _map_ids(frames, user)
    item_ids, items = _map_ids(frames, item)
    logs = {}
    for log, frame in frames.items():
        labels = _numbers(frame, log, label)
        if threshold is not None:
            labels = (labels > threshold).astype(np.float64)
        weights = np.ones(len(labels)) if weight is None else _weights(frame, log, weight)
        logs[log] = Triplets(users[log], items[log], labels, weights)
    options = {"user_ids": user_ids, "item_ids": item_ids, "name": name}
    if propensity is not None:
        options["propensities"] = _numbers(biased, "biased", propensity)
    if "random" in logs:
        return partition_of_logs(logs["biased"], logs["random"], split=split, split_seed=split_seed, **options)
    none = logs["biased"].take(slice(0))
    parts = {part: logs.get("biased" if part == "S_c" else part, none) for part in PARTS}
    return Partition(parts, (len(user_ids), len(item_ids)), **options)


def partition_of_logs(biased, random, *, split=PAPER_SPLIT, split_seed=0, user_ids, item_ids, **options):
    """A Partition from two logs (Triplets of row numbers, in log order), the randomized one split by `split`."""
    parts = split_log(_without_repeats(random, user_ids, item_ids), split, split_seed)
    shape = (len(user_ids), len(item_ids))
    return Partition({"S_c": biased, **parts}, shape, user_ids=user_ids, item_ids=item_ids, **options)


def split_log(log, split=PAPER_SPLIT, split_seed=0):
    """{"S_t": ..., "S_va": ..., "S_te": ...}: the rows of a permuted log, cut one after the other.

    The generator is NumPy's legacy one: with seed 0 and the 54,000 rows of Yahoo! R3 this is the paper's own split.
    """
    split_seed = _check.whole("split_seed", split_seed, low=0, high=2**32 - 1)
    n = len(log.users)
    ends = np.cumsum(_split_sizes(n, split))
    order = np.random.RandomState(split_seed).permutation(n)
    cuts = np.split(order, ends[:-1])
    return {part: log.take(rows) for part, rows in zip(RANDOMIZED, cuts, strict=True)}


def _split_sizes(n, split):
    """Rows of S_t, S_va, S_te: rounded shares of n; the last part takes the rest; no wanted part stays empty."""
    try:
        shares = [_check.real("split", share, high=1.0) for share in split]
    except TypeError:
        raise InputError(f"split={split!r} must be three shares of S_t, S_va and S_te, such as (.1, .1, .8)") from None
    if len(shares) != len(RANDOMIZED) or abs(sum(shares) - 1) > 1e-9 or shares[0] == 0:
        raise InputError(f"split={split!r} must be three shares of S_t, S_va and S_te that sum to 1, with S_t above 0")
    if n < FEWEST_RANDOM_ROWS:
        raise InputError(
            f"the randomized log has {n} distinct pair(s): a split needs at least {FEWEST_RANDOM_ROWS}; "
            'pass ready-made splits, random={"S_t": ...}, instead'
        )
    sizes = [max(1, round(share * n)) if share else 0 for share in shares]
    last = max(k for k, share in enumerate(shares) if share)
    sizes[last] = max(1, n - sum(sizes[:last]))
    sizes[int(np.argmax(sizes))] -= sum(sizes) - n  # raising a part to one row may have taken too many
    return sizes


def _without_repeats(log, user_ids, item_ids):
    """`log` without repeated pairs, in log order; must precede the split, which would scatter them over the parts."""
    keys = log.users * len(item_ids) + log.items
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) == len(keys):
        return log
    clash = np.flatnonzero(log.labels != log.labels[first[inverse]])
    if len(clash):
        row = clash[0]
        pair = f"user {user_ids.values[log.users[row]]}, item {item_ids.values[log.items[row]]}"
        raise InputError(f"randomized log: pair ({pair}) stands twice with different labels: keep one row per pair")
    warnings.warn(f"randomized log: {len(keys) - len(first)} repeated pairs with equal labels dropped", stacklevel=4)
    kept = np.sort(first)
    return log.take(kept)


def _named_frames(biased, random):
    """{"biased": frame, "random": frame}, or {"biased": frame, "S_t": frame, ...} of ready-made splits."""
    if not isinstance(random, Mapping):
        return {"biased": biased, "random": random}
    for part in random:
        _check.choice("part of random", part, RANDOMIZED)
    if "S_t" not in random:
        raise InputError(
            f"random holds {', '.join(random) or 'nothing'} but no S_t: the randomized training set is needed"
        )
    return {"biased": biased, **random}


def _check_frame(frame, log, roles):
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"{log} is a {type(frame).__name__}: pass a pandas DataFrame, or use read_log for files")
    there = [str(column) for column in frame.columns]
    for role, column in roles.items():
        found = sum(name is column or name == column for name in frame.columns)
        if found != 1:
            what = "is missing" if not found else f"stands {found} times"
            more = ", ..." if len(there) > 20 else ""
            raise InputError(
                f"{_where(frame, log)}: column {column!r} {what}: name the column with {role}=; "
                f"there are {', '.join(there[:20])}{more}"
            )
    if len(set(roles.values())) < len(roles):
        raise InputError(f"columns {roles} must be distinct: name each with user=, item=, label= and weight=")
    if not len(frame):
        raise InputError(f"{_where(frame, log)}: no rows: at least one is needed")


def _where(frame, log):
    """What a message calls this log: its file if it came from one."""
    return frame.attrs.get("source", log)


def _show(value):
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---- ids, labels and weights ---------------------------------------------------------------------------------------


def _map_ids(frames, column):
    """Ids over the union of all logs, and each log's row numbers."""
    distinct, codes = {}, {}
    for log, frame in frames.items():
        distinct[log], codes[log] = _distinct_ids(frame, log, column)
    logs = list(frames)
    kinds = {log: "int" if distinct[log].dtype.kind == "i" else "str" for log in logs}
    for log in logs[1:]:
        if kinds[log] != kinds[logs[0]]:
            raise InputError(
                f"column {column!r} is {kinds[logs[0]]} in {_where(frames[logs[0]], logs[0])} but {kinds[log]} in "
                f"{_where(frames[log], log)}: make ids int or str in both"
            )
    union = np.unique(np.concatenate(list(distinct.values())))
    return Ids(union), {log: np.searchsorted(union, distinct[log])[codes[log]] for log in logs}


def _distinct_ids(frame, log, column):
    """(distinct ids as int64 or '<U', code of each row); the checks run over the distinct ones only."""
    import pandas as pd

    codes, found = pd.factorize(frame[column])
    found = np.asarray(found)

    def refuse(code, reason):
        row = int(np.argmax(codes == code))
        value = _show(frame[column].iloc[row])
        raise InputError(f"{_where(frame, log)}: column {column!r}, row {row + 1}: id {value} {reason}")

    if (codes < 0).any():
        refuse(-1, "is missing: drop such rows or give them an id")
    if found.dtype.kind == "i":
        return found.astype(np.int64), codes
    if found.dtype.kind not in "ufOUT":
        refuse(0, f"is of type {frame[column].dtype}: make ids int or str")
    ids = found.tolist()
    for code, value in enumerate(ids):
        reason = _id_fault(value)
        if reason:
            refuse(code, reason)
        if isinstance(value, str) != isinstance(ids[0], str):
            refuse(code, f"and id {_show(ids[0])} mix int and str: make the whole column one of them")
    if isinstance(ids[0], str):
        return np.array(ids, dtype=np.str_), codes
    return np.array([int(value) for value in ids], dtype=np.int64), codes


def _id_fault(value):
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
        return None if -FIRST_BIG_INT <= value < FIRST_BIG_INT else "is outside int64 (2**63): make the ids str"
    if not float(value).is_integer():
        return "is not a whole number: make ids int or str"
    return (
        None if abs(value) < EXACT_FLOAT else "is a float of 2**53 or more, which loses digits: read ids as int or str"
    )


def _numbers(frame, log, column):
    """A column as finite float64; text is read as numbers, True and False as 1 and 0."""
    import pandas as pd

    series = frame[column]
    if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_complex_dtype(series):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        codes, distinct = pd.factorize(series)
        values = np.array([_number(value) for value in distinct] + [np.nan])[
            codes
        ]  # code -1, a missing one, is the last
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        value = _show(series.iloc[row])
        raise InputError(
            f"{_where(frame, log)}: column {column!r}, row {row + 1}: {value} is no finite number: correct or drop it"
        )
    return values


def _number(value):
    try:
        return _TRUTH_TEXT[value] if isinstance(value, str) and value in _TRUTH_TEXT else float(value)
    except (TypeError, ValueError):
        return math.nan


def _weights(frame, log, column):
    values = _numbers(frame, log, column)
    single = np.finfo(np.float32)
    fine = (values >= single.tiny) & (values <= single.max)
    if not fine.all():
        row = int(np.argmin(fine))
        raise InputError(
            f"{_where(frame, log)}: column {column!r}, row {row + 1}: weight {values[row]:g} must be above 0 and "
            "finite as float32: correct or drop it"
        )
    return values


# ---- files ---------------------------------------------------------------------------------------------------------


def read_log(biased_path, random_path, **columns):
    """A Partition from two files (CSV or Parquet); `columns` are the options of `from_frames`."""
    name = f"{Path(biased_path).name} + {Path(random_path).name}"
    return from_frames(read_table(biased_path), read_table(random_path), **{"name": name, **columns})


def read_table(path):
    """A DataFrame from a CSV file (comma or tab, by its header line) or a `.parquet` file.

    A CSV column is int if every cell is written as a plain whole number; otherwise it stays text, so that ids such as
    007 survive. `from_frames` reads labels and weights as numbers either way.
    """
    import pandas as pd

    path = Path(path)
    if path.suffix.lower() == ".parquet":
        frame = _read_parquet(path)
    else:
        frame = pd.DataFrame({name: _whole_or_text(*cells) for name, cells in _read_cells(path).items()})
    if not len(frame):
        raise InputError(f"{path}: no rows below the header: at least one is needed")
    frame.attrs["source"] = str(path)
    return frame


def _read_parquet(path):
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise InputError(
            f"{path}: Parquet needs pyarrow: pip install 'dubnb[parquet]', or save the log as CSV"
        ) from None
    import pandas as pd

    try:
        return pd.read_parquet(path, engine="pyarrow")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as Parquet ({reason}): check the file") from None


class Cells(NamedTuple):
    """A text column by its distinct cells: a log repeats few ids, so checks and conversions run over those alone."""

    codes: np.ndarray
    distinct: list


def _read_cells(path, names=None, delimiter=None):
    """{column name: Cells} of a text file; without `names` the first line is a header and tells the delimiter."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = _lines(file, path)
            if names is None:
                header = next(lines, None)
                if header is None or not header.strip():
                    raise InputError(f"{path}: empty: the first line must name the columns, such as user,item,label")
                delimiter = "\t" if "\t" in header else ","
                names = _header(header, delimiter, path)
                rows = _rows(lines, delimiter, len(names), path, lines_before=1)
            else:
                rows = _rows(lines, delimiter, len(names), path, lines_before=0)
            return dict(zip(names, _encode(rows, len(names)), strict=True))
    except UnicodeDecodeError:
        raise InputError(f"{path}, line {_undecodable_line(path)}: not UTF-8 text: save the file as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}): check the path") from None


def _lines(file, path):
    for number, line in enumerate(file, 1):
        if "\0" in line:
            raise InputError(
                f"{path}, line {number}: a NUL byte: this is no text file, or a damaged one; write it again"
            )
        yield line


def _header(line, delimiter, path):
    names = [name.strip() for name in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"{path}, line 1: column {twice[0]!r} stands twice: rename one")
    return names


def _rows(lines, delimiter, width, path, lines_before):
    """Rows of `width` cells; blank lines are skipped, any other width is an error."""
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            if len(row) == width:
                yield row
            elif row:
                raise InputError(
                    f"{path}, line {reader.line_num + lines_before}: {len(row)} cell(s) instead of {width}: "
                    "every line needs the same columns"
                )
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num + lines_before}: {error}: check the quotes") from None


def _encode(rows, width):
    tables = [{} for _ in range(width)]
    codes = [[np.empty(0, dtype=np.int64)] for _ in range(width)]
    while batch := list(itertools.islice(rows, ROWS_AT_ONCE)):
        for table, chunks, cells in zip(tables, codes, zip(*batch, strict=True), strict=True):
            numbered = (table.setdefault(cell, len(table)) for cell in cells)
            chunks.append(np.fromiter(numbered, dtype=np.int64, count=len(batch)))
    return [Cells(np.concatenate(chunks), list(table)) for chunks, table in zip(codes, tables, strict=True)]


def _whole_or_text(codes, distinct):
    """The column as int64 if every cell is a plain whole number (object if beyond int64), else as text."""
    values = np.empty(len(distinct), dtype=object)
    if distinct and all(map(_WHOLE.fullmatch, distinct)) and all(len(cell) < 100 for cell in distinct):
        values[:] = [int(cell) for cell in distinct]
        if all(-FIRST_BIG_INT <= value < FIRST_BIG_INT for value in values):
            values = values.astype(np.int64)
    else:
        values[:] = distinct
    return values[codes]


def _undecodable_line(path):
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return "?"


# ---- the public datasets' files ------------------------------------------------------------------------------------


def find_files(data_dir, kinds, dataset, source):
    """The first of `kinds`, pairs of file names (biased, random), that `data_dir` holds, and its number."""
    folder = Path(data_dir)
    for kind, names in enumerate(kinds):
        if all((folder / name).is_file() for name in names):
            return kind, [folder / name for name in names]
    wanted = ", or ".join(" and ".join(names) for names in kinds)
    state = "holds neither" if folder.is_dir() else "is no directory"
    raise InputError(f"{dataset}: {folder} {state}: expected {wanted} there; {source}")


def read_triplets(path, delimiter=",", first_id=0):
    """(users, items, ratings) of a file without header: row numbers counted from 0, ratings as float64."""
    import pandas as pd

    cells = _read_cells(path, names=("user", "item", "rating"), delimiter=delimiter)
    frame = pd.DataFrame({name: _whole_or_text(*column) for name, column in cells.items()})
    frame.attrs["source"] = str(path)
    if not len(frame):
        raise InputError(f"{path}: empty: expected lines of user, item, rating")
    for column in ("user", "item"):
        ids, codes = _distinct_ids(frame, str(path), column)
        if ids.dtype.kind == "i":
            fine = (ids >= first_id) & (ids < MOST_ROWS)
        else:
            fine = np.array([_WHOLE.fullmatch(cell) is not None for cell in ids])
        if not fine.all():
            row = int(np.argmin(fine[codes]))
            value = _show(frame[column].iloc[row])
            raise InputError(
                f"{path}, line {row + 1}: {column} {value} must be a whole number from {first_id} and below "
                f"{MOST_ROWS:,}: expected lines of user, item, rating"
            )
    rows = (frame[column].to_numpy(dtype=np.int64) - first_id for column in ("user", "item"))
    return (*rows, _numbers(frame, str(path), "rating"))


def partition_of_ratings(biased, random, shape, *, positive_above, first_id=0, split_seed=0, name):
    """A Partition from two logs (users, items, ratings) of row numbers; ids are the rows counted from `first_id`."""
    logs = [
        Triplets(users, items, (ratings > positive_above).astype(np.float64), np.ones(len(users)))
        for users, items, ratings in (biased, random)
    ]
    user_ids, item_ids = (Ids(np.arange(first_id, first_id + n)) for n in shape)
    return partition_of_logs(*logs, user_ids=user_ids, item_ids=item_ids, split_seed=split_seed, name=name)


def triplets_shape(*logs):
    """(users, items) that hold every row number in `logs`."""
    return tuple(max(int(log[side].max()) for log in logs) + 1 for side in (0, 1))
