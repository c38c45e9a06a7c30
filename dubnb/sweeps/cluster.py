"""The engine on a Dask cluster that someone else has started: the same trials as futures, the data scattered once."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dubnb._check import InputError
from dubnb._files import shown
from dubnb.sweeps import sharing, work
from dubnb.sweeps.errors import NotShared, SweepError
from dubnb.sweeps.schedule import Schedule
from dubnb.sweeps.trial import KILLED, Outcome, Rules, Trial

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

WORKERS_WITHIN = 60.0  # seconds
_kept: dict[str, Any] = {}  # in a Dask worker: the data it last unpacked
_one_at_a_time = threading.Lock()  # thread counts, warnings and the watchdog belong to a whole process


def connect(address: str) -> Any:
    """A client of the scheduler at `address`."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError("a cluster needs Dask: pip install 'dubnb[cluster]'") from None
    try:
        return Client(address, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"no Dask scheduler answers at {address!r} ({reason[:200]}): check the address") from None


class Cluster:
    """A client, and one trial on each of its workers."""

    def __init__(self, data: Mapping[str, Partition], rules: Rules, client: Any):
        self.client, self.name = client, " ".join(sorted(data))
        self._wait_for_workers()
        self.rules = self._visible(rules)
        self.packed = sharing.pack(dict(data))
        self.scattered: Any = None
        self.futures: dict[Any, Trial] = {}

    def _visible(self, rules: Rules) -> Rules:
        """`rules` as far as all workers see the directories, which must be so for those that trials leave files in."""
        wanted = [rules.filing.directory] if rules.filing else []
        wanted += [os.path.dirname(rules.model_path)] if rules.model_path else []
        seen = self.client.run(_survey, [rules.pretrained, *wanted])
        for host, pid, _ in seen.values():
            if (host, pid) == (socket.gethostname(), os.getpid()):
                raise InputError("the Dask workers are threads of this process: start a cluster with processes=True")
        everywhere = [all(flags) for flags in zip(*(flags for *_, flags in seen.values()), strict=True)]
        for directory, visible in zip(wanted, everywhere[1:], strict=True):
            if not visible:
                raise NotShared(
                    f"the Dask workers do not see {shown(directory)}, where trials leave files: choose a directory "
                    "that all machines share"
                )
        return rules if everywhere[0] else rules._replace(pretrained=None)

    def _wait_for_workers(self) -> None:
        try:
            self.client.wait_for_workers(1, timeout=WORKERS_WITHIN)
        except TimeoutError:
            raise SweepError("the Dask cluster has no workers: start some, then run the same command again") from None

    def run(self, schedule: Schedule) -> Iterator[tuple[Trial, Outcome]]:
        """Yield (trial, outcome) as trials end, until none is left."""
        from distributed import as_completed

        ended = as_completed(raise_errors=False)
        while schedule.unfinished():
            self._submit(schedule, ended)
            future = next(ended)
            yield self.futures.pop(future), self._outcome(future)

    def _submit(self, schedule: Schedule, ended: Any) -> None:
        if self.client.status != "running":
            raise SweepError("the Dask scheduler is lost: all recorded trials are kept; run the same command again")
        slots = max(1, len(self.client.nthreads()))
        while len(self.futures) < slots and (one := schedule.next(block=False)) is not None:
            if self.scattered is None:
                self._wait_for_workers()
                (self.scattered,) = self.client.scatter([self.packed], broadcast=True, hash=False)
            future = self.client.submit(_trial, one, self.rules, self.scattered, self.name, pure=False)
            self.futures[future] = one
            ended.add(future)

    def _outcome(self, future: Any) -> Outcome:
        """What the trial answered, or that it was lost: after several deaths of its workers, or with all copies of the
        data, which are then sent again."""
        if future.status == "finished":
            found: Outcome = json.loads(future.result())
            return found
        if future.status == "error":
            return {"status": KILLED, "reason": f"worker died: {type(future.exception()).__name__}"}
        self.scattered = None
        return {"status": KILLED, "reason": "worker died, and with it the last copy of the data"}

    def close(self) -> None:
        """Leave the cluster as it was."""
        if self.client.status == "running":
            self.client.cancel(list(self.futures), force=True)


def _survey(directories: list[str | None]) -> tuple[str, int, list[bool]]:
    """Who a worker is, and which directories it sees."""
    return socket.gethostname(), os.getpid(), [each is None or os.path.isdir(each) for each in directories]


def _trial(trial: Trial, rules: Rules, packed: sharing.Packed, name: str) -> str:
    """`work.run` in a Dask worker, which ends itself if a trial outlasts its time limit."""
    with _one_at_a_time:
        if name not in _kept:
            _kept.clear()
            _kept[name] = sharing.unpack(packed)
        with _watchdog(rules.time_limit):
            return work.run(trial, rules, _kept[name])


@contextlib.contextmanager
def _watchdog(limit: float | None) -> Iterator[None]:
    """End this process after `limit` seconds: a thread cannot be stopped, so the process goes, and its nanny starts
    another. Python's own watchdog needs no GIL, which a hung trial may hold."""
    if limit is None:
        yield
        return
    import faulthandler

    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(limit, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
