"""What `fit(start=last week's model)` saves: sweeps of dub-x from an earlier model, against a fit from scratch.

    python -m bench.warm_start --seeds 3 --out bench/records/warm-start.json

Last week's log is a random 90 % of this week's S_c and S_t. AUC is against the truth.
"""

import argparse
import json
from pathlib import Path

import numpy as np

SHARE = 0.9
LOGS = ("simulated", "indifferent", "yahoo-like")


def last_week(data, seed):
    """A random share of S_c and S_t."""
    from dubnb.data.partition import PARTS, Partition

    parts = {part: data.triplets(part) for part in PARTS}
    for number, part in enumerate(("S_c", "S_t")):
        kept = np.random.default_rng([seed, number]).random(len(parts[part].users)) < SHARE
        parts[part] = parts[part].take(np.flatnonzero(kept))
    ids = {"user_ids": data.user_ids, "item_ids": data.item_ids}
    return Partition(parts, (data.n_users, data.n_items), truth=data.truth, **ids)


def run(seeds):
    """[{log, seed, sweeps and truth AUC of a cold and of a warm fit}]."""
    import dubnb

    found = []
    for log in LOGS:
        for seed in range(seeds):
            data = dubnb.load_dataset(log, seed=seed)
            last = dubnb.DubX().fit(last_week(data, seed))
            row = {"log": log, "seed": seed}
            for name, start in (("cold", None), ("warm", last)):
                model = dubnb.DubX().fit(data, start=start)
                row[f"{name}_sweeps"] = len(model.history_rows_)
                row[f"{name}_auc"] = round(model.evaluate(data)["truth_auc"], 5)
            found.append(row)
            print(row, flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.warm_start", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.write_text(json.dumps(run(args.seeds), indent=1) + "\n")


if __name__ == "__main__":
    main()
