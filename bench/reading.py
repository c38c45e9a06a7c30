"""Reading logs: a CSV against pandas' own reader, and the peak of memory from a Parquet file to a Partition.

`python -m bench.reading [rows]` runs it alone, at another size.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench._timing import at_most, figure, measure, skipped, table

ROWS, QUICK_ROWS = 5_000_000, 500_000
CPU_GOAL, MEMORY_GOAL = 1.3, 3.0


def run(quick=False):
    rows = QUICK_ROWS if quick else ROWS
    with tempfile.TemporaryDirectory() as folder:
        bench_csv(Path(folder), rows)
        bench_parquet(Path(folder), rows)


def log_of(rows):
    """A biased log of `rows` distinct pairs and a randomized one of a twentieth, with ids of text, as DataFrames."""
    import pandas as pd

    rng = np.random.default_rng(0)
    n_users, n_items = max(1_000, rows // 25), max(500, rows // 500)
    keys = rng.permutation(rng.integers(0, n_users * n_items, int(1.2 * rows)))
    keys = keys[np.sort(np.unique(keys, return_index=True)[1])][: rows + rows // 20]
    users, items = np.divmod(keys, n_items)
    names = np.char.add("user-", np.char.zfill(np.arange(n_users).astype(str), 9)).astype(object)
    things = np.char.add("item-", np.char.zfill(np.arange(n_items).astype(str), 6)).astype(object)
    frame = pd.DataFrame({"user": names[users], "item": things[items], "label": rng.integers(0, 2, len(keys))})
    return frame.iloc[:rows], frame.iloc[rows:]


def bench_csv(folder, rows):
    """CPU seconds from files to a Partition: ours, and pandas' reader followed by from_frames."""
    import pandas as pd

    from dubnb import Partition

    paths = [folder / "biased.csv", folder / "random.csv"]
    for frame, path in zip(log_of(rows), paths, strict=True):
        frame.to_csv(path, index=False)
    contenders = {
        "dubnb, from the files": lambda: Partition.from_frames(*paths),
        "pandas.read_csv, then from_frames": lambda: Partition.from_frames(*map(pd.read_csv, paths)),
    }
    seconds = measure(contenders, repeats=2 if rows > QUICK_ROWS else 5)
    ours, peer = contenders
    table(f"CSV of {rows:,} rows with ids of text -> Partition", seconds, ours, {peer: at_most(CPU_GOAL)})


def bench_parquet(folder, rows):
    """The peak of memory, in a process of its own, over what the Partition keeps."""
    try:
        import pyarrow  # noqa: F401

        Path("/proc/self/clear_refs").write_text("5")
    except (ImportError, OSError) as error:
        skipped("Parquet", str(error))
        return
    paths = [folder / "biased.parquet", folder / "random.parquet"]
    for frame, path in zip(log_of(rows), paths, strict=True):
        frame.to_parquet(path, index=False)
    peak, kept = map(
        float,
        subprocess.run(
            [sys.executable, "-m", "bench.reading", "--peak", *map(str, paths)],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        ).stdout.split(),
    )
    title = f"Parquet of {rows:,} rows -> Partition, peak of memory over what it keeps ({kept / 1e6:.0f} MB)"
    figure(title, "dubnb", peak / kept, "x", at_most(MEMORY_GOAL))


def peak_of(*paths):
    """(bytes that reading needed at its peak, bytes that the Partition keeps), beyond what imports and kernels take."""
    import pyarrow.parquet as parquet

    from dubnb import Partition

    small = [str(Path(path).with_suffix(".small.parquet")) for path in paths]
    for path, to in zip(paths, small, strict=True):
        parquet.write_table(next(iter(_first_batch(path))), to)
    Partition.from_frames(*small)  # compiles, imports
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _bytes("VmRSS")
    data = Partition.from_frames(*paths)
    peak = _bytes("VmHWM") - before
    columns = [column for part in ("S_c", "S_t", "S_va", "S_te") for column in data.triplets(part)]
    kept = sum(column.nbytes for column in columns if column is not None)
    return peak, kept + data.user_ids.values.nbytes + data.item_ids.values.nbytes


def _bytes(field):
    """A field of the process' status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field + ":")).split()[1])


def _first_batch(path):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    for batch in parquet.ParquetFile(path).iter_batches(10_000):
        yield pa.Table.from_batches([batch])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print(*peak_of(*sys.argv[2:]))
    elif sys.argv[1:]:
        with tempfile.TemporaryDirectory() as directory:
            bench_csv(Path(directory), int(sys.argv[1]))
            bench_parquet(Path(directory), int(sys.argv[1]))
    else:
        run()
