"""`dubnb reproduce`: the paper's experiments and their reports."""

from __future__ import annotations

import argparse

from dubnb.cli import _options, _output
from dubnb.report import tables

NAME = "reproduce"
SUMMARY = "repeat the paper's experiments and write a report"
SEED_HELP = "seed of the searches and of the first fit (default 0)"


def notes() -> str:
    from dubnb.experiments.reproduce import EXPERIMENTS

    experiments = ["experiments:", *(f"  {name}  {each.TITLE}" for name, each in EXPERIMENTS.items()), ""]
    example = "dubnb reproduce rq1 --data simulated --budget smoke --out runs/rq1"
    return "\n".join([*experiments, _options.budget_notes("system", example)])


def add_options(parser: argparse.ArgumentParser) -> None:
    """The experiment, the budget, the systems, and where the report goes."""
    parser.add_argument("experiment", metavar="EXPERIMENT", help="one of those below, or all")
    _options.add_data_options(parser)
    _options.add_budget_options(parser, "the experiment's own")


def run(args: argparse.Namespace) -> None:
    """Run or resume the experiments, and print the answers."""
    from dubnb.experiments.reproduce import Order, reproduce
    from dubnb.sweeps.runner import Resources

    order = Order(
        args.experiment,
        args.out,
        args.budget,
        _options.chosen_systems(args),
        _options.first_seed(args),
        _options.data_words(args),
    ).checked()
    n_jobs = Resources(n_jobs=args.n_jobs).checked().n_jobs
    data = _options.load_data(args)
    outcomes = reproduce(order, data, n_jobs, quiet=args.quiet, say=_output.remarks(args))
    if args.json:
        _output.print_json({"data": _options.data_document(data), "experiments": outcomes})
        return
    for one in outcomes:
        answer = f"{one['experiment']}: {' '.join(one['answer'])}"
        _output.print_text(f"{answer}\nReport: {tables.printable(one['report'])}")
