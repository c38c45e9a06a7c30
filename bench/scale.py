"""`python -m bench.scale`: seconds and memory per row of S_c, from 1 M to 100 M rows, beside torch's and implicit's.

    python -m bench.scale --out scale --sizes 1,10,100          # millions of rows; 100 M want 20 GB and half an hour
    python -m bench.scale --out scale --show                    # the table and the plot of what is there

Every cell is a process of its own that memory-maps a log from disk (written once, into `--out`), makes a Partition of
it, and fits with rank 50: two epochs of base, of dub's two pre-trainings and of its refinement; six sweeps of dub-x
with a given gamma; two epochs of torch (SparseAdam; FEW batches of the log, scaled) and two iterations of implicit's
ALS. A step's time is the CPU time of the last, its validation included; memory is the process's peak beyond what the
imports take. Finished cells are kept, so that the same command goes on where it stopped.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from dubnb._random import generator

MILLION = 1_000_000
PAIRS_PER_USER, N_ITEMS, RANK, BATCH = 40, 20_000, 50, 1024
RANDOMIZED = 0.01  # of |S_c|, split 10 : 10 : 80
BLOCK = 4096  # users whose items are drawn at a time
TASTE = 4  # factors of what people like
FEW = 2_000  # batches of torch, whose cost per row does not grow with the log
GB, MICRO = 2**30, 1e6
OURS = {
    "base": {"epochs": 2, "batch_size": BATCH},
    "dub": {"epochs": 2, "batch_size": BATCH},
    "dub-x": {"epochs": 6, "gamma": 0.03, "exposure_power": 0.75},
}
PEERS = ("torch", "implicit")
STEP = {"base": "epoch of c", "dub": "epoch of a + c + d + e", "dub-x": "sweep over all rows"}
STEP |= {"torch": "epoch of c (SparseAdam)", "implicit": "iteration of ALS on the positives"}


# The log


def write_log(path, n_rows, seed=0):
    """Pairs of skewed popularity in CSR order, labels by a taste of TASTE factors; block by block, to save memory."""
    path.mkdir(parents=True, exist_ok=True)
    n_users = n_rows // PAIRS_PER_USER
    rng = generator(seed, "bench-scale", n_rows)
    popularity, taste = np.cumsum(np.exp(rng.normal(0.0, 1.0, N_ITEMS))), rng.normal(size=(N_ITEMS, TASTE))
    columns = {"users": np.int32, "items": np.int32, "labels": np.float32}
    files = {name: open(path / f"{name}.bin", "wb") for name in columns}  # noqa: SIM115 - closed below
    for first in range(0, n_users, BLOCK):
        users = np.repeat(np.arange(first, min(first + BLOCK, n_users)), 2 * PAIRS_PER_USER)
        items = np.searchsorted(popularity, rng.random(len(users)) * popularity[-1])
        keys = np.unique(users * N_ITEMS + np.minimum(items, N_ITEMS - 1))
        users, items = np.divmod(keys[rng.random(len(keys)) < 0.5], N_ITEMS)
        liked = np.einsum("kj,kj->k", rng.normal(size=(BLOCK, TASTE))[users - first], taste[items])
        for name, values in zip(columns, (users, items, liked > rng.logistic(1.0, 1.0, len(liked))), strict=True):
            files[name].write(values.astype(columns[name]).tobytes())
    for file in files.values():
        file.close()
    (path / "done").write_text(f"{n_users}\n")


def load_log(path):
    """A Partition of the log on disk and of randomized pairs."""
    from dubnb.data.partition import Partition

    n_users = int((path / "done").read_text())
    columns = [np.memmap(path / f"{name}.bin", kind, "r") for name, kind in (("users", "i4"), ("items", "i4"))]
    labels = np.memmap(path / "labels.bin", "f4", "r")
    rng = generator(1, "bench-scale", len(labels))
    n = int(RANDOMIZED * len(labels))
    keys = rng.permutation(np.unique(rng.integers(0, n_users * N_ITEMS, n)))
    parts = {"S_c": (*columns, labels)}
    for name, part in zip(("S_t", "S_va", "S_te"), np.split(keys, [len(keys) // 10, len(keys) // 5]), strict=True):
        parts[name] = (part // N_ITEMS, part % N_ITEMS, (rng.random(len(part)) < 0.09).astype(np.float32))
    return Partition(parts, (n_users, N_ITEMS), name="bench")


# One cell, in a process of its own


def cell(name, path):
    """Seconds of a step and of everything before it, and the peak of memory."""
    import dubnb.methods  # noqa: F401 - not counted

    before = peak()
    start = time.process_time()
    if name in PEERS:
        steps = {"torch": torch_epochs, "implicit": implicit_iterations}[name](path)
        data_rows, prepared = (path / "labels.bin").stat().st_size // 4, 0.0
    else:
        data = load_log(path)
        data_rows, prepared = len(data.triplets("S_c").users), time.process_time() - start
        steps = our_epochs(name, data)
    return {"rows": data_rows, "prepared": prepared, "step": steps, "peak": peak() - before, "loaded": before}


def peak():
    """The largest resident memory of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def our_epochs(name, data):
    """CPU seconds of a fit's last epoch, validation included."""
    import dubnb

    at = []
    model = dubnb.make(name, rank=RANK, patience=OURS[name]["epochs"], **OURS[name])
    model.fit(data, callback=lambda row: at.append(time.process_time()))
    return at[-1] - at[-2]


