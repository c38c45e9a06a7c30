"""The ledger of a sweep directory: one SQLite file that only the driver writes, and a lock that only one driver holds.

WAL with synchronous=FULL keeps every acknowledged trial through a crash; a trial is inserted under its key, so that
recording it twice changes nothing, and one that is done is never changed again. SQLite notices damage to its own
structure only, so every row carries a checksum: one that does not match is as if it had never been recorded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from dubnb import _files
from dubnb._check import InputError
from dubnb._files import quote_path
from dubnb.sweeps.errors import SweepError
from dubnb.sweeps.trial import DONE, Row

LEDGER, LOCK = "ledger.sqlite", "lock.sqlite"
FORMAT = 3
LOCK_PATIENCE = 1.0  # seconds; `status` takes the lock for an instant
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
    "peak_mb",
    "attempts",
    "trained",
    "reused",
    "saved_seconds",
    "data",
    "versions",
    "git",
)
JSON_COLUMNS = ("params", "metrics", "versions")
KEPT = (*COLUMNS, "checksum")
TABLES = {
    "about": "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID",
    "trials": f"CREATE TABLE trials (key TEXT PRIMARY KEY NOT NULL, {', '.join(KEPT[1:])}) WITHOUT ROWID",
}
RECORD = f"""
INSERT INTO trials ({", ".join(KEPT)}) VALUES ({", ".join("?" * len(KEPT))})
ON CONFLICT (key) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in KEPT[1:])}
WHERE trials.status != '{DONE}'
"""


def check_directory(out: str | os.PathLike[str]) -> None:
    """`out` must be free to become a sweep, or be one; nothing is touched."""
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise InputError(f"out={out!r} must be the path of a directory for the sweep")
    status = _files.status(out)
    if (status is None and os.path.lexists(out)) or (status is not None and not stat.S_ISDIR(status.st_mode)):
        raise InputError(f"{quote_path(out)} is a file: a sweep needs a directory of its own; choose another --out")
    if status is not None and os.listdir(out) and not any(os.path.exists(os.path.join(out, f)) for f in (LEDGER, LOCK)):
        raise InputError(f"{quote_path(out)} is a directory with other files in it, not a sweep: choose another --out")
    for name in (LEDGER, LOCK):
        _check_regular(os.path.join(out, name))


def _check_regular(path: str) -> None:
    """A FIFO would be waited at for ever, and a directory cannot be opened."""
    status = _files.status(path)
    if status is not None and not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise InputError(f"{quote_path(path)} is {kind}: a sweep keeps a file of that name; choose another --out")


@contextlib.contextmanager
def only_driver(out: str) -> Iterator[None]:
    """Hold the directory's lock; the system frees it when the process ends, however it ends."""
    with _explained(out):
        connection = sqlite3.connect(os.path.join(out, LOCK), timeout=LOCK_PATIENCE, isolation_level=None)
    try:
        with _explained(out):
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
    """Does a driver hold the directory's lock?"""
    path = os.path.join(out, LOCK)
    if not os.path.exists(path):
        return False
    connection = sqlite3.connect(f"file:{_quoted(path)}?mode=rw", uri=True, timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        return False
    except sqlite3.OperationalError as error:
        return "locked" in str(error)  # not so if who asks may only read
    except sqlite3.DatabaseError:  # a lock that is no database is nobody's
        return False
    finally:
        connection.close()


class Ledger:
    """An open ledger. `identity` is what all its trials have in common; without it the ledger is only read."""

    def __init__(self, out: str | os.PathLike[str], identity: Mapping[str, Any] | None = None):
        self.out, path = os.fspath(out), os.path.join(out, LEDGER)
        if identity is None and not os.path.exists(path):
            raise InputError(f"{quote_path(out)} is not a sweep: it has no {LEDGER}")
        _check_regular(path)
        mode = "ro" if identity is None else "rwc"
        with _explained(self.out):
            self.connection = sqlite3.connect(
                f"file:{_quoted(path)}?mode={mode}", uri=True, timeout=30, isolation_level=None
            )
        try:
            with _explained(self.out):
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
        if is_new:
            self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")
        with self._transaction():
            if is_new:
                for statement in TABLES.values():
                    self.connection.execute(statement)
            for name, value in {"format": FORMAT, **identity}.items():
                self._check_same(name, value)

    def _check_tables(self) -> None:
        """The tables must be this format's own; another format says so itself."""
        tables = dict(self.connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
        if tables == TABLES:
            return
        number = None
        with contextlib.suppress(sqlite3.Error, ValueError, TypeError):
            number = json.loads(self.connection.execute("SELECT value FROM about WHERE name = 'format'").fetchone()[0])
        if type(number) is int and number != FORMAT:
            age, remedy = ("a newer", "upgrade dubnb") if number > FORMAT else ("an older", "choose another --out")
            raise InputError(f"the ledger in {quote_path(self.out)} is of {age} dubnb (format {number}): {remedy}")
        raise InputError(
            f"{LEDGER} in {quote_path(self.out)} is not a sweep's ledger, or damaged (other tables): choose "
            "another --out"
        )

    def _check_same(self, name: str, value: Any) -> None:
        text = json.dumps(value)
        self.connection.execute("INSERT OR IGNORE INTO about VALUES (?, ?, ?)", (name, text, _checksum([name, text])))
        filed = self.about(name)
        if filed != value:
            raise InputError(
                f"{quote_path(self.out)} was made with {name} {filed!r}, not {value!r}: use that, or choose "
                "another --out"
            )

    def about(self, name: str) -> Any:
        """A fact about the sweep, or None."""
        with _explained(self.out):
            row = self.connection.execute("SELECT value, checksum FROM about WHERE name = ?", (name,)).fetchone()
            if row and row[1] != _checksum([name, row[0]]):
                raise sqlite3.DatabaseError(f"the checksum of {name!r} does not match")
        return json.loads(row[0]) if row else None

    def note(self, name: str, value: Any) -> None:
        """Keep a fact that may change from run to run."""
        text = json.dumps(value)
        with _explained(self.out), self._transaction():
            values = (name, text, _checksum([name, text]))
            self.connection.execute("INSERT OR REPLACE INTO about VALUES (?, ?, ?)", values)

    def record(self, row: Row) -> None:
        """Keep one finished trial ({column: value}); once this returns, no crash loses it."""
        values = [json.dumps(row.get(name)) if name in JSON_COLUMNS else row.get(name) for name in COLUMNS]
        with _explained(self.out), self._transaction():
            self.connection.execute(RECORD, [*values, _checksum(values)])

    def rows(self) -> list[Row]:
        """All sound trials by key, as dicts."""
        return [self._row(values) for *values, checksum in self._kept() if checksum == _checksum(values)]

    def damaged(self) -> list[Any]:
        """Keys, as they stand there, of rows whose checksum does not match."""
        return [values[0] for *values, checksum in self._kept() if checksum != _checksum(values)]

    def forget(self, keys: list[Any]) -> None:
        """Remove damaged rows, so that their trials can be recorded again."""
        if keys:
            with _explained(self.out), self._transaction():
                self.connection.executemany("DELETE FROM trials WHERE key = ?", [(key,) for key in keys])

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    def _kept(self) -> list[tuple[Any, ...]]:
        with _explained(self.out):
            return self.connection.execute(f"SELECT {', '.join(KEPT)} FROM trials ORDER BY key").fetchall()

    def _row(self, values: list[Any]) -> Row:
        row = dict(zip(COLUMNS, values, strict=True))
        return row | {name: json.loads(row[name]) for name in JSON_COLUMNS}

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Everything or nothing; IMMEDIATE, because a transaction that turns from reading to writing may fail."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
            raise


def _checksum(values: list[Any]) -> str:
    """Of what SQLite gives back for a row: numbers and text stay what they were."""
    return hashlib.blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@contextlib.contextmanager
def _explained(out: str) -> Iterator[None]:
    """SQLite's errors in words that help: a ledger that cannot be read is bad input, one that cannot grow is not."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, sqlite3.OperationalError) and "decode" not in reason:  # that is text which is not UTF-8
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
