"""RQ1: which system ranks best on unbiased test data?"""

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
    is_comparable,
    report_label,
    report_metrics,
)
from dubnb.experiments.systems import BEYOND, PAPER, RIVALS, Choice
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
    f"{pages.MEANS} {SEED_STAR} p ≤ 0.05 over seeds, between best and second best: Student's two-sample t-test, as in "
    f"the paper, from {SEEDS_NEEDED} seeds on. {USER_STAR} p ≤ 0.05 over users: a paired test with Holm's correction "
    "over all metrics and backbones."
)
FIELDS = {"the paper's systems": (PAPER,), "all systems": (PAPER, BEYOND, RIVALS)}  # best and second are compared
# The paper's results on Yahoo! R3, unbiased test: AUC, nDCG, P@5, P@10, R@5, R@10
PAPER_RESULTS = {
    "mf": {
        "base": (0.7282, 0.0434, 0.0059, 0.0051, 0.0207, 0.0332),
        "unif": (0.5625, 0.0291, 0.0049, 0.0041, 0.0135, 0.0245),
        "combine": (0.7357, 0.0489, 0.0073, 0.0061, 0.0243, 0.0401),
        "ips": (0.7300, 0.0407, 0.0052, 0.0054, 0.0171, 0.0344),
        "autodebias": (0.7502, 0.0691, 0.0119, 0.0104, 0.0403, 0.0683),
        "cause": (0.7285, 0.0445, 0.0059, 0.0058, 0.0192, 0.0372),
        "bridge": (0.7376, 0.0557, 0.0099, 0.0076, 0.0308, 0.0478),
        "dub": (0.7578, 0.0727, 0.0128, 0.0112, 0.0438, 0.0770),
    },
    "ncf": {
        "base": (0.7245, 0.0279, 0.0029, 0.0031, 0.0089, 0.0199),
        "unif": (0.6050, 0.0275, 0.0043, 0.0037, 0.0113, 0.0204),
        "combine": (0.7268, 0.0327, 0.0032, 0.0033, 0.0092, 0.0189),
        "ips": (0.7273, 0.0304, 0.0036, 0.0031, 0.0111, 0.0210),
        "autodebias": (0.7140, 0.0385, 0.0052, 0.0047, 0.0188, 0.0333),
        "cause": (0.7284, 0.0287, 0.0029, 0.0033, 0.0089, 0.0210),
        "bridge": (0.7367, 0.0439, 0.0056, 0.0056, 0.0192, 0.0371),
        "dub": (0.7421, 0.0491, 0.0051, 0.0058, 0.0164, 0.0390),
    },
}

FieldKey = tuple[str, str, str]  # field, backbone, metric
TestedFields = Mapping[FieldKey, tuple[Comparison, float]]  # best against second best, and Holm's p over users


def design(data: Partition, budget: Budget, choice: Choice) -> Design:
    """Every system on the whole data."""
    return Design(data, {WHOLE: data}, [Case(system) for system in choice.systems(data)])


def findings(study: Study) -> Findings:
    """A table and a chart per backbone, and tests of the best system against the second best."""
    tested = _best_against_second(study)
    tables = [_results_table(study, backbone, tested) for backbone in study.backbones()]
    sections = [Section("Results", tables), Section("Who is ahead", [Gallery(_seed_dots(study))])]
    if tested:
        sections.append(Section("Is the best really better?", [_test_table(tested)]))
    sections += pages.calibration_sections(study, study.design.cases)
    return Findings(_leaders_in_words(study, tested), sections)


def _field(study: Study, backbone: str, field: str) -> list[Case]:
    """The done cases of a field's groups."""
    return [case for case in study.done(backbone) if case.system.group in FIELDS[field]]


def _fields(study: Study) -> list[str]:
    """The fields of which the design has a group that no earlier field has."""
    groups = {case.system.group for case in study.design.cases}
    return [field for field, own in FIELDS.items() if groups & set(own[-2:])]


