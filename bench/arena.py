"""The leaderboard of docs/arena.md: `dubnb arena` on Coat and two simulated logs, with the budget quick.

    python -m bench.arena run --coat DIR --out runs/board            # run it again to go on
    python -m bench.arena run --coat DIR --out runs/board --record   # also writes the record and the figure

The simulated logs have data seed 1000: defaults and rules were chosen on seeds below.
"""

import argparse
import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np

DATA_SEED = 1000
WORLDS = ("simulated", "bias-loop")
RECORD = Path("bench/records/arena.json")
FIGURE = Path("docs/figures/arena-ranks.svg")


def run(coat, worlds, out, n_jobs):
    """The finished arena."""
    from dubnb import arena, load_dataset
    from dubnb.sweeps.runner import Resources

    logs = {"coat": load_dataset("coat", data_dir=coat)}
    logs |= {name: load_dataset(name, seed=DATA_SEED) for name in worlds}
    return arena(logs, out, "quick", resources=Resources(n_jobs=n_jobs), say=print)


def record(found):
    """What the table is made of."""

    def rounded(value, digits=4):
        return None if value is None or not np.isfinite(value) else round(float(value), digits)

    rows = []
    for row in found.leaderboard:
        gains = {log: gain and [rounded(each) for each in gain] for log, gain in row["gains"].items()}
        own = {key: row[key] for key in ("system", "reads", "candidates")}
        own |= {"mean_rank": rounded(row["mean_rank"], 2), "gains": gains}
        own |= {"values": {log: rounded(value) for log, value in row["values"].items()}}
        rows.append(own | {key: rounded(row[key], 2) for key in ("training_cpu_seconds", "search_cpu_seconds")})
    about = {"command": "python -m bench.arena run --coat DIR --out runs/board --record", "data_seed": DATA_SEED}
    about |= {"candidates": found.study.budget.points, "seeds": found.study.budget.seeds, "answer": list(found.answer)}
    return about | {"rows": rows}


def table(kept):
    """The leaderboard as Markdown."""
    logs = list(kept["rows"][0]["values"])
    best = {log: max(row["values"][log] or 0 for row in kept["rows"]) for log in logs}
    head = ["system", "mean rank", *logs, f"gain over popularity on {logs[0]}", "candidates", "CPU s of the search"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for row in kept["rows"]:
        values = [(row["values"][log], row["values"][log] == best[log]) for log in logs]
        cells = ["-" if value is None else f"**{value:.3f}**" if top else f"{value:.3f}" for value, top in values]
        gain = row["gains"][logs[0]]
        cells.append("" if gain is None else f"{gain[0]:+.3f} ({gain[1]:+.3f} to {gain[2]:+.3f})")
        low, high = min(row["candidates"]), max(row["candidates"])
        cells += [f"{low}" if low == high else f"{low} to {high}", f"{row['search_cpu_seconds']:.0f}"]
        rank = "-" if row["mean_rank"] is None else f"{row['mean_rank']:.1f}"
        lines.append(f"| `{row['system']}` | {rank} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    """Run the arena, and keep what it found."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run",))
    parser.add_argument("--coat", required=True, help="the directory of Coat's files")
    parser.add_argument("--out", required=True)
    parser.add_argument("--worlds", default=",".join(WORLDS), help="simulated logs besides Coat, with commas between")
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(args.coat, list(filter(None, args.worlds.split(","))), args.out, args.n_jobs)
    kept = record(found)
    print(table(kept))
    if args.record:
        RECORD.write_text(json.dumps(kept, indent=1) + "\n")
        if len(kept["rows"][0]["values"]) > len(WORLDS):  # enough for the diagram
            shutil.copy(Path(args.out) / "figures" / FIGURE.name, FIGURE)


if __name__ == "__main__":
    main()
