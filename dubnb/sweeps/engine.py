"""What runs trials: this machine's processes or a Dask cluster, behind one seam."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dubnb import _check
from dubnb._check import InputError
from dubnb._files import quote_path
from dubnb.sweeps.schedule import Schedule
from dubnb.sweeps.trial import Outcome, Rules, Trial

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

EVERY_CPU = -1
CLOSE_WITHIN = 5.0  # seconds for a cluster to say goodbye


class Engine(Protocol):
    """Something that runs trials in processes other than this one, and survives theirs."""

    rules: Rules  # that trials really get: without a directory of pre-trained models where workers cannot see it

    def run(self, schedule: Schedule) -> Iterator[tuple[Trial, Outcome]]:
        """Yield trials of the schedule as they end, until none is left; whoever takes one tells `schedule.ended`."""
        ...

    def close(self) -> None:
        """Leave nothing behind; the schedule must have been stopped."""
        ...


class Resources(NamedTuple):
    """With what trials run, and how patiently.

    Parameters
    ----------
    n_jobs : int
        Worker processes on this machine; -1: one per CPU.
    client : distributed.Client, optional
        A Dask cluster to run on instead.
    scheduler : str, optional
        Or the address of its scheduler.
    time_limit : float, optional
        Seconds per trial.
    retries : int
        How often a trial is tried again whose worker died, hung or ran out of memory, before it is quarantined.
    retry_failed : bool
        Run trials again that an earlier run recorded as failed or quarantined.
    pretrained : str, optional
        A directory of pre-trained models to share with other runs; by default one in the run's own.
    quiet : bool
        Show no progress.
    """

    n_jobs: int = 1
    client: Any = None
    scheduler: str | None = None
    time_limit: float | None = None
    retries: int = 2
    retry_failed: bool = False
    pretrained: str | os.PathLike[str] | None = None
    quiet: bool = False

    def checked(self) -> Resources:
        """The same in Python's own types, or an InputError."""
        n_jobs = (os.cpu_count() or 1) if self.n_jobs == EVERY_CPU else _check.whole("n_jobs", self.n_jobs)
        limit = None if self.time_limit is None else _check.real("time_limit", self.time_limit, open_low=True)
        if self.client is not None and self.scheduler is not None:
            raise InputError("client and scheduler are both given: pass one of them")
        place = self.pretrained
        if place is not None and os.path.exists(place) and not os.path.isdir(place):
            raise InputError(f"pretrained={quote_path(place)} is a file: give a directory")
        return self._replace(
            n_jobs=n_jobs,
            time_limit=limit,
            retries=_check.whole("retries", self.retries, low=0),
            pretrained=None if place is None else os.fspath(place),
        )

    def connected(self) -> Resources:
        """With a client of the scheduler, where only its address is given."""
        if self.scheduler is None or self.client is not None:
            return self
        from dubnb.sweeps.cluster import connect

        return self._replace(client=connect(self.scheduler))

    def disconnect(self) -> None:
        """Close a client that `connected` made; one that was given is its giver's."""
        if self.scheduler is not None and self.client is not None:
            self.client.close(timeout=CLOSE_WITHIN)


def new_engine(data: Mapping[str, Partition], rules: Rules, resources: Resources, out: str) -> Engine:
    """An engine for trials on `data` ({fingerprint: Partition}), with its files in `out`."""
    for each in data.values():
        for lazy in ("fingerprint", "S_c", "seen", "logged"):  # computed here once, then shared
            getattr(each, lazy)
    if resources.client is not None:
        from dubnb.sweeps.cluster import Cluster

        return Cluster(data, rules, resources.client)
    from dubnb.sweeps.local import Local

    return Local(data, rules, resources.n_jobs, out)
