"""RQ1: which system ranks best on unbiased test data?"""

from dubnb import stats
from dubnb.experiments import _common as common
from dubnb.experiments import paper
from dubnb.experiments.study import METRICS, WHOLE, Cell, Plan
from dubnb.report import figures
from dubnb.report.page import Figure, Gallery, Section, Table

NAME = "rq1"
TITLE = "Unbiased comparison of eight systems"
QUESTION = "Which system ranks best when it is tested on randomized feedback, and is the difference real?"
STARS = (
    f"Mean over seeds, ± standard deviation; best in bold. {common.SEED_STAR} two-sample t-test (Student's) between "
    f"best and second best over seeds, p ≤ 0.05, as in the paper; {common.USER_STAR} paired test over users, p ≤ 0.05 "
    "after Holm's correction over all metrics and backbones."
)


def plan(data, budget):
    return Plan({WHOLE: data}, [Cell(system) for system in common.systems()])


def findings(study):
    comparisons = _comparisons(study)
    tables = [_table(study, backbone, comparisons) for backbone in common.backbones_of(study)]
    sections = [Section("Results", tables), Section("Who is ahead", [Gallery(_figures(study))])]
    if comparisons:
        sections.append(Section("Is the best really better?", [_tests(comparisons)]))
    return common.Findings(_answer(study, comparisons), sections)


def _comparisons(study):
    """{(backbone, metric): (Comparison of best and second best, Holm's p over users)}."""
    found = {}
    for backbone in common.backbones_of(study):
        for metric in METRICS:
            two = common.best_two(study, common.done(study, backbone), metric)
            if two:
                found[backbone, metric] = common.compare(study, *two, metric)
    adjusted = stats.holm([c.users_p for c in found.values()]) if found else []
    return {key: (c, float(p)) for (key, c), p in zip(found.items(), adjusted, strict=True)}


def _stars(comparison, users_p):
    seeds = common.SEED_STAR if comparison.seeds_p is not None and comparison.seeds_p <= common.SIGNIFICANT else ""
    return seeds + (common.USER_STAR if users_p <= common.SIGNIFICANT else "")


def _table(study, backbone, comparisons):
    stars = {metric: _stars(*found) for (b, metric), found in comparisons.items() if b == backbone}
    beside = paper.beside(study.plan.conditions[WHOLE], paper.YAHOO_R3)
    cells = common.cells_of(study, backbone)
    return common.metric_table(study, f"Backbone {backbone}", cells, STARS, stars, beside and beside[backbone])


def _figures(study):
    beside = paper.beside(study.plan.conditions[WHOLE], paper.YAHOO_R3) or {}
    found = []
    for backbone in common.backbones_of(study):
        cells = common.done(study, backbone)
        for metric in ("auc", "ndcg") if cells else ():
            values = {cell.system.name: common.values(study, cell, metric) for cell in cells}
            published = {name: row[metric] for name, row in beside.get(backbone, {}).items() if name in values}
            svg = figures.dots(f"rq1-{backbone}-{metric}", values, common.NAMES[metric], published)
            caption = "Small dots: seeds; large dots: their mean." + (" Diamonds: the paper." if published else "")
            found.append(Figure(f"{common.NAMES[metric]}, {backbone}", svg, caption))
    return found


def _tests(comparisons):
    header = ["metric", "backbone", "best", "second", "difference", "p over seeds", "p over users", "the same, Holm"]
    rows = []
    for (backbone, metric), (c, adjusted) in comparisons.items():
        names = [common.NAMES[metric], backbone, c.first.system.name, c.second.system.name]
        rows.append([*names, common.difference(c), *map(common.p_value, (c.seeds_p, c.users_p, adjusted))])
    note = (
        "Over seeds: Student's two-sample t-test, which asks whether another random start could change the order. Over "
        "users: a paired t-test on users' values averaged over seeds, for the pooled AUC a bootstrap that draws whole "
        "users again; these ask whether other users could. Below each difference: its 95 % bootstrap interval over "
        "users. Best and second best were picked by looking, so p-values are somewhat too small."
    )
    return Table("Best against second best", header, rows, note)


def _answer(study, comparisons):
    found = []
    for (backbone, metric), (best, p) in comparisons.items():
        if metric != "auc":
            continue
        cells, leader = common.done(study, backbone), best.first.system.name
        led = sum(leader in common.leaders(study, cells, each) for each in METRICS)
        said = common.lead(study, best, p, " after Holm's correction")
        found.append(f"With {backbone}, {said}; {leader} is best on {led} of {len(METRICS)} metrics.")
    return found
