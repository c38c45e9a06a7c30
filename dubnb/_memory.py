"""Memory checks before large allocations. An error gives the bytes that are needed and available."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from dubnb._check import InputError

CGROUP = "/sys/fs/cgroup"
LARGEST = 10**300  # a float holds little more
UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def require(what: str, needed: int, remedy: str) -> None:
    """Raise InputError if `what` needs more bytes than are available; `needed` is a lower bound."""
    free = available()
    if free is not None and needed > free:
        raise InputError(f"{what} needs {format_bytes(needed)} of memory, {format_bytes(free)} are available: {remedy}")


def available() -> int | None:
    """Bytes that this process may still allocate: the smallest of the machine's, the container's and its own limit.

    None if the system does not report any of them.
    """
    return min(_limits(), default=None)


def format_bytes(n_bytes: int) -> str:
    """A number of bytes with a unit and at most three digits."""
    size = float(n_bytes) if n_bytes < LARGEST else float("inf")
    unit = 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {UNITS[unit]}"


def _limits() -> Iterator[int]:
    facts = _number_table("/proc/meminfo")
    if "MemAvailable" in facts:
        yield 1024 * (facts["MemAvailable"] + facts.get("SwapFree", 0))
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, KeyError):  # no container, or one without a limit
        limit, used = (int(_text(f"{CGROUP}/memory.{name}")) for name in ("max", "current"))
        file_pages = _number_table(f"{CGROUP}/memory.stat")["inactive_file"]  # they can be dropped
        yield max(0, limit - used + file_pages)
    left = left_of_own_limit()
    if left is not None:
        yield left


def left_of_own_limit() -> int | None:
    """Bytes that `ulimit -v` still leaves to this process; None without such a limit."""
    with contextlib.suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            return max(0, limit - int(_text("/proc/self/statm").split()[0]) * resource.getpagesize())
    return None


def _number_table(path: str) -> dict[str, int]:
    """A file whose lines are a name and a number, as a dict."""
    sizes = {}
    with contextlib.suppress(OSError, ValueError):
        for line in _text(path).splitlines():
            name, number = line.replace(":", " ").split()[:2]
            sizes[name] = int(number)
    return sizes


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()
