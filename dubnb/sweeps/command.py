"""`dubnb sweep`: its options, and what it prints. Light to import: the command line does so on every start."""

import sys

from dubnb import _check
from dubnb._check import InputError

SUMMARY = "fit a method on many points and seeds and choose on the validation set; run again, it resumes"
HEADLINE = ("va_auc", "va_ndcg", "auc", "ndcg", "p@5", "p@10", "r@5", "r@10", "truth_auc", "truth_ndcg")


def notes():
    """Below the options in the help."""
    return (
        "A grid file is TOML, one line per parameter, such as\n"
        "  rank = [50, 100]\n  lam = [1e-5, 1e-4]\n\n"
        "examples:\n"
        "  dubnb sweep --data simulated --method dub --grid paper --seeds 5 --n-jobs 2 --out runs/x\n"
        "  dubnb sweep --status runs/x\n\n"
        "DIR gets ledger.sqlite, results.csv (a row per trial) and best.json. S_te never takes part in choosing."
    )


def add_options(parser):
    """The command's own options; those for the data and those of every command are added elsewhere."""
    add = parser.add_argument
    add("--method", metavar="NAME", help="base, unif, combine, ips, cause, bridge, autodebias, dub or dub-x")
    add("--backbone", default="mf", metavar="NAME", help="mf (default) or ncf")
    add("--grid", default="wide", metavar="GRID", help="paper, wide (default) or a TOML file")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of all trials; repeatable")
    add("--seeds", type=int, default=1, metavar="N", help="seeds per point (default 1), from --seed on")
    add("--n-jobs", type=int, default=1, metavar="N", help="worker processes (default 1; -1: one per CPU)")
    add("--out", metavar="DIR", help="the sweep's directory; an earlier sweep in it is resumed or extended")
    add("--random-search", type=int, metavar="N", help="only N points of the grid, at random (wide: 60 unless --full)")
    add("--full", action="store_true", help="all points of the grid wide")
    add("--halving", action="store_true", help="give all points a few epochs, and only the best third more, twice")
    add("--select", default="auc", metavar="HOW", help="auc (default), ndcg, or METRIC,TOLERANCE,METRIC on S_va")
    add("--protocol", default="full-ranking", help="full-ranking (default) or test-items")
    add("--scheduler", metavar="ADDRESS", help="run on the Dask cluster with this scheduler instead of this machine")
    add("--time-limit", type=float, metavar="S", help="seconds that a trial may take")
    add("--retries", type=int, default=2, metavar="N", help="extra attempts for a trial whose worker died (default 2)")
    add("--retry-failed", action="store_true", help="run failed and quarantined trials again")
    add("--pretrained", metavar="DIR", help="pre-trained models to share with other sweeps (default: in --out)")
    add("--status", metavar="DIR", help="say how the sweep in DIR stands, also while it runs; needs no other option")


def run(args, load_data, read_settings):
    """Do what the parsed options ask; returns (JSON document, text).

    `load_data(args)` gives the Partition; `read_settings(texts, cls)` reads what --set gives.
    """
    if args.status is not None:
        return _status(args.status)
    from dubnb.sweeps.grid import method_class
    from dubnb.sweeps.ledger import check_directory
    from dubnb.sweeps.run import sweep

    for name in ("method", "out"):
        if getattr(args, name) is None:
            raise InputError(f"--{name} is missing: see 'dubnb sweep --help'")
    cls = method_class(args.method)
    fixed = read_settings(args.set, cls)
    first = _check.whole("--seed", 0 if args.seed is None else args.seed, low=0)
    check_directory(args.out)
    found = sweep(
        cls,
        args.backbone,
        load_data(args),
        args.grid,
        out=args.out,
        seeds=range(first, first + _check.whole("--seeds", args.seeds)),
        n_jobs=args.n_jobs,
        random=args.random_search,
        full=args.full,
        halving=args.halving,
        fixed=fixed,
        select=_selection(args.select),
        protocol=args.protocol,
        scheduler=args.scheduler,
        time_limit=args.time_limit,
        retries=args.retries,
        retry_failed=args.retry_failed,
        pretrained=args.pretrained,
        quiet=args.quiet,
    )
    return _outcome(found)


def _selection(text):
    parts = text.split(",")
    if len(parts) != 3:
        return text
    try:
        return parts[0], float(parts[1]), parts[2]
    except ValueError:
        raise InputError(f"--select {text!r}: the tolerance must be a number, such as auc,0.004,ndcg") from None


def _outcome(found):
    counts = found.trials.status.value_counts().to_dict()
    document = {"out": found.out, "trials": counts, "best": found.best}
    lines = [f"{found.out}: " + ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))]
    for reason in found.trials.reason.dropna().unique()[:3]:
        print(f"dubnb: warning: a trial ended with {reason}", file=sys.stderr)
    if found.best is None:
        from dubnb.sweeps.errors import SweepError

        raise SweepError(f"no point finished on all its seeds: see the reasons in {found.out}/results.csv")
    point = ", ".join(f"{name}={value}" for name, value in found.best["point"].items())
    lines += [f"best on S_va: {point or 'the only point'}", ""]
    lines.append(f"{'metric':<12}{'mean':>10}{'spread':>10}   per seed ({found.best['protocol']})")
    for name in HEADLINE:
        if name in found.best["metrics"]:
            lines.append(_line(name, found.best["metrics"][name]))
    return document, "\n".join(lines)


def _line(name, summary):
    numbers = [summary["mean"], summary["std"], *summary["values"]]
    mean, spread, *values = ("-" if number is None else f"{number:.4f}" for number in numbers)
    return f"{name:<12}{mean:>10}{spread:>10}   {' '.join(values)}"


def _status(out):
    from dubnb.sweeps.run import status

    found = status(out)
    counts = ", ".join(f"{number} {name}" for name, number in sorted(found["counts"].items())) or "none yet"
    lines = [f"{found['method']} ({found['backbone']}), {'running' if found['running'] else 'not running'}"]
    lines.append(f"trials: {counts}; {found['trials']} asked for last")
    if found["best"]:
        lines.append(f"best trial so far: va_auc {found['best']['metrics']['va_auc']:.4f}")
    return found, "\n".join(lines)
