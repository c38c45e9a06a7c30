"""How often the intervals of `dubnb bound` hold on logs whose truth is withheld from it.

    python -m bench.coverage_bound [--logs 24] [--out bench/records/coverage-bound.json]
    python -m bench.coverage_bound --slacks [--logs 1000] [--out bench/records/coverage-slacks.json]

Every log is simulated, so its truth is known. `dubnb.bound` gets the same log without the truth, and every interval
that it prints is compared with what the truth says. Designs: `simulated` as it is (the randomized log leaves S_c out),
a log four times as dense, both with a randomized log over all items (pairs of S_c repeat), and a randomized log of half
of the users with unequal numbers of pairs. Models: base and dub. Losses: bce, mae, zero_one.

With --slacks, S_t is drawn from one world of 60 users x 40 items by five policies with known propensities, and e is
compared with its expectation: does every slack hold, and does the total stay above the ideal loss? "Adaptive" learns:
after every ten impressions it favours the items that were liked so far. "Fixed pairs" redraws labels only.
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
from dubnb.data.simulate import CONFIGS, epsilon_greedy_chances, simulate, softmax_chances, split_randomized
from dubnb.objective import bounds
from dubnb.theory.bound import ETA, LEVEL, Bound, slack_of

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


class Dense:
    """A matrix of scores, or of true labels."""

    def __init__(self, matrix: np.ndarray):
        self.matrix = matrix

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        return self.matrix[users, items]

    label = score_pairs

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        return self.matrix[users]

    label_rows = score_rows


POLICIES = ("uniform", "softmax", "epsilon-greedy", "adaptive", "fixed pairs")
KINDS = {"uniform": ("hoeffding", "bernstein", "freedman"), "adaptive": ("freedman",), "fixed pairs": ("design",)}
SHAPE, IMPRESSIONS = (60, 40), 400


def explored(policy: str, rng: np.random.Generator, R_t: np.ndarray, S_c: np.ndarray) -> Partition:
    """A log whose S_t holds impressions of a policy, each pair with how often it was shown."""
    users, scores = rng.integers(0, SHAPE[0], IMPRESSIONS), 2 * R_t + generator(5, "scores").normal(size=SHAPE)
    chances = {
        "softmax": lambda: softmax_chances(scores, 1.5),
        "epsilon-greedy": lambda: epsilon_greedy_chances(scores, 0.4, 3),
    }.get(policy, lambda: np.full(SHAPE, 1 / SHAPE[1]))()
    if policy == "adaptive":
        items, p, likes, favour = np.empty(IMPRESSIONS, np.int64), np.empty(IMPRESSIONS), np.zeros(SHAPE[1]), chances[0]
        for j in range(0, IMPRESSIONS, 10):
            now = slice(j, j + 10)
            items[now] = rng.choice(SHAPE[1], len(users[now]), p=favour)
            p[now] = favour[items[now]]
            likes += np.bincount(items[now], R_t[users[now], items[now]], SHAPE[1])
            favour = 0.5 / SHAPE[1] + 0.5 * (likes + 0.1) / (likes + 0.1).sum()
    else:
        items = (chances.cumsum(axis=1)[users] < rng.random((IMPRESSIONS, 1))).sum(axis=1).clip(max=SHAPE[1] - 1)
        p = chances[users, items]
    pairs, place, counts = np.unique(users * SHAPE[1] + items, return_inverse=True, return_counts=True)
    rows, columns = np.divmod(pairs, SHAPE[1])
    mean_p = counts / np.bincount(place, 1 / p)  # repeated impressions average 1 / p
    S_t = Triplets(rows, columns, R_t[rows, columns], counts, None, mean_p)
    other = S_c.nonzero()
    none = ([], [], [])
    parts = {"S_c": (*other, R_t[other]), "S_t": S_t, "S_va": none, "S_te": none}
    return Partition(parts, SHAPE, truth=Dense(R_t))


def slacks(draws: int) -> list[dict[str, object]]:
    """How often |e - its expectation| stays below each slack, and the total above the ideal loss."""
    rng = generator(1, "coverage-slacks")
    R_t = (rng.random(SHAPE) < 0.3).astype(float)
    S_c, M_c, M_t = rng.random(SHAPE) < 0.02, rng.random(SHAPE), (R_t + rng.random(SHAPE)) / 2
    records = []
    for policy in POLICIES:
        held, above, ratios = defaultdict(list), defaultdict(list), defaultdict(list)
        fixed = explored("uniform", rng, R_t, S_c)
        for _ in range(draws):
            if policy == "fixed pairs":
                own, shares = fixed.triplets("S_t"), bounds.draws_of(fixed).shares
                y = rng.random(len(own.users)) < 0.3
                off = abs(shares @ (np.abs(y - M_t[own.users, own.items]) - mean_loss(M_t[own.users, own.items])))
                slack = bounds.design_slack(1.0, shares, ETA)
                held["design"].append(off <= slack)
                ratios["design"].append(off / slack)
                continue
            data = explored(policy, rng, R_t, S_c)
            measured = bounds.measure(Dense(M_c), Dense(M_t), data, "mae")
            W = float(np.max(bounds.draws_of(data).weights))
            for kind in KINDS.get(policy, KINDS["uniform"]):
                slack = slack_of(kind, 1.0, measured, data, ETA, 0.0, W)
                held[kind].append(abs(measured.e - measured.expected_e) <= slack)
                total = sum(getattr(measured, name) for name in ("a", "b", "c", "d", "e", "bias")) + slack
                above[kind].append(total >= measured.ideal)
                ratios[kind].append(abs(measured.e - measured.expected_e) / slack)
        for kind, outcomes in held.items():
            said = f"; total above the ideal loss {np.mean(above[kind]):.3f}" if above[kind] else ""
            records.append(
                {
                    "interval": f"dubnb bound, slack {kind}, {policy}: |e - its expectation| is below it",
                    "command": f"python -m bench.coverage_bound --slacks --logs {draws}",
                    "logs": draws,
                    "nominal": 1 - ETA,
                    "coverage": round(float(np.mean(outcomes)), 4),
                    "notes": f"95 % of |e - its expectation| / slack: {np.quantile(ratios[kind], 0.95):.2f}{said}",
                }
            )
            print(records[-1]["interval"], records[-1]["coverage"], records[-1]["notes"], flush=True)
    return records


def mean_loss(prediction: np.ndarray) -> np.ndarray:
    """The expected |y - prediction| of labels that are 1 with probability .3."""
    return 0.3 * np.abs(1 - prediction) + 0.7 * np.abs(prediction)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.coverage_bound", description=__doc__)
    parser.add_argument("--slacks", action="store_true", help="check the slacks of logs with propensities instead")
    parser.add_argument("--logs", type=int, help="per design (default 24; 1000 with --slacks)")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    out = arguments.out or f"bench/records/coverage-{'slacks' if arguments.slacks else 'bound'}.json"
    arguments.logs = arguments.logs or (1000 if arguments.slacks else 24)
    if arguments.slacks:
        write(slacks(arguments.logs), out)
        return
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
    write(records, out)


def write(records: list[dict[str, object]], out: str) -> None:
    """Write the records."""
    with open(out, "w", encoding="utf-8") as file:
        json.dump(records, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
