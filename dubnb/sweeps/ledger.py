"""The ledger of finished trials: an SQLite file that only the driver writes, and a lock that only one driver can hold.

The driver is the process that runs a sweep and hands trials to workers. WAL with synchronous=FULL keeps every recorded
trial through a crash. The key of a trial is its primary key: recording it twice changes nothing, and a trial that is
done never changes again. SQLite detects damage to its own structure only, so every row has a checksum. A row whose
checksum does not match counts as not recorded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from dubnb import _files
from dubnb._check import InputError
from dubnb._files import quote_path
from dubnb.sweeps.trial import DONE, Row, SweepError

LEDGER, LOCK = "ledger.sqlite", "lock.sqlite"
FORMAT = 4
LOCK_PATIENCE = 1.0  # seconds; `in_use` takes the lock for an instant
COLUMNS = (
    "key",
    "method",
    "params",
    "seed",
    "status",
    "reason",
    "metrics",
    "protocol",
    "epochs_run",
    "seconds",
    "cpu_seconds",
    "peak_mb",
    "attempts",
    "trained",
    "reused",
    "saved_seconds",
    "data",
    "versions",
    "git",
)
ADDED = ("cpu_seconds",)  # columns that a ledger of format 3 does not have: it keeps its format, without them
FORMATS = {4: COLUMNS} | dict.fromkeys((3, 2), tuple(name for name in COLUMNS if name not in ADDED))
RESUMED = (4, 3)  # metrics of format 2 counted pairs that are in both logs: its trials can be read, not added to
JSON_COLUMNS = ("params", "metrics", "versions")


ABOUT = "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID"


def tables_of(columns: tuple[str, ...]) -> dict[str, str]:
    """The statements that make the tables of a ledger with these columns of trials."""
    kept = ", ".join((*columns[1:], "checksum"))
    return {"about": ABOUT, "trials": f"CREATE TABLE trials (key TEXT PRIMARY KEY NOT NULL, {kept}) WITHOUT ROWID"}


def check_directory(out: str | os.PathLike[str]) -> None:
    """Check that `out` is a sweep or can become one; nothing is written."""
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise InputError(f"out={out!r} must be the path of a directory for the sweep")
    status = _files.stat_or_none(out)
    if (status is None and os.path.lexists(out)) or (status is not None and not stat.S_ISDIR(status.st_mode)):
        raise InputError(f"{quote_path(out)} is a file: a sweep needs a directory of its own; choose another --out")
    if status is not None and os.listdir(out) and not any(os.path.exists(os.path.join(out, f)) for f in (LEDGER, LOCK)):
        raise InputError(f"{quote_path(out)} is a directory with other files in it, not a sweep: choose another --out")
    for name in (LEDGER, LOCK):
        _check_regular(os.path.join(out, name))


def _check_regular(path: str) -> None:
    """Refuse a FIFO, on which opening would block, and a directory."""
    status = _files.stat_or_none(path)
    if status is not None and not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise InputError(f"{quote_path(path)} is {kind}: a sweep keeps a file of that name; choose another --out")


@contextlib.contextmanager
def only_driver(out: str) -> Iterator[None]:
    """Hold the directory's lock; the operating system frees it when the process ends or is killed."""
    with _readable_errors(out):
        connection = sqlite3.connect(os.path.join(out, LOCK), timeout=LOCK_PATIENCE, isolation_level=None)
    try:
        with _readable_errors(out):
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                raise InputError(
                    f"{quote_path(out)} is in use by another sweep: wait until it ends, or choose another --out"
                ) from None
        yield
    finally:
        connection.close()


