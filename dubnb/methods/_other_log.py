"""Evaluation of a model on another log than its own, such as next week's: the log is mapped to the model's rows.

Pairs whose user or item the model does not know are left out. By default so are the pairs that it was trained or chosen
on.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb._check import InputError, option
from dubnb.data.ids import Ids
from dubnb.data.partition import PARTS, RANDOMIZED, Partition, Triplets

if TYPE_CHECKING:
    from dubnb.backbones import Weights
    from dubnb.data.pattern import Pattern

UNKNOWN = ("leave-out", "fallback")
NONE = np.zeros(0, np.uint64)  # hashes of no pair
AVERAGE = -1  # instead of a row: the average user


class Aligned(NamedTuple):
    """Another log in the rows of a model."""

    data: Partition
    rows: np.ndarray  # the model's row of each user; AVERAGE if the model has none
    unknown_users: int  # users of the log that the model does not have
    unknown_items: int
    left_out: int  # pairs of the evaluated part whose user or item is unknown
    trained: int | None  # pairs of it that the model was trained or chosen on; None if unknown
    pairs: int  # all pairs of the evaluated part


class WithAverage:
    """A scorer some of whose rows are the average user's."""

    def __init__(self, weights: Weights, average: Weights, rows: np.ndarray):
        self.weights, self.average, self.rows = weights, average, rows

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        rows, items = self.rows[users], np.asarray(items)
        scores = self.weights.score_pairs(np.maximum(rows, 0), items)
        lost = rows == AVERAGE
        scores[lost] = self.average.score_pairs(np.zeros(int(lost.sum()), np.int32), items[lost])
        return scores

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        rows = self.rows[users]
        scores = self.weights.score_rows(np.maximum(rows, 0))
        if (rows == AVERAGE).any():
            scores[rows == AVERAGE] = self.average.score_rows(np.zeros(1, np.int64))[0]
        return scores


