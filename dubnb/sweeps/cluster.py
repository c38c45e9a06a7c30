"""The engine on a Dask cluster that someone else has started: the same trials as futures, the data scattered once."""

import contextlib
import json
import os
import socket
import threading

from dubnb._check import InputError
from dubnb.sweeps import sharing, trial
from dubnb.sweeps.errors import SweepError

WORKERS_WITHIN = 60.0  # seconds
_kept = {}  # in a Dask worker: the data it last unpacked
_one_at_a_time = threading.Lock()  # thread counts, warnings and the watchdog belong to a whole process


def connect(address):
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

    def __init__(self, data, task, client):
        self.client, self.task, self.fingerprint = client, task, data.fingerprint
        self._check_workers()
        self.packed = sharing.pack(data)
        self.scattered, self.futures = None, {}

    def _check_workers(self):
        self._wait_for_workers()
        for host, pid, _ in self._survey().values():
            if (host, pid) == (socket.gethostname(), os.getpid()):
                raise InputError("the Dask workers are threads of this process: start a cluster with processes=True")

    def _wait_for_workers(self):
        try:
            self.client.wait_for_workers(1, timeout=WORKERS_WITHIN)
        except TimeoutError:
            raise SweepError("the Dask cluster has no workers: start some, then run the same command again") from None

    def _survey(self):
        return self.client.run(_who, self.task.pretrained)

    def shares_directory(self):
        """Do all workers see the directory of pre-trained models?"""
        return all(sees for _, _, sees in self._survey().values())

    def run(self, schedule):
        """Yield (trial, outcome) as trials end, until none is left."""
        from distributed import as_completed

        ended = as_completed(raise_errors=False)
        while schedule.unfinished():
            self._submit(schedule, ended)
            future = next(ended)
            yield self.futures.pop(future), self._outcome(future)

    def _submit(self, schedule, ended):
        if self.client.status != "running":
            raise SweepError("the Dask scheduler is lost: all recorded trials are kept; run the same command again")
        slots = max(1, len(self.client.nthreads()))
        while len(self.futures) < slots and (one := schedule.next(block=False)) is not None:
            if self.scattered is None:
                self._wait_for_workers()
                (self.scattered,) = self.client.scatter([self.packed], broadcast=True, hash=False)
            future = self.client.submit(_trial, one.params, self.task, self.scattered, self.fingerprint, pure=False)
            self.futures[future] = one
            ended.add(future)

    def _outcome(self, future):
        """What the trial answered, or that it was lost: after several deaths of its workers, or with all copies of the
        data, which are then sent again."""
        if future.status == "finished":
            return json.loads(future.result())
        if future.status == "error":
            return {"status": trial.KILLED, "reason": f"worker died: {type(future.exception()).__name__}"}
        self.scattered = None
        return {"status": trial.KILLED, "reason": "worker died, and with it the last copy of the data"}

    def close(self):
        """Leave the cluster as it was."""
        if self.client.status == "running":
            self.client.cancel(list(self.futures), force=True)


def _who(directory):
    return socket.gethostname(), os.getpid(), directory is None or os.path.isdir(directory)


def _trial(params, task, packed, fingerprint):
    """`trial.run` in a Dask worker, which ends itself if a trial outlasts its time limit."""
    with _one_at_a_time:
        if fingerprint not in _kept:
            _kept.clear()
            _kept[fingerprint] = sharing.unpack(packed)
        with _watchdog(task.time_limit):
            return trial.run(params, task, _kept[fingerprint])


@contextlib.contextmanager
def _watchdog(limit):
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
