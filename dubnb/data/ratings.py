"""The public datasets that hold ratings as plain numbers: their files, and the Partition of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dubnb._check import InputError
from dubnb.data.column import Column, Place, numbers_of, shown
from dubnb.data.delimited import Layout, read_delimited
from dubnb.data.grades import labels_and_grades
from dubnb.data.ids import Ids
from dubnb.data.merge import Merging, Rows, merged
from dubnb.data.partition import Partition
from dubnb.data.split import PERMUTATION, RandomizedRows, Split

MOST_ROWS = 10_000_000  # of a triplet file, whose ids are row numbers: a larger one is not such a file
POSITIVE_ABOVE = 3  # the paper: of ratings from 1 to 5
LOWEST, HIGHEST = 1, 5


class Ratings(NamedTuple):
    """A log of ratings by row numbers, in its own order."""

    users: np.ndarray  # int64
    items: np.ndarray  # int64
    ratings: np.ndarray


def find_files(
    data_dir: str | Path, kinds: Sequence[Sequence[str]], dataset: str, source: str
) -> tuple[int, list[Path]]:
    """The first of `kinds`, names of files that belong together, that `data_dir` holds: its number, and the paths."""
    folder = Path(data_dir)
    for kind, names in enumerate(kinds):
        if all((folder / name).is_file() for name in names):
            return kind, [folder / name for name in names]
    wanted = ", or ".join(" and ".join(names) for names in kinds)
    state = "holds neither" if folder.is_dir() else "is no directory"
    raise InputError(f"{dataset}: {folder} {state}: expected {wanted} there; {source}")


def read_triplets(path: Path, delimiter: str = ",", first_id: int = 0) -> Ratings:
    """A file without header, lines of user, item, rating: row numbers counted from 0, ratings from 1 to 5."""
    columns, _ = read_delimited([path], layout=Layout(("user", "item", "rating"), delimiter))
    if not len(columns["user"]):
        raise InputError(f"{path}: empty: expected lines of user, item, rating")
    users, items = (_row_numbers(columns[name], name, path, first_id) for name in ("user", "item"))
    ratings = numbers_of(columns["rating"], Place(str(path), "rating"))
    check_ratings(ratings, str(path))
    return Ratings(users, items, ratings)


def _row_numbers(column: Column, name: str, path: Path, first_id: int) -> np.ndarray:
    """Ids that are row numbers, counted from 0."""
    values = [
        int(v) if isinstance(v, int) or re.fullmatch("[0-9]{1,18}", str(v)) else -1 for v in column.values.tolist()
    ]
    numbers = column.per_row(np.array(values, dtype=np.int64), -1)
    fine = (numbers >= first_id) & (numbers < MOST_ROWS)
    if not fine.all():
        row = int(np.argmin(fine))
        raise InputError(
            f"{path}, line {row + 1}: {name} {shown(column.per_row(column.values)[row])} must be a whole number from "
            f"{first_id} and below {MOST_ROWS:,}: expected lines of user, item, rating"
        )
    return numbers - first_id


def check_ratings(ratings: np.ndarray, where: str) -> None:
    """Ratings must lie on their scale."""
    fine = (ratings >= LOWEST) & (ratings <= HIGHEST)
    if not fine.all():
        row = int(np.argmin(fine))
        raise InputError(
            f"{where}: rating {row + 1} is {ratings[row]:g}: ratings go from {LOWEST} to {HIGHEST}; check the file"
        )


def partition_of_ratings(
    biased: Ratings, random: Ratings, shape: tuple[int, int], *, first_id: int = 0, split_seed: int, name: str
) -> Partition:
    """A Partition from two logs; ids are the rows counted from `first_id`, grades the ratings' place on their scale."""
    user_ids, item_ids = (Ids(np.arange(first_id, first_id + n)) for n in shape)

    def pair(user: int, item: int) -> str:
        return f"pair (user {user_ids.values[user]}, item {item_ids.values[item]})"

    S_c, randomized = (
        merged(
            Rows(log.users, log.items, log.ratings),
            "max",
            Merging(shape, f"{name}, {which} log", pair, (user_ids, item_ids)),
        )
        for log, which in ((biased, "biased"), (random, "randomized"))
    )
    (c_labels, r_labels), (c_grades, r_grades), scale = labels_and_grades(
        [S_c.labels, randomized.labels], POSITIVE_ABOVE
    )
    S_c = S_c._replace(labels=c_labels, grades=c_grades)
    randomized = randomized._replace(labels=r_labels, grades=r_grades)
    parts = {"S_c": S_c[:5]}
    log = RandomizedRows(randomized.users, randomized.items, r_labels, user_ids, item_ids)
    cut = Split(PERMUTATION, seed=split_seed).checked().parts(log)
    for part, rows in cut.rows.items():
        parts[part] = randomized.take(rows)[:5]
    return Partition(parts, shape, user_ids=user_ids, item_ids=item_ids, split=cut.facts, grading=scale.kind, name=name)


def ratings_shape(*logs: Ratings) -> tuple[int, int]:
    """(users, items) that hold every row number in `logs`."""
    n_users, n_items = (max(int(log[side].max()) for log in logs) + 1 for side in (0, 1))
    return n_users, n_items
