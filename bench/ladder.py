"""The ladder of systems on several logs, tuned alike and compared within data seeds.

    python -m bench.ladder --data yahoo-like --backbone mf --seeds 3 --n-jobs 2 --out runs/ladder --record ladder.json
    python -m bench.ladder --data coat --data-dir DIR --seeds 5 --out runs/coat

Every system gets the same number of candidates around its defaults for the log (9, see `dubnb.experiments.budgets`),
judged by the validation AUC on a log of their own (data seed TUNING_SEED). A search whose winner lies at an end of its
grid goes on beyond that end, until the winner lies inside or EXTENSIONS times; what it costs more is in the column
"tried". The winner is then fitted on `--seeds` other logs. Truth: all pairs outside S_c and S_t against y^t. Finished
fits are kept in `--out`, so that the same command goes on where it stopped. `--record` keeps what the table is made of,
beside what the file holds of other systems (bench/records/ladder-*.json, shown in docs/results.md).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dubnb import load_dataset, metrics
from dubnb.experiments import budgets
from dubnb.experiments.study import WHOLE, Case, Design, Study
from dubnb.experiments.systems import Choice
from dubnb.sweeps.runner import Resources

TUNING_SEED = 100
EXTENSIONS = 4
BUDGET = budgets.BUDGETS["quick"]._replace(name="ladder", seeds=1, extensions=EXTENSIONS)
REFERENCE = "base"
METRICS = ("auc", "ndcg", "truth_auc", "truth_ndcg", "personal")
TRAINED = ("methods", "objective", "backbones", "data", "train.py", "losses.py")  # what a fit depends on
ALIKE = "alike for all"  # marks systems that rank items practically alike for everyone

Row = dict[str, Any]


def ladder(data_name: str, data_dir: str | None, n_logs: int, choice: Choice) -> Design:
    """Every system on every log; what it is fitted with is searched on the tuning log, which is the whole data."""
    logs = {f"log {seed}": load_dataset(data_name, seed=seed, data_dir=data_dir) for seed in range(n_logs)}
    tuning = load_dataset(data_name, seed=TUNING_SEED, data_dir=data_dir)
    cases = [Case(system, log) for system in choice.systems(tuning) for log in logs]
    return Design(tuning, {WHOLE: tuning, **logs}, cases)


def record(study: Study) -> dict[str, Row]:
    """What the table is made of, by system: what was chosen, of how many, and every metric by log."""
    rows = {}
    for system in dict.fromkeys(case.system for case in study.design.cases):
        winner = study.winners[Case(system, WHOLE)]
        cases = [case for case in study.design.cases if case.system == system and case in study.results]
        if winner is None or not cases:
            continue
        values = {name: [study.mean(case, name) for case in cases] for name in METRICS}
        rows[system.name] = {
            "chosen": winner.point,
            "ends": [name for name, _ in budgets.edges(winner.axes, winner.point)],
            "tried": winner.n_points,
            "reads_grades": system.reads_grades(study.design.source),
            "commit": _commit(),
            **{name: own for name, own in values.items() if not np.isnan(own).any()},
        }
    return rows


def _commit() -> str:
    """The last one that changed what a fit depends on."""
    package = Path(__file__).parent.parent / "dubnb"
    words = ["git", "-C", str(package), "log", "-1", "--format=%h", "--", *TRAINED]
    found = subprocess.run(words, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def table(rows: dict[str, Row]) -> str:
    """Markdown: mean and spread of each system, and its difference from base within data seeds."""
    shown = [name for name in METRICS[:-1] if all(name in row for row in rows.values())]
    judged = "truth_auc" if "truth_auc" in shown else "auc"
    lines = ["| system | chosen on S_va | tried | " + " | ".join(shown) + f" | {judged} - {REFERENCE} | personal |"]
    lines.append("|---|---|---:|" + "---|" * (len(shown) + 2))
    for name, row in rows.items():
        cells = [name + " (reads grades)" * row["reads_grades"], _chosen(row), str(row["tried"])]
        cells += [_spread(row[metric]) for metric in shown]
        compared = REFERENCE in rows and name != REFERENCE
        cells += [_gain(row[judged], rows[REFERENCE][judged]) if compared else "", _personal(row)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


AS_DEFAULTS = {  # names of bench.defaults where they differ
    "bridge exact": "bridge (exact)",
    "dub exact": "dub (exact)",
    "dub-x binary": "dub-x (binary)",
    "dub-x graded": "dub-x",
}


def over_defaults(ladders: dict[str, dict[str, Row]], kept: dict[str, Row]) -> str:
    """Markdown: the AUC tuned, with defaults (`kept`: the record of bench.defaults), and the gain, on common logs."""
    lines = ["| AUC tuned / defaults, gain | " + " | ".join(ladders) + " |", "|---|" + "---|" * len(ladders)]
    for system in next(iter(ladders.values())):
        cells = []
        for log, rows in ladders.items():
            own = AS_DEFAULTS.get(system, system)
            tuned = rows[system]["auc"] if rows.get(system, {}).get("chosen") else []  # baselines have no search
            named = {f"mf {log} {seed} {own}": auc for seed, auc in enumerate(tuned)}
            cells.append(_over([(auc, kept[name]["auc"]) for name, auc in named.items() if name in kept]))
        if any(cells):
            lines.append(f"| {system} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _over(pairs: list[tuple[float, float]]) -> str:
    """Means of (tuned, with defaults), and the gain; nothing where there are no pairs."""
    if not pairs:
        return ""
    tuned, plain = np.mean(pairs, axis=0)
    return f"{tuned:.4f} / {plain:.4f}, {tuned - plain:+.4f}"


def _chosen(row: Row) -> str:
    """The winner's searched parameters; those at an end of their grid are marked."""
    marked = {name: " (edge)" if name in row["ends"] else "" for name in row["chosen"]}
    return ", ".join(f"{name} {value:.3g}{marked[name]}" for name, value in row["chosen"].items())


def _personal(row: Row) -> str:
    share = float(np.mean(row["personal"]))
    return f"{share:.3f}" + (f", {ALIKE}" if share < metrics.SAME_FOR_ALL else "")


def _spread(values: list[float]) -> str:
    return f"{np.mean(values):.4f} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.4f}"


def _gain(values: list[float], reference: list[float]) -> str:
    difference = np.subtract(values, reference)
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
    parser.add_argument("--record", type=Path, help="a JSON file that gets what the table is made of")
    args = parser.parse_args()
    names = args.systems.split(",") if args.systems else Choice().names
    design = ladder(args.data, args.data_dir, args.seeds, Choice(names, [args.backbone]).checked())
    os.makedirs(args.out, exist_ok=True)
    study = Study(design, BUDGET, args.out, resources=Resources(n_jobs=args.n_jobs))
    study.run(lambda line: print(line, file=sys.stderr))
    rows = record(study)
    if args.record:
        kept = json.loads(args.record.read_text()) if args.record.exists() else {}
        args.record.write_text(json.dumps(kept | rows, indent=1) + "\n")
    print(f"{args.data}, {args.backbone}, {args.seeds} data seeds; mean ± std over seeds\n")
    print(table(rows))


if __name__ == "__main__":
    main()
