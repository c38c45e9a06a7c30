"""The command line: one file per command, each with NAME, SUMMARY, SEED_HELP, notes, add_options and run.

A new command is a file here and its name in COMMANDS. Results go to stdout (with --json as one JSON document), progress
and warnings to stderr. Exit codes: 0 done, 1 failed, 2 wrong use or bad input, 3 a model below `evaluate --fail-below`,
130 stopped by Ctrl-C, 143 by SIGTERM. Every failure is one line on stderr.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from dubnb import _memory
from dubnb._check import DivergenceError, InputError, Terminated, cli_option_names
from dubnb._dask import ClusterError
from dubnb._signals import stoppable
from dubnb.cli import _options, _output
from dubnb.sweeps.trial import SweepError

DONE, FAILED, WRONG_USE, STOPPED, TERMINATED = 0, 1, 2, 130, 143
ROOM = 820_000_000  # bytes of address space that Numba, pandas, SciPy and the kernels take after this module
ROOM_PER_THREAD = 82_000_000  # and each further thread of the two OpenBLAS libraries, of NumPy and of SciPy
_NAMES = "demo compare arena fit evaluate recommend export sweep reproduce audit bound plan value selftest warmup"
COMMANDS: tuple[Any, ...] = tuple(importlib.import_module(f"dubnb.cli.{name}") for name in _NAMES.split())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    wants_traceback = bool(os.environ.get("DUBNB_TRACEBACK"))
    try:
        with stoppable(), warnings.catch_warnings(), cli_option_names(_options.SPELLINGS):
            warnings.showwarning = _output.show_warning
            warnings.simplefilter("always", UserWarning)
            args = _options.parser_of(COMMANDS).parse_args(argv)
            wants_traceback |= args.traceback
            _check_memory_limit()
            code = args.run(args)
            sys.stdout.flush()
        return DONE if code is None else int(code)
    except BrokenPipeError:  # the reader stopped, as in `dubnb recommend ... | head`
        _output.abandon_stdout()
        return DONE
    except KeyboardInterrupt as stop:
        code, by = (TERMINATED, "SIGTERM") if isinstance(stop, Terminated) else (STOPPED, "Ctrl-C")
        return _fail(code, f"stopped by {by}" + f": {stop}" * bool(str(stop)), wants_traceback)
    except InputError as error:
        return _fail(WRONG_USE, error, wants_traceback)
    except (DivergenceError, SweepError, ClusterError) as error:
        return _fail(FAILED, error, wants_traceback)
    except MemoryError as error:
        remedy = "allow more (`ulimit -v`, or the container's limit), or lower rank or the number of pairs"
        reason = f"out of memory: {error if str(error) else remedy}"
        return _fail(FAILED, reason, wants_traceback)
    except ImportError as error:
        reason = f"a package cannot be loaded ({error}): allow more memory, or install the package again"
        return _fail(FAILED, reason, wants_traceback)
    except OSError as error:
        _output.abandon_stdout()
        return _fail(FAILED, f"the system refused: {error}", wants_traceback)
    except RuntimeError as error:
        if "start new thread" not in str(error):
            return _unexpected(error, wants_traceback)
        reason = f"the system refused a thread ({error}): allow more memory (`ulimit -v`) or processes (`ulimit -u`)"
        return _fail(FAILED, reason, wants_traceback)
    except Exception as error:
        return _unexpected(error, wants_traceback)


def _check_memory_limit() -> None:
    """Refuse a memory limit under which OpenBLAS would abort this process, interrupt it or try again without end."""
    left = _memory.left_of_own_limit()
    given = next((os.environ[name] for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS") if name in os.environ), "")
    threads = os.cpu_count() or 1
    if given.isdecimal() and int(given) > 0:
        threads = min(threads, int(given))
    needed = ROOM + ROOM_PER_THREAD * (threads - 1)
    if left is not None and left < needed:
        raise MemoryError(
            f"`ulimit -v` leaves {_memory.format_bytes(left)} to load NumPy, Numba and pandas, which need "
            f"{_memory.format_bytes(needed)}: raise that limit" + " or set OPENBLAS_NUM_THREADS=1" * (threads > 1)
        )


def _unexpected(error: Exception, with_traceback: bool) -> int:
    return _fail(FAILED, f"unexpected {type(error).__name__}: {error} (--traceback shows where)", with_traceback)


def _fail(code: int, reason: object, with_traceback: bool) -> int:
    if with_traceback:
        traceback.print_exc()
    _output.print_message(reason)
    return code
