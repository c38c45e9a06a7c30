"""A Partition whose S_c is larger than memory: its pairs lie in files, and are read by ranges of users.

Reading takes three passes, so that one file of the log, or one range of users, is in memory at a time:

    1  every file of the log: its cells are checked and stored as numbers, its distinct ids are added to those before
    2  every stored file: its rows are sorted into ranges of users, all files in their order
    3  every range: repeated pairs are merged, labels become 0/1, and pairs of the randomized log are removed

The rules and their messages are those of `table`. The randomized log, the ids and one number per user stay in memory.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import secrets
import shutil
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

try:
    import fcntl
except ModuleNotFoundError:  # other systems than POSIX have no such locks
    fcntl = None  # type: ignore[assignment]

from dubnb import _dask, _files
from dubnb._check import InputError, option
from dubnb.data import table
from dubnb.data.delimited import check_alike
from dubnb.data.ids import Ids, kind_of_ids
from dubnb.data.log import PARQUET, LogOptions, ReadLog, has_suffix, log_paths, open_files, partition_columns
from dubnb.data.pattern import PARTS, BiasedCounts, Triplets, checked_order, stored
from dubnb.data.rows import IMPRESSIONS, RANKS, LogRows, Repeats, Scale, merge_repeats, scale_of

ROWS_AT_ONCE = 1 << 21  # rows of S_c that are in memory at a time
FOLDER = "log-"  # prefix of the directories below parts_dir that hold the pairs of S_c
LOCK = "lock"
MANY_LEVELS = 1_000  # distinct labels: with more, grades are ranks
IN_MEMORY = ("propensity", "eligible", "stratum")  # options that need S_c in memory
RECORDING = threading.Lock()  # held while warnings are recorded
COLUMNS = ("users", "items", "labels", "weights", "grades", "times")  # of a log's rows


# ---- files ---------------------------------------------------------------------------------------------------------


class Files:
    """The files of one directory, which other processes and machines may see too."""

    def __init__(self, path: str):
        self.path = path

    def file(self, name: str) -> str:
        """The path of one file."""
        return os.path.join(self.path, name)

    def append(self, name: str, array: np.ndarray) -> None:
        """Add an array's bytes to a file; a full disk is an error here, and not later in a mapped file."""
        path = self.file(name)
        with _files.disk_errors(path), open(path, "ab") as file:
            file.write(np.ascontiguousarray(array).data)

    def write(self, name: str, array: np.ndarray) -> None:
        """Store an array's bytes; the file is whole or not there, also if two workers write it."""
        with _files.atomic_write(self.file(name), overwrite=True, sync=False) as file:
            file.write(np.ascontiguousarray(array).data)

    def read(self, name: str, dtype: Any, first: int = 0, last: int | None = None) -> np.ndarray:
        """The numbers from `first` to before `last` of a file."""
        kind = np.dtype(dtype)
        path, count = self.file(name), -1 if last is None else last - first
        try:
            array = np.fromfile(path, kind, count, offset=first * kind.itemsize)
        except OSError as error:
            raise InputError(
                f"{path!r} cannot be read ({error.strerror}): leave parts_dir alone, and run again"
            ) from None
        if last is not None and len(array) < count:
            raise InputError(f"{path!r} is cut short: leave parts_dir alone, and run again")
        return array

    def write_ids(self, name: str, ids: np.ndarray) -> None:
        """Store ids, with their type."""
        with _files.atomic_write(self.file(name), overwrite=True, sync=False) as file:
            np.save(file, ids, allow_pickle=False)

    def read_ids(self, name: str) -> np.ndarray:
        """Stored ids."""
        ids: np.ndarray = np.load(self.file(name), allow_pickle=False)
        return ids

    def map(self, name: str, dtype: Any) -> np.ndarray:
        """A file as a read-only memory map."""
        path = self.file(name)
        if not os.path.exists(path) or not os.path.getsize(path):
            return np.zeros(0, dtype)
        return np.asarray(np.memmap(path, dtype, "r"))

    def remove(self, *names: str) -> None:
        """Remove files; arrays that are mapped from them stay usable."""
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(self.file(name))


