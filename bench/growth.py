"""Time per sample of an MF epoch, drawing included, from 0.3 M to 30 M samples (100,000 x 1,000)."""

import numpy as np

from bench import _logs, _models
from bench._timing import at_most, measure, table
from dubnb._random import generator
from dubnb.backbones import MF
from dubnb.objective.terms import Observed

N_USERS, N_ITEMS, RANK, BATCH, GOAL = 100_000, 1_000, 50, 1024, 1.3
SIZES = (300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)


def run(quick=False):
    sizes = SIZES[:3] if quick else SIZES
    per_sample = {}
    for size in sizes:
        rng = generator(0, "bench-growth", size)
        users, items = (rng.integers(0, count, size).astype(np.int32) for count in (N_USERS, N_ITEMS))
        weights = MF.new((N_USERS, N_ITEMS), RANK, 0, "c")
        ours = _models.Ours(weights, [Observed("c", _logs.triplets(rng, users, items))], BATCH)
        seconds = measure({size: ours.epoch}, 2 if size > 3_000_000 else 5)[size]
        per_sample[f"{size:,} samples"] = [t / size for t in seconds]
    smallest, largest = (f"{size:,} samples" for size in (sizes[0], sizes[-1]))
    title = f"MF epoch per sample against size, {N_USERS:,} x {N_ITEMS:,}, rank {RANK}"
    table(title, per_sample, largest, {smallest: at_most(GOAL)}, unit="us")
