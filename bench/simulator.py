"""How close `yahoo-like` comes to Yahoo! R3: `python -m bench.simulator [--seeds 3] [--ladder]` prints Markdown tables.

The simulator was fitted to such statistics; the real figures below were measured by the maintainers on the real logs.
"""

import argparse

import numpy as np

from dubnb.data.partition import RANDOMIZED
from dubnb.data.simulate import simulate

SOURCE = "Yahoo! R3, measured by the maintainers"
REAL = {
    "P/N of S_c": 0.6702,
    "P/N of the randomized log": 0.0964,
    "item popularity, median": 155,
    "item popularity, 90 %": 582,
    "item popularity, 99 %": 3013,
    "item popularity, Gini": 0.560,
    "AUC of the user's mean in S_c": 0.692,
    "AUC of the item's mean in S_c": 0.620,
    "AUC of log popularity": 0.585,
    "AUC of log positives": 0.622,
}


def statistics(partition):
    """The numbers of REAL for one partition; AUCs are over the whole randomized log."""
    users, items, labels, *_ = partition.triplets("S_c")
    random_users, random_items, random_labels = (
        np.concatenate([partition.triplets(part)[column] for part in RANDOMIZED]) for column in range(3)
    )
    popularity = np.bincount(items, minlength=partition.n_items)
    positives = np.bincount(items, weights=labels, minlength=partition.n_items)
    scores = (
        _means(users, labels, partition.n_users)[random_users],
        _means(items, labels, partition.n_items)[random_items],
        np.log1p(popularity)[random_items],
        np.log1p(positives)[random_items],
    )
    values = [ratio(labels), ratio(random_labels), *np.percentile(popularity, (50, 90, 99)), gini(popularity)]
    values += [auc(score, random_labels) for score in scores]
    return dict(zip(REAL, (float(value) for value in values), strict=True))


def ratio(labels):
    """Positives over negatives."""
    return labels.sum() / (len(labels) - labels.sum())


def gini(counts):
    """Gini coefficient of non-negative counts: 0 when all are equal, near 1 when one has all."""
    counts = np.sort(counts)
    n = len(counts)
    return (2 * np.arange(1, n + 1) - n - 1) @ counts / (n * counts.sum())


def auc(scores, labels):
    """Probability that a positive scores above a negative; ties count one half."""
    from scipy.stats import rankdata

    positives = labels.sum()
    ranks = rankdata(scores)[labels == 1].sum()
    return (ranks - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))


def _means(rows, labels, size):
    """Mean label per row; the overall mean where a row has none."""
    counts = np.bincount(rows, minlength=size)
    sums = np.bincount(rows, weights=labels, minlength=size)
    return np.where(counts > 0, sums / np.maximum(counts, 1), labels.mean())


def table(runs):
    """Markdown: each statistic, real beside the mean and range of `runs`."""
    lines = [f"| | real ({SOURCE}) | yahoo-like, {len(runs)} seeds: mean (min..max) |", "|---|---|---|"]
    for name, real in REAL.items():
        values = np.array([run[name] for run in runs])
        digits = ".0f" if real > 1 else ".4f" if name.startswith("P/N") else ".3f"
        simulated = f"{values.mean():{digits}} ({values.min():{digits}}..{values.max():{digits}})"
        lines.append(f"| {name} | {real:{digits}} | {simulated} |")
    return "\n".join(lines)


# method, parameters (mf, rank 50), and AUC / nDCG@50 on the real data's paper split, one prototype run each
LADDER = (
    ("unif", {"lam": 1e-2}, (0.6111, 0.0335)),
    ("base", {"lam": 1e-4}, (0.7287, 0.0506)),
    ("combine", {"lam": 1e-4}, (0.7350, 0.0547)),
    ("bridge", {"gamma": 0.1, "lam": 1e-5}, (0.7356, 0.0553)),
    ("bridge", {"gamma": 1.5, "lam": 4e-5}, (0.7689, 0.0803)),
    ("dub", {"gamma": 1.5, "lam": 4e-5}, (0.7711, 0.0803)),
    ("dub", {"gamma": 2.0, "lam": 5e-5}, (0.7727, 0.0818)),
    ("dub", {"gamma": 8.0, "lam": 3e-5}, (0.7430, 0.0755)),
)


def ladder(partitions):
    """Markdown: AUC / nDCG@50, real beside the mean and range over `partitions`; gains over base."""
    import dubnb

    found = []
    for method, params, _ in LADDER:
        models = [dubnb.make(method, rank=50, **params).fit(data) for data in partitions]
        results = [model.evaluate(data, truth=False) for model, data in zip(models, partitions, strict=True)]
        found.append(np.array([(result["auc"], result["ndcg"]) for result in results]))
    base, real_base = found[1], LADDER[1][2]
    lines = [f"| mf, rank 50 | real ({SOURCE}) | yahoo-like: mean (min..max of AUC) | AUC - base: real | yahoo-like |"]
    lines.append("|---|---|---|---|---|")
    for (method, params, real), values in zip(LADDER, found, strict=True):
        name = ", ".join([method, *(f"{key} {value:g}" for key, value in params.items())])
        auc_, ndcg = values.mean(axis=0)
        gain = (values - base)[:, 0].mean()
        spread = f"({values[:, 0].min():.4f}..{values[:, 0].max():.4f})"
        lines.append(
            f"| {name} | {real[0]:.4f} / {real[1]:.4f} | {auc_:.4f} / {ndcg:.4f} {spread} "
            f"| {real[0] - real_base[0]:+.4f} | {gain:+.4f} |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds, from 0 on")
    parser.add_argument("--ladder", action="store_true", help="also fit the methods (some minutes)")
    arguments = parser.parse_args()
    partitions = [simulate("yahoo-like", seed) for seed in range(arguments.seeds)]
    print(table([statistics(partition) for partition in partitions]))
    if arguments.ladder:
        print("\n" + ladder(partitions))


if __name__ == "__main__":
    main()
