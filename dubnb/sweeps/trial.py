"""Trials and their order.

A trial is one fit of a method with all its parameters on one log, named by a key that is a hash of these. Each trial
runs once, lost ones run again, and a shared pre-training runs before its users.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterable, Mapping
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


# ---- the order of trials ---------------------------------------------------------------------------------------------


Groups = tuple[str | None, str | None]  # (family, group)


class Schedule:
    """A thread-safe queue of trials.

    Trials of one *group* pre-train the same models; trials of one *family* may share some of them. The first trial of a
    group runs while no other first trial of its family runs. The rest of the group follows when it has ended. So
    nothing is pre-trained twice, and no worker waits while there is a trial of another family.

    `isolate`: on Dask, a trial can be lost because another one killed its worker. A lost trial then runs again alone,
    after all others, and only attempts that ran alone count as its own.
    """

    def __init__(
        self,
        trials: Iterable[Trial],
        retries: int,
        isolate: bool = False,
        groups: Callable[[Trial], Groups] | None = None,
    ):
        self.waiting = {trial.key: trial for trial in trials}
        self.retries, self.isolate = retries, isolate
        self.attempts: dict[str, int] = {}
        self.running = 0
        self.ready_groups: set[str | None] = {None}
        self.busy_families: dict[str | None, str] = {}
        self.suspects: set[str] = set()
        self.alone = False
        self.changed, self.stopped = threading.Condition(), False
        self._find_groups, self._groups_of = groups or pretraining_groups, dict[str, Groups]()

    def next(self, block: bool = True) -> Trial | None:
        """Take a trial to run now; None if no more will come (or, without `block`, if there is none at present)."""
        with self.changed:
            while not self.stopped and (self.waiting or self.running):
                trial = self._eligible()
                if trial is not None:
                    del self.waiting[trial.key]
                    self.running += 1
                    self.alone = trial.key in self.suspects
                    return trial
                if not block:
                    return None
                self.changed.wait()
            return None

    def ended(self, trial: Trial, outcome: Outcome) -> bool:
        """Report a trial's outcome; returns False if the trial will run again."""
        with self.changed:
            self.running -= 1
            self.alone = False
            family, group = self._groups(trial)
            if self.busy_families.get(family) == trial.key:
                del self.busy_families[family]
            lost = outcome["status"] in LOST
            counts = not lost or not self.isolate or trial.key in self.suspects
            attempts = self.attempts[trial.key] = self.attempts.get(trial.key, 0) + counts
            final = not lost or attempts > self.retries
            if final:
                self.ready_groups.add(group)
            else:
                self.suspects |= {trial.key} if self.isolate else set()
                self.waiting[trial.key] = trial  # at the end: the cause of the loss may have passed by then
            self.changed.notify_all()
            return final

    def unfinished(self) -> bool:
        """Whether a trial is waiting or running."""
        with self.changed:
            return bool(self.waiting or self.running)

    def stop(self) -> None:
        """Stop handing out trials."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def _eligible(self) -> Trial | None:
        if self.alone:
            return None
        for trial in self.waiting.values():
            if trial.key in self.suspects and self.running:
                continue
            family, group = self._groups(trial)
            if group in self.ready_groups:
                return trial
            if family not in self.busy_families:
                self.busy_families[family] = trial.key
                return trial
        return None

    def _groups(self, trial: Trial) -> Groups:
        if trial.key not in self._groups_of:
            self._groups_of[trial.key] = self._find_groups(trial)
        return self._groups_of[trial.key]


def pretraining_groups(trial: Trial) -> Groups:
    """(family, group) of a trial by the models that it pre-trains; (None, None) if it pre-trains none."""
    stages = trial.method(**trial.params).pretraining()
    keys = [digest([trial.data, repr(stage)]) for stage in stages]
    return (keys[0], digest(keys)) if keys else (None, None)