class LogFolder(Files):
    """A directory of files below `parts_dir`, which lasts as long as a Partition of this process uses it.

    A forked child that ends does not remove it. Directories that a killed process has left behind are removed.
    """

    def __init__(self, parts_dir: Any):
        self.parts_dir = _files.writable_directory(parts_dir, "parts_dir")
        for name in os.listdir(self.parts_dir):
            if name.startswith(FOLDER) and not _in_use(os.path.join(self.parts_dir, name)):
                shutil.rmtree(os.path.join(self.parts_dir, name), ignore_errors=True)
        super().__init__(os.path.join(self.parts_dir, f"{FOLDER}{secrets.token_hex(8)}"))
        unlocked = os.path.join(self.parts_dir, f"new-{os.path.basename(self.path)}") if fcntl else self.path
        os.mkdir(unlocked)
        self.lock = open(os.path.join(unlocked, LOCK), "ab")  # noqa: SIM115 - stays open as long as it is used
        _lock(self.lock)
        if unlocked != self.path:  # another process may remove what has this name and no lock
            os.rename(unlocked, self.path)
        self.close = weakref.finalize(self, _remove, self.path, self.lock, os.getpid())


def _lock(file: Any) -> bool:
    """Whether this process now has a file's lock."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _in_use(folder: str) -> bool:
    """Whether a living process has the lock of a directory."""
    try:
        with open(os.path.join(folder, LOCK), "ab") as file:
            return not _lock(file)
    except OSError:
        return False


def _remove(folder: str, lock: Any, owner: int) -> None:
    lock.close()
    if os.getpid() != owner:  # a fork of the owner
        return
    gone = f"{folder}-gone"
    # A worker may still write. Under the new name it can at most open the file that it had looked up already.
    with contextlib.suppress(OSError):
        os.rename(folder, gone)
    for path in (gone, gone, folder):
        shutil.rmtree(path, ignore_errors=True)


class PairFiles:
    """The pairs of S_c in CSR order, a file for each column."""

    def __init__(self, folder: LogFolder):
        self.folder = folder
        self.indptr = np.zeros(1, np.int64)
        self.weighed = self.graded = False
        self.of_users: list[np.ndarray] = []  # pairs and positives of the users of each range
        self.of_items: Any = 0  # pairs and positives of all items

    def add(self, pairs: Triplets, n_users: int, n_items: int) -> None:
        """Add the pairs of the next n_users users, who are counted from 0."""
        liked = pairs.labels > 0
        self.of_users.append(
            np.stack([np.bincount(rows, minlength=n_users) for rows in (pairs.users, pairs.users[liked])])
        )
        self.of_items += np.stack([np.bincount(rows, minlength=n_items) for rows in (pairs.items, pairs.items[liked])])
        self.folder.append("items", pairs.items)
        self.folder.append("labels", pairs.labels.astype(np.int8))
        self.folder.append("weights", pairs.weights)
        self.weighed = self.weighed or bool((pairs.weights != 1).any())
        if pairs.grades is not None:
            self.folder.append("grades", pairs.grades)

    def end(self, graded: bool) -> None:
        """Count the pairs and remove what S_c does not have."""
        self.graded = graded
        self.folder.remove(*([] if self.weighed else ["weights"]), *([] if graded else ["grades"]))
        self.of_users = [np.concatenate(self.of_users, axis=1)]
        self.indptr = np.concatenate([[0], np.cumsum(self.of_users[0][0])])

    def biased_counts(self) -> BiasedCounts:
        """The counts of pairs and positives."""
        (of_users,), of_items = self.of_users, self.of_items
        return BiasedCounts(of_users[0], of_items[0], of_users[1], of_items[1])

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Ranges of users, the first and the one after the last, that have about ROWS_AT_ONCE pairs each."""
        return itertools.pairwise(_bounds(self.indptr, ROWS_AT_ONCE))

    def range(self, first: int, last: int) -> PairRange:
        """The users from `first` to before `last`."""
        return PairRange(Files(self.folder.path), self.indptr[first : last + 1], self.weighed, self.graded)

    def read(self, first: int, last: int) -> Triplets:
        """The pairs of the users from `first` to before `last`."""
        pairs = self.range(first, last).read()
        return pairs._replace(users=pairs.users + np.int32(first))


