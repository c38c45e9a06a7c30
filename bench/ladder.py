"""The ladder of systems on several logs, tuned with equal budgets and compared within data seeds.

    python -m bench.ladder --data yahoo-like --backbone mf --seeds 5 --n-jobs 2 --out runs/ladder
    python -m bench.ladder --data coat --data-dir DIR --seeds 5 --out runs/coat

Every system gets the same number of candidates around its defaults for the log (9, see `dubnb.experiments.budgets`).
They are judged by the validation AUC on a log of their own (data seed TUNING_SEED); the winner is then fitted on
`--seeds` other logs. Truth: all pairs outside S_c and S_t against y^t. Finished fits are kept in `--out`, so that the
same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import os
import sys

import numpy as np

from dubnb import load_dataset
from dubnb.experiments import budgets, measures
from dubnb.experiments.study import WHOLE, Case, Design, Study
from dubnb.experiments.systems import Choice, System
from dubnb.sweeps.engine import Resources

TUNING_SEED = 100
BUDGET = budgets.BUDGETS["quick"]._replace(name="ladder", seeds=1)
REFERENCE = "base"


def ladder(data_name: str, data_dir: str | None, n_logs: int, choice: Choice) -> Design:
    """Every system on every log; what it is fitted with is searched on the tuning log, which is the whole data."""
    logs = {f"log {seed}": load_dataset(data_name, seed=seed, data_dir=data_dir) for seed in range(n_logs)}
    tuning = load_dataset(data_name, seed=TUNING_SEED, data_dir=data_dir)
    cases = [Case(system, log) for system in choice.systems(tuning) for log in logs]
    return Design(tuning, {WHOLE: tuning, **logs}, cases)


def table(study: Study) -> str:
    """Markdown: mean and spread of each system, and its difference from base within data seeds."""
    metrics = [name for name in ("auc", "ndcg", "truth_auc", "truth_ndcg") if name in measures.shown(study)]
    judged = "truth_auc" if "truth_auc" in metrics else "auc"
    systems = list(dict.fromkeys(case.system for case in study.design.cases))
    reference = next((_values(study, system, judged) for system in systems if system.name == REFERENCE), None)
    lines = ["| system | chosen on S_va | " + " | ".join(metrics) + f" | {judged} - {REFERENCE} |"]
    lines.append("|---|" + "---|" * (len(metrics) + 2))
    for system in systems:
        cells = [_spread(_values(study, system, metric)) for metric in metrics]
        gain = (
            "" if reference is None or system.name == REFERENCE else _gain(_values(study, system, judged) - reference)
        )
        lines.append(f"| {system.name} | {_chosen(study, system)} | " + " | ".join(cells) + f" | {gain} |")
    return "\n".join(lines)


def _values(study: Study, system: System, metric: str) -> np.ndarray:
    """One value per log."""
    cases = [case for case in study.design.cases if case.system == system]
    return np.array([measures.mean(study, case, metric) for case in cases])


def _chosen(study: Study, system: System) -> str:
    """The winner's searched parameters; those at an end of their grid are marked."""
    winner = study.winners[Case(system, WHOLE)]
    if winner is None:
        return "no candidate finished"
    ends = {name for name, _ in budgets.edges(winner.axes, winner.point)}
    return ", ".join(f"{name} {value:g}{' (edge)' if name in ends else ''}" for name, value in winner.point.items())


def _spread(values: np.ndarray) -> str:
    return f"{np.mean(values):.4f} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.4f}"


def _gain(difference: np.ndarray) -> str:
    return f"{difference.mean():+.4f} ({difference.min():+.4f} to {difference.max():+.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="yahoo-like")
    parser.add_argument("--data-dir", help="where a real data set's files are; its seeds are seeds of the split")
    parser.add_argument("--backbone", default="mf")
    parser.add_argument("--systems", help="systems or groups with commas between (default: all)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--n-jobs", type=int, default=2)
    parser.add_argument("--out", default="ladder")
    args = parser.parse_args()
    names = args.systems.split(",") if args.systems else Choice().names
    design = ladder(args.data, args.data_dir, args.seeds, Choice(names, [args.backbone]).checked())
    os.makedirs(args.out, exist_ok=True)
    study = Study(design, BUDGET, args.out, resources=Resources(n_jobs=args.n_jobs))
    study.run(lambda line: print(line, file=sys.stderr))
    logs = f"{args.seeds} data seeds, {BUDGET.points} candidates each"
    print(f"{args.data}, {args.backbone}, {logs}; mean ± std over seeds\n")
    print(table(study))


if __name__ == "__main__":
    main()
