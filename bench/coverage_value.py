"""How often the intervals of `dubnb.value` hold the true value, on simulated logs whose truth is known.

Users, their tastes, the biased log and a ranking stay; the randomized log is drawn again and again, as in
bench/coverage_evaluate.py. The ranking's probabilities are wrong on purpose (half of what they should be), since doubly
robust estimates must hold whatever they are. The truth is the share of liked items in the same lists. Popularity's
lists are checked like the ranking's, and so is the gain of the ranking over them.

Epsilon-greedy traffic shows one of the second ranking's TOP items with probability 1 - epsilon, else any item, and logs
the propensity. Softmax traffic prefers what that ranking prefers. A pair that is shown several times becomes one row
that weighs as often. Where the catalogue grows, half of the items arrive during the log; users come at random times and
see what is there and new to them. Chances are then derived from the windows. In these designs the rows "random" and
"exploration" are checked too: the shares of liked items if the candidates were shown uniformly, and by the policy.

    python -m bench.coverage_value --draws 500 --out bench/records/coverage-value.json      # a quarter of an hour
    python -m bench.coverage_value --liked --out bench/records/coverage-liked.json    # liked@10 of `dubnb.evaluate`
"""

import argparse
import json
from pathlib import Path

import numpy as np

from bench.coverage_evaluate import BIASED, N_ITEMS, SHARES, TRAFFIC, K, Rows, World

COMMAND = "python -m bench.coverage_value"
TOP = 5
GROWTH = "growth"
EXPLORED = {  # name -> (users, impressions for each, epsilon, or "softmax T" or GROWTH)
    "epsilon-greedy .5, 32 impressions for each of 1,000 users": (1000, lambda rng, n: np.full(n, 32), 0.5),
    "epsilon-greedy .2, 40 impressions for each of 1,000 users": (1000, lambda rng, n: np.full(n, 40), 0.2),
    "epsilon-greedy .3, 5 to 80 impressions of 1,000 users": (
        1000,
        lambda rng, n: np.minimum(4 + rng.zipf(1.5, n), 80),
        0.3,
    ),
}
MORE = {  # not for liked@10
    "softmax, 40 impressions for each of 1,000 users": (1000, lambda rng, n: np.full(n, 40), "softmax 1"),
    "catalogue growth, 32 impressions for each of 1,000 users": (1000, lambda rng, n: np.full(n, 32), GROWTH),
}


class Probable(Rows):
    """A ranking with probabilities that are half of the true ones."""

    def probabilities(self, scores):
        return 0.5 / (1 + np.exp(-np.asarray(scores, dtype=np.float64)))


def explored(world, rows, policy, rng):
    """(a log with rows[u] impressions of each user u, by a policy of EXPLORED; the policy's chances)."""
    from dubnb.data.partition import Partition
    from dubnb.data.simulate import epsilon_greedy_chances, softmax_chances

    if policy == GROWTH:
        return grown(world, rows, rng)
    if isinstance(policy, str):
        chances = softmax_chances(world.scores[1], float(policy.split()[1]))
    else:
        chances = epsilon_greedy_chances(world.scores[1], policy, TOP)
    users = np.repeat(np.arange(len(rows)), rows)
    bounds = np.cumsum(chances, axis=1)
    drawn = rng.random(len(users)) * bounds[users, -1]
    items = (drawn[:, None] >= bounds[users]).sum(axis=1).clip(max=N_ITEMS - 1)
    pairs, counts = np.unique(users * N_ITEMS + items, return_counts=True)
    users, items = np.divmod(pairs, N_ITEMS)
    part = rng.choice(3, p=SHARES, size=len(users))
    S_c = np.repeat(np.arange(len(rows)), BIASED), world.biased.ravel()
    parts = {"S_c": (*S_c, world.labels[S_c])}
    for k, name in enumerate(("S_t", "S_va", "S_te")):
        u, i = users[part == k], items[part == k]
        parts[name] = u, i, world.labels[u, i], counts[part == k], None, chances[u, i]
    return Partition(parts, (len(rows), N_ITEMS), truth=world), chances


def grown(world, rows, rng):
    """(a log of uniform impressions while the catalogue grows, with its windows; the mean chances over its time)."""
    from dubnb.data.eligibility import Eligibility
    from dubnb.data.partition import Partition

    n_users, born = len(rows), np.where(np.arange(N_ITEMS) % 2, np.arange(N_ITEMS) / N_ITEMS * 0.8, 0.0)
    times = np.sort(rng.random((n_users, rows.max())), axis=1)
    new, shown = np.ones((n_users, N_ITEMS), dtype=bool), []
    for step in range(rows.max()):
        own = np.flatnonzero(rows > step)
        there = new[own] & (born <= times[own, step, None])
        items = np.where(there, rng.random(there.shape), -1).argmax(axis=1)
        new[own, items] = False
        shown.append((own, items, times[own, step]))
    users, items, when = (np.concatenate(column) for column in zip(*shown, strict=True))
    part = rng.choice(3, p=SHARES, size=len(users))
    S_c = np.repeat(np.arange(n_users), BIASED), world.biased.ravel()
    parts = {"S_c": (*S_c, world.labels[S_c])}
    for k, name in enumerate(("S_t", "S_va", "S_te")):
        u, i, t = users[part == k], items[part == k], when[part == k]
        parts[name] = u, i, world.labels[u, i], np.ones(len(u)), None, None, t
    shape, grid = (n_users, N_ITEMS), (np.arange(1000) + 0.5) / 1000
    rules = Eligibility.of(shape, (np.arange(N_ITEMS), born, np.full(N_ITEMS, np.inf)))
    opened = born[:, None] <= grid
    chances = np.broadcast_to((opened / opened.sum(axis=0)).mean(axis=1), shape)
    return Partition(parts, shape, truth=world, eligibility=rules), chances


