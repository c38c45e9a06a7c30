"""Fits with threads=2 against threads=1 (wall clock), after a check that both give the same bits. Needs two idle cores.

Where the cores are not idle, `critical path` is still of use: the CPU seconds of the thread that trains, by itself,
while the background thread draws samples and judges epochs.
"""

import time

import numpy as np

import dubnb
from bench import _logs
from bench._timing import at_least, figure, measure, table

ONE, TWO = "1 thread", "2 threads"
LENGTH = {"epochs": 12, "patience": 12}
FITS = (  # title, method, parameters, times faster on two threads
    ("base, rank 50", "base", {"rank": 50, **LENGTH}, 1.1),
    ("dub, rank 50", "dub", {"rank": 50, **LENGTH}, 1.1),
    ("base, rank 200", "base", {"rank": 200, **LENGTH}, 1.0),
    ("dub, rank 200", "dub", {"rank": 200, **LENGTH}, 1.0),
    ("dub-x, rank 50", "dub-x", {"rank": 50}, 1.8),
)


def run(quick=False):
    data = _logs.partition(scale=4 if quick else 1)
    for title, method, params, goal in FITS:
        model = dubnb.make(method, **params)
        fits = {name: _fit(model, data, threads) for name, threads in ((ONE, 1), (TWO, 2))}
        np.testing.assert_array_equal(*(_arrays(call()) for call in fits.values()))
        seconds = measure(fits, 3 if quick else 5, warm=False, clock=time.perf_counter)
        table(f"Fit on two threads, {title}, wall clock", seconds, TWO, {ONE: at_least(goal)})
        if method != "dub-x":
            _critical_path(title, fits)


def _fit(model, data, threads):
    return lambda: model.fit(data, threads=threads)


def _arrays(model):
    return np.concatenate([array.ravel() for array in model.weights_.arrays().values()])


def _critical_path(title, fits):
    """CPU seconds of the fit on one thread over those of the training thread of two."""
    seconds = measure(fits, 2, clock=time.thread_time)
    figure(f"Critical path, {title}", "1 thread / the training thread of 2", min(seconds[ONE]) / min(seconds[TWO]), "x")
