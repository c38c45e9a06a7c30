"""`dubnb plan`: what more randomized traffic would bring, and what it would cost."""

from __future__ import annotations

import argparse
import os
import shlex

from dubnb import _files
from dubnb.cli import _options, _output

NAME = "plan"
SUMMARY = "estimate what more randomized traffic would bring, and its price"
SEED_HELP = "seed of the samples and of the first model (default 0)"
PAGE = "plan.html"


def notes() -> str:
    return (
        "budgets: smoke (a check that everything runs), quick (3 fits per size and method), full (6)"
        "\n\nexample:\n  dubnb plan --data simulated --budget quick --out runs/plan"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The budget, the methods, and where the page goes."""
    _options.add_data_options(parser)
    parser.add_argument("--budget", default="quick", metavar="NAME", help="smoke, quick (default) or full, see below")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="where fits and the page go; run again with the same DIR to resume"
    )
    parser.add_argument("--methods", metavar="NAMES", help="with commas between (default: base,unif,...,dub-x)")
    parser.add_argument("--more", type=int, metavar="N", help="random impressions to buy (default: as many again)")
    spent = "impressions that could be spent: how many, by which design, the likes forgone and the gain"
    parser.add_argument("--impressions", type=int, metavar="N", help=spent)
    parser.add_argument("--n-jobs", type=int, default=1, metavar="N", help="worker processes (default 1)")


def run(args: argparse.Namespace) -> None:
    """Fit the learning curves, write the page and print the plan."""
    import dubnb
    from dubnb.report import page, theory
    from dubnb.theory.plan import PLANNED

    seed = _options.first_seed(args)
    methods = PLANNED if args.methods is None else tuple(args.methods.split(","))
    data = _options.load_data(args)
    options = {"n_jobs": args.n_jobs, "seed": seed, "quiet": args.quiet}
    fits = os.path.join(args.out, "fits")
    options |= {"more": args.more, "impressions": args.impressions}
    planned = dubnb.plan(data, budget=args.budget, methods=methods, out=fits, **options)
    path = os.path.join(args.out, PAGE)
    words = ["dubnb", NAME, *_options.data_words(args), "--budget", args.budget, "--out", args.out]
    words += [] if args.methods is None else ["--methods", args.methods]
    words += [] if args.more is None else ["--more", str(args.more)]
    words += [] if args.impressions is None else ["--impressions", str(args.impressions)]
    with _files.atomic_write(path, overwrite=True) as file:
        file.write(page.render(theory.plan_page(planned, data, shlex.join(words))).encode())
    if args.json:
        _output.print_json(planned.to_dict() | {"facts_of_data": _options.data_document(data), "page": path})
        return
    _output.print_text(planned.text())
    _output.print_text(f"\nwritten to {path}")
