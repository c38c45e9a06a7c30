"""What does training once more on S_va, or on everything, bring? True AUC and likes of the same settings.

    python -m bench.refit [--seeds 3] [--out bench/records/refit.json]

`simulated` has the paper's split: S_t is a tenth of the randomized log. The logs of two invented companies are split as
one's own are, the drifting one by time, which holds recent rows of the biased log back. All three models are judged on
the same pairs: those that no part of the log holds.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

import dubnb
from bench.shares import judged
from dubnb.data import worlds
from dubnb.data.partition import Partition

LOGS = ("simulated", "world-niche", "world-drift, by time")
METHODS = ("combine", "dub", "dub-x")
STAGES = {"fit": "`fit(data)`", "S_va": "`refit=True`", "all": '`refit="all"`'}


def log(name: str, seed: int) -> Partition:
    """One of LOGS."""
    if name != "world-drift, by time":
        return dubnb.load_dataset(name, seed=seed)
    logs = worlds.make_world("world-drift", seed=seed)
    return logs._replace(options=logs.options | {"split": "time"}).partition(name)


def table(rows: list[dict]) -> str:
    """The record as Markdown: means over the logs of each kind."""
    stages = list(STAGES.values())
    lines = ["| log | method | " + " | ".join(stages) + " |", "|---|---|" + "---|" * len(stages)]
    for name in LOGS:
        for method in METHODS:
            own = [row for row in rows if (row["data"], row["method"]) == (name, method)]
            cells = []
            for stage in STAGES:
                auc, likes = (np.mean([row[stage][key] for row in own]) for key in ("auc", "likes"))
                cells.append(f"{auc:.4f} / {likes:.2f}")
            lines.append(f"| {name} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.refit", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default=None, help="where the JSON record goes")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name in LOGS:
        for seed in range(args.seeds):
            data = log(name, seed)
            held = 0 if data.held_back is None else len(data.held_back.users)
            for method in METHODS:
                first = dubnb.make(method).fit(data)
                models = {"fit": first, "S_va": first.refitted(data, True), "all": first.refitted(data, "all")}
                row = {"data": name, "seed": seed, "method": method, "held_back": held}
                rows.append(row | {stage: judged(model, data) for stage, model in models.items()})
                print(rows[-1], flush=True)
    print(table(rows))
    if args.out:
        Path(args.out).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
