"""The ladder of methods on simulated logs, tuned with equal budgets and compared within data seeds.

    python -m bench.ladder --data yahoo-like --backbone mf --seeds 5 --n-jobs 2 --out ladder.json
    python -m bench.ladder --data coat --data-dir DIR --seeds 5 --out coat.json

Every method gets the same number of candidate settings. They are judged by the validation AUC on a log of their own
(data seed TUNING_SEED); the winner is then fitted on `--seeds` other logs. Truth: all pairs outside S_c and S_t against
y^t. Finished fits are kept in `--out`, so that the same command goes on where it stopped.
"""

import argparse
import functools
import itertools
import json
from pathlib import Path

import numpy as np

TUNING_SEED = 100
SMALL = {"batch_size": 64}  # `simulated` has 15,000 samples, Coat 6,594: 1,024 of them would be too large a batch


def _grid(**values):
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


CANDIDATES = {
    "mf": {
        "base": _grid(rank=[50, 100], lam=[3e-5, 1e-4, 3e-4]),
        "unif": _grid(rank=[50, 100], lam=[3e-3, 1e-2, 3e-2]),
        "combine": _grid(rank=[50, 100], lam=[3e-5, 1e-4, 3e-4]),
        "ips": _grid(rank=[50, 100], lam=[1e-5, 3e-5, 1e-4]),
        "cause": _grid(gamma=[1e-3, 1e-2, 1e-1], lam=[1e-4, 3e-4]),
        "bridge": _grid(rank=[50], gamma=[0.5, 1.5, 3.0], lam=[4e-5, 1e-4]),
        "dub": _grid(rank=[50], gamma=[0.5, 1.5, 3.0], lam=[4e-5, 1e-4]),
        "bridge (exact)": _grid(loss=["squared"], solver=["exact"], gamma=[0.025, 0.05, 0.1], lam=[15.0, 30.0]),
        "dub (exact)": _grid(loss=["squared"], solver=["exact"], gamma=[0.025, 0.05, 0.1], lam=[15.0, 30.0]),
        "autodebias": _grid(alpha=[0.05, 0.1, 0.2], lam=[40.0, 80.0]),
        "dub-x": _grid(exposure_power=[0.5, 0.75, 1.0], lam=[7.0, 10.0]),
    },
    "ncf": {
        "base": _grid(lam=[3e-5, 1e-4, 3e-4]),
        "unif": _grid(lam=[3e-4, 1e-3, 3e-3]),
        "combine": _grid(lam=[3e-5, 1e-4, 3e-4]),
        "ips": _grid(lam=[3e-5, 1e-4, 3e-4]),
        "cause": _grid(gamma=[1e-3, 1e-2, 1e-1]),
        "bridge": _grid(gamma=[0.03, 0.1, 0.3]),
        "dub": _grid(gamma=[0.03, 0.1, 0.3]),
        "autodebias": _grid(alpha=[0.003, 0.01, 0.03]),
    },
}

_DUB_ON_COAT = _grid(rank=[20], gamma=[0.1, 0.5, 1.5], lam=[1e-3, 1e-2])
_EXACT_ON_COAT = _grid(loss=["squared"], solver=["exact"], gamma=[0.05, 0.2], lam=[2.0, 5.0, 15.0])
CANDIDATES["coat"] = {
    "base": _grid(rank=[20, 50], lam=[1e-4, 1e-3, 1e-2]),
    "unif": _grid(rank=[20, 50], lam=[1e-3, 1e-2, 1e-1]),
    "combine": _grid(rank=[20, 50], lam=[1e-4, 1e-3, 1e-2]),
    "ips": _grid(rank=[20, 50], lam=[1e-4, 1e-3, 1e-2]),
    "cause": _grid(rank=[20], gamma=[1e-2, 1e-1], lam=[1e-4, 1e-3, 1e-2]),
    "bridge": _DUB_ON_COAT,
    "dub": _DUB_ON_COAT,
    "bridge (exact)": _EXACT_ON_COAT,
    "dub (exact)": _EXACT_ON_COAT,
    "autodebias": _grid(alpha=[0.05, 0.1], lam=[5.0, 15.0, 40.0]),
    "dub-x": _grid(exposure_power=[0.0, 0.75], lam=[2.0, 5.0, 10.0]),
}


@functools.lru_cache(2)
def _data(name, seed, data_dir):
    import dubnb

    return dubnb.load_dataset(name, seed=seed, data_dir=data_dir)


