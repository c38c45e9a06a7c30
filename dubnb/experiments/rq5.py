"""RQ5: how do the systems fare when they are tested on biased feedback, as usual?"""

import numpy as np

from dubnb._random import generator
from dubnb.experiments import _common as common
from dubnb.experiments.study import METRICS, WHOLE, Cell, Plan
from dubnb.report import figures
from dubnb.report.page import Figure, Gallery, Section

NAME = "rq5"
TITLE = "General evaluation on biased feedback"
QUESTION = "Which system ranks best when validation and test are ordinary, biased feedback, and which users gain?"
SPLIT = (("S_c", 5), ("S_va", 2), ("S_te", 3))
CURVE_POINTS = 160
LISTED = 10


def plan(data, budget):
    general = general_split(data)
    sizes = ", ".join(f"{len(general.triplets(part).users):,}" for part, _ in SPLIT)
    notes = (
        ("split", f"S_c 5:2:3 into training, validation and test ({sizes} pairs); S_t as before; the rest is unused"),
        ("backbone", "mf; the paper names none here"),
    )
    return Plan({WHOLE: general}, [Cell(system) for system in common.systems(["mf"])], "ndcg", notes)


def general_split(data):
    """S_c at random 5:2:3 as S_c, S_va and S_te; S_t stays what it is."""
    S_c = data.triplets("S_c")
    order = generator(0, "rq5").permutation(len(S_c.users))
    cuts = np.cumsum([share for _, share in SPLIT]) * len(order) // sum(share for _, share in SPLIT)
    pieces = np.split(order, cuts[:-1])
    rows = {part: np.sort(piece) for (part, _), piece in zip(SPLIT, pieces, strict=True)}
    held_out = {part: S_c.take(rows[part]) for part in ("S_va", "S_te")}
    return common.with_parts(data, f"{data.name}, S_c split 5:2:3", rows["S_c"], keep_truth=False, **held_out)


def findings(study):
    cells = common.cells_of(study, "mf")
    note = "Mean over seeds, ± standard deviation; best in bold. Tested on biased feedback: not comparable with RQ1."
    parts = [common.metric_table(study, "Backbone mf", cells, note)]
    curves = _curves(study)
    sections = [Section("Results", parts), Section("By metric", [Gallery(_bars(study))])]
    if curves:
        sections.append(Section("Which users gain", [Gallery(_cumulative(study, curves))]))
    return common.Findings(_answer(study, curves), sections)


def _bars(study):
    found = []
    for metric in METRICS:
        values = {cell.system.name: common.values(study, cell, metric) for cell in common.done(study, "mf")}
        if values:
            svg = figures.columns(f"rq5-{metric.replace('@', '')}", values, common.NAMES[metric])
            found.append(Figure(common.NAMES[metric], svg, "Bars: mean over seeds; dots: seeds."))
    return found


def users_in_order(data):
    """User rows, those with feedback in S_t first."""
    in_S_t = np.zeros(data.n_users, dtype=bool)
    in_S_t[data.triplets("S_t").users] = True
    return np.argsort(~in_S_t, kind="stable"), int(in_S_t.sum())


def cumulative_hits(data, run, order):
    """The sum of hit probabilities (the share of hits among ten listed items) of the first x users, for every x."""
    hits = np.zeros(data.n_users)
    hits[run.users] = run.per_user[f"p@{LISTED}"]
    return np.cumsum(hits[order])


def _curves(study):
    """{system: cumulative hits, mean over seeds}."""
    data = study.plan.conditions[WHOLE]
    order, _ = users_in_order(data)
    return {
        cell.system.name: np.mean([cumulative_hits(data, run, order) for run in study.runs[cell]], axis=0)
        for cell in common.done(study, "mf")
    }


def _cumulative(study, curves):
    data = study.plan.conditions[WHOLE]
    _, n_first = users_in_order(data)
    places = np.unique(np.linspace(1, data.n_users, min(CURVE_POINTS, data.n_users)).round().astype(int))
    about = f"Users of S_t stand first, left of the line ({n_first:,} of {data.n_users:,})."
    lines = {name: (curve[places - 1], None) for name, curve in curves.items()}
    svg = figures.curves("rq5-hits", places, lines, "users", "cumulative hit probability", mark=n_first)
    found = [Figure("Cumulative hits", svg, f"Sum over users of the share of hits in ten listed items. {about}")]
    if "base" in curves and len(curves) > 1:
        lines = {name: ((curve - curves["base"])[places - 1], None) for name, curve in curves.items() if name != "base"}
        svg = figures.curves("rq5-gain", places, lines, "users", "cumulative gain over base", mark=n_first)
        found.append(Figure("Gain over base", svg, f"The same, minus base: a rising line is a gain. {about}"))
    return found


def _answer(study, curves):
    two = common.best_two(study, common.done(study, "mf"), "ndcg")
    if two is None:
        return []
    c = common.compare(study, *two, "ndcg")
    found = [f"{common.lead(study, c, c.users_p)}."]
    if "base" in curves and "dub" in curves:
        _, n_first = users_in_order(study.plan.conditions[WHOLE])
        gain = curves["dub"] - curves["base"]
        first, rest = gain[n_first - 1], gain[-1] - gain[n_first - 1]
        others = f" and by {rest:+z.2f} over the {len(gain) - n_first:,} others" if n_first < len(gain) else ""
        said = f"Against base, dub's sum of hit probabilities changes by {first:+z.2f}"
        found.append(f"{said} over the {n_first:,} users of S_t{others}.")
    return found
