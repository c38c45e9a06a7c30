"""The ledger of a sweep directory: one SQLite file that only the driver writes, and a lock that only one driver holds.

WAL with synchronous=FULL keeps every acknowledged trial through a crash; a trial is inserted under its key, so that
recording it twice changes nothing, and one that is done is never changed again.
"""

import contextlib
import json
import os
import sqlite3

from dubnb._check import InputError
from dubnb._files import shown
from dubnb.sweeps.errors import SweepError
from dubnb.sweeps.trial import DONE

LEDGER, LOCK = "ledger.sqlite", "lock.sqlite"
FORMAT = 1
LOCK_PATIENCE = 1.0  # seconds; `status` takes the lock for an instant
COLUMNS = (
    "key",
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
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS trials (key TEXT PRIMARY KEY NOT NULL, {", ".join(COLUMNS[1:])}) WITHOUT ROWID;
"""
RECORD = f"""
INSERT INTO trials ({", ".join(COLUMNS)}) VALUES ({", ".join("?" * len(COLUMNS))})
ON CONFLICT (key) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])}
WHERE trials.status != '{DONE}'
"""


def check_directory(out):
    """`out` must be free to become a sweep, or be one; nothing is touched."""
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise InputError(f"out={out!r} must be the path of a directory for the sweep")
    if os.path.lexists(out) and not os.path.isdir(out):
        raise InputError(f"{shown(out)} is a file: a sweep needs a directory of its own; choose another --out")
    if os.path.isdir(out) and os.listdir(out) and not any(os.path.exists(os.path.join(out, f)) for f in (LEDGER, LOCK)):
        raise InputError(f"{shown(out)} is a directory with other files in it, not a sweep: choose another --out")


@contextlib.contextmanager
def only_driver(out):
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
                    f"{shown(out)} is in use by another sweep: wait until it ends, or choose another --out"
                ) from None
        yield
    finally:
        connection.close()


def in_use(out):
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
    finally:
        connection.close()


class Ledger:
    """An open ledger. `identity` is what all its trials have in common: method, backbone, protocol, data."""

    def __init__(self, out, identity=None):
        self.out, path = out, os.path.join(out, LEDGER)
        if identity is None and not os.path.exists(path):
            raise InputError(f"{shown(out)} is not a sweep: it has no {LEDGER}")
        mode = "ro" if identity is None else "rwc"
        with _explained(out):
            self.connection = sqlite3.connect(
                f"file:{_quoted(path)}?mode={mode}", uri=True, timeout=30, isolation_level=None
            )
        try:
            with _explained(out):
                self._open(identity)
        except BaseException:
            self.connection.close()
            raise

    def _open(self, identity):
        (state,) = self.connection.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)
        is_new = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        if identity is None:
            if is_new:
                raise InputError(f"{shown(self.out)} holds no sweep yet: its {LEDGER} is empty")
            return
        if is_new:
            self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")
        with self._transaction():
            for statement in SCHEMA.split(";"):
                self.connection.execute(statement)
            for name, value in {"format": FORMAT, **identity}.items():
                self._check_same(name, value)

    def _check_same(self, name, value):
        self.connection.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (name, json.dumps(value)))
        found = self.about(name)
        if found != value:
            raise InputError(
                f"{shown(self.out)} was made with {name} {found!r}, not {value!r}: use that, or choose another --out"
            )

    def about(self, name):
        """A fact about the sweep, or None."""
        found = self.connection.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
        return json.loads(found[0]) if found else None

    def note(self, name, value):
        """Keep a fact that may change from run to run."""
        with _explained(self.out), self._transaction():
            self.connection.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, json.dumps(value)))

    def record(self, row):
        """Keep one finished trial ({column: value}); once this returns, no crash loses it."""
        values = [json.dumps(row.get(name)) if name in JSON_COLUMNS else row.get(name) for name in COLUMNS]
        with _explained(self.out), self._transaction():
            self.connection.execute(RECORD, values)

    def rows(self):
        """All trials by key, as dicts."""
        with _explained(self.out):
            found = self.connection.execute(f"SELECT {', '.join(COLUMNS)} FROM trials ORDER BY key").fetchall()
        rows = [dict(zip(COLUMNS, values, strict=True)) for values in found]
        return [row | {name: json.loads(row[name]) for name in JSON_COLUMNS} for row in rows]

    def close(self):
        self.connection.close()

    @contextlib.contextmanager
    def _transaction(self):
        """Everything or nothing; IMMEDIATE, because a transaction that turns from reading to writing may fail."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
            raise


@contextlib.contextmanager
def _explained(out):
    """SQLite's errors in words that help: a ledger that cannot be read is bad input, one that cannot grow is not."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise SweepError(
            f"the ledger in {shown(out)} cannot be written ({error}): all recorded trials are kept; make room or check "
            "permissions, then run the same command again"
        ) from None
    except sqlite3.DatabaseError as error:
        raise InputError(
            f"the ledger in {shown(out)} is damaged ({error}): restore it, or choose another --out"
        ) from None


def _quoted(path):
    from urllib.parse import quote

    return quote(os.path.abspath(path))
