"""`dubnb reproduce`: the paper's experiments and their reports."""

from __future__ import annotations

import argparse

from dubnb.cli import _data, _output
from dubnb.cli._values import first_seed, listed
from dubnb.report import tables

NAME = "reproduce"
SUMMARY = "repeat the paper's experiments and write a report"
SEED_HELP = "seed of the searches and of the first fit (default 0)"


def notes() -> str:
    """Experiments, budgets, systems, datasets, from the registries."""
    from dubnb.experiments.budgets import BUDGETS
    from dubnb.experiments.reproduce import EXPERIMENTS
    from dubnb.experiments.systems import GROUPS

    lines = ["experiments:", *(f"  {name}  {each.TITLE}" for name, each in EXPERIMENTS.items()), "", "budgets:"]
    for budget in BUDGETS.values():
        lines.append(
            f"  {budget.name:<6} {budget.points} candidates per system, {budget.seeds} seeds; {budget.description}"
        )
    lines += ["", "systems:", *(f"  {group:<10} {', '.join(names) or '-'}" for group, names in GROUPS.items())]
    lines += ["", "example:", "  dubnb reproduce rq1 --data simulated --budget smoke --out runs/rq1", ""]
    return "\n".join([*lines, _data.notes()])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which experiment, how much of it, and where the report goes."""
    parser.add_argument("experiment", metavar="EXPERIMENT", help="one of those below, or all")
    _data.add_options(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="where reports go; run again, it resumes")
    parser.add_argument("--budget", default="quick", metavar="NAME", help="smoke, quick (default) or full, see below")
    parser.add_argument(
        "--systems", metavar="NAMES", help="systems or groups with commas between (default: all groups)"
    )
    parser.add_argument("--backbone", metavar="NAME", help="mf, ncf or mf,ncf (default: the experiment's own)")
    parser.add_argument(
        "--n-jobs", type=int, default=1, metavar="N", help="worker processes (default 1, -1: all cores)"
    )


def run(args: argparse.Namespace) -> None:
    """Run, or go on with, what was asked for, and print the answers."""
    from dubnb.experiments.reproduce import Order, reproduce
    from dubnb.experiments.systems import Choice
    from dubnb.sweeps.engine import Resources

    names, backbones = listed(args.systems), listed(args.backbone)
    choice = Choice(Choice().names if names is None else names, backbones)
    order = Order(args.experiment, args.out, args.budget, choice, first_seed(args), _data.words(args)).checked()
    n_jobs = Resources(n_jobs=args.n_jobs).checked().n_jobs
    data = _data.load(args)
    outcomes = reproduce(order, data, n_jobs, quiet=args.quiet, say=_output.remarks(args))
    if args.json:
        _output.print_json({"data": _data.facts(data), "experiments": outcomes})
        return
    for one in outcomes:
        answer = f"{one['experiment']}: {' '.join(one['answer'])}"
        _output.print_text(f"{answer}\nReport: {tables.printable(one['report'])}")
