"""Which shares of the randomized log should S_t, S_va and S_te have? True likes of the model by shares.

    python -m bench.shares [--seeds 2] [--out bench/records/shares.json]

The randomized log of each invented company is split by its hash in several shares. dub-x is fitted on each; its top 10
among the items outside the log's pairs of the user is compared with the truth. "by size" is the default rule.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

import dubnb
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.data.pattern import joined
from dubnb.data.rows import LogRows, split_rows
from dubnb.evaluation import top_k
from dubnb.metrics import auc

WORLDS = ("world-popular", "world-niche", "world-drift", "world-promoted")
SHARES = {"10/10/80": (0.1, 0.1, 0.8), "by size": None, "75/15/10": (0.75, 0.15, 0.1), "80/10/10": (0.8, 0.1, 0.1)}


def split_anew(data: Partition, shares: tuple[float, float, float] | None) -> Partition:
    """The same log, its randomized part split by hash."""
    log = joined(*(data.triplets(part) for part in RANDOMIZED))
    rows = LogRows(log.users, log.items, log.labels, data.user_ids.values, data.item_ids.values)
    parts, _ = split_rows(rows, "random", shares)
    return data.replace(**{part: log.take(own) for part, own in parts.items()})


def judged(model: dubnb.Base, data: Partition) -> dict[str, float]:
    """AUC and likes in the top 10 against the truth, over the pairs that no part of the log holds."""
    users = np.arange(data.n_users)
    labels, scores = np.asarray(data.truth.label_rows(users)), model.weights_.score_rows(users)
    taken = data.seen.mask(users, data.n_items)
    for part in ("S_va", "S_te"):
        taken[data.triplets(part).users, data.triplets(part).items] = True
    taken[data.overlap.users, data.overlap.items] = True
    if data.held_back is not None:
        taken[data.held_back.users, data.held_back.items] = True
    top = top_k(scores, 10, taken)
    return {
        "auc": round(float(auc(scores[~taken], labels[~taken])), 4),
        "likes": round(float(np.take_along_axis(labels, top, axis=1).sum(axis=1).mean()), 4),
    }


def table(record: dict) -> str:
    """The record as Markdown: means over all logs, and in how many of them shares beat the paper's in likes."""
    by = {}
    for row in record["rows"]:
        by.setdefault((row["shares"], row["model"]), []).append(row)
    lines = [
        "| S_t / S_va / S_te | AUC / likes in the top 10 | more likes than 10/10/80 | refitted on everything |",
        "|---|---|---|---|",
    ]
    paper = [row["likes"] for row in by["10/10/80", "judged"]]
    for called in SHARES:
        cells = []
        for model in ("judged", "shipped"):
            auc_, likes = (np.mean([row[key] for row in by[called, model]]) for key in ("auc", "likes"))
            cells.append(f"{auc_:.4f} / {likes:.2f}")
        more = sum(row["likes"] > least for row, least in zip(by[called, "judged"], paper, strict=True))
        beaten = "-" if called == "10/10/80" else f"{more} of {len(paper)} logs"
        lines.append(f"| {called} | {cells[0]} | {beaten} | {cells[1]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.shares", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--labels", default="clicks,stars")
    parser.add_argument("--out", default=None, help="where the JSON record goes")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for world in WORLDS:
        for label in args.labels.split(","):
            name = world if label == "clicks" else f"{world}:{label}"
            for seed in range(args.seeds):
                whole = dubnb.load_dataset(name, seed=seed)
                for called, shares in SHARES.items():
                    data = split_anew(whole, shares)
                    sizes = {part: len(data.triplets(part).users) for part in RANDOMIZED}
                    first = dubnb.DubX().fit(data)
                    for stage, model in (("judged", first), ("shipped", first.refitted(data, "all"))):
                        row = {"data": name, "seed": seed, "shares": called, "model": stage, "pairs": sizes}
                        rows.append(row | judged(model, data))
                        print(rows[-1], flush=True)
    record = {"command": "python -m bench.shares", "rows": rows}
    print(table(record))
    if args.out:
        Path(args.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