def cover(traffic, users, rows_of, draws, seed, policy=None):
    """A row of the record for each estimator, and for the gain."""
    from dubnb.data.chances import judged_users
    from dubnb.evaluation import popularity
    from dubnb.theory.value import value

    rng = np.random.default_rng(seed)
    world = World(users, rng)
    rows, model = rows_of(rng, users), Probable(world.scores[0])
    found = {}
    for _ in range(draws):
        data, chances = (world.log(rows, rng), None) if policy is None else explored(world, rows, policy, rng)
        judged = judged_users(data, "S_te")
        popular = np.broadcast_to(popularity(data).astype(np.float32), (len(judged), N_ITEMS))
        truths = {"model": true_value(world, model.score_rows(judged), data)}
        truths["popularity"] = true_value(world, popular, data)
        if chances is not None:
            truths |= true_rates(world, data, chances)
        answer = value(model, data, K)
        intervals = [(each.policy, each.estimator, each.value, each.low, each.high) for each in answer.estimates]
        if answer.gain is not None:
            truths["gain"] = truths["model"] - truths["popularity"]
            intervals.append(("gain", "dr", answer.gain.rate, answer.gain.low, answer.gain.high))
        for name, estimator, estimate, low, high in intervals:
            if name in truths and estimate == estimate:
                truth = truths[name]
                found.setdefault((name, estimator), []).append((low <= truth <= high, estimate, truth))
    return [row_of(traffic, *names, len(values), *np.mean(values, axis=0)) for names, values in found.items()]


def row_of(traffic, policy, estimator, logs, coverage, mean, truth):
    notes = f"{traffic}; true value {truth:.4f}, mean estimate {mean:.4f}"
    of_lists = {"model": "a model's top 10", "popularity": "popularity's top 10"}
    what = f"value of {of_lists[policy]}, {estimator}" if policy in of_lists else f"value of {policy} items"
    return {
        "interval": f"{'gain in value of a model over popularity' if policy == 'gain' else what} (value)",
        "command": COMMAND,
        "logs": logs,
        "nominal": 0.95,
        "coverage": round(float(coverage), 4),
        "notes": notes,
    }


def cover_liked(traffic, users, rows_of, epsilon, draws, seed):
    """A row of the record for liked@10 of `dubnb.evaluate`."""
    from dubnb.evaluation import judge

    rng = np.random.default_rng(seed)
    world = World(users, rng)
    rows, found = rows_of(rng, users), []
    for _ in range(draws):
        result = judge(Rows(world.scores[0]), explored(world, rows, epsilon, rng)[0], ks=(K,)).result
        truth = result[f"truth_liked@{K}"]
        held = result[f"liked@{K}_low"] <= truth <= result[f"liked@{K}_high"]
        found.append((held, result[f"liked@{K}"] - truth, truth, result[f"judged@{K}"]))
    coverage, error, truth, judged = np.mean(found, axis=0)
    spread = np.std([each[1] for each in found], ddof=1) / np.sqrt(draws)
    about = f"{judged:.0f} judged (effective); true share {truth:.3f}"
    return {
        "interval": f"liked@{K} of one system, with propensities (evaluate)",
        "command": f"{COMMAND} --liked",
        "logs": draws,
        "nominal": 0.95,
        "coverage": round(float(coverage), 4),
        "notes": f"{traffic}; {about}, mean error {error:+.4f} (standard error {spread:.4f})",
    }


def true_value(world, scores, data):
    """The mean over users of S_te (of the randomized log, with propensities) of the share of liked items in lists."""
    from dubnb.data.chances import judged_users

    users = judged_users(data, "S_te")
    scores = np.where(data.not_candidates("S_te").mask(users, N_ITEMS), -np.inf, scores)
    top = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    return float(world.labels[users[:, None], top].mean())


def true_rates(world, data, chances):
    """The shares of liked items if the candidates of the judged users were shown uniformly, and by the policy."""
    from dubnb.data.chances import judged_users

    users = judged_users(data, "S_te")
    labels, candidates = world.labels[users], ~data.not_candidates("S_te").mask(users, N_ITEMS)
    uniform = candidates / candidates.sum(axis=1, keepdims=True)
    shown = {"random": uniform, "exploration": candidates * chances[users]}
    return {name: float(np.average(labels, weights=weights)) for name, weights in shown.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--liked", action="store_true", help="cover liked@10 of `dubnb.evaluate` with propensities")
    parser.add_argument("--explored", action="store_true", help="traffic that is not uniform only")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    record = []
    for name, (users, rows_of, epsilon) in EXPLORED.items() if args.liked else ():
        record.append(cover_liked(name, users, rows_of, epsilon, args.draws, args.seed))
        print(f"{record[-1]['coverage']:.3f}  {record[-1]['interval']}: {record[-1]['notes']}", flush=True)
    designs = EXPLORED | MORE if args.explored else TRAFFIC | EXPLORED | MORE
    for name, (users, rows_of, *policy) in designs.items() if not args.liked else ():
        rows = cover(name, users, rows_of, args.draws, args.seed, *policy)
        print(*(f"{row['coverage']:.3f}  {row['interval']}: {row['notes']}" for row in rows), sep="\n", flush=True)
        record += rows
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
