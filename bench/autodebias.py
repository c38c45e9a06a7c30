"""AutoDebias: an epoch in closed form against the block algorithm under autograd; memory; mini-batches."""

import ctypes
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from bench import _logs, _models
from bench._timing import at_least, at_most, figure, measure, skipped, table, timed
from dubnb._random import generator
from dubnb.backbones import MF, NCF
from dubnb.methods.autodebias import AutoDebias
from dubnb.objective import autodebias as meta
from dubnb.objective.autodebias import SampledSolver
from dubnb.train import Fit

OURS, RANK, ALPHA, WD = "dubnb, closed form", 10, 0.1, 40.0
SAMPLED, BASE = "dubnb, mini-batches", "base epoch"
SPEED_GOAL, PRODUCT_GOAL, MEMORY_GOAL, SAMPLED_GOAL, PATIENCE = 300, 6, 2.0, 5, 60.0
MIB = 2**20


def run(quick=False):
    data = _logs.partition(scale=10 if quick else 1)
    in_batches(data, quick)
    against_blocks(data)
    if not Path("/proc/self/clear_refs").exists():
        return skipped("AutoDebias' peak memory", "needs Linux's /proc")
    memory()
    return product(quick)


def in_batches(data, quick):
    """An epoch in mini-batches (2 |S_c| samples, and a look-ahead before every fourth) against a base epoch."""
    for backbone in (NCF, MF):
        base, _ = _models.base(backbone, data, 50, 1024)
        method = AutoDebias(backbone=backbone.name, solver="sampled", loss="bce", rank=50, batch_size=1024)
        problem = method.resolve(data).sampled_problem(Fit(data, "auc"))
        ours, number = SampledSolver(problem), iter(range(1, 100))
        contenders = {SAMPLED: lambda: ours.epoch(next(number)), BASE: base.epoch}  # noqa: B023
        goals = {BASE: at_most(SAMPLED_GOAL)} if backbone is NCF else None
        table(f"AutoDebias in mini-batches, {backbone.name}", measure(contenders, 2 if quick else 3), SAMPLED, goals)


class ClosedForm:
    """An AutoDebias fit in progress."""

    def __init__(self, data, rank):
        S_c, S_t = (part._replace(labels=2 * part.labels - 1)[:4] for part in map(data.triplets, ("S_c", "S_t")))
        shape = (data.n_users, data.n_items)
        self.base, self.phi, self.S_t = meta.make_base(shape, S_c, ALPHA, WD), meta.init_phi(*shape, 0), S_t
        self.adam, self.number = meta.init_adam(self.phi), 0
        self.P, self.Q = _extended_rows(data.n_users, rank, "users"), _extended_rows(data.n_items, rank, "items")
        self.P[:, -1] = self.Q[:, -2] = 1.0

    def epoch(self):
        meta.epoch(self.base, self.phi, self.adam, (self.P, self.Q), self.S_t, meta.WEIGHTS_FROM + self.number)
        self.number += 1


def _extended_rows(count, rank, side):
    rows = np.zeros((count, rank + 2), np.float32)
    generator(0, "bench", side).standard_normal((count, rank), np.float32, out=(room := np.empty((count, rank), "f4")))
    rows[:, :rank] = room * np.float32(0.1)
    return rows


def against_blocks(data):
    """Both do one look-ahead and one step over all pairs; autograd does it block by block."""
    if not importlib.util.find_spec("torch"):
        return skipped("AutoDebias under torch's autograd", "torch is not installed")
    from bench import _torch_autodebias as blocks

    peer, ours = blocks.BlockTrainer(data, RANK), ClosedForm(data, RANK)
    everything = list(peer.blocks())
    first = timed(lambda: peer.step(*everything[0]))
    share = len(everything[0][0]) * len(everything[0][1]) / (data.n_users * data.n_items)
    name = f"torch autograd, blocks of {blocks.BLOCK[0]:,} x {blocks.BLOCK[1]:,}"
    if first / share > PATIENCE:
        name, seconds = f"{name} (one of {len(everything)} timed, scaled by its pairs)", first / share
    else:
        seconds = first + sum(timed(lambda block=block: peer.step(*block)) for block in everything[1:])
    times = measure({OURS: ours.epoch}, 5) | {name: [seconds]}
    return table(f"AutoDebias-MF epoch, rank {RANK}", times, OURS, {name: at_least(SPEED_GOAL)})


def memory():
    """Peak beside the data at two sizes: growth like nnz + (users + items) rank, not like users x items."""
    small, large = (_in_child(("YAHOO", scale), 50, epochs=2) for scale in (4, 1))
    figure(
        "AutoDebias-MF peak memory beside the data, rank 50", "3,850 x 1,000, a quarter of the log", small["MiB"], "MiB"
    )
    figure("AutoDebias-MF peak memory beside the data, rank 50", "15,400 x 1,000", large["MiB"], "MiB")


def product(quick):
    """2,000,000 x 217 with 4.8 M samples at rank 50, against a base epoch there."""
    result = _in_child(("PRODUCT", 20 if quick else 1), 50, 2, with_base=True)
    title = "AutoDebias-MF on Product's shape, rank 50"
    goals = {"base epoch": at_most(PRODUCT_GOAL)}
    table(title, {OURS: result["seconds"], "base epoch": result["base"]}, OURS, goals)
    figure(title, "peak memory beside the data", result["MiB"] / 1024, "GiB", at_most(MEMORY_GOAL))


def _in_child(part, rank, epochs, with_base=False):
    """Run `child` in a process of its own and read what it prints."""
    script = f"from bench.autodebias import child; child({part!r}, {rank}, {epochs}, {with_base})"
    process = subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(process.stdout)


def child(part, rank, epochs, with_base):
    """Print the CPU seconds of some epochs and the peak memory that they added to the data's."""
    from threadpoolctl import threadpool_limits

    name, scale = part
    data = _logs.partition(getattr(_logs, name), scale)
    ClosedForm(_logs.partition(scale=200), rank).epoch()  # loads the kernels
    ctypes.CDLL(None).malloc_trim(0)  # what the data's making left behind must not hide what the epochs take
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    with threadpool_limits(1):
        ours = ClosedForm(data, rank)
        result = {"seconds": measure({OURS: ours.epoch}, epochs)[OURS], "MiB": _peak() - before}
        del ours
        if with_base:
            base, _ = _models.base(MF, data, rank, 1024)
            result["base"] = measure({"base": base.epoch}, epochs)["base"]
    print(json.dumps(result))


def _peak():
    """Peak resident memory since the last reset, in MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / MIB
