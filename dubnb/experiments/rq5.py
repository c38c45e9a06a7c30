"""RQ5: how good are the systems when they are tested on ordinary, biased feedback?

The paper sums hits over "the first x users" and calls the first 5,400 "the users involved in S_t". On Yahoo! R3 these
are the users of the whole randomized log, who have the smallest ids. Not all of them have feedback in S_t, which is
10 % of that log. So here users are in the order of their ids if the users of the randomized log come first. On other
data the users of the randomized log are moved to the front.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb._random import generator
from dubnb.data.partition import RANDOMIZED
from dubnb.experiments import pages
from dubnb.experiments.pages import Findings
from dubnb.experiments.study import WHOLE, Case, Design, Study, report_label
from dubnb.experiments.systems import Choice
from dubnb.report import figures
from dubnb.report.page import Figure, Gallery, Section

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.budgets import Budget

NAME = "rq5"
TITLE = "General evaluation on biased feedback"
QUESTION = "Which system ranks best when validation and test are ordinary, biased feedback, and which users gain?"
SPLIT = (("S_c", 5), ("S_va", 2), ("S_te", 3))
SELECT = "ndcg"
CURVE_POINTS = 160
HITS = "p@10"  # the share of hits among ten listed items: a user's hit probability
REFERENCE, OWN = "base", "dub"  # the system that others are compared with, and the paper's own
CANDIDATES = (
    "all items outside the user's training part of S_c, as in RQ1. The paper says: items that the user has not "
    "interacted with. It does not say whether pairs of S_va and S_t are among these; here they stay candidates"
)


def design(data: Partition, budget: Budget, choice: Choice) -> Design:
    """Every system on S_c split 5:2:3; mf unless another backbone is chosen, as the paper names none."""
    general = general_split(data)
    sizes = ", ".join(f"{len(general.triplets(part).users):,}" for part, _ in SPLIT)
    split = f"S_c 5:2:3 into training, validation and test ({sizes} pairs); S_t as before; the rest is unused"
    notes = (("split", split), ("candidates", CANDIDATES), ("order of users", users_in_order(data).how))
    cases = [Case(system) for system in choice.systems(general, ["mf"])]
    return Design(data, {WHOLE: general}, cases, SELECT, notes, uniform=False)


def general_split(data: Partition) -> Partition:
    """`data` with S_c split at random 5:2:3 into S_c, S_va and S_te; S_t does not change."""
    S_c = data.triplets("S_c")
    order = generator(0, "rq5").permutation(len(S_c.users))
    cuts = np.cumsum([share for _, share in SPLIT]) * len(order) // sum(share for _, share in SPLIT)
    pieces = np.split(order, cuts[:-1])
    rows = {part: np.sort(piece) for (part, _), piece in zip(SPLIT, pieces, strict=True)}
    propensities = None if data.propensities is None else data.propensities[rows["S_c"]]
    parts = {part: S_c.take(own) for part, own in rows.items()}
    return data.replace(propensities=propensities, truth=None, name=f"{data.name}, S_c split 5:2:3", **parts)


class UserOrder(NamedTuple):
    """User rows in the order in which hits are summed; the first `n_first` are the group that the paper looks at."""

    rows: np.ndarray
    n_first: int
    first: str  # description of the first `n_first` users
    how: str


def users_in_order(data: Partition) -> UserOrder:
    """Users by id, those of the randomized log first; if all users are in it, those with feedback in S_t first."""
    randomized, S_t = np.zeros(data.n_users, dtype=bool), np.zeros(data.n_users, dtype=bool)
    for part in RANDOMIZED:
        randomized[data.triplets(part).users] = True
    S_t[data.triplets("S_t").users] = True
    if randomized.all():
        how = "those with feedback in S_t first (everyone is in the randomized log, unlike in the paper), then by id"
        return UserOrder(np.argsort(~S_t, kind="stable"), int(S_t.sum()), "users of S_t", how)
    n = int(randomized.sum())
    moved = "by id, as in the paper" if randomized[:n].all() else "moved to the front: by id, unlike in the paper, not"
    how = (
        f"the {n:,} users of the randomized log are the first {moved}. {int(S_t.sum()):,} of them have feedback in "
        "S_t; the paper calls all of them involved in S_t"
    )
    return UserOrder(np.argsort(~randomized, kind="stable"), n, "users of the randomized log", how)


def findings(study: Study) -> Findings:
    """Tables, a chart per metric, and which users get more hits."""
    order = users_in_order(study.design.source)
    note = f"{pages.MEANS} Tested on biased feedback: not comparable with RQ1."
    tables, bars, gains, answer = [], [], [], []
    for backbone in study.backbones():
        cases = study.cases(backbone)
        tables.append(pages.metric_table(study, f"Backbone {backbone}", cases, note))
        bars += _by_metric(study, backbone)
        hits = _hits(study, backbone)
        gains += _gains(backbone, hits, order)
        answer += _gains_in_words(study, backbone, hits, order)
    sections = [Section("Results", tables), Section("By metric", [Gallery(bars)])]
    if gains:
        sections.append(Section("Which users gain", [Gallery(gains)]))
    return Findings(answer, sections)


def _by_metric(study: Study, backbone: str) -> list[Figure]:
    drawn = []
    for metric in study.metric_names(truth=False):
        values = {c.system.name: study.values(c, metric) for c in study.done(backbone)}
        if values:
            name, label = f"{NAME}-{backbone}-{metric.replace('@', '')}", report_label(metric)
            drawn.append(Figure(f"{label}, {backbone}", figures.dots(name, values, label), pages.SEED_DOTS))
    return drawn


def _hits(study: Study, backbone: str) -> dict[str, np.ndarray]:
    """{system: hit probability of every user, mean over seeds}; 0 for users without a test positive.

    The hit probability is the share of hits among ten listed items.
    """
    means = {}
    for case in study.done(backbone):
        hits = np.zeros((len(study.results[case]), study.design.source.n_users))
        for row, fit in zip(hits, study.results[case], strict=True):
            row[fit.output.users] = fit.output.per_user[HITS]
        means[case.system.name] = hits.mean(axis=0)
    return means


def _gains(backbone: str, hits: Mapping[str, np.ndarray], order: UserOrder) -> list[Figure]:
    """The cumulative gain over the reference system, and the mean hits of both groups of users."""
    if REFERENCE not in hits or len(hits) < 2:
        return []
    n = len(order.rows)
    places = np.unique(np.linspace(1, n, min(CURVE_POINTS, n)).round().astype(int))
    lines: dict[str, figures.Line] = {
        name: (np.cumsum((own - hits[REFERENCE])[order.rows])[places - 1], None)
        for name, own in hits.items()
        if name != REFERENCE
    }
    labels = ("users", f"sum of hit probabilities, minus {REFERENCE}'s")
    gain = figures.curves(f"{NAME}-{backbone}-gain", places, lines, labels, order.n_first, (OWN,))
    about = f"Left of the line: the {order.n_first:,} {order.first}."
    drawn = [Figure(f"Cumulative gain over {REFERENCE}, {backbone}", gain, f"A rising line is a gain. {about}")]
    if 0 < order.n_first < n:
        first, rest = order.rows[: order.n_first], order.rows[order.n_first :]
        split = {name: (float(own[first].mean()), float(own[rest].mean())) for name, own in hits.items()}
        chart = figures.pairs(f"{NAME}-{backbone}-hits", split, (order.first, "others"), "mean hit probability")
        caption = "The share of hits among ten listed items, averaged over either group of users."
        drawn.append(Figure(f"Hit probability, {backbone}", chart, caption))
    return drawn


def _gains_in_words(study: Study, backbone: str, hits: Mapping[str, np.ndarray], order: UserOrder) -> list[str]:
    among = [case for case in study.done(backbone) if not case.system.is_baseline]
    ranked = study.ranked(among, SELECT)
    if len(ranked) < 2:
        return []
    best = study.compare(ranked[0], ranked[1], SELECT)
    answer = [f"With {backbone}, {pages.lead_sentence(study, among, best)}."]
    if REFERENCE in hits and OWN in hits:
        gain = (hits[OWN] - hits[REFERENCE])[order.rows]
        first, rest = gain[: order.n_first].sum(), gain[order.n_first :].sum()
        others = f" and by {rest:+z.2f} over the {len(gain) - order.n_first:,} others"
        said = f"Against {REFERENCE}, {OWN}'s sum of hit probabilities changes by {first:+z.2f}"
        tail = others if order.n_first < len(gain) else ""
        answer.append(f"{said} over the {order.n_first:,} {order.first}{tail}.")
    return answer
