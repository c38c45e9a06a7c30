"""Defaults as a new user gets them: every system with no parameter set, on logs of different kinds, and tuned.

    python -m bench.defaults --out defaults.json [--coat DIR] [--seeds 3] [--logs simulated,coat] [--tuned]
        [--systems combine,dub] [--backbone ncf]
    python -m bench.defaults --out defaults.json --show

The figures are on S_te (full-ranking), by data seed. --tuned adds a search of 15 points around each default (five of
the setting's first `near` parameter, three of its second), chosen on S_va of the same log. Finished fits are kept in
`--out`, so that the same command goes on where it stopped.
"""

import argparse
import dataclasses
import itertools
import json
import re
import time
import warnings
from pathlib import Path

import numpy as np

SYSTEMS = {
    "popularity": ("popularity", {}),
    "base": ("base", {}),
    "unif": ("unif", {}),
    "combine": ("combine", {}),
    "ips": ("ips", {}),
    "cause": ("cause", {}),
    "bridge": ("bridge", {}),
    "autodebias": ("autodebias", {}),
    "dub": ("dub", {}),
    "bridge (exact)": ("bridge", {"solver": "exact"}),
    "dub (exact)": ("dub", {"solver": "exact"}),
    "ease": ("ease", {}),
    "ease with S_t": ("ease", {"terms": "ac"}),
    "ials": ("ials", {}),
    "ials with S_t": ("ials", {"terms": "acd"}),
    "relmf": ("relmf", {}),
    **{name: (name, {}) for name in ("bpr", "pda", "dr", "mrdr", "stable-dr", "dib", "refine", "weigh", "transfer")},
    "dub-x (binary)": ("dub-x", {"targets": "binary"}),
    "dub-xi (binary)": ("dub-xi", {"targets": "binary"}),
    "base (graded)": ("base", {"targets": "graded"}),
    "combine (graded)": ("combine", {"targets": "graded"}),
    "autodebias (graded)": ("autodebias", {"targets": "graded"}),
    "dub (graded)": ("dub", {"targets": "graded"}),
    "dub (exact graded)": ("dub", {"solver": "exact", "targets": "graded"}),
    "dub-x without S_t": ("dub-x", {"terms": "cd", "gamma": 0.03, "head": None}),  # S_va stops it, nothing else
    "dub-x without S_t's rows": ("dub-x", {"terms": "cd"}),
    "dub-x": ("dub-x", {}),
    "dub-i": ("dub-i", {}),
    "dub-xi": ("dub-xi", {}),
}
HEADLINE = {  # rows of README's table: what they are, and whether they read labels or grades
    "popularity": ("popularity", "labels"),
    "base": ("base: biased log alone", "labels"),
    "unif": ("unif: random log alone", "labels"),
    "combine": ("combine: both logs", "labels"),
    "ease": ("ease: positives of the biased log, item by item", "labels"),
    "ials": ("ials: the same positives, by factors", "labels"),
    "bpr": ("bpr: the same positives, in pairs", "labels"),
    "bridge": ("bridge", "labels"),
    "autodebias": ("autodebias", "labels"),
    "dub": ("dub: the paper's method", "labels"),
    "dub (exact)": ("dub, exact", "labels"),
    "dub-x (binary)": ("**dub-x**: ours", "labels"),
    "base (graded)": ("base", "grades"),
    "combine (graded)": ("combine", "grades"),
    "autodebias (graded)": ("autodebias", "grades"),
    "dub (graded)": ("dub", "grades"),
    "dub (exact graded)": ("dub, exact", "grades"),
    "dub-x without S_t's rows": ("dub-x without S_t's rows in training", "grades"),
    "dub-x": ("**dub-x**", "grades"),
}
LOGS = ("simulated", "denser", "sparser", "indifferent", "coat", "yahoo-like")
DENSER, SPARSER = 40_000, 8_000  # pairs of S_c where `simulated` has 15,000
FACTORS = ((-2, -1, 0, 1, 2), (-1, 0, 1))
METRICS = ("auc", "ndcg")


def load(log, seed, coat):
    """A log by its name here."""
    import dubnb
    from dubnb.data import simulate

    if log in ("denser", "sparser"):
        n = {"denser": DENSER, "sparser": SPARSER}[log]
        return simulate.simulate(dataclasses.replace(simulate.CONFIGS["simulated"], name=log, n_biased=n), seed=seed)
    return dubnb.load_dataset(log, seed=seed, data_dir=coat if log == "coat" else None)


def judge(data, method, params):
    """A fit's metrics on S_te, its metric on S_va, and its CPU seconds."""
    import dubnb

    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = dubnb.make(method, **params).fit(data)
        seconds = time.process_time() - start
        found = model.evaluate(data, truth=False)
        va = model.evaluate(data, part="S_va", truth=False)["auc"]
    kept = {name: float(found[name]) for name in (*METRICS, "user_auc", "liked@10", "judged@10")}
    return {**kept, "va_auc": float(va), "fits": trainings(model), "seconds": seconds}


def trainings(model):
    """How many models were trained inside one fit: M_t, M_c and the refinement, or every solve of dub-x's choice."""
    stages = {row["stage"] for row in getattr(model, "history_rows_", [])}
    return sum(re.match(r"(fold \d+, )?(head|blend)", stage) is None for stage in stages)


