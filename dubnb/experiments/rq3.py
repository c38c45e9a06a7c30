"""RQ3: which items do the systems recommend, and to what use?"""

import numpy as np

from dubnb.experiments import _common as common
from dubnb.experiments.study import LIST_LENGTH, WHOLE, Cell, Plan
from dubnb.report import figures
from dubnb.report.page import Figure, Gallery, Section, Table, Value

NAME = "rq3"
TITLE = "Item distribution of recommendation lists"
QUESTION = "How often do systems recommend popular and unpopular items, and how often are these what users want?"
POPULAR_SHARE = 0.2  # the most frequent items of S_c
SHARES = ("recommended", "hit", "utility")
GROUPS = ("popular", "unpopular")


def plan(data, budget):
    note = f"the {popular_items(data).sum():,} most frequent items of S_c, {100 * POPULAR_SHARE:g} % of all"
    lists = f"the first {LIST_LENGTH} items for every user with a test positive; backbone mf, as in the paper"
    return Plan(
        {WHOLE: data},
        [Cell(system) for system in common.systems(["mf"])],
        notes=(("popular items", note), ("lists", lists)),
    )


def popular_items(data):
    """True for the items that are popular: the top 20 % by frequency in S_c, ties by item order."""
    counts = np.bincount(data.triplets("S_c").items, minlength=data.n_items)
    popular = np.zeros(data.n_items, dtype=bool)
    popular[np.argsort(-counts, kind="stable")[: round(POPULAR_SHARE * data.n_items)]] = True
    return popular


def distribution(popular, items, hits):
    """{group: {"recommended", "hit", "utility"}}: shares of the recommended items and of the hits, and their ratio."""
    found = {}
    for group, members in zip(GROUPS, (popular, ~popular), strict=True):
        recommended = members[items].mean() if len(items) else np.nan
        hit = members[items[hits]].mean() if hits.any() else np.nan
        utility = hit / recommended if recommended > 0 else np.nan
        found[group] = {"recommended": float(recommended), "hit": float(hit), "utility": float(utility)}
    return found


def of_randomized(data, popular):
    """The distribution of S_te itself: what a uniform policy recommends."""
    S_te = data.triplets("S_te")
    return distribution(popular, S_te.items, S_te.labels > 0)


def of_run(data, popular, run):
    """The distribution of a system's lists; a hit is a listed test positive."""
    S_te = data.triplets("S_te")
    positive = S_te.labels > 0
    wanted = np.sort(S_te.users[positive].astype(np.int64) * data.n_items + S_te.items[positive])
    listed = run.lists >= 0
    items = run.lists[listed]
    pairs = (run.users[:, None] * np.int64(data.n_items) + run.lists)[listed]
    return distribution(popular, items, np.isin(pairs, wanted))


def findings(study):
    data = study.plan.conditions[WHOLE]
    popular = popular_items(data)
    random = of_randomized(data, popular)
    by_seed = {cell: [of_run(data, popular, run) for run in study.runs[cell]] for cell in common.done(study, "mf")}
    means = {"randomized": random} | {cell.system.name: _mean(found) for cell, found in by_seed.items()}
    rows = _tidy(random, "randomized", None, None) if by_seed else []
    for cell, found in by_seed.items():
        for run, one in zip(study.runs[cell], found, strict=True):
            rows += _tidy(one, cell.system.name, "mf", run.seed)
    sections = [Section("Popular and unpopular items", [*_panels(means), _table(means)])]
    sections.append(Section("Accuracy of the same runs", [_accuracy(study)]))
    return common.Findings(_answer(means), sections, tuple(rows))


def _tidy(found, system, backbone, seed):
    """Rows for results.csv."""
    names = {"condition": WHOLE, "backbone": backbone, "system": system, "seed": seed}
    return [
        names | {"metric": f"{group} {share}", "value": found[group][share]} for group in GROUPS for share in SHARES
    ]


def _mean(found):
    """The mean over the seeds that have a number: without a single hit there are no shares of hits."""
    means = {}
    for group in GROUPS:
        known = {
            share: [one[group][share] for one in found if one[group][share] == one[group][share]] for share in SHARES
        }
        means[group] = {share: float(np.mean(own)) if own else np.nan for share, own in known.items()}
    return means


def _panels(means):
    first = figures.bars(
        "rq3-random", {group: means["randomized"][group] for group in GROUPS}, "share; utility: ratio of shares"
    )
    first = Figure("(a) Randomized data", first, "What users meet when items are shown uniformly at random.")
    found = []
    for letter, group in zip("bc", GROUPS, strict=True):
        svg = figures.bars(
            f"rq3-{group}", {name: one[group] for name, one in means.items()}, "share; utility: ratio of shares"
        )
        caption = f"Share of {group} items among the recommended, among the hits, and the ratio of the two (utility)."
        found.append(Figure(f"({letter}) {group.capitalize()} items", svg, caption))
    return [first, Gallery(found)]


def _table(means):
    header = ["system", *(f"{group} {share}" for group in GROUPS for share in SHARES)]
    rows = [[name, *(Value(one[group][share]) for group in GROUPS for share in SHARES)] for name, one in means.items()]
    note = "Utility above 1: items of this group are wanted more often than they are shown. Means over seeds."
    return Table("Shares and utility", header, rows, note, tuple(range(1, len(header))))


def _accuracy(study):
    note = "Mean over seeds, ± standard deviation; best in bold."
    return common.metric_table(study, "Backbone mf", common.cells_of(study, "mf"), note)


def _answer(means):
    systems = {name: one for name, one in means.items() if name != "randomized"}
    if not systems:
        return []
    shown = {name: one["popular"]["recommended"] for name, one in systems.items()}
    useful = {name: one["unpopular"]["utility"] for name, one in systems.items()}
    random = means["randomized"]["popular"]
    most, least = max(shown, key=shown.get), min(shown, key=shown.get)
    found = [
        f"In the randomized data popular items are {100 * random['recommended']:.0f} % of what is shown and "
        f"{100 * random['hit']:.0f} % of what is liked; lists hold between "
        f"{100 * shown[least]:.0f} % ({least}) and {100 * shown[most]:.0f} % ({most}) popular items."
    ]
    best = common.top(useful, digits=2)
    if best:
        dub = useful.get("dub", np.nan)
        own = f"; dub's is {dub:.2f}" if "dub" not in best and dub == dub else ""
        said = f"Unpopular items are of most use in the lists of {common.listed(best)}"
        found.append(f"{said} (utility {useful[best[0]]:.2f}{own}).")
    return found
