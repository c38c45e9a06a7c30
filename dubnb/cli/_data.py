"""The options that name the data, and the Partition they stand for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dubnb._check import InputError, shown

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

COLUMNS = ("user", "item", "label", "weight", "propensity")
OWN = (*COLUMNS, "threshold")  # options that go with --biased and --random
ALL = ("data", "data_dir", "data_seed", "biased", "random", *OWN)


def add_options(parser: argparse.ArgumentParser) -> None:
    """--data and its kind, or --biased, --random and their columns."""
    named = parser.add_argument_group("a dataset by name")
    named.add_argument("--data", metavar="NAME", help="see below")
    named.add_argument("--data-dir", metavar="DIR", help="where its files are, if it has some")
    named.add_argument(
        "--data-seed", type=int, default=0, metavar="N", help="seed of a simulated log, or of the split (default 0)"
    )
    own = parser.add_argument_group("or your own files (CSV with a header, or Parquet)")
    own.add_argument("--biased", metavar="FILE", help="the ordinary log: S_c")
    own.add_argument("--random", metavar="FILE", help="the randomized log: 10 %% S_t, 10 %% S_va, 80 %% S_te")
    for column in ("user", "item", "label"):
        own.add_argument(f"--{column}", metavar="COLUMN", help=f"column of the {column}s (default {column})")
    own.add_argument("--weight", metavar="COLUMN", help="column of sample weights (default: all weigh 1)")
    own.add_argument("--propensity", metavar="COLUMN", help="column of P(observed) in the biased log, for ips")
    own.add_argument(
        "--threshold", type=float, metavar="X", help="labels above X are positive (default: labels are 0/1)"
    )


def notes() -> str:
    """The names that --data takes."""
    from dubnb.data.datasets import DATASETS

    return "\n".join(["datasets:", *(f"  {name:<14} {dataset.description}" for name, dataset in DATASETS.items())])


def load(args: argparse.Namespace) -> Partition:
    """The Partition that --data, or --biased and --random, ask for."""
    own = {name: getattr(args, name) for name in OWN if getattr(args, name) is not None}
    if args.data is not None:
        given = [name for name in ("biased", "random") if getattr(args, name) is not None] + list(own)
        if given:
            raise InputError(f"--{given[0]} is for your own files: leave it or --data {shown(args.data)} out")
        from dubnb import load_dataset

        return load_dataset(args.data, seed=args.data_seed, data_dir=args.data_dir, quiet=args.quiet)
    if args.biased is None or args.random is None:
        raise InputError("no data: give --data NAME, or both --biased FILE and --random FILE")
    if args.data_dir is not None:
        raise InputError("--data-dir goes with --data: --biased and --random are paths themselves")
    from dubnb.data.table import read_log

    return read_log(args.biased, args.random, split_seed=args.data_seed, **own)


def facts(data: Partition) -> dict[str, Any]:
    """What JSON documents say of the data."""
    sizes = {part: len(data.triplets(part).users) for part in ("S_c", "S_t", "S_va", "S_te")}
    about = {"name": data.name, "fingerprint": data.fingerprint, "users": data.n_users, "items": data.n_items}
    return about | {"pairs": sizes, "removed_from_S_c": data.removed}


def words(args: argparse.Namespace) -> list[str]:
    """The options that name the data, as they were given."""
    given = {name: getattr(args, name) for name in ALL if getattr(args, name) is not None}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
