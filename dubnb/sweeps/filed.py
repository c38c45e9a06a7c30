"""What a finished trial may leave beside its metrics: an .npz file named by its key."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _store
from dubnb._check import InputError
from dubnb.sweeps.trial import Filing

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method


class Shown(NamedTuple):
    """What a fitted model showed on S_te, in rows of the Partition."""

    users: np.ndarray  # rows of the users that ranking metrics count
    per_user: dict[str, np.ndarray]  # metric -> value for each of them
    lists: np.ndarray  # (users, list length) item rows, best first; -1 where items have run out
    scores: np.ndarray  # raw scores of S_te's pairs, in the order of triplets("S_te")
    probabilities: np.ndarray  # what `predict` makes of them
    uncalibrated: np.ndarray  # the same without calibration


def path_of(directory: str, key: str) -> str:
    """Where the trial `key` leaves what it showed."""
    return os.path.join(directory, f"{key}.npz")


def write(filing: Filing, key: str, model: Method, data: Partition, result: dict[str, Any]) -> None:
    """File what `model` showed; `result` is its evaluation on S_te, per user. All of a file or nothing of it."""
    frame = result["per_user"]
    names = [name for name in frame.columns if name != "user"]
    users = frame["user"].to_numpy()
    items, list_scores = model.recommend(users, k=min(filing.list_length, data.n_items))
    rows = data.item_ids.find(items.ravel()).reshape(items.shape)
    S_te = data.triplets("S_te")
    scores = model.weights_.score_pairs(S_te.users, S_te.items)
    arrays = {
        "users": data.user_ids.find(users),
        "per_user": frame[names].to_numpy(dtype=np.float64).T,
        "lists": np.where(np.isnan(list_scores), -1, rows),  # a short list's padding is no item
        "scores": scores,
        "probabilities": model.probabilities(scores),
        "uncalibrated": model.uncalibrated(scores),
    }
    _store.write(path_of(filing.directory, key), {"per_user": names}, arrays, overwrite=True)


def read(directory: str, key: str) -> Shown | None:
    """What the trial `key` filed, or None where nothing is there that can be read."""
    path = path_of(directory, key)
    if not os.path.exists(path):
        return None
    try:
        header, arrays = _store.read(path)
        per_user = dict(zip(header["per_user"], arrays["per_user"], strict=True))
        return Shown(arrays["users"], per_user, *(arrays[name] for name in Shown._fields[2:]))
    except (InputError, KeyError, TypeError, ValueError):
        return None
