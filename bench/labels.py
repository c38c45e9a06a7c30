"""Rules for labels: how watch seconds become targets, and how repeated impressions become one pair.

    python -m bench.labels --seeds 3 --out bench/records/labels.json

dub-x with its defaults on the four invented companies (dubnb/data/worlds.py), whose truth is known. Judged by the truth
over all pairs that no log has: AUC against y^t, and expected likes in the top 10 of every user.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

LIST = 10
WEIGHTS = {"1": lambda n: n**0, "1 + log2 n": lambda n: 1 + np.log2(n), "n": lambda n: n}


def watch(logs):
    """{rule: (Partition, parameters of dub-x)} of watch seconds; all but the last of first impressions, so that only
    the rule for the grades of negatives differs."""
    from dubnb import Partition

    frames = [log.sort_values("timestamp").drop_duplicates(["user", "item"]) for log in (logs.biased, logs.random)]
    threshold, seconds = logs.options["threshold"], [frame["seconds"].to_numpy() for frame in frames]
    least, greatest = (float(pick([pick(values) for values in seconds])) for pick in (min, max))
    negatives = np.sort(seconds[0][seconds[0] <= threshold])

    def ranks(top):
        middle = lambda x: sum(np.searchsorted(negatives, x, side) for side in ("left", "right")) / 2  # noqa: E731
        return lambda x: np.where(x > threshold, 1.0, top * middle(x) / len(negatives))

    rules = {
        "range": lambda x: (x - least) / (greatest - least),
        "log": lambda x: np.log1p(x - least) / np.log1p(greatest - least),
        **{f"{top:g} x rank": ranks(top) for top in (0.5, 0.75)},
    }
    made = {}
    for name, rule in rules.items():
        graded = [frame.assign(g=rule(x), y=x > threshold) for frame, x in zip(frames, seconds, strict=True)]
        made[name] = Partition.from_frames(*graded, label="y", grade="g", timestamp="timestamp"), {}
    made = {"0/1": (made["range"][0], {"targets": "binary"}), **made}
    return made | {"the default": (logs.partition("default"), {})}


def clicks(logs):
    """{rule: (Partition, parameters of dub-x)} of clicks with repeated pairs."""
    from dubnb import Partition

    made = {}
    for rule in ("max", "last", "first"):
        data = Partition.from_frames(logs.biased, logs.random, **logs.options, duplicates=rule)
        made[f"{rule}, weights added"] = data, {"negative": 0.2}
    data = logs.partition("default")
    S_c = data.triplets("S_c")
    n = S_c.weights / (2 - S_c.weights)
    for name, weight in WEIGHTS.items():
        changed = data.replace(S_c=S_c._replace(weights=weight(n).astype(np.float32)))
        for negative in (0.2, "unobserved"):
            made[f"mean, weight {name}, negative {negative}"] = changed, {"negative": negative}
    for negative in (0.2, "unobserved"):
        made[f"mean, weight 2 n / (n + 1), negative {negative}"] = data, {"negative": negative}
    return made | {"the default": (data, {})}


KINDS = {"watch": watch, "clicks": clicks}


def judged(model, data):
    """(AUC against y^t, expected likes in the top 10) over pairs that no log has."""
    users = np.arange(data.n_users)
    scores, free = model.weights_.score_rows(users), np.ones((data.n_users, data.n_items), bool)
    for part in ("S_c", "S_t", "S_va", "S_te"):
        log = data.triplets(part)
        free[log.users, log.items] = False
    y = data.truth.label_rows(users)[free] > 0
    ranks = np.empty(len(y))
    ranks[np.argsort(scores[free], kind="stable")] = np.arange(1, len(y) + 1)
    auc = (ranks[y].sum() - y.sum() * (y.sum() + 1) / 2) / (y.sum() * (~y).sum())
    top = np.argpartition(-np.where(free, scores, -np.inf), LIST, axis=1)[:, :LIST]
    likes = np.take_along_axis(data.truth.probability_rows(users), top, axis=1).sum(axis=1).mean()
    return round(float(auc), 5), round(float(likes), 4)


def run(seeds, kinds=tuple(KINDS), **sizes):
    """[{world, labels, seed, rule, auc, likes, negative}]."""
    import dubnb
    from dubnb.data import worlds

    found = []
    for world in worlds.WORLDS:
        for kind in kinds:
            for seed in range(seeds):
                logs = worlds.make_world(world, kind, seed, **sizes)
                for rule, (data, params) in KINDS[kind](logs).items():
                    data.truth = logs.truth.of(data.user_ids.values - 1, data.item_ids.values - 1)
                    model = dubnb.DubX(**params).fit(data)
                    auc, likes = judged(model, data)
                    row = {"world": world, "labels": kind, "seed": seed, "rule": rule, "auc": auc, "likes": likes}
                    found.append(row | {name: model.params_[name] for name in ("negative", "grade_spread")})
                    print(found[-1], flush=True)
    return found


def table(rows):
    """Mean true AUC / likes in the top 10, one table for both kinds of labels."""
    names = list(dict.fromkeys(row["world"] for row in rows))
    lines = [f"| true AUC / likes in the top 10 | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for kind, rule in dict.fromkeys((row["labels"], row["rule"]) for row in rows):
        cells = []
        for world in names:
            own = [r for r in rows if (r["labels"], r["rule"], r["world"]) == (kind, rule, world)]
            auc, likes = (float(np.mean([r[name] for r in own])) for name in ("auc", "likes"))
            cells.append(f"{auc:.4f} / {likes:.2f}".replace("0.", ".", 1))
        lines.append(f"| {kind}: {rule} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.labels", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = run(args.seeds)
    args.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
