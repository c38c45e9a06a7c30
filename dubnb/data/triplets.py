"""`Triplets`, the feedback of one part of a Partition as parallel arrays, and the checks of its columns."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dubnb._check import InputError, option
from dubnb.data.pattern import csr_order

PARTS = ("S_c", "S_t", "S_va", "S_te")
RANDOMIZED = PARTS[1:]
PAPER_SHARES = (0.1, 0.1, 0.8)
# dtypes of the columns of Triplets
_STORED = (np.int32, np.int32, np.float32, np.float32, np.float32, np.float32, np.float64)


class Triplets(NamedTuple):
    """Feedback as parallel arrays, in CSR order."""

    users: np.ndarray  # int32 rows
    items: np.ndarray  # int32 columns
    labels: np.ndarray  # float32, 0 or 1
    weights: np.ndarray  # float32; 1 unless the log has weights or repeated pairs
    grades: np.ndarray | None = None  # float32 in [0, 1], how much it was liked; None if the log has no grades
    propensities: np.ndarray | None = None  # float32 in (0, 1], of S_t, S_va and S_te: P(shown | user, context)
    times: np.ndarray | None = None  # float64, of S_t, S_va and S_te: when the pair was shown

    def take(self, rows: Any) -> Triplets:
        """Some of the rows, selected by an index or a mask."""
        return Triplets(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]


class BiasedCounts(NamedTuple):
    """Counts of the pairs and of the positives of S_c, int64."""

    users: np.ndarray  # pairs of each user
    items: np.ndarray  # pairs of each item
    liked_by_users: np.ndarray  # positives of each user
    liked_of_items: np.ndarray  # positives of each item


def joined(*logs: Triplets) -> Triplets:
    """The rows of all logs, one log after the other; a log without rows may lack grades and propensities."""
    filled = [log for log in logs if len(log.users)] or [logs[0]]
    columns = (
        None if any(each is None for each in column) else np.concatenate(column) for column in zip(*filled, strict=True)
    )
    return Triplets(*columns)  # type: ignore[arg-type]


def checked_propensities(propensities: Any, n: int) -> np.ndarray:
    """P(observed) of n pairs as float64, each checked to be in (0, 1]."""
    propensities = np.asarray(propensities, dtype=np.float64)
    if propensities.shape != (n,):
        raise InputError(f"propensities of shape {propensities.shape} for {n} pairs of S_c: pass one per pair")
    fine = (propensities > 0) & (propensities <= 1)
    if not fine.all():
        raise InputError(f"propensity {propensities[~fine][0]:g} must be above 0 and at most 1")
    return propensities


def columns_of(part: str, triplets: Mapping[str, Sequence[Any]]) -> Triplets:
    """The columns of one part as arrays of one length, dtypes unchanged; weights may be None."""
    if part not in triplets:
        raise InputError(
            f"{part} is missing: give the columns of all of {', '.join(PARTS)}, empty ones as ([], [], [])"
        )
    given = list(triplets[part])
    if not 3 <= len(given) <= len(Triplets._fields):
        raise InputError(
            f"{part} has {len(given)} columns: pass users, items, labels and, if any, weights, grades, propensities "
            "and times"
        )
    given += [None] * (len(Triplets._fields) - len(given))
    named = zip(Triplets._fields, given, strict=True)
    columns = [None if values is None else _column(part, field, values) for field, values in named]
    if any(column is None for column in columns[:3]):
        raise InputError(f"{part} lacks users, items or labels: pass all three")
    sizes = {len(column) for column in columns if column is not None}
    if len(sizes) > 1:
        raise InputError(f"{part} has columns of {' and '.join(map(str, sorted(sizes)))} rows: make them of one length")
    return Triplets(*columns)  # type: ignore[arg-type]


def _column(part: str, field: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"{part}: {field} have {array.ndim} dimensions: pass a 1-d array")
    if not len(array):
        return array.astype(np.int32 if field in ("users", "items") else np.float32)
    if field in ("users", "items"):
        if array.dtype.kind not in "iu":
            raise InputError(
                f"{part}: {field} are of type {array.dtype}: row numbers must be whole numbers, of type int"
            )
        return array
    if array.dtype.kind not in "biuf":
        raise InputError(f"{part}: {field} are of type {array.dtype}: they must be numbers")
    return array


def check_grades(parts: Mapping[str, Triplets], sided: bool = True) -> None:
    """Either every part with feedback has grades or none has; grades lie in [0, 1].

    If `sided`, the grades of negatives must lie below those of positives. Mean labels of impressions are not sided.
    """
    filled = {part: triplets for part, triplets in parts.items() if len(triplets.users)}
    without = [part for part, triplets in filled.items() if triplets.grades is None]
    if len(without) == len(filled):
        return
    if without:
        raise InputError(f"{without[0]} has no grades but another part has: give grades in all logs, or in none")
    negative, positive = -np.inf, np.inf
    for part, triplets in filled.items():
        grades = np.asarray(triplets.grades)
        fine = (grades >= 0) & (grades <= 1)  # false for nan
        if not fine.all():
            raise InputError(f"{part}: grade {grades[~fine][0]:g} must be a number from 0 to 1: rescale it")
        negative = max(negative, grades[triplets.labels == 0].max(initial=-np.inf))
        positive = min(positive, grades[triplets.labels == 1].min(initial=np.inf))
    if sided and not negative < positive:
        raise InputError(
            f"a negative pair has the grade {negative:g} and a positive one {positive:g}: grades must lie on their "
            "label's side of the threshold; correct the labels or the grades"
        )


def check_exploration(parts: Mapping[str, Triplets]) -> None:
    """Either every randomized part with feedback has propensities, all in (0, 1], or none has; S_c has none here."""
    with_column = [part for part, triplets in parts.items() if triplets.propensities is not None]
    outside = [part for part in with_column if part not in RANDOMIZED]
    if outside:
        raise InputError(
            f"{outside[0]} has a sixth column: only S_t, S_va and S_te hold P(shown) there; pass those of the biased "
            "log as propensities="
        )
    for part in RANDOMIZED:
        propensities = parts[part].propensities
        if propensities is None:
            if with_column and len(parts[part].users):
                raise InputError(
                    f"{part} has no propensities but {with_column[0]} has: give them to all randomized parts or none"
                )
            continue
        fine = (propensities >= np.finfo(np.float32).tiny) & (propensities <= 1)  # false for nan
        if not fine.all():
            raise InputError(
                f"{part}: propensity {propensities[~fine][0]:g} must be above 0 and at most 1: pass P(shown)"
            )


def vary(propensities: np.ndarray | None) -> bool:
    """Whether propensities differ by more than rounding; uniform traffic may be logged with equal ones."""
    if propensities is None or not len(propensities):
        return False
    return bool(propensities.max() > propensities.min() * (1 + 1e-6))


def importance_of(propensities: np.ndarray | None) -> np.ndarray | None:
    """1 / propensity, divided by its mean, truncated at sqrt(n) for n pairs (Ionides, 2008), and divided by its mean.

    None where propensities do not vary. This is the only place where propensities become weights.
    """
    if propensities is None or not vary(propensities):
        return None
    weights = 1.0 / np.asarray(propensities, np.float64)
    weights = np.minimum(weights / weights.mean(), np.sqrt(len(weights)))
    return np.asarray(weights / weights.mean())


def pair_keys(triplets: Triplets, n_items: int) -> np.ndarray:
    """user row * n_items + item row of every pair, int64."""
    keys: np.ndarray = triplets.users.astype(np.int64)
    keys *= n_items
    keys += triplets.items
    return keys


def check_binary(labels: np.ndarray, where: str) -> None:
    """Refuse labels other than 0 and 1."""
    fine = (labels == 0) | (labels == 1)
    if not fine.all():
        raise InputError(
            f"{where}: label {float(labels[~fine][0]):g} is neither 0 nor 1: pass {option('threshold')} "
            "(labels above it are positive)"
        )


def checked_order(triplets: Triplets, shape: tuple[int, int], part: str, pair: Any) -> np.ndarray:
    """The CSR order of the rows, after checks: rows in range, labels 0/1, weights above 0, no pair with two labels."""
    users, items, labels, weights, *_ = triplets
    for column, size, what in ((users, shape[0], "user"), (items, shape[1], "item")):
        if len(column) and (column.min() < 0 or column.max() >= size):
            bad = column[(column < 0) | (column >= size)][0]
            raise InputError(f"{part}: {what} row {bad} is outside 0..{size - 1}")
    check_binary(labels, part)
    if weights is not None:
        fine = (weights >= np.finfo(np.float32).tiny) & (weights <= np.finfo(np.float32).max)  # stored as float32
        if not fine.all():
            raise InputError(f"{part}: weight {weights[~fine][0]:g} must be above 0 and finite (as float32)")
    order = csr_order(users, items, shape)
    repeats = repeated(users, items, order)
    if not repeats.any():
        return order
    clash = repeats & (labels[order] != labels[np.roll(order, 1)])
    if clash.any():
        row = order[clash][0]
        where = pair(int(users[row]), int(items[row]))
        raise InputError(f"{part}: {where} occurs twice with different labels: keep one row per pair")
    warnings.warn(f"{part}: {int(repeats.sum())} repeated pairs with equal labels dropped", stacklevel=3)
    return order[~repeats]


def repeated(users: np.ndarray, items: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Which rows, taken in CSR order, have the same pair as the row before (bool)."""
    again = np.zeros(len(order), dtype=bool)
    for column in (users, items):
        ordered = column[order]
        equal = ordered[1:] == ordered[:-1]
        again[1:] = equal if column is users else again[1:] & equal
    return again


def stored(triplets: Triplets, order: np.ndarray) -> Triplets:
    """The rows in the given order and in the dtypes of a Partition."""
    columns = [
        None if column is None else column[order].astype(dtype, copy=False)
        for column, dtype in zip(triplets, _STORED, strict=True)
    ]
    if columns[3] is None:
        columns[3] = np.ones(len(order), dtype=np.float32)
    return Triplets(*columns)  # type: ignore[arg-type]


def read_only(triplets: Triplets) -> Triplets:
    """The same columns, made read-only in place."""
    for column in triplets:
        if column is not None:
            column.flags.writeable = False
    return triplets
