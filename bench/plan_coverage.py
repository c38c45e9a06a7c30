"""Does the band of a planned gain contain the gain that four times the randomized log brings?

    python -m bench.plan_coverage [--draws 40] [--first 0] [--methods dub-x,combine] [--out FILE]

Every draw is a new world of `simulated` with a randomized log of 100 items for every user. A random fifth of it, or a
twentieth in every other draw, is what the company has, split 10/10/80 as in the paper or 75/15/10 (in turn). The plan
sees that alone and is asked for the gain of four times as many pairs. The truth: one fit on all pairs that the company
has, and one on four times as many (the same and three times as many new ones), each judged against the true labels of
all pairs outside S_c and S_t. The band of the curve itself is compared with the second fit's AUC.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import warnings
from collections import defaultdict

import numpy as np

import dubnb
from dubnb import stats
from dubnb.data.partition import Partition, Triplets
from dubnb.data.simulate import CONFIGS, simulate
from dubnb.theory.plan import BAND_LEVEL

TIMES = 4
LARGE = dataclasses.replace(CONFIGS["simulated"], random_each=100)
SHARES = ((0.1, 0.1, 0.8), (0.75, 0.15, 0.1))
FRACTIONS = (5, 20)  # of the large log: one over what the company has


def company(draw: int) -> tuple[Partition, Partition, Partition]:
    """(what the company has, a log whose S_t is all of that, one whose S_t is four times as much)."""
    large = simulate(LARGE, draw, quiet=True)
    random = [large.triplets(part) for part in ("S_t", "S_va", "S_te")]
    columns = [np.concatenate([part[k] for part in random]) for k in range(4)]
    rows = np.random.default_rng(draw).permutation(len(columns[0]))
    n = len(rows) // FRACTIONS[draw % 2]
    shares = SHARES[draw // 2 % 2]
    cuts = [0, round(shares[0] * n), round((shares[0] + shares[1]) * n), n]

    def some(first: int, last: int) -> Triplets:
        return Triplets(*(column[rows[first:last]] for column in columns))

    S_c = Triplets(*large.triplets("S_c")[:4])
    shape = (large.n_users, large.n_items)
    own = {part: some(*cuts[k : k + 2]) for k, part in enumerate(("S_t", "S_va", "S_te"))}
    has = Partition({"S_c": S_c, **own}, shape, name=f"draw {draw}")
    rest = {"S_va": some(TIMES * n, TIMES * n + n // 4), "S_te": some(TIMES * n + n // 4, TIMES * n + n // 2)}
    trained = [
        Partition({"S_c": S_c, "S_t": some(0, times * n), **rest}, shape, truth=large.truth) for times in (1, TIMES)
    ]
    return has, trained[0], trained[1]


Outcome = tuple[float, float, float, float]  # middle, low, high, real


def measured(draw: int, methods: list[str]) -> dict[str, tuple[Outcome, Outcome]]:
    """{method: (the gain, the AUC at the end)}."""
    has, now, later = company(draw)
    plan = dubnb.plan(has, methods=methods, seed=draw)
    found = {}
    for method in methods:
        fits = [dubnb.make(method, seed=draw).fit(log) for log in (now, later)]
        real = [fit.evaluate(log)["truth_auc"] for fit, log in zip(fits, (now, later), strict=True)]
        law = plan.curves[method, "auc"].law
        gain = law.gain(plan.n_random, TIMES * plan.n_random)
        level = (float(each[0]) for each in law.band([TIMES * plan.n_random]))
        found[method] = (*gain, real[1] - real[0]), (*level, real[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.plan_coverage", description=__doc__)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--methods", default="dub-x,combine")
    parser.add_argument("--out", default="bench/records/coverage-plan.json")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    methods, outcomes = arguments.methods.split(","), defaultdict(list)
    for draw in range(arguments.first, arguments.first + arguments.draws):
        for method, both in measured(draw, methods).items():
            for what, outcome in zip(("gain in AUC", "band of the AUC"), both, strict=True):
                outcomes[f"{what} of {method}"].append(outcome)
                middle, low, high, real = outcome
                print(
                    f"{draw} {what} {method}: {middle:+.4f} ({low:+.4f} to {high:+.4f}), real {real:+.4f}", flush=True
                )
    records = []
    for what, own in outcomes.items():
        held = [low <= real <= high for _, low, high, real in own]
        rate = stats.binomial_rate(sum(held), len(held))
        widths, reals = [high - low for _, low, high, _ in own], [real for *_, real in own]
        print(f"{what}: {sum(held)} of {len(held)} ({rate.low:.2f} to {rate.high:.2f})")
        records.append(
            {
                "interval": f"dubnb plan, {what} at {TIMES} times the randomized log",
                "command": f"python -m bench.plan_coverage --draws {arguments.draws} --first {arguments.first} "
                f"--methods {arguments.methods}",
                "logs": len(held),
                "nominal": BAND_LEVEL,
                "coverage": round(rate.rate, 4),
                "notes": f"real values {min(reals):.4f} to {max(reals):.4f}, mean width {np.mean(widths):.4f}, "
                f"narrowest {min(widths):.4f}; one fit with each size",
            }
        )
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(records, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
