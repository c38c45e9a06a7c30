"""`dubnb recommend`: the best items for some users, or for everyone."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dubnb import _files
from dubnb._check import InputError, shown, whole
from dubnb.cli import _output
from dubnb.cli._values import first_seed
from dubnb.report import tables

if TYPE_CHECKING:
    from dubnb.data.ids import Ids
    from dubnb.methods._method import Method

NAME = "recommend"
SUMMARY = "list the best items for some users or all, without what they have had"
SEED_HELP = "unused: nothing here is random"
NAMED_AT_MOST = 10  # ids that a warning names
WHOLE = range(-(2**63), 2**64)  # ids that NumPy can hold, hashes of 64 bits included


def notes() -> str:
    """Below the options in the help."""
    return (
        "What users have had is their items in S_c, and their positives in S_t. Users that the\n"
        "model does not know get the average user's list, and are named.\n\n"
        "examples:\n"
        "  dubnb recommend --model m.npz --users 1,2,3 -k 10\n"
        "  dubnb recommend --model m.npz --all -k 50 --out recs.csv"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which model, whom, how many, where to."""
    parser.add_argument("--model", required=True, metavar="FILE", help="a model that `dubnb fit` saved")
    users = parser.add_mutually_exclusive_group(required=True)
    users.add_argument("--users", metavar="IDS", help="ids with commas between (--users=-1,2 if the first is negative)")
    users.add_argument("--users-file", metavar="FILE", help="a file with one id per line")
    users.add_argument("--all", action="store_true", help="everyone that the model knows; needs --out")
    parser.add_argument("-k", type=int, default=10, metavar="K", help="items per user (default %(default)s)")
    parser.add_argument("--out", metavar="FILE", help="a .csv or .parquet file for the lists, written piece by piece")
    parser.add_argument(
        "--filter",
        metavar="FILE",
        help="candidates: a CSV or Parquet file of items, or of users and items; needs --out",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --out if it exists")


def run(args: argparse.Namespace) -> None:
    """Lists as a file, or as text."""
    import dubnb

    whole("-k", args.k)
    first_seed(args)
    if args.out is None and (args.all or args.filter):
        raise InputError(f"--{'all' if args.all else 'filter'} writes a file: say where with --out recs.csv")
    if args.out is not None:
        from dubnb.methods._recommend_all import writer_of

        _output.check_writable(args.out, args.overwrite)
        writer_of(args.out)
    model = dubnb.load(args.model)
    if args.all:
        _write(args, model, None)
        return
    users, unreadable = _users(args, model.user_ids_)
    if args.out is not None:
        _write(args, model, users)
    else:
        _print_lists(args, model, users, unreadable)


def _users(args: argparse.Namespace, user_ids: Ids) -> tuple[list[Any], list[str]]:
    """(ids of the model's kind, texts that are none), each in the order given."""
    texts = _split_ids(args.users) if args.users is not None else _read_ids(args.users_file)
    parsed = [(text, _parsed_id(text, user_ids.kind)) for text in texts]
    unreadable = [text for text, user in parsed if user is None]
    if unreadable:
        named = ", ".join(map(shown, unreadable[:NAMED_AT_MOST])) + (", ..." if len(unreadable) > NAMED_AT_MOST else "")
        message = f"{len(unreadable)} of {len(texts)} users are no ids of the model's kind ({user_ids.kind}): {named}"
        if len(unreadable) == len(texts):
            raise InputError(f"{message}; give ids like {user_ids.values[:1].tolist()[0]!r}")
        _output.say(f"warning: {message}")
    return [user for _, user in parsed if user is not None], unreadable


def _write(args: argparse.Namespace, model: Method, users: list[Any] | None) -> None:
    candidates = _read_filter(args.filter, model) if args.filter else None
    written = model.recommend_all(
        args.out, args.k, users=users, candidates=candidates, overwrite=args.overwrite, quiet=args.quiet
    )
    n_users = len(model.user_ids_) if users is None else len(users)
    if args.json:
        _output.print_json({"model": args.model, "k": args.k, "users": n_users, "rows": written, "out": args.out})
        return
    _output.print_text(f"{written:,} rows for {n_users:,} users, written to {tables.printable(args.out)}")


def _print_lists(args: argparse.Namespace, model: Method, users: list[Any], unreadable: list[str]) -> None:
    own = model.recommend(users, k=min(args.k, len(model.item_ids_)))
    items, scores = own
    lists = [
        _listed(user, fallback, *row)
        for user, fallback, *row in zip(users, own.fallback.tolist(), items.tolist(), scores.tolist(), strict=True)
    ]
    if args.json:
        _output.print_json({"model": args.model, "k": args.k, "users": lists, "unknown": unreadable})
        return
    rows = [
        (entry["user"], rank, item, score)
        for entry in lists
        for rank, (item, score) in enumerate(zip(entry["items"], entry["scores"], strict=True), 1)
    ]
    _output.print_text(tables.text(("user", "rank", "item", "score"), rows, "<><>"))


def _read_filter(path: str, model: Method) -> Any:
    """Candidates from a table: item ids for everyone, or a sparse matrix where there is a column of users too.

    Pairs of users or items that the model does not know cannot be listed anyway.
    """
    import numpy as np
    import pandas as pd
    from scipy.sparse import csr_matrix

    text = {name: str for name, ids in (("user", model.user_ids_), ("item", model.item_ids_)) if ids.kind == "str"}
    try:
        table = pd.read_parquet(path) if str(path).endswith(".parquet") else pd.read_csv(path, dtype=text)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"--filter {_files.quote_path(path)} cannot be read ({reason}): give CSV or Parquet") from None
    if "item" not in table or not len(table):
        raise InputError(
            f"--filter {_files.quote_path(path)} has no rows with a column 'item': name the candidates' column so"
        )
    items = model.item_ids_.find(table["item"].to_numpy())
    if "user" not in table:
        if (items < 0).all():
            raise InputError(f"--filter {_files.quote_path(path)} names no item that the model knows: check the ids")
        return model.item_ids_.values[np.unique(items[items >= 0])]
    users = model.user_ids_.find(table["user"].to_numpy())
    known = (users >= 0) & (items >= 0)
    shape = len(model.user_ids_), len(model.item_ids_)
    matrix = csr_matrix((np.ones(int(known.sum())), (users[known], items[known])), shape=shape)
    matrix.sum_duplicates()
    return matrix


