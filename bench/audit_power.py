"""How small a distortion `dubnb audit` finds at Yahoo! R3's size, and how often it raises a false alarm.

    python -m bench.audit_power [--audits 1000] [--draws 999]      # prints a Markdown table

The world is `yahoo-like`: 15,400 x 1,000, S_c as logged there, and randomized logs of 5,400 users x 10 items drawn anew
for every audit. An audit asks all questions about items of `dubnb audit` that need no time column, with Holm's
correction. The uniform logs that it compares with are drawn once, since users and S_c stay the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from dubnb import stats
from dubnb._random import generator
from dubnb.data.simulate import simulate
from dubnb.theory import selection, uniformity
from dubnb.theory.audit import ALPHA
from dubnb.theory.uniformity import STATISTICS, UniformPolicy

Weights = Callable[[np.random.Generator], np.ndarray]


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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.audit_power", description=__doc__)
    parser.add_argument("--audits", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=uniformity.N_DRAWS)
    arguments = parser.parse_args()
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
