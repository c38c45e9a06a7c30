"""RQ2: what does each term of the bound contribute?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dubnb.experiments import layout, measures, paper, words
from dubnb.experiments.experiment import Findings
from dubnb.experiments.measures import SIGNIFICANT, Comparison
from dubnb.experiments.study import WHOLE, Case, Design, Study
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
BOUND = set("acd")  # terms that a method must have for its ablation to be one of the bound
NOTE = "Mean over seeds, with its difference to the whole; best in bold. Every variant has its own search."
NOTE_ON_DUB = " Without a and e, dub is bridge. M_t is frozen, as in Eq. 2."
NOTE_ON_START = (
    " Without c, S_c still pre-trains M_c: on S_c alone in every variant, as in the paper. (Under Eq. 1, which these "
    "losses do not need, term d would go on training M_t without e.)"
)

Key = tuple[str, str, str]  # backbone, whole system, variant
Tested = Mapping[Key, tuple[Comparison, float]]  # the variant against the whole on AUC, and Holm's p over users


def design(data: Partition, budget: Budget, choice: Choice) -> Design:
    """The variants of every chosen system that minimises the bound; baselines as they are."""
    cases = []
    for system in choice.systems(data):
        if system.is_baseline:
            cases.append(Case(system))
        elif set(system.method_class().TERMS) >= BOUND:
            cases += [Case(variant) for variant in variants(system, data)]
    return Design(data, {WHOLE: data}, cases)


def variants(system: System, data: Partition) -> list[System]:
    """The system with all its terms, and without some; all pre-train M_c alike, where they do."""
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
    """A table for every system that was taken apart, and what each term is worth."""
    tested = _tested(study)
    tables = [_table(study, backbone, whole) for backbone, whole in _wholes(study)]
    sections = [Section("Results", tables), Section("What each term is worth", [Gallery(_figures(study))])]
    if tested:
        sections.append(Section("Are the differences real?", [_tests(tested)]))
    return Findings(_answer(tested), sections)


def _whole_of(system: System) -> str:
    """The name of the system that a variant was made from."""
    return system.name.partition(" without ")[0]


def _variant(system: System) -> str:
    """What a variant is without."""
    return system.name.removeprefix(f"{_whole_of(system)} ")


def _wholes(study: Study) -> list[tuple[str, Case]]:
    """(backbone, the case with all terms) for every system that was taken apart."""
    own = [case for case in study.design.cases if not case.system.is_baseline]
    return [(case.system.backbone, case) for case in own if case.system.name == _whole_of(case.system)]


def _variants(study: Study, whole: Case) -> list[Case]:
    """The cases made from the same system, itself included."""
    same = (case for case in study.design.cases if case.system.backbone == whole.system.backbone)
    return [case for case in same if _whole_of(case.system) == whole.system.name]


def _tested(study: Study) -> Tested:
    pairs = {}
    for backbone, whole in _wholes(study):
        for case in _variants(study, whole) if whole in study.judged else ():
            if case != whole and case in study.judged:
                pairs[backbone, whole.system.name, _variant(case.system)] = measures.compare(study, case, whole, "auc")
    adjusted = measures.corrected(list(pairs.values()))
    return {key: (c, p) for (key, c), p in zip(pairs.items(), adjusted, strict=True)}


def _table(study: Study, backbone: str, whole: Case) -> Table:
    cases = [*_variants(study, whole), *(case for case in study.design.cases if case.system.is_baseline)]
    beside = paper.beside(study.design.source, paper.YAHOO_R3_ABLATION).get(backbone)
    beside = beside if beside and whole.system.name in beside else None
    note = NOTE + _note_on(whole.system)
    table = layout.metric_table(study, f"{whole.system.name}, backbone {backbone}", cases, note, None, beside)
    if whole not in study.judged:
        return table
    columns = {measures.label(metric): measures.mean(study, whole, metric) for metric in measures.shown(study)}
    rows = [
        [_against(cell, columns.get(name)) for name, cell in zip(table.header, row, strict=True)] for row in table.rows
    ]
    return table._replace(rows=rows)


def _note_on(system: System) -> str:
    """What dub's variants are; the exact solver starts from random rows, not from a pre-trained M_c."""
    if system.method != "dub":
        return ""
    return NOTE_ON_DUB + (NOTE_ON_START if dict(system.fixed).get("solver") != "exact" else "")


def _against(cell: Cell, reference: float | None) -> Cell:
    """A mean with its difference to the reference in place of its spread."""
    if reference is None or not isinstance(cell, Value) or cell.value is None:
        return cell
    return cell._replace(spread=f"{cell.value - reference:+z.4f}" if cell.value != reference else "")


def _figures(study: Study) -> list[Figure]:
    drawn = []
    for backbone, whole in _wholes(study):
        cases = [case for case in _variants(study, whole) if case != whole and case in study.judged]
        for metric in ("auc", "ndcg") if whole in study.judged and cases else ():
            all_terms = measures.values(study, whole, metric)
            values = {_variant(case.system): measures.values(study, case, metric) - all_terms for case in cases}
            label = f"{measures.label(metric)}, difference to {whole.system.name}"
            name = f"{NAME}-{whole.system.name.replace(' ', '-')}-{backbone}-{metric}"
            drawing = figures.dots(name, values, label, zero=0.0)
            title = f"{measures.label(metric)}, {whole.system.name} ({backbone})"
            drawn.append(Figure(title, drawing, "Left of the line: worse without. Dots: seeds."))
    return drawn


def _tests(tested: Tested) -> Table:
    header = ["variant", "of", "backbone", "difference of AUC", "p over seeds", "p over users, Holm"]
    rows: list[list[Cell]] = [
        [variant, whole, backbone, words.difference(c), words.p_value(c.seeds_p), words.p_value(p)]
        for (backbone, whole, variant), (c, p) in tested.items()
    ]
    note = (
        "Over users: a bootstrap that draws whole users again (below each difference: 95 %), p-values corrected "
        f"together by Holm's method. Over seeds: Student's two-sample t-test, from {measures.SEEDS_NEEDED} seeds on."
    )
    return Table("Each variant against the whole", header, rows, note)


def _answer(tested: Tested) -> list[str]:
    answer = []
    for backbone, whole in dict.fromkeys((backbone, whole) for backbone, whole, _ in tested):
        own = {variant: pair for (b, w, variant), pair in tested.items() if (b, w) == (backbone, whole)}
        hurt = [_said(v, c) for v, (c, p) in own.items() if p <= SIGNIFICANT and c.difference < 0]
        helped = [_said(v, c) for v, (c, p) in own.items() if p <= SIGNIFICANT and c.difference > 0]
        unclear = [_said(v, c) for v, (c, p) in own.items() if p > SIGNIFICANT]
        groups = {"falls": hurt, "rises": helped, "shows no significant change": unclear}
        parts = [f"{verb} {words.listed(some)}" for verb, some in groups.items() if some]
        answer.append(f"With {backbone}, AUC of {whole} {'; it '.join(parts)}.")
    return answer


def _said(variant: str, comparison: Comparison) -> str:
    return f"{variant} ({comparison.difference:+z.4f})"