def _best_against_second(study: Study) -> TestedFields:
    """Best against second best in every field; Holm's correction is over the comparisons of one field."""
    tested: dict[FieldKey, tuple[Comparison, float]] = {}
    for field in _fields(study):
        pairs = {}
        for backbone in study.backbones():
            for metric in filter(is_comparable, report_metrics()):
                order = study.ranked(_field(study, backbone, field), metric)
                if len(order) > 1:
                    pairs[field, backbone, metric] = study.compare(order[0], order[1], metric)
        adjusted = holm_p(list(pairs.values()))
        tested |= {key: (c, p) for (key, c), p in zip(pairs.items(), adjusted, strict=True)}
    return tested


def _results_table(study: Study, backbone: str, tested: TestedFields) -> Table:
    stars = {}
    for (field, own, metric), (c, users_p) in tested.items():
        if (field, own) == (_fields(study)[-1], backbone):
            by_seeds = c.seeds_p is not None and c.seeds_p <= SIGNIFICANT
            stars[metric] = SEED_STAR * by_seeds + USER_STAR * (users_p <= SIGNIFICANT)
    paper = pages.published(study.design.source, PAPER_RESULTS).get(backbone)
    return pages.metric_table(study, f"Backbone {backbone}", study.cases(backbone), STARS, stars, paper)


def _seed_dots(study: Study) -> list[Figure]:
    paper = pages.published(study.design.source, PAPER_RESULTS)
    drawn = []
    for backbone in study.backbones():
        cases = study.done(backbone)
        for metric in ("auc", "ndcg") if cases else ():
            values = {case.system.name: study.values(case, metric) for case in cases}
            published = {name: row[metric] for name, row in paper.get(backbone, {}).items() if name in values}
            drawing = figures.dots(f"{NAME}-{backbone}-{metric}", values, report_label(metric), published)
            caption = pages.SEED_DOTS + (" Diamonds: the paper." if published else "")
            drawn.append(Figure(f"{report_label(metric)}, {backbone}", drawing, caption))
    return drawn


def _test_table(tested: TestedFields) -> Table:
    header = ["among", "metric", "backbone", "best", "second", "difference"]
    header += ["p over seeds", "p over users", "the same, Holm"]
    rows: list[list[Cell]] = []
    for (field, backbone, metric), (c, adjusted) in tested.items():
        about = [field, report_label(metric), backbone, c.first.system.name, c.second.system.name]
        rows.append([*about, pages.difference_cell(c), *map(pages.p_cell, (c.seeds_p, c.users_p, adjusted))])
    note = (
        "Over seeds: could another random start change the order? This is Student's two-sample t-test. Over users: "
        "could other users change it? This is a paired t-test on users' values averaged over seeds. For the pooled AUC "
        "it is a bootstrap that draws whole users, for liked@10 the interval of two shares. Below each difference: its "
        "95 % interval over users. Best and second best were picked by looking, so p-values are somewhat too small."
    )
    return Table("Best against second best", header, rows, note)


def _leaders_in_words(study: Study, tested: TestedFields) -> list[str]:
    """One paragraph: which system has the best AUC on each backbone."""
    sentences = []
    for backbone in study.backbones():
        leads = []
        for field in reversed(_fields(study)):
            if (field, backbone, "auc") in tested:
                best, users_p = tested[field, backbone, "auc"]
                first, value = study.leaders(_field(study, backbone, field), "auc"), study.mean(best.first, "auc")
                lead = f"{pages.join_words(first)} share the best AUC ({value:.4f})"
                if len(first) == 1:
                    sure = "significant" if users_p <= SIGNIFICANT else "not significant"
                    second = f"{best.second.system.name} by {abs(best.difference):.4f} ({sure} over users)"
                    lead = f"{best.first.system.name} has the best AUC ({value:.4f}), ahead of {second}"
                leads.append(f"among {field} {lead}")
        if leads:
            sentences.append(f"With {backbone}, {'; '.join(leads)}.")
    return [" ".join(sentences)] if sentences else []
