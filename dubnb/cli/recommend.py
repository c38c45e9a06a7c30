"""`dubnb recommend`: the best items for some users."""

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

NAME = "recommend"
SUMMARY = "list the best items for some users, without those they have in S_c"
SEED_HELP = "unused: nothing here is random"
NAMED_AT_MOST = 10  # unknown users that a warning names
INT64 = range(-(2**63), 2**63)


def notes() -> str:
    """Below the options in the help."""
    return "example:\n  dubnb recommend --model m.npz --users 1,2,3 -k 10"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which model, whom, how many."""
    parser.add_argument("--model", required=True, metavar="FILE", help="a model that `dubnb fit` saved")
    users = parser.add_mutually_exclusive_group(required=True)
    users.add_argument("--users", metavar="IDS", help="ids with commas between (--users=-1,2 if the first is negative)")
    users.add_argument("--users-file", metavar="FILE", help="a file with one id per line")
    parser.add_argument("-k", type=int, default=10, metavar="K", help="items per user (default %(default)s)")


def run(args: argparse.Namespace) -> None:
    """Lists for the users that the model knows, and a warning that names the others."""
    import dubnb

    whole("-k", args.k)
    first_seed(args)
    model = dubnb.load(args.model)
    texts = _split_ids(args.users) if args.users is not None else _read_ids(args.users_file)
    known, unknown = _known_users(model.user_ids_, texts)
    if unknown:
        named = ", ".join(map(shown, unknown[:NAMED_AT_MOST])) + (", ..." if len(unknown) > NAMED_AT_MOST else "")
        message = f"{len(unknown)} of {len(texts)} users are not in the model's data: {named}"
        if not known:
            raise InputError(f"{message}; give ids of users it was trained on ({model.user_ids_.kind})")
        _output.say(f"warning: {message}")
    items, scores = model.recommend(known, k=min(args.k, len(model.item_ids_)))
    lists = [_listed(user, *row) for user, *row in zip(known, items.tolist(), scores.tolist(), strict=True)]
    if args.json:
        _output.print_json({"model": args.model, "k": args.k, "users": lists, "unknown": unknown})
        return
    rows = [
        (entry["user"], rank, item, score)
        for entry in lists
        for rank, (item, score) in enumerate(zip(entry["items"], entry["scores"], strict=True), 1)
    ]
    _output.print_text(tables.text(("user", "rank", "item", "score"), rows, "<><>"))


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
        raise InputError(f"--users-file {_files.shown(path)} cannot be read ({error.strerror}): check it") from None
    except ValueError:  # not UTF-8, or a path that cannot exist
        raise InputError(f"--users-file {_files.shown(path)} is no UTF-8 text: write one id per line") from None
    ids = [line for line in lines if line.strip()]
    if not ids:
        raise InputError(f"--users-file {_files.shown(path)} names nobody: write one id per line")
    return ids


def _known_users(user_ids: Ids, texts: list[str]) -> tuple[list[Any], list[str]]:
    """(ids of the model's kind that it knows, texts of all others), each in the order given."""
    known, unknown = [], []
    for text in texts:
        user = _parsed_id(text, user_ids.kind)
        if user is not None and user_ids.find([user])[0] >= 0:
            known.append(user)
        else:
            unknown.append(text)
    return known, unknown


def _parsed_id(text: str, kind: str) -> int | str | None:
    if kind == "str":
        return text
    text = text.strip()
    fits = re.fullmatch(r"[+-]?[0-9]{1,19}", text) and int(text) in INT64
    return int(text) if fits else None


def _listed(user: Any, items: list[Any], scores: list[float]) -> dict[str, Any]:
    """A user's list without the padding that stands where items have run out."""
    kept = [(item, score) for item, score in zip(items, scores, strict=True) if not math.isnan(score)]
    return {"user": user, "items": [item for item, _ in kept], "scores": [score for _, score in kept]}
