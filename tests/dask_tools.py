"""Dask clusters for tests, each with worker processes of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.sweep_tools import ROOT, wait_until

QUIET = {"dashboard_address": None, "silence_logs": 50}
PATIENT = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "15 minutes"}  # a busy machine loses no worker
QUIET_PROCESS = {
    "stdout": subprocess.DEVNULL,
    "stderr": subprocess.DEVNULL,
    "cwd": ROOT,
    "env": os.environ | PATIENT,
}


@contextlib.contextmanager
def cluster_of_processes(worker_ttl="15 minutes"):
    """A client of two workers, which the scheduler gives up after so long without a heartbeat.

    Dask starts another worker for one that dies, but on a busy machine not always.
    """
    import dask
    import distributed

    settings = {
        "distributed.scheduler.allowed-failures": 1,
        "distributed.scheduler.worker-ttl": worker_ttl,
        "distributed.worker.memory.terminate": False,
        "distributed.admin.large-graph-warning-threshold": "1GB",
    }
    workers = {"n_workers": 2, "threads_per_worker": 1, "processes": True}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(**workers, **QUIET) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@contextlib.contextmanager
def client_of_processes(file, workers):
    """A client of a scheduler and workers that are plain processes, see `dask_processes`."""
    import dask
    import distributed

    with (
        dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"}),
        dask_processes(file, workers) as (address, _, _),
        distributed.Client(address, timeout=600) as client,
    ):
        if workers:
            client.wait_for_workers(workers, timeout=600)
        yield client


@contextlib.contextmanager
def dask_processes(file, workers=2):
    """A scheduler and workers as plain processes, which nobody starts again: (address, scheduler, workers)."""
    scheduler = ["distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    started = [subprocess.Popen([sys.executable, "-m", *scheduler], **QUIET_PROCESS)]
    try:
        address = wait_until(lambda: _address(Path(file)))
        for _ in range(workers):
            started.append(start_worker(file))
        yield address, started[0], started[1:]
    finally:
        for process in started:
            end(process)


def start_worker(file, before=""):
    """Start a worker of the scheduler in a file, as a process that first runs a line of Python."""
    options = ["--scheduler-file", str(file), "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    code = f"import sys; {before or 'pass'}; from distributed.cli.dask_worker import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *options], **QUIET_PROCESS)


def end(process):
    """Kill a process, also if it is frozen."""
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()


def _address(file):
    """The scheduler's address; None until its file is complete."""
    try:
        return json.loads(file.read_text())["address"]
    except (FileNotFoundError, ValueError):
        return None


def or_die(flag, task, *arguments):
    """Run the task; the one that finds the flag ends its worker."""
    try:
        os.unlink(flag)
    except FileNotFoundError:
        return task(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
