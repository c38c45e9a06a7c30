"""The engine on one machine: slots, each a driver thread with a loky worker of its own.

A worker that dies, hangs or runs out of memory costs its own trial only: its slot gets a new worker. Workers map the
data read-only from a file on disk (not shared memory, which is small), and die with the driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dubnb.sweeps import sharing, work
from dubnb.sweeps.errors import SweepError
from dubnb.sweeps.schedule import Schedule
from dubnb.sweeps.trial import KILLED, LOST, TIMEOUT, Outcome, Rules, Trial

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

DATA = "data.bin"  # in the sweep's directory while it runs
START_LIMIT = 300.0  # seconds for a worker to start; a loaded machine is slow
START_ATTEMPTS = 3
STOP_LIMIT = 10.0
ONE_THREAD = {
    name: "1"
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "NUMBA_NUM_THREADS",
    )
}
PR_SET_PDEATHSIG = 1
_here: dict[str, Any] = {}  # in a worker: the rules, the data, the driver's process id


class Local:
    """`n_jobs` slots that take trials from a schedule."""

    def __init__(self, data: Mapping[str, Partition], rules: Rules, n_jobs: int, directory: str):
        self.rules, self.n_jobs = rules, n_jobs
        self.path = os.path.join(directory, DATA)
        try:
            self.packed = sharing.pack(dict(data), self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            raise SweepError(f"the data cannot be shared with the workers ({error})") from None
        self.outcomes: queue.Queue[tuple[Trial, Outcome] | BaseException] = queue.Queue()
        self.slots: list[Slot] = []
        self.threads: list[threading.Thread] = []
        self.warm = threading.Event()

    def run(self, schedule: Schedule) -> Iterator[tuple[Trial, Outcome]]:
        """Yield (trial, outcome) as trials end, until none is left."""
        if not schedule.unfinished():
            return
        n_slots = min(self.n_jobs, len(schedule.waiting))  # a worker without a trial would start for nothing
        self.slots = [Slot(self.packed, self.rules) for _ in range(n_slots)]
        kinds = _kinds(schedule.waiting.values()) if n_slots > 1 or self.rules.time_limit else []
        arguments = [(slot, schedule, [] if k else kinds) for k, slot in enumerate(self.slots)]
        self.threads = [threading.Thread(target=self._serve, args=each, daemon=True) for each in arguments]
        for thread in self.threads:
            thread.start()
        while schedule.unfinished():
            with contextlib.suppress(queue.Empty):
                outcome = self.outcomes.get(timeout=0.5)
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        self._end_workers()

    def _serve(self, slot: Slot, schedule: Schedule, kinds: list[Trial]) -> None:
        try:
            self._prepare(slot, kinds)
            while (one := schedule.next()) is not None:
                self.outcomes.put((one, slot.call(_trial, one, limit=self.rules.time_limit)))
        except BaseException as error:
            self.outcomes.put(error)

    def _prepare(self, slot: Slot, kinds: list[Trial]) -> None:
        """Start the worker; the first one warms the kernels while the others wait, so that they are compiled once."""
        try:
            slot.start()
            if slot is not self.slots[0]:
                self.warm.wait()
            for kind in kinds:
                slot.call(work.warm_up, kind, self.rules, limit=START_LIMIT)
        finally:
            self.warm.set()

    def close(self) -> None:
        """Leave nothing behind; the schedule must have been stopped."""
        self._end_workers()
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _end_workers(self) -> None:
        """Kill the workers; each slot's own thread then clears up, because a loky executor bears one thread only."""
        end = time.monotonic() + STOP_LIMIT
        for slot in self.slots:
            slot.is_stopped = True
        for slot, thread in zip(self.slots, self.threads, strict=False):
            while thread.is_alive() and time.monotonic() < end:
                slot.kill_worker()
                thread.join(timeout=0.1)
        for slot in self.slots:
            slot.discard()
        self.slots, self.threads = [], []


class Slot:
    """One worker process at a time, replaced when it is lost."""

    def __init__(self, packed: sharing.Packed, rules: Rules):
        self.packed, self.rules = packed, rules
        self.executor: Any = None
        self.is_stopped = False

    def call(self, function: Callable[..., str], *args: Any, limit: float | None = None) -> Outcome:
        """The outcome that function(*args) gives in the worker, or how the worker was lost."""
        if self.executor is None:
            self.start()
        try:
            outcome: Outcome = json.loads(self.executor.submit(function, *args).result(limit))
        except TimeoutError:
            outcome = {"status": TIMEOUT, "reason": f"time limit of {limit:g} s"}
        except Exception as error:
            outcome = {"status": KILLED, "reason": f"worker died: {_exit_code(error)}"}
        if outcome["status"] in LOST:
            self.discard()
        return outcome

    def start(self) -> None:
        """A new worker, proven to answer."""
        from joblib.externals.loky.process_executor import ProcessPoolExecutor

        for attempt in range(START_ATTEMPTS):
            time.sleep(attempt)
            if self.is_stopped:
                raise SweepError("the sweep is being stopped")
            try:
                self.executor = ProcessPoolExecutor(
                    1, initializer=_enter, initargs=(os.getpid(), self.packed, self.rules), env=ONE_THREAD
                )
                self.executor.submit(os.getpid).result(START_LIMIT)
                return
            except Exception as error:
                reason = error
                self.discard()
        raise SweepError(
            f"no worker process can be started ({type(reason).__name__}: {reason}): all recorded trials are kept; make "
            "room in memory and /dev/shm, then run the same command again"
        )

    def kill_worker(self) -> None:
        """End the worker at once, whatever it is doing; callable from any thread."""
        with contextlib.suppress(AttributeError, RuntimeError):  # it is just starting or ending
            for process in list(self.executor._processes.values()):
                process.kill()

    def discard(self) -> None:
        """Drop the executor with its worker."""
        self.kill_worker()
        executor, self.executor = self.executor, None
        if executor is not None:
            executor.shutdown(wait=True, kill_workers=True)


def _enter(driver: int, packed: sharing.Packed, rules: Rules) -> None:
    """Make this process a worker: it ends with its driver, leaves Ctrl-C to it, and has the data at hand."""
    from joblib.externals.loky import process_executor
    from tqdm import tqdm

    # Where psutil is installed, loky ends a worker that has grown by 300 MB since it began, when it had nothing: after
    # every trial of a larger log. Slots see to workers that run out of memory.
    process_executor._MAX_MEMORY_LEAK_SIZE = math.inf
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tqdm.set_lock(threading.RLock())  # its own lock would need a semaphore and a process that watches over it
    _here.update(driver=driver, rules=rules)
    _leave_if_orphaned()
    _here["data"] = sharing.unpack(packed)


def _leave_if_orphaned() -> None:
    if os.getppid() != _here["driver"]:
        os._exit(1)


def _trial(trial: Trial) -> str:
    _leave_if_orphaned()
    return work.run(trial, _here["rules"], _here["data"])


def _kinds(trials: Iterable[Trial]) -> list[Trial]:
    """One trial for each method, backbone and solver: they need different kernels."""
    kinds: dict[Any, Trial] = {}
    for trial in trials:
        kinds.setdefault((trial.method, trial.params["backbone"], trial.params.get("solver")), trial)
    return list(kinds.values())


def _exit_code(error: Exception) -> str:
    """loky's long message, cut to the exit code."""
    quoted = re.search(r"\{(.*?)\}", str(error))
    return quoted.group(1) if quoted else f"{type(error).__name__}"
