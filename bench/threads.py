"""MF epoch on two threads against one (wall clock), after a check that both give the same bits."""

import time

import numpy as np

from bench import _logs, _models
from bench._timing import measure, skipped, table
from dubnb._jit import threads_for_kernels
from dubnb.backbones import MF

ONE, TWO = "1 thread", "2 threads"


def run(quick=False):
    data = _logs.partition(scale=10 if quick else 1)
    with threads_for_kernels(2) as threads:
        if threads < 2:
            return skipped("MF epoch on two threads", "no second thread here")
        for rank in (50, 200):
            for batch_size in (1024, 8192):
                _compare(data, rank, batch_size)


def _compare(data, rank, batch_size):
    ours, weights = _models.base(MF, data, rank, batch_size)
    samples = ours.streams.draw(0)
    trainers = {name: weights.trainer(batch_size, threads) for name, threads in ((ONE, 1), (TWO, 2))}

    def epoch(trainer):
        return lambda: trainer.epoch(samples, 1, _models.BCE, _models.LR, 1e-4)

    seconds = measure({name: epoch(trainer) for name, trainer in trainers.items()}, 9, clock=time.perf_counter)
    np.testing.assert_array_equal(*(trainer.tables.users for trainer in trainers.values()))
    table(f"MF epoch kernel on two threads, rank {rank}, batch {batch_size}, wall clock", seconds, TWO)
