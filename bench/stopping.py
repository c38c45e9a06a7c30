"""When to stop: rules of early stopping, replayed from whole runs of the sampled methods.

    python -m bench.stopping --seeds 0,1,2,3 --out stopping.json [--coat DIR]
    python -m bench.stopping --out stopping.json --show

Every stage runs LONG epochs. The AUC on S_va, on S_te and against the simulated truth is noted after each of them, and
the share of true likes in the top 10. Training does not depend on the rule, so that one run shows which epoch each of
RULES keeps: `--out` has its figures, and the number of epochs that the rule runs. bridge and dub are judged in their
refinement alone. A rule never sees S_te or the truth: they judge the rule. Data seeds from 1000 confirm what was found
on smaller ones. Finished fits are kept.
"""

import argparse
import itertools
import json
import warnings
from pathlib import Path

import numpy as np

LONG = 60  # epochs
METHODS = ("base", "combine", "ips", "cause", "unif", "bridge", "dub")
WORLDS = ("world-popular", "world-niche", "world-drift", "world-promoted")
LOGS = (*WORLDS, *(f"{world}:stars" for world in WORLDS), "simulated", "indifferent", "coat", "yahoo-like")
RULES = {  # name: (patience, epochs whose mean counts)
    "the best epoch": (5, 1),
    "the same, patience 10": (10, 1),
    "mean of 3": (5, 3),
    "**mean of 5**": (5, 5),
    "mean of 5, patience 10": (10, 5),
    "mean of 10": (5, 10),
}
CONFIRMING = 1000  # the first data seed that no rule was chosen on
TRUTH_PAIRS = 400_000  # with more pairs, the truth is compared on a sample of users


class Judge:
    """(AUC on S_va, AUC on S_te, true AUC, true likes in the top 10) of a scorer; NaN without a truth."""

    def __init__(self, data):
        from dubnb._random import generator

        self.parts, self.truth = (data.unseen("S_va"), data.triplets("S_te")), None
        if data.truth is not None:
            n = min(data.n_users, TRUTH_PAIRS // data.n_items)
            users = np.sort(generator(0, "truth-users").choice(data.n_users, n, replace=False)).astype(np.int32)
            known = np.zeros((n, data.n_items), bool)
            for part in (data.S_c, data.S_t):
                rows = part[users].tocoo()
                known[rows.row, rows.col] = True
            self.truth = users, np.asarray(data.truth.label_rows(users)), ~known

    def __call__(self, scorer):
        from dubnb import metrics

        found = [metrics.auc(scorer.score_pairs(part.users, part.items), part.labels) for part in self.parts]
        if self.truth is None:
            return [*found, np.nan, np.nan]
        users, labels, new = self.truth
        scores = np.asarray(scorer.score_rows(users))
        top = np.argpartition(np.where(new, -scores, np.inf), 10, axis=1)[:, :10]
        return [*found, metrics.auc(scores[new], labels[new]), float(np.take_along_axis(labels, top, 1).mean())]


def course(data, method):
    """(What `Judge` says after every epoch, the start of a refinement first; whether there is one.)"""
    import dubnb

    judge, seen = Judge(data), {}

    def watch(stage, epoch, scorer):
        seen[stage, epoch] = judge(scorer)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = dubnb.make(method, patience=LONG, epochs=LONG).fit(data, watch=watch)
    refines = method in ("bridge", "dub")
    rows = [seen["M_c", model.lengths_["M_c"]]] if refines else []
    rows += [value for (stage, _), value in seen.items() if stage == "refine" or not refines]
    return rows, refines


def kept(rows, refines, patience, window):
    """The row that the package's early stopping keeps, and the number of epochs that it runs."""
    from dubnb.train import EarlyStopping

    stopping, first, epoch = EarlyStopping(patience, window=window), int(refines), 0
    if refines:
        stopping.begin(rows[0][0], 0)
    for epoch, row in enumerate(rows[first:], 1):
        if stopping.stop_after(epoch, row[0], 1.0, lambda now=epoch: now):
            break
    return [*(None if np.isnan(value) else round(value, 5) for value in rows[stopping.weights + first - 1]), epoch]


def run(args):
    """Every fit that `--out` does not have yet."""
    import dubnb

    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    for seed, log in itertools.product(args.seeds, args.logs):
        if log == "coat" and args.coat is None:
            continue
        data = None
        for method in args.methods:
            key = f"{log} {seed} {method}"
            if key not in found:
                data = data or dubnb.load_dataset(log, seed=seed, data_dir=args.coat if log == "coat" else None)
                rows, refines = course(data, method)
                found[key] = {rule: kept(rows, refines, *settings) for rule, settings in RULES.items()}
                print(key, found[key], flush=True)
                lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(fit)}" for key, fit in found.items())
                args.out.write_text("{\n" + lines + "\n}\n")
    return found


def differences(found, rule, seeds, method=None):
    """Of each log and seed: true AUC (or on S_te), AUC on S_te and likes, minus the first rule's; epochs that ran."""
    logs = {}
    for key, fit in found.items():
        log, seed, name = key.split(" ")
        if method not in (None, name) or (int(seed) >= CONFIRMING) != (seeds == "confirming"):
            continue
        old, new = fit[next(iter(RULES))], fit[rule]
        te, true, likes = (np.nan if a is None else b - a for a, b in zip(old[1:4], new[1:4], strict=True))
        logs.setdefault((log, seed), []).append([te if np.isnan(true) else true, te, likes, new[4]])
    return np.array([np.mean(values, axis=0) for values in logs.values()])


def table(found):
    """Markdown: each rule's differences from the first rule, mean ± standard error over logs and seeds."""
    lines = ["| data seeds | methods | rule | true AUC | AUC on S_te | true likes | epochs run |", "|---" * 7 + "|"]
    chosen = [name for name in RULES if name.startswith("**")]
    for seeds, method in [*(("searched", method) for method in (None, *METHODS)), ("confirming", None)]:
        for rule in RULES if (seeds, method) == ("searched", None) else chosen:
            values = differences(found, rule, seeds, method)
            if len(values) > 1:
                cells = [_spread(values[:, k]) for k in range(3)]
                lines.append(
                    f"| {seeds} ({len(values)} logs) | {method or 'all'} | {rule} | "
                    + " | ".join([*cells, f"{values[:, 3].mean():.1f} |"])
                )
    return "\n".join(lines)


def _spread(values):
    values = values[~np.isnan(values)]
    if not values.any():
        return ""
    return f"{values.mean():+.4f} ± {values.std(ddof=1) / np.sqrt(len(values)):.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--coat", help="where Coat's files are")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0])
    parser.add_argument("--logs", type=lambda text: text.split(","), default=LOGS)
    parser.add_argument("--methods", type=lambda text: text.split(","), default=METHODS)
    parser.add_argument("--show", action="store_true", help="the table of what is there, without a fit")
    args = parser.parse_args()
    print(table(json.loads(args.out.read_text()) if args.show else run(args)))


if __name__ == "__main__":
    main()
