"""`dubnb evaluate`: evaluate a saved model on the test set."""

from __future__ import annotations

import argparse
import math
from typing import Any

from dubnb._check import InputError, choice, short_repr
from dubnb.cli import _options, _output

NAME = "evaluate"
SUMMARY = "evaluate a saved model on the test set"
SEED_HELP = "not used: nothing here is random"
POPULARITY = "popularity"
BELOW = 3  # exit code: the result is below --fail-below


def notes() -> str:
    return (
        "With --fail-below the exit code is 3 if the result is below; the result is printed either\n"
        "way. Other exit codes: 0 done, 1 failed, 2 wrong use or bad input.\n\n"
        "examples:\n"
        "  dubnb evaluate --data simulated --model m.npz --json\n"
        "  dubnb evaluate --data simulated --model m.npz --fail-below popularity\n"
        "  dubnb evaluate --data simulated --model m.npz --metric ndcg --fail-below .1"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The model, the protocol, and the value it must reach."""
    _options.add_data_options(parser)
    parser.add_argument("--model", required=True, metavar="FILE", help="a model that `dubnb fit` saved")
    parser.add_argument(
        "--protocol", default="full-ranking", help="full-ranking (default) or test-items (rank the user's test items)"
    )
    _options.add_reading_options(parser, "rank users on a Dask cluster", "keep a directory of log files on disk")
    parser.add_argument(
        "--keep-trained",
        action="store_true",
        help="also evaluate on test pairs that the model was trained or chosen on",
    )
    parser.add_argument(
        "--fail-below", metavar="X", help="popularity or a number: exit with code 3 if the model's --metric is below it"
    )
    parser.add_argument("--metric", metavar="NAME", help="the metric of --fail-below (default: that of early stopping)")


def run(args: argparse.Namespace) -> int | None:
    """Evaluate and print; with --fail-below, the exit code says whether the model is good enough."""
    import dubnb
    from dubnb.evaluation import PROTOCOLS

    asked = _fail_below(args)
    _options.check_reading(args, ["parts_dir"])
    model = dubnb.load(args.model)
    choice("protocol", args.protocol, tuple(PROTOCOLS))
    _options.first_seed(args)
    data = _options.load_data(args)
    how = {"keep_trained": args.keep_trained, "scheduler": args.scheduler}
    result = model.evaluate(data, protocol=args.protocol, **how)
    outcome = None if asked is None else _checked_value(result, args.metric or model.params_["monitor"], asked)
    if args.json:
        document = {**result, "method": model.name, "data": _options.data_document(data), "model": args.model}
        _output.print_json(document | ({} if outcome is None else {"fail_below": outcome}))
    else:
        _output.print_text(f"{model.name} ({model.backbone})\n")
        _output.print_metrics(result, data)
        _output.print_trained(result)
    if outcome is None or not outcome["below"]:
        return None
    least = f"{outcome['least']:.4f}" + (", popularity's" if outcome["asked"] == POPULARITY else "")
    _output.print_message(f"{outcome['metric']} {outcome['value']:.4f} is worse than {least}: exit code {BELOW}")
    return BELOW


def _fail_below(args: argparse.Namespace) -> float | str | None:
    """The value of --fail-below: a number, "popularity", or None."""
    if args.fail_below is None:
        if args.metric is not None:
            raise InputError(
                f"--metric {short_repr(args.metric)} goes with --fail-below: add it, or leave --metric out"
            )
        return None
    if args.fail_below == POPULARITY:
        return POPULARITY
    try:
        least = float(args.fail_below)
    except ValueError:
        least = math.nan
    if not math.isfinite(least):
        raise InputError(f"--fail-below {short_repr(args.fail_below)} must be popularity or a number, such as .6")
    return least


def _checked_value(result: dict[str, Any], metric: str, asked: float | str) -> dict[str, Any]:
    """The model's value of a metric compared with the asked one; a value that is nan counts as below."""
    from dubnb import metrics

    known = tuple(name for name in result if metrics.is_name(name))
    if asked == POPULARITY:
        known = tuple(name for name in known if f"popularity_{name}" in result)
    choice("metric", metric, known)
    value = float(result[metric])
    least = float(result[f"popularity_{metric}"] if asked == POPULARITY else asked)
    worse = value > least if metrics.metric_named(metric)[0].low_is_good else value < least
    below = bool(worse or math.isnan(value))
    return {"metric": metric, "value": value, "asked": asked, "least": least, "below": below}
