"""`dubnb audit`: is the randomized log random, what leaks, how biased is the rest?"""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from dubnb import _files
from dubnb.cli import _data, _output
from dubnb.cli._values import first_seed

NAME = "audit"
SUMMARY = "ask whether the randomized log is random, what leaks, and how biased the rest is"
SEED_HELP = "seed of the uniform logs to compare with (default 0)"


def notes() -> str:
    """Below the options in the help."""
    return (
        "examples:"
        "\n  dubnb audit --data simulated"
        "\n  dubnb audit --biased log.csv --random random.csv --out audit.html"
        f"\n\n{_data.notes()}"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """How many uniform logs, and the page."""
    _data.add_options(parser)
    parser.add_argument("--draws", type=int, default=999, metavar="N", help="uniform logs (default %(default)s)")
    parser.add_argument("--out", metavar="FILE", help="also write a page, such as audit.html")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")


def _colours() -> bool:
    """Whether stdout is a terminal that may be coloured (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _painted(text: str, verdict: str) -> str:
    """Green for yes, red for no, yellow for what cannot be told, grey for information."""
    from dubnb.theory.audit import INFORMATION, NO, UNKNOWN, YES

    code = {YES: 32, NO: 31, UNKNOWN: 33, INFORMATION: 90}[verdict]
    return f"\033[1;{code}m{text}\033[0m"


def run(args: argparse.Namespace) -> None:
    """Load, ask, print."""
    import dubnb

    seed = first_seed(args)
    if args.out is not None:
        _output.check_writable(args.out, args.overwrite)
    data = _data.load(args)
    audited = dubnb.audit(data, n_draws=args.draws, seed=seed, quiet=args.quiet)
    if args.out is not None:
        from dubnb.report import page, theory

        command = shlex.join(["dubnb", NAME, *_data.words(args), "--out", args.out])
        with _files.atomic_write(args.out, args.overwrite) as file:
            file.write(page.render(theory.audit_page(audited, data, command)).encode())
    if args.json:
        _output.print_json(audited.to_dict() | {"facts_of_data": _data.facts(data), "page": args.out})
        return
    _output.print_text(audited.text(_painted if _colours() else lambda text, verdict: text))
    if args.out is not None:
        _output.print_text(f"\nwritten to {args.out}")
