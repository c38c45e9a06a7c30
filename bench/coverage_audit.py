"""How often `dubnb audit` says no to logs that a uniform policy made, and how often its intervals hold.

    python -m bench.coverage_audit [--audits 1000] [--draws 199] [--out bench/records/coverage-audit.json]

Every audit is of a new small log (about 150 users x 50 items, 700 randomized pairs). Users are drawn anew; items stay.
The randomized log is uniform over items given the user in every design; who comes, how often and when differs:

- i.i.d.: pairs drawn uniformly from all users x items, with pairs of S_c among them;
- k per user: exactly five items for every user;
- outside S_c: five items for every user, none of them in her S_c;
- unequal activity: users come in proportion to their activity in S_c;
- half of the users: five items for a random half;
- uneven arrivals: as k per user, in sessions that crowd at a few hours, with times given.

Users in neither log are unknown to the audit, as they are in a company's files.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import defaultdict
from typing import NamedTuple

import numpy as np

import dubnb
from dubnb import stats
from dubnb._random import generator
from dubnb.data.partition import RANDOMIZED, Partition, Triplets
from dubnb.theory.audit import ALPHA, NO

N_USERS, N_ITEMS, EACH, LOGGED = 150, 50, 5, 8.0
DESIGNS = ("i.i.d.", "k per user", "outside S_c", "unequal activity", "half of the users", "uneven arrivals")
ITEMS = generator(0, "coverage-audit", "items")
POPULARITY, QUALITY = ITEMS.standard_exponential(N_ITEMS), ITEMS.normal(size=N_ITEMS)


class World(NamedTuple):
    """Some users: what they like, and their pairs under the recommendation policy."""

    liked: np.ndarray  # (users, items) bool
    logged: np.ndarray  # (users, items) bool
    activity: np.ndarray  # expected pairs in S_c


def world_of(rng: np.random.Generator, n_users: int = N_USERS) -> World:
    """Users drawn anew: likes depend on quality and taste, S_c on popularity, taste and activity."""
    taste = rng.normal(size=(n_users, 2)) @ (ITEMS_TASTE / np.sqrt(2)) + 0.7 * rng.normal(size=(n_users, 1))
    liked = rng.random((n_users, N_ITEMS)) < 1 / (1 + np.exp(1.5 - QUALITY - taste))
    activity = LOGGED * np.exp(rng.normal(size=n_users) - 0.5)
    rates = np.exp(POPULARITY + 0.8 * taste)
    rates *= activity[:, None] / rates.sum(axis=1, keepdims=True)
    return World(liked, rng.random((n_users, N_ITEMS)) < 1 - np.exp(-rates), activity)


ITEMS_TASTE = ITEMS.normal(size=(2, N_ITEMS))


def log_of(design: str, rng: np.random.Generator) -> tuple[Partition, dict[str, np.ndarray] | None]:
    """A log of one design, and the times of its randomized pairs where they are given."""
    world = world_of(rng)
    order = np.argsort(rng.random((N_USERS, N_ITEMS)) + (world.logged if design == "outside S_c" else 0), axis=1)
    counts = np.full(N_USERS, EACH)
    if design == "i.i.d.":
        counts = np.bincount(rng.choice(N_USERS * N_ITEMS, N_USERS * EACH, replace=False) // N_ITEMS, minlength=N_USERS)
    elif design == "unequal activity":
        counts = rng.poisson(EACH * world.activity / world.activity.mean()).clip(max=N_ITEMS)
    elif design == "half of the users":
        counts = np.where(rng.permutation(N_USERS) < N_USERS // 2, EACH, 0)
    users = np.repeat(np.arange(N_USERS), counts)
    items = np.concatenate([row[:n] for row, n in zip(order, counts, strict=True)])
    known = world.logged.any(axis=1)
    known[users] = True
    number = np.cumsum(known) - 1  # users in neither log have no number

    def triplets(users: np.ndarray, items: np.ndarray) -> Triplets:
        return Triplets(number[users], items, world.liked[users, items].astype(np.float32), np.ones(len(users)))

    part_of = rng.integers(3, size=len(users))
    parts = {part: triplets(users[part_of == k], items[part_of == k]) for k, part in enumerate(RANDOMIZED)}
    data = Partition(parts | {"S_c": triplets(*world.logged.nonzero())}, (int(known.sum()), N_ITEMS))
    if design != "uneven arrivals":
        return data, None
    session = rng.choice([2.0, 2.5, 9.0, 23.0], data.n_users, p=[0.4, 0.4, 0.15, 0.05])
    return data, {part: session[data.triplets(part).users] + rng.random(len(parts[part].users)) for part in RANDOMIZED}


def true_rates() -> dict[str, float]:
    """Positive rates of the population of users: of S_c, and of all their pairs."""
    world = world_of(generator(1, "coverage-audit", "truth"), 400_000)
    S_c, random = world.liked[world.logged].mean(), world.liked.mean()
    return {"positives in S_c": S_c, "positives in the randomized log": random, "label shift": S_c - random}


def measured(design: str, audits: int, draws: int, truth: dict[str, float]) -> dict[str, list[bool]]:
    """Per question whether it said no, under "any" whether one did, and per interval whether it missed."""
    found = defaultdict(list)
    for k in range(audits):
        data, times = log_of(design, generator(k, "coverage-audit", design))
        audit = dubnb.audit(data, times=times, n_draws=draws, seed=k)
        noes = {answer.name: answer.verdict == NO for answer in audit.answers}
        for name, no in noes.items():
            found[name].append(no)
        found["any"].append(any(noes.values()))
        if design == "k per user":  # the rates of the population
            for fact in audit.facts:
                if fact.name in truth:
                    found[f"interval of {fact.name}"].append(not fact.low <= truth[fact.name] <= fact.high)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.coverage_audit", description=__doc__)
    parser.add_argument("--audits", type=int, default=1000, help="per design")
    parser.add_argument("--draws", type=int, default=199)
    parser.add_argument("--out", default="bench/records/coverage-audit.json")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    truth, outcomes = true_rates(), defaultdict(dict)
    for design in DESIGNS:
        for name, wrong in measured(design, arguments.audits, arguments.draws, truth).items():
            outcomes[name][design] = wrong
            rate = stats.binomial_rate(sum(wrong), len(wrong))
            print(f"{design} | {name} | {rate.rate:.3f} ({rate.low:.3f} to {rate.high:.3f})", flush=True)
    records = []
    for name, by_design in outcomes.items():
        shares = {design: float(np.mean(wrong)) for design, wrong in by_design.items()}
        worst = max(shares, key=shares.get)
        what = {"any": "any verdict"}.get(name, name if "interval" in name else f"question '{name}'")
        says = "holds" if "interval" in name else "is not no on a uniform log"
        records.append(
            {
                "interval": f"dubnb audit, {what}: {says}",
                "command": f"python -m bench.coverage_audit --audits {arguments.audits} --draws {arguments.draws}",
                "logs": sum(map(len, by_design.values())),
                "nominal": 1 - ALPHA,
                "coverage": round(1 - shares[worst], 4),
                "notes": "lowest of the designs; errors: " + ", ".join(f"{d} {s:.3f}" for d, s in shares.items()),
            }
        )
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(records, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
