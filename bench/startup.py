"""Import (wall clock), and first contact with a cold cache and a warm one (CPU seconds), each in fresh processes.

Python's own bytecode is on disk, as pip leaves it: it is compiled before anything is timed.
"""

import compileall
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import _logs
from bench._timing import at_most, figure, table

IMPORT_GOAL, WARM_GOAL, WORKER_GOAL = 1.5, 1.0, 1.0
OURS, BARE = "import dubnb", "import numba, numpy"
FIT = """
import sys
import time
import dubnb
from bench import _logs
data = _logs.partition(scale=100)
made = time.process_time()
model = dubnb.DUB(backbone=sys.argv[1], rank=50, epochs=2)
model.fit(data)
first = time.process_time()
model.fit(data)
print(first - made, time.process_time() - first)
"""
DEMO = "from dubnb.__main__ import main; main()", "demo", "--quiet", "--out"
FIRST = (("a first dub-mf fit", "mf", 6.0), ("a first dub-ncf fit", "ncf", None))
DEMO_GOAL = 12.0


def run_import(quick=False):
    """`import dubnb` and everything that a fit imports, against the two packages that it cannot do without."""
    _compile_bytecode()
    scripts = {OURS: "import dubnb; dubnb.DUB", BARE: "import numba, numpy"}
    seconds = {name: [] for name in scripts}
    for _ in range(3 if quick else 7):
        for name, script in scripts.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", script], check=True)
            seconds[name].append(time.perf_counter() - start)
    table("Import in a fresh process", seconds, OURS, {BARE: at_most(IMPORT_GOAL)})


def run_cold(quick=False):
    """Fits of a tiny log and the demo with nothing compiled yet; then what a first fit costs over a second one."""
    title = "First contact, CPU seconds of a process"
    times = 1 if quick else 3
    _compile_bytecode()
    for name, backbone, goal in FIRST:
        cold = min(_first_fit(backbone)[0] for _ in range(times))
        figure(title, f"{name}, cold cache, up to its end", cold, "s", at_most(goal) if goal else None)
    cold = min(_in_a_cold_process(*DEMO, directory=True)[0] for _ in range(times))
    figure(title, "dubnb demo --quiet, cold cache", cold, "s", at_most(DEMO_GOAL))
    with tempfile.TemporaryDirectory() as cache:
        warm = [_first_fit("mf", cache)[1] for _ in range(1 + times)][1:]
    figure(title, "a first dub-mf fit less a second one, warm cache", min(warm), "s", at_most(WARM_GOAL))
    started = min(_worker_start() for _ in range(1 + times))
    figure(title, "a sweep's worker, warm cache, up to its first epoch", started, "s", at_most(WORKER_GOAL))


def _compile_bytecode():
    for package in ("dubnb", "bench"):
        compileall.compile_dir(Path(__file__).parents[1] / package, quiet=1)


def _worker_start():
    """CPU seconds of a new worker of a sweep up to the end of the first epoch of its first trial."""
    from dubnb.sweeps.local import Slot, pack
    from dubnb.sweeps.trial import Rules

    with tempfile.TemporaryDirectory() as directory:
        slot = Slot(pack(_logs.partition(scale=100), os.path.join(directory, "data")), Rules())
        try:
            return slot.call(to_first_epoch)["seconds"]
        finally:
            slot.discard()


def to_first_epoch():
    """In a worker: train for an epoch, and tell the CPU seconds that this process has taken by then."""
    import dubnb
    from dubnb.sweeps import local

    told = []
    dubnb.Base(epochs=1).fit(local._here["data"], callback=lambda row: told.append(time.process_time()))
    return json.dumps({"status": "done", "seconds": told[0]})


def _first_fit(backbone, cache=None):
    """CPU seconds of a process up to the end of its first fit, and what that fit took longer than a second."""
    whole, printed = _in_a_cold_process(FIT, backbone, cache=cache)
    first, second = map(float, printed.split())
    return whole - second, first - second


def _in_a_cold_process(script, *arguments, cache=None, directory=False):
    """CPU seconds of a process, and what it printed; its cache is its own unless one is given."""
    with tempfile.TemporaryDirectory() as own:
        environment = os.environ | {"DUBNB_CACHE_DIR": cache or own}
        command = [sys.executable, "-c", script, *arguments, *([own] if directory else [])]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, process.stdout
