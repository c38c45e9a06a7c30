"""What a finished trial may leave beside its metrics: an .npz file named by its key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _store
from dubnb._check import InputError
from dubnb.evaluation import JudgedUsers
from dubnb.sweeps.trial import Filing

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method


ARRAYS = tuple(name for name in JudgedUsers._fields if name != "ks")
NO_AUC = -1.0  # in place of nan, which files do not hold
WITH_NAN = ("user_auc", "percentile")


class Shown(NamedTuple):
    """What a fitted model showed on S_te, in rows of the Partition."""

    users: np.ndarray  # rows of the users that ranking metrics count
    per_user: dict[str, np.ndarray]  # metric -> value for each of them
    lists: np.ndarray  # (users, list length) item rows, best first; -1 where items have run out
    scores: np.ndarray  # raw scores of S_te's pairs, in the order of triplets("S_te")
    probabilities: np.ndarray  # what `predict` makes of them
    uncalibrated: np.ndarray  # the same without calibration
    judged_users: dict[str, JudgedUsers] = {}  # "S_va" and "S_te" -> user_auc, and what each part judged of the lists


def path_of(directory: str, key: str) -> str:
    """Where the trial `key` leaves what it showed."""
    return os.path.join(directory, f"{key}.npz")


def write(filing: Filing, key: str, model: Method, data: Partition, results: Mapping[str, dict[str, Any]]) -> None:
    """File what `model` showed: all of a file or nothing of it.

    results: its evaluations by part with `per_user`: of S_va, where there is one, then of S_te.
    """
    *_, last = results.values()
    frame = last["per_user"]
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
    judged = {part: JudgedUsers.from_frame(result["judged_users"], data) for part, result in results.items()}
    for part, users in judged.items():
        own = {name: getattr(users, name) for name in ARRAYS}
        own |= {name: np.nan_to_num(own[name], nan=NO_AUC) for name in WITH_NAN}
        arrays |= {f"{part}_{name}": values for name, values in own.items()}
    header = {"per_user": names, "judged_users": {part: list(users.ks) for part, users in judged.items()}}
    _store.write(path_of(filing.directory, key), header, arrays, overwrite=True)


def read(directory: str, key: str) -> Shown | None:
    """What the trial `key` filed, or None where nothing is there that can be read."""
    path = path_of(directory, key)
    if not os.path.exists(path):
        return None
    try:
        header, arrays = _store.read(path)
        per_user = dict(zip(header["per_user"], arrays["per_user"], strict=True))
        judged = {}
        for part, ks in header["judged_users"].items():
            own: dict[str, Any] = {name: arrays[f"{part}_{name}"] for name in ARRAYS}
            for name in WITH_NAN:
                own[name] = np.where(own[name] == NO_AUC, np.nan, own[name])
            judged[part] = JudgedUsers(ks=tuple(ks), **own)
        plain = {name: arrays[name] for name in ("users", "lists", "scores", "probabilities", "uncalibrated")}
        return Shown(per_user=per_user, judged_users=judged, **plain)
    except (InputError, KeyError, TypeError, ValueError, AttributeError):
        return None
