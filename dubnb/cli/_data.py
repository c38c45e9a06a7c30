"""The options that name the data, and the Partition they stand for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dubnb._check import InputError, option, shown
from dubnb.cli import _output

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

COLUMNS = ("user", "item", "label", "weight", "propensity", "grade", "timestamp")
FILES = ("biased", "random", "log", "is_random")
# options that go with files
OWN = (*COLUMNS, "user_type", "item_type", "threshold", "duplicates", "drop_bad", "split", "shares", "sep")
ALL = ("data", "data_dir", "data_seed", *FILES, *OWN)
SPELLINGS = {"split_seed": "--data-seed"}  # parameters whose option has another name than they
TABS = ("tab", r"\t")


def add_options(parser: argparse.ArgumentParser) -> None:
    """--data and its kind, or --biased, --random and their columns."""
    named = parser.add_argument_group("a dataset by name")
    named.add_argument("--data", metavar="NAME", help="see below")
    named.add_argument("--data-dir", metavar="DIR", help="where its files are, if it has some")
    named.add_argument(
        "--data-seed", type=int, default=0, metavar="N", help="seed of a simulated log, or of the split (default 0)"
    )
    own = parser.add_argument_group(
        "or your own files (CSV or TSV with a header, .gz or not, or Parquet; FILE may be a directory or a pattern)"
    )
    own.add_argument("--biased", metavar="FILE", help="the ordinary log: S_c")
    own.add_argument("--random", metavar="FILE", help="the randomized log, which becomes S_t, S_va and S_te")
    own.add_argument("--log", metavar="FILE", help="both in one file instead, told apart by --is-random")
    own.add_argument("--is-random", metavar="COLUMN", help="column of --log that is 1 for randomized traffic, else 0")
    for column in ("user", "item"):
        own.add_argument(f"--{column}", metavar="COLUMN", help=f"column of the {column}s (default {column})")
    own.add_argument("--label", metavar="COLUMN", help="column of the labels (default label; none: all are positives)")
    own.add_argument("--weight", metavar="COLUMN", help="column of sample weights (default: all weigh 1)")
    own.add_argument("--propensity", metavar="COLUMN", help="column of P(observed) in the biased log, for ips")
    own.add_argument("--grade", metavar="COLUMN", help="column of grades, 0 to 1 (default: by --threshold, if at all)")
    own.add_argument("--timestamp", metavar="COLUMN", help="column of times: numbers or dates")
    own.add_argument(
        "--threshold", type=float, metavar="X", help="labels above X are positive (default: labels are 0/1)"
    )
    for side in ("user", "item"):
        own.add_argument(
            f"--{side}-type", metavar="TYPE", help=f"str or int: what {side} ids are to be (default: as found)"
        )
    own.add_argument(
        "--duplicates",
        metavar="RULE",
        help="of a repeated pair: impressions (default; one row's label, the mean as grade, n rows weigh 2n / (n + 1)) "
        "or first, last, max, mean (weights are added), or error",
    )
    own.add_argument(
        "--drop-bad",
        action="store_const",
        const=True,
        help="drop rows with a missing or unreadable id, label, grade, time or weight, and count them",
    )
    own.add_argument("--split", metavar="RULE", help="of the randomized log: random (default), time or user")
    own.add_argument("--shares", metavar="A,B,C", help="shares of S_t, S_va and S_te (default: by the log's size)")
    own.add_argument(
        "--sep", metavar="CHAR", help="what separates cells, or tab (default: tab, comma, ; or |, as found)"
    )


def notes() -> str:
    """The names that --data takes."""
    from dubnb.data.datasets import DATASETS

    lines = [f"  {name:<14} {dataset.description}" for name, dataset in DATASETS.items()]
    worlds = [name for name, dataset in DATASETS.items() if dataset.labels]
    kinds = ", ".join(DATASETS[worlds[0]].labels)
    return "\n".join(["datasets:", *lines, f"  labels of a world: {kinds}; for example {worlds[0]}:stars"])


def load(args: argparse.Namespace) -> Partition:
    """The Partition that --data, or --biased and --random, or --log, ask for; a remark says how a log was split."""
    data = _loaded(args)
    if args.data is None and data.split is not None:
        _output.remarks(args)(data.split.text())
    return data


def _loaded(args: argparse.Namespace) -> Partition:
    own = {name: getattr(args, name) for name in OWN if getattr(args, name) is not None}
    files = [name for name in FILES if getattr(args, name) is not None]
    if args.data is not None:
        given = files + list(own)
        if given:
            raise InputError(f"{option(given[0])} is for your own files: leave it or --data {shown(args.data)} out")
        from dubnb import load_dataset

        return load_dataset(args.data, seed=args.data_seed, data_dir=args.data_dir, quiet=args.quiet)
    if files not in (["biased", "random"], ["log", "is_random"]):
        raise InputError(
            "no data: give --data NAME, or both --biased FILE and --random FILE, or --log FILE and --is-random COLUMN"
        )
    if args.data_dir is not None:
        raise InputError("--data-dir goes with --data: the others are paths themselves")
    from dubnb import Partition

    own |= {"split_seed": args.data_seed, "quiet": args.quiet}
    if args.shares is not None:
        own["shares"] = _shares(args.shares)
    if args.sep in TABS:
        own["sep"] = "\t"
    if args.log is not None:
        return Partition.from_table(args.log, is_random=args.is_random, **own)
    return Partition.from_frames(args.biased, args.random, **own)


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"--shares {shown(text)} must be three numbers with commas between, such as .65,.15,.2"
        ) from None


def facts(data: Partition) -> dict[str, Any]:
    """What JSON documents say of the data."""
    sizes = {part: len(data.triplets(part).users) for part in ("S_c", "S_t", "S_va", "S_te")}
    about = {"name": data.name, "fingerprint": data.fingerprint, "users": data.n_users, "items": data.n_items}
    about |= {"pairs": sizes, "removed_from_S_c": data.removed}
    about["held_back"] = 0 if data.held_back is None else len(data.held_back.users)
    return about | {"split": None if data.split is None else data.split._asdict()}


def words(args: argparse.Namespace) -> list[str]:
    """The options that name the data, as they were given."""
    given = {name: getattr(args, name) for name in ALL if getattr(args, name) is not None}
    words = {f"--{name.replace('_', '-')}": [] if value is True else [str(value)] for name, value in given.items()}
    return [word for name, value in words.items() for word in (name, *value)]