def fit_one(data_name, data_seed, backbone, method, params, data_dir=None):
    """One fit: the validation AUC, the metrics on S_te, and those against the truth."""
    import dubnb

    data = _data(data_name, data_seed, data_dir)
    small = {} if data_name == "yahoo-like" else SMALL
    model = dubnb.make(method.split(" ")[0], backbone=backbone, **small, **params).fit(data)
    result = model.evaluate(data)
    last = model.history_["stage"] == model.history_["stage"].iloc[-1]
    return {"va_auc": float(model.history_.loc[last, "va_auc"].max()), **result}


class Results:
    """Finished fits by their description, kept in a file after every one."""

    def __init__(self, path, data_dir):
        self.path, self.data_dir = Path(path), data_dir
        self.done = json.loads(self.path.read_text()) if self.path.exists() else {}

    def run(self, jobs, n_jobs):
        """The results of `jobs` (tuples for `fit_one`), running what is missing."""
        from joblib import Parallel, delayed
        from tqdm import tqdm

        missing = [job for job in jobs if json.dumps(job) not in self.done]
        parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered", batch_size=1)
        for key, result in tqdm(
            parallel(delayed(_keyed)(job, self.data_dir) for job in missing), total=len(missing), unit="fit"
        ):
            self.done[key] = result
            self.path.write_text(json.dumps(self.done))
        return [self.done[json.dumps(job)] for job in jobs]


def _keyed(job, data_dir):
    return json.dumps(job), fit_one(*job, data_dir)


def tune(results, data_name, backbone, candidates, n_jobs):
    """method -> the candidate with the best validation AUC on the tuning log."""
    jobs = [
        (data_name, TUNING_SEED, backbone, method, params) for method, points in candidates.items() for params in points
    ]
    found = results.run(jobs, n_jobs)
    best = {}
    for job, result in zip(jobs, found, strict=True):
        method, params = job[3:]
        if method not in best or result["va_auc"] > best[method][0]:
            best[method] = (result["va_auc"], params)
    return {method: params for method, (_, params) in best.items()}


def table(per_method, winners):
    """Markdown: mean and spread of each method, and its difference from base within data seeds."""
    known = "truth_auc" in per_method["base"][0]
    metrics = ("auc", "ndcg", "truth_auc", "truth_ndcg") if known else ("auc", "ndcg")
    judged = "truth_auc" if known else "auc"
    lines = ["| method | chosen on S_va | " + " | ".join(metrics) + f" | {judged} - base |"]
    lines.append("|---|" + "---|" * (len(metrics) + 2))
    base = np.array([result[judged] for result in per_method["base"]])
    for method, rows in per_method.items():
        cells = [_spread([row[metric] for row in rows]) for metric in metrics]
        difference = np.array([row[judged] for row in rows]) - base
        chosen = ", ".join(f"{k} {v:g}" for k, v in winners[method].items() if not isinstance(v, str))
        gain = f"{difference.mean():+.4f} ({difference.min():+.4f} to {difference.max():+.4f})"
        lines.append(f"| {method} | {chosen} | " + " | ".join(cells) + f" | {gain if method != 'base' else ''} |")
    return "\n".join(lines)


def _spread(values):
    return f"{np.mean(values):.4f} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="yahoo-like", choices=["simulated", "yahoo-like", "coat"])
    parser.add_argument("--data-dir", help="where Coat's files are; its seeds are seeds of the split")
    parser.add_argument("--backbone", default="mf", choices=["mf", "ncf"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--n-jobs", type=int, default=2)
    parser.add_argument("--out", default="ladder.json")
    args = parser.parse_args()
    candidates = CANDIDATES["coat" if args.data == "coat" else args.backbone]
    results = Results(args.out, args.data_dir)
    winners = tune(results, args.data, args.backbone, candidates, args.n_jobs)
    jobs = [
        (args.data, seed, args.backbone, method, params)
        for seed in range(args.seeds)
        for method, params in winners.items()
    ]
    found = results.run(jobs, args.n_jobs)
    per_method = {method: [r for job, r in zip(jobs, found, strict=True) if job[3] == method] for method in winners}
    budget = len(next(iter(candidates.values())))
    print(f"{args.data}, {args.backbone}, {args.seeds} data seeds, {budget} candidates each; mean ± std over seeds\n")
    print(table(per_method, winners))


if __name__ == "__main__":
    main()