class PairRange(NamedTuple):
    """The pairs of a range of users in files, which another process can read too."""

    files: Files
    indptr: np.ndarray
    weighed: bool
    graded: bool

    def read(self) -> Triplets:
        """The pairs; users are counted from 0."""
        low, high = int(self.indptr[0]), int(self.indptr[-1])
        read = functools.partial(self.files.read, first=low, last=high)
        return Triplets(
            np.repeat(np.arange(len(self.indptr) - 1, dtype=np.int32), np.diff(self.indptr)),
            read("items", np.int32),
            read("labels", np.int8).astype(np.float32),
            read("weights", np.float32) if self.weighed else np.ones(high - low, np.float32),
            read("grades", np.float32) if self.graded else None,
        )


def _bounds(indptr: np.ndarray, rows: int) -> list[int]:
    """The first user of each range of about `rows` rows, and the number of users; a range has one user at least."""
    bounds, n_users = [0], len(indptr) - 1
    while bounds[-1] < n_users:
        last = int(np.searchsorted(indptr, indptr[bounds[-1]] + rows, "right")) - 1
        bounds.append(min(max(last, bounds[-1] + 1), n_users))
    return bounds


# ---- reading -------------------------------------------------------------------------------------------------------


Each = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterator[Any]]  # a task's results, in order


class SpilledFile(NamedTuple):
    """One file of the log, stored as numbers; ids are places in the file's own distinct ids."""

    number: int
    where: str
    n_rows: int  # without bad ones
    n_bad: int
    lacking: dict[str, int]  # bad rows by column
    names: tuple[str, ...]  # of its columns
    dtypes: dict[str, np.dtype]  # of what is stored
    first: ReadLog | None  # its first row
    labelled: bool
    levels: np.ndarray | None  # distinct labels
    moments: list[np.ndarray]  # times that say as much as all
    said: list[tuple[str, type[Warning]]]  # warnings
    refused: tuple[list[str], dict[str, str]] | None = None  # all its columns, and by role those that it must have


@contextlib.contextmanager
def _recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """A list of the block's warnings. One thread at a time: Python records those of all threads of a worker."""
    with RECORDING, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def spill_file(
    files: Files, number: int, path: str, unread: tuple[str, ...], label_elsewhere: bool, options: LogOptions
) -> SpilledFile:
    """The first pass over one file: check its cells and store them."""
    with _recorded_warnings() as caught:
        log = open_files(path, set(options.roles().values()), {options.user, options.item}, options.sep, options.quiet)
        log = ReadLog(log.where, log.columns, log.names, log.is_text, unread)
        required = {"user": options.user, "item": options.item}
        if options.label is not None and not label_elsewhere:
            required["label"] = options.label
        if not all(name in log.columns for name in required.values()):  # of this file, or of all: the driver sees
            nothing = SpilledFile(number, log.where, 0, 0, {}, tuple(log.columns), {}, None, True, None, [], [])
            return nothing._replace(refused=(log.names, required))
        table.warn_of_unread_columns(log, options)
        table.warn_of_positions(log, options)
        file = _spilled(files, number, log, options)
    return file._replace(said=[(str(each.message), each.category) for each in caught])


def _spilled(files: Files, number: int, log: ReadLog, options: LogOptions) -> SpilledFile:
    n_bad, lacking, names = 0, dict[str, int](), tuple(log.columns)
    nothing = SpilledFile(number, log.where, 0, 0, lacking, names, {}, None, True, None, [], [])
    if not len(log):
        return nothing
    if options.drop_bad:
        kept, lacking = table.unreadable_rows(log, options)
        n_bad = int(np.count_nonzero(~kept))
        if not kept.any():
            return nothing._replace(n_bad=n_bad, lacking=dict(lacking))
        log = log if kept.all() else table.without_rows(log, kept, options)
    rows = table.rows_of_log(log, options)
    cells = {name: column.take(np.arange(1)) for name, column in log.columns.items()}
    first = ReadLog(log.where, cells, log.names, log.is_text, log.unread)
    for side, ids in (("user", rows.user_ids), ("item", rows.item_ids)):
        files.write_ids(f"{number}-{side}-ids.npy", ids)
    files.write(f"{number}-counts", np.bincount(rows.users, minlength=len(rows.user_ids)))
    moments: list[np.ndarray] = []
    if rows.times is not None:
        moments = _moments(rows.times)
        rows = rows._replace(times=rows.times.astype(np.int64) if rows.times.dtype.kind == "M" else rows.times)
    dtypes = {}
    for name in COLUMNS:
        values = getattr(rows, name)
        if values is not None:
            files.write(f"{number}-{name}", values)
            dtypes[name] = values.dtype
    levels = np.unique(rows.labels) if options.threshold is not None and rows.labelled else None
    return SpilledFile(
        number,
        log.where,
        len(rows.users),
        n_bad,
        dict(lacking),
        names,
        dtypes,
        first,
        rows.labelled,
        levels,
        moments,
        [],
    )


