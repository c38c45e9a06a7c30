"""`dubnb audit`: is the randomized log random, and how biased is the rest?"""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from dubnb import _files
from dubnb._check import InputError, choice
from dubnb.cli import _options, _output

NAME = "audit"
SUMMARY = "check whether the randomized log is random, and measure how biased the rest is"
SEED_HELP = "seed of the uniform logs to compare with (default 0)"


def notes() -> str:
    return (
        "examples:\n  dubnb audit --data simulated\n  dubnb audit --biased log.csv --random random.csv --out audit.html"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The number of uniform logs, and the page."""
    _options.add_data_options(parser)
    parser.add_argument("--draws", type=int, metavar="N", help="uniform logs to compare with (default 999)")
    by = "day: one answer for daily runs, valid at any time (needs --timestamp; takes --seed, not --draws or --out)"
    parser.add_argument("--by", metavar="UNIT", help=by)
    _options.add_reading_options(
        parser, "read the files of --parts-dir on Dask", "keep a directory of log files on disk"
    )
    parser.add_argument("--out", metavar="FILE", help="also write a page, such as audit.html")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")


def _colours() -> bool:
    """Whether stdout is a terminal that may be coloured (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _painted(text: str, verdict: str) -> str:
    """`text` in green for yes, red for no, yellow for unknown, grey for information."""
    from dubnb.theory.audit import INFORMATION, NO, UNKNOWN, YES

    code = {YES: 32, NO: 31, UNKNOWN: 33, INFORMATION: 90}[verdict]
    return f"\033[1;{code}m{text}\033[0m"


def run(args: argparse.Namespace) -> None:
    """Audit the data; print the answers and write the page."""
    import dubnb

    seed = _options.first_seed(args)
    by = None if args.by is None else choice("--by", args.by, ("day",))
    if by is not None and (args.out is not None or args.draws is not None):
        raise InputError(f"--by {by} has no page and chooses its draws: leave --out and --draws out")
    if args.out is not None:
        _output.check_writable(args.out, args.overwrite)
    _options.check_reading(args)
    data = _options.load_data(args)
    if by is not None:
        daily = dubnb.audit(data, by=by, seed=seed)  # type: ignore[call-overload]
        if args.json:
            _output.print_json(daily.to_dict() | {"facts_of_data": _options.data_document(data)})
        else:
            _output.print_text(daily.text())
        return
    audited = dubnb.audit(data, n_draws=999 if args.draws is None else args.draws, seed=seed, quiet=args.quiet)
    if args.out is not None:
        from dubnb.report import page, theory

        on_disk = {"--parts-dir": args.parts_dir, "--scheduler": args.scheduler}
        words = [word for name, value in on_disk.items() if value is not None for word in (name, str(value))]
        command = shlex.join(["dubnb", NAME, *_options.data_words(args), *words, "--out", args.out])
        with _files.atomic_write(args.out, args.overwrite) as file:
            file.write(page.render(theory.audit_page(audited, data, command)).encode())
    if args.json:
        _output.print_json(audited.to_dict() | {"facts_of_data": _options.data_document(data), "page": args.out})
        return
    _output.print_text(audited.text(_painted if _colours() else lambda text, verdict: text))
    if args.out is not None:
        _output.print_text(f"\nwritten to {args.out}")
