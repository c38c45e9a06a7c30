"""NCF epoch (2 rank -> 2 rank -> 1, tanh, bce, lazy Adam) against torch."""

import importlib.util

from bench import _logs, _models
from bench._timing import at_least, measure, skipped, table
from dubnb.backbones import NCF

OURS, RANK, GOAL = "dubnb", 50, 3


def run(quick=False):
    data = _logs.partition(scale=10 if quick else 1)
    for batch_size in (1024, 128):
        title = f"NCF epoch, rank {RANK}, batch {batch_size}, against torch"
        if not importlib.util.find_spec("torch"):
            skipped(title, "torch is not installed")
            continue
        from bench import _torch

        S_c = data.triplets("S_c")
        ours, weights = _models.base(NCF, data, RANK, batch_size)
        contenders = {OURS: ours.epoch}
        for optimizer in _torch.OPTIMIZERS if batch_size == 1024 else ("SparseAdam", "Adam(fused)"):
            peer = _torch.Trainer(_torch.NCF, weights, optimizer, _models.LR, batch_size, S_c)
            fresh, _ = _models.base(NCF, data, RANK, batch_size)
            _models.check_same_objective(title, optimizer, fresh, peer, S_c)
            contenders[f"torch {optimizer}"] = peer.epoch
        repeats = 2 if quick or batch_size == 128 else 4
        table(title, measure(contenders, repeats, warm=False), OURS, {"torch SparseAdam": at_least(GOAL)})
