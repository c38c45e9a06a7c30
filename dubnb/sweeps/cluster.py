"""Trials on a running Dask cluster: each trial is a future, and the data are sent to the workers once.

Every wait has a limit, see `_dask`. If the scheduler does not answer, the sweep ends with the reason. A worker without
a heartbeat loses its trial, which runs again elsewhere; the worker gets no other trial until its heartbeat returns. A
trial that exceeds its time limit ends its worker process. Dask then tries it on other workers, up to the scheduler's
`allowed-failures`, before it counts as timed out.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dubnb import _dask
from dubnb._check import InputError
from dubnb._dask import Cluster, ClusterError, within
from dubnb._files import quote_path
from dubnb.sweeps import worker
from dubnb.sweeps.local import PackedData, pack, unpack
from dubnb.sweeps.trial import KILLED, TIMEOUT, Outcome, Rules, Schedule, SweepError, Trial

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

FETCH_WITHIN = 20.0  # to fetch a finished trial's answer; its worker may have died meanwhile
LOOK_EVERY = 5.0
SCATTER_ATTEMPTS = 5
SLOWEST_NETWORK = 1e7  # bytes per second
_kept: dict[str, Any] = {}  # in a Dask worker: the data that it unpacked last
_one_at_a_time = threading.Lock()  # thread counts, warnings and the watchdog are per process


@contextlib.contextmanager
def _as_sweep_error() -> Iterator[None]:
    """Add to a cluster's error what it means for a sweep."""
    try:
        yield
    except ClusterError as error:
        raise SweepError(f"{error}; all recorded trials are kept: run the same command again") from None


