"""`dubnb export`: embeddings whose inner product is the score, for a vector index."""

from __future__ import annotations

import argparse

from dubnb.cli import _output
from dubnb.cli._values import first_seed
from dubnb.report import tables

NAME = "export"
SUMMARY = "write embeddings whose plain inner product is the model's score, as .npy and Parquet (mf)"
SEED_HELP = "unused: nothing here is random"


def notes() -> str:
    """Below the options in the help."""
    return "example:\n  dubnb export --model m.npz --out vectors\n\ndocs/deployment.md shows how an index uses them."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which model, where to."""
    parser.add_argument("--model", required=True, metavar="FILE", help="a model that `dubnb fit` saved")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the files go; made if it is not there")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")


def run(args: argparse.Namespace) -> None:
    """Load, write, say what was written."""
    import dubnb

    first_seed(args)
    names = dubnb.load(args.model).export(args.out, overwrite=args.overwrite)
    if args.json:
        _output.print_json({"model": args.model, "out": args.out, "files": names})
        return
    _output.print_text(f"{', '.join(names)}, written to {tables.printable(args.out)}")
