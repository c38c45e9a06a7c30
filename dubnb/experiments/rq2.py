"""RQ2: what does each term of the bound contribute?"""

from dubnb import stats
from dubnb.experiments import _common as common
from dubnb.experiments import paper
from dubnb.experiments.study import WHOLE, Cell, Plan, System
from dubnb.report import figures
from dubnb.report.page import Figure, Gallery, Section, Table, Value

NAME = "rq2"
TITLE = "Ablation of the bound's terms"
QUESTION = "What does dub lose without term e, without a and e, and without every other single term?"
VARIANTS = {  # name -> terms kept
    "dub": "acde",
    "without e": "acd",
    "without a and e": "cd",
    "without a": "cde",
    "without d": "ace",
    "without c": "ade",
}
NOTE = (
    "Mean over seeds, with its difference to dub; best in bold. Every variant has its own search. Without a and e, "
    "dub is bridge; without c, S_c still pre-trains M_c."
)


def plan(data, budget):
    systems = [
        System(name, "dub", backbone, (("terms", terms),))
        for backbone in common.BACKBONES
        for name, terms in VARIANTS.items()
    ]
    return Plan({WHOLE: data}, [Cell(system) for system in systems])


def findings(study):
    losses = _losses(study)
    tables = [_table(study, backbone) for backbone in common.backbones_of(study)]
    sections = [Section("Results", tables), Section("What each term is worth", [Gallery(_figures(study))])]
    if losses:
        sections.append(Section("Are the differences real?", [_tests(losses)]))
    return common.Findings(_answer(losses), sections)


def _full(study, backbone):
    """The cell of the whole bound, if it is done."""
    return next((cell for cell in common.done(study, backbone) if cell.system.name == "dub"), None)


def _losses(study):
    """{(backbone, variant): (Comparison of the variant with dub on AUC, Holm's p over users)}."""
    found = {}
    for backbone in common.backbones_of(study):
        full = _full(study, backbone)
        for cell in common.done(study, backbone) if full else ():
            if cell != full:
                found[backbone, cell.system.name] = common.compare(study, cell, full, "auc")
    adjusted = stats.holm([c.users_p for c in found.values()]) if found else []
    return {key: (c, float(p)) for (key, c), p in zip(found.items(), adjusted, strict=True)}


def _table(study, backbone):
    full, data = _full(study, backbone), study.plan.conditions[WHOLE]
    beside = paper.beside(data, paper.YAHOO_R3_ABLATION)
    table = common.metric_table(
        study, f"Backbone {backbone}", common.cells_of(study, backbone), NOTE, None, beside and beside[backbone]
    )
    if full is None:
        return table
    metrics = {common.NAMES[name]: name for name in common.shown_metrics(study)}
    reference = [
        None if name not in metrics else common.values(study, full, metrics[name]).mean() for name in table.header
    ]
    rows = [[_with_difference(cell, ours) for cell, ours in zip(row, reference, strict=True)] for row in table.rows]
    return table._replace(rows=rows)


def _with_difference(cell, reference):
    if reference is None or not isinstance(cell, Value) or cell.value is None:
        return cell
    return cell._replace(spread=f"{cell.value - reference:+z.4f}" if cell.value != reference else "")


def _figures(study):
    found = []
    for backbone in common.backbones_of(study):
        full = _full(study, backbone)
        for metric in ("auc", "ndcg") if full else ():
            whole = common.values(study, full, metric)
            cells = [cell for cell in common.done(study, backbone) if cell != full]
            values = {cell.system.name: common.values(study, cell, metric) - whole for cell in cells}
            if values:
                label = f"{common.NAMES[metric]}, difference to dub"
                svg = figures.dots(f"rq2-{backbone}-{metric}", values, label, zero=0.0)
                found.append(
                    Figure(f"{common.NAMES[metric]}, {backbone}", svg, "Left of the line: worse without. Dots: seeds.")
                )
    return found


def _tests(losses):
    header = ["variant", "backbone", "difference of AUC", "p over seeds", "p over users, Holm"]
    rows = [
        [variant, backbone, common.difference(c), common.p_value(c.seeds_p), common.p_value(p)]
        for (backbone, variant), (c, p) in losses.items()
    ]
    note = (
        "Over users: a bootstrap that draws whole users again (below each difference: 95 %), p-values corrected "
        "together by Holm's method. Over seeds: Student's two-sample t-test."
    )
    return Table("Each variant against dub", header, rows, note)


def _answer(losses):
    found = []
    for backbone in dict.fromkeys(backbone for backbone, _ in losses):
        own = {variant: pair for (b, variant), pair in losses.items() if b == backbone}
        hurt = [_said(v, c) for v, (c, p) in own.items() if p <= common.SIGNIFICANT and c.difference < 0]
        helped = [_said(v, c) for v, (c, p) in own.items() if p <= common.SIGNIFICANT and c.difference > 0]
        open_ = [_said(v, c) for v, (c, p) in own.items() if p > common.SIGNIFICANT]
        groups = {"falls": hurt, "rises": helped, "shows no significant change": open_}
        parts = [f"{verb} {common.listed(variants)}" for verb, variants in groups.items() if variants]
        found.append(f"With {backbone}, AUC {'; it '.join(parts)}.")
    return found


def _said(variant, comparison):
    return f"{variant} ({comparison.difference:+z.4f})"
