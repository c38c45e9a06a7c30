"""RQ4: how do the positives in S_c and the size of S_t matter?"""

import numpy as np

from dubnb._check import InputError
from dubnb._random import generator
from dubnb.experiments import _common as common
from dubnb.experiments.study import WHOLE, Cell, Plan
from dubnb.report import figures
from dubnb.report.page import Figure, Gallery, Section, Table, Value

NAME = "rq4"
TITLE = "Two factors: positives in S_c, size of S_t"
QUESTION = "Which system is best when S_c holds fewer or more positives, and when S_t is smaller?"
PERCENTAGES = (10, 30, 50, 70)
PAPER_SIZE = 135_000  # of the subset of S_c, on Yahoo! R3
FACTORS = {"S_c": "% of the subset of S_c that is positive", "S_t": "% of S_t that is kept"}
TITLES = {"S_c": "Positives in S_c", "S_t": "Size of S_t"}


def plan(data, budget):
    size, how = subset_size(data)
    conditions = {WHOLE: data}
    for percentage in PERCENTAGES:
        conditions[_condition("S_c", percentage)] = with_positives(data, size, percentage)
    for percentage in PERCENTAGES:
        conditions[_condition("S_t", percentage)] = with_less_S_t(data, percentage)
    cells = [
        Cell(system, _condition(factor, percentage))
        for factor in FACTORS
        for system in common.systems()
        for percentage in PERCENTAGES
    ]
    search = "under every condition" if budget.search_everywhere else "once per system on the whole data, then kept"
    return Plan(conditions, cells, notes=(("subset of S_c", f"{size:,} pairs, {how}"), ("searched", search)))


def subset_size(data):
    """(pairs, why): the paper's size on Yahoo! R3, elsewhere the largest that has enough of both labels."""
    if data.name == "yahoo-r3":
        return PAPER_SIZE, "the paper's size"
    labels = data.triplets("S_c").labels
    positives = int(labels.sum(dtype=np.float64))
    most = 100 * positives // max(PERCENTAGES)
    size = min(most, 100 * (len(labels) - positives) // (100 - min(PERCENTAGES)))
    if size < 10:
        raise InputError(f"S_c has {positives} positives of {len(labels)} pairs: rq4 needs more of both labels")
    return size, "the largest size that has enough positives and negatives for every share"


def with_positives(data, size, percentage):
    """`data` with `size` random pairs of S_c, `percentage` % of them positive."""
    S_c = data.triplets("S_c")
    n_positives = round(size * percentage / 100)
    rows = []
    for label, n in ((1, n_positives), (0, size - n_positives)):
        found = np.flatnonzero(S_c.labels == label)
        if n > len(found):
            raise InputError(f"S_c has {len(found)} pairs of label {label}, rq4 needs {n}: use data with more")
        rows.append(generator(0, "rq4", "S_c", label).permutation(found)[:n])  # nested: more of a label extend fewer
    picked = np.sort(np.concatenate(rows))
    return common.with_parts(data, f"{data.name}, {_condition('S_c', percentage)}", picked)


def with_less_S_t(data, percentage):
    """`data` with a random part of S_t."""
    S_t = data.triplets("S_t")
    n = max(1, round(len(S_t.users) * percentage / 100))
    picked = np.sort(generator(0, "rq4", "S_t").permutation(len(S_t.users))[:n])
    return common.with_parts(data, f"{data.name}, {_condition('S_t', percentage)}", S_t=S_t.take(picked))


def _condition(factor, percentage):
    return f"S_c {percentage} % positive" if factor == "S_c" else f"S_t {percentage} %"


def findings(study):
    sections = []
    for factor, title in TITLES.items():
        pairs = [(backbone, _series(study, factor, backbone)) for backbone in common.backbones_of(study)]
        shown = [_figure(factor, backbone, series) for backbone, series in pairs if series]
        tables = [_table(study, factor, backbone) for backbone, _ in pairs]
        sections.append(Section(title, [Gallery(shown), *tables]))
    return common.Findings(_answer(study), sections)


def _cells(study, factor, backbone):
    """{system: its cells by percentage}, those under `factor`."""
    found = {}
    for cell in study.plan.cells:
        if cell.system.backbone == backbone and cell.condition.startswith(factor):
            found.setdefault(cell.system.name, []).append(cell)
    return found


def _series(study, factor, backbone):
    """{system: (means, standard deviations)} of AUC, for systems that are done at every percentage."""
    found = {}
    for name, cells in _cells(study, factor, backbone).items():
        if all(cell in study.runs for cell in cells):
            values = np.array([common.values(study, cell, "auc") for cell in cells])
            spread = values.std(axis=1, ddof=1) if values.shape[1] > 1 else None
            found[name] = (values.mean(axis=1), spread)
    return found


def _figure(factor, backbone, series):
    below = far_below({name: means for name, (means, _) in series.items()})
    lines = {name: line for name, line in series.items() if name not in below}
    svg = figures.curves(f"rq4-{factor}-{backbone}", list(PERCENTAGES), lines, FACTORS[factor], "AUC")
    caption = "Lines: mean over seeds; bands: one standard deviation to either side."
    left_out = f" Not drawn, because far below: {', '.join(below)} (see the table)." if below else ""
    return Figure(f"AUC, {backbone}", svg, caption + left_out)


def far_below(lines):
    """The lowest line, if it is further below all others than these are apart: it would squeeze them into one."""
    lowest = min(lines, key=lambda name: np.max(lines[name]))
    others = [means for name, means in lines.items() if name != lowest]
    if len(others) < 2:
        return []
    return [lowest] if np.min(others) - np.max(lines[lowest]) > np.max(others) - np.min(others) else []


def _table(study, factor, backbone):
    rows_of = _cells(study, factor, backbone)
    columns = list(zip(*rows_of.values(), strict=True))
    best = [max((_mean(study, cell) for cell in column if cell in study.runs), default=None) for column in columns]
    rows = []
    for name, cells in rows_of.items():
        values = [_value(study, cell, top) for cell, top in zip(cells, best, strict=True)]
        rows.append([name, *values])
    header = ["system", *(f"{percentage} %" for percentage in PERCENTAGES)]
    note = f"AUC by {FACTORS[factor]}; mean over seeds, ± standard deviation, best of each column in bold."
    return Table(f"Backbone {backbone}", header, rows, note, tuple(range(1, len(header))))


def _mean(study, cell):
    return float(common.values(study, cell, "auc").mean())


def _value(study, cell, best):
    if cell not in study.runs:
        return Value(None)
    values, mean = common.values(study, cell, "auc"), _mean(study, cell)
    spread = f"±{values.std(ddof=1):.4f}" if len(values) > 1 else ""
    return Value(mean, None, spread, mean == best)


def _answer(study):
    settings = [
        common.leaders(study, cells, "auc")
        for backbone in common.backbones_of(study)
        for condition in list(study.plan.conditions)[1:]
        if (cells := common.done(study, backbone, condition))
    ]
    if not settings:
        return []
    n_led = {name: sum(name in names for names in settings) for name in common.METHODS}
    first, *others = sorted((name for name in n_led if n_led[name] or name == "dub"), key=lambda name: -n_led[name])
    n = "all" if n_led[first] == len(settings) else f"{n_led[first]} of the"
    rest = "".join(f", {name} in {n_led[name] or 'none'}" for name in others)
    rest += "; where two print alike, both count" if sum(n_led.values()) > len(settings) else ""
    return [f"{first} has the best AUC in {n} {len(settings)} settings (factor, share and backbone){rest}."]
