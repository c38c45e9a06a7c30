"""NCF epoch (2 rank -> 2 rank -> 1, tanh, bce, lazy Adam) against torch."""

import importlib.util

from bench import _logs, _models
from bench._timing import at_least, measure, skipped, table
from dubnb.backbones import NCF

OURS, GOAL = "dubnb", 6
SHAPES = ((50, None, 1024), (50, None, 128), (50, (100, 50), 1024), (200, None, 1024))  # rank, hidden, batch size


def run(quick=False):
    data = _logs.partition(scale=10 if quick else 1)
    for rank, hidden, batch_size in SHAPES:
        layers = f", hidden {hidden}" if hidden else ""
        title = f"NCF epoch, rank {rank}{layers}, batch {batch_size}, against torch"
        if not importlib.util.find_spec("torch"):
            skipped(title, "torch is not installed")
            continue
        against_torch(title, data, (rank, hidden, batch_size), quick)


def against_torch(title, data, shape, quick):
    """One shape; the goal is for the first of them."""
    from bench import _torch

    rank, hidden, batch_size = shape
    S_c, main = data.triplets("S_c"), shape == SHAPES[0]
    ours, weights = _models.base(NCF, data, rank, batch_size, hidden=hidden)
    contenders = {OURS: ours.epoch}
    for optimizer in _torch.OPTIMIZERS if main else ("SparseAdam", "Adam(fused)"):
        peer = _torch.Trainer(_torch.NCF, weights, optimizer, _models.LR, batch_size, S_c)
        fresh, _ = _models.base(NCF, data, rank, batch_size, hidden=hidden)
        _models.check_same_objective(title, optimizer, fresh, peer, S_c)
        contenders[f"torch {optimizer}"] = peer.epoch
    goals = {"torch SparseAdam": at_least(GOAL)} if main else None
    table(title, measure(contenders, 4 if main and not quick else 2, warm=False), OURS, goals)
