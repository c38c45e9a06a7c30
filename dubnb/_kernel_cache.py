"""The on-disk cache of compiled kernels, in a directory that only the user can write to.

The directory's name contains a hash of every source file that defines kernels. An edit of a kernel in one file
therefore also invalidates the kernels of other files that call it. `DUBNB_CACHE_DIR` sets another location.

Cache entries are unpickled, so a user who could write to the directory could run code in this process. Every directory
on the path must therefore belong to the user or to root and be closed to others. Each file begins with a checksum
against damage; a damaged file is removed with a warning, and its kernel is compiled again. A complete but read-only
cache, such as one in a container image, is used; kernels that it lacks go to the next writable location.

This module is the only one that uses private parts of Numba's cache (`install`). If a Numba version has moved them,
every process compiles its own kernels, with one warning.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba

from dubnb import _files
from dubnb._check import InputError

CHECKSUM = 16  # bytes
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
STALE = 600.0  # seconds after which a temporary file is abandoned


# ---- directories ---------------------------------------------------------------------------------------------------


@functools.cache
def directories() -> tuple[str, ...]:
    """Directories to look for compiled kernels: read-only ones first, then the one that takes new kernels, if any."""
    usable: list[str] = []
    for root in _roots():
        directory = os.path.join(os.path.realpath(root), "dubnb", sources_digest())
        exists = os.path.isdir(directory)
        if not exists and not _made(directory):
            continue
        why = unsafe(directory)
        if why is not None:
            _warn(f"compiled kernels are not kept in {directory}: {why}; set DUBNB_CACHE_DIR to a place of your own")
            continue
        usable.append(directory)
        if _writable(directory):
            _files.remove_temporaries(directory, older_than=STALE)
            break
    return tuple(usable)


def _roots() -> Iterator[str]:
    home = os.path.join(os.path.expanduser("~"), ".cache")
    yield from filter(None, (os.environ.get("DUBNB_CACHE_DIR"), os.environ.get("NUMBA_CACHE_DIR")))
    yield os.environ.get("XDG_CACHE_HOME") or home
    yield os.path.join(tempfile.gettempdir(), f"dubnb-{os.geteuid()}" if hasattr(os, "geteuid") else "dubnb")


COMPILER_FILE = "_kernel_parts.py"  # it defines no kernel, but kernels depend on it


@functools.cache
def sources_digest() -> str:
    """A hash of all sources that define kernels, or whose constants are compiled into kernels."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source = path.read_bytes()
        if b"njit" in source or path.name == COMPILER_FILE:
            digest.update(source)
    return digest.hexdigest()


def _made(directory: str) -> bool:
    """Create the directory and its missing parents, closed to other users; False if that fails."""
    try:
        for parent in (*reversed(Path(directory).parents), Path(directory)):
            with contextlib.suppress(FileExistsError):
                parent.mkdir(mode=0o700)
    except OSError:
        return False
    return os.path.isdir(directory)