def _split_ids(text: str) -> list[str]:
    ids = [part.strip() for part in text.split(",") if part.strip()]
    if not ids:
        raise InputError(f"--users {shown(text)} names nobody: give ids with commas between, such as --users 1,2,3")
    return ids


def _read_ids(path: str) -> list[str]:
    """One id per line; blank lines do not count."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(
            f"--users-file {_files.quote_path(path)} cannot be read ({error.strerror}): check it"
        ) from None
    except ValueError:  # not UTF-8, or a path that cannot exist
        raise InputError(f"--users-file {_files.quote_path(path)} is no UTF-8 text: write one id per line") from None
    ids = [line for line in lines if line.strip()]
    if not ids:
        raise InputError(f"--users-file {_files.quote_path(path)} names nobody: write one id per line")
    return ids


def _parsed_id(text: str, kind: str) -> int | str | None:
    if kind == "str":
        return text
    text = text.strip()
    fits = re.fullmatch(r"[+-]?[0-9]{1,20}", text) and int(text) in WHOLE
    return int(text) if fits else None


def _listed(user: Any, fallback: bool, items: list[Any], scores: list[float]) -> dict[str, Any]:
    """A user's list without the padding that stands where items have run out."""
    kept = [(item, score) for item, score in zip(items, scores, strict=True) if not math.isnan(score)]
    entry = {"user": user, "items": [item for item, _ in kept], "scores": [score for _, score in kept]}
    return entry | ({"fallback": True} if fallback else {})
