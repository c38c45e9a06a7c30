"""`python -m bench.ncf_parts`: what each part of dub-x gives on ncf, starting from dub, on small logs.

    python -m bench.ncf_parts [--coat DIR] [--seeds 2] > bench/records/ncf-parts.md

AUC / nDCG on S_te (full-ranking), means over data seeds; every row is one fit with these parameters, nothing tuned.
"""

import argparse

import numpy as np

from bench import defaults

GRADES = {"targets": "graded", "target_slope": 1.0}
EXPOSURE = {"exposure_power": 0.75, "gamma": 0.3, "shrink": 1.0, "terms": "acd"}  # and a constant teacher, without e
PARTS = {
    "dub": ("dub", {}),
    "dub, graded": ("dub", GRADES),
    "dub, exposure weights": ("dub", EXPOSURE),
    "dub, graded, exposure weights": ("dub", GRADES | EXPOSURE),
    "dub-x": ("dub-x", {}),
    "dub-x, S_t's pairs once": ("dub-x", {"randomized_weight": 1.0}),
    "dub-x, lr 1e-3": ("dub-x", {"lr": 1e-3}),
}


def row(name, logs):
    """A line of the table: a part's means on every log."""
    method, own = PARTS[name]
    cells = []
    for data in logs:
        found = [defaults.judge(each, method, own | {"backbone": "ncf"}) for each in data]
        auc, ndcg = (np.mean([run[metric] for run in found]) for metric in defaults.METRICS)
        cells.append(f"{auc:.4f} / {ndcg:.4f}".replace("0.", "."))
    return "| " + " | ".join([name, *cells]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coat", help="where Coat's files are")
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    names = ["simulated", *(["coat"] if args.coat else [])]
    logs = [[defaults.load(name, seed, args.coat) for seed in range(args.seeds)] for name in names]
    print("| AUC / nDCG | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|")
    for name in PARTS:
        print(row(name, logs), flush=True)


if __name__ == "__main__":
    main()
