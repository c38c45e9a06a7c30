"""Model files: write a fitted method to an .npz, and read it back with every member checked."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb import _check, _store
from dubnb._check import InputError
from dubnb.backbones import BACKBONES, Weights
from dubnb.backbones.mf import checked
from dubnb.calibration import Calibration
from dubnb.data.ids import Ids
from dubnb.data.pattern import Pattern
from dubnb.head import Head, UserOffset
from dubnb.methods._fold_in import RowObjective

if TYPE_CHECKING:
    from dubnb.methods._method import Method

_PATTERN = {"seen.indptr": np.int64, "seen.items": np.int32}
REFITTED = ("S_va", "all")
HEAD_NUMBERS = ("scale", "intercept", "ridge", "gain", "gain_error")
CHECKED_AT_ONCE = 1 << 20  # items that users had
_MODELS = {"weights_": "M_c.", "teacher_": "M_t."}


def save(model: Method, path: str | os.PathLike[str], overwrite: bool) -> None:
    """Write everything that a fitted model needs.

    That is: parameters, weights, teacher, ids, the items that users have had, history, and the data's fingerprint. Also
    hashes of the pairs that it was trained or chosen on, how it was refitted, and its metrics on S_te before that. The
    seconds of the history are left out, so that two equal fits give the same bytes.
    """
    history, judged = model.history_, model.judged_
    if judged is not None:
        judged = dict(zip(judged, _without_nan(_json_params(judged).values()), strict=True))
    header = {
        "method": model.name,
        "params": _json_params(model.get_params()),
        "resolved": _json_params(model.params_),
        "data": model.data_,
        "calibration": None if model.calibration_ is None else dataclasses.asdict(model.calibration_),
        "history": [[name, _without_nan(history[name].tolist())] for name in history if name != "seconds"],
        "lengths": model.lengths_,
        "refit": model.refit_,
        "head": None if model.head_ is None else _head_numbers(model.head_),
        "judged": judged,
    }
    indptr, columns = model.seen_
    arrays = {
        "user_ids": model.user_ids_.values,
        "item_ids": model.item_ids_.values,
        "seen.indptr": indptr,
        "seen.items": columns,
        "cold": model.cold_,
    }
    if model.trained_ is not None:
        arrays["trained.pairs"] = model.trained_
    if model.head_ is not None:
        arrays |= {"head.users": model.head_.user_offsets, "head.items": model.head_.item_offsets}
    if model.row_objective_ is not None:
        header["row_objective"] = model.row_objective_.header()
        arrays |= {"row.weights": model.row_objective_.item_weights, "row.targets": model.row_objective_.item_targets}
    for attribute, prefix in _MODELS.items():
        weights = getattr(model, attribute)
        if weights is not None:
            arrays |= {prefix + name: array for name, array in weights.arrays().items()}
    _store.write(path, header, arrays, overwrite)


def load(path: str | os.PathLike[str], methods: Mapping[str, type[Method]]) -> Method:
    """A fitted method, one of `methods` ({name: class}), from a file that `save` wrote.

    Anything missing or inconsistent raises an InputError.
    """
    header, arrays = _store.read(path)
    try:
        cls = methods[_check.choice("method", header["method"], tuple(methods))]
        given, resolved = _tuples(header["params"]), _tuples(header["resolved"])
        for params in (given, resolved):
            params.setdefault("head", None)  # files of versions without heads
        model = cls(**given)
        model.params_, model.data_ = resolved, dict(header["data"])
        model.user_ids_, model.item_ids_ = Ids(arrays["user_ids"]), Ids(arrays["item_ids"])
        model.seen_ = _read_seen(arrays, len(model.user_ids_), len(model.item_ids_))
        model.history_rows_ = _history_rows(header["history"])
        model.calibration_ = _read_calibration(header["calibration"])
        shape = (len(model.user_ids_), len(model.item_ids_))
        checked(arrays, {"cold": (shape[0],)}, {"cold": np.bool_})
        model.cold_ = arrays["cold"]
        model.head_ = _read_head(header.get("head"), arrays, shape)
        model.row_objective_ = _read_row_objective(header.get("row_objective"), arrays, shape[1])
        weights = _read_weights(model.weights_class(), arrays, "M_c.", shape)
        if weights is None:
            raise InputError(f"{path} holds no weights of M_c: save it again")
        model.weights_ = weights
        model.teacher_ = _read_weights(BACKBONES[model.backbone], arrays, "M_t.", shape)
        _check_params(model)
        model.trained_ = _read_pair_hashes(arrays)
        model.lengths_, model.refit_, model.judged_ = _read_training_record(header)
        str(model.data_["name"] + model.data_["fingerprint"])
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{path} is not a dubnb model ({reason:.200}): save it again") from None
    return model


def _read_weights(
    backbone: type[Weights], arrays: Mapping[str, np.ndarray], prefix: str, shape: tuple[int, int]
) -> Weights | None:
    own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    if not own:
        return None
    weights = backbone.from_arrays(own)
    if (len(weights.users), len(weights.items)) != shape:
        raise InputError(f"the tables of {prefix[:-1]} do not fit the ids: the model file was altered; fit again")
    return weights


def _read_seen(arrays: Mapping[str, np.ndarray], n_users: int, n_items: int) -> Pattern:
    indptr, columns = arrays["seen.indptr"], np.asarray(arrays["seen.items"])
    checked(arrays, {"seen.indptr": (n_users + 1,), "seen.items": (columns.size,)}, _PATTERN)
    fits = indptr[0] == 0 and indptr[-1] == len(columns) and (np.diff(indptr) >= 0).all()
    if not fits or (len(columns) and not 0 <= columns.min() <= columns.max() < n_items):
        raise InputError("the items that users had are inconsistent: the model file was altered; fit again")
    for first in range(0, len(columns) - 1, CHECKED_AT_ONCE):
        some = columns[first : first + CHECKED_AT_ONCE + 1]
        falls = first + 1 + np.flatnonzero(some[1:] <= some[:-1])  # the first item of a user follows another's last
        if (indptr[np.searchsorted(indptr, falls)] != falls).any():
            raise InputError("a user's items are not in order in the model file: the file was altered; fit again")
    return Pattern.from_csr(indptr, columns)


def _read_pair_hashes(arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The sorted hashes of the pairs that the model was trained or chosen on; None if the file lacks them."""
    pairs = arrays.get("trained.pairs")
    if pairs is None:
        return None
    checked(arrays, {"trained.pairs": (pairs.size,)}, {"trained.pairs": np.uint64})
    if not (pairs[1:] > pairs[:-1]).all():
        raise InputError("the trained pairs are not in order in the model file: the file was altered; fit again")
    return pairs