def _moments(times: np.ndarray) -> list[np.ndarray]:
    """The least and the greatest time of each unit, see `table.put_on_one_clock`."""
    if times.dtype.kind == "M":
        return [times[:1]]
    moments, limits = [], [-np.inf, *sorted(limit for limit, _ in table.EPOCH_UNITS), np.inf]
    for low, high in itertools.pairwise(limits):
        own = times[(times >= low) & (times < high)]
        if len(own):
            moments.append(np.array([own.min(), own.max()]))
    return moments


class Spilled:
    """The files of the biased log as numbers, and what all of them together have."""

    def __init__(self, folder: LogFolder, where: str, options: LogOptions):
        self.folder, self.where, self.options = folder, where, options
        self.files: list[SpilledFile] = []
        self.ids: dict[str, list[np.ndarray]] = {"user": [], "item": []}  # sorted; the first has most of them
        self.levels: list[np.ndarray] = []  # distinct labels, or more than MANY_LEVELS of them
        self.moments: list[np.ndarray] = []
        self.n_rows, self.n_bad, self.lacking = 0, 0, dict[str, int]()
        self.first: ReadLog | None = None
        self.names: tuple[str, ...] = ()  # of the columns
        self.labelled = True

    def add(self, file: SpilledFile) -> None:
        """Add the facts of one file; all files must have the same columns, of the same types."""
        if self.names:
            check_alike(file.where, file.names, self.names)
        self.names = file.names
        self.n_rows += file.n_rows + file.n_bad
        self.n_bad += file.n_bad
        for name, count in file.lacking.items():
            self.lacking[name] = self.lacking.get(name, 0) + count
        if not file.n_rows:
            return
        self.first = self.first or file.first
        self.labelled = file.labelled
        for side in ("user", "item"):
            self._add_ids(side, self.folder.read_ids(f"{file.number}-{side}-ids.npy"), file)
        if self.moments and file.moments and (self.moments[0].dtype.kind == "M") != (file.moments[0].dtype.kind == "M"):
            self._refuse(file, str(self.options.timestamp))
        self.moments += file.moments
        if file.levels is not None and sum(map(len, self.levels)) <= MANY_LEVELS:
            self.levels = [np.unique(np.concatenate([*self.levels, file.levels]))]
        self.files.append(file._replace(first=None))

    def _refuse(self, file: SpilledFile, name: str) -> None:
        text = f"column {name!r} is of another type than in the files before"
        raise InputError(f"{file.where}: {text}: make them alike")

    def _add_ids(self, side: str, new: np.ndarray, file: SpilledFile) -> None:
        """Add distinct ids; they are merged when the new ones are as many as the old, which takes n log n in all."""
        known = self.ids[side]
        if known and kind_of_ids(known[0]) != kind_of_ids(new):
            self._refuse(file, getattr(self.options, side))
        known.append(new)
        if len(known) > 2 and sum(map(len, known[1:])) > len(known[0]):
            self.ids[side] = [self.distinct(side)]

    def distinct(self, side: str) -> np.ndarray:
        """All ids of one side, sorted."""
        alike = table.of_one_dtype(dict(enumerate(map(np.asarray, self.ids[side]))), getattr(self.options, side))  # type: ignore[arg-type]
        return np.unique(np.concatenate(list(alike.values())))

    def dtypes(self) -> dict[str, np.dtype]:
        """The dtype of each column of all files together."""
        names = self.files[0].dtypes
        return {name: np.result_type(*(file.dtypes[name] for file in self.files)) for name in names}


