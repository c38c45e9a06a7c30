"""MF epoch (bce, lazy Adam) against torch and against the same algorithm in C."""

import importlib.util

import numpy as np

from bench import _c, _logs, _memory, _models
from bench._timing import at_least, at_most, measure, skipped, table
from dubnb.backbones import MF

OURS = "dubnb"
GOALS = {50: {"SparseAdam": 15, "Adam(fused)": 10}, 200: {"SparseAdam": 10, "Adam(fused)": 10}}
C_GOAL = at_most(1.1)
LAM = 1e-4


def run(quick=False):
    data = _logs.partition(scale=10 if quick else 1)
    for rank in (50, 200):
        for batch_size in (1024, 128):
            against_c(data, rank, batch_size, quick)
            against_torch(data, rank, batch_size, quick)
        against_memory(data, rank)
    over_ranks(data, quick)


def against_torch(data, rank, batch_size, quick):
    """Draw, shuffle and train, against torch's randperm and train; no regularisation on either side."""
    title = f"MF epoch, rank {rank}, batch {batch_size}, against torch"
    if not importlib.util.find_spec("torch"):
        return skipped(title, "torch is not installed")
    from bench import _torch

    S_c = data.triplets("S_c")
    ours, weights = _models.base(MF, data, rank, batch_size)
    contenders = {OURS: ours.epoch}
    # dense Adam walks the whole tables in every one of the 2,435 batches of 128: it takes minutes
    optimizers = _torch.OPTIMIZERS if batch_size == 1024 else GOALS[rank]
    for optimizer in optimizers:
        peer = _torch.Trainer(_torch.MF, weights, optimizer, _models.LR, batch_size, S_c)
        _models.check_same_objective(title, optimizer, _models.base(MF, data, rank, batch_size)[0], peer, S_c)
        contenders[f"torch {optimizer}"] = peer.epoch
    goals = {f"torch {optimizer}": at_least(bound) for optimizer, bound in GOALS[rank].items()}
    repeats = 2 if quick or batch_size == 128 else 4
    return table(title, measure(contenders, repeats, warm=False), OURS, goals)


def against_c(data, rank, batch_size, quick):
    """The epoch kernel alone on the same shuffled samples: same layout, same order, same arithmetic."""
    title = f"MF epoch kernel, rank {rank}, batch {batch_size}, against C"
    if _c.compiler() is None:
        return skipped(title, "no C compiler")
    ours, weights = _models.base(MF, data, rank, batch_size)
    samples = ours.streams.draw(0)
    peer = _c.Trainer(weights.trainer(batch_size), _models.LR, LAM)

    def epoch():
        return ours.trainer.epoch(samples, 1, _models.BCE, _models.LR, LAM)[0]

    np.testing.assert_allclose(epoch(), peer.epoch(samples), rtol=1e-6)
    np.testing.assert_allclose(ours.trainer.weights().users, peer.trainer.weights().users, atol=1e-5)
    contenders = {OURS: epoch, f"C ({_c.compiler()} -O3 -march=native)": lambda: peer.epoch(samples)}
    return table(title, measure(contenders, 5 if quick else 15), OURS, dict.fromkeys(contenders, C_GOAL))


def against_memory(data, rank, batch_size=1024):
    """How far the epoch kernel is from the time that moving its rows takes."""
    ours, weights = _models.base(MF, data, rank, batch_size)
    samples = ours.streams.draw(0)
    rows = weights.trainer(batch_size)
    arguments = rows.tables.users, rows.tables.items, samples, rows.work, batch_size
    moved = "the same rows read and written, nothing computed"
    contenders = {
        OURS: lambda: ours.trainer.epoch(samples, 1, _models.BCE, _models.LR, LAM),
        moved: lambda: _memory.move_rows(*arguments),
    }
    title = f"MF epoch kernel, rank {rank}, batch {batch_size}, against memory"
    return table(title, measure(contenders, 9), OURS)


def over_ranks(data, quick):
    """Time per epoch against rank, for the plot."""
    for rank in (10, 50, 200) if quick else (10, 25, 50, 100, 200, 400):
        ours, _ = _models.base(MF, data, rank, 1024)
        table(f"MF epoch over ranks, rank {rank}", measure({OURS: ours.epoch}, 3), OURS)
