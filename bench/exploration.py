"""How far metrics are off where traffic is explored and its propensities are not read.

    python -m bench.exploration [--seeds 5] [--out bench/records/exploration.json]

On `simulated`, a good policy explores: P(item shown | user) is proportional to exp(r / T) among the items outside the
user's biased log. r is the true probability of a like, standardised over all pairs, and T the temperature. 20,000
impressions are logged with their propensities. `base` and `dub-x` are trained on the log. Their AUC on S_te is taken
without weights, as if traffic were uniform, and with weights 1 / p, as dubnb does. The truth is that of all pairs.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

IMPRESSIONS = 20_000
TEMPERATURES = (1.0, 0.7, 0.6)
METHODS = ("base", "dub-x")
COLUMNS = {"unweighted": "unweighted", "weighted": "weighted by 1 / p", "truth": "truth"}


def explored(seed, temperature):
    """A log of the policy."""
    import dubnb
    from dubnb.data.simulate import explore, softmax_chances

    data = dubnb.load_dataset("simulated", seed=seed)
    users = np.arange(data.n_users)
    likes = data.truth.probability_rows(users)
    free = ~data.logged.mask(users, data.n_items)
    chances = softmax_chances((likes - likes.mean()) / likes.std(), temperature, eligible=free)
    return explore(data, chances, IMPRESSIONS, seed)


def run(seeds):
    """One row per temperature, data seed and method."""
    import dubnb
    from dubnb import metrics

    rows = []
    for temperature in TEMPERATURES:
        for seed in range(seeds):
            log = explored(seed, temperature)
            S_te = log.unseen("S_te")
            for method in METHODS:
                scorer = dubnb.make(method).fit(log).weights_
                found = dubnb.evaluate(scorer, log)
                row = {
                    "temperature": temperature,
                    "seed": seed,
                    "method": method,
                    "unweighted": metrics.auc(scorer.score_pairs(S_te.users, S_te.items), S_te.labels),
                    "weighted": found["auc"],
                    "truth": found["truth_auc"],
                    "pairs": len(S_te.users),
                    "effective": log.effective_sample_size("S_te"),
                }
                rows.append({name: round(own, 4) if isinstance(own, float) else own for name, own in row.items()})
                print(rows[-1], flush=True)
    return rows


def table(rows):
    """Means over the data seeds."""
    lines = [
        "| T | effective pairs of S_te | model | " + " | ".join(f"AUC, {name}" for name in COLUMNS.values()) + " |"
    ]
    lines.append("|---:|---:|---|" + "---:|" * len(COLUMNS))
    for temperature in TEMPERATURES:
        for method in METHODS:
            own = [row for row in rows if (row["temperature"], row["method"]) == (temperature, method)]
            means = {name: np.mean([row[name] for row in own]) for name in (*COLUMNS, "pairs", "effective")}
            sizes = f"{means['effective']:,.0f} of {means['pairs']:,.0f}"
            values = " | ".join(f"{means[name]:.3f}".removeprefix("0") for name in COLUMNS)
            lines.append(f"| {temperature:g} | {sizes} | {method} | {values} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    rows = run(args.seeds)
    print(table(rows))
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