def read_stored(
    biased: Any, random: Any, parts_dir: Any, options: LogOptions, scheduler: Any = None
) -> tuple[dict[str, Any], PairFiles]:
    """The arguments of `Partition` with a few pairs of S_c, and all of S_c in files below `parts_dir`.

    With a scheduler, the workers of its cluster read the files, if they see these and `parts_dir`.
    """
    table.check_options(options)
    if not isinstance(biased, str | os.PathLike):
        raise InputError(
            f"biased is a {type(biased).__name__}, which is in memory already: pass the path of its files, or leave "
            f"{option('parts_dir', '')} out"
        )
    for name in IN_MEMORY:
        if getattr(options, name) is not None:
            raise InputError(f"{option(name, '')} needs S_c in memory: leave it or {option('parts_dir', '')} out")
    if options.split == "time":
        raise InputError(f"a split by time needs S_c in memory: leave it or {option('parts_dir', '')} out")
    tables = table.ready_made(random) if isinstance(random, Mapping) else {"random": random}
    opened = {called: table.open_table(each, called, options) for called, each in tables.items()}
    path = os.fspath(biased)
    folder = LogFolder(parts_dir)
    try:
        directories = [folder.path]
        if scheduler is not None:
            path = os.path.abspath(path)  # workers may run in another directory
            directories += sorted({os.path.dirname(file) for file in log_paths(path)})
        with _dask.tasks(scheduler, directories) as each:
            return _read(path, random, tables, opened, folder, options, each)
    except BaseException:
        folder.close()
        raise


def _read(
    biased: str,
    random: Any,
    tables: Mapping[str, Any],
    opened: dict[str, ReadLog],
    folder: LogFolder,
    options: LogOptions,
    each: Each,
) -> tuple[dict[str, Any], PairFiles]:
    spilled, path = _spill(biased, opened, folder, options, each)
    assert spilled.first is not None
    table.check_threshold({"biased": spilled.first} | opened, {"biased": path, **tables}, options)
    logs = {"biased": _row_for_each_id(spilled, biased)}
    for called in tables:
        log = opened.pop(called)
        table.warn_of_unread_propensities(log, options)
        table.warn_of_unread_columns(log, options, spilled.first.names)
        table.warn_of_positions(log, options)
        log = table.without_bad_rows(log, options) if options.drop_bad else log
        logs[called] = table.rows_of_log(log, options)._replace(
            propensities=table.propensities_of(log, options, called)
        )
    table.put_on_one_clock(logs, options)
    labels = [np.concatenate(spilled.levels)] if spilled.levels else []
    labels += [log.labels for called, log in logs.items() if called != "biased" and log.labelled]
    logs = table.with_shared_ids(logs, options)
    scale = scale_of(labels, options.threshold) if labels else Scale()
    if scale.kind == RANKS:
        raise InputError(
            "labels of more than 21 levels become ranks, which needs S_c in memory: leave "
            f"{option('parts_dir', '')} out"
        )
    rule = options.duplicates or IMPRESSIONS
    parts: dict[str, LogRows] = {}
    facts = None
    for called in tables:
        rows = logs[called]
        own = scale if rows.labelled else Scale()
        merged = table.merged(rows, rule, own, shown=True)
        rows = table.with_labels(merged, own, scale.kind is not None, rule, options)
        if called == "random":
            randomized, _, facts = table.split_random_log(rows, options)
            parts |= randomized
        else:
            parts[called] = rows
    shared = logs["biased"]
    files = PairFiles(folder)
    parts["S_c"] = _sort_and_merge(spilled, shared, files, parts, scale, options, each)
    parts, grading = table.with_grades_in_all(parts, scale, rule, options)
    files.end(parts["S_c"].grades is not None)
    arguments = {
        "triplets": {part: parts[part].feedback(part) if part in parts else ([], [], []) for part in PARTS},
        "shape": shared.shape,
        "user_ids": Ids(shared.user_ids),
        "item_ids": Ids(shared.item_ids),
        "split": facts,
        "grading": grading,
        "name": options.name or table.name_of([biased, random]),
    }
    return arguments, files


