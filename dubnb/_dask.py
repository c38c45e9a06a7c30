"""Dask: a connection to a scheduler, calls with a time limit, and which workers are alive and can use dubnb.

Every wait has a limit: CONNECT_WITHIN for a scheduler's first answer, ANSWERS_WITHIN for later ones, WORKERS_WITHIN for
the first worker. A worker without a heartbeat for WORKER_SILENT is silent.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import os
import queue
import socket
import threading
import time
import urllib.parse
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dubnb._check import InputError, cli_option_names, option_names
from dubnb._version import VERSION

CONNECT_WITHIN = 30.0  # seconds
ANSWERS_WITHIN = 60.0
AGAIN_WITHIN = 5.0  # an answer of the scheduler after one that did not come
REACHED_WITHIN = 2.0  # a worker, from this process
WORKERS_WITHIN = 60.0
WORKER_SILENT = 120.0
LOOK_EVERY = 2.0
FETCH_WITHIN = 10.0  # the answer of a worker that has joined, which is asked again
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
    logging.getLogger("asyncio").addFilter(_is_not_from_dask)  # adding it twice changes nothing


def _is_not_from_dask(record: logging.LogRecord) -> bool:
    """Whether a record of asyncio is about something else than an exception of Dask's that nobody has awaited."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__module__.split(".")[0] not in ("distributed", "tornado")


