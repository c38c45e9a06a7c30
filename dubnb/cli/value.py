"""`dubnb value`: estimate the share of liked items in a saved model's top K, from the randomized log."""

from __future__ import annotations

import argparse

from dubnb.cli import _options, _output

NAME = "value"
SUMMARY = "estimate what share of a model's top K people would like, before an A/B test"
SEED_HELP = "not used: nothing here is random"


def notes() -> str:
    return (
        "Estimators: ips, snips and dr (doubly robust), with 95 % intervals that are\n"
        "clustered by user. They also judge the most popular items, items at random,\n"
        "the exploration policy and what the biased log showed.\n"
        "docs/ab-tests.md says how to read them.\n\n"
        "examples:\n"
        "  dubnb value --data simulated --model m.npz\n"
        "  dubnb value --biased b.csv --random r.csv --random-propensity p --model m.npz -k 5 --json"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The model and the length of its lists."""
    _options.add_data_options(parser)
    parser.add_argument("--model", required=True, metavar="FILE", help="a model that `dubnb fit` saved")
    parser.add_argument("-k", type=int, default=10, metavar="K", help="items shown to each user (default 10)")


def run(args: argparse.Namespace) -> None:
    """Estimate and print."""
    import dubnb

    _options.first_seed(args)
    model = dubnb.load(args.model)
    data = _options.load_data(args)
    found = dubnb.value(model, data, k=args.k)
    if args.json:
        _output.print_json(found.to_dict() | {"model": args.model, "data": _options.data_document(data)})
        return
    _output.print_text(found.text())
