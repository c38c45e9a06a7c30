"""Trials: a trial is one fit of a method with all its parameters on one log, named by a key that is a hash of these."""

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
KILLED, TIMEOUT, MEMORY = "killed", "timeout", "memory"
LOST = (KILLED, TIMEOUT, MEMORY)  # the parameters may not be the cause, so the trial gets another attempt
EXACT_WHOLE = 1 << 53  # above this, two integers can be the same float and would get the same key
LIST_LENGTH = 50

Outcome = dict[str, Any]  # how a trial ended, in JSON's types: "status", "reason", and the results if it is done
Row = dict[str, Any]  # a finished trial in the ledger: see `ledger.COLUMNS`


class SweepError(RuntimeError):
    """The sweep cannot go on (full disk, lost cluster). Finished trials are kept; the message names the remedy."""


class Trial(NamedTuple):
    """One fit. Make it with `planned`."""

    key: str
    method: type[Method]
    params: dict[str, Any]  # all parameters, resolved on the log, including the seed
    data: str  # the log's fingerprint


class OutputFiles(NamedTuple):
    """Where each finished trial writes its TestOutput (see `worker`), and the length of its recommendation lists."""

    directory: str
    list_length: int = LIST_LENGTH


class ModelFiles(NamedTuple):
    """Where each finished trial with this seed saves its fitted model, as KEY.npz."""

    directory: str
    seed: int


class Rules(NamedTuple):
    """Settings that all trials of a run share."""

    protocol: str = "full-ranking"
    pretrained: str | None = None  # directory of pre-trained models
    time_limit: float | None = None  # seconds per trial
    outputs: OutputFiles | None = None
    models: ModelFiles | None = None


def planned(method: type[Method], data: Partition, params: Mapping[str, Any]) -> Trial:
    """Return the trial of `method` with `params` (including the seed) on `data`.

    All parameters are checked. Those that are not given take the method's defaults for this log.
    """
    model = method().set_params(**params)
    resolved = {name: plain(name, value) for name, value in model.resolved_params(data).items()}
    return Trial(trial_key(method.name, resolved, data.fingerprint), method, resolved, data.fingerprint)


def trial_key(method: str, params: Mapping[str, Any], data: str) -> str:
    """Hash dubnb's version, the method, the log and every parameter; 1 and 1.0 are the same value."""
    return digest([VERSION, method, data, sorted((name, canonical(value)) for name, value in params.items())])


def digest(value: Any) -> str:
    """A short hash of anything JSON can hold."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=12).hexdigest()


def canonical(value: Any) -> Any:
    """Map equal values of different types to the same JSON value."""
    if isinstance(value, tuple):
        return [canonical(each) for each in value]
    return repr(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value


def plain(name: str, value: Any) -> Any:
    """Convert `value` to Python's own types; raise InputError if the ledger cannot store it."""
    value = value.item() if getattr(value, "ndim", None) == 0 else value  # a NumPy scalar
    if isinstance(value, list | tuple):
        return tuple(plain(name, each) for each in value)
    if isinstance(value, int) and abs(value) > EXACT_WHOLE:
        raise InputError(f"{name} has a whole number beyond {EXACT_WHOLE}: a sweep cannot tell such numbers apart")
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise InputError(f"{name} is {str(value)[:40]} in a sweep: only finite numbers, text and lists of them can be kept")
