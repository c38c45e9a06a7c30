"""How many positives does S_te need? The spread of a paired difference between two systems, over draws of S_te.

    python -m bench.test_size [--seeds 3] [--positives 50,100,200,400,800] [--out bench/records/test-size.json]

Two systems are fitted once on each simulated log. Then S_te is drawn again and again: random pairs of users and items
with their true labels, as many as have the wanted number of positives. What is printed is the standard deviation of
the difference of the two systems over these draws, in the pooled AUC and in the mean AUC per user, and c = that times
the root of the number of positives. A 95 % interval is then about +-1.96 c / sqrt(positives).
"""

from __future__ import annotations

import argparse
import json
import warnings
from itertools import combinations
from pathlib import Path

import numpy as np

import dubnb
from dubnb.data.pattern import RANDOMIZED
from dubnb.metrics import auc

SYSTEMS = ("popularity", "base", "combine", "dub-x")
DRAWS = 60


def user_auc(scores: np.ndarray, labels: np.ndarray, users: np.ndarray) -> float:
    """The mean over users with both labels of their own AUC."""
    order = np.argsort(users, kind="stable")
    values = []
    for rows in np.split(order, np.flatnonzero(np.diff(users[order])) + 1):
        if 0 < labels[rows].sum() < len(rows):
            values.append(auc(scores[rows], labels[rows]))
    return float(np.mean(values)) if values else float("nan")


def spreads(name: str, seed: int, positives: list[int]) -> list[dict]:
    """Rows of the record for one log."""
    data = dubnb.load_dataset(name, seed=seed)
    assert data.truth is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = {system: dubnb.make(system).fit(data).weights_ for system in SYSTEMS}
    labels = np.asarray(data.truth.label_rows(np.arange(data.n_users)))
    scores = {system: weights.score_rows(np.arange(data.n_users)) for system, weights in models.items()}
    taken = data.seen.mask(np.arange(data.n_users), data.n_items)
    for part in RANDOMIZED:
        taken[data.triplets(part).users, data.triplets(part).items] = True
    users, items = np.nonzero(~taken)
    rate, rng, rows = float(labels[users, items].mean()), np.random.default_rng(seed), []
    for wanted in positives:
        n, values = round(wanted / rate), {system: [] for system in SYSTEMS}
        for _ in range(DRAWS):
            at = rng.choice(len(users), n, replace=False)
            u, i = users[at], items[at]
            for system in SYSTEMS:
                own = scores[system][u, i], labels[u, i]
                values[system].append((auc(*own), user_auc(*own, u)))
        for one, other in combinations(SYSTEMS, 2):
            spread = np.nanstd(np.array(values[one]) - np.array(values[other]), axis=0, ddof=1)
            row = {"data": name, "seed": seed, "positives": wanted, "pairs": n, "systems": [one, other]}
            for metric, sd in zip(("auc", "user_auc"), spread, strict=True):
                row |= {f"sd_{metric}": round(float(sd), 5), f"c_{metric}": round(float(sd) * wanted**0.5, 4)}
            rows.append(row)
    return rows


def table(record: dict) -> str:
    """The record as Markdown."""
    lines = [
        "| positives in S_te | AUC: c | 95 % interval | AUC per user: c | 95 % interval |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in record["summary"]:
        cells = [f"{row[f'c_{metric}']:.2f} | +-{1.96 * row[f'sd_{metric}']:.3f}" for metric in ("auc", "user_auc")]
        lines.append(f"| {row['positives']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.test_size", description=__doc__)
    parser.add_argument("--data", default="simulated,indifferent")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--positives", default="50,100,200,400,800")
    parser.add_argument("--out", default=None, help="where the JSON record goes")
    args = parser.parse_args()
    wanted = [int(number) for number in args.positives.split(",")]
    rows = [row for name in args.data.split(",") for seed in range(args.seeds) for row in spreads(name, seed, wanted)]
    summary = []
    for number in wanted:
        own = [row for row in rows if row["positives"] == number]
        means = {key: float(np.mean([row[key] for row in own])) for key in own[0] if key[:2] in ("sd", "c_")}
        summary.append({"positives": number} | {key: round(value, 4) for key, value in means.items()})
    record = {"command": "python -m bench.test_size", "draws": DRAWS, "summary": summary, "rows": rows}
    print(table(record))
    if args.out:
        Path(args.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
