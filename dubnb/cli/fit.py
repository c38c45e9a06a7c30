"""`dubnb fit`: train a method on a log and save it."""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import TYPE_CHECKING

from dubnb._check import choice, whole
from dubnb.cli import _data, _output
from dubnb.cli._values import method_class, read_settings
from dubnb.report import tables

if TYPE_CHECKING:
    from dubnb.methods._method import Method

NAME = "fit"
SUMMARY = "train a method, save it, and report it on the validation and test sets"
SEED_HELP = "seed of the model, never of the data (default 0)"
WHATS: dict[str, bool | str] = {"S_va": True, "all": "all"}  # --refit -> fit(refit=)
REFIT = "refit "  # begins the names of the stages of a refit


def notes() -> str:
    """Methods, their parameters, datasets, from the registries."""
    return "\n".join(
        [
            method_notes(),
            "\nexamples:",
            "  dubnb fit --data simulated --method dub --set rank=20 --set gamma=1 --out m.npz",
            "  dubnb fit --biased log.csv --random random.csv --threshold 3 --method base --out m.npz",
            "  dubnb fit --biased log.csv --random random.csv --method dub-x --refit all --out ship.npz",
            f"\n{_data.notes()}",
        ]
    )


def method_notes() -> str:
    """The methods and what --set can set."""
    from dubnb.methods import METHODS

    params = {name: list(method().get_params()) for name, method in METHODS.items()}
    shared = [name for name in next(iter(params.values())) if all(name in own for own in params.values())]
    width = max(map(len, METHODS)) + 1
    lines = ["methods:"]
    for name, method in METHODS.items():
        summary = (sys.modules[method.__module__].__doc__ or "").split("\n")[0].partition(": ")[2]
        lines.append(f"  {name:<{width}} {summary}")
    lines.append("\nparameters for --set (VALUE none: the method's own default):")
    lines.append(_wrapped("all", shared, width))
    for name, own in params.items():
        added = [parameter for parameter in own if parameter not in shared]
        lines += [_wrapped(name, ["also " + added[0], *added[1:]], width)] if added else []
    return "\n".join(lines)


def _wrapped(name: str, parameters: list[str], width: int) -> str:
    start, indent = f"  {name:<{width}} ", " " * (width + 3)
    return textwrap.fill(", ".join(parameters), 79, initial_indent=start, subsequent_indent=indent)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to train on what, and where the model goes."""
    _data.add_options(parser)
    parser.add_argument("--method", required=True, metavar="NAME", help="what to train, see below")
    parser.add_argument("--backbone", metavar="NAME", help="mf (default) or ncf")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the method; repeatable"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="for mf: same result, sooner")
    parser.add_argument(
        "--refit",
        metavar="WHAT",
        help="train once more at the settings and epochs that were chosen: on S_t and S_va (S_va), or on the whole "
        "randomized log and what a split by time held back (all): the model to ship",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="where to save the model, such as m.npz")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")


def run(args: argparse.Namespace) -> None:
    """Train, save, judge, print."""
    whole("threads", args.threads)
    refit = args.refit is not None and WHATS[choice("--refit", args.refit, tuple(WHATS))]
    _output.check_writable(args.out, args.overwrite)
    model = _new_model(args)
    data = _data.load(args)
    remark = _output.remarks(args)
    said = data.split.text() if args.data is None and data.split is not None else None  # by `load`
    for line in data.summary().splitlines():
        if line.strip() != said:
            remark(line)
    model.fit(data, quiet=args.quiet, threads=args.threads, refit=refit)
    model.save(args.out, args.overwrite)
    test = model.evaluate(data)
    stages = model.history_.groupby("stage", sort=False)["epoch"].count().to_dict()
    monitor = model.params_["monitor"]
    judged = [stage for stage in stages if not stage.startswith(REFIT)]  # of a refit S_va can say nothing
    last = model.history_[model.history_["stage"] == judged[-1]]
    validation = {"metric": monitor, "value": float(last[f"va_{monitor}"].max())}
    seconds = float(model.history_["seconds"].sum())
    if args.json:
        document = {"method": model.name, "params": model.params_, "data": _data.facts(data), "epochs": stages}
        document |= {"refit": model.refit_} if refit else {}
        _output.print_json(document | {"seconds": seconds, "validation": validation, "test": test, "model": args.out})
        return
    epochs = ", ".join(f"{stage} {n}" for stage, n in stages.items())
    _output.print_text(f"{model.name} ({model.backbone}), epochs: {epochs}; {seconds:.1f} s of training")
    _output.print_text(f"validation {monitor} {tables.cell(validation['value'])} (S_va)\n")
    _output.print_metrics(test, data)
    _output.print_trained(test)
    _output.print_text(f"\nsaved as {tables.printable(args.out)}")


def _new_model(args: argparse.Namespace) -> Method:
    """The method with all its parameters, checked before any data are read."""
    method = method_class(args.method)
    given = {name: value for name, value in (("seed", args.seed), ("backbone", args.backbone)) if value is not None}
    model = method().set_params(**read_settings(args.set, method, given))
    model.resolve()
    return model
