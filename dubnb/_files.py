"""Atomic file writes, path checks, and cells that a spreadsheet does not run as formulas."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from dubnb._check import InputError, switch

if TYPE_CHECKING:
    import numpy as np

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\0")
STALE = 3600.0  # seconds without a change after which a temporary file has no writer
TEMPORARY = ".dubnb-"  # prefix of the names of files that are being written
NUMPY_WROTE = re.compile("[0-9]+ requested and [0-9]+ written")  # NumPy's error without the system's reason
PLAIN_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@contextlib.contextmanager
def atomic_write(path: Path, overwrite: bool = False, sync: bool = True) -> Iterator[BinaryIO]:
    """Open a binary file whose content becomes `path` when the block ends, and is discarded if the block fails.

    The bytes go to a temporary file in the same directory, are synced to disk, and replace `path` in one step. A
    reader never sees half a file, not even on a full disk or, unless `sync` is false, after a crash.
    """
    target = _target(path, overwrite)
    # Not tempfile: its files are private (0600), while a saved model should follow the user's umask.
    temporary = os.path.join(os.path.dirname(target), f"{TEMPORARY}{secrets.token_hex(8)}.tmp")
    remove_temporaries(os.path.dirname(target), older_than=STALE)  # those of killed writers
    file = _create(temporary, target)
    try:
        with disk_errors(target), file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        _target(path, overwrite)  # another process may have written it meanwhile
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if sync:
        _sync_directory(os.path.dirname(target))


def writable_directory(directory: Any, name: str) -> str:
    """The absolute path of a directory, made if it does not exist; InputError if it cannot be used.

    `name` is the parameter in messages.
    """
    present = stat_or_none(directory)
    path = os.path.abspath(os.fsdecode(directory))
    try:
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        what = "it is not a directory" if present is not None and not os.path.isdir(path) else error.strerror
        raise InputError(f"{name}={path!r} cannot be used ({what}): give a directory that you may write to") from None
    return path


@contextlib.contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Add the file's name and a remedy to errors of the disk (full, over quota, broken) inside the block."""
    try:
        yield
    except OSError as error:
        number, reason = error.errno, error.strerror
        if number is None and NUMPY_WROTE.fullmatch(str(error)):
            number, reason = errno.EIO, f"Only a part was written ({error})"
        if error.filename is not None or number is None:
            raise
        raise OSError(number, f"{reason}; make room there, then run the same command again", path) from None


def unnamed_array(folder: str, blocks: Iterable[np.ndarray], dtype: Any) -> np.memmap[Any, Any]:
    """Blocks of numbers, one after another, as a read-only array in a file of `folder` that has no name.

    Its space is free again when nobody maps it. The file is written, not mapped for writing: a full disk is an error.
    """
    import numpy as np  # only here: most programs that write files need no arrays

    path = os.path.join(folder, f"{TEMPORARY}{secrets.token_hex(8)}.tmp")
    try:
        with disk_errors(path), open(path, "xb") as file:
            for block in blocks:
                file.write(np.ascontiguousarray(block, dtype).data)
        return np.memmap(path, dtype, "r")
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def remove_temporaries(directory: str, older_than: float = 0.0) -> None:
    """Remove temporary files of killed writers from `directory` that have not changed for `older_than` seconds."""
    for path in glob.glob(os.path.join(glob.escape(directory), f"{TEMPORARY}*.tmp")):
        with contextlib.suppress(OSError):
            if time.time() - os.stat(path).st_mtime >= older_than:
                os.unlink(path)


def stat_or_none(path: Any) -> os.stat_result | None:
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
    present = stat_or_none(path)
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
        raise InputError(
            f"cannot write {target!r}: it exists already; choose another path or use {switch('overwrite')}"
        )
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
