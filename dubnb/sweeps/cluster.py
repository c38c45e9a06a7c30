"""The engine on a Dask cluster that someone else has started: the same trials as futures, the data scattered once.

Nothing waits for ever. A scheduler that does not answer within CONNECT_WITHIN (at first) or ANSWERS_WITHIN (later) ends
the sweep with the reason; a worker whose heartbeat has not come for WORKER_SILENT loses its trial, which is tried again
elsewhere, and gets no other until it beats again; a trial that outlasts its time limit ends its worker process, so that
Dask tries it on as many others as the scheduler's `allowed-failures` says before it is recorded as timed out.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dubnb._check import InputError
from dubnb._files import quote_path
from dubnb._version import VERSION
from dubnb.sweeps import sharing, work
from dubnb.sweeps.errors import NotShared, SweepError
from dubnb.sweeps.schedule import Schedule
from dubnb.sweeps.trial import KILLED, TIMEOUT, Outcome, Rules, Trial

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

CONNECT_WITHIN = 30.0  # seconds
ANSWERS_WITHIN = 60.0
WORKERS_WITHIN = 60.0
FETCH_WITHIN = 20.0  # a finished trial's answer, a line of text; its worker may have died just then
WORKER_SILENT = 120.0
LOOK_EVERY = 5.0
SCATTER_ATTEMPTS = 5
SLOWEST_NETWORK = 1e7  # bytes per second
_kept: dict[str, Any] = {}  # in a Dask worker: the data it last unpacked
_one_at_a_time = threading.Lock()  # thread counts, warnings and the watchdog belong to a whole process


def connect(address: str) -> Any:
    """A client of the scheduler at `address`."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError("a cluster needs Dask: pip install 'dubnb[cluster]'") from None
    try:
        # In a thread: a port that accepts and says nothing would hold the client's own time limit up.
        return _within(CONNECT_WITHIN, lambda: Client(address, timeout=CONNECT_WITHIN / 2))
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"no Dask scheduler answers at {address!r} ({reason[:200]}): check the address") from None


def _within(seconds: float, function: Callable[[], Any]) -> Any:
    """function(), or TimeoutError if it takes longer; it is then left to itself."""
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


class Heartbeats:
    """Which workers are alive: those whose time of the last heartbeat, as the scheduler tells it, still changes."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[float, float]] = {}  # worker -> (its last heartbeat, when that was news)

    def look(self, workers: Mapping[str, Mapping[str, Any]], now: float) -> tuple[set[str], set[str]]:
        """(alive, silent) among the workers of a scheduler's identity."""
        for name, about in workers.items():
            if name not in self.seen or self.seen[name][0] != about["last_seen"]:
                self.seen[name] = (about["last_seen"], now)
        silent = {name for name in workers if now - self.seen[name][1] > WORKER_SILENT}
        return set(workers) - silent, silent


_heartbeats: weakref.WeakKeyDictionary[Any, Heartbeats] = weakref.WeakKeyDictionary()  # by client: engines come and go


