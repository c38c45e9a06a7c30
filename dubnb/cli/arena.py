"""`dubnb arena`: every system under equal budgets, and a leaderboard."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from dubnb._check import InputError, whole
from dubnb.cli import _options, _output
from dubnb.report import tables

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

NAME = "arena"
SUMMARY = "run every system under equal budgets and write a leaderboard"
SEED_HELP = "seed of the searches and of the first fits (default 0)"


def notes() -> str:
    """The text below the options in the help."""
    examples = (
        "dubnb arena --data simulated --budget smoke --out runs/arena",
        "dubnb arena --worlds bias-popularity,bias-selection,bias-loop --draws 3 --out runs/biases",
        "dubnb arena --data kuairand --data-dir KuaiRand-Pure/data --out runs/kuairand",
    )
    own = (
        "Candidates inside a fit count. With quick and full every system may try as many as\n"
        "the one whose fit tries the most, if that is more: dub-xi tries up to 14."
    )
    return _options.budget_notes("system", "\n  ".join(examples), extends=False) + f"\n\n{own}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The logs, the budget, the systems, and where the page goes."""
    _options.add_data_options(parser)
    _options.add_budget_options(parser, "mf; with full both")
    add = parser.add_argument
    add("--worlds", metavar="NAMES", help="simulated datasets with commas between, besides or instead of --data")
    add("--draws", type=int, default=1, metavar="N", help="draws of each world, with data seeds from --data-seed on")
    metric = "the metric that chooses and orders: percentile (default), liked@10, user_auc, auc or ndcg"
    add("--metric", default="percentile", metavar="NAME", help=metric)
    add("--scheduler", metavar="ADDRESS", help="run on the Dask cluster with this scheduler instead of this machine")


def run(args: argparse.Namespace) -> None:
    """Run or resume the arena and print the answer and the leaderboard."""
    from dubnb.experiments.arena import arena, gain_interval
    from dubnb.experiments.study import report_label
    from dubnb.experiments.systems import Choice
    from dubnb.sweeps.runner import Resources

    choice = _options.chosen_systems(args, Choice.everything()).checked()
    resources = Resources(n_jobs=args.n_jobs, scheduler=args.scheduler, quiet=args.quiet).checked()
    seed = _options.first_seed(args)
    logs = _logs(args)
    words = _options.data_words(args)
    words += ["--worlds", args.worlds, "--draws", str(args.draws)] if args.worlds is not None else []
    say = _output.remarks(args)
    done = arena(logs, args.out, args.budget, choice, seed, resources, say, words, args.metric)
    if args.json:
        data = {label: _options.data_document(log) for label, log in logs.items()}
        document = {"data": data, "metric": args.metric, "candidates": done.study.budget.points}
        _output.print_json(document | {"answer": done.answer, "leaderboard": done.leaderboard, "report": done.report})
        return
    with_gains = [log for log in logs if any(row["gains"][log] for row in done.leaderboard)]
    header = ["system", "backbone"]
    for log in logs:
        header += [f"{report_label(args.metric)} on {log}", *(["its gain over popularity"] * (log in with_gains))]
    rows = []
    for row in done.leaderboard:
        seconds, cells = row["training_cpu_seconds"], [row["system"], row["backbone"]]
        for log, value in row["values"].items():
            cells += [value, *([gain_interval(row["gains"][log], args.metric) or "-"] * (log in with_gains))]
        cells.append(None if seconds is None else f"{seconds:.2f}")
        rows.append([*cells, ", ".join(row["reads"]) if row["reads"] else "-"])
    align = "<<" + ">" * (len(header) - 1) + "<"
    _output.print_text(tables.text([*header, "CPU s", "reads"], rows, align))
    for sentence in done.answer:
        _output.print_text(sentence)
    _output.print_text(f"Report: {tables.printable(os.path.join(done.report))}")


def _logs(args: argparse.Namespace) -> dict[str, Partition]:
    """The log of --data or of files, and the draws of --worlds."""
    from dubnb.data.datasets import DATASETS, load_dataset

    draws = whole("--draws", args.draws)
    names = _options.split_names(args.worlds) or ()
    if args.worlds is None and draws != 1:
        raise InputError("--draws goes with --worlds: name the worlds to draw")
    if args.worlds is not None and not names:
        raise InputError("--worlds names no world: give simulated datasets with commas between")
    logs: dict[str, Partition] = {}
    if args.worlds is None or any(getattr(args, name) is not None for name in ("data", *_options.FILES)):
        own = _options.load_data(args)
        logs[own.name] = own
    for name in names:
        dataset = DATASETS.get(name.partition(":")[0])
        if dataset is not None and dataset.needs_files:
            raise InputError(f"--worlds {name} is read from files: use --data {name} --data-dir DIR")
        for seed in range(args.data_seed, args.data_seed + draws):
            label = f"{name}, seed {seed}" if draws > 1 else name
            if label in logs:
                raise InputError(f"--worlds names {label} twice: leave one out")
            logs[label] = load_dataset(name, seed=seed, quiet=args.quiet)
    return logs
