"""Fits on two threads against one (wall clock), after a check that both give the same bits. Needs two idle cores.

Where the cores are not idle, `critical path` still tells something: the CPU seconds of the thread that trains, by
itself, with samples drawn and epochs judged beside it.
"""

import time
from unittest import mock

import numpy as np

import dubnb
from bench import _logs
from bench._timing import at_least, figure, measure, skipped, table
from dubnb._jit import threads_for_kernels
from dubnb.backbones import mf_threads

ONE, TWO = "1 thread", "2 threads"
LENGTH = {"epochs": 12, "patience": 12}
FITS = (  # title, method, parameters, times faster on two threads
    ("base, rank 50", "base", {"rank": 50, **LENGTH}, 1.25),
    ("dub, rank 50", "dub", {"rank": 50, **LENGTH}, 1.25),
    ("base, rank 200", "base", {"rank": 200, **LENGTH}, 1.6),
    ("dub, rank 200", "dub", {"rank": 200, **LENGTH}, 1.6),
    ("dub-x, rank 50", "dub-x", {"rank": 50}, 1.8),
)


def run(quick=False):
    data = _logs.partition(scale=4 if quick else 1)
    with threads_for_kernels(2) as threads:
        if threads < 2:
            return skipped("fits on two threads", "no second thread here")
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
    """CPU seconds of the fit on one thread over those of the training thread, where batches are trained by one."""
    with mock.patch.object(mf_threads.Pace, "batches", lambda self, whole: (whole, False)):
        seconds = measure(fits, 2, clock=time.thread_time)
    figure(f"Critical path, {title}", "1 thread / the training thread of 2", min(seconds[ONE]) / min(seconds[TWO]), "x")