def torch_epochs(path):
    """CPU seconds of an epoch of MF with SparseAdam, from the first FEW of its batches."""
    from bench import _logs, _torch
    from dubnb.backbones import MF

    data = load_log(path)
    few = data.triplets("S_c")
    n_rows = len(few.users)
    few = _logs.Triplets(*(column[np.linspace(0, n_rows - 1, FEW * BATCH).astype(np.int64)] for column in few[:4]))
    weights = MF.new((data.n_users, data.n_items), RANK, 0, "c")
    trainer = _torch.Trainer(_torch.MF, weights, "SparseAdam", 1e-3, BATCH, few)
    trainer.epoch()
    start = time.process_time()
    trainer.epoch()
    return (time.process_time() - start) * n_rows / len(few.users)


def implicit_iterations(path):
    """CPU seconds that a second iteration of ALS adds."""
    import implicit

    data = load_log(path)
    matrix = data.S_c.copy()
    matrix.eliminate_zeros()
    seconds = []
    for iterations in (1, 2):
        model = implicit.als.AlternatingLeastSquares(factors=RANK, iterations=iterations, num_threads=1, use_gpu=False)
        start = time.process_time()
        model.fit(matrix, show_progress=False)
        seconds.append(time.process_time() - start)
    return seconds[1] - seconds[0]


# The ladder


def run(args):
    """Every cell that `--out` does not have yet."""
    kept = read(args.out)
    for millions in args.sizes:
        path = args.out / f"log-{millions}M"
        if not (path / "done").exists():
            write_log(path, millions * MILLION)
        for name in args.systems:
            key = f"{name} {millions}M"
            if key not in kept:
                command = [sys.executable, "-m", "bench.scale", "--out", str(args.out), "--cell", name, str(path)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(f"{key}: failed with {done.returncode}\n{done.stderr[-500:]}", file=sys.stderr)
                    continue
                kept[key] = json.loads(done.stdout.splitlines()[-1])
                print(key, kept[key], flush=True)
                (args.out / "scale.json").write_text(json.dumps(kept, indent=1) + "\n")
    return kept


def read(directory):
    """The cells that are there."""
    path = directory / "scale.json"
    return json.loads(path.read_text()) if path.exists() else {}


def table(kept):
    """Markdown: CPU microseconds per row and step, and bytes per row, by system and size."""
    sizes = sorted({int(key.split()[1][:-1]) for key in kept})
    lines = ["| CPU us a row / bytes a row (peak, GB) | one step | " + " | ".join(f"{n} M rows" for n in sizes) + " |"]
    lines.append("|---" * (len(sizes) + 2) + "|")
    for name in (*OURS, *PEERS):
        cells = [kept.get(f"{name} {n}M") for n in sizes]
        if any(cells):
            lines.append(f"| {name} | {STEP[name]} | " + " | ".join(map(_text, cells)) + " |")
    return "\n".join(lines)


def _text(cell):
    if cell is None:
        return ""
    micros, size = MICRO * cell["step"] / cell["rows"], cell["peak"]
    return f"{micros:.2f} / {size / cell['rows']:.0f} ({size / GB:.1f})"


def plot(kept, path):
    """CPU seconds of a step, and the peak of memory, against the rows; both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (label, value) in zip(
        figure.subplots(1, 2),
        (("CPU s of a step", lambda c: c["step"]), ("peak memory, GB", lambda c: c["peak"] / GB)),
        strict=True,
    ):
        for name in (*OURS, *PEERS):
            points = sorted((c["rows"], value(c)) for key, c in kept.items() if key.split()[0] == name)
            if points:
                style = "o-" if name in OURS else "s--"
                axes.plot(*zip(*points, strict=True), style, label=f"{name}: {STEP[name]}")
        axes.set(xscale="log", yscale="log", xlabel="rows of S_c", ylabel=label)
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], default=[1, 10, 100])
    parser.add_argument("--systems", type=lambda text: text.split(","), default=[*OURS, *PEERS])
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--cell", nargs=2, metavar=("SYSTEM", "LOG"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        print(json.dumps(cell(args.cell[0], Path(args.cell[1]))))
        return
    kept = read(args.out) if args.show else run(args)
    print(table(kept))
    plot(kept, args.out / "scale.png")


if __name__ == "__main__":
    main()
