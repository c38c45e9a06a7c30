"""Tables and warnings that all experiments share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dubnb.experiments import budgets, measures, words
from dubnb.experiments.study import WHOLE, Case, Study, Winner
from dubnb.experiments.systems import HEADINGS
from dubnb.report.page import Cell, Label, Section, Table, Value

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

SIMULATED = (
    "These data are simulated: the truth is known, but differences between methods are smaller than on Yahoo! R3 and "
    "can turn around in other worlds."
)
SMOKE = "Budget smoke checks that everything runs: too few epochs and candidates for any conclusion."
READS_GRADES, RANKS_ALIKE = "reads grades", "same ranking for all users"
MEANS = "Mean over seeds, ± standard deviation; best in bold."


def name_of(study: Study, case: Case) -> Label:
    """A case's name for a table, with what must be known about it."""
    data = study.design.conditions[case.condition]
    remarks = (
        (READS_GRADES, case.system.reads_grades(data)),
        (RANKS_ALIKE, measures.ranks_alike(study, case)),
    )
    return Label(case.system.name, ", ".join(text for text, holds in remarks if holds))


def groups(cases: Sequence[Case]) -> dict[int, str]:
    """Headings above the rows where a group of systems begins; none where there is one group only."""
    starts = {}
    for row, case in enumerate(cases):
        if row == 0 or cases[row - 1].system.group != case.system.group:
            starts[row] = HEADINGS[case.system.group]
    return starts if len(starts) > 1 else {}


def metric_table(
    study: Study,
    title: str,
    cases: Sequence[Case],
    note: str,
    stars: Mapping[str, str] | None = None,
    paper: Mapping[str, Mapping[str, float]] | None = None,
) -> Table:
    """A row per case, the best of each column in bold; `stars`: signs behind the best; `paper`: its numbers beside."""
    header: list[str] = ["system"]
    rows: list[list[Cell]] = [[name_of(study, case)] for case in cases]
    shown = measures.shown(study)
    for metric in shown:
        means = [measures.mean(study, case, metric) for case in cases]
        best = measures.best(means, metric)
        header.append(measures.label(metric))
        for case, row in zip(cases, rows, strict=True):
            row.append(metric_value(study, case, metric, best, (stars or {}).get(metric, "")))
        if paper and any(metric in numbers for numbers in paper.values()):
            header.append("paper")
            for case, row in zip(cases, rows, strict=True):
                row.append(Value(paper.get(case.system.name, {}).get(metric)))
    # tinted where more is better: a tint says "more"
    high = (column for column, metric in enumerate(shown, 1) if not measures.low_is_good(metric))
    heat = () if paper else tuple(high)
    return Table(title, header, rows, note, heat, groups(cases))


def metric_value(study: Study, case: Case, metric: str, best: float | None, stars: str = "") -> Value:
    """Mean and spread of a metric, or nothing where the case is not done."""
    mean = measures.mean(study, case, metric)
    if mean != mean:
        return Value(None)
    values = measures.values(study, case, metric)
    spread = f"±{values.std(ddof=1):.4f}" if len(values) > 1 else ""
    return Value(mean, f"{mean:.4f}{stars if mean == best else ''}", spread, mean == best)


# ---- searches and warnings -----------------------------------------------------------------------------------------


def winners_section(study: Study) -> Section:
    """What each search chose, and where in its grid that is."""
    alone = all(case.condition == WHOLE for case in study.winners)
    searched = {case: winner for case, winner in study.winners.items() if winner is None or winner.axes}
    rows = [_winner_row(case, winner, alone) for case, winner in searched.items()]
    select = f"S_va {measures.label(study.design.select)}"
    header = ["system", "backbone", *([] if alone else ["condition"]), "chosen", select]
    note = (
        "Chosen on S_va alone. Candidates: all that were tried, also beyond an end of the first grid. A parameter that "
        "is still at an end may have its optimum outside: a wider search could change the order of the systems."
    )
    table = Table("", [*header, "in the grid", "candidates", "grid"], rows, note)
    return Section("What the searches chose", [table] if rows else [])


def _winner_row(case: Case, winner: Winner | None, alone: bool) -> list[Cell]:
    about: list[Cell] = [case.system.name, case.system.on, *([] if alone else [case.condition])]
    if winner is None:
        return [*about, "-", Value(None), "no candidate finished", Value(None), "-"]
    chosen = ", ".join(f"{name} {value:g}" for name, value in winner.point.items())
    grid = "; ".join(f"{name} {_range(values)}" for name, values in winner.axes.items())
    at_edge = ", ".join(f"{name} at the {side} end" for name, side in budgets.edges(winner.axes, winner.point))
    tried = Value(winner.n_points, f"{winner.n_points}", extended(winner))
    return [*about, chosen, Value(winner.validation), f"⚠ {at_edge}" if at_edge else "inside", tried, grid]


def extended(winner: Winner) -> str:
    """How often a search went on, in words: "extended twice: lam"; "" where it did not."""
    words_of = {1: "once", 2: "twice"}
    times = [f"{words_of.get(n, f'{n} times')}: {name}" for name, n in winner.extended]
    return f"extended {', '.join(times)}" if times else ""


def _range(values: Sequence[Any]) -> str:
    values = sorted(values)
    if len(values) <= 5:
        return ", ".join(f"{value:g}" for value in values)
    return f"{values[0]:g} to {values[-1]:g} ({len(values)} values)"


def warnings_of(study: Study, data: Partition) -> list[str]:
    """What a reader must know before believing the numbers."""
    said = [*data_warnings(data, study.budget), *_about_popularity(study)]
    alike = [str(case) for case in study.judged if measures.ranks_alike(study, case)]
    if alike:
        said.append(f"The factors have vanished, so that every user gets the same ranking: {', '.join(alike)}.")
    ends: dict[tuple[str, str], dict[str, None]] = {}
    for case, winner in study.winners.items():
        for end in budgets.edges(winner.axes, winner.point) if winner else ():
            ends.setdefault(end, {})[f"{case.system.name} ({case.system.on})"] = None
        if winner and winner.lost:
            n = f"{len(winner.lost)} of {winner.n_points} candidates"
            said.append(f"{n} of {case} did not finish: {winner.lost[0]}")
    for (name, side), names in ends.items():
        said.append(f"The best {name} lies at the {side} end of its grid, so perhaps beyond it: {', '.join(names)}.")
    said += [f"{case} has no result: {reason}" for case, reason in study.failures.items()]
    return said


def _about_popularity(study: Study) -> list[str]:
    """A sentence for each condition under which a system ranks worse than popularity does."""
    name, said = measures.label(study.design.select), []
    for popularity, lower in measures.below_popularity(study).items():
        where = "" if popularity.condition == WHOLE else f", {popularity.condition}"
        level = measures.mean(study, popularity, study.design.select)
        who = words.listed([f"{case.system.name} ({case.system.on})" for case in lower])
        said.append(f"Below popularity, which ranks alike for everyone ({name} {level:.4f}{where}): {who}.")
    return said


def data_warnings(data: Partition, budget: budgets.Budget) -> list[str]:
    """Those that hold for all experiments on these data."""
    return [*([SMOKE] if budget.name == "smoke" else []), *([SIMULATED] if data.truth is not None else [])]
