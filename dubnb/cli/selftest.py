"""`dubnb selftest`: compare training on this machine's devices."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dubnb._check import choice
from dubnb.cli import _output
from dubnb.cli._values import first_seed
from dubnb.report import tables

if TYPE_CHECKING:
    from dubnb.selftest import Comparison

NAME = "selftest"
SUMMARY = "check training on this machine, and a GPU against the CPU"
SEED_HELP = "seed of logs and models (default 0)"
HEADER = ("", "size", "device", "result", "", "ms/epoch", "x CPU", "spread")
INVITATION = "CUDA was simulated and compiled by us, never run on a GPU: please send this table, whatever it says."


def notes() -> str:
    """Below the options in the help."""
    return (
        "example:\n  dubnb selftest --device cuda\n\nSome minutes. Without a GPU the CPU's part runs, and what was "
        "skipped is said.\nCUDA needs numba-cuda: pip install 'dubnb[cuda]'"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where, and how large."""
    parser.add_argument("--device", default="auto", help="cuda or auto (default): a GPU too if there is one; cpu: none")
    parser.add_argument("--largest", default="large", metavar="SIZE", help="tiny, small, medium or large (default)")


def run(args: argparse.Namespace) -> None:
    """Check, print; a failed check is a failure."""
    from dubnb import selftest
    from dubnb.device import DEVICES

    choice("device", args.device, DEVICES)
    choice("largest", args.largest, tuple(selftest.SIZES))
    result = selftest.run(args.device, args.largest, first_seed(args), _output.remarks(args))
    failed = [check for check in result.checks if not check.passed]
    if args.json:
        checks = [check._asdict() for check in result.checks]
        _output.print_json({"versions": result.versions, "checks": checks, "skipped": result.skipped})
    else:
        _output.print_text("\n".join(f"{name} {version}" for name, version in result.versions.items()) + "\n")
        _output.print_text(tables.text(HEADER, [_row(check) for check in result.checks], "<<<<<>>>"))
        lines = [f"skipped: {each}" for each in result.skipped] or [INVITATION]
        _output.print_text("\n" + "\n".join(lines))
    if failed:
        _output.say(f"selftest: {len(failed)} of {len(result.checks)} checks failed")
        raise SystemExit(1)


def _row(check: Comparison) -> tuple[object, ...]:
    what, size, device, passed, detail, ms, ratio = check
    times, spread = ("-", "-") if ratio is None else (f"{ratio[0]:.2f}", f"{ratio[1]:.2f}-{ratio[2]:.2f}")
    return what, size, device, "pass" if passed else "FAIL", detail, "-" if ms is None else f"{ms:.1f}", times, spread
