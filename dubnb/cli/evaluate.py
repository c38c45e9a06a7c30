"""`dubnb evaluate`: judge a saved model on the test set."""

from __future__ import annotations

import argparse

from dubnb._check import choice
from dubnb.cli import _data, _output
from dubnb.cli._values import first_seed

NAME = "evaluate"
SUMMARY = "judge a saved model on the test set"
SEED_HELP = "unused: nothing here is random"


def notes() -> str:
    """Below the options in the help."""
    return f"example:\n  dubnb evaluate --data simulated --model m.npz --json\n\n{_data.notes()}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which model, and how lists are made."""
    _data.add_options(parser)
    parser.add_argument("--model", required=True, metavar="FILE", help="a model that `dubnb fit` saved")
    parser.add_argument(
        "--protocol", default="full-ranking", help="full-ranking (default) or test-items (rank the user's test items)"
    )


def run(args: argparse.Namespace) -> None:
    """Load, judge, print."""
    import dubnb
    from dubnb.evaluation import PROTOCOLS

    model = dubnb.load(args.model)
    choice("protocol", args.protocol, tuple(PROTOCOLS))
    first_seed(args)
    data = _data.load(args)
    result = model.evaluate(data, protocol=args.protocol)
    if args.json:
        _output.print_json({**result, "method": model.name, "data": _data.facts(data), "model": args.model})
        return
    _output.print_text(f"{model.name} ({model.backbone})\n")
    _output.print_metrics(result, data)
