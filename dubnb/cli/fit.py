"""`dubnb fit`: train a method on a log and save it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dubnb._check import choice, whole
from dubnb.choice import chosen_settings, tried_settings
from dubnb.cli import _options, _output
from dubnb.report import tables

if TYPE_CHECKING:
    from dubnb.methods._method import Method

NAME = "fit"
SUMMARY = "train a method, save it, and report it on the validation and test sets"
SEED_HELP = "seed of the model, never of the data (default 0)"
REFITS: dict[str, bool | str] = {"S_va": True, "all": "all"}  # --refit -> fit(refit=)
REFIT = "refit "  # prefix of the names of a refit's stages


def notes() -> str:
    return (
        "examples:\n"
        "  dubnb fit --data simulated --method dub --set rank=20 --set gamma=1 --out m.npz\n"
        "  dubnb fit --biased log.csv --random random.csv --threshold 3 --method base --out m.npz\n"
        "  dubnb fit --biased log.csv --random random.csv --method dub-x --refit all --out ship.npz"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The method, its parameters, and where the model goes."""
    _options.add_methods_help(parser)
    _options.add_data_options(parser)
    parser.add_argument("--method", required=True, metavar="NAME", help="the method to train, such as dub-x")
    parser.add_argument("--backbone", metavar="NAME", help="mf (default) or ncf")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the method; may be repeated"
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="threads for mf; the result stays the same (default 1)"
    )
    _options.add_reading_options(
        parser, "solve one dub-x or ials on a Dask cluster", "keep the parts on disk; run again to resume"
    )
    parser.add_argument("--parts", type=int, metavar="N", help="cut the users into N parts")
    parser.add_argument(
        "--refit",
        metavar="WHAT",
        help="then train again, with what was chosen: S_va adds S_va, all the whole randomized log (to ship)",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="where to save the model, such as m.npz")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")


def run(args: argparse.Namespace) -> None:
    """Train the method, save the model, evaluate it and print the result."""
    whole("threads", args.threads)
    refit = args.refit is not None and REFITS[choice("--refit", args.refit, tuple(REFITS))]
    _output.check_writable(args.out, args.overwrite)
    model = _new_model(args)
    cut = {"parts": args.parts, "scheduler": args.scheduler, "parts_dir": args.parts_dir}
    if model.is_baseline:  # it needs the counts alone, which reading gives
        _options.check_reading(args)
        cut |= {"scheduler": None, "parts_dir": None}
    _check_parts(model, cut)
    data = _options.load_data(args)
    remark = _output.remarks(args)
    split = data.split.text() if args.data is None and data.split is not None else None  # printed by `load_data`
    for line in data.summary().splitlines():
        if line.strip() != split:
            remark(line)
    cut["parts_dir"] = None if data.stored_in is not None else cut["parts_dir"]  # the data know it
    model.fit(data, quiet=args.quiet, threads=args.threads, refit=refit, **cut)
    model.save(args.out, args.overwrite)
    test = model.evaluate(data)
    history = model.history_
    stages = history.groupby("stage", sort=False)["epoch"].count().to_dict()
    monitor = model.params_["monitor"]
    rejected = set(history["stage"][history["chosen"] == 0]) if "chosen" in history else set()
    kept = {stage: n for stage, n in stages.items() if stage not in rejected}
    judged = [stage for stage in kept if not stage.startswith(REFIT)]  # a refit has trained on S_va
    last = history[history["stage"] == judged[-1]]
    validation = {"metric": monitor, "value": float(last[f"va_{monitor}"].max())}
    seconds = float(history["seconds"].sum())
    if args.json:
        document = {
            "method": model.name,
            "params": model.params_,
            "data": _options.data_document(data),
            "epochs": stages,
        }
        document |= {"refit": model.refit_} if refit else {}
        if settings := chosen_settings(model.history_rows_):
            document["choice"] = settings._asdict()
        _output.print_json(document | {"seconds": seconds, "validation": validation, "test": test, "model": args.out})
        return
    epochs = ", ".join(f"{stage} {n}" for stage, n in kept.items())
    epochs += f", and {len(rejected)} others that were not chosen" if rejected else ""
    _output.print_text(f"{model.name} ({model.backbone}), epochs: {epochs}; {seconds:.1f} s of training")
    _output.print_text(f"validation {monitor} {tables.cell(validation['value'])} (S_va)")
    for line in _choice_lines(model.history_rows_, kept):
        _output.print_text(line)
    _output.print_text("")
    _output.print_metrics(test, data)
    _output.print_trained(test)
    _output.print_text(f"\nsaved as {tables.printable(args.out)}")


def _choice_lines(history: Sequence[Mapping[str, Any]], kept: Container[str]) -> list[str]:
    """What a fit chose on held-out randomized pairs and by how much; `kept` are the stages of the model."""
    lines = []
    if settings := chosen_settings(history):
        lines.append(f"chosen of {settings.candidates} settings: {settings.name}")
        number = f"{settings.difference:+.2f} +- {settings.standard_error:.2f} standard errors"
        lines.append(f"difference to the runner-up: {number} ({settings.runner_up})")
    for each in tried_settings(history):
        if re.match("head|blend", each.name):
            lines.append(f"{each} standard errors, {'added' if each.name in kept else 'left out'}")
    return lines


def _new_model(args: argparse.Namespace) -> Method:
    """The method with its parameters, checked before any data are read."""
    method = _options.named_method(args.method)
    given = {name: value for name, value in (("seed", args.seed), ("backbone", args.backbone)) if value is not None}
    model = method().set_params(**_options.read_settings(args.set, method, given))
    model.resolve()
    return model


def _check_parts(model: Method, cut: Mapping[str, Any]) -> None:
    """Refuse parts for a method without any, before a log is read."""
    from dubnb.distributed import check_parts

    check_parts(model.resolve(), **cut)