def within(seconds: float, function: Callable[[], Any], check: Callable[[], None] = lambda: None) -> Any:
    """Return function(), or raise TimeoutError after `seconds`; its thread then runs on.

    `check` is called now and then, and may raise.
    """
    end = time.monotonic() + seconds
    answers: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()

    def call() -> None:
        try:
            answers.put((function(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=call, daemon=True).start()
    while True:
        try:
            value, error = answers.get(timeout=max(0.0, min(LOOK_EVERY, end - time.monotonic())))
            break
        except queue.Empty:
            if time.monotonic() >= end:
                raise TimeoutError(f"no answer within {seconds:g} s") from None
            check()
    if error is not None:
        raise error
    return value


def wait(client: Any, futures: Any) -> Any:
    """Wait for futures of this client, or raise TimeoutError after LOOK_EVERY.

    Dask's function alone waits with the client that was made last, which learns late of another one's results.
    """
    from distributed import wait as wait_with_current

    with client.as_current():
        return wait_with_current(futures, timeout=LOOK_EVERY)


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
        self.given: dict[int, set[str]] = {}  # the workers that each task was given to

    def __call__(self, task: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """The results in the order of the calls; only some of them are waiting at a time."""
        waiting: dict[int, Any] = {}
        try:
            for number in range(len(calls)):
                ahead = number + AHEAD * max(len(self.cluster.alive), 1)
                for k in range(number, min(ahead, len(calls))):
                    if k not in waiting:
                        waiting[k] = self._submit(task, calls, k)
                yield self._result(task, calls, number, waiting)
        finally:  # after an error: tasks that have not begun need not run
            left = list(waiting.values())
            if left:
                with contextlib.suppress(Exception):
                    within(CLOSE_WITHIN, lambda: self.cluster.client.cancel(left, force=True))

    def _submit(self, task: Callable[..., Any], calls: Sequence[tuple[Any, ...]], number: int) -> Any:
        self.given[number] = alive = set(self.cluster.alive)
        options = {"workers": sorted(alive), "allow_other_workers": False, "pure": False}
        return self.cluster.client.submit(_alone, option_names(), task, *calls[number], **options)

    def _result(self, task: Callable[..., Any], calls: Sequence[Any], number: int, waiting: dict[int, Any]) -> Any:
        """One result; its task, and those behind it, are submitted again if a worker falls silent or all have died."""
        from distributed import CancelledError

        reason = ""
        for _ in range(ATTEMPTS):
            future = waiting[number]
            while not future.done():
                with contextlib.suppress(TimeoutError, CancelledError):
                    wait(self.cluster.client, future)
                alive, silent = self.cluster.look()
                newly, self.silent = silent - self.silent, silent
                if newly or not alive & self.given[number]:
                    break
            try:
                if not future.done():
                    raise TimeoutError("its workers are silent or gone")
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
                waiting[k] = self._submit(task, calls, k)
        raise ClusterError(
            f"{ATTEMPTS} attempts at one step failed ({reason[:200]}): check the workers, then run again"
        )


def _alone(names: Mapping[str, str] | None, task: Callable[..., Any], *call: Any) -> Any:
    """Run a task; its errors name parameters as those of this process do."""
    from dubnb._jit import one_blas_thread

    with one_blas_thread(), cli_option_names(names):
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


class WorkerAnswer(NamedTuple):
    """What a worker says of itself."""

    host: str
    pid: int
    version: str  # of dubnb; empty if dubnb cannot be used
    reason: str  # the error then
    visible: list[bool]  # whether the worker sees each directory

    def refusal(self) -> str:
        """Why the worker cannot be used; empty if it can."""
        if (self.host, self.pid) == (socket.gethostname(), os.getpid()):
            return "the Dask workers are threads of this process: start a cluster with processes=True"
        if not self.version:
            return f"a Dask worker on {self.host} cannot use dubnb ({self.reason}): install dubnb {VERSION} there"
        if self.version != VERSION:
            return f"a Dask worker on {self.host} has dubnb {self.version}, not {VERSION}: install the same version"
        return ""


class Cluster:
    """The workers of a Dask client: which are alive, and whether they can use this version of dubnb.

    A worker that joins after `survey` is asked too. It has no part in the work before it has answered, nor if it
    cannot be used.
    """

    def __init__(self, client: Any):
        self.client, self.alive = client, set[str]()
        self.heartbeats = _heartbeats.setdefault(client, Heartbeats())
        self.needed: list[str | None] | None = None  # directories that new workers must see; None before `survey`
        self.asked: dict[str, Any] = {}  # futures of the answers that are not here yet
        self.usable: dict[str, bool] = {}  # the workers that have answered
        self.reached: set[str] | None = set()  # workers to which this process can connect; None if one is hidden
        if client.direct_to_workers is False:  # asked for by who made the client
            self.reached = None
        self.looked = -math.inf
        self.wait_for_workers()

    def look(self, seconds: float | None = None) -> tuple[set[str], set[str]]:
        """(alive, silent) workers; ClusterError if the scheduler does not answer in time."""
        self.check_connection()
        try:
            asked = functools.partial(self.client.sync, self.client.scheduler.identity)
            about = within(seconds or ANSWERS_WITHIN, asked, self.check_connection)
        except ClusterError:
            raise
        except Exception as error:
            raise ClusterError(
                f"the Dask scheduler is lost ({type(error).__name__}: {error}): start it again"
            ) from None
        self.looked = time.monotonic()
        alive, silent = self.heartbeats.look(about["workers"], self.looked)
        if self.needed is not None:
            self._ask_new(alive, self.needed)
            alive = {name for name in alive if self.usable.get(name)}
        self.alive = alive
        return alive, silent

    def check_connection(self) -> None:
        """ClusterError if the connection to the scheduler is closed."""
        if self.client.status != "running":
            raise ClusterError("the Dask scheduler is lost (the connection is closed): start it again")

    def reaches(self, workers: Iterable[str]) -> bool:
        """Whether this process can connect to workers, so that data need not pass through the scheduler."""
        for name in workers:
            if self.reached is not None and name not in self.reached:
                where = urllib.parse.urlsplit(name)
                try:
                    if where.hostname is None or where.port is None:
                        raise ValueError("not an address of a network")
                    socket.create_connection((where.hostname, where.port), REACHED_WITHIN).close()
                    self.reached.add(name)
                except (OSError, ValueError):
                    self.reached = None
        return self.reached is not None

    def wait_for_workers(self) -> None:
        """Wait until a worker is alive; ClusterError if none appears in time."""
        end = time.monotonic() + WORKERS_WITHIN
        while not self.look()[0]:
            if time.monotonic() > end:
                raise ClusterError("the Dask cluster has no workers: start some")
            time.sleep(0.1)

    def survey(self, directories: list[str | None]) -> list[list[bool]]:
        """For each worker that answers, whether it sees each of the directories; InputError if one cannot use dubnb."""
        from distributed import CancelledError

        self.needed = None
        self.asked = {name: self._ask(name, directories) for name in sorted(self.alive)}
        end, found = time.monotonic() + ANSWERS_WITHIN, []
        for name, future in [*self.asked.items()]:
            while not future.done() and name in self.look()[0] and time.monotonic() < end:
                with contextlib.suppress(TimeoutError, CancelledError):
                    wait(self.client, future)
            if future.done() and (answer := self._answer(name, ANSWERS_WITHIN)) is not None:
                if answer.refusal():
                    raise InputError(answer.refusal())
                self.usable[name] = True
                found.append(answer.visible)
        if not found:
            raise ClusterError(
                f"no Dask worker answers within {ANSWERS_WITHIN:g} s: check that they run the same Python, and restart "
                "them"
            )
        self.needed = [each for each, seen in zip(directories, zip(*found, strict=True), strict=True) if all(seen)]
        self.asked = {}  # who has not answered is asked again
        self.alive = {name for name in self.alive if self.usable.get(name)}
        return found

    def _ask_new(self, alive: set[str], needed: list[str | None]) -> None:
        """Ask the workers that have joined, without waiting, and note the answers that have come."""
        self.asked = {name: future for name, future in self.asked.items() if name in alive}
        for name in sorted(alive - self.asked.keys() - self.usable.keys()):
            self.asked[name] = self._ask(name, needed)
        for name in [name for name, future in self.asked.items() if future.done()]:
            answer = self._answer(name, FETCH_WITHIN)
            if answer is not None:
                reason = answer.refusal()
                if not reason and not all(answer.visible):
                    reason = f"a Dask worker on {answer.host} does not see {needed[answer.visible.index(False)]!r}"
                self.usable[name] = not reason
                if reason:
                    warnings.warn(f"{reason}; it gets no work", stacklevel=2)

    def _ask(self, name: str, directories: list[str | None]) -> Any:
        return self.client.submit(_question(), directories, workers=[name], allow_other_workers=False, pure=False)

    def _answer(self, name: str, seconds: float) -> WorkerAnswer | None:
        """A worker's answer, which has come; None if it was lost."""
        future = self.asked.pop(name)
        try:
            return WorkerAnswer(*future.result(timeout=seconds))
        except Exception as error:
            if future.status != "error" or type(error).__name__ in LOST:
                return None
            return WorkerAnswer(name, 0, "", f"{type(error).__name__}: {error}"[:200], [])


def _question() -> Callable[..., Any]:
    """A function that a worker without dubnb can run too: a nested function is pickled with its code."""

    def answer(directories: list[str | None]) -> tuple[str, int, str, str, list[bool]]:
        import importlib
        import os
        import socket

        version = reason = ""
        try:
            importlib.import_module("dubnb._jit")  # also needs Numba
            version = importlib.import_module("dubnb._version").VERSION
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"[:200]
        visible = [each is None or os.path.isdir(each) for each in directories]
        return socket.gethostname(), os.getpid(), version, reason, visible

    return answer
