"""What the sweep tests share: a tiny log, a method that misbehaves on demand, and a driver to start and kill.

`python -m tests.sweep_tools '{"out": "x", ...}'` runs `dubnb.sweep` on the tiny log with these arguments.
"""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import dubnb
from dubnb._jit import njit
from dubnb.data.partition import PARTS, Partition, Triplets
from dubnb.methods.base import Base
from dubnb.sweeps import SweepError, worker
from dubnb.sweeps.run import NOT_REPRODUCIBLE

ROOT = Path(__file__).resolve().parents[1]
FREE = 3
KERNEL_SECONDS = 20
NAME = "coin tosses"
FIXED = {"rank": 2, "epochs": 2}
QUICK = {"quiet": True, "fixed": FIXED}


def tiny_log(seed=0, n_users=60, n_items=40):
    """A log of coin tosses, both labels in every part."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(n_users * n_items)
    parts, start = {}, 0
    for part, size in zip(PARTS, (600, 100, 100, 400), strict=True):
        own = pairs[start : start + size]
        start += size
        parts[part] = Triplets(own // n_items, own % n_items, (rng.random(size) < 0.4).astype(float), np.ones(size))
    return Partition(parts, (n_users, n_items), name=NAME)


class Unpicklable(Exception):
    """Breaks a plain process pool: it cannot be made again from its arguments."""

    def __init__(self, one, two):
        super().__init__(one)
        self.two = two, lambda: None


def grown_by(megabytes):
    """For a worker: take so much memory, and keep it beyond the second in which loky does not look."""
    grown_by.kept = np.ones(megabytes << 17)
    time.sleep(1.1)
    return json.dumps({"status": "done", "pid": os.getpid()})


@njit
def busy_loop(turns):
    """A kernel that takes its time in one call, without the GIL like every kernel."""
    total = 0.0
    for turn in range(turns):
        total += np.sqrt(total + turn)
    return total


def _sigkill(model):
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault(model):
    ctypes.string_at(0)


def _hang(model):
    time.sleep(600)  # longer than any time limit of a test: where one is ignored, the trial is done and the test fails


def _memory(model):
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    np.ones(1 << 28)


def _unpicklable(model):
    raise Unpicklable("it went wrong", 2)


def _result(model):
    usual = worker._peak_memory_mb

    def once():
        worker._peak_memory_mb = usual
        return object()

    worker._peak_memory_mb = once


def _kernel(model):
    busy_loop(1)
    start = time.monotonic()
    busy_loop(10_000_000)
    busy_loop(int(10_000_000 * KERNEL_SECONDS / (time.monotonic() - start)))


def _once(fault):
    def happens(model):
        try:
            os.close(os.open(os.path.join(model.where, f"once-{model.fault}"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        fault(model)

    return happens


def _held(model):
    """All trials but the first FREE that begin wait for the file "go"."""
    if len(fits(model.where)) > FREE:
        wait_until((Path(model.where) / "go").exists)


FAULTS = {
    "none": lambda model: None,
    "slow": lambda model: time.sleep(0.15),
    "held": _held,
    "exit": lambda model: sys.exit(3),
    "sigkill": _sigkill,
    "segfault": _segfault,
    "hang": _hang,
    "memory": _memory,
    "unpicklable": _unpicklable,
    "result": _result,
    "kernel": _kernel,
    "sigkill-once": _once(_sigkill),
    "segfault-once": _once(_segfault),
    "hang-once": _once(_hang),
    "memory-once": _once(_memory),
}


@dataclass(kw_only=True, repr=False, eq=False)
class Faulty(Base):
    """Base, but with `fault`; each fit leaves a line "lam seed pid" in `where`/fits."""

    fault: str = "none"
    where: str = ""

    name = "faulty"
    CHECKS = {"fault": lambda name, value: value, "where": lambda name, value: value}

    def recipe(self, fit):
        if fit.data.name != NAME:  # the kernels are being warmed up
            return super().recipe(fit)
        if self.where:
            with open(os.path.join(self.where, "fits"), "a") as file:
                file.write(f"{self.lam} {self.seed} {os.getpid()}\n")
        FAULTS[self.fault](self)
        return super().recipe(fit)


def fits(where):
    """(lam, seed, pid) of every fit that began, in order."""
    path = Path(where) / "fits"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(float(lam), int(seed), int(pid)) for lam, seed, pid in lines]


def comparable(frame):
    """The columns that must not depend on anything but the request."""
    return frame.drop(columns=list(NOT_REPRODUCIBLE)).reset_index(drop=True)


def start_driver(env=None, prefix=(), **arguments):
    """A driver in a process of its own."""
    command = [*prefix, sys.executable, "-m", "tests.sweep_tools", json.dumps(arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | (env or {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def is_alive(pid):
    """Whether there is a process with this id that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=3600):
    """Wait for something to become true; the limit is only there so that a test ends at all."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


def main(arguments):
    """Run a sweep; exit codes as the command line's."""
    limit = arguments.pop("file_size_limit", None)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    method = arguments.pop("method", None) or Faulty
    try:
        dubnb.sweep(method, data=tiny_log(), quiet=True, **arguments)
    except dubnb.InputError as error:
        print(error, file=sys.stderr)
        return 2
    except SweepError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print(stop, file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    # Not from __main__: workers must find the classes under the name that this process gives them.
    from tests import sweep_tools

    sys.exit(sweep_tools.main(json.loads(sys.argv[1])))