def _read_training_record(
    header: Mapping[str, Any],
) -> tuple[dict[str, int] | None, dict[str, Any] | None, dict[str, Any] | None]:
    """(epochs by stage, what the model was refitted on, its earlier metrics on S_te); None if the file lacks them."""
    lengths, refit, judged = (header.get(name) for name in ("lengths", "refit", "judged"))
    if lengths is not None:
        lengths = {str(stage): _check.whole("epochs", epochs, low=0) for stage, epochs in lengths.items()}
    if refit is not None:
        pairs = {part: _check.whole("pairs", refit["pairs"][part], low=0) for part in ("S_c", "S_t")}
        refit = {"on": _check.choice("refit", refit["on"], REFITTED), "pairs": pairs}
    if judged is not None:
        judged = {str(name): math.nan if value is None else value for name, value in judged.items()}
        if not all(isinstance(value, float | int | str) for value in judged.values()):
            raise InputError("the metrics are not numbers in the model file: the file was altered; fit again")
    return lengths, refit, judged


def _read_calibration(header: dict[str, Any] | None) -> Calibration | None:
    if header is None:
        return None
    slope, intercept = header["slope"], header["intercept"]
    return Calibration(_check.real("slope", slope), _check.real("intercept", intercept, low=-math.inf))


def _head_numbers(head: Head) -> dict[str, Any]:
    """The numbers of a head."""
    numbers = {name: float(getattr(head, name)) for name in HEAD_NUMBERS}
    return numbers | {"of_new_user": list(map(float, head.of_new_user))}


def _read_head(header: dict[str, Any] | None, arrays: Mapping[str, np.ndarray], shape: tuple[int, int]) -> Head | None:
    if header is None:
        return None
    shapes = {"head.users": (shape[0],), "head.items": (shape[1],)}
    checked(arrays, shapes, dict.fromkeys(shapes, np.float64))
    numbers = {name: _check.real(name, header[name], low=-math.inf) for name in HEAD_NUMBERS}
    of_new_user = UserOffset(*(_check.real("offset", value, low=-math.inf) for value in header["of_new_user"]))
    if not of_new_user.mean_rate > 0:
        raise InputError("the head's mean rate must be above 0: the model file was altered; fit again")
    return Head(
        user_offsets=arrays["head.users"], item_offsets=arrays["head.items"], of_new_user=of_new_user, **numbers
    )


def _read_row_objective(
    header: dict[str, Any] | None, arrays: Mapping[str, np.ndarray], n_items: int
) -> RowObjective | None:
    if header is None:
        return None
    checked(arrays, {"row.weights": (n_items,), "row.targets": (n_items,)})
    numbers = {name: float(header[name]) for name in RowObjective.NUMBERS}
    if min(arrays["row.weights"].min(), numbers["mean_activity"], numbers["bias_ridge"]) < 0:
        raise InputError("the weights of new users are below 0 in the model file: the file was altered; fit again")
    return RowObjective(arrays["row.weights"], arrays["row.targets"], **numbers)


def _json_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters for JSON: numbers and arrays of NumPy and columns of pandas become Python's."""
    return {k: v.tolist() if hasattr(v, "tolist") else v for k, v in params.items()}


def _tuples(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in params.items()}


def _check_params(model: Method) -> None:
    """Check that given and resolved parameters are valid, agree with each other, and fit the tables."""
    checked = model.resolve().get_params()
    same_names = model.params_.keys() == checked.keys()
    given = {name for name, value in model.get_params().items() if value is not None and value != "auto"}
    if not same_names or any(model.params_[name] != checked[name] for name in given):
        raise InputError("the resolved parameters are not those of the method: the model file was altered; fit again")
    type(model)(**model.params_).resolve()
    for weights in (model.weights_, model.teacher_):
        if weights is not None and getattr(weights, "rank", model.params_["rank"]) != model.params_["rank"]:
            raise InputError(
                f"tables of rank {weights.rank} with rank={model.params_['rank']}: the model file was altered"
            )


def _without_nan(values: Iterable[Any]) -> list[Any]:
    """The values with None in place of nan, which JSON does not have."""
    return [None if value != value else value for value in values]


def _history_rows(columns: Sequence[tuple[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    """The rows of a history, from columns of equal length."""
    names, values = [str(name) for name, _ in columns], [column for _, column in columns]
    return [
        {name: math.nan if value is None else value for name, value in zip(names, row, strict=True)}
        for row in zip(*values, strict=True)
    ]
