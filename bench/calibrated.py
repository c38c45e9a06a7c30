"""How far probabilities are off the truth: as the loss makes them, and with Platt scaling on S_va (`predict`) or S_t.

    python -m bench.calibrated --seeds 3 --out calibrated.json [--figures DIR]

Mean difference between predicted and true probability over groups of S_te's pairs on `simulated` (15 of equal size),
every system with its defaults; --figures also writes the reliability diagrams of some, on the first log.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np

from bench.defaults import SYSTEMS

COLUMNS = {"trained": "as trained", "S_t": "Platt scaling on S_t", "S_va": "on S_va (`predict`)"}
DRAWN = {"base": "base", "dub": "dub", "dub-x": "dub-x graded"}  # system here -> its colour's name


def judged(data, model):
    """The error against the truth by way of calibration."""
    from dubnb.calibration import Calibration, expected_calibration_error

    S_te, S_t = data.triplets("S_te"), data.triplets("S_t")
    scores, of_S_t = (model.weights_.score_pairs(part.users, part.items) for part in (S_te, S_t))
    on_S_t = Calibration.fit(of_S_t, S_t.labels, S_t.weights)
    truth = data.truth.probability(S_te.users, S_te.items)
    ways = {"trained": model.uncalibrated(scores), "S_t": on_S_t(scores), "S_va": model.probabilities(scores)}
    return {name: expected_calibration_error(p, truth) for name, p in ways.items()}, ways


def run(args):
    """Every system on every log."""
    import dubnb
    from dubnb.experiments import pages
    from dubnb.report import figures

    found = {}
    for seed in range(args.seeds):
        data = dubnb.load_dataset("simulated", seed=seed)
        for name, (method, params) in SYSTEMS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                errors, ways = judged(data, dubnb.make(method, **params).fit(data))
            found.setdefault(name, []).append(errors)
            if args.figures and seed == 0 and name in DRAWN:
                groups = pages.reliability_groups(data, ways["S_va"], ways["trained"])
                drawing = figures.reliability_diagram(f"reliability-{name}", DRAWN[name], groups)
                (args.figures / f"reliability-{name}.svg").write_text(figures.standalone(drawing))
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    return found


def table(kept):
    """Markdown: a row for each system, the mean over logs."""
    lines = ["| off the truth by | " + " | ".join(COLUMNS.values()) + " |", "|---|" + "---:|" * len(COLUMNS)]
    for system, logs in kept.items():
        cells = [f"{np.mean([log[name] for log in logs]):.4f}".lstrip("0") for name in COLUMNS]
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--figures", type=Path)
    print(table(run(parser.parse_args())))


if __name__ == "__main__":
    main()