def is_among(hashes: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """Bool per hash: whether it is among the sorted hashes `trained`."""
    if not len(trained):
        return np.zeros(len(hashes), bool)
    places = np.minimum(np.searchsorted(trained, hashes), len(trained) - 1)
    found: np.ndarray = trained[places] == hashes
    return found


def aligned(
    data: Partition, ids: tuple[Ids, Ids], seen: Pattern, part: str, unknown: str, trained: np.ndarray | None = None
) -> Aligned:
    """The log in terms of the model's items and users; with "fallback" also the log's own users.

    S_c holds what users had in either log, so that it is not listed again. Pairs that only the model's log has get the
    label 0 there, because only their position is read. So do pairs of the part that the model was trained or chosen on:
    they are neither evaluated nor listed. `trained` has their hashes (None: unknown).
    """
    user_ids, item_ids = ids
    users, items = _model_rows(user_ids, data.user_ids, "user"), _model_rows(item_ids, data.item_ids, "item")
    everyone = user_ids
    if unknown == "fallback":
        everyone = _together(user_ids, data.user_ids)
        users = everyone.find(data.user_ids.values)
    own_rows = everyone.find(user_ids.values)
    known = is_among(data.pair_hashes(part), NONE if trained is None else trained)
    feedback_of = {name: data.triplets(name) for name in PARTS}
    trained_in = _moved(feedback_of[part].take(known), users, items)
    feedback_of[part] = feedback_of[part].take(~known)
    parts = {name: _moved(feedback, users, items) for name, feedback in feedback_of.items()}
    if len(known) and known.all():
        raise InputError(
            f"the model was trained or chosen on all {len(known):,} pairs in {part} of {data.name}: "
            f"{option('keep_trained', '')} evaluates it on them anyway"
        )
    if len(known) and not len(parts[part].users):
        raise InputError(f"the model knows no pair's user and item in {part} of {data.name}: fit it on this log")
    logged = np.stack([users[data.logged.users()], items[data.logged.items]])
    logged = logged[:, (logged >= 0).all(axis=0)]
    places = parts["S_c"][:2], logged, (own_rows[seen.users()], seen.items), trained_in[:2]
    had_users, had_items = (np.concatenate(side) for side in zip(*places, strict=True))
    labels = np.zeros(len(had_users), np.float32)
    labels[: len(parts["S_c"].users)] = parts["S_c"].labels
    had = Triplets(had_users, had_items, labels, np.ones(len(had_users)))
    _, first = np.unique(had.users.astype(np.int64) * len(item_ids) + had.items, return_index=True)
    feedback = {name: parts[name]._replace(grades=None) for name in RANDOMIZED} | {"S_c": had.take(first)}
    same = np.array_equal(users, np.arange(len(everyone))) and np.array_equal(items, np.arange(len(item_ids)))
    rows = np.full(len(everyone), AVERAGE)
    rows[own_rows] = np.arange(len(user_ids))
    shape = len(everyone), len(item_ids)
    judged = Partition(
        feedback,
        shape,
        user_ids=everyone,
        item_ids=item_ids,
        truth=data.truth if same else None,
        eligibility=None if data.eligibility is None else data.eligibility.moved(users, items, shape),
        name=data.name,
    )
    n, judged_pairs = len(known), len(parts[part].users)
    lost_users = int((user_ids.find(data.user_ids.values) < 0).sum())
    lost_items = int((item_ids.find(data.item_ids.values) < 0).sum())
    n_trained = None if trained is None else int(known.sum())
    return Aligned(judged, rows, lost_users, lost_items, len(feedback_of[part].users) - judged_pairs, n_trained, n)


def warn_about(aligned: Aligned, trained_on: str, data: Partition, unknown: str) -> None:
    """Warn in one line about what the model does not know."""
    message = f"the model was trained on other data ({trained_on}) than {data.name}"
    if aligned.unknown_users or aligned.unknown_items:
        kept = "users scored as the average one, items left out" if unknown == "fallback" else "left out"
        message += (
            f": {aligned.unknown_users:,} of its {data.n_users:,} users and {aligned.unknown_items:,} of its "
            f"{data.n_items:,} items are unknown to it ({kept}; {aligned.left_out:,} of {aligned.pairs:,} pairs lost)"
        )
    else:
        message += ": another seed, split or week?"
    if aligned.trained:
        message += f"; {aligned.trained:,} of {aligned.pairs:,} pairs, which it was trained or chosen on, are left out"
    elif aligned.trained is None:
        message += "; its file does not record which pairs it was trained on: none is left out for that"
    warnings.warn(message, stacklevel=3)


def counts(aligned: Aligned) -> dict[str, Any]:
    """The counts that the result of `evaluate` shows."""
    return {
        "unknown_users": aligned.unknown_users,
        "unknown_items": aligned.unknown_items,
        "left_out_pairs": aligned.left_out,
        "trained_pairs_left_out": aligned.trained,
    }


def _model_rows(own: Ids, other: Ids, what: str) -> np.ndarray:
    """Rows of the other log's ids in the model. If none is known, the ids are probably written differently."""
    rows = own.find(other.values) if own.kind == other.kind else None
    if rows is None or (rows < 0).all():
        raise InputError(
            f"the model knows none of the {len(other):,} {what}s: its ids look like {own.values[0]!r} ({own.kind}), "
            f"the log's like {other.values[0]!r} ({other.kind}): write them alike"
        )
    return rows


def _together(own: Ids, other: Ids) -> Ids:
    """The ids of both, as uint64 if their types differ: NumPy would join int64 and uint64 as float64."""
    values = [own.values, other.values]
    if own.values.dtype != other.values.dtype and own.kind == "int":
        if min(values[0][0], values[1][0]) < 0:
            raise InputError(
                "ids below 0 and ids of at least 2^63 cannot be combined: use unknown='leave-out', or other ids"
            )
        values = [each.astype(np.uint64) for each in values]
    return Ids(np.union1d(*values))


def _moved(feedback: Triplets, users: np.ndarray, items: np.ndarray) -> Triplets:
    """Feedback in other rows, without the pairs that have no row."""
    moved = feedback._replace(users=users[feedback.users], items=items[feedback.items])
    return moved.take((moved.users >= 0) & (moved.items >= 0))
