"""`dubnb reproduce`: the paper's experiments and their reports."""

from __future__ import annotations

import argparse

from dubnb.cli import _budget, _data, _output
from dubnb.cli._values import first_seed
from dubnb.report import tables

NAME = "reproduce"
SUMMARY = "repeat the paper's experiments and write a report"
SEED_HELP = "seed of the searches and of the first fit (default 0)"


def notes() -> str:
    """Experiments, budgets, systems, datasets, from the registries."""
    from dubnb.experiments.reproduce import EXPERIMENTS

    experiments = ["experiments:", *(f"  {name}  {each.TITLE}" for name, each in EXPERIMENTS.items()), ""]
    example = "dubnb reproduce rq1 --data simulated --budget smoke --out runs/rq1"
    return "\n".join([*experiments, *_budget.notes("system", example), _data.notes()])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which experiment, how much of it, and where the report goes."""
    parser.add_argument("experiment", metavar="EXPERIMENT", help="one of those below, or all")
    _data.add_options(parser)
    _budget.add_options(parser, "the experiment's own")


def run(args: argparse.Namespace) -> None:
    """Run, or go on with, what was asked for, and print the answers."""
    from dubnb.experiments.reproduce import Order, reproduce
    from dubnb.sweeps.engine import Resources

    order = Order(
        args.experiment, args.out, args.budget, _budget.choice(args), first_seed(args), _data.words(args)
    ).checked()
    n_jobs = Resources(n_jobs=args.n_jobs).checked().n_jobs
    data = _data.load(args)
    outcomes = reproduce(order, data, n_jobs, quiet=args.quiet, say=_output.remarks(args))
    if args.json:
        _output.print_json({"data": _data.facts(data), "experiments": outcomes})
        return
    for one in outcomes:
        answer = f"{one['experiment']}: {' '.join(one['answer'])}"
        _output.print_text(f"{answer}\nReport: {tables.printable(one['report'])}")
