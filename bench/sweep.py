"""`python -m bench.sweep`: what parallel trials gain, the cost of a trial beyond its fit, and the memory of a worker.

To reach: 64 fits on 2 workers 1.8x faster than on 1; under 50 ms per trial beyond fit and evaluation; memory per extra
worker, beyond interpreter and imports, under 1.5x of the model and its optimizer state. Needs two idle cores.
"""

import contextlib
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import dubnb
from bench._timing import row
from dubnb._random import generator
from dubnb.data.partition import PARTS, Partition, Triplets
from dubnb.methods.base import Base
from dubnb.methods.dub import DUB
from dubnb.sweeps import local, worker
from dubnb.sweeps.ledger import Ledger
from dubnb.sweeps.trial import Rules, Schedule, planned

FITS = 64
RANK = 50
YAHOO = (15_400, 1_000), {"S_c": 300_000, "S_t": 5_400, "S_va": 5_400, "S_te": 43_200}
TENTH_OF_PRODUCT = (200_000, 217), {"S_c": 480_000, "S_t": 3_500, "S_va": 3_500, "S_te": 28_000}
TABLES = 3  # weights and Adam's two moments
RULES = Rules()
GRID = {"lam": [1e-5 * (k + 1) for k in range(FITS)]}


def random_log(shape, sizes):
    """Random pairs; items differ in their rates, so that there is something to learn."""
    rng = generator(0, "bench-sweep")
    rates = 0.2 * rng.random(shape[1])
    pairs = rng.choice(shape[0] * shape[1], sum(sizes.values()), replace=False)
    parts, start = {}, 0
    for part in PARTS:
        own = pairs[start : start + sizes[part]]
        start += sizes[part]
        labels = (rng.random(len(own)) < rates[own % shape[1]]).astype(float)
        parts[part] = Triplets(own // shape[1], own % shape[1], labels, np.ones(len(own)))
    return Partition(parts, shape, name="random log")


def timed(data, n_jobs, epochs):
    """(seconds, trials) of a sweep of FITS fits, start of the workers included."""
    fixed = {"rank": RANK, "epochs": epochs, "patience": epochs}
    with tempfile.TemporaryDirectory() as root:
        out = os.path.join(root, "s")
        start = time.perf_counter()
        found = dubnb.sweep("base", data=data, grid=GRID, n_jobs=n_jobs, out=out, fixed=fixed, quiet=True)
        return time.perf_counter() - start, found.trials


def bench_speed(data):
    """Two workers against one, taking turns."""
    seconds, of_a_trial = {1: [], 2: []}, {}
    for _ in range(2):
        for n_jobs, times in seconds.items():
            elapsed, trials = timed(data, n_jobs, epochs=4)
            times.append(elapsed)
            of_a_trial[n_jobs] = trials.seconds.mean()
    row("workers", "seconds", "mean seconds of a trial")
    row("---:", "---:", "---:")
    for n_jobs, times in seconds.items():
        row(n_jobs, f"{min(times):.1f}", f"{of_a_trial[n_jobs]:.3f}")
    print(f"\n{FITS} fits on 2 workers: {min(seconds[1]) / min(seconds[2]):.2f}x (to reach: 1.8x)")


def bench_overhead(data):
    """One worker: the time from one recorded trial to the next, less the trials' own seconds."""
    trials = [planned(Base, data, {"rank": RANK, "epochs": 1, "seed": seed}) for seed in range(FITS)]
    schedule, stamps, seconds = Schedule(trials, retries=0), [], []
    with tempfile.TemporaryDirectory() as root, contextlib.closing(Ledger(root, {"method": "base"})) as ledger:
        executor = local.LocalExecutor({data.fingerprint: data}, RULES, 1, root)
        for one, outcome in executor.run(schedule):
            schedule.ended(one, outcome)
            ledger.record(outcome | {"key": one.key, "params": one.params})
            stamps.append(time.perf_counter())
            seconds.append(outcome["seconds"])
        executor.close()
    beyond = (stamps[-1] - stamps[0] - sum(seconds[1:])) / (FITS - 1)
    print(f"per trial beyond fit and evaluation: {1e3 * beyond:.1f} ms (to reach: 50 ms)\n")


def bench_memory(data, method):
    """A worker's memory at its peak and after a trial, less what it has before its first."""
    one = planned(method, data, {"rank": RANK, "epochs": 3, "lr": 1e-4})  # slowly, so that each epoch is the best yet
    for lazy in ("fingerprint", "S_c", "seen"):
        getattr(data, lazy)
    with tempfile.TemporaryDirectory() as root:
        packed = local.pack({data.fingerprint: data}, os.path.join(root, "data.bin"))
        rules = RULES._replace(pretrained=root)
        slot = local.Slot(packed, rules)
        slot.call(worker.warm_up, one, rules)
        (pid,) = slot.executor._processes
        before = anonymous_mb(pid)
        with Peak(pid) as peak:
            slot.call(local._trial_in_process, one)
        after = anonymous_mb(pid)
        shared = {path.suffix: os.path.getsize(path) / (1 << 20) for path in Path(root).iterdir()}
        slot.discard()
    table = 4 * (data.n_users + data.n_items) * 64 / (1 << 20)  # rank 50 and two biases, padded to 64 floats
    row(f"{method.name}: what", "MB")
    row("---", "---:")
    row("worker's own memory before its first trial", f"{before:.0f}")
    row("... at its peak", f"{peak.mb:.0f}")
    row("... after it", f"{after:.0f}")
    row("data, mapped and shared", f"{shared['.bin']:.1f}")
    row("a pre-trained model, mapped and shared", f"{shared.get('.rows', 0.0):.1f}")
    row("M_c and its optimizer's state", f"{TABLES * table:.1f}")
    extra = (peak.mb - before) / (TABLES * table)
    print(f"\nan extra worker takes {extra:.2f}x of M_c and its state at its peak (to reach: 1.5x)\n")


class Peak(threading.Thread):
    """The most memory of its own that a process has while this watches, some hundred times a second."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.mb, self.over = pid, 0.0, threading.Event()

    def run(self):
        while not self.over.wait(0.002):
            self.mb = max(self.mb, anonymous_mb(self.pid))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.over.set()
        self.join()


def anonymous_mb(pid):
    """Memory that is no map of a file: a process's own, as workers are not forked."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


if __name__ == "__main__":
    log = random_log(*YAHOO)
    print(f"load average at start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    for method in (Base, DUB):
        bench_memory(random_log(*TENTH_OF_PRODUCT), method)
    bench_overhead(log)
    bench_speed(log)
