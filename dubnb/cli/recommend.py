"""`dubnb recommend`: the best items for some users, or for everyone."""

from __future__ import annotations

import argparse
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dubnb import _files
from dubnb._check import InputError, short_repr, whole
from dubnb.cli import _options, _output
from dubnb.report import tables

if TYPE_CHECKING:
    from dubnb.data.ids import Ids
    from dubnb.data.log import ReadLog
    from dubnb.methods._method import Method

NAME = "recommend"
SUMMARY = "list the best items for some users or all, without items they have had"
SEED_HELP = "not used: nothing here is random"
NAMED_AT_MOST = 10  # ids in a warning


def notes() -> str:
    return (
        "Lists leave out the user's items in S_c and positives in S_t. Users that the model does\n"
        "not know get the average user's list, and a warning names them.\n\n"
        "examples:\n"
        "  dubnb recommend --model m.npz --users 1,2,3 -k 10\n"
        "  dubnb recommend --model m.npz --all -k 50 --out recs.csv"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The model, the users, the length of lists, and the file."""
    parser.add_argument("--model", required=True, metavar="FILE", help="a model that `dubnb fit` saved")
    users = parser.add_mutually_exclusive_group(required=True)
    users.add_argument("--users", metavar="IDS", help="ids with commas between (--users=-1,2 if the first is negative)")
    users.add_argument("--users-file", metavar="FILE", help="a file with one id per line")
    users.add_argument("--all", action="store_true", help="all users that the model knows; needs --out")
    parser.add_argument("-k", type=int, default=10, metavar="K", help="items per user (default %(default)s)")
    parser.add_argument("--out", metavar="FILE", help="a .csv or .parquet file for the lists, written in pieces")
    parser.add_argument(
        "--filter",
        metavar="FILE",
        help="candidates: a CSV or Parquet file of items, or of users and items; needs --out",
    )
    parser.add_argument("--scheduler", metavar="ADDRESS", help="make the lists of --out on a Dask cluster")
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --out if it exists")


def run(args: argparse.Namespace) -> None:
    """Write the lists to a file, or print them."""
    import dubnb

    whole("-k", args.k)
    _options.first_seed(args)
    for name, does in (("all", "writes"), ("filter", "writes"), ("scheduler", "is for lists in")):
        if args.out is None and getattr(args, name):
            raise InputError(f"--{name} {does} a file: say where with --out recs.csv")
    if args.out is not None:
        from dubnb.methods._serving import writer_of

        _output.check_writable(args.out, args.overwrite)
        writer_of(args.out)
    model = dubnb.load(args.model)
    if args.all:
        _write(args, model, None)
        return
    users, unreadable = _asked_users(args, model.user_ids_)
    if args.out is not None:
        _write(args, model, users)
    else:
        _print_lists(args, model, users, unreadable)


def _asked_users(args: argparse.Namespace, user_ids: Ids) -> tuple[list[Any], list[str]]:
    """(ids of the model's kind, texts that are not such ids), each in the order given."""
    from dubnb.data.column import id_from_text

    if args.users is None:
        texts = _read_ids(args.users_file)
    else:
        texts = [part.strip() for part in args.users.split(",") if part.strip()]
        if not texts:
            given = short_repr(args.users)
            raise InputError(f"--users {given} has no ids: give ids with commas between, such as --users 1,2,3")
    parsed = [(text, id_from_text(text, user_ids.kind)) for text in texts]
    unreadable = [text for text, user in parsed if user is None]
    if unreadable:
        named = ", ".join(map(short_repr, unreadable[:NAMED_AT_MOST])) + (
            ", ..." if len(unreadable) > NAMED_AT_MOST else ""
        )
        message = f"{len(unreadable)} of {len(texts)} users are not ids of the model's kind ({user_ids.kind}): {named}"
        if len(unreadable) == len(texts):
            raise InputError(f"{message}; give ids like {user_ids.values[:1].tolist()[0]!r}")
        _output.print_message(f"warning: {message}")
    return [user for _, user in parsed if user is not None], unreadable


def _write(args: argparse.Namespace, model: Method, users: list[Any] | None) -> None:
    candidates = _read_filter(args.filter, model) if args.filter else None
    how = {"overwrite": args.overwrite, "quiet": args.quiet, "scheduler": args.scheduler}
    written = model.recommend_all(args.out, args.k, users=users, candidates=candidates, **how)
    n_users = len(model.user_ids_) if users is None else len(users)
    if args.json:
        _output.print_json({"model": args.model, "k": args.k, "users": n_users, "rows": written, "out": args.out})
        return
    _output.print_text(f"{written:,} rows for {n_users:,} users, written to {tables.printable(args.out)}")


def _print_lists(args: argparse.Namespace, model: Method, users: list[Any], unreadable: list[str]) -> None:
    own = model.recommend(users, k=args.k)
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

    Rows with unknown users or items are skipped, because they cannot be listed; a warning counts them.
    """
    import numpy as np
    from scipy.sparse import csr_matrix

    from dubnb.data.log import open_log

    known_ids = {"user": model.user_ids_, "item": model.item_ids_}
    try:
        log = open_log(path, "", set(known_ids), set(known_ids), None, True)
        users, items = (_known_rows(log, name, ids) for name, ids in known_ids.items())
    except InputError as error:
        raise InputError(f"--filter {error}") from None
    if items is None:
        raise InputError(
            f"--filter {_files.quote_path(path)} has no column 'item': name the column of items so; there are "
            f"{log.listed()}"
        )
    known = items >= 0 if users is None else (users >= 0) & (items >= 0)
    if not known.all() and known.any():
        row = int(np.argmin(known))
        first = " and ".join(f"{name} {log.columns[name].quoted(row)}" for name in known_ids if name in log.columns)
        warnings.warn(
            f"--filter {_files.quote_path(path)}: {int((~known).sum()):,} of {len(known):,} rows have ids that the "
            f"model does not know, such as {first}: they are skipped",
            stacklevel=2,
        )
    if users is None:
        if (items < 0).all():
            raise InputError(f"--filter {_files.quote_path(path)} names no item that the model knows: check the ids")
        return model.item_ids_.values[np.unique(items[items >= 0])]
    shape = len(model.user_ids_), len(model.item_ids_)
    matrix = csr_matrix((np.ones(int(known.sum())), (users[known], items[known])), shape=shape)
    matrix.sum_duplicates()
    return matrix


def _known_rows(log: ReadLog, name: str, ids: Ids) -> Any:
    """The row number of every id in a column of --filter, -1 where unknown; None if there is no such column.

    Ids are read as `fit` reads them: NA and null are ids, and 007 is not the whole number 7.
    """
    import numpy as np

    from dubnb.data.column import CellLocation, distinct_ids, id_from_text
    from dubnb.data.ids import kind_of_ids

    if name not in log.columns:
        return None
    text_of_numbers = log.is_text and ids.kind == "str"  # in a file of text, a column may look like numbers by chance
    column = distinct_ids(log.columns[name], CellLocation(log.where, name), "str" if text_of_numbers else None)
    if not log.is_text or kind_of_ids(column.values) == ids.kind:
        return column.per_row(ids.find(column.values), -1)
    parsed = [id_from_text(text, ids.kind) for text in column.values.tolist()]
    found = np.array([-1 if value is None else ids.find([value])[0] for value in parsed], np.int64)
    return column.per_row(found, -1)


def _read_ids(path: str) -> list[str]:
    """One id per line; blank lines are skipped."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(
            f"--users-file {_files.quote_path(path)} cannot be read ({error.strerror}): check it"
        ) from None
    except ValueError:  # not UTF-8, or a path that cannot exist
        raise InputError(f"--users-file {_files.quote_path(path)} is not UTF-8 text: write one id per line") from None
    ids = [line for line in lines if line.strip()]
    if not ids:
        raise InputError(f"--users-file {_files.quote_path(path)} has no ids: write one id per line")
    return ids


def _listed(user: Any, fallback: bool, items: list[Any], scores: list[float]) -> dict[str, Any]:
    """A user's list without the padding after the last item."""
    kept = [(item, score) for item, score in zip(items, scores, strict=True) if not math.isnan(score)]
    entry = {"user": user, "items": [item for item, _ in kept], "scores": [score for _, score in kept]}
    return entry | ({"fallback": True} if fallback else {})
