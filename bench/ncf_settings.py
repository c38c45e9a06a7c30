"""What moves base, ips and cause with ncf: one setting changed at a time, early stopping replayed from whole runs.

    python -m bench.ncf_settings --data yahoo-like --seeds 2 --out bench/records/ncf-settings.json
    python -m bench.ncf_settings --out bench/records/ncf-settings.json --show

Every fit waits LONG epochs for a better AUC on S_va and notes the AUC on S_va and S_te after each epoch. Training does
not depend on patience, so that one run shows which epoch any shorter one keeps. Differences are from base with its
defaults on the same log. Finished fits are kept in `--out`, so that the command goes on where it stopped.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np

SHORT, LONG = 5, 10  # epochs: the default patience, and the one that is run
STRENGTHS = {"lam / 10": 0.1}  # times the default
SHARED = {"hidden (100, 50)": {"hidden": (100, 50)}, "hidden ()": {"hidden": ()}, "model seed 1": {"seed": 1}}
OWN = {
    "base": {},
    "ips": {
        "clipped half way": {"clip": lambda data: _half_way(data)},
        "not normalised": {"normalise": False},
        "propensity by popularity": {"propensity": lambda data: _popularity(data)},
    },
    "cause": {
        "gamma .1": {"gamma": 0.1},
        "gamma 1": {"gamma": 1.0},
        "side both": {"side": "both"},
        "Frobenius, gamma 1": {"norm": "frobenius", "gamma": 1.0},
        "teacher_lam / 10": {"teacher_lam": lambda data: _default("cause", "teacher_lam", data) / 10},
    },
}


def _popularity(data):
    """In proportion to the root of the item's pairs in S_c."""
    items = data.triplets("S_c").items
    counts = np.bincount(items, minlength=data.n_items)[items]
    return np.sqrt(counts / counts.max())


def _half_way(data):
    """The geometric mean of naive Bayes' two weights, 1 / propensity of a positive and of a negative."""
    from dubnb.methods.ips import naive_bayes_propensities

    propensities = naive_bayes_propensities(data)
    return 1 / np.sqrt(propensities.min() * propensities.max())


def _default(method, parameter, data):
    import dubnb

    return getattr(dubnb.make(method, backbone="ncf").resolve(data), parameter)


def settings(method, data):
    """{name: parameters}, the defaults first."""
    lam = _default(method, "lam", data)
    strengths = {name: {"lam": lam * factor} for name, factor in STRENGTHS.items()}
    own = {
        name: {key: value(data) if callable(value) else value for key, value in params.items()}
        for name, params in OWN[method].items()
    }
    return {"defaults": {}, **own, **SHARED, **strengths}


def course(data, method, params):
    """The AUC on S_va and on S_te after every epoch, and CPU seconds."""
    import dubnb
    from dubnb import metrics

    S_te, te = data.triplets("S_te"), []

    def watch(stage, epoch, scorer):
        te.append(metrics.auc(scorer.score_pairs(S_te.users, S_te.items), S_te.labels))

    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = dubnb.make(method, backbone="ncf", patience=LONG, **params).fit(data, watch=watch)
    va = model.history_["va_auc"].tolist()
    digits = [[round(float(value), 6) for value in values] for values in (va, te)]
    return {"va": digits[0], "te": digits[1], "seconds": round(time.process_time() - start, 2)}


def run(args):
    """Every fit that `--out` does not have yet: a setting on all logs, then the next; all defaults first."""
    import dubnb

    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    logs = [dubnb.load_dataset(args.data, seed=seed, data_dir=args.data_dir) for seed in range(args.seeds)]
    order = [(place, method, name) for method in OWN for place, name in enumerate(settings(method, logs[0]))]
    for _, method, name in sorted(order, key=lambda entry: entry[0]):
        for seed, data in enumerate(logs):
            key = f"{args.data} {seed} {method}: {name}"
            if key not in kept:
                kept[key] = course(data, method, settings(method, data)[name])
                rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(fit)}" for key, fit in kept.items())
                args.out.write_text("{\n" + rows + "\n}\n")
                print(key, outcome(kept[key], SHORT), outcome(kept[key], LONG), kept[key]["seconds"], flush=True)
    return kept


def outcome(fit, patience):
    """(The epoch that early stopping keeps, its AUC on S_va and on S_te, the best AUC on S_te of all that it saw)."""
    best = epoch = 0
    for epoch, value in enumerate(fit["va"]):
        if value > fit["va"][best]:
            best = epoch
        elif epoch - best >= patience:
            break
    return best + 1, fit["va"][best], fit["te"][best], max(fit["te"][: epoch + 1])


def table(kept):
    """Markdown: a row for each setting, means over logs, and differences from base within logs."""
    columns = "| - base | epochs kept "
    lines = [f"| log | system | setting | S_va | S_te {columns}| patience {LONG}: S_te {columns}| best epoch on S_te |"]
    lines.append("|---|---|---|" + "---|" * 8)
    runs, order = by_setting(kept), list(OWN)
    for (data, method, setting), fits in sorted(runs.items(), key=lambda row: (row[0][0], order.index(row[0][1]))):
        base = {seed: runs[data, "base", "defaults"][seed] for seed in fits}
        lines.append("| " + " | ".join([data, method, setting, *_cells(fits.values(), base.values())]) + " |")
    return "\n".join(lines)


def by_setting(kept):
    """{(data, system, setting): {seed: fit}}"""
    runs = {}
    for key, fit in kept.items():
        log, setting = key.split(": ")
        data, seed, method = log.split(" ")
        runs.setdefault((data, method, setting), {})[seed] = fit
    return runs


def _cells(fits, base):
    cells, best = [], np.nan
    for patience in (SHORT, LONG):
        epochs, va, te, best = np.transpose([outcome(fit, patience) for fit in fits])
        gains = te - [outcome(fit, patience)[2] for fit in base]
        cells += [f"{va.mean():.4f}"] * (patience == SHORT) + [f"{te.mean():.4f}", spread(gains)]
        cells.append(" ".join(f"{epoch:.0f}" for epoch in epochs))
    return [*cells, f"{np.mean(best):.4f}"]


def spread(differences):
    """Mean ± standard deviation."""
    if not differences.any():
        return ""
    return f"{differences.mean():+.4f} ± {differences.std(ddof=1) if len(differences) > 1 else 0.0:.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="yahoo-like")
    parser.add_argument("--data-dir", help="where a real data set's files are")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--show", action="store_true", help="show what is kept, fit nothing")
    args = parser.parse_args()
    print(table(json.loads(args.out.read_text()) if args.show else run(args)))


if __name__ == "__main__":
    main()
