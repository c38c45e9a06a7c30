"""The command line: one file per command, each with NAME, SUMMARY, SEED_HELP, notes, add_options and run.

A new command is a file here and its name in COMMANDS. Results go to stdout (with --json as one JSON document),
everything said on the way to stderr. Exit codes: 0 done, 2 wrong use or bad input, 3 a model below what `evaluate
--fail-below` asks, 1 anything else, 130 stopped by Ctrl-C; every failure is one line on stderr.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence

from dubnb._check import DivergenceError, InputError, spoken_to_shell
from dubnb.cli import (
    _data,
    _output,
    audit,
    bound,
    compare,
    demo,
    evaluate,
    export,
    fit,
    plan,
    recommend,
    reproduce,
    selftest,
    sweep,
    warmup,
)
from dubnb.cli._parser import Command, parser_of
from dubnb.sweeps.errors import SweepError

DONE, FAILED, WRONG_USE, STOPPED = 0, 1, 2, 130
COMMANDS: tuple[Command, ...] = (
    demo,
    compare,
    fit,
    evaluate,
    recommend,
    export,
    sweep,
    reproduce,
    audit,
    bound,
    plan,
    selftest,
    warmup,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    wants_traceback = bool(os.environ.get("DUBNB_TRACEBACK"))
    try:
        with warnings.catch_warnings(), spoken_to_shell(_data.SPELLINGS):
            warnings.showwarning = _output.show_warning
            warnings.simplefilter("always", UserWarning)
            args = parser_of(COMMANDS).parse_args(argv)
            wants_traceback |= args.traceback
            code = args.run(args)
            sys.stdout.flush()
        return DONE if code is None else int(code)
    except BrokenPipeError:  # the reader has seen enough, as in `dubnb recommend ... | head`; results come last
        _output.abandon_stdout()
        return DONE
    except KeyboardInterrupt:
        return _fail(STOPPED, "stopped by Ctrl-C", wants_traceback)
    except InputError as error:
        return _fail(WRONG_USE, error, wants_traceback)
    except (DivergenceError, SweepError) as error:
        return _fail(FAILED, error, wants_traceback)
    except MemoryError as error:
        return _fail(FAILED, f"out of memory: {error}", wants_traceback)
    except OSError as error:
        _output.abandon_stdout()
        return _fail(FAILED, f"the system refused: {error}", wants_traceback)
    except Exception as error:
        reason = f"unexpected {type(error).__name__}: {error} (--traceback shows where)"
        return _fail(FAILED, reason, wants_traceback)


def _fail(code: int, reason: object, with_traceback: bool) -> int:
    if with_traceback:
        traceback.print_exc()
    _output.say(reason)
    return code
