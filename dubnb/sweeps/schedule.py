"""Which trial comes next: each once, lost ones again, and shared pre-training before those who share it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dubnb.sweeps.trial import LOST, Outcome, Trial, digest

Groups = tuple[str | None, str | None]  # (family, group)


class Schedule:
    """Trials waiting and running, for several threads at once.

    Trials of one *group* pre-train the same models, those of one *family* may share some of them. The first trial of a
    group runs while no other first trial of its family does, and its group follows when it has ended: so nothing is
    pre-trained twice, and no worker waits while there is a trial of another family.

    `isolate`: where a lost trial may be another one's victim (Dask cannot tell), it is tried again alone, after all
    others, and only such attempts count against it.
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
        """A trial to run now; None if there will be none (or, without `block`, if there is none yet)."""
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
        """Take a trial's outcome; False if the trial is to run again."""
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
                self.waiting[trial.key] = trial  # at the end: whatever lost it may have passed by then
            self.changed.notify_all()
            return final

    def unfinished(self) -> bool:
        """Whether a trial is waiting or running."""
        with self.changed:
            return bool(self.waiting or self.running)

    def stop(self) -> None:
        """Hand out no more trials."""
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
    """(family, group) by the models that a trial pre-trains; (None, None) where there are none."""
    stages = trial.method(**trial.params).pretraining()
    keys = [digest([trial.data, repr(stage)]) for stage in stages]
    return (keys[0], digest(keys)) if keys else (None, None)