def _spill(
    biased: str, randomized: Mapping[str, ReadLog], folder: LogFolder, options: LogOptions, each: Each
) -> tuple[Spilled, Path]:
    """The first pass over the biased log, and the path of a file with rows."""
    paths = log_paths(biased)
    unread = partition_columns(biased, paths)
    if len({has_suffix(path, PARQUET) for path in paths}) > 1:
        raise InputError(f"{biased}: Parquet and text files together: keep them in directories of their own")
    spilled, filled, refused, said = Spilled(folder, biased, options), None, None, dict[str, type[Warning]]()
    elsewhere = any(options.label in each.columns for each in randomized.values())
    plain = Files(folder.path)
    calls = [(plain, number, str(path), unread, elsewhere, options) for number, path in enumerate(paths)]
    for path, file in zip(paths, each(spill_file, calls), strict=True):
        if file.n_rows or file.n_bad or file.refused:
            spilled.add(file)
            filled = filled or path
            refused = refused or file.refused
        for message, category in file.said:  # a warning that every file would give is given once, for the whole log
            said.setdefault(message.replace(str(path), biased), category)
    for message, category in said.items():
        warnings.warn(message, category, stacklevel=4)
    if refused is not None:
        names, required = refused
        for role, name in required.items():
            if name not in spilled.names:  # the message lists them
                ReadLog(biased, {}, names, unread=unread).column(name, role)
    if filled is None:
        raise InputError(f"{biased}: no rows below the header: at least one is needed")
    if spilled.n_bad:
        text = table.dropped_text(spilled.n_rows, spilled.n_bad, spilled.lacking)
        if not spilled.files:
            raise InputError(f"{biased}: {text}): no row is left; check the columns")
        warnings.warn(f"{biased}: {text}, in this order) and were dropped", stacklevel=4)
    return spilled, filled


def _row_for_each_id(spilled: Spilled, where: str) -> LogRows:
    """Rows that have every id of the biased log once, in place of its rows."""
    users, items = (spilled.distinct(side) for side in ("user", "item"))
    times = np.concatenate(spilled.moments) if spilled.moments else None
    user_rows, item_rows = (np.arange(len(ids), dtype=np.int32) for ids in (users, items))
    return LogRows(user_rows, item_rows, np.zeros(0), users, items, times=times, labelled=spilled.labelled, where=where)


def _sort_and_merge(
    spilled: Spilled,
    shared: LogRows,
    files: PairFiles,
    randomized: Mapping[str, LogRows],
    scale: Scale,
    options: LogOptions,
    each: Each,
) -> LogRows:
    """The second and third pass; returns a few rows of S_c and all that the randomized log has too."""
    n_users, n_items = shared.shape
    counts, folder, dtypes = np.zeros(n_users, np.int64), files.folder, spilled.dtypes()
    plain = Files(folder.path)
    for file in spilled.files:
        counts[_rows_of_ids(plain, file, "user", shared.user_ids)] += folder.read(f"{file.number}-counts", np.int64)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    bounds = _bounds(indptr, ROWS_AT_ONCE)
    del counts
    plain.write_ids("user-ids.npy", shared.user_ids)
    plain.write_ids("item-ids.npy", shared.item_ids)
    cuts, ends = np.array(bounds[1:-1], np.int64), []
    for file, own in zip(
        spilled.files, each(sort_file, [(plain, f, cuts, dtypes) for f in spilled.files]), strict=True
    ):
        ends.append(own)
        names = (*file.dtypes, "counts", "user-ids.npy", "item-ids.npy")
        folder.remove(*(f"{file.number}-{name}" for name in names))
    keys = np.sort(np.concatenate([log.users.astype(np.int64) * n_items + log.items for log in randomized.values()]))
    own_scale = scale if spilled.labelled else Scale()
    rules = RangeRules(options.duplicates or IMPRESSIONS, own_scale, scale.kind is not None, options)
    calls = []
    for number, (first, last) in enumerate(itertools.pairwise(bounds)):
        places = [
            (file.number, *own[number : number + 2].tolist()) for file, own in zip(spilled.files, ends, strict=True)
        ]
        of_range = slice(*np.searchsorted(keys, [first * n_items, last * n_items]))
        some = shared._replace(users=shared.users[:0], items=shared.items[:0], user_ids=shared.user_ids[first:last])
        calls.append((plain, places, dtypes, some, first, keys[of_range], rules))
    kept: list[LogRows] = []
    repeats = Repeats()
    for (first, last), (pairs, some, here, said) in zip(
        itertools.pairwise(bounds), each(merge_range, calls), strict=True
    ):
        for message, category in said:
            warnings.warn(message, category, stacklevel=4)
        repeats += here
        if pairs is not None:
            files.add(pairs, last - first, n_items)
            kept.append(some._replace(users=some.users + first, user_ids=shared.user_ids))
    folder.remove(*(f"{file.number}-sorted-{name}" for file in spilled.files for name in dtypes))
    folder.remove("user-ids.npy", "item-ids.npy")
    repeats.report(spilled.where, int(indptr[-1]))
    together: dict[str, Any] = {}
    for name in ("users", "items", "labels", "weights", "grades"):
        columns_here = [getattr(log, name) for log in kept]
        lacking = any(column is None for column in columns_here)
        together[name] = None if lacking else np.concatenate(columns_here)
    return kept[0]._replace(**together, times=None)


