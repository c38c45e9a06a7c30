"""What a trial is: one fit of a method with all its parameters on one log, under a name that follows from them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dubnb._check import InputError
from dubnb._version import VERSION

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method

DONE, FAILED, QUARANTINED = "done", "failed", "quarantined"
KILLED, TIMEOUT, MEMORY = "killed", "timeout", "memory"  # no fault of the parameters for sure: worth another attempt
LOST = (KILLED, TIMEOUT, MEMORY)
EXACT_WHOLE = 1 << 53  # beyond it two whole numbers may be the same float, and so have the same key
LIST_LENGTH = 50

Outcome = dict[str, Any]  # how a trial ended, in JSON's types: "status", "reason", and if it is done what it found
Row = dict[str, Any]  # a finished trial in the ledger: see `ledger.COLUMNS`


class Trial(NamedTuple):
    """One fit. Made by `planned`."""

    key: str
    method: type[Method]
    params: dict[str, Any]  # every one, resolved on the log, the seed's too
    data: str  # the log's fingerprint


class Filing(NamedTuple):
    """Where a finished trial leaves what it showed on S_te, see `filed`, and how long its lists are."""

    directory: str
    list_length: int = LIST_LENGTH


class Rules(NamedTuple):
    """What all trials of a run share."""

    protocol: str = "full-ranking"
    pretrained: str | None = None  # directory of pre-trained models
    time_limit: float | None = None  # seconds per trial
    filing: Filing | None = None
    model_path: str | None = None  # where the fitted model is saved; for a run of one trial


def planned(method: type[Method], data: Partition, params: Mapping[str, Any]) -> Trial:
    """The trial of `method` with `params` (the seed among them) on `data`; all parameters are checked, and those not
    given take the method's defaults for this log."""
    model = method().set_params(**params)
    resolved = {name: plain(name, value) for name, value in model.resolved_params(data).items()}
    return Trial(trial_key(method.name, resolved, data.fingerprint), method, resolved, data.fingerprint)


def trial_key(method: str, params: Mapping[str, Any], data: str) -> str:
    """A name that depends on dubnb's version, the method, the log and every parameter's value, 1 and 1.0 being the
    same: trials of two versions are two trials."""
    return digest([VERSION, method, data, sorted((name, canonical(value)) for name, value in params.items())])


def digest(value: Any) -> str:
    """A short hash of anything JSON can hold."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=12).hexdigest()


def canonical(value: Any) -> Any:
    """Equal for equal values, whatever their type."""
    if isinstance(value, tuple):
        return [canonical(each) for each in value]
    return repr(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value


def plain(name: str, value: Any) -> Any:
    """`value` in Python's own types, or an error: the ledger must be able to hold it."""
    value = value.item() if getattr(value, "ndim", None) == 0 else value  # NumPy's
    if isinstance(value, list | tuple):
        return tuple(plain(name, each) for each in value)
    if isinstance(value, int) and abs(value) > EXACT_WHOLE:
        raise InputError(f"{name} has a whole number beyond {EXACT_WHOLE}: a sweep cannot tell such numbers apart")
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise InputError(f"{name} is {str(value)[:40]} in a sweep: only finite numbers, text and lists of them can be kept")
