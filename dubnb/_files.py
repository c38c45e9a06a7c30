"""Atomic file writes, path checks, and cells that a spreadsheet does not run as formulas."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

from dubnb._check import InputError

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\0")
TEMPORARY = ".dubnb-"  # prefix of the names of files that are being written
PLAIN_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@contextlib.contextmanager
def atomic_write(path: Path, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Open a binary file whose content becomes `path` when the block ends, and is discarded if the block fails.

    The bytes go to a temporary file in the same directory, are synced to disk, and replace `path` in one step. A
    reader never sees half a file, not even after a crash or on a full disk.
    """
    target = _target(path, overwrite)
    # Not tempfile: its files are private (0600), while a saved model should follow the user's umask.
    temporary = os.path.join(os.path.dirname(target), f"{TEMPORARY}{secrets.token_hex(8)}.tmp")
    file = _create(temporary, target)
    try:
        with disk_errors(target), file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _target(path, overwrite)  # another process may have written it meanwhile
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(os.path.dirname(target))


@contextlib.contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Add the file's name and a remedy to errors of the disk (full, over quota, broken) inside the block."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        remedy = "make room there, then run the same command again"
        raise OSError(error.errno, f"{error.strerror}; {remedy}", path) from None


def remove_temporaries(directory: str, older_than: float = 0.0) -> None:
    """Remove temporary files of killed writers from `directory` that have not changed for `older_than` seconds."""
    for path in glob.glob(os.path.join(glob.escape(directory), f"{TEMPORARY}*.tmp")):
        with contextlib.suppress(OSError):
            if time.time() - os.stat(path).st_mtime >= older_than:
                os.unlink(path)


def status(path: Any) -> os.stat_result | None:
    """os.stat(path), or None if there is no such file; a path that cannot exist is an InputError."""
    try:
        return os.stat(os.fsdecode(path))  # fsdecode rejects integers, which os.stat takes as open files
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"path {quote_path(path)} cannot be used ({reason}): give the path of a file") from None


def quote_path(path: Any) -> str:
    """`path` for a message: quoted, on one line."""
    return repr(os.fspath(path) if isinstance(path, os.PathLike) else path)


def spreadsheet_safe(text: Any) -> Any:
    """`text` with an apostrophe in front if a spreadsheet would run it as a formula; plain numbers stay as they are."""
    if isinstance(text, str) and text.startswith(FORMULA_STARTS) and not PLAIN_NUMBER.fullmatch(text):
        return "'" + text
    return text


def _target(path: Path, overwrite: bool) -> str:
    """Check that `path` may be written and return the real path, so that a link stays a link."""
    present = status(path)
    path = os.fsdecode(path)
    target = os.path.realpath(path)
    parent = os.path.dirname(target)
    if present is None and not os.path.basename(path):
        raise InputError(f"cannot write {path!r}: it does not name a file; give the path of a file")
    if present is None and not os.path.isdir(parent):
        raise InputError(f"cannot write {path!r}: directory {parent!r} does not exist; create it first")
    if present is None:
        return target
    if stat.S_ISDIR(present.st_mode):
        raise InputError(f"cannot write {target!r}: it is a directory; give the path of a file in it")
    if not stat.S_ISREG(present.st_mode):
        raise InputError(f"cannot write {target!r}: it is not a regular file; choose another path")
    if not overwrite:
        raise InputError(f"cannot write {target!r}: it exists already; choose another path or pass overwrite=True")
    return target


def _create(temporary: str, target: str) -> BinaryIO:
    try:
        return open(temporary, "xb")
    except OSError as error:
        raise InputError(f"cannot write {target!r} ({error.strerror}): choose a directory you may write to") from None


def _sync_directory(directory: str) -> None:
    """Make the renaming survive a power loss, where the system supports it."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
