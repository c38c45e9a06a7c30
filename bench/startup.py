"""Import (wall clock), first fit with a cold cache and with a warm one (CPU time): each in fresh processes."""

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
made = time.process_time()
dubnb.DUB(rank=50, epochs=2).fit(data)
first = time.process_time()
dubnb.DUB(rank=50, epochs=2).fit(data)
print(first - made, time.process_time() - first)
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
    """The first dub-mf fit in a process, less the same fit again: what compiling, or loading, costs."""
    with tempfile.TemporaryDirectory() as cache:
        cold = _overhead(cache)
        warm = min(_overhead(cache) for _ in range(1 if quick else 3))
    figure("First fit in a fresh process (dub, mf)", "cold cache, over a second fit", cold, "s", at_most(COLD_GOAL))
    figure("First fit in a fresh process (dub, mf)", "warm cache, over a second fit", warm, "s", at_most(WARM_GOAL))


def _overhead(cache):
    environment = os.environ | {"DUBNB_CACHE_DIR": cache}
    process = subprocess.run([sys.executable, "-c", FIT], check=True, capture_output=True, text=True, env=environment)
    first, second = map(float, process.stdout.split())
    return first - second
