"""Compiled kernels on disk, in a directory that nobody else can write.

The directory is named by a hash of all sources that define kernels, so that an edit of a jitted callee in another file
never meets a stale cache. `DUBNB_CACHE_DIR` moves it. What Numba keeps is unpickled, so a stranger who could write
there could run code here: every directory on the way must be the user's own or root's, and closed to others. Each file
begins with a checksum against damage: a damaged one is removed with a warning and its kernel compiled again. A cache
that is complete but read-only, as in a container's image, is used; what it lacks goes to the next place.

This is the one place that touches private parts of Numba's cache (`install`); where a Numba has them elsewhere, kernels
are compiled anew by every process, and one line says so.
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
STALE = 600.0  # seconds after which a file that was being written is nobody's


# ---- where ---------------------------------------------------------------------------------------------------------


@functools.cache
def directories() -> tuple[str, ...]:
    """Where compiled kernels are looked for: read-only caches first, then the one to which new ones go, if any."""
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


SHAPING = ("_kernel_parts.py", "extended.py")  # besides those that define kernels


@functools.cache
def sources_digest() -> str:
    """A hash of all sources that define kernels, or shape them: what a kernel reads of another module is frozen."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source = path.read_bytes()
        if b"njit" in source or path.name in SHAPING:
            digest.update(source)
    return digest.hexdigest()


def _made(directory: str) -> bool:
    """Make the directory and those above it that are missing, closed to others."""
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
    """Why others could change what is in `directory`, a real path; None if only its user and root can."""
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
    """Whether a group is the user's own by the custom of many systems: same name, nobody else in it."""
    import grp
    import pwd

    with contextlib.suppress(KeyError):
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
        return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return False


# ---- what ----------------------------------------------------------------------------------------------------------


class KernelFiles:
    """One kernel's compiled versions, a file each: a checksum, then the pickled (key, what is kept)."""

    def __init__(self, places: tuple[str, ...], kernel: str, source: bytes):
        self.places, self.kernel, self.source = places, kernel, source

    def load(self, key: Any, rebuild: Callable[[Any], Any]) -> Any:
        """rebuild(what was kept under `key`), or None; a file with which that fails is removed."""
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
            except Exception:  # whatever a wrong content may do
                _warn(f"damaged files in the cache of compiled kernels, {place}: compiling them again")
                with contextlib.suppress(OSError):
                    os.unlink(path)
        return None

    def save(self, key: Any, payload: bytes) -> None:
        """Keep the pickled (key, ...), all of it or nothing; a disk that refuses only costs a compilation."""
        path = os.path.join(self.places[-1], self._name(key))
        with contextlib.suppress(OSError, InputError), _files.atomic_write(path, overwrite=True) as file:
            file.write(_checksum(payload) + payload)

    def flush(self) -> None:
        """Forget everything of this kernel."""
        for place in self.places:
            for path in Path(place).glob(f"{self.kernel}-*.kernel"):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _name(self, key: Any) -> str:
        about = repr((key, self.source, numba.__version__, sys.version_info[:2]))
        return f"{self.kernel}-{_checksum(about.encode()).hex()}.kernel"


class KernelCache:
    """Takes the place of a kernel's Numba cache, whose files have no checksums: a truncated one raises, and a flipped
    bit in the machine code runs."""

    def __init__(self, function: Callable[..., Any], places: tuple[str, ...]):
        code = function.__code__
        self.code, self.cache_path = _checksum(code.co_code), places[-1]
        name = f"{function.__module__}.{function.__qualname__}"
        self.files = KernelFiles(places, name, _source_checksum(code.co_filename))

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The kernel as compiled for `signature`, or None."""
        from numba.core.compiler import CompileResult
        from numba.core.runtime import rtsys

        rtsys.initialize(target)  # not target.refresh(): its tables are for compiling, and cost a process .2 s
        key = self._key(signature, target.codegen())
        return self.files.load(key, lambda kept: CompileResult._rebuild(target, *kept))

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep a compiled kernel, unless it holds addresses of this process."""
        from numba.core import serialize

        if compiled.library.has_dynamic_globals or compiled.lifted:
            return
        key = self._key(signature, compiled.codegen)
        self.files.save(key, serialize.dumps((key, compiled._reduce())))

    def flush(self) -> None:
        """Forget everything of this kernel."""
        self.files.flush()

    def _key(self, signature: Any, codegen: Any) -> Any:
        return signature, codegen.magic_tuple(), self.code


def install(kernel: Any, function: Callable[..., Any]) -> None:
    """Let a jitted function find its compiled versions on disk, where that is safe and Numba has the parts for it."""
    places = directories()
    if not places or function.__closure__:
        return
    if not has_cache_internals():
        _warn(f"Numba {numba.__version__} keeps its cache elsewhere: every process compiles its own kernels")
        return
    kernel._cache = KernelCache(function, places)


@functools.cache
def has_cache_internals() -> bool:
    """Whether the private parts that `KernelCache` needs are where they have been since Numba 0.61."""
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
    """Of the file a kernel is written in: what covers kernels outside the package, whose sources name no directory."""
    return _checksum(Path(path).read_bytes() if os.path.isfile(path) else b"")


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHECKSUM).digest()


@functools.cache
def _warn(line: str) -> None:
    """Once per process."""
    warnings.warn(line, stacklevel=2)
