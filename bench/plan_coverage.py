"""Does the band of a planned gain contain the gain that four times the randomized log brings?

    python -m bench.plan_coverage [--draws 40] [--first 0] [--methods dub-x,combine] [--propensities] [--out FILE]

Every draw is a new world of `simulated` with a randomized log of 100 items for every user. A random fifth of it, or a
twentieth in every other draw, is what the company has, split 10/10/80 as in the paper or 75/15/10 (in turn). The plan
sees that alone and is asked for the gain of four times as many pairs. The truth: one fit on all pairs that the company
has, and one on four times as many (the same and three times as many new ones), each judged against the true labels of
all pairs outside S_c and S_t. The band of the curve itself is compared with the second fit's AUC.

With --propensities the randomized log is epsilon-greedy with logged propensities: with the probability .3 an item is
drawn uniformly from what the user has not had, else from the five that a base model likes best. The company has 20,000
or 5,000 impressions (in turn), and later four times as many.
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
from dubnb.data.pattern import joined
from dubnb.data.simulate import CONFIGS, epsilon_greedy_chances, explore, simulate
from dubnb.theory.plan import BAND_LEVEL

TIMES = 4
LARGE = dataclasses.replace(CONFIGS["simulated"], random_each=100)
SHARES = ((0.1, 0.1, 0.8), (0.75, 0.15, 0.1))
FRACTIONS = (5, 20)  # of the large log: one over what the company has
IMPRESSIONS = (20_000, 5_000)  # with --propensities
EPSILON, TOP = 0.3, 5


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


def exploring_company(draw: int) -> tuple[Partition, Partition, Partition]:
    """As `company`, with an epsilon-greedy log and its propensities."""
    world = simulate(CONFIGS["simulated"], draw, quiet=True)
    scores = dubnb.Base(seed=draw).fit(world).weights_.score_rows(np.arange(world.n_users))
    free = ~world.logged.mask(np.arange(world.n_users), world.n_items)
    chances = epsilon_greedy_chances(scores, EPSILON, TOP, free)
    n = IMPRESSIONS[draw % 2]
    logs = [explore(world, chances, n, seed=1000 * draw + k).random for k in range(TIMES + 1)]
    shape, S_c = (world.n_users, world.n_items), Triplets(*world.triplets("S_c")[:4])
    rows = np.random.default_rng(draw).permutation(len(logs[0].users))
    cuts = np.cumsum((0, *SHARES[draw // 2 % 2])) * len(rows)
    own = {
        part: logs[0].take(rows[round(cuts[k]) : round(cuts[k + 1])]) for k, part in enumerate(("S_t", "S_va", "S_te"))
    }
    later = merged(logs[:TIMES], world.n_items)
    keys = [log.users.astype(np.int64) * world.n_items + log.items for log in (later, logs[TIMES])]
    other = logs[TIMES].take(~np.isin(keys[1], keys[0]))
    rest = {"S_va": other.take(slice(None, None, 2)), "S_te": other.take(slice(1, None, 2))}
    has = Partition({"S_c": S_c, **own}, shape, name=f"draw {draw}")
    trained = [Partition({"S_c": S_c, "S_t": S_t, **rest}, shape, truth=world.truth) for S_t in (logs[0], later)]
    return has, trained[0], trained[1]


def merged(logs: list[Triplets], n_items: int) -> Triplets:
    """The impressions of several logs; a pair that was shown several times is one row that weighs as much."""
    every = joined(*logs)
    keys = every.users.astype(np.int64) * n_items + every.items
    _, first, row = np.unique(keys, return_index=True, return_inverse=True)
    return every.take(first)._replace(weights=np.bincount(row, every.weights))


Outcome = tuple[float, float, float, float]  # middle, low, high, real


def measured(draw: int, methods: list[str], propensities: bool = False) -> dict[str, tuple[Outcome, Outcome]]:
    """{method: (the gain, the AUC at the end)}."""
    has, now, later = (exploring_company if propensities else company)(draw)
    end = later.triplets("S_t").users.size if propensities else TIMES * len(has.random.users)
    plan = dubnb.plan(has, methods=methods, seed=draw)
    found = {}
    for method in methods:
        fits = [dubnb.make(method, seed=draw).fit(log) for log in (now, later)]
        real = [fit.evaluate(log)["truth_auc"] for fit, log in zip(fits, (now, later), strict=True)]
        law = plan.curves[method, "auc"].law
        gain = law.gain(plan.n_random, end)
        level = (float(each[0]) for each in law.band([end]))
        found[method] = (*gain, real[1] - real[0]), (*level, real[1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.plan_coverage", description=__doc__)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--methods", default="dub-x,combine")
    parser.add_argument("--propensities", action="store_true", help="epsilon-greedy logs with propensities")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    option = " --propensities" if arguments.propensities else ""
    arguments.out = arguments.out or f"bench/records/coverage-plan{option.replace(' --', '-')}.json"
    warnings.simplefilter("ignore", UserWarning)
    methods, outcomes = arguments.methods.split(","), defaultdict(list)
    for draw in range(arguments.first, arguments.first + arguments.draws):
        for method, both in measured(draw, methods, arguments.propensities).items():
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
                "interval": f"dubnb plan, {what} at {TIMES} times the randomized log{option and ', with propensities'}",
                "command": f"python -m bench.plan_coverage --draws {arguments.draws} --first {arguments.first} "
                f"--methods {arguments.methods}{option}",
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
