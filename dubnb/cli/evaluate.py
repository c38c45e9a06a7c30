"""`dubnb evaluate`: judge a saved model on the test set."""

from __future__ import annotations

import argparse
import math
from typing import Any

from dubnb._check import InputError, choice, shown
from dubnb.cli import _data, _output
from dubnb.cli._values import first_seed

NAME = "evaluate"
SUMMARY = "judge a saved model on the test set"
SEED_HELP = "unused: nothing here is random"
POPULARITY = "popularity"
BELOW = 3  # exit code: the result is below what --fail-below asks


def notes() -> str:
    """Below the options in the help."""
    return (
        "With --fail-below the exit code is 3 if the result is below; the result is printed either\n"
        "way. Exit codes: 0 done, 1 failed, 2 wrong use or bad input, 3 below.\n\n"
        "examples:\n"
        "  dubnb evaluate --data simulated --model m.npz --json\n"
        "  dubnb evaluate --data simulated --model m.npz --fail-below popularity\n"
        f"  dubnb evaluate --data simulated --model m.npz --metric ndcg --fail-below .1\n\n{_data.notes()}"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which model, and how lists are made."""
    _data.add_options(parser)
    parser.add_argument("--model", required=True, metavar="FILE", help="a model that `dubnb fit` saved")
    parser.add_argument(
        "--protocol", default="full-ranking", help="full-ranking (default) or test-items (rank the user's test items)"
    )
    parser.add_argument(
        "--keep-trained", action="store_true", help="judge also on test pairs that the model was trained or chosen on"
    )
    parser.add_argument(
        "--fail-below", metavar="X", help="popularity or a number: exit with code 3 if the model's --metric is below"
    )
    parser.add_argument("--metric", metavar="NAME", help="of --fail-below (default: what early stopping watched)")


def run(args: argparse.Namespace) -> int | None:
    """Load, judge, print; with --fail-below say by the exit code how it went."""
    import dubnb
    from dubnb.evaluation import PROTOCOLS

    asked = _asked(args)
    model = dubnb.load(args.model)
    choice("protocol", args.protocol, tuple(PROTOCOLS))
    first_seed(args)
    data = _data.load(args)
    result = model.evaluate(data, protocol=args.protocol, keep_trained=args.keep_trained)
    held = None if asked is None else _held(result, args.metric or model.params_["monitor"], asked)
    if args.json:
        document = {**result, "method": model.name, "data": _data.facts(data), "model": args.model}
        _output.print_json(document | ({} if held is None else {"fail_below": held}))
    else:
        _output.print_text(f"{model.name} ({model.backbone})\n")
        _output.print_metrics(result, data)
        _output.print_trained(result)
    if held is None or not held["below"]:
        return None
    least = f"{held['least']:.4f}" + (", popularity's" if held["asked"] == POPULARITY else "")
    _output.say(f"{held['metric']} {held['value']:.4f} is worse than {least}: exit code {BELOW}")
    return BELOW


def _asked(args: argparse.Namespace) -> float | str | None:
    """What --fail-below asks: a number, "popularity", or None."""
    if args.fail_below is None:
        if args.metric is not None:
            raise InputError(f"--metric {shown(args.metric)} goes with --fail-below: add it, or leave --metric out")
        return None
    if args.fail_below == POPULARITY:
        return POPULARITY
    try:
        least = float(args.fail_below)
    except ValueError:
        least = math.nan
    if not math.isfinite(least):
        raise InputError(f"--fail-below {shown(args.fail_below)} must be popularity or a number, such as .6")
    return least


def _held(result: dict[str, Any], metric: str, asked: float | str) -> dict[str, Any]:
    """The model's value of a metric against what is asked; a value that does not exist counts as below."""
    from dubnb import metrics

    known = tuple(name for name in result if metrics.is_name(name))
    if asked == POPULARITY:
        known = tuple(name for name in known if f"popularity_{name}" in result)
    choice("metric", metric, known)
    value = float(result[metric])
    least = float(result[f"popularity_{metric}"] if asked == POPULARITY else asked)
    worse = value > least if metrics.parts(metric)[0].low_is_good else value < least
    below = bool(worse or math.isnan(value))
    return {"metric": metric, "value": value, "asked": asked, "least": least, "below": below}