def in_use(out: str) -> bool:
    """Whether a driver holds the directory's lock."""
    path = os.path.join(out, LOCK)
    if not os.path.exists(path):
        return False
    connection = sqlite3.connect(f"file:{_quoted(path)}?mode=rw", uri=True, timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        return False
    except sqlite3.OperationalError as error:
        return "locked" in str(error)  # a caller who may only read gets another error
    except sqlite3.DatabaseError:  # not an SQLite file, so no driver holds it
        return False
    finally:
        connection.close()


class Ledger:
    """An open ledger. `identity` is what all its trials have in common; without it the ledger is read-only."""

    def __init__(self, out: str | os.PathLike[str], identity: Mapping[str, Any] | None = None):
        self.out, path = os.fspath(out), os.path.join(out, LEDGER)
        self.format = FORMAT
        if identity is None and not os.path.exists(path):
            raise InputError(f"{quote_path(out)} is not a sweep: it has no {LEDGER}")
        _check_regular(path)
        mode = "ro" if identity is None else "rwc"
        with _readable_errors(self.out):
            self.connection = sqlite3.connect(
                f"file:{_quoted(path)}?mode={mode}", uri=True, timeout=30, isolation_level=None
            )
        try:
            with _readable_errors(self.out):
                self._open(identity)
        except BaseException:
            self.connection.close()
            raise

    def _open(self, identity: Mapping[str, Any] | None) -> None:
        (state,) = self.connection.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)
        is_new = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        if not is_new:
            self._check_tables()
        if identity is None:
            if is_new:
                raise InputError(f"{quote_path(self.out)} holds no sweep yet: its {LEDGER} is empty")
            return
        if self.format not in RESUMED:
            self._refuse_format(self.format)
        if is_new:
            self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")
        with self._transaction():
            if is_new:
                for statement in tables_of(COLUMNS).values():
                    self.connection.execute(statement)
            for name, value in {"format": self.format, **identity}.items():
                self._check_same(name, value)

    def _check_tables(self) -> None:
        """Find the format; a ledger with an unknown format, or without that format's tables, is refused."""
        number = None
        with contextlib.suppress(sqlite3.Error, ValueError, TypeError):
            number = json.loads(self.connection.execute("SELECT value FROM about WHERE name = 'format'").fetchone()[0])
        if type(number) is int and number not in FORMATS:
            self._refuse_format(number)
        tables = dict(self.connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
        for known, columns in FORMATS.items():
            if tables == tables_of(columns) and number in (None, known):
                self.format = known
                return
        raise InputError(
            f"{LEDGER} in {quote_path(self.out)} is not a sweep's ledger, or is damaged (other tables): choose "
            "another --out"
        )

    def _refuse_format(self, number: int) -> NoReturn:
        age, remedy = ("a newer", "upgrade dubnb") if number > FORMAT else ("an older", "choose another --out")
        raise InputError(f"the ledger in {quote_path(self.out)} is of {age} dubnb (format {number}): {remedy}")

    def _check_same(self, name: str, value: Any) -> None:
        text = json.dumps(value)
        self.connection.execute(
            "INSERT OR IGNORE INTO about VALUES (?, ?, ?)", (name, text, _hash_of_row([name, text]))
        )
        stored = self.about(name)
        if stored != value:
            raise InputError(
                f"{quote_path(self.out)} was made with {name} {stored!r}, not {value!r}: use that, or choose "
                "another --out"
            )

    def about(self, name: str) -> Any:
        """Return a stored fact about the sweep, or None."""
        with _readable_errors(self.out):
            row = self.connection.execute("SELECT value, checksum FROM about WHERE name = ?", (name,)).fetchone()
            if row and row[1] != _hash_of_row([name, row[0]]):
                raise sqlite3.DatabaseError(f"the checksum of {name!r} does not match")
        return json.loads(row[0]) if row else None

    def note(self, name: str, value: Any) -> None:
        """Store a fact about the sweep, such as its number of trials; it replaces an earlier value."""
        text = json.dumps(value)
        with _readable_errors(self.out), self._transaction():
            values = (name, text, _hash_of_row([name, text]))
            self.connection.execute("INSERT OR REPLACE INTO about VALUES (?, ?, ?)", values)

    def record(self, row: Row) -> None:
        """Store one finished trial ({column: value}); after this returns, a crash does not lose it."""
        columns = FORMATS[self.format]
        values = [json.dumps(row.get(name)) if name in JSON_COLUMNS else row.get(name) for name in columns]
        kept = (*columns, "checksum")
        statement = f"""
            INSERT INTO trials ({", ".join(kept)}) VALUES ({", ".join("?" * len(kept))})
            ON CONFLICT (key) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in kept[1:])}
            WHERE trials.status != '{DONE}'
            """
        with _readable_errors(self.out), self._transaction():
            self.connection.execute(statement, [*values, _hash_of_row(values)])

    def rows(self) -> list[Row]:
        """All undamaged trials as dicts, sorted by key."""
        return [self._row(values) for *values, checksum in self._kept() if checksum == _hash_of_row(values)]

    def damaged(self) -> list[Any]:
        """The keys of rows whose checksum does not match, as stored."""
        return [values[0] for *values, checksum in self._kept() if checksum != _hash_of_row(values)]

    def forget(self, keys: list[Any]) -> None:
        """Remove damaged rows, so that their trials can be recorded again."""
        if keys:
            with _readable_errors(self.out), self._transaction():
                self.connection.executemany("DELETE FROM trials WHERE key = ?", [(key,) for key in keys])

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def _kept(self) -> list[tuple[Any, ...]]:
        with _readable_errors(self.out):
            names = ", ".join((*FORMATS[self.format], "checksum"))
            return self.connection.execute(f"SELECT {names} FROM trials ORDER BY key").fetchall()

    def _row(self, values: list[Any]) -> Row:
        row: Row = dict.fromkeys(COLUMNS) | dict(zip(FORMATS[self.format], values, strict=True))
        return row | {name: json.loads(row[name]) for name in JSON_COLUMNS}

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit the block or roll it back. IMMEDIATE, because the upgrade from a read to a write lock can fail."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
            raise


def _hash_of_row(values: list[Any]) -> str:
    """Hash a row's values. SQLite returns numbers and text unchanged, so the hash is the same after reading."""
    return hashlib.blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@contextlib.contextmanager
def _readable_errors(out: str) -> Iterator[None]:
    """Turn SQLite's errors into InputError (the ledger is damaged) or SweepError (it cannot be written)."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, sqlite3.OperationalError) and "decode" not in reason:  # "decode": text that is not UTF-8
            raise SweepError(
                f"the ledger in {quote_path(out)} cannot be written ({reason}): all recorded trials are kept; make "
                "room or check permissions, then run the same command again"
            ) from None
        raise InputError(
            f"the ledger in {quote_path(out)} is damaged ({reason[:200]}): restore it, or choose another --out"
        ) from None


def _quoted(path: str) -> str:
    from urllib.parse import quote

    return quote(os.path.abspath(path))
