"""`dubnb plan`: what more randomized traffic would buy, and what it would cost."""

from __future__ import annotations

import argparse
import os
import shlex

from dubnb import _files
from dubnb.cli import _data, _output
from dubnb.cli._values import first_seed

NAME = "plan"
SUMMARY = "learning curves: what more randomized traffic would buy, and its price"
SEED_HELP = "seed of the samples and of the first model (default 0)"
PAGE = "plan.html"


def notes() -> str:
    """Below the options in the help."""
    return (
        "budgets: smoke (does everything run?), quick (3 fits per size and method), full (6)"
        "\n\nexample:\n  dubnb plan --data simulated --budget quick --out runs/plan"
        f"\n\n{_data.notes()}"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much to fit, and where."""
    _data.add_options(parser)
    parser.add_argument("--budget", default="quick", metavar="NAME", help="smoke, quick (default) or full, see below")
    parser.add_argument("--out", required=True, metavar="DIR", help="where fits and the page go; run again, it resumes")
    parser.add_argument("--methods", metavar="NAMES", help="with commas between (default: base,unif,...,dub-x)")
    parser.add_argument("--more", type=int, metavar="N", help="random impressions to buy (default: as many again)")
    parser.add_argument("--n-jobs", type=int, default=1, metavar="N", help="worker processes (default 1)")


def run(args: argparse.Namespace) -> None:
    """Load, fit, print."""
    import dubnb
    from dubnb.report import page, theory
    from dubnb.theory.plan import METHODS

    seed = first_seed(args)
    methods = METHODS if args.methods is None else tuple(args.methods.split(","))
    data = _data.load(args)
    options = {"n_jobs": args.n_jobs, "seed": seed, "quiet": args.quiet}
    fits = os.path.join(args.out, "fits")
    planned = dubnb.plan(data, budget=args.budget, methods=methods, more=args.more, out=fits, **options)
    path = os.path.join(args.out, PAGE)
    words = ["dubnb", NAME, *_data.words(args), "--budget", args.budget, "--out", args.out]
    words += [] if args.methods is None else ["--methods", args.methods]
    words += [] if args.more is None else ["--more", str(args.more)]
    with _files.atomic_write(path, overwrite=True) as file:  # made anew from the same fits, like every report in DIR
        file.write(page.render(theory.plan_page(planned, data, shlex.join(words))).encode())
    if args.json:
        _output.print_json(planned.to_dict() | {"facts_of_data": _data.facts(data), "page": path})
        return
    _output.print_text(planned.text())
    _output.print_text(f"\nwritten to {path}")
