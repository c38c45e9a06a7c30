"""How often `dubnb audit` says no to logs that a uniform policy made, and how often its intervals hold.

    python -m bench.coverage_audit [--audits 1000] [--draws 199] [--out bench/records/coverage-audit.json]
    python -m bench.coverage_audit --daily [--audits 100] [--out bench/records/coverage-daily.json]
    python -m bench.coverage_audit --rates [--audits 1000] [--out bench/records/coverage-rates.json]

Every audit is of a new small log (about 150 users x 50 items, 700 randomized pairs). Users are drawn anew; items stay.
The randomized log is uniform over items given the user in every design; who comes, how often and when differs:

- i.i.d.: pairs drawn uniformly from all users x items, with pairs of S_c among them;
- k per user: exactly five items for every user;
- outside S_c: five items for every user, none of them in her S_c;
- unequal activity: users come in proportion to their activity in S_c;
- half of the users: five items for a random half;
- uneven arrivals: as k per user, in sessions that crowd at a few hours, with times given;
- catalogue growth: half of the items arrive during the log, which is told by `eligible`;
- hidden once liked: an item is not shown again to a user who liked it, in either log, which is told by `eligible`;
- two strata: four fifths of the impressions go to two fifths of the items, which is told by `stratum`;
- two strata, logged rates: the same, with the propensities in the log instead;
- softmax, epsilon-greedy: the policy favours what a user likes, and its propensities are in the log. "Steep" weights
  vary more;
- softmax, many users: 2,000 users with 20 impressions each, where no pair decides alone.

A question that cannot be told is no evidence. Shares are among the audits that gave an answer; the record says how many
did.

With --daily, logs of 365 days are audited by day (`dubnb.audit(data, by="day")`): how many raise an alarm on any day?
In "broken" logs a fifth of the items is shown half as often again from day 200 on, whatever propensities are logged.

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
from dubnb.data.eligibility import Eligibility
from dubnb.data.partition import RANDOMIZED, Partition, Triplets
from dubnb.data.simulate import epsilon_greedy_chances, softmax_chances
from dubnb.theory.audit import ALPHA, NO, UNKNOWN
from dubnb.theory.daily import ALARM
from dubnb.theory.selection import positive_rates

N_USERS, N_ITEMS, EACH, LOGGED = 150, 50, 5, 8.0
UNIFORM = ("i.i.d.", "k per user", "outside S_c", "unequal activity", "half of the users", "uneven arrivals")
RULES = ("catalogue growth", "hidden once liked", "two strata")
LOGGED_RATES = ("two strata, logged rates", "softmax", "softmax, steep", "epsilon-greedy", "epsilon-greedy, steep")
LARGE = "softmax, many users"
LARGE_USERS, LARGE_EACH = 2_000, 20
LOGGED_RATES = (*LOGGED_RATES, LARGE)
DESIGNS = (*UNIFORM, *RULES, *LOGGED_RATES)
RATES = np.where(np.arange(N_ITEMS) % 5 < 2, 0.8 / 20, 0.2 / 30)  # P(item) of the two strata
ITEMS = generator(0, "coverage-audit", "items")
POPULARITY, QUALITY = ITEMS.standard_exponential(N_ITEMS), ITEMS.normal(size=N_ITEMS)


class World(NamedTuple):
    """Some users: what they like, and their pairs under the recommendation policy."""

    liked: np.ndarray  # (users, items) bool
    logged: np.ndarray  # (users, items) bool
    logits: np.ndarray  # (users, items), of a like
    activity: np.ndarray  # expected pairs in S_c


def world_of(rng: np.random.Generator, n_users: int = N_USERS) -> World:
    """Users drawn anew: likes depend on quality and taste, S_c on popularity, taste and activity."""
    taste = rng.normal(size=(n_users, 2)) @ (ITEMS_TASTE / np.sqrt(2)) + 0.7 * rng.normal(size=(n_users, 1))
    logits = QUALITY + taste - 1.5
    liked = rng.random((n_users, N_ITEMS)) < 1 / (1 + np.exp(-logits))
    activity = LOGGED * np.exp(rng.normal(size=n_users) - 0.5)
    rates = np.exp(POPULARITY + 0.8 * taste)
    rates *= activity[:, None] / rates.sum(axis=1, keepdims=True)
    return World(liked, rng.random((n_users, N_ITEMS)) < 1 - np.exp(-rates), logits, activity)


ITEMS_TASTE = ITEMS.normal(size=(2, N_ITEMS))


def log_of(design: str, rng: np.random.Generator) -> tuple[Partition, dict[str, np.ndarray] | None]:
    """A log of one design, and the times of its randomized pairs where they are given."""
    world = world_of(rng, LARGE_USERS if design == LARGE else N_USERS)
    if design not in UNIFORM:
        return impressions_of(design, world, rng), None
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


def impressions_of(design: str, world: World, rng: np.random.Generator) -> Partition:
    """A log of impressions at times in (0, 1), each drawn from what the user could be shown then."""
    born = np.where(rng.random(N_ITEMS) < 0.5, rng.random(N_ITEMS) * 0.8, 0.0)
    n_users, each = len(world.liked), LARGE_EACH if design == LARGE else EACH
    S_c_times = np.where(world.logged & world.liked, rng.random(world.liked.shape), np.inf)
    chances = {
        "softmax": lambda: softmax_chances(world.logits, 1.0),
        LARGE: lambda: softmax_chances(world.logits, 1.0),
        "softmax, steep": lambda: softmax_chances(world.logits, 0.6),
        "epsilon-greedy": lambda: epsilon_greedy_chances(world.logits, 0.3, 5),
        "epsilon-greedy, steep": lambda: epsilon_greedy_chances(world.logits, 0.1, 1),
    }.get(design, lambda: np.broadcast_to(RATES if "strata" in design else 1 / N_ITEMS, world.liked.shape))()
    users = np.repeat(np.arange(n_users), each)
    times = np.sort(rng.random((n_users, each)), axis=1).ravel()
    hidden_from, items = S_c_times.copy(), np.empty(len(users), np.int64)
    for j, (user, time) in enumerate(zip(users, times, strict=True)):
        p = np.array(chances[user])
        if design == "catalogue growth":
            p *= born <= time
        elif design == "hidden once liked":
            p *= hidden_from[user] >= time
        items[j] = rng.choice(N_ITEMS, p=p / p.sum())
        if world.liked[user, items[j]]:
            hidden_from[user, items[j]] = min(hidden_from[user, items[j]], time)
    pairs, first, counts = np.unique(users * N_ITEMS + items, return_index=True, return_counts=True)
    users, items, times = users[first], items[first], times[first]
    given = chances[users, items] if design in LOGGED_RATES else None
    weights = np.ones(len(pairs)) if given is None else counts
    own = Triplets(users, items, world.liked[users, items], weights, None, given, times)
    S_c = world.logged.nonzero()
    part_of = rng.integers(3, size=len(users))
    parts = {part: own.take(part_of == k) for k, part in enumerate(RANDOMIZED)}
    shape, windows, exclusions, strata = world.liked.shape, None, None, None
    if design == "catalogue growth":
        windows = np.arange(N_ITEMS), born, np.full(N_ITEMS, np.inf)
    elif design == "hidden once liked":
        rows = np.nonzero(np.isfinite(hidden_from))
        exclusions = *rows, hidden_from[rows], np.full(len(rows[0]), np.inf)
    elif design == "two strata":
        strata = (np.arange(N_ITEMS) % 5 < 2).astype(int)
    rules = Eligibility.of(shape, windows, exclusions, strata, ("a", "b") if strata is not None else ("all",))
    log = {"S_c": (*S_c, world.liked[S_c]), **parts}
    return Partition(log, shape, eligibility=rules if design in RULES else None)


def true_rates() -> dict[str, float]:
    """Positive rates of the population of users: of S_c, and of all their pairs."""
    world = world_of(generator(1, "coverage-audit", "truth"), 400_000)
    S_c, random = world.liked[world.logged].mean(), world.liked.mean()
    return {"positives in S_c": S_c, "positives in the randomized log": random, "label shift": S_c - random}


def measured(design: str, audits: int, draws: int, truth: dict[str, float], first: int = 0) -> dict[str, list[bool]]:
    """Per answered question whether it said no, under "any" whether one did, and per interval whether it missed.

    "answered" says of every audit whether it could test anything.
    """
    found = defaultdict(list)
    for k in range(first, first + audits):
        data, times = log_of(design, generator(k, "coverage-audit", design))
        audit = dubnb.audit(data, times=times, n_draws=draws, seed=k)
        noes = {answer.name: answer.verdict == NO for answer in audit.answers if answer.verdict != UNKNOWN}
        for name, no in noes.items():
            found[name].append(no)
        found["answered"].append(audit.uniform is not None)
        if found["answered"][-1]:
            found["any"].append(any(noes.values()))
        if design == "k per user":  # the rates of the population
            for fact in audit.facts:
                if fact.name in truth:
                    found[f"interval of {fact.name}"].append(not fact.low <= truth[fact.name] <= fact.high)
    return found


DAYS, A_DAY, MANY, DAILY_USERS = 365, 20, 100, 1_500
BROKEN_DAILY = "epsilon-greedy, logged, broken"
MOVING, GROWING = "epsilon-greedy with new greedy items every 30 days, logged", "growing catalogue, logged"
DAILY = ("uniform", "uniform, broken", "epsilon-greedy, logged", BROKEN_DAILY, f"{BROKEN_DAILY}, {MANY} a day")
DAILY = (*DAILY, MOVING, GROWING)
BREAK = 200  # day on which it begins


def daily_log(design: str, rng: np.random.Generator) -> Partition:
    """A log of DAYS days with A_DAY impressions each, or MANY of as many more users."""
    times_more = MANY // A_DAY if f"{MANY} a day" in design else 1
    n, shape = DAYS * A_DAY * times_more, (DAILY_USERS * times_more, N_ITEMS)
    S_c = rng.random(shape) < 0.05
    users, times = rng.integers(0, shape[0], n), np.repeat(np.arange(DAYS), n // DAYS) + rng.random(n)
    chances = np.ones((n, N_ITEMS))
    if "epsilon-greedy" in design:
        chances = epsilon_greedy_chances(rng.random(shape), 0.3, 5)[users]
    if design == MOVING:
        for month in range(1, DAYS // 30 + 1):
            own = times >= month * 30
            chances[own] = epsilon_greedy_chances(rng.random(shape), 0.3, 5)[users[own]]
    born = np.where(rng.random(N_ITEMS) < 0.5, rng.random(N_ITEMS) * DAYS, -1.0) if design == GROWING else None
    if born is not None:
        chances *= born < times[:, None]
    chances /= chances.sum(axis=1, keepdims=True)
    real = chances.copy()
    if "broken" in design:
        real[times >= BREAK, : N_ITEMS // 5] *= 1.5
        real /= real.sum(axis=1, keepdims=True)
    items = (real.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(max=N_ITEMS - 1)
    pairs, first, counts = np.unique(users * N_ITEMS + items, return_index=True, return_counts=True)
    labels, none = (rng.random(len(pairs)) < 0.2).astype(float), ([], [], [])
    own, p = first, chances[first, items[first]] if "logged" in design else None
    shown = counts if p is not None else np.ones(len(pairs))
    S_t = Triplets(users[own], items[own], labels, shown, None, p, times[own])
    other = S_c.nonzero()
    parts = {"S_c": (*other, rng.random(len(other[0])) < 0.5), "S_t": S_t, "S_va": none, "S_te": none}
    windows = None if born is None else (np.arange(N_ITEMS), born, np.full(N_ITEMS, np.inf))
    return Partition(parts, shape, eligibility=None if windows is None else Eligibility.of(shape, windows))


def daily(audits: int, out: str) -> None:
    """Count the logs with an alarm on any day; of broken logs a fifth as many, and when."""
    records = []
    for design in DAILY:
        broken, when = "broken" in design, []
        n = max(audits // 5, 1) if broken else audits
        for k in range(n):
            found = dubnb.audit(daily_log(design, generator(k, "coverage-daily", design)), by="day", seed=k)
            when += [] if found.alarm is None else [int(found.alarm.day)]
        rate = stats.binomial_rate(len(when), n)
        text = f"{design}: alarms in {rate.rate:.3f} ({rate.low:.3f} to {rate.high:.3f}) of {n} logs of {DAYS} days"
        if broken:
            late = [day - BREAK for day in when if day >= BREAK]
            quarters = ", ".join(f"{day:.0f}" for day in np.quantile(late, (0.25, 0.5, 0.75))) if late else "-"
            text += f", {len(when) - len(late)} before the break; quartiles of the days from the break: {quarters}"
        print(text, flush=True)
        if broken:
            records[-1]["notes"] += f"; {text}"
        else:
            records.append(
                {
                    "interval": f"dubnb audit --by day, {design}: no alarm in {DAYS} days",
                    "command": f"python -m bench.coverage_audit --daily --audits {audits}",
                    "logs": n,
                    "nominal": 1 - 1 / ALARM,
                    "coverage": round(1 - rate.rate, 4),
                    "notes": text,
                }
            )
    write(records, out)


def weighted_rates(logs: int, out: str) -> None:
    """How often the intervals of positive rates hold on logs with propensities."""
    truth, records = true_rates(), []
    for design in ("epsilon-greedy", "softmax"):
        held = []
        for k in range(logs):
            rates = positive_rates(log_of(design, generator(k, "coverage-rates", design))[0])
            random, (_, low, high) = rates.randomized, rates.difference()
            rate = truth["positives in the randomized log"]
            held.append((random.low <= rate <= random.high, low <= truth["label shift"] <= high, random.rate - rate))
        *shares, error = np.mean(held, axis=0)
        for name, share in zip(("positives in the randomized log", "label shift"), shares, strict=True):
            text = f"{design}, logged propensities; mean error of the randomized rate {error:+.4f}"
            print(f"{share:.3f}  {name}: {text}", flush=True)
            records.append(
                {
                    "interval": f"dubnb audit, interval of {name}, with propensities: holds",
                    "command": f"python -m bench.coverage_audit --rates --audits {logs}",
                    "logs": logs,
                    "nominal": 1 - ALPHA,
                    "coverage": round(float(share), 4),
                    "notes": text,
                }
            )
    write(records, out)


def write(records: list[dict], out: str) -> None:
    """Write the records."""
    with open(out, "w", encoding="utf-8") as file:
        json.dump(records, file, indent=1)
        file.write("\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.coverage_audit", description=__doc__)
    parser.add_argument("--daily", action="store_true", help="audits by day instead")
    parser.add_argument("--rates", action="store_true", help="intervals of rates with propensities instead")
    parser.add_argument("--audits", type=int, help="per design (default 1000; 100 with --daily)")
    parser.add_argument("--draws", type=int, default=199)
    parser.add_argument("--first", type=int, default=0, help="number of the first audit")
    parser.add_argument("--designs", default=",".join(DESIGNS).replace(", ", "; "), help="some of them; , as ;")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    name = "daily" if arguments.daily else "rates" if arguments.rates else "audit"
    out = arguments.out or f"bench/records/coverage-{name}.json"
    arguments.audits = arguments.audits or (100 if arguments.daily else 1000)
    if arguments.daily:
        daily(arguments.audits, out)
        return
    if arguments.rates:
        weighted_rates(arguments.audits, out)
        return
    command = f"python -m bench.coverage_audit --audits {arguments.audits} --draws {arguments.draws}"
    if arguments.designs != parser.get_default("designs"):
        command += f" --designs '{arguments.designs}'"
    if arguments.first:
        command += f" --first {arguments.first}"
    truth, outcomes, sizes = true_rates(), defaultdict(dict), (arguments.audits, arguments.draws)
    designs = [name.replace("; ", ", ") for name in arguments.designs.split(",")]
    if unknown := set(designs) - set(DESIGNS):
        parser.error(f"unknown designs: {', '.join(sorted(unknown))}")
    for design in designs:
        for name, wrong in measured(design, *sizes, truth, arguments.first).items():
            outcomes[name][design] = wrong
            rate = stats.binomial_rate(sum(wrong), len(wrong))
            print(f"{design} | {name} | {rate.rate:.3f} ({rate.low:.3f} to {rate.high:.3f})", flush=True)
    records = []
    answered = ", ".join(f"{design} {np.mean(own):.3f}" for design, own in outcomes.pop("answered").items())
    for question, by_design in outcomes.items():
        shares = {design: float(np.mean(wrong)) for design, wrong in by_design.items()}
        worst = max(shares, key=shares.get)
        what = {"any": "any verdict"}.get(question, question if "interval" in question else f"question '{question}'")
        says = "holds" if "interval" in question else "is not no on a uniform log"
        records.append(
            {
                "interval": f"dubnb audit, {what}: {says}",
                "command": command,
                "logs": sum(map(len, by_design.values())),
                "nominal": 1 - ALPHA,
                "coverage": round(1 - shares[worst], 4),
                "notes": "lowest of the designs; errors among audits with an answer: "
                + ", ".join(f"{d} {s:.3f}" for d, s in shares.items())
                + (f"; audits with an answer: {answered}" if question == "any" else ""),
            }
        )
    write(records, out)


if __name__ == "__main__":
    main()
