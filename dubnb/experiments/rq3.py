"""RQ3: which items do the systems recommend, and how useful are they?

The paper's utility of a group of items is "the probability of hit divided by the probability of being recommended".
It can be read in two ways, which may disagree, so the report shows both:

- *utility*: the group's share of all hits over its share of all recommendations. It compares the groups within one
  system's lists; a system with few hits overall can have a high one.
- *hits per recommendation*: the share of the group's recommendations that are hits. It compares systems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb.experiments import pages
from dubnb.experiments.pages import Findings
from dubnb.experiments.study import LIST_LENGTH, WHOLE, Case, Design, Study, printed_leaders
from dubnb.experiments.systems import Choice
from dubnb.report import figures
from dubnb.report.page import Cell, Figure, Gallery, Label, Section, Table, Value

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.budgets import Budget
    from dubnb.sweeps.worker import TestOutput

NAME = "rq3"
TITLE = "Item distribution of recommendation lists"
QUESTION = "How often do systems recommend popular and unpopular items, and how often are these what users want?"
POPULAR_SHARE = 0.2  # the most frequent items of S_c
GROUPS = ("popular", "unpopular")
RANDOMIZED = "randomized"  # S_te itself
LITTLE_SHOWN = 0.05  # share of all places below which a number is marked as based on little


class Use(NamedTuple):
    """How often a group of items is recommended and hit; nan if there is nothing to count."""

    recommended: float  # the group's share of what is recommended
    hit: float  # the group's share of the hits
    utility: float  # hit / recommended
    rate: float  # hits per recommendation of the group


COLUMNS = dict(zip(Use._fields, ("of the shown", "of the hits", "utility", "hit rate"), strict=True))
Distribution = dict[str, Use]  # by group of items


def design(data: Partition, budget: Budget, choice: Choice) -> Design:
    """Every system on the whole data; mf as in the paper unless another backbone is chosen."""
    popular = f"the {popular_items(data).sum():,} most frequent items of S_c, {100 * POPULAR_SHARE:g} % of all"
    lists = f"the first {LIST_LENGTH} items for every user with a test positive"
    cases = [Case(system) for system in choice.systems(data, ["mf"])]
    return Design(data, {WHOLE: data}, cases, notes=(("popular items", popular), ("lists", lists)))


def popular_items(data: Partition) -> np.ndarray:
    """A mask of the popular items: the top 20 % by frequency in S_c, ties by item order."""
    counts = np.bincount(data.triplets("S_c").items, minlength=data.n_items)
    popular = np.zeros(data.n_items, dtype=bool)
    popular[np.argsort(-counts, kind="stable")[: round(POPULAR_SHARE * data.n_items)]] = True
    return popular


def distribution(popular: np.ndarray, items: np.ndarray, hits: np.ndarray) -> Distribution:
    """The use of popular and unpopular items among recommended `items`; `hits` marks the hits among them."""
    uses = {}
    for group, members in zip(GROUPS, (popular, ~popular), strict=True):
        own = members[items]
        recommended = own.mean() if len(items) else np.nan
        hit = own[hits].mean() if hits.any() else np.nan
        utility = hit / recommended if recommended > 0 else np.nan
        uses[group] = Use(*map(float, (recommended, hit, utility, hits[own].mean() if own.any() else np.nan)))
    return uses


def of_randomized(data: Partition, popular: np.ndarray) -> Distribution:
    """The distribution of S_te itself: what a uniform policy recommends."""
    S_te = data.triplets("S_te")
    return distribution(popular, S_te.items, S_te.labels > 0)


def of_lists(data: Partition, popular: np.ndarray, output: TestOutput) -> Distribution:
    """The distribution of a system's lists; a hit is a listed test positive."""
    wanted = data.pattern("S_te", positives=True).mask(output.users, data.n_items)
    listed = output.lists >= 0
    hits = np.take_along_axis(wanted, np.where(listed, output.lists, 0), axis=1)
    return distribution(popular, output.lists[listed], hits[listed])


def findings(study: Study) -> Findings:
    """Shares, utility and hits per recommendation of both groups of items."""
    data = study.design.source
    popular = popular_items(data)
    random = of_randomized(data, popular)
    sections, rows, answer = [], _tidy(random, RANDOMIZED, None, None) if study.results else [], []
    for backbone in study.backbones():
        by_seed = {
            case: [of_lists(data, popular, fit.output) for fit in study.results[case]] for case in study.done(backbone)
        }
        for case, seeds in by_seed.items():
            for fit, one in zip(study.results[case], seeds, strict=True):
                rows += _tidy(one, case.system.name, case.system.on, fit.seed)
        means = {RANDOMIZED: random} | {case.system.name: _mean(seeds) for case, seeds in by_seed.items()}
        table = _group_table(study, backbone, random, {case: means[case.system.name] for case in by_seed})
        sections.append(Section(f"Popular and unpopular items, {backbone}", [Gallery(_charts(backbone, means)), table]))
        answer += _shares_in_words(backbone, means)
        cases = study.cases(backbone)
        accuracy = pages.metric_table(study, f"Backbone {backbone}", cases, pages.MEANS)
        sections.append(Section("Accuracy of the same fits", [accuracy]))
    return Findings(answer, sections, rows)


