"""How small a distortion `dubnb audit` finds at Yahoo! R3's size, and how often it raises a false alarm.

    python -m bench.audit_power [--audits 1000] [--draws 999]      # prints a Markdown table
    python -m bench.audit_power --propensities --audits 200        # wrong propensities instead

The world is `yahoo-like`: 15,400 x 1,000, S_c as logged there, and randomized logs of 5,400 users x 10 items drawn anew
for every audit. An audit asks all questions about items of `dubnb audit` that need no time column, with Holm's
correction. The uniform logs that it compares with are drawn once, since users and S_c stay the same.

With --propensities the world is `simulated` (1,000 users x 300 items). Softmax traffic favours what `base` predicts
among the items outside the user's biased log, at temperature 1 of standardised scores: 20,000 impressions, drawn anew
for every audit. The logged propensities are then wrong in one of several ways.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

import dubnb
from dubnb import stats
from dubnb._random import generator
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.data.pattern import Triplets
from dubnb.data.simulate import explore, simulate, softmax_chances
from dubnb.theory import selection, uniformity
from dubnb.theory.audit import ALPHA, NO, UNKNOWN
from dubnb.theory.uniformity import STATISTICS, UniformPolicy

ASKED = ("weights", "exposure")
Weights = Callable[[np.random.Generator], np.ndarray]


class Policy(NamedTuple):
    """What explores: the log that it belongs to, its scores, and which pairs it may show."""

    data: Partition
    scores: np.ndarray
    free: np.ndarray


def distortions(popularity: np.ndarray) -> dict[str, Weights]:
    """What the policy does instead of drawing uniformly: a weight for every item."""
    n = len(popularity)

    def stretch(size: int) -> Weights:
        def weights(rng: np.random.Generator) -> np.ndarray:
            first = rng.integers(n - size + 1)
            return np.where((np.arange(n) >= first) & (np.arange(n) < first + size), 1.1, 1.0)

        return weights

    def scattered(rng: np.random.Generator) -> np.ndarray:
        return np.where(rng.permutation(n) < n // 2, 1.1, 1.0)

    order = np.argsort(np.argsort(popularity, kind="stable"))
    return {
        "none (false alarms)": lambda rng: np.ones(n),
        "a tenth of the catalogue 10 % more often": stretch(n // 10),
        "a fifth of the catalogue 10 % more often": stretch(n // 5),
        "half of the catalogue 10 % more often": stretch(n // 2),
        "the most popular tenth 10 % more often": lambda rng: np.where(order >= n - n // 10, 1.1, 1.0),
        "popularity leaks in: 0.9 uniform + 0.1 by popularity": lambda rng: 0.9 + 0.1 * popularity / popularity.mean(),
        "popularity leaks in: weight popularity^0.1": lambda rng: np.maximum(popularity, 1.0) ** 0.1,
        "500 items scattered at random 10 % more often": scattered,
    }


def alarms(design: UniformPolicy, null: np.ndarray, weights: Weights, n: int) -> np.ndarray:
    """(audits, questions): which questions say no."""
    found = []
    for audit in range(n):
        rng = generator(1, "audit-power", audit)
        p = uniformity.p_values(design.statistics(design.draw(1, "audit", audit, weights=weights(rng))), null)
        found.append(stats.holm(p) <= ALPHA)
    return np.array(found)


IMPRESSIONS = 20_000
FIFTH = 5  # every fifth item


def explored_logs(audit: int, policy: Policy) -> Iterator[tuple[str, Partition]]:
    """(what is wrong, a log): a log of the policy with several propensities, and one without a fifth of the items."""
    data, scores, free = policy
    rng = generator(1, "audit-power", "propensities", audit)

    def chances(temperature: float, eligible: np.ndarray = free) -> np.ndarray:
        return softmax_chances(scores, temperature, eligible=eligible)

    right, shown = chances(1.0), free & (np.arange(data.n_items) % FIFTH > 0)
    log = explore(data, right, IMPRESSIONS, audit)

    def relogged(change: Callable[[np.ndarray, Triplets], np.ndarray], of: Partition = log) -> Partition:
        parts = {part: of.triplets(part) for part in RANDOMIZED}
        wrong = {part: own._replace(propensities=change(own.propensities, own)) for part, own in parts.items()}
        return of.replace(**wrong)

    def of_temperature(temperature: float) -> Partition:
        other = chances(temperature)
        return relogged(lambda p, own: other[own.users, own.items])

    def noisy(p: np.ndarray, _: Triplets) -> np.ndarray:
        return np.minimum(p * np.exp(rng.normal(0, 0.3, len(p)) - 0.3**2 / 2), 1.0)

    yield "none (false alarms)", log
    yield "all 10 % too large", relogged(lambda p, _: np.minimum(1.1 * p, 1.0))
    yield "of temperature 0.8 instead of 1", of_temperature(0.8)
    yield "of temperature 1.25 instead of 1", of_temperature(1.25)
    yield "permuted among the pairs", relogged(lambda p, _: rng.permutation(p))
    yield "with independent noise of 30 %, mean kept", relogged(noisy)
    lacking = explore(data, chances(1.0, shown), IMPRESSIONS, audit)
    yield "right, but a fifth of the items is never shown", lacking
    yield "of all items, but a fifth is never shown", relogged(lambda p, own: right[own.users, own.items], lacking)


def of_propensities(audits: int) -> None:
    """Print how often wrong propensities are found."""
    data = simulate("simulated", 0)
    users = np.arange(data.n_users)
    scores = dubnb.Base().fit(data).weights_.score_rows(users).astype(np.float64)
    policy = Policy(data, (scores - scores.mean()) / scores.std(), ~data.logged.mask(users, data.n_items))
    found: dict[str, list[list[str]]] = {}
    for audit in range(audits):
        for name, log in explored_logs(audit, policy):
            answers = dubnb.audit(log, n_draws=99, seed=audit).answers
            found.setdefault(name, []).append([answer.verdict for answer in answers if answer.name in ASKED])
    print(f"| propensities, {audits:,} audits each | any no | interval | cannot be told | {' | '.join(ASKED)} |")
    print("|" + "---|" * (4 + len(ASKED)))
    for name, verdicts in found.items():
        no, unknown = (np.array([[each == said for each in own] for own in verdicts]) for said in (NO, UNKNOWN))
        share = stats.binomial_rate(int(no.any(axis=1).sum()), len(no))
        shares = " | ".join(f"{value:.3f}" for value in (unknown.any(axis=1).mean(), *no.mean(axis=0)))
        print(f"| {name} | {share.rate:.3f} | {share.low:.3f}..{share.high:.3f} | {shares} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.audit_power", description=__doc__)
    parser.add_argument("--audits", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=uniformity.N_DRAWS)
    parser.add_argument("--propensities", action="store_true", help="wrong propensities instead of no uniform choice")
    arguments = parser.parse_args()
    if arguments.propensities:
        warnings.simplefilter("ignore", UserWarning)
        of_propensities(arguments.audits)
        return
    data = simulate("yahoo-like", 0)
    design = uniformity.uniform_policy(data, uniformity.randomized_log(data), selection.taste_model(data, 0).scorer)
    null = uniformity.null_draws(design, arguments.draws, 0, quiet=False)
    popularity = np.bincount(data.triplets("S_c").items, minlength=data.n_items).astype(np.float64)
    print(f"| distortion, {arguments.audits:,} audits each | any no | interval | {' | '.join(STATISTICS)} |")
    print("|" + "---|" * (3 + len(STATISTICS)))
    for name, weights in distortions(popularity).items():
        found = alarms(design, null, weights, arguments.audits)
        share = stats.binomial_rate(int(found.any(axis=1).sum()), len(found))
        each = " | ".join(f"{value:.3f}" for value in found.mean(axis=0))
        print(f"| {name} | {share.rate:.3f} | {share.low:.3f}..{share.high:.3f} | {each} |", flush=True)


if __name__ == "__main__":
    main()
