"""`python -m bench.scale`: seconds and memory per row of S_c, from 1 M to 100 M rows, beside torch's and implicit's.

    python -m bench.scale --out scale --sizes 1,10,100          # millions of rows; 100 M want 20 GB and half an hour
    python -m bench.scale --out scale --show                    # the table and the plot of what is there

Every cell is a process of its own that memory-maps a log from disk (written once, into `--out`), makes a Partition of
it, and fits with rank 50: two epochs of base, of dub's two pre-trainings and of its refinement; six sweeps of dub-x
with a given gamma, in memory and with the parts of its problem in files; two sweeps with S_c on disk too, which is read
from Parquet files; two epochs of torch (SparseAdam; FEW batches of the log, scaled) and two iterations of implicit's
ALS. A step's time is the CPU time of the last, its validation included; memory is the process's peak beyond what the
imports take. Finished cells are kept, so that the same command goes on where it stopped.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
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
GIB, MICRO = 2**30, 1e6
OURS = {
    "base": {"epochs": 2, "batch_size": BATCH},
    "dub": {"epochs": 2, "batch_size": BATCH},
    "dub-x": {"epochs": 6, "gamma": 0.03, "exposure_power": 0.75},
}
FILES = "dub-x-files"  # dub-x with its parts in files, see `fit(parts_dir=)`
DISK = "dub-x-disk"  # the same, and S_c is read from a directory of Parquet files and stays on disk
OURS[FILES] = OURS["dub-x"]
OURS[DISK] = OURS["dub-x"] | {"epochs": 2}
COPIES = "dub-x-copies"  # the same, and S_c is made of copies of the log of 100 M rows, range by range
OURS[COPIES] = OURS[DISK]
COPIED = 100  # millions of rows
LIMIT = 8 * 10**9  # bytes of memory that a fit of copies may allocate
ROWS_PER_FILE = 5 * MILLION  # of the Parquet files
PEERS = ("torch", "implicit")
SYSTEMS = (*OURS, *PEERS)
STEP = {"base": "epoch of c", "dub": "epoch of a + c + d + e", "dub-x": "sweep over all rows"}
STEP |= {FILES: "the same, parts in files", DISK: "the same, S_c on disk (2 sweeps)"}
STEP |= {COPIES: "the same, S_c made of copies of 100 M rows"}
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

    n_users, *columns = mapped_log(path)
    return Partition({"S_c": columns} | randomized(n_users, len(columns[0])), (n_users, N_ITEMS), name="bench")


def mapped_log(path):
    """The number of users, and the users, items and labels of the log on disk."""
    kinds = {"users": "i4", "items": "i4", "labels": "f4"}
    return int((path / "done").read_text()), *(np.memmap(path / f"{name}.bin", kinds[name], "r") for name in kinds)


def write_parquet(path):
    """The log on disk as Parquet files, each with rows of all users."""
    import pyarrow as pa
    from pyarrow import parquet

    _, users, items, labels = mapped_log(path)
    count = -(-len(users) // ROWS_PER_FILE)
    (path / "parquet").mkdir(exist_ok=True)
    for number in range(count):
        rows = slice(number, None, count)
        columns = {"user": users[rows], "item": items[rows], "label": labels[rows].astype(np.int8)}
        parquet.write_table(pa.table(columns), path / "parquet" / f"{number:04d}.parquet")
    (path / "parquet-done").write_text("")


def read_disk(path, parts_dir):
    """The Partition of `load_log`, read from Parquet, with its S_c on disk."""
    import pandas as pd

    import dubnb

    n_users, users, *_ = mapped_log(path)
    random = {
        part: pd.DataFrame(dict(zip(("user", "item", "label"), columns, strict=True)))
        for part, columns in randomized(n_users, len(users)).items()
    }
    return dubnb.Partition.from_frames(path / "parquet", random, parts_dir=parts_dir, name="bench")


def copied(path, copies, parts_dir):
    """A Partition with its S_c on disk: copies of the log on disk, each with users of its own."""
    from dubnb.data.partition import StoredPartition
    from dubnb.data.pattern import Triplets
    from dubnb.data.stored import ROWS_AT_ONCE, LogFolder, PairFiles

    n_users, users, items, labels = mapped_log(path)
    random, files = randomized(copies * n_users, copies * len(users)), PairFiles(LogFolder(parts_dir))
    keys = np.sort(np.concatenate([part[0].astype(np.int64) * N_ITEMS + part[1] for part in random.values()]))
    few = []
    step = n_users * ROWS_AT_ONCE // len(users)
    for first in range(0, copies * n_users, n_users):
        for low in range(0, n_users, step):
            high = min(low + step, n_users)
            rows = slice(*np.searchsorted(users, [low, high]))
            own = [np.asarray(column[rows]) for column in (users, items, labels)]
            of_range = slice(*np.searchsorted(keys, [(first + low) * N_ITEMS, (first + high) * N_ITEMS]))
            kept = ~np.isin((first + own[0].astype(np.int64)) * N_ITEMS + own[1], keys[of_range])
            own = [column[kept] for column in own]
            if not first + low:
                few = [np.flatnonzero(own[2] == label)[0] for label in (0, 1)]
                few = [column[few] for column in own]
            files.add(Triplets(own[0] - low, own[1], own[2], np.ones(len(own[0]), np.float32)), high - low, N_ITEMS)
    files.end(graded=False)
    arguments = {"triplets": {"S_c": few} | random, "shape": (copies * n_users, N_ITEMS), "name": "bench"}
    return StoredPartition(arguments, files)


def randomized(n_users, n_rows):
    """The columns of S_t, S_va and S_te beside a log of n_rows."""
    rng = generator(1, "bench-scale", n_rows)
    n = int(RANDOMIZED * n_rows)
    keys = rng.permutation(np.unique(rng.integers(0, n_users * N_ITEMS, n)))
    parts = {}
    for name, part in zip(("S_t", "S_va", "S_te"), np.split(keys, [len(keys) // 10, len(keys) // 5]), strict=True):
        parts[name] = (part // N_ITEMS, part % N_ITEMS, (rng.random(len(part)) < 0.09).astype(np.float32))
    return parts


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
        with tempfile.TemporaryDirectory(dir=path) as directory:
            if name == COPIES:
                resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))  # files that are mapped do not count
                source = path.parent / f"log-{COPIED}M"
                data = copied(source, int(path.name[4:-1]) // COPIED, directory)
            else:
                data = read_disk(path, directory) if name == DISK else load_log(path)
            data_rows, prepared, reading = data.size("S_c"), time.process_time() - start, peak() - before
            with Allocated() as allocated:
                steps = our_epochs(name, data, directory)
            fitted = peak() - before
            del data
        return {
            "rows": data_rows,
            "prepared": prepared,
            "step": steps,
            "peak": fitted,
            "allocated": allocated.peak - before,
            "loaded": before,
            "peak_of_reading": reading,
            "cpu": time.process_time() - start,
        }
    return {"rows": data_rows, "prepared": prepared, "step": steps, "peak": peak() - before, "loaded": before}


def peak():
    """The largest resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss begins at the memory of the process that started this one
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Allocated:
    """Looks twice a second how much memory is allocated, without mapped files, whose pages the system may drop."""

    def __enter__(self):
        self.peak, self.over = 0, threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()
        return self

    def look(self):
        while not self.over.wait(0.5):
            text = Path("/proc/self/status").read_text()
            self.peak = max(self.peak, 1024 * int(text.partition("RssAnon:")[2].split()[0]))

    def __exit__(self, *error):
        self.over.set()
        self.thread.join()


