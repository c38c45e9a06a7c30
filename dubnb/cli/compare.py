"""`dubnb compare`: which system suits my log."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from dubnb.cli import _budget, _data, _output
from dubnb.cli._values import first_seed
from dubnb.report import tables

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.compare import Compared

MODEL, SHIPPED = "winner.npz", "ship.npz"
NAME = "compare"
SUMMARY = "find out which system suits a log, and keep the fitted winner"
SEED_HELP = "seed of the searches, of the first fits and of the winner (default 0)"


def notes() -> str:
    """Budgets, systems, datasets, from the registries."""
    example = "dubnb compare --biased log.csv --random random.csv --threshold 3 --out runs/mine"
    return "\n".join([*_budget.notes("system that goes on", example), _data.notes()])


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much to try, and where the page and the winner go."""
    _data.add_options(parser)
    _budget.add_options(parser, "mf; with full both")
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="what chooses and is claimed: liked@10, percentile, user_auc, auc or ndcg (default: liked@10, or where "
        "the validation part judges fewer than 100 recommended items percentile)",
    )
    parser.add_argument("--scheduler", metavar="ADDRESS", help="a Dask scheduler to run on instead")


def run(args: argparse.Namespace) -> None:
    """Compare, save, and print the answer."""
    from dubnb.experiments.compare import compare
    from dubnb.sweeps.engine import Resources

    choice = _budget.choice(args).checked()
    resources = Resources(n_jobs=args.n_jobs, scheduler=args.scheduler, quiet=args.quiet).checked()
    seed = first_seed(args)
    data = _data.load(args)
    say = _output.remarks(args)
    done = compare(data, args.out, args.budget, choice, seed, resources, say, _data.words(args), args.metric)
    if args.json:
        _output.print_json(_document(done, data))
        return
    for sentence in done.answer:
        _output.print_text(sentence)
    _output.print_text(f"Report: {tables.printable(done.report)}")
    if done.takes:
        _output.print_text(f"To ship: {tables.printable(os.path.join(done.out, SHIPPED))}")


def _document(done: Compared, data: Partition) -> dict[str, Any]:
    """The JSON document."""
    claims = [
        {"metric": each.metric, "over": each.second.system.name, "kind": each.kind}
        | dict(zip(("value", "low", "high"), each[-3:], strict=True))
        for each in done.claims
    ]
    files = {"report": done.report, "model": os.path.join(done.out, MODEL), "ship": os.path.join(done.out, SHIPPED)}
    rival = done.verdict.rival
    return {
        "data": _data.facts(data),
        "answer": list(done.answer),
        "winner": done.winner,
        "takes": done.takes,
        "why_not": list(done.verdict.why_not),
        "metric": done.metric,
        "rival": None if rival is None else rival.system.name,
        "gains": claims,
        **files,
    }