def neighbours(data, method, params):
    """The 15 points of a small search around the default."""
    import dubnb

    model = dubnb.make(method, **params)
    near, resolved = model.settings().near, model.resolve(data)
    names = list(near)[:2]
    axes = []
    for name, factors in zip(names, FACTORS, strict=True):
        values = [resolved.centre(name) * near[name] ** k for k in factors]
        axes.append([max(1, round(value)) for value in values] if name == "rank" else values)
    return [params | dict(zip(names, point, strict=True)) for point in itertools.product(*axes)]


def chosen(points):
    """The point of a search with the best AUC on S_va."""
    return max(points, key=lambda point: point["va_auc"])


def run(args):
    """Every fit that `--out` does not have yet."""
    path = Path(args.out)
    kept = json.loads(path.read_text()) if path.exists() else {}
    for log, seed in itertools.product(args.logs, range(args.seeds)):
        if log == "coat" and args.coat is None:
            continue
        data = None
        for name in args.systems:
            method, own = SYSTEMS[name]
            params = own if args.backbone == "mf" else own | {"backbone": args.backbone}
            if args.backbone != "mf" and "solver" in own:
                continue
            key = f"{args.backbone} {log} {seed} {name}"
            if key not in kept:
                data = load(log, seed, args.coat) if data is None else data
                kept[key] = judge(data, method, params)
                print(key, kept[key], flush=True)
                path.write_text(json.dumps(kept, indent=0) + "\n")
            if args.tuned and "tuned" not in kept[key]:
                data = load(log, seed, args.coat) if data is None else data
                points = [judge(data, method, point) for point in neighbours(data, method, params)]
                kept[key]["tuned"] = chosen(points)
                print(key, "tuned", kept[key]["tuned"], flush=True)
                path.write_text(json.dumps(kept, indent=0) + "\n")
    return kept


def table(kept, backbone="mf"):
    """AUC and nDCG by system and log, and what a search adds to the AUC, in Markdown.

    The last two columns are the AUC of a user's own pairs, averaged over logs, and the trainings inside one fit.
    """
    logs = [log for log in LOGS if any(key.startswith(f"{backbone} {log} ") for key in kept)]
    rows = [["AUC / nDCG", *logs, "per-user AUC", "trainings"]]
    for name in SYSTEMS:
        of_logs = [[run for key, run in kept.items() if _is(key, backbone, log, name)] for log in logs]
        by_user = [np.mean([run["user_auc"] for run in runs]) for runs in of_logs if runs and "user_auc" in runs[0]]
        fits = sorted({run["fits"] for runs in of_logs for run in runs if "fits" in run})
        per_user = _short(np.mean(by_user)) if len(by_user) == len(logs) else ""
        if any(of_logs):
            ends = f"{fits[0]}..{fits[-1]}" if len(fits) > 1 else "".join(map(str, fits))
            rows.append([name, *map(_cell, of_logs), per_user, ends])
    complete = (any,) * (1 + len(logs)) + (all, all)  # the last two columns are shown if no row lacks them
    shown = [k for k, enough in enumerate(complete) if enough(row[k] for row in rows[1:])]
    lines = ["| " + " | ".join(row[k] for k in shown) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(shown) + "|", *lines[1:]])


def headline(kept, log="simulated"):
    """README's table: one log, what each system reads, and the trainings inside one fit, in Markdown."""
    lines = [
        "| method | reads | AUC | nDCG@50 | per-user AUC | liked@10 | trainings |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, (words, reads) in HEADLINE.items():
        runs = [run for key, run in kept.items() if _is(key, "mf", log, name)]
        numbers = [_short(np.mean([run[metric] for run in runs])) for metric in (*METRICS, "user_auc", "liked@10")]
        fits = sorted({run["fits"] for run in runs if "fits" in run})
        lines.append("| " + " | ".join([words, reads, *numbers, "..".join(map(str, fits[:1] + fits[1:][-1:]))]) + " |")
    return "\n".join(lines)


def _is(key, backbone, log, name):
    first, second, _, *rest = key.split(" ")
    return (first, second, " ".join(rest)) == (backbone, log, name)


def _cell(runs):
    if not runs:
        return ""
    auc, ndcg = (np.mean([run[name] for run in runs]) for name in METRICS)
    text = f"{_short(auc)} / {_short(ndcg)}"
    tuned = [run["tuned"]["auc"] - run["auc"] for run in runs if "tuned" in run]
    return f"{text} ({np.mean(tuned):+.4f})" if tuned else text


def _short(value):
    return f"{value:.4f}".removeprefix("0")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--coat", help="where Coat's files are")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--logs", type=lambda text: text.split(","), default=LOGS)
    parser.add_argument("--systems", type=lambda text: text.split(","), default=tuple(SYSTEMS))
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--backbone", default="mf")
    parser.add_argument("--show", action="store_true", help="the table of what is there, without a fit")
    args = parser.parse_args()
    print(table(json.loads(Path(args.out).read_text()) if args.show else run(args), args.backbone))


if __name__ == "__main__":
    main()
