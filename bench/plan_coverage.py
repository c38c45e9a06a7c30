"""Does a planned curve hold what ten times the randomized log really brings?

    python -m bench.plan_coverage [--data yahoo-like] [--worlds 20] [--budget quick] [--methods ...] [--n-jobs 2]

Every world is simulated once with ten times the usual randomized log (`simulated`: 100 items for every user). A tenth
of that log, drawn at random, is what the plan gets to see; it is asked for the AUC at ten times its S_t. The truth is
the mean over seeds of fits with so many pairs, judged on the test pairs that the plan never saw. Prints, per method, in
how many worlds the 90 % band holds the truth.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import warnings

import numpy as np

import dubnb
from dubnb import stats
from dubnb.data.partition import PARTS, Partition
from dubnb.data.simulate import CONFIGS, simulate
from dubnb.methods import METHODS
from dubnb.sweeps.fits import Resources, planned, run_fits
from dubnb.theory import plan as plans

TIMES = 10
LARGE = {"simulated": 100}  # randomized pairs per user of the large log; else ten times the usual


def two_logs(name: str, seed: int) -> tuple[Partition, Partition]:
    """(a tenth of the randomized log, all of it): the same S_c, S_va and test pairs' world."""
    config = CONFIGS[name]
    each = LARGE.get(name, TIMES * config.random_each)
    large = simulate(dataclasses.replace(config, random_each=each), seed, quiet=True)
    rng = np.random.default_rng(seed)
    chosen = {part: large.triplets(part) for part in PARTS}
    for part in PARTS[1:]:
        n = len(chosen[part].users)
        chosen[part] = chosen[part].take(np.sort(rng.permutation(n)[: n // TIMES]))
    shape = (large.n_users, large.n_items)
    small = Partition(chosen, shape, name=f"{name} {seed}")
    unseen = _without(large.triplets("S_te"), small.triplets("S_te"), large.n_items)
    parts = {part: large.triplets(part) for part in PARTS} | {"S_va": small.triplets("S_va"), "S_te": unseen}
    return small, Partition(parts, shape, name=f"{name} {seed}, ten times the randomized log")


def _without(all_pairs, some, n_items: int):
    keys = [pairs.users.astype(np.int64) * n_items + pairs.items for pairs in (all_pairs, some)]
    return all_pairs.take(~np.isin(keys[0], keys[1]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.plan_coverage", description=__doc__)
    parser.add_argument("--data", default="yahoo-like")
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--budget", default="quick")
    parser.add_argument("--methods", default=",".join(plans.METHODS))
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--out", help="directory of the fits, to resume")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    methods = arguments.methods.split(",")
    held = {method: [] for method in methods}
    with tempfile.TemporaryDirectory() as directory:
        place = arguments.out or directory
        for world in range(arguments.worlds):
            small, large = two_logs(arguments.data, world)
            options = {"n_jobs": arguments.n_jobs, "methods": methods, "out": os.path.join(place, f"plan-{world}")}
            plan = dubnb.plan(small, budget=arguments.budget, **options)
            seeds = range(plans.BUDGETS[arguments.budget].seeds)
            trials = {(m, s): planned(METHODS[m], large, {"seed": s}) for m in methods for s in seeds}
            resources = Resources(n_jobs=arguments.n_jobs, quiet=True)
            fits = run_fits(trials.values(), [large], os.path.join(place, f"large-{world}"), resources)
            for method in methods:
                curve = plan.curves[method, "auc"]
                truth = float(np.mean([fits[trials[method, s]].metrics["auc"] for s in seeds]))
                middle, low, high = (float(x[0]) for x in curve.law.band([len(large.triplets("S_t").users)]))
                held[method].append(low <= truth <= high)
                print(
                    f"world {world} {method}: planned {middle:.4f} ({low:.4f}..{high:.4f}), real {truth:.4f}",
                    flush=True,
                )
    print("\n| method | worlds whose real AUC lies in the band | 95 % |\n|---|---|---|")
    held["all"] = [each for found in held.values() for each in found]
    for method, own in held.items():
        rate = stats.binomial_rate(sum(own), len(own))
        print(f"| {method} | {sum(own)} of {len(own)} | {rate.low:.2f}..{rate.high:.2f} |")


if __name__ == "__main__":
    main()