class RangeRules(NamedTuple):
    """How the rows of a range become pairs."""

    duplicates: str
    scale: Scale
    scaled: bool  # whether labels become 0/1 by a scale
    options: LogOptions


def merge_range(
    files: Files,
    places: Sequence[tuple[int, int, int]],
    dtypes: Mapping[str, np.dtype],
    shared: LogRows,
    first: int,
    keys: np.ndarray,
    rules: RangeRules,
) -> tuple[Triplets | None, LogRows | None, Repeats, list[tuple[str, type[Warning]]]]:
    """The third pass over a range of users: (its pairs of S_c, a few of its rows, repeats, warnings).

    `places`: each file's number, and where the range begins and ends in it. `keys`: the range's pairs of the
    randomized log. `shared` has the ids; users are counted from `first`.
    """
    columns: dict[str, Any] = {}
    for name, dtype in dtypes.items():
        own = [files.read(f"{number}-sorted-{name}", dtype, *ends) for number, *ends in places]
        columns[name] = np.concatenate(own)
    with _recorded_warnings() as caught:
        rows = shared._replace(**{"weights": None, "grades": None, "times": None} | columns)
        rows = rows._replace(users=rows.users - first)
        log, here = merge_repeats(rows, rules.duplicates, rules.scale)
        log = table.with_labels(log, rules.scale, rules.scaled, rules.duplicates, rules.options)
        if log.grades is None:
            log = log._replace(grades=log.labels.astype(np.float32))
        if here.refused:
            return None, None, here, []
        given = Triplets(log.users, log.items, log.labels, log.weights, log.grades)  # type: ignore[arg-type]
        order = checked_order(given, shared.shape, "S_c", _PairNames(log))
        pairs = stored(given, order)
    both = np.isin((pairs.users.astype(np.int64) + first) * len(shared.item_ids) + pairs.items, keys)
    taken = log.take(order)
    some = taken.take(_rows_for_checks(taken, both))._replace(user_ids=shared.user_ids[:0])
    return pairs.take(~both), some, here, [(str(each.message), each.category) for each in caught]


class _PairNames(NamedTuple):
    """Names a pair of a range in messages."""

    log: LogRows

    def __call__(self, user: int, item: int) -> str:
        return f"pair (user {self.log.user_ids[user]}, item {self.log.item_ids[item]})"


def _rows_for_checks(log: LogRows, both: np.ndarray) -> np.ndarray:
    """The rows whose pairs the randomized log has too, one other row, and the rows that checks of grades need."""
    rows, grades = [np.flatnonzero(both), np.flatnonzero(~both)[:1]], np.asarray(log.grades)
    for label in (0, 1):
        own = np.flatnonzero(log.labels == label)
        if len(own):
            rows.append(own[[np.argmin(grades[own]), np.argmax(grades[own])]])
    rows.append(np.flatnonzero((grades > 0) & (grades < 1))[:1])
    return np.unique(np.concatenate(rows))


def _rows_of_ids(files: Files, file: SpilledFile, side: str, shared: np.ndarray) -> np.ndarray:
    """The row number of each distinct id of one file."""
    ids = files.read_ids(f"{file.number}-{side}-ids.npy")
    return np.searchsorted(shared, ids.astype(shared.dtype, copy=False)).astype(np.int32)


def sort_file(files: Files, file: SpilledFile, cuts: np.ndarray, dtypes: Mapping[str, np.dtype]) -> np.ndarray:
    """The second pass over one file: sort its rows by ranges of users; returns where each range begins."""
    columns = {name: files.read(f"{file.number}-{name}", dtype) for name, dtype in file.dtypes.items()}
    for side in ("user", "item"):
        shared = files.read_ids(f"{side}-ids.npy")
        columns[f"{side}s"] = _rows_of_ids(files, file, side, shared)[columns[f"{side}s"]]
    ranges = np.searchsorted(cuts, columns["users"], "right").astype(np.uint16 if len(cuts) < 2**16 else np.int64)
    order = np.argsort(ranges, kind="stable")
    for name, values in columns.items():
        files.write(f"{file.number}-sorted-{name}", values[order].astype(dtypes[name], copy=False))
    return np.concatenate([[0], np.cumsum(np.bincount(ranges, minlength=len(cuts) + 1))])