class Cluster:
    """A client, and one trial on each of its workers."""

    def __init__(self, data: Mapping[str, Partition], rules: Rules, client: Any):
        self.client, self.name = client, " ".join(sorted(data))
        self.heartbeats, self.alive = _heartbeats.setdefault(client, Heartbeats()), set[str]()
        self._wait_for_workers()
        self.rules = self._visible(rules)
        self.packed = sharing.pack(dict(data))
        self.scattered: Any = None
        self.futures: dict[Any, tuple[Trial, float]] = {}  # with the time of its submission
        self.ended: queue.Queue[Any] = queue.Queue()

    # -- the cluster

    def _visible(self, rules: Rules) -> Rules:
        """`rules` as far as all workers see the directories, which must be so for those that trials leave files in."""
        wanted = [rules.filing.directory] if rules.filing else []
        wanted += [os.path.dirname(rules.model_path)] if rules.model_path else []
        answers = self._survey([rules.pretrained, *wanted])
        everywhere = [all(flags) for flags in zip(*answers, strict=True)]
        for directory, visible in zip(wanted, everywhere[1:], strict=True):
            if not visible:
                raise NotShared(
                    f"the Dask workers do not see {quote_path(directory)}, where trials leave files: choose a "
                    "directory that all machines share"
                )
        return rules if everywhere[0] else rules._replace(pretrained=None)

    def _survey(self, directories: list[str | None]) -> list[list[bool]]:
        """Which of the directories each worker sees; those that do not answer get no trials."""
        asked = {
            worker: self.client.submit(_who, directories, workers=[worker], allow_other_workers=False, pure=False)
            for worker in self.alive
        }
        end, answering = time.monotonic() + ANSWERS_WITHIN, []
        for future in asked.values():
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
            raise SweepError(f"no Dask worker answers within {ANSWERS_WITHIN:g} s: restart them, then run it again")
        return answering

    def _wait_for_workers(self) -> None:
        end = time.monotonic() + WORKERS_WITHIN
        while not self._look()[0]:
            if time.monotonic() > end:
                raise SweepError("the Dask cluster has no workers: start some, then run the same command again")
            time.sleep(0.1)

    def _look(self) -> tuple[set[str], set[str]]:
        """(alive, silent) workers; a scheduler that does not answer ends the sweep."""
        try:
            if self.client.status != "running":
                raise TimeoutError("the connection is closed")
            about = _within(ANSWERS_WITHIN, lambda: self.client.sync(self.client.scheduler.identity))
        except Exception as error:
            raise SweepError(
                f"the Dask scheduler is lost ({type(error).__name__}: {error}): all recorded trials are kept; run the "
                "same command again"
            ) from None
        self.alive, silent = self.heartbeats.look(about["workers"], time.monotonic())
        return self.alive, silent

    # -- trials

    def run(self, schedule: Schedule) -> Iterator[tuple[Trial, Outcome]]:
        """Yield (trial, outcome) as trials end, until none is left."""
        next_look = 0.0
        while schedule.unfinished():
            if time.monotonic() >= next_look:
                _, silent = self._look()
                yield from self._abandon(silent)
                next_look = time.monotonic() + LOOK_EVERY
            self._submit(schedule)
            with contextlib.suppress(queue.Empty):
                future = self.ended.get(timeout=LOOK_EVERY)
                if future in self.futures:
                    trial, since = self.futures.pop(future)
                    yield trial, self._outcome(future, since)

    def _submit(self, schedule: Schedule) -> None:
        while len(self.futures) < len(self.alive) and (one := schedule.next(block=False)) is not None:
            if self.scattered is None:
                self.scattered = self._scatter()
            arguments = (one, self.rules, self.scattered, self.name)
            # Others too: a worker that starts anew has another address.
            where = {"workers": sorted(self.alive), "allow_other_workers": True}
            future = self.client.submit(_trial, *arguments, **where, pure=False)
            self.futures[future] = (one, time.monotonic())
            future.add_done_callback(self.ended.put)
        if not self.futures:
            self._wait_for_workers()

    def _scatter(self) -> Any:
        """The data on every living worker; one may die just then, so it is tried several times."""
        for attempt in range(SCATTER_ATTEMPTS):
            time.sleep(attempt)
            self._wait_for_workers()
            options = {"workers": sorted(self.alive), "broadcast": True, "hash": False}
            seconds = ANSWERS_WITHIN + len(self.packed.block) * len(self.alive) / SLOWEST_NETWORK
            try:
                return _within(seconds, functools.partial(self.client.scatter, [self.packed], **options))[0]
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
        raise SweepError(
            f"the data cannot be sent to the Dask workers ({reason[:200]}): all recorded trials are kept; run the same "
            "command again"
        )

    def _abandon(self, silent: set[str]) -> Iterator[tuple[Trial, Outcome]]:
        """Give up what silent workers are at."""
        if not silent or not self.futures:
            return
        processing = _within(ANSWERS_WITHIN, self.client.processing)
        keys = {key for worker in silent for key in processing.get(worker, ())}
        for future in [each for each in self.futures if each.key in keys]:
            trial, _ = self.futures.pop(future)
            self.client.cancel([future], force=True)
            self.scattered = None  # a copy may be left on the silent worker only
            yield trial, {"status": KILLED, "reason": f"worker silent for {WORKER_SILENT:g} s"}

    def _outcome(self, future: Any, since: float) -> Outcome:
        """What the trial answered, or that it was lost: with its worker (which may have died holding the answer), or
        with all copies of the data, which are then sent again."""
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
        """Leave the cluster as it was, if it answers."""
        if self.client.status == "running" and self.futures:
            with contextlib.suppress(Exception):
                _within(LOOK_EVERY, lambda: self.client.cancel(list(self.futures), force=True))


def _who(directories: list[str | None]) -> tuple[str, int, str, list[bool]]:
    """Who a worker is, its dubnb, and which directories it sees."""
    return socket.gethostname(), os.getpid(), VERSION, [each is None or os.path.isdir(each) for each in directories]


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
