"""`python -m bench.cluster`: one fit of dub-x on a local Dask cluster, time and traffic of a sweep by workers.

    python -m bench.cluster --log scale/log-10M --out cluster.json --workers 1,2 --parts 4

The log is one that `bench.scale` has written. Each cell is a cluster of processes with one thread each, which is gone
before the next begins. All figures are means of the sweeps after the first, validation included: these are the same
sweeps with any number of workers. Traffic is counted where it is written: every byte that the driver, the scheduler and
the workers hand to a socket.
"""

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import numpy as np

from bench.scale import OURS, RANK, load_log

SWEEPS = 5


def count_bytes():
    """Count what this process writes to sockets from now on."""
    from distributed.comm import tcp

    if hasattr(tcp, "dubnb_written"):  # in an earlier cell
        return
    original = tcp.TCP.write
    tcp.dubnb_written = 0

    async def write(self, *arguments, **options):
        size = await original(self, *arguments, **options)
        tcp.dubnb_written += size
        return size

    tcp.TCP.write = write


def facts():
    """(bytes written so far, CPU seconds so far) of this process."""
    from distributed.comm import tcp

    return tcp.dubnb_written, time.process_time()


def cell(log, workers, parts):
    """Seconds, CPU seconds and bytes of a sweep."""
    from distributed import Client, LocalCluster

    import dubnb

    data, rows = load_log(log), []
    options = {"n_workers": workers, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with LocalCluster(**options, silence_logs=50, memory_limit=0) as cluster, Client(cluster) as client:
        client.run(count_bytes)
        count_bytes()  # the driver and the scheduler, which is in its process

        def add(row):
            if row["stage"].startswith("head"):
                return
            rows.append((time.perf_counter(), facts(), client.run(facts)))

        model = dubnb.make("dub-x", rank=RANK, patience=SWEEPS, **OURS["dub-x"] | {"epochs": SWEEPS})
        begun = time.perf_counter()
        model.fit(data, callback=add, scheduler=client, parts=parts)
        whole = time.perf_counter() - begun
    seconds = [after[0] - before[0] for before, after in itertools.pairwise(rows)]
    (_, driver, others), (_, driver_after, others_after) = rows[0], rows[-1]
    return {
        "rows": data.size("S_c"),
        "n_users": data.n_users,
        "n_items": data.n_items,
        "workers": workers,
        "parts": parts,
        "seconds": float(np.mean(seconds)),
        "all_seconds": seconds,
        "whole": whole,
        "driver_cpu": (driver_after[1] - driver[1]) / len(seconds),
        "worker_cpu": [(others_after[each][1] - others[each][1]) / len(seconds) for each in others],
        "driver_bytes": (driver_after[0] - driver[0]) / len(seconds),
        "worker_bytes": [(others_after[each][0] - others[each][0]) / len(seconds) for each in others],
        "load": os.getloadavg()[0],
    }


def table(kept):
    """Markdown: a row for each cluster."""
    lines = ["| rows, parts, workers | seconds a sweep | CPU s of driver and scheduler | CPU s of each worker | sent |"]
    lines.append("|---" * 5 + "|")
    for cell in kept:
        name = f"{cell['rows'] / 1e6:.0f} M, {cell['parts']}, {cell['workers']}"
        cpu = " and ".join(f"{each:.1f}" for each in cell["worker_cpu"])
        sent = f"{cell['driver_bytes'] / 1e6:.0f} MB, back {sum(cell['worker_bytes']) / 1e6:.0f} MB"
        lines.append(f"| {name} | {cell['seconds']:.1f} | {cell['driver_cpu']:.1f} | {cpu} | {sent} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2])
    parser.add_argument("--parts", type=int, default=4)
    args = parser.parse_args()
    kept = []
    for workers in args.workers:
        kept.append(cell(args.log, workers, args.parts))
        print(json.dumps(kept[-1]), flush=True)
        args.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