def _writable(directory: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def unsafe(directory: str) -> str | None:
    """Why other users could change the content of `directory`, a real path; None if only the user and root can."""
    if not hasattr(os, "geteuid"):
        return None
    for path in (Path(directory), *Path(directory).parents):
        try:
            about = os.lstat(path)
        except OSError as error:
            return f"{path} cannot be examined ({error.strerror})"
        if about.st_uid not in (0, os.geteuid()):
            return f"{path} belongs to another user"
        open_to_others = about.st_mode & OTHERS_WRITE
        if open_to_others == stat.S_IWGRP and _is_private_group(about.st_gid):
            open_to_others = 0
        # Others may add entries to a sticky directory such as /tmp, but not swap ours.
        is_shared = path != Path(directory) and about.st_mode & stat.S_ISVTX
        if open_to_others and not is_shared:
            return f"others may write to {path}"
    return None


def _is_private_group(gid: int) -> bool:
    """Whether a group is the user's private group, as many systems make one: the same name and no other member."""
    import grp
    import pwd

    with contextlib.suppress(KeyError):
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
        return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return False


# ---- files ---------------------------------------------------------------------------------------------------------


class KernelFiles:
    """The cache files of one kernel, one for each compiled version: a checksum, then the pickled (key, content)."""

    def __init__(self, places: tuple[str, ...], kernel: str, source: bytes):
        self.places, self.kernel, self.source = places, kernel, source

    def load(self, key: Any, rebuild: Callable[[Any], Any]) -> Any:
        """rebuild(the content stored under `key`), or None if there is none; a corrupt file is removed."""
        for place in self.places:
            path = os.path.join(place, self._name(key))
            try:
                content = Path(path).read_bytes()
            except OSError:
                continue
            try:
                if content[:CHECKSUM] != _checksum(content[CHECKSUM:]):
                    raise ValueError("checksum")
                kept_key, kept = pickle.loads(content[CHECKSUM:])
                if kept_key == key:
                    return rebuild(kept)
            except MemoryError:  # the file may be whole
                return None
            except Exception:  # corrupt entries can raise any exception
                _warn(f"damaged files in the cache of compiled kernels, {place}: compiling them again")
                with contextlib.suppress(OSError):
                    os.unlink(path)
        return None

    def save(self, key: Any, payload: bytes) -> None:
        """Store the pickled (key, content) atomically; if the disk refuses, the kernel is compiled again next time."""
        path = os.path.join(self.places[-1], self._name(key))
        with contextlib.suppress(OSError, InputError), _files.atomic_write(path, overwrite=True) as file:
            file.write(_checksum(payload) + payload)

    def flush(self) -> None:
        """Delete all files of this kernel."""
        for place in self.places:
            for path in Path(place).glob(f"{self.kernel}-*.kernel"):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _name(self, key: Any) -> str:
        about = repr((key, self.source, numba.__version__, sys.version_info[:2]))
        return f"{self.kernel}-{_checksum(about.encode()).hex()}.kernel"


class KernelCache:
    """Replaces Numba's own cache of a kernel.

    Numba's cache files have no checksums: a truncated file raises an error, and machine code with a flipped bit runs.
    """

    def __init__(self, function: Callable[..., Any], places: tuple[str, ...]):
        code = function.__code__
        self.code, self.cache_path = _checksum(code.co_code), places[-1]
        name = f"{function.__module__}.{function.__qualname__}"
        self.files = KernelFiles(places, name, _source_checksum(code.co_filename))

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The version compiled for `signature`, or None."""
        from numba.core.compiler import CompileResult
        from numba.core.runtime import rtsys

        rtsys.initialize(target)  # target.refresh() would load compilation tables, for .2 s
        key = self._key(signature, target.codegen())
        return self.files.load(key, lambda kept: CompileResult._rebuild(target, *kept))

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store a compiled kernel, unless it contains addresses that are valid in this process only."""
        from numba.core import serialize

        if compiled.library.has_dynamic_globals or compiled.lifted:
            return
        key = self._key(signature, compiled.codegen)
        self.files.save(key, serialize.dumps((key, compiled._reduce())))

    def flush(self) -> None:
        """Delete all files of this kernel."""
        self.files.flush()

    def _key(self, signature: Any, codegen: Any) -> Any:
        return signature, codegen.magic_tuple(), self.code


def install(kernel: Any, function: Callable[..., Any]) -> None:
    """Give a kernel an on-disk cache, where a safe directory exists and Numba has the internals for it."""
    places = directories()
    if not places or function.__closure__:
        return
    if not has_cache_internals():
        _warn(f"Numba {numba.__version__} has moved its cache: every process compiles its own kernels")
        return
    kernel._cache = KernelCache(function, places)


@functools.cache
def has_cache_internals() -> bool:
    """Whether Numba has the private attributes that `KernelCache` uses; they have existed since Numba 0.61."""
    try:
        from numba.core.compiler import CompileResult
        from numba.core.dispatcher import Dispatcher
        from numba.core.runtime import rtsys
        from numba.core.serialize import dumps
    except ImportError:
        return False
    parts = (CompileResult, "_reduce"), (CompileResult, "_rebuild"), (Dispatcher, "enable_caching")
    return callable(dumps) and hasattr(rtsys, "initialize") and all(hasattr(where, name) for where, name in parts)


@functools.cache
def _source_checksum(path: str) -> bytes:
    """Checksum of a kernel's source file, for kernels outside the package, which `sources_digest` misses."""
    return _checksum(Path(path).read_bytes() if os.path.isfile(path) else b"")


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHECKSUM).digest()


@functools.cache
def _warn(line: str) -> None:
    """Warn, once per process for each line."""
    warnings.warn(line, stacklevel=2)