def _tidy(uses: Distribution, system: str, backbone: str | None, seed: int | None) -> list[dict[str, Any]]:
    """Rows for results.csv."""
    about = {"condition": WHOLE, "backbone": backbone, "system": system, "seed": seed}
    return [
        about | {"metric": f"{group} {name}", "value": value}
        for group in GROUPS
        for name, value in uses[group]._asdict().items()
    ]


def _mean(seeds: Sequence[Distribution]) -> Distribution:
    """Means over the seeds that have a number: a seed without any hit has no shares of hits."""
    means = {}
    for group in GROUPS:
        columns = zip(*(one[group] for one in seeds), strict=True)
        known = ([value for value in column if value == value] for column in columns)
        means[group] = Use(*(float(np.mean(own)) if own else np.nan for own in known))
    return means


def _charts(backbone: str, means: Mapping[str, Distribution]) -> list[Figure]:
    """Charts of shares, utilities and hit rates."""
    shares = {name: (100 * one["popular"].recommended, 100 * one["popular"].hit) for name, one in means.items()}
    utility = {name: (one["popular"].utility, one["unpopular"].utility) for name, one in means.items()}
    rates = {name: (1000 * one["popular"].rate, 1000 * one["unpopular"].rate) for name, one in means.items()}
    lists = {name: pair for name, pair in rates.items() if name != RANDOMIZED}
    drawn = [
        Figure(
            "Popular items: shown and liked",
            figures.pairs(
                f"{NAME}-{backbone}-shares", shares, ("% of the recommended", "% of the hits"), "popular items, %"
            ),
            "Dot right of the diamond: popular items are shown more than they are liked. The rest are unpopular items.",
        ),
        Figure(
            "Utility: share of hits over share of recommendations",
            figures.pairs(f"{NAME}-{backbone}-utility", utility, GROUPS, "utility", line=1.0),
            "At the line, a group is liked as often as it is shown. It compares groups within one system's lists.",
        ),
    ]
    if lists:
        chart = figures.pairs(f"{NAME}-{backbone}-rates", lists, GROUPS, "hits per 1,000 recommendations of the group")
        drawn.append(Figure("Hits per recommendation", chart, "It compares systems: more is better, for both groups."))
    return drawn


def _group_table(study: Study, backbone: str, random: Distribution, means: Mapping[Case, Distribution]) -> Table:
    header = ["system", *(f"{group}: {name}" for group in GROUPS for name in COLUMNS.values())]
    named = {Label(RANDOMIZED, "what a uniform policy shows"): random}
    named |= {pages.case_label(study, case): uses for case, uses in means.items()}
    rows: list[list[Cell]] = [
        [name, *(Value(value) for group in GROUPS for value in uses[group])] for name, uses in named.items()
    ]
    note = (
        "Utility above 1: items of this group are liked more often than they are shown; it compares groups within one "
        "system. Hit rate: hits per recommendation of the group; it compares systems. Do not compare it with that of "
        "the randomized log: there every pair has feedback, in a list only a few. Means over seeds."
    )
    return Table(f"Shares and use, {backbone}", header, rows, note)


def _shares_in_words(backbone: str, means: Mapping[str, Distribution]) -> list[str]:
    systems = {name: one for name, one in means.items() if name != RANDOMIZED}
    if not systems:
        return []
    shown = {name: one["popular"].recommended for name, one in systems.items()}
    random = means[RANDOMIZED]["popular"]
    most, least = max(shown, key=lambda name: shown[name]), min(shown, key=lambda name: shown[name])
    answer = [
        f"In the randomized data popular items are {100 * random.recommended:.0f} % of what is shown and "
        f"{100 * random.hit:.0f} % of what is liked. Lists ({backbone}) hold between {100 * shown[least]:.0f} % "
        f"({least}) and {100 * shown[most]:.0f} % ({most}) popular items."
    ]
    utility = {name: one["unpopular"].utility for name, one in systems.items()}
    rates = {name: 1000 * one["unpopular"].rate for name, one in systems.items()}
    best, best_rate = printed_leaders(utility, digits=2), printed_leaders(rates, digits=1)
    if best and best_rate:
        first = f"{pages.join_words(best)} by utility ({utility[best[0]]:.2f}{_rarity_remark(systems[best[0]])})"
        rate = f"{rates[best_rate[0]]:.1f}{_rarity_remark(systems[best_rate[0]])}"
        second = f"{pages.join_words(best_rate)} by hits per 1,000 recommendations ({rate})"
        agree = "both readings agree" if best == best_rate else "the two readings of the paper's word do not agree"
        answer.append(f"Unpopular items are of most use in the lists of {first}, and of {second}: {agree}.")
    return answer


def _rarity_remark(uses: Distribution) -> str:
    """A remark if a system rarely shows unpopular items, so that its numbers rest on few recommendations."""
    share = uses["unpopular"].recommended
    return f", on {100 * share:.1f} % of its places" if share < LITTLE_SHOWN else ""
