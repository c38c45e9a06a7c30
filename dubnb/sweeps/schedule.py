"""Which trial comes next: each once, lost ones again, and shared pre-training before those who share it."""

import threading
from typing import NamedTuple

from dubnb.sweeps.grid import digest
from dubnb.sweeps.trial import LOST


class Trial(NamedTuple):
    """One fit: its name, and every parameter's value, the seed's too."""

    key: str
    params: dict


class Schedule:
    """Trials waiting and running, for several threads at once.

    Trials of one *group* pre-train the same models, those of one *family* may share some of them. The first trial of a
    group runs while no other first trial of its family does, and its group follows when it has ended: so nothing is
    pre-trained twice, and no worker waits while there is a trial of another family.

    `isolate`: where a lost trial may be another one's victim (Dask cannot tell), it is tried again alone, after all
    others, and only such attempts count against it.
    """

    def __init__(self, trials, pretraining, retries, isolate=False):
        self.waiting = list(trials)
        self.pretraining, self.retries = pretraining, retries
        self.attempts, self.running = {}, 0
        self.ready_groups, self.busy_families = set(), {}
        self.isolate, self.suspects, self.alone = isolate, set(), False
        self.changed, self.stopped = threading.Condition(), False

    def next(self, block=True):
        """A trial to run now; None if there will be none (or, without `block`, if there is none yet)."""
        with self.changed:
            while not self.stopped and (self.waiting or self.running):
                trial = self._eligible()
                if trial is not None:
                    self.waiting.remove(trial)
                    self.running += 1
                    self.alone = trial.key in self.suspects
                    return trial
                if not block:
                    return None
                self.changed.wait()
            return None

    def ended(self, trial, outcome):
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
                self.waiting.append(trial)  # at the end: whatever lost it may have passed by then
            self.changed.notify_all()
            return final

    def unfinished(self):
        with self.changed:
            return bool(self.waiting or self.running)

    def stop(self):
        """Hand out no more trials."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def _eligible(self):
        if self.alone:
            return None
        for trial in self.waiting:
            if trial.key in self.suspects and self.running:
                continue
            family, group = self._groups(trial)
            if group is None or group in self.ready_groups:
                return trial
            if family not in self.busy_families:
                self.busy_families[family] = trial.key
                return trial
        return None

    def _groups(self, trial):
        return self.pretraining(trial.params) if self.pretraining else (None, None)


def pretraining_groups(cls):
    """params -> (family, group), (None, None) where nothing is pre-trained."""

    def groups(params):
        stages = cls(**params).resolve().pretraining()
        return (digest(repr(stages[0])), digest(repr(stages))) if stages else (None, None)

    return groups
