"""Logs of clicks alone: every method beside popularity, on logs whose negatives were taken out of S_c.

    python -m bench.clicks --data simulated --seeds 5 --out clicks.json
    python -m bench.clicks --data coat --data-dir DIR --seeds 5 --out clicks-coat.json

Defaults throughout, nothing is tuned; ips is refused, as its propensities would be all alike. One row per method: mean
over the data seeds of AUC and nDCG on S_te, the smallest difference to popularity within a seed, and how many seeds lie
above it. Finished fits are kept in `--out`.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

SYSTEMS = {
    "popularity": {},
    "popularity-t": {},
    "random": {},
    "base": {},
    "combine": {},
    "cause": {},
    "bridge": {},
    "dub": {},
    "bridge (exact)": {"solver": "exact", "loss": "squared"},
    "dub (exact)": {"solver": "exact", "loss": "squared"},
    "autodebias": {},
    "dub-x": {},
    "unif": {},
}


def clicks_alone(data):
    """The log without the negatives of S_c, and without grades."""
    from dubnb.data.partition import PARTS, Partition

    parts = {part: data.triplets(part)._replace(grades=None) for part in PARTS}
    parts["S_c"] = parts["S_c"].take(parts["S_c"].labels > 0)
    ids = {"user_ids": data.user_ids, "item_ids": data.item_ids}
    return Partition(parts, (data.n_users, data.n_items), truth=data.truth, name=f"{data.name}, clicks alone", **ids)


def run(name, data_dir, seeds, systems, out):
    """{system: {seed: metrics}}, kept in `out` after every fit."""
    import dubnb

    done = json.loads(out.read_text()) if out.exists() else {}
    for seed in range(seeds):
        data = None
        for system in systems:
            if str(seed) in done.setdefault(f"{name}/{system}", {}):
                continue
            data = data or clicks_alone(dubnb.load_dataset(name, seed=seed, data_dir=data_dir))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = dubnb.make(system.split(" ")[0], **SYSTEMS[system]).fit(data)
                result = model.evaluate(data, truth=False)
            seconds = float(model.history_["seconds"].sum())
            done[f"{name}/{system}"][str(seed)] = {"auc": result["auc"], "ndcg": result["ndcg"], "seconds": seconds}
            out.write_text(json.dumps(done, indent=1))
            print(f"{name} {seed} {system}: {result['auc']:.4f} / {result['ndcg']:.4f}, {seconds:.1f} s", flush=True)
    return {system: done[f"{name}/{system}"] for system in systems}


def table(found):
    """Markdown, popularity being the first row."""
    lines = ["| method | AUC | nDCG | least gain over popularity | above it (AUC, nDCG) |", "|---|---|---|---|---|"]
    popular = found["popularity"]
    for system, by_seed in found.items():
        values = {m: np.array([by_seed[s][m] for s in by_seed]) for m in ("auc", "ndcg")}
        gains = {m: values[m] - np.array([popular[s][m] for s in by_seed]) for m in values}
        above = ", ".join(f"{(gain > 0).sum()}/{len(gain)}" for gain in gains.values())
        least = " / ".join(f"{gain.min():+.4f}" for gain in gains.values())
        lines.append(f"| {system} | {values['auc'].mean():.4f} | {values['ndcg'].mean():.4f} | {least} | {above} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.clicks", description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    print(table(run(args.data, args.data_dir, args.seeds, args.systems, args.out)))


if __name__ == "__main__":
    main()