class ClusterExecutor:
    """Runs one trial at a time on each worker of a Dask client."""

    def __init__(self, data: Mapping[str, Partition], rules: Rules, client: Any):
        self.client, self.name = client, " ".join(sorted(data))
        with _as_sweep_error():
            self.cluster = Cluster(client)
            self.rules = self._visible(rules)
        self.packed = pack(dict(data))
        self.scattered: Any = None
        self.futures: dict[Any, tuple[Trial, float, Any]] = {}  # with the time of submission and the data sent
        self.ended: queue.Queue[Any] = queue.Queue()

    def _visible(self, rules: Rules) -> Rules:
        """Drop directories that not all workers see; InputError if trials must write their outputs there."""
        wanted = [rules.pretrained, rules.models and rules.models.directory, rules.outputs and rules.outputs.directory]
        pretrained, models, outputs = (all(flags) for flags in zip(*self.cluster.survey(wanted), strict=True))
        if rules.outputs is not None and not outputs:
            raise InputError(
                f"the Dask workers do not see {quote_path(rules.outputs.directory)}, where trials leave files: choose "
                "a directory that all machines share"
            )
        rules = rules if pretrained else rules._replace(pretrained=None)
        return rules if models else rules._replace(models=None)

    def run(self, schedule: Schedule) -> Iterator[tuple[Trial, Outcome]]:
        """Yield (trial, outcome) as trials end, until none is left."""
        with _as_sweep_error():
            yield from self._run(schedule)

    def _run(self, schedule: Schedule) -> Iterator[tuple[Trial, Outcome]]:
        next_look = 0.0
        while schedule.unfinished():
            if time.monotonic() >= next_look:
                _, silent = self.cluster.look()
                yield from self._abandon(silent)
                next_look = time.monotonic() + LOOK_EVERY
            self._submit(schedule)
            with contextlib.suppress(queue.Empty):
                future = self.ended.get(timeout=LOOK_EVERY)
                if future in self.futures:
                    trial, since, _ = self.futures.pop(future)
                    yield trial, self._outcome(future, since)

    def _submit(self, schedule: Schedule) -> None:
        while len(self.futures) < len(self.cluster.alive) and (one := schedule.next(block=False)) is not None:
            if self.scattered is None:
                self.scattered = self._scatter()
            arguments = (one, self.rules, self.scattered, self.name)
            # Other workers too, because a worker that restarts has another address.
            where = {"workers": sorted(self.cluster.alive), "allow_other_workers": True}
            future = self.client.submit(_trial_in_dask_worker, *arguments, **where, pure=False)
            self.futures[future] = (one, time.monotonic(), self.scattered)
            future.add_done_callback(self.ended.put)
        if not self.futures:
            self.cluster.wait_for_workers()

    def _scatter(self) -> Any:
        """Send the data to every living worker; try several times, because a worker can die meanwhile."""
        for attempt in range(SCATTER_ATTEMPTS):
            time.sleep(attempt)
            self.cluster.wait_for_workers()
            options = {"workers": sorted(self.cluster.alive), "broadcast": True, "hash": False}
            seconds = _dask.ANSWERS_WITHIN + len(self.packed.block) * len(self.cluster.alive) / SLOWEST_NETWORK
            try:
                return within(seconds, functools.partial(self.client.scatter, [self.packed], **options))[0]
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
        raise SweepError(
            f"the data cannot be sent to the Dask workers ({reason[:200]}): all recorded trials are kept; run the same "
            "command again"
        )

    def _abandon(self, silent: set[str]) -> Iterator[tuple[Trial, Outcome]]:
        """Give up the trials of silent workers, and those that wait for data which a silent worker may have to send.

        Dask itself waits for such data until it removes the worker, which takes minutes.
        """
        if not silent or not self.futures:
            return
        processing = within(_dask.ANSWERS_WITHIN, self.client.processing)
        worker_of = {key: worker for worker, keys in processing.items() for key in keys}
        sent = {data.key: data for _, _, data in self.futures.values()}
        holders = within(_dask.ANSWERS_WITHIN, functools.partial(self.client.who_has, list(sent.values())))
        for future, (trial, since, data) in list(self.futures.items()):
            worker = worker_of.get(future.key)
            waits = worker not in holders.get(data.key, ()) and time.monotonic() - since > _dask.WORKER_SILENT
            if worker is not None and (worker in silent or waits):
                del self.futures[future]
                self.client.cancel([future], force=True)
                self.scattered = None  # the only copy may be on the silent worker
                yield trial, {"status": KILLED, "reason": f"worker silent for {_dask.WORKER_SILENT:g} s"}

    def _outcome(self, future: Any, since: float) -> Outcome:
        """Return the trial's outcome, or that it was lost.

        A trial is lost if its worker dies before its answer is fetched, or if the last copy of the data is lost. The
        data are then sent again.
        """
        reason = "worker died, and with it the last copy of the data"
        try:
            if future.status == "finished":
                outcome: Outcome = json.loads(future.result(timeout=FETCH_WITHIN))
                return outcome
            if future.status == "error":
                reason = f"worker died: {type(future.exception(timeout=FETCH_WITHIN)).__name__}"
        except Exception as error:
            reason = f"worker died with its answer: {type(error).__name__}"
        if future.status != "error":
            self.scattered = None
        limit = self.rules.time_limit
        if limit is not None and time.monotonic() - since >= limit:
            return {"status": TIMEOUT, "reason": f"time limit of {limit:g} s ({reason})"}
        return {"status": KILLED, "reason": reason}

    def close(self) -> None:
        """Cancel what is running, if the cluster answers."""
        if self.client.status == "running" and self.futures:
            with contextlib.suppress(Exception):
                within(LOOK_EVERY, lambda: self.client.cancel(list(self.futures), force=True))


def _trial_in_dask_worker(trial: Trial, rules: Rules, packed: PackedData, name: str) -> str:
    """Run a trial in a Dask worker, whose process ends if the trial exceeds its time limit."""
    with _one_at_a_time:
        if name not in _kept:
            _kept.clear()
            _kept[name] = unpack(packed)
        with _watchdog(rules.time_limit):
            return worker.run(trial, rules, _kept[name])


@contextlib.contextmanager
def _watchdog(limit: float | None) -> Iterator[None]:
    """End this process if the block takes longer than `limit` seconds.

    A thread cannot be stopped, so the process ends, and its nanny starts another. Python's faulthandler does not need
    the GIL, which a hung trial may hold.
    """
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
