"""Trials on one machine: worker processes that share one copy of the data and end together with their driver.

Each worker is a loky process that belongs to a slot, and each slot has a thread in the driver. If a worker dies, hangs
or runs out of memory, only its own trial is lost, and its slot starts a new worker. Workers map the data read-only from
a file on disk, because shared memory can be small.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import math
import mmap
import os
import pickle
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb._files import disk_errors
from dubnb.sweeps import worker
from dubnb.sweeps.trial import KILLED, LOST, TIMEOUT, Outcome, Rules, Schedule, SweepError, Trial

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

DATA = "data.bin"  # the shared data, in the sweep's directory while it runs
ALIGNMENT = 64  # bytes
START_LIMIT = 300.0  # seconds for a worker to start on a loaded machine
START_ATTEMPTS = 3
STOP_LIMIT = 10.0
ANSWER_CHECK = 0.5  # seconds between two looks at the thread that a worker's answer comes through
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
KILL_SIGNAL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL
PR_SET_PDEATHSIG = 1
_here: dict[str, Any] = {}  # in a worker process: the rules, the data, the driver's process id


class PackedData(NamedTuple):
    """A pickled object whose arrays lie in one block of bytes, which many processes can share."""

    pickled: bytes  # without the arrays; it is sent between processes and never written to disk
    spans: list[tuple[int, int]]  # start and end of each array in the block
    block: bytes | str  # the arrays, or the path of a file that holds them


def pack(thing: Any, path: str | None = None) -> PackedData:
    """Pack `thing`; its arrays go to a file at `path`, or into bytes. Two arrays on the same memory are stored once."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    memory: dict[tuple[int, int], tuple[int, memoryview]] = {}  # (address, size) -> (offset, content)
    spans, end = [], 0
    for content in (buffer.raw() for buffer in buffers):
        place = np.frombuffer(content, np.uint8).ctypes.data, content.nbytes
        if place not in memory:
            memory[place] = end, content
            end += -(-content.nbytes // ALIGNMENT) * ALIGNMENT
        offset = memory[place][0]
        spans.append((offset, offset + content.nbytes))
    if path is None:
        block = bytearray(end)
        for offset, content in memory.values():
            block[offset : offset + content.nbytes] = content
        return PackedData(pickled, spans, bytes(block))
    with disk_errors(path), open(path, "wb") as file:
        for offset, content in memory.values():
            file.seek(offset)
            file.write(content)
        file.truncate(max(end, 1))  # an empty file cannot be mapped
    return PackedData(pickled, spans, path)


def unpack(packed: PackedData) -> Any:
    """Return the packed object; its arrays are read-only views of the block."""
    block: bytes | str | mmap.mmap = packed.block
    if isinstance(block, str):
        with open(block, "rb") as file:
            block = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = memoryview(block)
    return pickle.loads(packed.pickled, buffers=[view[start:end] for start, end in packed.spans])


class LocalExecutor:
    """Runs trials in up to `n_jobs` worker processes of this machine."""

    def __init__(self, data: Mapping[str, Partition], rules: Rules, n_jobs: int, directory: str):
        self.rules, self.n_jobs = rules, n_jobs
        self.path = os.path.join(directory, DATA)
        try:
            self.packed = pack(dict(data), self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            raise SweepError(f"the data cannot be shared with the workers ({error})") from None
        self.outcomes: queue.Queue[tuple[Trial, Outcome] | BaseException] = queue.Queue()
        self.slots: list[Slot] = []
        self.threads: list[threading.Thread] = []
        self.warm = threading.Event()
        self.usual_hook, threading.excepthook = threading.excepthook, self._report_thread

    def run(self, schedule: Schedule) -> Iterator[tuple[Trial, Outcome]]:
        """Yield (trial, outcome) as trials end, until none is left."""
        if not schedule.unfinished():
            return
        # joblib's imports are circular: two threads that import it at the same time can meet half of a module.
        importlib.import_module("joblib.externals.loky.process_executor")
        n_slots = min(self.n_jobs, len(schedule.waiting))  # not more workers than trials
        self.slots = [Slot(self.packed, self.rules) for _ in range(n_slots)]
        kinds: dict[Any, Trial] = {}  # a trial for each method, backbone and solver, since these need different kernels
        for trial in schedule.waiting.values() if n_slots > 1 or self.rules.time_limit else ():
            kinds.setdefault(worker.kind_of(trial), trial)
        arguments = [(slot, schedule, [] if k else list(kinds.values())) for k, slot in enumerate(self.slots)]
        self.threads = [threading.Thread(target=self._serve, args=each, daemon=True) for each in arguments]
        for thread in self.threads:
            try:
                thread.start()
            except RuntimeError as error:
                raise no_worker(error) from None
        while schedule.unfinished():
            with contextlib.suppress(queue.Empty):
                outcome = self.outcomes.get(timeout=0.5)
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        self._end_workers()

    def _serve(self, slot: Slot, schedule: Schedule, kinds: list[Trial]) -> None:
        """Run trials in a worker. The first worker compiles the kernels while the others wait: this is done once."""
        try:
            try:
                slot.start()
                if slot is not self.slots[0]:
                    self.warm.wait()
                for kind in kinds:
                    slot.call(worker.warm_up, kind, self.rules, limit=START_LIMIT)
            finally:
                self.warm.set()
            while (one := schedule.next()) is not None:
                self.outcomes.put((one, slot.call(_trial_in_process, one, limit=self.rules.time_limit)))
        except BaseException as error:
            self.outcomes.put(error)

    def close(self) -> None:
        """End all workers and remove the data file; the schedule must have been stopped."""
        self._end_workers()
        threading.excepthook = self.usual_hook
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _report_thread(self, failure: Any) -> None:
        """Print the traceback of a thread that failed, unless it is loky's: its slot reports that in one line."""
        if not type(failure.thread).__module__.startswith("joblib."):
            self.usual_hook(failure)

    def _end_workers(self) -> None:
        """Kill the workers. Each slot's own thread drops its executor, because loky's executors are not thread-safe."""
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
    """One worker process, replaced when it is lost."""

    def __init__(self, packed: PackedData, rules: Rules):
        self.packed, self.rules = packed, rules
        self.executor: Any = None
        self.is_stopped = False

    def call(self, function: Callable[..., str], *args: Any, limit: float | None = None) -> Outcome:
        """Call function(*args) in the worker; return its outcome, or how the worker was lost."""
        if self.executor is None:
            self.start()
        try:
            outcome: Outcome = json.loads(self._answer(self.executor.submit(function, *args), limit))
        except TimeoutError:
            outcome = {"status": TIMEOUT, "reason": f"time limit of {limit:g} s"}
        except Exception as error:
            quoted = re.search(r"\{(.*?)\}", str(error))  # the exit code in loky's long message
            outcome = {"status": KILLED, "reason": f"worker died: {quoted[1] if quoted else type(error).__name__}"}
        if outcome["status"] in LOST:
            self.discard()
        return outcome

    def start(self) -> None:
        """Start a worker and wait for its first answer."""
        from joblib.externals.loky.process_executor import ProcessPoolExecutor

        for attempt in range(START_ATTEMPTS):
            time.sleep(attempt)
            if self.is_stopped:
                raise SweepError("the sweep is being stopped")
            try:
                self.executor = ProcessPoolExecutor(
                    1, initializer=_enter, initargs=(os.getpid(), self.packed, self.rules), env=ONE_THREAD
                )
                with _blocking_ctrl_c():
                    started = self.executor.submit(os.getpid)
                self._answer(started, START_LIMIT)
                return
            except Exception as error:
                reason = error
                self.discard()
        raise no_worker(reason)

    def _answer(self, future: Any, limit: float | None) -> Any:
        """The worker's answer; TimeoutError after `limit` seconds, RuntimeError if no answer can come any more.

        Short of memory, loky's own thread fails to start another one and ends. Nothing sets the future then.
        """
        end = math.inf if limit is None else time.monotonic() + limit
        while True:
            try:
                return future.result(max(0.0, min(ANSWER_CHECK, end - time.monotonic())))
            except TimeoutError:
                if future.done() or time.monotonic() >= end:
                    raise
                if not self.executor._executor_manager_thread.is_alive() and not future.done():
                    raise RuntimeError("can't start new thread") from None

    def kill_worker(self) -> None:
        """Kill the worker process at once; any thread may call this."""
        processes: list[Any] = []
        with contextlib.suppress(AttributeError, RuntimeError):  # the executor is starting or ending
            processes = list(self.executor._processes.values())
        for process in processes:  # loky's processes have no kill() of their own
            with contextlib.suppress(OSError):
                if process.is_alive():
                    os.kill(process.pid, KILL_SIGNAL)

    def discard(self) -> None:
        """Kill the worker and drop its executor."""
        self.kill_worker()
        executor, self.executor = self.executor, None
        if executor is not None:
            # Short of memory, the executor's own thread may not have started, and shutdown cannot join it.
            with contextlib.suppress(RuntimeError, OSError):
                executor.shutdown(wait=True, kill_workers=True)


def no_worker(reason: Exception) -> SweepError:
    """The error of a sweep that has no memory for a worker process or its thread."""
    cause = f"{type(reason).__name__}: {reason}".removesuffix(": ")  # a MemoryError has no text
    return SweepError(
        f"no worker process can be started ({cause}): make room in memory and /dev/shm, raise `ulimit -v`, or use "
        "fewer workers. All recorded trials are kept: then run the same command again"
    )


@contextlib.contextmanager
def _blocking_ctrl_c() -> Iterator[None]:
    """Block SIGINT in processes that this thread starts, so that it does not end their imports with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as loky_tracker

    for tracker in (resource_tracker, loky_tracker):
        tracker.ensure_running()  # it unblocks the signal when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _enter(driver: int, packed: PackedData, rules: Rules) -> None:
    """Prepare this process as a worker: it ends with its driver, ignores Ctrl-C, and maps the data."""
    from joblib.externals.loky import process_executor
    from tqdm import tqdm

    # Where psutil is installed, loky ends a worker whose memory has grown by 300 MB since it started. That would be
    # after every trial of a larger log. Slots replace workers that run out of memory.
    process_executor._MAX_MEMORY_LEAK_SIZE = math.inf
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    tqdm.set_lock(threading.RLock())  # its default lock needs a semaphore and a tracker process
    _here.update(driver=driver, rules=rules)
    _leave_if_orphaned()
    _here["data"] = unpack(packed)


def _leave_if_orphaned() -> None:
    if os.getppid() != _here["driver"]:
        os._exit(1)


def _trial_in_process(trial: Trial) -> str:
    _leave_if_orphaned()
    return worker.run(trial, _here["rules"], _here["data"])