def our_epochs(name, data, directory):
    """CPU seconds of a fit's last epoch, validation included."""
    import dubnb

    at = []
    in_parts = name in (FILES, DISK, COPIES)
    model = dubnb.make("dub-x" if in_parts else name, rank=RANK, patience=OURS[name]["epochs"], **OURS[name])

    def add(row):
        if not row["stage"].startswith("head"):
            at.append(time.process_time())

    model.fit(data, callback=add, **({"parts_dir": directory} if in_parts else {}))
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
        if args.systems == [COPIES]:
            path.mkdir(exist_ok=True)
        elif not (path / "done").exists():
            write_log(path, millions * MILLION)
        if DISK in args.systems and not (path / "parquet-done").exists():
            write_parquet(path)
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
    lines = ["| CPU us a row / bytes a row (peak, GiB) | one step | " + " | ".join(f"{n} M rows" for n in sizes) + " |"]
    lines.append("|---" * (len(sizes) + 2) + "|")
    for name in (*OURS, *PEERS):
        cells = [kept.get(f"{name} {n}M") for n in sizes]
        if any(cells):
            lines.append(f"| {name} | {STEP[name]} | " + " | ".join(map(_text, cells)) + " |")
    return "\n".join(lines)


def _text(cell):
    if cell is None:
        return ""
    micros, size = MICRO * cell["step"] / cell["rows"], cell.get("allocated", cell["peak"])
    return f"{micros:.2f} / {size / cell['rows']:.0f} ({size / GIB:.1f})"


def fit_table(kept):
    """Markdown: CPU microseconds per row of whole fits, and how much more those in parts take."""
    cells = {key: (cell["cpu"] - cell["prepared"]) / cell["rows"] for key, cell in kept.items() if "cpu" in cell}
    lines = ["| rows | fit | CPU us a row, all sweeps and the head | of dub-x |", "|---" * 4 + "|"]
    for key, micros in cells.items():
        name, size = key.split()
        ratio = micros / cells[f"dub-x {size}"]
        lines.append(f"| {size[:-1]} M | {name}, {OURS[name]['epochs']} sweeps | {MICRO * micros:.2f} | {ratio:.2f} |")
    return "\n".join(lines)


def plot(kept, path):
    """CPU seconds of a step, and the peak of memory, against the rows; both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (label, value) in zip(
        figure.subplots(1, 2),
        (("CPU s of a step", lambda c: c["step"]), ("peak memory, GiB", lambda c: c["peak"] / GIB)),
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
    parser.add_argument("--systems", type=lambda text: text.split(","), default=[*SYSTEMS])
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
