"""`dubnb sweep`: search a method's parameters."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dubnb._check import InputError, whole
from dubnb.cli import _options, _output

if TYPE_CHECKING:
    from dubnb.sweeps.run import Sweep

NAME = "sweep"
SUMMARY = "search a method's parameters and choose on the validation set; run again to resume"
SEED_HELP = "the first seed (default 0)"
REASONS_AT_MOST = 3  # reasons of failures in warnings


def notes() -> str:
    return (
        "A grid file is TOML, one line per parameter, such as\n"
        "  rank = [50, 100]\n  lam = [1e-5, 1e-4]\n\n"
        "examples:\n"
        "  dubnb sweep --data simulated --method dub --grid paper --seeds 5 --n-jobs 2 --out runs/x\n"
        "  dubnb sweep --status runs/x\n\n"
        "DIR gets ledger.sqlite, results.csv (a row per trial), best.json and best.npz (the chosen point's model).\n"
        "S_te is never used to choose."
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The method, the grid, the workers, and the directory."""
    _options.add_methods_help(parser)
    _options.add_data_options(parser)
    add = parser.add_argument
    add("--method", metavar="NAME", help="the method to search, such as dub-x")
    add("--backbone", default="mf", metavar="NAME", help="mf (default) or ncf")
    add("--grid", default="wide", metavar="GRID", help="paper, wide (default), even or a TOML file")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of all trials; may be repeated")
    add("--seeds", type=int, default=1, metavar="N", help="seeds per point (default 1), from --seed on")
    add("--n-jobs", type=int, default=1, metavar="N", help="worker processes (default 1; -1: one per CPU)")
    add("--out", metavar="DIR", help="the directory of the sweep; an earlier sweep in it is resumed or extended")
    add(
        "--random-search",
        type=int,
        metavar="N",
        help="search N random points of the grid only (wide: 60 unless --full)",
    )
    add("--full", action="store_true", help="all points of the grid wide")
    add(
        "--halving",
        action="store_true",
        help="train all points for a few epochs and only the best third for more, twice",
    )
    add(
        "--select",
        default="auc",
        metavar="HOW",
        help="a metric on S_va (default auc; user_auc, ndcg, liked@10 ...), or METRIC,TOLERANCE,METRIC",
    )
    add("--protocol", default="full-ranking", help="full-ranking (default) or test-items")
    add("--scheduler", metavar="ADDRESS", help="run on the Dask cluster with this scheduler instead of this machine")
    add("--time-limit", type=float, metavar="S", help="time limit of a trial in seconds")
    add("--retries", type=int, default=2, metavar="N", help="extra attempts for a trial whose worker died (default 2)")
    add("--retry-failed", action="store_true", help="run failed and quarantined trials again")
    add("--pretrained", metavar="DIR", help="pre-trained models to share with other sweeps (default: in --out)")
    add(
        "--status",
        metavar="DIR",
        help="print the status of the sweep in DIR, also while it runs; needs no other option",
    )


def run(args: argparse.Namespace) -> None:
    """Run a sweep, or read the status of one, and print it."""
    document, text = _status(args.status) if args.status is not None else _outcome(_search(args))
    _output.print_json(document) if args.json else _output.print_text(text)


def _search(args: argparse.Namespace) -> Sweep:
    from dubnb.sweeps.ledger import check_directory
    from dubnb.sweeps.run import sweep
    from dubnb.sweeps.runner import Resources

    for name in ("method", "out"):
        if getattr(args, name) is None:
            raise InputError(f"--{name} is missing: see 'dubnb sweep --help'")
    method = _options.named_method(args.method)
    fixed = _options.read_settings(args.set, method)
    first, seeds, select = _options.first_seed(args), whole("--seeds", args.seeds), _selection(args.select)
    check_directory(args.out)
    Resources(n_jobs=args.n_jobs, time_limit=args.time_limit, retries=args.retries).checked()  # before data are read
    same = ("n_jobs", "full", "halving", "protocol", "scheduler", "time_limit", "retries", "retry_failed", "pretrained")
    return sweep(
        method,
        args.backbone,
        _options.load_data(args),
        args.grid,
        out=args.out,
        seeds=range(first, first + seeds),
        random=args.random_search,
        fixed=fixed,
        select=select,
        quiet=args.quiet,
        **{name: getattr(args, name) for name in same},
    )


def _selection(text: str) -> str | tuple[str, float, str]:
    parts = text.split(",")
    if len(parts) != 3:
        return text
    try:
        return parts[0], float(parts[1]), parts[2]
    except ValueError:
        raise InputError(f"--select {text!r}: the tolerance must be a number, such as auc,0.004,ndcg") from None


def _outcome(done: Sweep) -> tuple[dict[str, Any], str]:
    """The JSON document and the text."""
    from dubnb import metrics

    counts = done.trials.status.value_counts().to_dict()
    for reason in done.trials.reason.dropna().unique()[:REASONS_AT_MOST]:
        _output.print_message(f"warning: a trial ended with {reason}")
    if done.best is None:
        from dubnb.sweeps.trial import SweepError

        raise SweepError(f"no point finished on all its seeds: see the reasons in {done.out}/results.csv")
    point = ", ".join(f"{name}={value}" for name, value in done.best["point"].items())
    lines = [
        f"{done.out}: " + ", ".join(f"{number} {status}" for status, number in sorted(counts.items())),
        f"best on S_va: {point or 'the only point'}",
        "",
        f"{'metric':<16}{'mean':>10}{'spread':>10}   per seed ({done.best['protocol']})",
    ]
    for name, summary in done.best["metrics"].items():
        if metrics.is_name(name.removeprefix("va_").removeprefix("truth_")):  # a registered metric
            numbers = [summary["mean"], summary["std"], *summary["values"]]
            mean, spread, *values = ("-" if number is None else f"{number:.4f}" for number in numbers)
            lines.append(f"{name:<16}{mean:>10}{spread:>10}   {' '.join(values)}")
    return {"out": done.out, "trials": counts, "best": done.best}, "\n".join(lines)


def _status(out: str) -> tuple[dict[str, Any], str]:
    from dubnb.sweeps.run import status

    now = status(out)
    counts = ", ".join(f"{number} {name}" for name, number in sorted(now["counts"].items())) or "none yet"
    lines = [f"{now['method']} ({now['backbone']}), {'running' if now['running'] else 'not running'}"]
    lines.append(f"trials: {counts}; {now['trials']} asked for last")
    if now["best"]:
        name = f"va_{now['select'][0]}"
        lines.append(f"best trial so far: {name} {now['best']['metrics'][name]:.4f}")
    if now["damaged"]:
        lines.append(f"{now['damaged']} rows are damaged: run the sweep again, and their trials are run again")
    return now, "\n".join(lines)
