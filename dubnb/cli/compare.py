"""`dubnb compare`: which system suits my log."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from dubnb.cli import _options, _output
from dubnb.report import tables

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.compare import Compared

NAME = "compare"
SUMMARY = "find out which system suits a log, and keep the fitted winner"
SEED_HELP = "seed of the searches, of the first fits and of the winner (default 0)"


def notes() -> str:
    example = "dubnb compare --biased log.csv --random random.csv --threshold 3 --out runs/mine"
    return _options.budget_notes("system of the second round", example)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The budget, the systems, and where the page and the winner go."""
    _options.add_data_options(parser)
    _options.add_budget_options(parser, "mf; with full both")
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="the metric that chooses and states the gain: liked@10, percentile, user_auc, auc or ndcg (default: "
        "liked@10, or percentile if the validation part judges fewer than 100 recommended items)",
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="run on the Dask cluster with this scheduler instead of this machine"
    )


def run(args: argparse.Namespace) -> None:
    """Compare the systems and print the answer."""
    from dubnb.experiments.compare import SHIPPED, compare
    from dubnb.sweeps.runner import Resources

    choice = _options.chosen_systems(args).checked()
    resources = Resources(n_jobs=args.n_jobs, scheduler=args.scheduler, quiet=args.quiet).checked()
    seed = _options.first_seed(args)
    data = _options.load_data(args)
    say = _output.remarks(args)
    done = compare(data, args.out, args.budget, choice, seed, resources, say, _options.data_words(args), args.metric)
    if args.json:
        _output.print_json(_document(done, data))
        return
    for sentence in done.answer:
        _output.print_text(sentence)
    if done.promise:
        _output.print_text(done.promise)
    _output.print_text(f"Report: {tables.printable(done.report)}")
    if done.takes:
        _output.print_text(f"To ship: {tables.printable(os.path.join(done.out, SHIPPED))}")


def _document(done: Compared, data: Partition) -> dict[str, Any]:
    """The JSON document."""
    from dubnb.experiments.compare import MODEL, SHIPPED

    claims = [
        {"metric": each.metric, "over": each.second.system.name, "kind": each.kind}
        | dict(zip(("value", "low", "high"), each[-3:], strict=True))
        for each in done.claims
    ]
    files = {"report": done.report, "model": os.path.join(done.out, MODEL), "ship": os.path.join(done.out, SHIPPED)}
    rival = done.verdict.rival
    return {
        "data": _options.data_document(data),
        "answer": list(done.answer),
        "promise": done.promise,
        "value": None if done.value is None else done.value.to_dict(),
        "winner": done.winner,
        "takes": done.takes,
        "why_not": list(done.verdict.why_not),
        "metric": done.metric,
        "rival": None if rival is None else rival.system.name,
        "gains": claims,
        **files,
    }
