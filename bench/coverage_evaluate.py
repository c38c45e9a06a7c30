"""What the intervals of liked@10 cover, and whether it is unbiased, on simulated logs whose truth is known.

Users, their tastes, the biased log and two rankings stay; the randomized log is drawn again and again: every user gets
some items uniformly at random, those of the biased log among them, as traffic is. Half of it is S_te. For each log
`dubnb.evaluate` judges both rankings and `dubnb.stats.compare_liked` compares them. The truth is the share of liked
items in the same lists.

    python -m bench.coverage_evaluate --out bench/records/coverage-evaluate.json      # four minutes
"""

import argparse
import json
from pathlib import Path

import numpy as np

N_ITEMS, K = 300, 10
LIKED = 0.09  # share of all pairs
BIASED = 15  # pairs of the biased log per user
SHARES = (0.3, 0.2, 0.5)  # of the randomized log, as S_t, S_va and S_te
COMMAND = "python -m bench.coverage_evaluate"
TRAFFIC = {  # name -> (users, rows of the randomized log for each, drawn once)
    "32 rows for each of 1,000 users": (1000, lambda rng, n: np.full(n, 32)),
    "4 to 60 rows, few for most of 1,000 users": (1000, lambda rng, n: np.minimum(3 + rng.zipf(1.6, n), 60)),
    "10 rows on average for each of 400 users": (400, lambda rng, n: 2 + rng.geometric(1 / 8, n)),
    "8 rows for each of 300 users": (300, lambda rng, n: np.full(n, 8)),
    "1 to 30 rows, few for most of 600 users": (600, lambda rng, n: np.minimum(rng.zipf(1.7, n), 30)),
}


class World:
    """Tastes, labels, a biased log and two rankings; also a Truth for `evaluate`."""

    def __init__(self, n_users, rng):
        taste = rng.standard_normal((n_users, 4)) @ rng.standard_normal((4, N_ITEMS)) / 2
        logits = 1.2 * taste + rng.standard_normal(N_ITEMS) + rng.standard_normal((n_users, 1))
        logits -= np.quantile(logits - rng.logistic(size=logits.shape), 1 - LIKED)
        self.labels = (rng.logistic(size=logits.shape) < logits).astype(np.float32)
        popularity = rng.standard_normal(N_ITEMS)
        self.scores = [
            (logits + 1.5 * rng.standard_normal(logits.shape)).astype(np.float32),
            (logits.mean(axis=0) + popularity + 0.5 * rng.standard_normal(logits.shape)).astype(np.float32),
        ]
        chances = logits / 2 + popularity + rng.gumbel(size=logits.shape)
        self.biased = np.argsort(-chances, axis=1)[:, :BIASED]

    def label(self, users, items):
        return self.labels[users, items]

    def label_rows(self, users):
        return self.labels[users]

    def log(self, rows, rng):
        """A Partition whose randomized log has rows[u] uniform items of each user u."""
        from dubnb.data.partition import Partition

        n_users = len(rows)
        users, items = np.nonzero(rng.random((n_users, N_ITEMS)).argsort(axis=1).argsort(axis=1) < rows[:, None])
        part = rng.choice(3, p=SHARES, size=len(users))
        parts = {"S_c": (np.repeat(np.arange(n_users), BIASED), self.biased.ravel())}
        parts |= {name: (users[part == k], items[part == k]) for k, name in enumerate(("S_t", "S_va", "S_te"))}
        return Partition(
            {name: (*pairs, self.labels[pairs]) for name, pairs in parts.items()}, (n_users, N_ITEMS), truth=self
        )


class Rows:
    """A ranking by known scores."""

    def __init__(self, scores):
        self.scores = scores

    def score_pairs(self, users, items):
        return self.scores[users, items]

    def score_rows(self, users):
        return self.scores[users]


def one_log(world, rows, rng):
    """Of one randomized log: judged pairs, the first ranking's share, what was true, and what each interval held."""
    from dubnb import stats
    from dubnb.evaluation import judge

    data, found = world.log(rows, rng), []
    for scores in world.scores:
        judgement = judge(Rows(scores), data, ks=(K,))
        found.append((judgement.result, judgement.judged))
    (one, users), (other, users_2) = found
    compared = stats.compare_liked(users.weights, users.counts(K), users_2.counts(K))
    truths = [result[f"truth_liked@{K}"] for result in (one, other)]
    ratio = truths[0] / truths[1]
    return {
        "judged": one[f"judged@{K}"],
        "error": one[f"liked@{K}"] - truths[0],
        "truth": truths[0],
        "p": one[f"p@{K}"],
        "share": [r[f"liked@{K}_low"] <= t <= r[f"liked@{K}_high"] for r, t in zip((one, other), truths, strict=True)],
        "difference": compared.low <= truths[0] - truths[1] <= compared.high,
        "ratio": compared.ratio_low <= ratio <= compared.ratio_high,
        "ratio_error": compared.ratio / ratio - 1,
    }


def run(n_logs, seed=0):
    """The record: what each interval covers under each kind of traffic."""
    from dubnb._random import generator

    record = []
    for name, (n_users, traffic) in TRAFFIC.items():
        rng = generator(seed, "coverage-evaluate", name)
        world = World(n_users, rng)
        rows = traffic(rng, n_users)
        logs = [one_log(world, rows, rng) for _ in range(n_logs)]
        column = {key: np.array([log[key] for log in logs]) for key in logs[0]}
        errors, ratios = column["error"], column["ratio_error"][np.isfinite(column["ratio_error"])]
        about = f"{name}; {column['judged'].mean():.0f} judged"
        bias = f"mean error {errors.mean():+.4f} (standard error {errors.std() / np.sqrt(n_logs):.4f})"
        share = f"{about}; true share {column['truth'].mean():.3f}, {bias}, P@10 {column['p'].mean():.4f}"
        ratio = f"{about}; the ratio's mean relative error {ratios.mean():+.3f}"
        intervals = {
            "liked@10 of one system (evaluate)": ("share", share),
            "difference of two systems' liked@10 (compare_liked)": ("difference", about),
            "ratio of two systems' liked@10 (compare_liked)": ("ratio", ratio),
        }
        for interval, (key, notes) in intervals.items():
            coverage = round(float(column[key].mean()), 3)
            common = {"interval": interval, "command": COMMAND, "logs": n_logs, "nominal": 0.95}
            record.append(common | {"coverage": coverage, "notes": notes})
            print(f"{coverage:.3f}  {interval}: {notes}", flush=True)
    return record


def main():
    """Run and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=500, help="randomized logs for each kind of traffic")
    parser.add_argument("--out", help="where the record goes")
    args = parser.parse_args()
    record = run(args.logs)
    if args.out:
        Path(args.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
