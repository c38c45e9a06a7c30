"""Does a tighter bound go with a better AUC? Rank correlations over methods, gammas and seeds, in several worlds.

    python -m bench.bound_rank [--data simulated] [--worlds 8] [--seeds 2]      # prints Markdown tables

In every world (data seed) each model's bound is evaluated with one M_t for all, and Spearman's correlation is taken of
minus the sum (so that +1 means: the tighter, the better) with the AUC on S_te and with the AUC against the truth.
Worlds are independent, so the interval is Student's over them.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

import dubnb
from dubnb import stats
from dubnb.losses import LOSSES
from dubnb.objective import bounds
from dubnb.objective.bounds import Predictions
from dubnb.theory.bound import terms_of

GAMMAS = (0.1, 0.5, 1.5, 4.0)
MODELS = [(name, {}) for name in ("base", "unif", "combine", "ips", "cause")]
MODELS += [(name, {"gamma": gamma}) for name in ("bridge", "dub") for gamma in GAMMAS]
LOSS_NAMES = ("bce", "mae", "zero_one")
TRAINABLE = "acde"


def rows_of(data: dubnb.Partition, seeds: int) -> list[dict[str, float]]:
    """Every model's AUCs, and its terms, sum and ideal loss under each loss."""
    M_t = dubnb.Unif().fit(data).weights_
    rows = []
    for name, params in MODELS:
        for seed in range(seeds):
            model = dubnb.make(name, seed=seed, **params).fit(data)
            found = model.evaluate(data)
            row = {"auc": found["auc"], "truth": found["truth_auc"]}
            for loss in LOSS_NAMES:
                forms = [Predictions(weights, True, LOSSES[loss].link) for weights in (model.weights_, M_t)]
                measured = bounds.measure(forms[0], forms[1], data, loss)
                terms = terms_of(measured, data)
                row |= {f"{loss} sum": sum(terms.values()), f"{loss} ideal": measured.ideal}
                row |= {f"{loss} a+c+d+e": sum(terms[letter] for letter in TRAINABLE)}
            rows.append(row)
    return rows


def spearman(x: list[float], y: list[float]) -> float:
    """Rank correlation."""
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bound_rank", description=__doc__)
    parser.add_argument("--data", default="simulated")
    parser.add_argument("--worlds", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    worlds = []
    for world in range(arguments.worlds):
        worlds.append(rows_of(dubnb.load_dataset(arguments.data, seed=world, quiet=True), arguments.seeds))
    n = len(worlds[0])
    print(f"{arguments.data}, {len(worlds)} worlds, {n} models each: Spearman of -x with the AUC (95 % over worlds)\n")
    print("| x | AUC on S_te | AUC against the truth |\n|---|---|---|")
    for column in [key for key in worlds[0][0] if " " in key]:
        cells = []
        for target in ("auc", "truth"):
            values = [spearman([-row[column] for row in rows], [row[target] for row in rows]) for rows in worlds]
            found = stats.mean_interval(np.array(values))
            cells.append(f"{found.rate:+.2f} ({found.low:+.2f}..{found.high:+.2f})")
        print(f"| {column} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
