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
from dubnb.data.split import RandomizedRows, Split
from dubnb.data.triplets import joined
from dubnb.metrics import auc
from dubnb.ranking import top_k

WORLDS = ("world-popular", "world-niche", "world-drift", "world-promoted")
SHARES = {"10/10/80": (0.1, 0.1, 0.8), "by size": None, "75/15/10": (0.75, 0.15, 0.1), "80/10/10": (0.8, 0.1, 0.1)}


def split_anew(data: Partition, shares: tuple[float, float, float] | None) -> Partition:
    """The same log, its randomized part split by hash."""
    log = joined(*(data.triplets(part) for part in RANDOMIZED))
    rows = RandomizedRows(log.users, log.items, log.labels, data.user_ids, data.item_ids)
    parts = Split("random", shares).parts(rows)
    return data.replace(**{part: log.take(own) for part, own in parts.rows.items()})


def judged(model: dubnb.Base, data: Partition) -> dict[str, float]:
    """AUC and likes in the top 10 against the truth, over the pairs that no part of the log holds."""
    users = np.arange(data.n_users)
    labels, scores = np.asarray(data.truth.label_rows(users)), model.weights_.score_rows(users)
    taken = data.seen.mask(users, data.n_items)
    for part in ("S_va", "S_te"):
        taken[data.triplets(part).users, data.triplets(part).items] = True
    taken[data.overlap.users, data.overlap.items] = True
    top = top_k(scores, 10, taken)
    return {
        "auc": round(float(auc(scores[~taken], labels[~taken])), 4),
        "likes": round(float(np.take_along_axis(labels, top, axis=1).sum(axis=1).mean()), 4),
    }


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
    print("\nmean over logs            judged: AUC  likes     shipped: AUC  likes")
    for called in SHARES:
        own = {
            stage: [r for r in rows if r["shares"] == called and r["model"] == stage] for stage in ("judged", "shipped")
        }
        means = [np.mean([r[key] for r in own[stage]]) for stage in own for key in ("auc", "likes")]
        print(f"{called:<24} {means[0]:>12.4f} {means[1]:>6.3f} {means[2]:>16.4f} {means[3]:>6.3f}")
    if args.out:
        Path(args.out).write_text(json.dumps({"command": "python -m bench.shares", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
