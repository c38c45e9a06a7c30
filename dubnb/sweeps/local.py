"""The engine on one machine: cells, each a driver thread with a loky worker of its own.

A worker that dies, hangs or runs out of memory costs its own trial only: its cell gets a new worker. Workers map the
data read-only from a file on disk (not shared memory, which is small), and die with the driver.
"""

import contextlib
import ctypes
import json
import os
import queue
import re
import signal
import sys
import threading
import time

from dubnb.sweeps import sharing, trial
from dubnb.sweeps.errors import SweepError

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
_here = {}  # in a worker: the task, the data, the driver's process id


class Local:
    """`n_jobs` cells that take trials from a schedule."""

    def __init__(self, data, task, n_jobs, directory, warm_params):
        self.task, self.n_jobs, self.warm_params = task, n_jobs, warm_params
        self.path = os.path.join(directory, DATA)
        self.packed = sharing.pack(data, self.path)
        self.outcomes, self.cells, self.threads = queue.Queue(), [], []
        self.warm = threading.Event()

    def run(self, schedule):
        """Yield (trial, outcome) as trials end, until none is left."""
        if not schedule.unfinished():
            return
        n_cells = min(self.n_jobs, len(schedule.waiting))  # a worker without a trial would start for nothing
        self.cells = [Cell(self.packed, self.task) for _ in range(n_cells)]
        self.threads = [threading.Thread(target=self._serve, args=(cell, schedule), daemon=True) for cell in self.cells]
        for thread in self.threads:
            thread.start()
        while schedule.unfinished():
            with contextlib.suppress(queue.Empty):
                found = self.outcomes.get(timeout=0.5)
                if isinstance(found, BaseException):
                    raise found
                yield found
        self._end_workers()

    def _serve(self, cell, schedule):
        try:
            self._prepare(cell)
            while (one := schedule.next()) is not None:
                self.outcomes.put((one, cell.call(_trial, one.params, limit=self.task.time_limit)))
        except BaseException as error:
            self.outcomes.put(error)

    def _prepare(self, cell):
        """Start the worker; the first one warms the kernels while the others wait, so that they are compiled once."""
        try:
            if cell is self.cells[0]:
                cell.call(trial.warm_up, self.task, self.warm_params, limit=START_LIMIT)
            else:
                cell.start()
                self.warm.wait()
        finally:
            self.warm.set()

    def close(self):
        """Leave nothing behind; the schedule must have been stopped."""
        self._end_workers()
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _end_workers(self):
        """Kill the workers; each cell's own thread then clears up, because a loky executor bears one thread only."""
        end = time.monotonic() + STOP_LIMIT
        for cell in self.cells:
            cell.is_stopped = True
        for cell, thread in zip(self.cells, self.threads, strict=False):
            while thread.is_alive() and time.monotonic() < end:
                cell.kill_worker()
                thread.join(timeout=0.1)
        for cell in self.cells:
            cell.discard()
        self.cells, self.threads = [], []


class Cell:
    """One worker process at a time, replaced when it is lost."""

    def __init__(self, packed, task):
        self.packed, self.task = packed, task
        self.executor, self.is_stopped = None, False

    def call(self, function, *args, limit=None):
        """The outcome that function(*args) gives in the worker, or how the worker was lost."""
        if self.executor is None:
            self.start()
        try:
            outcome = json.loads(self.executor.submit(function, *args).result(limit))
        except TimeoutError:
            outcome = {"status": trial.TIMEOUT, "reason": f"time limit of {limit:g} s"}
        except Exception as error:
            outcome = {"status": trial.KILLED, "reason": f"worker died: {_exit_code(error)}"}
        if outcome["status"] in trial.LOST:
            self.discard()
        return outcome

    def start(self):
        """A new worker, proven to answer."""
        from joblib.externals.loky.process_executor import ProcessPoolExecutor

        for attempt in range(START_ATTEMPTS):
            time.sleep(attempt)
            if self.is_stopped:
                raise SweepError("the sweep is being stopped")
            try:
                self.executor = ProcessPoolExecutor(
                    1, initializer=_enter, initargs=(os.getpid(), self.packed, self.task), env=ONE_THREAD
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

    def kill_worker(self):
        """End the worker at once, whatever it is doing; callable from any thread."""
        with contextlib.suppress(AttributeError, RuntimeError):  # it is just starting or ending
            for process in list(self.executor._processes.values()):
                process.kill()

    def discard(self):
        """Drop the executor with its worker."""
        self.kill_worker()
        executor, self.executor = self.executor, None
        if executor is not None:
            executor.shutdown(wait=True, kill_workers=True)


def _enter(driver, packed, task):
    """Make this process a worker: it ends with its driver, leaves Ctrl-C to it, and has the data at hand."""
    from tqdm import tqdm

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tqdm.set_lock(threading.RLock())  # its own lock would need a semaphore and a process that watches over it
    _here.update(driver=driver, task=task)
    _leave_if_orphaned()
    _here["data"] = sharing.unpack(packed)


def _leave_if_orphaned():
    if os.getppid() != _here["driver"]:
        os._exit(1)


def _trial(params):
    _leave_if_orphaned()
    return trial.run(params, _here["task"], _here["data"])


def _exit_code(error):
    """loky's long message, cut to the exit code."""
    found = re.search(r"\{(.*?)\}", str(error))
    return found.group(1) if found else f"{type(error).__name__}"
