"""dub-x, its parts and its rivals on logs whose truth is known, and on Coat.

    python -m bench.lead run --seeds 5 [--coat DIR] [--logs ...] [--systems ...]   # run it again to go on
    PYTHONPATH=OLD python bench/lead.py run --systems "dub-x at 91b32ce"            # with an older checkout in OLD
    python -m bench.lead show

Data seeds are 1000 and above: they are for this table alone, and nothing is chosen by it. "ALS + LR" is what an
engineer writes in an hour: implicit's ALS on the positives of S_c, and a logistic regression on the randomized log
(S_t and S_va) with its score and the counts and rates of user and item, see `dubnb.head`. "without head" is the model
of the row above without its offsets, so it costs no fit. `fits` counts solves, those inside dub-x included.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from pathlib import Path

import numpy as np

FIRST_SEED = 1000
WORLDS = tuple(
    f"world-{world}:{labels}" for labels in ("clicks", "stars") for world in ("popular", "niche", "drift", "promoted")
)
LOGS = (*WORLDS, "indifferent", "simulated", "coat")
OLD = "dub-x at 91b32ce"
GRADED = ("combine (graded)", "dub (graded)", "autodebias (graded)")  # rivals that read what dub-x reads
SYSTEMS = ("dub-x", "dub-x without S_t's rows", "dub-xi", "ALS + LR", "popularity", *GRADED, OLD)
METRICS = ("auc", "ndcg", "user_auc", "truth_auc", "truth_liked@10")
RECORD = Path("bench/records/lead.json")
RANK, ITERATIONS, PRIOR = 50, 15, {"S_c": 10.0, "randomized": 20.0}


def load(log, seed, coat):
    """A log of the list above."""
    import dubnb

    return dubnb.load_dataset(log, seed=seed, data_dir=coat if log == "coat" else None)


def als_and_regression(data):
    """A scorer (users, items) -> logits: implicit's ALS and the features of the head in scikit-learn's regression."""
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    S_c = data.triplets("S_c")
    liked = S_c.labels > 0
    shape = (data.n_users, data.n_items)
    clicks = csr_matrix((np.ones(liked.sum(), np.float32), (S_c.users[liked], S_c.items[liked])), shape)
    als = AlternatingLeastSquares(factors=RANK, iterations=ITERATIONS, random_state=0, num_threads=1)
    als.fit(clicks, show_progress=False)
    users, items, labels = (
        np.concatenate([getattr(data.triplets(part), name) for part in ("S_t", "S_va")])
        for name in ("users", "items", "labels")
    )

    def rates(rows, y, count, prior):
        n, positives, mean = np.bincount(rows, minlength=count), np.bincount(rows, y, count), y.mean()
        return n, positives, np.log((positives + prior * mean) / (n + prior))

    n_u, _, rate_u = rates(S_c.users, S_c.labels, shape[0], PRIOR["S_c"])
    n_i, positives_i, rate_i = rates(S_c.items, S_c.labels, shape[1], PRIOR["S_c"])
    n_t, positives_t, rate_t = rates(items, labels, shape[1], PRIOR["randomized"])
    mean = labels.mean()
    others = np.log((positives_t[items] - labels + 20 * mean) / (n_t[items] - 1 + 20))  # without the pair's own label

    def features(u, i, of_item):
        z = np.einsum("jk,jk->j", als.user_factors[u], als.item_factors[i])
        columns = [z, np.log1p(n_u[u]), rate_u[u], np.log1p(n_i[i]), np.log1p(positives_i[i]), rate_i[i], of_item]
        return np.column_stack(columns)

    x = features(users, items, others)
    scaler = StandardScaler().fit(x)
    regression = LogisticRegression(max_iter=1000).fit(scaler.transform(x), labels)
    return lambda u, i: regression.decision_function(scaler.transform(features(u, i, rate_t[i])))


def numbers(found):
    return {name: float(found[name]) for name in METRICS if name in found}


def judge(data, system):
    """{row of the table: metrics} of one system; dub-x also has a row without its head."""
    import dubnb

    start = time.process_time()
    if system == "ALS + LR":
        score = als_and_regression(data)
        seconds = time.process_time() - start
        by_rows = lambda u, i: score(data.user_ids.rows(u, "user"), data.item_ids.rows(i, "item"))  # noqa: E731
        return {system: numbers(dubnb.evaluate(by_rows, data)) | {"fits": 2, "seconds": seconds}}
    name = "dub-x" if system == OLD else system.removesuffix(" without S_t's rows").removesuffix(" (graded)")
    params = {"terms": "cd"} if system.endswith("without S_t's rows") else {}
    params |= {"targets": "graded"} if system in GRADED else {}
    model = dubnb.make(name, **params).fit(data)
    seconds = time.process_time() - start
    history = model.history_["stage"] if name != "popularity" else []
    fits = sum(re.match(r"(fold \d+, )?(head|blend)", stage) is None for stage in set(history))
    rows = {system: numbers(model.evaluate(data)) | {"fits": fits, "seconds": seconds}}
    if name.startswith("dub-x") and system != OLD:
        rows[system]["settings"] = {
            key: model.params_[key] for key in ("gamma", "exposure_power", "cutoff", "blend") if key in model.params_
        }
        rows[system]["head"] = None if model.head_ is None else "items" if model.head_.item_offsets.any() else "users"
    if system == "dub-x":
        plain = model.weights_
        if model.head_ is not None:
            plain = plain.with_offsets(-model.head_.user_offsets, -model.head_.item_offsets)
        by_rows = lambda u, i: plain.score_pairs(data.user_ids.rows(u, "user"), data.item_ids.rows(i, "item"))  # noqa: E731
        rows["dub-x without head"] = numbers(dubnb.evaluate(by_rows, data)) | {"fits": fits, "seconds": seconds}
    return rows


def run(args):
    """Every fit that the record does not have yet."""
    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    for seed in range(args.first, args.first + args.seeds):
        for log in args.logs:
            if log == "coat" and args.coat is None:
                continue
            data = None
            for system in args.systems:
                if f"{log} {seed} {system}" in kept:
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    data = load(log, seed, args.coat) if data is None else data
                    found = judge(data, system)
                kept = json.loads(args.out.read_text()) if args.out.exists() else {}
                kept |= {f"{log} {seed} {row}": values for row, values in found.items()}
                args.out.write_text(json.dumps(kept, indent=0) + "\n")
                for row, values in found.items():
                    shown = {
                        key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()
                    }
                    print(log, seed, row, shown, flush=True)


def values_of(kept, log, row, metric):
    """{seed: metric}."""
    found = {}
    for key, values in kept.items():
        own, seed, name = key.split(" ", 2)
        if (own, name) == (log, row) and metric in values:
            found[int(seed)] = values[metric]
    return found


def paired(kept, log, row, other, metric):
    """(mean difference row - other, its standard error) over the seeds of both."""
    one, two = (values_of(kept, log, name, metric) for name in (row, other))
    differences = np.array([one[seed] - two[seed] for seed in one if seed in two])
    if len(differences) < 2:
        return None
    return differences.mean(), differences.std(ddof=1) / np.sqrt(len(differences))


def short(value, digits=4):
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


ROWS = ("dub-x", "dub-x without head", "dub-x without S_t's rows", "dub-xi", OLD, "ALS + LR", *GRADED, "popularity")


def table(kept):
    """True AUC and true likes in the top 10 (AUC and nDCG on Coat), a row per log, in Markdown.

    A row's seeds are those of dub-x. A cell that has only some of them ends with their number.
    """
    rows = [row for row in ROWS if any(key.endswith(f" {row}") for key in kept)]
    lines = ["| log (seeds) | " + " | ".join(rows) + " |", "|---" * (len(rows) + 1) + "|"]
    for log in LOGS:
        metrics = ("auc", "ndcg") if log == "coat" else ("truth_auc", "truth_liked@10")
        seeds = values_of(kept, log, "dub-x", "auc")
        if not seeds:
            continue
        cells = []
        for row in rows:
            own = [values_of(kept, log, row, metric) for metric in metrics]
            found = [[values[seed] for seed in seeds if seed in values] for values in own]
            if not found[0]:
                cells.append("")
                continue
            times, digits = (1, 4) if log == "coat" else (10, 2)
            fewer = f" ({len(found[0])})" if len(found[0]) < len(seeds) else ""
            cells.append(f"{short(np.mean(found[0]))} / {short(times * np.mean(found[1]), digits)}{fewer}")
        lines.append(f"| {log} ({len(seeds)}) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def promises(kept):
    """What issue 25 asks for, log by log: (log, what, difference, standard error, kept within two standard errors)."""
    asked = [(log, "truth_auc", "dub-x", "ALS + LR", 0.0) for log in WORLDS]
    asked += [(log, "truth_liked@10", "dub-x", OLD, 0.0) for log in WORLDS]
    asked += [(log, metric, "dub-xi", "dub-x", 0.002) for log in ("coat", "indifferent") for metric in ("auc", "ndcg")]
    for log, metric, row, other, slack in asked:
        found = paired(kept, log, row, other, metric)
        if found is not None:
            mean, error = found
            held = mean >= -slack if slack else mean >= -2 * error
            yield log, f"{metric}: {row} - {other}", mean, error, held


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "show"))
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--coat", help="where Coat's files are")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=FIRST_SEED)
    parser.add_argument("--logs", type=lambda text: text.split(","), default=LOGS)
    parser.add_argument("--systems", type=lambda text: text.split(","), default=SYSTEMS[:-1])
    args = parser.parse_args()
    if args.action == "run":
        run(args)
    kept = json.loads(args.out.read_text())
    print(table(kept))
    for log, what, mean, error, held in promises(kept):
        print(f"{'kept  ' if held else 'MISSED'} {log} {what} {mean:+.4f} ± {error:.4f}")


if __name__ == "__main__":
    main()
