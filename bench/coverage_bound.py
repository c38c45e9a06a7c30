"""How often the intervals of `dubnb bound` hold on logs whose truth is withheld from it.

    python -m bench.coverage_bound [--logs 24] [--out bench/records/coverage-bound.json]

Every log is simulated, so its truth is known. `dubnb.bound` gets the same log without the truth, and every interval
that it prints is compared with what the truth says. Designs: `simulated` as it is (the randomized log leaves S_c out),
a log four times as dense, both with a randomized log over all items (pairs of S_c repeat), and a randomized log of half
of the users with unequal numbers of pairs. Models: base and dub. Losses: bce, mae, zero_one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import warnings
from collections import defaultdict

import numpy as np

import dubnb
from dubnb._random import generator
from dubnb.data.partition import PARTS, Partition, Triplets
from dubnb.data.simulate import CONFIGS, simulate, split_randomized
from dubnb.theory.bound import Bound
from dubnb.theory.estimates import LEVEL

LOSSES = ("bce", "mae", "zero_one")
METHODS = ("base", "dub")
DENSE = dataclasses.replace(CONFIGS["simulated"], n_biased=60_000, random_each=40)
DESIGNS = {  # config, and how many random pairs a user gets over all items (None: as simulated, outside S_c)
    "simulated": (CONFIGS["simulated"], None),
    "simulated, random log over all items": (CONFIGS["simulated"], lambda rng, n: np.full(n, 20)),
    "dense": (DENSE, None),
    "dense, random log over all items": (DENSE, lambda rng, n: np.full(n, 40)),
    "simulated, half of the users, unequal": (
        CONFIGS["simulated"],
        lambda rng, n: np.where(rng.permutation(n) < n // 2, 1 + rng.geometric(1 / 30, n).clip(max=150), 0),
    ),
}


def log_of(design: str, seed: int) -> Partition:
    """A simulated log with its truth."""
    config, counts = DESIGNS[design]
    data = simulate(config, seed, quiet=True)
    if counts is None:
        return data
    rng = generator(seed, "coverage-bound", design)
    each = counts(rng, data.n_users)
    items = np.argsort(rng.random((data.n_users, data.n_items)), axis=1)
    users = np.repeat(np.arange(data.n_users), each)
    items = np.concatenate([row[:n] for row, n in zip(items, each, strict=True)])
    random = Triplets(users, items, data.truth.label(users, items), np.ones(len(users), np.float32))
    parts = {"S_c": data.triplets("S_c")._replace(grades=None), **split_randomized(random)}
    return Partition(parts, (data.n_users, data.n_items), truth=data.truth, name=design)


def without_truth(data: Partition) -> Partition:
    """The same log as if it were real: S_c as it was logged."""
    parts, overlap = {part: data.triplets(part) for part in PARTS}, data.overlap
    columns = (overlap.users, overlap.items, overlap.policy_labels, np.ones(len(overlap.users), np.float32))
    S_c = [np.concatenate(pair) for pair in zip(parts["S_c"][:4], columns, strict=True)]
    bare = {part: Triplets(*own[:4]) for part, own in parts.items()} | {"S_c": Triplets(*S_c)}
    return Partition(bare, (data.n_users, data.n_items), name=data.name)


def held(known: Bound, blind: Bound) -> dict[str, tuple[bool, float]]:
    """{interval: (does it hold, its width)} for every interval that is printed without the truth."""
    found = {}
    quantities = {"b": "term b", "bias": "the bias"}
    pairs = [(what, known.terms[key], blind.terms[key]) for key, what in quantities.items()]
    pairs += [("the total", known.total, blind.total), ("the ideal loss", known.ideal, blind.ideal)]
    for what, truth, quantity in pairs:
        value, slip = truth.value, 1e-9
        found[f"{what}: certain range"] = (
            quantity.low - slip <= value <= quantity.high + slip,
            quantity.high - quantity.low,
        )
        if quantity.estimate_low is not None:
            low, high = quantity.estimate_low, quantity.estimate_high
            found[f"{what}: 95 % interval"] = (low - slip <= value <= high + slip, high - low)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.coverage_bound", description=__doc__)
    parser.add_argument("--logs", type=int, default=24, help="per design")
    parser.add_argument("--out", default="bench/records/coverage-bound.json")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    outcomes = defaultdict(lambda: defaultdict(list))  # (interval, loss) -> design -> [(held, width)]
    for design in DESIGNS:
        for seed in range(arguments.logs):
            data = log_of(design, seed)
            blind = without_truth(data)
            for method in METHODS:
                model = dubnb.make(method, seed=0).fit(blind)
                teacher = dubnb.Unif(seed=0).fit(blind) if model.teacher_ is None else None
                for loss in LOSSES:
                    known, real = (dubnb.bound(model, log, loss=loss, teacher=teacher) for log in (data, blind))
                    for interval, outcome in held(known, real).items():
                        outcomes[interval, loss][design].append(outcome)
        print(f"{design}: done", flush=True)
    records = []
    for (interval, loss), by_design in outcomes.items():
        every = [outcome for own in by_design.values() for outcome in own]
        shares = {design: float(np.mean([each for each, _ in own])) for design, own in by_design.items()}
        widths = ", ".join(f"{d}: {np.mean([w for _, w in own]):.4f}" for d, own in by_design.items())
        records.append(
            {
                "interval": f"dubnb bound, loss {loss}, {interval}",
                "command": f"python -m bench.coverage_bound --logs {arguments.logs}",
                "logs": len(every) // len(METHODS),
                "nominal": 1.0 if "certain" in interval else LEVEL,
                "coverage": round(float(np.mean([each for each, _ in every])), 4),
                "notes": f"lowest of the designs {min(shares.values()):.3f} ({min(shares, key=shares.get)}); models "
                f"base and dub; mean width by design: {widths}",
            }
        )
        print(f"{interval} {loss}: {records[-1]['coverage']:.3f} {shares} {widths}", flush=True)
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(records, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
