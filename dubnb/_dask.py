"""Dask: a connection to a scheduler, calls with a time limit, and which workers are alive and can use dubnb.

Every wait has a limit: CONNECT_WITHIN for a scheduler's first answer, ANSWERS_WITHIN for later ones, WORKERS_WITHIN for
the first worker. A worker without a heartbeat for WORKER_SILENT is silent.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dubnb._check import InputError
from dubnb._version import VERSION

CONNECT_WITHIN = 30.0  # seconds
ANSWERS_WITHIN = 60.0
WORKERS_WITHIN = 60.0
WORKER_SILENT = 120.0
LOOK_EVERY = 2.0
CLOSE_WITHIN = 5.0
AHEAD = 3  # tasks of a worker that are waiting or running
LOST = ("KilledWorker", "FutureCancelledError", "CommClosedError")  # errors of a task whose worker was lost
ATTEMPTS = 20  # of one step, each after a worker was lost


class ClusterError(RuntimeError):
    """The cluster cannot go on: the command line prints it as one line and exits with code 1."""


def connect(address: str) -> Any:
    """Return a client of the scheduler at `address`."""
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise InputError("a cluster needs Dask: pip install 'dubnb[cluster]'") from None
    quiet_logs()
    try:
        # In a thread: a port that accepts and stays silent defeats the client's own time limit.
        return within(CONNECT_WITHIN, lambda: Client(address, timeout=CONNECT_WITHIN / 2))
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"no Dask scheduler answers at {address!r} ({reason[:200]}): check the address") from None


def quiet_logs() -> None:
    """Keep Dask's tracebacks from stderr: what goes wrong with the cluster, the sweep says in one line."""
    for name in ["distributed", "tornado", *logging.root.manager.loggerDict]:
        if name.split(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """Return function(), or raise TimeoutError after `seconds`; its thread then runs on."""
    answers: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()

    def call() -> None:
        try:
            answers.put((function(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=call, daemon=True).start()
    try:
        value, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return value


@contextlib.contextmanager
def tasks(
    scheduler: Any, directories: Sequence[str], otherwise: str = "the log is read here"
) -> Iterator[Callable[..., Iterator[Any]]]:
    """A function that runs a task on each of some tuples of arguments and yields the results in their order.

    Without a scheduler it runs here. Otherwise the workers run it, if all of them see the directories; a warning
    names one that is hidden from a worker, and says what happens `otherwise`.
    """
    if scheduler is None:
        yield itertools.starmap
        return
    client = connect(scheduler) if isinstance(scheduler, str) else scheduler
    try:
        cluster = Cluster(client)
        seen = zip(*cluster.survey([*directories]), strict=True)
        hidden = [name for name, of_workers in zip(directories, seen, strict=True) if not all(of_workers)]
        if not hidden:
            yield ClusterTasks(cluster)
        else:
            warnings.warn(
                f"the workers do not see {hidden[0]!r}: {otherwise}; choose a disk that all machines share",
                stacklevel=6,
            )
            yield itertools.starmap
    finally:
        if client is not scheduler:
            with contextlib.suppress(Exception):
                client.close(timeout=CLOSE_WITHIN)


class ClusterTasks:
    """Runs tasks on the workers of a cluster. A task that ran twice, after a worker was lost, must change nothing."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.silent = cluster.look()[1]  # workers that have no tasks any more

    def __call__(self, task: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """The results in the order of the calls; only some of them are waiting at a time."""
        waiting: dict[int, Any] = {}
        try:
            for number in range(len(calls)):
                ahead = number + AHEAD * max(len(self.cluster.alive), 1)
                for k in range(number, min(ahead, len(calls))):
                    if k not in waiting:
                        waiting[k] = self._submit(task, calls[k])
                yield self._result(task, calls, number, waiting)
        finally:  # after an error: tasks that have not begun need not run
            left = list(waiting.values())
            if left:
                with contextlib.suppress(Exception):
                    within(CLOSE_WITHIN, lambda: self.cluster.client.cancel(left, force=True))

    def _submit(self, task: Callable[..., Any], call: tuple[Any, ...]) -> Any:
        alive = sorted(self.cluster.alive)
        return self.cluster.client.submit(_alone, task, *call, workers=alive, allow_other_workers=True, pure=False)

    def _result(self, task: Callable[..., Any], calls: Sequence[Any], number: int, waiting: dict[int, Any]) -> Any:
        """One result; its task, and those behind it, are submitted again if a worker falls silent or dies."""
        from distributed import CancelledError, wait

        reason = ""
        for _ in range(ATTEMPTS):
            future = waiting[number]
            while not future.done():
                with contextlib.suppress(TimeoutError, CancelledError):
                    wait(future, timeout=LOOK_EVERY)
                alive, silent = self.cluster.look()
                newly, self.silent = silent - self.silent, silent
                if newly or not alive:
                    break
            try:
                if not future.done():
                    raise TimeoutError("a worker is silent")
                result = future.result(timeout=ANSWERS_WITHIN)
                waiting.pop(number).release()
                return result
            except InputError:
                raise
            except Exception as error:  # the worker died, or its result is lost
                reason = f"{type(error).__name__}: {error}"
                if future.status == "error" and type(error).__name__ not in LOST:  # it would fail again
                    raise ClusterError(f"a Dask worker failed ({reason})") from None
            self.cluster.wait_for_workers()
            for k in waiting:
                self.cluster.client.cancel([waiting[k]], force=True)
                waiting[k] = self._submit(task, calls[k])
        raise ClusterError(
            f"{ATTEMPTS} attempts at one step failed ({reason[:200]}): check the workers, then run again"
        )


def _alone(task: Callable[..., Any], *call: Any) -> Any:
    from dubnb._jit import one_blas_thread

    with one_blas_thread():
        return task(*call)


class Heartbeats:
    """Finds the workers that are alive: those whose last heartbeat, as the scheduler reports it, still changes."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[float, float]] = {}  # worker -> (its last heartbeat, when that changed)

    def look(self, workers: Mapping[str, Mapping[str, Any]], now: float) -> tuple[set[str], set[str]]:
        """(alive, silent) among the workers of a scheduler's identity."""
        for name, about in workers.items():
            if name not in self.seen or self.seen[name][0] != about["last_seen"]:
                self.seen[name] = (about["last_seen"], now)
        silent = {name for name in workers if now - self.seen[name][1] > WORKER_SILENT}
        return set(workers) - silent, silent


_heartbeats: weakref.WeakKeyDictionary[Any, Heartbeats] = weakref.WeakKeyDictionary()  # by client


class Cluster:
    """The workers of a Dask client: which are alive, and whether they can use this version of dubnb."""

    def __init__(self, client: Any):
        self.client, self.alive = client, set[str]()
        self.heartbeats = _heartbeats.setdefault(client, Heartbeats())
        self.wait_for_workers()

    def look(self) -> tuple[set[str], set[str]]:
        """(alive, silent) workers; ClusterError if the scheduler does not answer."""
        try:
            if self.client.status != "running":
                raise TimeoutError("the connection is closed")
            about = within(ANSWERS_WITHIN, lambda: self.client.sync(self.client.scheduler.identity))
        except Exception as error:
            raise ClusterError(f"the Dask scheduler is lost ({type(error).__name__}: {error})") from None
        self.alive, silent = self.heartbeats.look(about["workers"], time.monotonic())
        return self.alive, silent

    def wait_for_workers(self) -> None:
        """Wait until a worker is alive; ClusterError if none appears in time."""
        end = time.monotonic() + WORKERS_WITHIN
        while not self.look()[0]:
            if time.monotonic() > end:
                raise ClusterError("the Dask cluster has no workers: start some")
            time.sleep(0.1)

    def survey(self, directories: list[str | None]) -> list[list[bool]]:
        """For each worker that answers, whether it sees each of the directories; InputError if one cannot use dubnb."""
        asked = [
            self.client.submit(_identify, directories, workers=[name], allow_other_workers=False, pure=False)
            for name in self.alive
        ]
        end, answering = time.monotonic() + ANSWERS_WITHIN, []
        for future in asked:
            try:
                host, pid, version, visible = future.result(timeout=max(0.1, end - time.monotonic()))
            except TimeoutError:
                continue
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise InputError(
                    f"the Dask workers cannot use dubnb ({reason[:200]}): install dubnb {VERSION} on every machine"
                ) from None
            if (host, pid) == (socket.gethostname(), os.getpid()):
                raise InputError("the Dask workers are threads of this process: start a cluster with processes=True")
            if version != VERSION:
                raise InputError(
                    f"a Dask worker on {host} has dubnb {version}, not {VERSION}: install the same version"
                )
            answering.append(visible)
        if not answering:
            raise ClusterError(f"no Dask worker answers within {ANSWERS_WITHIN:g} s: restart them")
        return answering


def _identify(directories: list[str | None]) -> tuple[str, int, str, list[bool]]:
    """A worker's host, process id and dubnb version, and whether it sees each directory."""
    return socket.gethostname(), os.getpid(), VERSION, [each is None or os.path.isdir(each) for each in directories]
