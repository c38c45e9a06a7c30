"""Import, first fit with a cold cache and with a warm one: wall clock, each in fresh processes."""

import os
import subprocess
import sys
import tempfile
import time

from bench._timing import at_most, figure, table

IMPORT_GOAL, COLD_GOAL, WARM_GOAL = 1.5, 15.0, 1.0
OURS, BARE = "import dubnb", "import numba, numpy"
FIT = """
import time
import dubnb
from bench import _logs
data = _logs.partition(scale=100)
made = time.perf_counter()
dubnb.DUB(rank=50, epochs=2).fit(data)
first = time.perf_counter()
dubnb.DUB(rank=50, epochs=2).fit(data)
print(first - made, time.perf_counter() - first)
"""


def run_import(quick=False):
    """`import dubnb` and everything that a fit imports, against the two packages that it cannot do without."""
    scripts = {OURS: "import dubnb; dubnb.DUB", BARE: "import numba, numpy"}
    seconds = {name: [] for name in scripts}
    for _ in range(3 if quick else 7):
        for name, script in scripts.items():
            seconds[name].append(_seconds(script))
    table("Import in a fresh process", seconds, OURS, {BARE: at_most(IMPORT_GOAL)})


def _seconds(script):
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", script], check=True)
    return time.perf_counter() - start


def run_cold(quick=False):
    """A dub-mf fit on a tiny log, nothing compiled yet; then what a first fit costs over a second one."""
    with tempfile.TemporaryDirectory() as cache:
        cold, _ = _first_fit(cache)
        warm = min(_first_fit(cache)[1] for _ in range(1 if quick else 3))
    title = "First fit in a fresh process (dub, mf)"
    figure(title, "cold cache, the process up to the end of the fit", cold, "s", at_most(COLD_GOAL))
    figure(title, "warm cache, the first fit less a second one", warm, "s", at_most(WARM_GOAL))


def _first_fit(cache):
    """Seconds from the start of a process to the end of its first fit, and what that fit took longer than a second."""
    environment = os.environ | {"DUBNB_CACHE_DIR": cache}
    start = time.perf_counter()
    process = subprocess.run([sys.executable, "-c", FIT], check=True, capture_output=True, text=True, env=environment)
    whole, (first, second) = time.perf_counter() - start, map(float, process.stdout.split())
    return whole - second, first - second
