"""RQ1: which system ranks best on unbiased test data?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dubnb.experiments import layout, measures, paper, reliability, words
from dubnb.experiments.experiment import Findings
from dubnb.experiments.measures import SIGNIFICANT, Comparison
from dubnb.experiments.study import WHOLE, Case, Design, Study
from dubnb.experiments.systems import BEYOND, PAPER, Choice
from dubnb.report import figures
from dubnb.report.page import Cell, Figure, Gallery, Section, Table

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.budgets import Budget

NAME = "rq1"
TITLE = "Unbiased comparison of systems"
QUESTION = "Which system ranks best when it is tested on randomized feedback, and is the difference real?"
SEED_STAR, USER_STAR = "*", "†"
STARS = (
    f"{layout.MEANS} {SEED_STAR} two-sample t-test (Student's) between best and second best over seeds, p ≤ 0.05, as "
    f"in the paper, where there are at least {measures.SEEDS_NEEDED} seeds; {USER_STAR} paired test over users, "
    "p ≤ 0.05 after Holm's correction over all metrics and backbones."
)
FIELDS = {"the paper's systems": (PAPER,), "all systems": (PAPER, BEYOND)}  # among whom best and second are compared

Key = tuple[str, str, str]  # field, backbone, metric
Tested = Mapping[Key, tuple[Comparison, float]]  # best against second best, and Holm's p over users


def design(data: Partition, budget: Budget, choice: Choice) -> Design:
    """Every system on the whole data."""
    return Design(data, {WHOLE: data}, [Case(system) for system in choice.systems(data)])


def findings(study: Study) -> Findings:
    """Tables by backbone, who is ahead, and whether that is more than chance."""
    tested = _tested(study)
    tables = [_table(study, backbone, tested) for backbone in measures.backbones(study)]
    sections = [Section("Results", tables), Section("Who is ahead", [Gallery(_figures(study))])]
    if tested:
        sections.append(Section("Is the best really better?", [_tests(tested)]))
    sections += reliability.sections(study, study.design.cases)
    return Findings(_answer(study, tested), sections)


def _field(study: Study, backbone: str, field: str) -> list[Case]:
    """The cases that are done of the groups that a field stands for."""
    return [case for case in measures.done(study, backbone) if case.system.group in FIELDS[field]]


def _fields(study: Study) -> list[str]:
    """The fields that differ from those before."""
    groups = {case.system.group for case in study.design.cases}
    return [field for field, own in FIELDS.items() if own[-1] in groups]


def _tested(study: Study) -> Tested:
    """Corrected together are the comparisons of one field."""
    tested: dict[Key, tuple[Comparison, float]] = {}
    for field in _fields(study):
        pairs = {}
        for backbone in measures.backbones(study):
            for metric in filter(measures.comparable, measures.names()):
                order = measures.ranked(study, _field(study, backbone, field), metric)
                if len(order) > 1:
                    pairs[field, backbone, metric] = measures.compare(study, order[0], order[1], metric)
        adjusted = measures.corrected(list(pairs.values()))
        tested |= {key: (c, p) for (key, c), p in zip(pairs.items(), adjusted, strict=True)}
    return tested


def _stars(comparison: Comparison, users_p: float) -> str:
    seeds = SEED_STAR if comparison.seeds_p is not None and comparison.seeds_p <= SIGNIFICANT else ""
    return seeds + (USER_STAR if users_p <= SIGNIFICANT else "")


def _table(study: Study, backbone: str, tested: Tested) -> Table:
    widest = _fields(study)[-1] if tested else ""
    stars = {metric: _stars(*pair) for (field, b, metric), pair in tested.items() if (field, b) == (widest, backbone)}
    beside = paper.beside(study.design.source, paper.YAHOO_R3).get(backbone)
    cases = measures.cases(study, backbone)
    return layout.metric_table(study, f"Backbone {backbone}", cases, STARS, stars, beside)


def _figures(study: Study) -> list[Figure]:
    beside = paper.beside(study.design.source, paper.YAHOO_R3)
    drawn = []
    for backbone in measures.backbones(study):
        cases = measures.done(study, backbone)
        for metric in ("auc", "ndcg") if cases else ():
            values = {case.system.name: measures.values(study, case, metric) for case in cases}
            published = {name: row[metric] for name, row in beside.get(backbone, {}).items() if name in values}
            drawing = figures.dots(f"{NAME}-{backbone}-{metric}", values, measures.label(metric), published)
            caption = "Small dots: seeds; large dots: their mean." + (" Diamonds: the paper." if published else "")
            drawn.append(Figure(f"{measures.label(metric)}, {backbone}", drawing, caption))
    return drawn


def _tests(tested: Tested) -> Table:
    header = ["among", "metric", "backbone", "best", "second", "difference"]
    header += ["p over seeds", "p over users", "the same, Holm"]
    rows: list[list[Cell]] = []
    for (field, backbone, metric), (c, adjusted) in tested.items():
        about = [field, measures.label(metric), backbone, c.first.system.name, c.second.system.name]
        rows.append([*about, words.difference(c), *map(words.p_value, (c.seeds_p, c.users_p, adjusted))])
    note = (
        "Over seeds: Student's two-sample t-test, which asks whether another random start could change the order. Over "
        "users: a paired t-test on users' values averaged over seeds, for the pooled AUC a bootstrap that draws whole "
        "users again, for liked@10 the interval of two shares; these ask whether other users could. Below each "
        "difference: its 95 % interval over users. Best and second best were picked by looking, so p-values are "
        "somewhat too small."
    )
    return Table("Best against second best", header, rows, note)


def _answer(study: Study, tested: Tested) -> list[str]:
    """One paragraph: who has the best AUC, backbone by backbone; the tests themselves stand in a table."""
    sentences = []
    for backbone in measures.backbones(study):
        said = [
            f"among {field} {_lead(study, _field(study, backbone, field), *tested[field, backbone, 'auc'])}"
            for field in reversed(_fields(study))
            if (field, backbone, "auc") in tested
        ]
        if said:
            sentences.append(f"With {backbone}, {'; '.join(said)}.")
    return [" ".join(sentences)] if sentences else []


def _lead(study: Study, among: Sequence[Case], best: Comparison, users_p: float) -> str:
    first, value = measures.leaders(study, among, "auc"), measures.mean(study, best.first, "auc")
    if len(first) > 1:
        return f"{words.listed(first)} share the best AUC ({value:.4f})"
    sure = "significant" if users_p <= SIGNIFICANT else "not significant"
    second = f"{best.second.system.name} by {abs(best.difference):.4f} ({sure} over users)"
    return f"{best.first.system.name} has the best AUC ({value:.4f}), ahead of {second}"
