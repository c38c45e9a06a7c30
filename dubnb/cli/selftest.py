"""`dubnb selftest`: compare training on this machine's devices."""

from __future__ import annotations

import argparse

from dubnb._check import choice
from dubnb.cli import _options, _output
from dubnb.report import tables

NAME = "selftest"
SUMMARY = "check training on this machine, and a GPU against the CPU"
SEED_HELP = "seed of logs and models (default 0)"
HEADER = ("", "size", "device", "result", "", "ms/epoch", "x CPU", "spread")
INVITATION = "CUDA was simulated and compiled, but never run on a GPU: please send us this table, whatever it shows."


def notes() -> str:
    return (
        "example:\n  dubnb selftest --device cuda\n\nTakes some minutes. Without a GPU only the CPU is checked.\n"
        "CUDA needs numba-cuda: pip install 'dubnb[cuda]'"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The device, and the largest log."""
    parser.add_argument(
        "--device", default="auto", help="auto (default) or cuda: also check a GPU if there is one; cpu: do not"
    )
    parser.add_argument("--largest", default="large", metavar="SIZE", help="tiny, small, medium or large (default)")


def run(args: argparse.Namespace) -> None:
    """Run the checks and print them; exit with code 1 if one fails."""
    from dubnb import selftest
    from dubnb.device import DEVICES

    choice("device", args.device, DEVICES)
    choice("largest", args.largest, tuple(selftest.SIZES))
    result = selftest.run(args.device, args.largest, _options.first_seed(args), _output.remarks(args))
    failed = [check for check in result.checks if not check.passed]
    if args.json:
        checks = [check._asdict() for check in result.checks]
        _output.print_json({"versions": result.versions, "checks": checks, "skipped": result.skipped})
    else:
        _output.print_text("\n".join(f"{name} {version}" for name, version in result.versions.items()) + "\n")
        rows = []
        for what, size, device, passed, detail, ms, ratio in result.checks:
            times = ("-", "-") if ratio is None else (f"{ratio[0]:.2f}", f"{ratio[1]:.2f}-{ratio[2]:.2f}")
            verdict = "pass" if passed else "FAIL"
            rows.append((what, size, device, verdict, detail, "-" if ms is None else f"{ms:.1f}", *times))
        _output.print_text(tables.text(HEADER, rows, "<<<<<>>>"))
        lines = [f"skipped: {each}" for each in result.skipped] or [INVITATION]
        _output.print_text("\n" + "\n".join(lines))
    if failed:
        _output.print_message(f"selftest: {len(failed)} of {len(result.checks)} checks failed")
        raise SystemExit(1)
