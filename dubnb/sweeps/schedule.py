"""The order of trials: each runs once, lost ones run again, and a shared pre-training runs before its users."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dubnb.sweeps.trial import LOST, Outcome, Trial, digest

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
