"""RQ2: what does each term of the bound contribute?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dubnb.experiments import pages
from dubnb.experiments.pages import Findings
from dubnb.experiments.study import (
    SEEDS_NEEDED,
    SIGNIFICANT,
    WHOLE,
    Case,
    Comparison,
    Design,
    Study,
    holm_p,
    report_label,
)
from dubnb.experiments.systems import Choice, System
from dubnb.report import figures
from dubnb.report.page import Cell, Figure, Gallery, Section, Table, Value

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.budgets import Budget

NAME = "rq2"
TITLE = "Ablation of the bound's terms"
QUESTION = "What does the bound lose without term e, without a and e, and without every other single term?"
LEFT_OUT = ("e", "ae", "a", "d", "c")  # the paper's two ablations first
BOUND_METHODS = ("dub", "dub-x")  # their terms are those of the bound
NOTE = "Mean over seeds, with its difference to the whole; best in bold. Every variant has its own search."
NOTE_ON_DUB = " Without a and e, dub is bridge. M_t is frozen, as in Eq. 2."
NOTE_ON_START = (
    " Without c, S_c still pre-trains M_c: on S_c alone in every variant, as in the paper. (Under Eq. 1, which these "
    "losses do not need, term d would go on training M_t without e.)"
)
# The paper's ablation on Yahoo! R3: AUC, nDCG, P@5, P@10, R@5, R@10
YAHOO_R3_ABLATION = {
    "mf": {
        "dub": (0.7578, 0.0727, 0.0128, 0.0112, 0.0438, 0.0770),
        "dub without e": (0.7500, 0.0702, 0.0113, 0.0108, 0.0377, 0.0744),
        "dub without a and e": (0.7376, 0.0557, 0.0099, 0.0076, 0.0308, 0.0478),
    },
    "ncf": {
        "dub": (0.7421, 0.0491, 0.0051, 0.0058, 0.0164, 0.0390),
        "dub without e": (0.7386, 0.0438, 0.0050, 0.0051, 0.0165, 0.0320),
        "dub without a and e": (0.7367, 0.0439, 0.0056, 0.0056, 0.0192, 0.0371),
    },
}

VariantKey = tuple[str, str, str]  # backbone, whole system, variant
# the variant against the whole on AUC, and Holm's p over users
TestedVariants = Mapping[VariantKey, tuple[Comparison, float]]


def design(data: Partition, budget: Budget, choice: Choice) -> Design:
    """The variants of every chosen system that minimises the bound, and the baselines."""
    cases = []
    for system in choice.systems(data):
        if system.is_baseline:
            cases.append(Case(system))
        elif system.method in BOUND_METHODS:
            cases += [Case(variant) for variant in variants(system, data)]
    return Design(data, {WHOLE: data}, cases)


def variants(system: System, data: Partition) -> list[System]:
    """The system with all its terms, and without some; all variants pre-train M_c in the same way."""
    model = system.model().resolve(data)
    terms = str(model.terms)
    start = {"pretrain_terms": "c"} if hasattr(model, "pretrain_terms") else {}
    made = [system.changed(system.name, **start, terms=terms)]
    for letters in LEFT_OUT:
        if set(letters) <= set(terms):
            kept = "".join(letter for letter in terms if letter not in letters)
            made.append(system.changed(f"{system.name} without {' and '.join(letters)}", **start, terms=kept))
    return made


def findings(study: Study) -> Findings:
    """A table for every ablated system, and what each term is worth."""
    tested = _variants_against_whole(study)
    tables = [_ablation_table(study, backbone, whole) for backbone, whole in _wholes(study)]
    sections = [Section("Results", tables), Section("What each term is worth", [Gallery(_difference_dots(study))])]
    if tested:
        sections.append(Section("Are the differences real?", [_difference_table(tested)]))
    return Findings(_changes_in_words(tested), sections)


def _whole_of(system: System) -> str:
    """The name of the system that a variant was made from."""
    return system.name.partition(" without ")[0]


def _variant(system: System) -> str:
    """The name of a variant without the name of its system: "without d"."""
    return system.name.removeprefix(f"{_whole_of(system)} ")


def _wholes(study: Study) -> list[tuple[str, Case]]:
    """(backbone, the case with all terms) for every ablated system."""
    own = [case for case in study.design.cases if not case.system.is_baseline]
    return [(case.system.backbone, case) for case in own if case.system.name == _whole_of(case.system)]


def _variants(study: Study, whole: Case) -> list[Case]:
    """The cases made from the same system, including itself."""
    same = (case for case in study.design.cases if case.system.backbone == whole.system.backbone)
    return [case for case in same if _whole_of(case.system) == whole.system.name]


def _variants_against_whole(study: Study) -> TestedVariants:
    pairs = {}
    for backbone, whole in _wholes(study):
        for case in _variants(study, whole) if whole in study.results else ():
            if case != whole and case in study.results:
                pairs[backbone, whole.system.name, _variant(case.system)] = study.compare(case, whole, "auc")
    adjusted = holm_p(list(pairs.values()))
    return {key: (c, p) for (key, c), p in zip(pairs.items(), adjusted, strict=True)}


def _ablation_table(study: Study, backbone: str, whole: Case) -> Table:
    """Means with their difference to the whole system instead of their spread."""
    cases = [*_variants(study, whole), *(case for case in study.design.cases if case.system.is_baseline)]
    paper = pages.published(study.design.source, YAHOO_R3_ABLATION).get(backbone, {})
    note = NOTE
    if whole.system.method == "dub":  # the exact solver starts from random rows, not from a pre-trained M_c
        note += NOTE_ON_DUB + (NOTE_ON_START if dict(whole.system.fixed).get("solver") != "exact" else "")
    title = f"{whole.system.name}, backbone {backbone}"
    table = pages.metric_table(study, title, cases, note, None, paper if whole.system.name in paper else None)
    if whole not in study.results:
        return table
    wholes = {report_label(metric): study.mean(whole, metric) for metric in study.metric_names()}

    def against(cell: Cell, reference: float | None) -> Cell:
        if reference is None or not isinstance(cell, Value) or cell.value is None:
            return cell
        return cell._replace(spread=f"{cell.value - reference:+z.4f}" if cell.value != reference else "")

    return table._replace(
        rows=[
            [against(cell, wholes.get(name)) for name, cell in zip(table.header, row, strict=True)]
            for row in table.rows
        ]
    )


def _difference_dots(study: Study) -> list[Figure]:
    drawn = []
    for backbone, whole in _wholes(study):
        cases = [case for case in _variants(study, whole) if case != whole and case in study.results]
        for metric in ("auc", "ndcg") if whole in study.results and cases else ():
            all_terms = study.values(whole, metric)
            values = {_variant(case.system): study.values(case, metric) - all_terms for case in cases}
            label = f"{report_label(metric)}, difference to {whole.system.name}"
            name = f"{NAME}-{whole.system.name.replace(' ', '-')}-{backbone}-{metric}"
            drawing = figures.dots(name, values, label, zero=0.0)
            title = f"{report_label(metric)}, {whole.system.name} ({backbone})"
            drawn.append(Figure(title, drawing, "Left of the line: worse without. Dots: seeds."))
    return drawn


def _difference_table(tested: TestedVariants) -> Table:
    header = ["variant", "of", "backbone", "difference of AUC", "p over seeds", "p over users, Holm"]
    rows: list[list[Cell]] = [
        [variant, whole, backbone, pages.difference_cell(c), pages.p_cell(c.seeds_p), pages.p_cell(p)]
        for (backbone, whole, variant), (c, p) in tested.items()
    ]
    note = (
        "Over users: a bootstrap that draws whole users again (below each difference: 95 %), p-values corrected "
        f"together by Holm's method. Over seeds: Student's two-sample t-test, from {SEEDS_NEEDED} seeds on."
    )
    return Table("Each variant against the whole", header, rows, note)


def _changes_in_words(tested: TestedVariants) -> list[str]:
    answer = []
    for backbone, whole in dict.fromkeys((backbone, whole) for backbone, whole, _ in tested):
        groups: dict[str, list[str]] = {"falls": [], "rises": [], "shows no significant change": []}
        for (own, system, variant), (c, p) in tested.items():
            if (own, system) == (backbone, whole) and (p > SIGNIFICANT or c.difference):
                verb = "shows no significant change" if p > SIGNIFICANT else "falls" if c.difference < 0 else "rises"
                groups[verb].append(f"{variant} ({c.difference:+z.4f})")
        parts = [f"{verb} {pages.join_words(variants)}" for verb, variants in groups.items() if variants]
        answer.append(f"With {backbone}, AUC of {whole} {'; it '.join(parts)}.")
    return answer
