"""`dubnb export`: embeddings whose inner product is the score, for a vector index."""

from __future__ import annotations

import argparse

from dubnb.cli import _options, _output
from dubnb.report import tables

NAME = "export"
SUMMARY = "write embeddings whose plain inner product is the model's score, as .npy and Parquet (mf)"
SEED_HELP = "not used: nothing here is random"


def notes() -> str:
    return "example:\n  dubnb export --model m.npz --out vectors\n\ndocs/deployment.md shows how an index uses them."


def add_options(parser: argparse.ArgumentParser) -> None:
    """The model and the directory."""
    parser.add_argument("--model", required=True, metavar="FILE", help="a model that `dubnb fit` saved")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the files go; created if it does not exist")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")


def run(args: argparse.Namespace) -> None:
    """Write the embeddings and print the files' names."""
    import dubnb

    _options.first_seed(args)
    names = dubnb.load(args.model).export(args.out, overwrite=args.overwrite)
    if args.json:
        _output.print_json({"model": args.model, "out": args.out, "files": names})
        return
    _output.print_text(f"{', '.join(names)}, written to {tables.printable(args.out)}")
