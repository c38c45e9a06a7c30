"""Does training with term b help? dub with terms "abcde", b by M_t, against plain dub, on the simulators and on Coat.

    python -m bench.term_b [--data simulated] [--data-dir DIR] [--worlds 6] [--weights 0.1 0.3 1]

Differences of the AUC (S_te) and of nDCG against plain dub, paired within a world (data seed), Student's 95 % over
worlds. "by the truth" puts R^t in M_t's place on S_c, which only a simulator can: the most that term b could bring.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

import dubnb
from dubnb import stats
from dubnb.objective import terms


@dataclass(frozen=True)
class Oracle:
    """R^t's labels, for pairs of S_c."""

    truth: Any

    def predict(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return self.truth.label(users, items)


def judged(model: dubnb.DUB, data: dubnb.Partition) -> np.ndarray:
    """AUC and nDCG on S_te."""
    found = model.fit(data).evaluate(data, truth=False)
    return np.array([found["auc"], found["ndcg"]])


def with_oracle(weight: float, data: dubnb.Partition) -> np.ndarray:
    """Plain term b, except for its teacher."""
    real = terms.term_b

    def term_b(data: Any, teacher: Any, weight: float, targets: Any) -> terms.Observed:
        return real(data, Oracle(data.truth), weight, targets)

    with mock.patch("dubnb.objective.terms.term_b", term_b):
        return judged(dubnb.DUB(terms="abcde", b_weight=weight), data)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.term_b", description=__doc__)
    parser.add_argument("--data", default="simulated")
    parser.add_argument("--data-dir")
    parser.add_argument("--worlds", type=int, default=6)
    parser.add_argument("--weights", type=float, nargs="+", default=(0.1, 0.3, 1.0))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    found: dict[str, list[np.ndarray]] = {}
    for world in range(arguments.worlds):
        data = dubnb.load_dataset(arguments.data, seed=world, data_dir=arguments.data_dir, quiet=True)
        plain = judged(dubnb.DUB(), data)
        found.setdefault("plain dub", []).append(plain)
        for weight in arguments.weights:
            by_model = judged(dubnb.DUB(terms="abcde", b_weight=weight), data)
            found.setdefault(f"b by M_t, weight {weight:g}", []).append(by_model - plain)
            if data.truth is not None:
                found.setdefault(f"b by the truth, weight {weight:g}", []).append(with_oracle(weight, data) - plain)
    print(f"{arguments.data}, {arguments.worlds} worlds\n\n| dub | AUC | nDCG |\n|---|---|---|")
    for name, rows in found.items():
        cells = [stats.mean_interval(np.array(rows)[:, k]) for k in range(2)]
        sign = "" if name == "plain dub" else "+"
        print(
            f"| {name} | "
            + " | ".join(f"{c.rate:{sign}.4f} ({c.low:{sign}.4f}..{c.high:{sign}.4f})" for c in cells)
            + " |"
        )


if __name__ == "__main__":
    main()
