"""RQ4: how do the positives in S_c and the size of S_t matter?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dubnb._check import InputError
from dubnb._random import generator
from dubnb.experiments import pages
from dubnb.experiments.pages import Findings
from dubnb.experiments.study import WHOLE, Case, Design, Study, best_value, report_label
from dubnb.experiments.systems import Choice
from dubnb.report import figures
from dubnb.report.page import Cell, Figure, Gallery, Section, Table

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.budgets import Budget

NAME = "rq4"
TITLE = "Two factors: positives in S_c, size of S_t"
QUESTION = "Which system is best when S_c holds fewer or more positives, and when S_t is smaller?"
PERCENTAGES = (10, 30, 50, 70)
PAPER_DATA, PAPER_SIZE = "yahoo-r3", 135_000  # the size of the subset of S_c
METRIC = "auc"
FACTORS = {"S_c": "% of the subset of S_c that is positive", "S_t": "% of S_t that is kept"}
TITLES = {"S_c": "Positives in S_c", "S_t": "Size of S_t"}
BOLD = ("dub",)  # the paper's own method


def design(data: Partition, budget: Budget, choice: Choice) -> Design:
    """Every system under every share of both factors."""
    size, how = subset_size(data)
    conditions = {WHOLE: data}
    conditions |= {_condition("S_c", percentage): with_positives(data, size, percentage) for percentage in PERCENTAGES}
    conditions |= {_condition("S_t", percentage): with_less_S_t(data, percentage) for percentage in PERCENTAGES}
    cases = [
        Case(system, _condition(factor, percentage))
        for factor in FACTORS
        for system in choice.systems(data)
        for percentage in PERCENTAGES
    ]
    search = "under every condition" if budget.search_everywhere else "once per system on the whole data, then kept"
    return Design(data, conditions, cases, notes=(("subset of S_c", f"{size:,} pairs, {how}"), ("searched", search)))


def subset_size(data: Partition) -> tuple[int, str]:
    """(pairs, reason): the paper's size on Yahoo! R3, elsewhere the largest that has enough of both labels."""
    if data.name.startswith(PAPER_DATA):
        return PAPER_SIZE, "the paper's size"
    labels = data.triplets("S_c").labels
    positives = int(labels.sum(dtype=np.float64))
    most = 100 * positives // max(PERCENTAGES)
    size = min(most, 100 * (len(labels) - positives) // (100 - min(PERCENTAGES)))
    if size < 10:
        raise InputError(f"S_c has {positives} positives of {len(labels)} pairs: rq4 needs more of both labels")
    return size, "the largest size that has enough positives and negatives for every share"


def with_positives(data: Partition, size: int, percentage: int) -> Partition:
    """`data` with `size` random pairs of S_c, `percentage` % of them positive."""
    S_c = data.triplets("S_c")
    n_positives = round(size * percentage / 100)
    rows = []
    for label, n in ((1, n_positives), (0, size - n_positives)):
        of_label = np.flatnonzero(S_c.labels == label)
        if n > len(of_label):
            raise InputError(f"S_c has {len(of_label)} pairs of label {label}, rq4 needs {n}: use data with more")
        rows.append(
            generator(0, "rq4", "S_c", label).permutation(of_label)[:n]
        )  # nested: a larger subset contains the smaller ones
    picked = np.sort(np.concatenate(rows))
    propensities = None if data.propensities is None else data.propensities[picked]
    name = f"{data.name}, {_condition('S_c', percentage)}"
    return data.replace(S_c=S_c.take(picked), propensities=propensities, name=name)


def with_less_S_t(data: Partition, percentage: int) -> Partition:
    """`data` with a random part of S_t."""
    S_t = data.triplets("S_t")
    n = max(1, round(len(S_t.users) * percentage / 100))
    picked = np.sort(generator(0, "rq4", "S_t").permutation(len(S_t.users))[:n])
    return data.replace(S_t=S_t.take(picked), name=f"{data.name}, {_condition('S_t', percentage)}")


def _condition(factor: str, percentage: int) -> str:
    return f"S_c {percentage} % positive" if factor == "S_c" else f"S_t {percentage} %"


def findings(study: Study) -> Findings:
    """A curve and a table for each factor and backbone."""
    sections = []
    for factor, title in TITLES.items():
        lines = {backbone: _lines(study, factor, backbone) for backbone in study.backbones()}
        drawn = [_factor_curves(factor, backbone, own) for backbone, own in lines.items() if own]
        sections.append(
            Section(title, [Gallery(drawn), *(_level_table(study, factor, backbone) for backbone in lines)])
        )
    return Findings(_count_wins(study), sections)


def _cases_by_percentage(study: Study, factor: str, backbone: str) -> list[list[Case]]:
    """The cases of every system under `factor`, by percentage."""
    columns = [study.cases(backbone, _condition(factor, percentage)) for percentage in PERCENTAGES]
    return [list(row) for row in zip(*columns, strict=True)]


def _lines(study: Study, factor: str, backbone: str) -> dict[str, figures.Line]:
    """{system: (means, standard deviations)}, for systems that are done at every percentage."""
    lines: dict[str, figures.Line] = {}
    for row in _cases_by_percentage(study, factor, backbone):
        if all(case in study.results for case in row):
            values = np.array([study.values(case, METRIC) for case in row])
            spread = values.std(axis=1, ddof=1) if values.shape[1] > 1 else None
            lines[row[0].system.name] = (values.mean(axis=1), spread)
    return lines


def _factor_curves(factor: str, backbone: str, lines: Mapping[str, figures.Line]) -> Figure:
    below = far_below({name: means for name, (means, _) in lines.items()})
    kept = {name: line for name, line in lines.items() if name not in below}
    labels = (FACTORS[factor], report_label(METRIC))
    drawing = figures.curves(f"{NAME}-{factor}-{backbone}", list(PERCENTAGES), kept, labels, bold=BOLD)
    caption = "Lines: mean over seeds; bands: one standard deviation to either side."
    left_out = f" Not drawn, because far below: {', '.join(below)} (see the table)." if below else ""
    return Figure(f"{report_label(METRIC)}, {backbone}", drawing, caption + left_out)


def far_below(lines: Mapping[str, np.ndarray]) -> list[str]:
    """Lines that lie further below the others than the others are apart, the lowest first.

    If they were drawn, the others could not be told apart.
    """
    order = sorted(lines, key=lambda name: float(np.max(lines[name])))
    for n in range(len(order) - 2, 0, -1):
        below, others = order[:n], [lines[name] for name in order[n:]]
        if np.min(others) - max(np.max(lines[name]) for name in below) > np.max(others) - np.min(others):
            return below
    return []


def _level_table(study: Study, factor: str, backbone: str) -> Table:
    rows = _cases_by_percentage(study, factor, backbone)
    best = [best_value([study.mean(case, METRIC) for case in column], METRIC) for column in zip(*rows, strict=True)]
    cells: list[list[Cell]] = [
        [
            pages.case_label(study, row[0]),
            *(pages.metric_cell(study, case, METRIC, top) for case, top in zip(row, best, strict=True)),
        ]
        for row in rows
    ]
    header = ["system", *(f"{percentage} %" for percentage in PERCENTAGES)]
    note = f"AUC by {FACTORS[factor]}; mean over seeds, ± standard deviation, best of each column in bold."
    groups = pages.group_headings([row[0] for row in rows])
    return Table(f"Backbone {backbone}", header, cells, note, groups)


def _count_wins(study: Study) -> list[str]:
    leaders: list[Sequence[str]] = [
        study.leaders(cases, METRIC)
        for backbone in study.backbones()
        for condition in list(study.design.conditions)[1:]
        if (cases := study.done(backbone, condition))
    ]
    if not leaders:
        return []
    n_led = Counter(name for names in leaders for name in names)
    n_led.update({name: 0 for name in BOLD if any(case.system.name == name for case in study.design.cases)})
    (first, n_first), *others = n_led.most_common()
    n = "all" if n_first == len(leaders) else f"{n_first} of the"
    rest = "".join(f", {name} in {led or 'none'}" for name, led in others)
    rest += "; where two print alike, both count" if sum(n_led.values()) > len(leaders) else ""
    return [f"{first} has the best AUC in {n} {len(leaders)} settings (factor, share and backbone){rest}."]
