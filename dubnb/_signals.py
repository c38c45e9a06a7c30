"""Stop at Ctrl-C and SIGTERM by an exception, also where Python would lose it.

A handler's exception starts wherever the main thread happens to be. In a `__del__` or a callback, Python only prints it
and goes on. In a class body or an import, some libraries turn it into an error of another kind.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from dubnb._check import Terminated

CLEANING = 15.0  # seconds after a signal in which further ones do not interrupt the cleaning up
RAISE_AFTER = 0.05  # seconds after a lost exception until it is raised again
_received: list[tuple[int, float]] = []  # the signals in the outermost block, and their moments


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGTERM raise `Terminated`, and Ctrl-C KeyboardInterrupt, out of the block. Blocks may be nested.

    A signal that is ignored, as in a script's background, stays ignored; a caller's handler of Ctrl-C is kept.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        if before[signal.SIGINT] is not signal.default_int_handler:
            del before[signal.SIGINT]
        if before[signal.SIGTERM] in (signal.SIG_IGN, _stop):
            del before[signal.SIGTERM]
    hook = sys.unraisablehook
    if before:
        sys.unraisablehook = functools.partial(_raise_again, hook)
    for number in before:
        signal.signal(number, _stop)
    try:
        yield
    except Exception as error:
        if not _received or threading.current_thread() is not threading.main_thread():
            raise
        raise _exception(_received[0][0]) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if before:
            sys.unraisablehook = hook
            _received.clear()


def _exception(number: int) -> KeyboardInterrupt:
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()


def _stop(number: int, frame: FrameType | None) -> None:
    """The handler of both signals."""
    now = time.monotonic()
    if not _received or now > _received[-1][1] + CLEANING:
        _received.append((number, now))
        raise _exception(number)


def _raise_again(usual: Callable[[Any], Any], lost: Any) -> None:
    """Raise a signal's exception again from a timer where Python could only print it; pass others to the usual hook."""
    if _received and issubclass(lost.exc_type, KeyboardInterrupt):
        number = _received.pop()[0]
        timer = threading.Timer(RAISE_AFTER, _thread.interrupt_main, [number])
        timer.daemon = True
        timer.start()
    else:
        usual(lost)
