"""Two ideas for neighbourhoods, on logs whose truth is known: fewer coefficients in dub-i, and kNN beside dub-x.

    python -m bench.neighbours run --seeds 2 --out bench/records/neighbours.json   # run it again to go on
    python -m bench.neighbours show --out bench/records/neighbours.json

Nothing is chosen and S_te is not read. kNN scores an item by the cosine of its graded column of S_c (x of dub-i) with
those of its 50 nearest items, summed over the user's row.
"""

import argparse
import dataclasses
import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from bench import choice

LOGS = ("simulated", "indifferent", "yahoo-like", "world-niche:stars", "world-promoted:stars")
KEPT, NEIGHBOURS, SHARES = 200, 50, (0.25, 0.4)


def largest(matrix, count):
    """The `count` largest entries of each column by size; the others are 0."""
    count = min(count, len(matrix))
    bound = np.partition(np.abs(matrix), -count, axis=0)[-count]
    return np.where(np.abs(matrix) >= bound, matrix, 0)


def knn_scores(inputs, n_items):
    """Scores of all pairs from the rows x of dub-i."""
    x = np.zeros((len(inputs.indptr) - 1, n_items), np.float32)
    x[np.repeat(np.arange(len(x)), np.diff(inputs.indptr)), inputs.items] = inputs.values
    unit = x / np.maximum(np.linalg.norm(x, axis=0), 1e-9)
    cosines = unit.T @ unit
    np.fill_diagonal(cosines, 0)
    return x @ largest(cosines, NEIGHBOURS)


def one_log(log, seed):
    """{idea: what it adds to the true AUC and likes of dub-i or dub-x, both without a head}."""
    import dubnb

    data = dubnb.load_dataset(log, seed=seed)
    users, full = np.arange(data.n_users), dubnb.DubI().fit(data).weights_
    fewer = np.vstack([largest(full.coefficients[:-1], KEPT), full.coefficients[-1:]])
    S_x, S_i = (own.score_rows(users) for own in (dubnb.DubX(head=None).fit(data).weights_, full))
    S_fewer = dataclasses.replace(full, coefficients=fewer).score_rows(users)

    def judged(scores):
        return np.array(choice.true_values(data, SimpleNamespace(score_rows=lambda rows: scores[rows])))

    found = {f"dub-i with {KEPT} coefficients per item, to dub-i": judged(S_fewer) - judged(S_i)}
    plain = judged(S_x)
    for name, other in (("kNN", knn_scores(full.inputs, data.n_items)), ("dub-i", S_i)):
        for share in SHARES:
            mixed = (1 - share) * S_x / S_x.std() + share * other / other.std()
            found[f"{share:g} {name} in dub-x, to dub-x"] = judged(mixed) - plain
    return {idea: [float(value) for value in own] for idea, own in found.items()}


def table(kept):
    """A row per idea, a column per log: true AUC / true likes in the top 10, means over data seeds, in Markdown."""
    logs = {}
    for key, found in kept.items():
        logs.setdefault(key.rsplit(" ", 1)[0], []).append(found)
    lines = [
        f"| idea | {' | '.join(f'{log} ({len(own)})' for log, own in logs.items())} |",
        "|---" * (len(logs) + 1) + "|",
    ]
    for idea in next(iter(kept.values())):
        means = [np.mean([found[idea] for found in own], axis=0) for own in logs.values()]
        lines.append(f"| {idea} | {' | '.join(f'{auc:+.4f} / {likes:+.2f}' for auc, likes in means)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "show"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=lambda text: range(int(text)), default=range(2))
    parser.add_argument("--logs", type=lambda text: text.split(","), default=LOGS)
    args = parser.parse_args()
    if args.action == "run":
        warnings.simplefilter("ignore")
        choice.run(args, one_log)
    print(table(json.loads(args.out.read_text())))


if __name__ == "__main__":
    main()
