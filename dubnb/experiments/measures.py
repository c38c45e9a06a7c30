"""Numbers of a study: metrics by case, who leads, and comparisons of two cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dubnb import metrics, stats
from dubnb.experiments.study import WHOLE, Case, Study
from dubnb.experiments.systems import POPULARITY

KS = (5, 10)
TRUTH = "truth_"  # how names of metrics against the truth begin
OF_JUDGED_USERS = ("user_auc", "percentile")  # metrics that every judged user has, on S_va and S_te
SIGNIFICANT = 0.05
SEEDS_NEEDED = 5  # fewer do not tell how much a random start matters


def names() -> list[str]:
    """Every registered metric, at each K; liked@K at the largest alone, where most pairs are judged."""
    return [name for name in metrics.names(KS) if name not in metrics.names(KS[:-1], of="judged")]


def label(metric: str) -> str:
    """How tables and sentences call a metric."""
    own = metrics.label(metric.removeprefix(TRUTH))
    return f"truth {own}" if metric.startswith(TRUTH) else own


def low_is_good(metric: str) -> bool:
    """Whether less of it is better."""
    return metrics.parts(metric.removeprefix(TRUTH))[0].low_is_good


def comparable(metric: str) -> bool:
    """Whether it can be compared user by user: it is a mean over users, the AUC, or liked@K."""
    return metrics.parts(metric)[0].of in ("lists", "judged") or metric in ("auc", *OF_JUDGED_USERS)


def shown(study: Study) -> list[str]:
    """The metrics that at least one fit has, the truth last."""
    known = {name for fits in study.judged.values() for fit in fits for name, v in fit.metrics.items() if v == v}
    every = [*names(), *(TRUTH + name for name in names())]
    if not study.design.uniform:
        every = [name for name in every if metrics.parts(name.removeprefix(TRUTH))[0].of != "judged"]
    return [name for name in every if name in known] or names()


def on_S_te(study: Study) -> list[str]:
    """Those of them that are judged on S_te."""
    return [name for name in shown(study) if not name.startswith(TRUTH)]


# ---- cases ---------------------------------------------------------------------------------------------------------


def backbones(study: Study) -> list[str]:
    """The design's backbones, each once."""
    return list(dict.fromkeys(case.system.backbone for case in study.design.cases if not case.system.is_baseline))


def cases(study: Study, backbone: str, condition: str = WHOLE) -> list[Case]:
    """All cases of one backbone and condition, done or not; baselines, which have no backbone, with each."""
    under = (case for case in study.design.cases if case.condition == condition)
    return [case for case in under if case.system.is_baseline or case.system.backbone == backbone]


def done(study: Study, backbone: str, condition: str = WHOLE) -> list[Case]:
    """Those that are done, in the design's order."""
    return [case for case in cases(study, backbone, condition) if case in study.judged]


def values(study: Study, case: Case, metric: str) -> np.ndarray:
    """A metric of a case that is done, one value per seed."""
    return np.array([fit.metrics.get(metric, np.nan) for fit in study.judged[case]])


def mean(study: Study, case: Case, metric: str) -> float:
    """Its mean over seeds; nan where the case is not done, or a seed has none."""
    return float(values(study, case, metric).mean()) if case in study.judged else float("nan")


def best(numbers: Sequence[float], metric: str) -> float | None:
    """The best of some numbers, those that are nan aside."""
    known = [number for number in numbers if number == number]
    return (min if low_is_good(metric) else max)(known) if known else None


def ranked(study: Study, some: Sequence[Case], metric: str) -> list[Case]:
    """The cases that have a number, the best first."""
    known = {case: number for case in some if (number := mean(study, case, metric)) == number}
    return sorted(known, key=lambda case: known[case], reverse=not low_is_good(metric))


def top(numbers: dict[str, float], digits: int = 4) -> list[str]:
    """Names with the largest number, as printed: what prints alike leads together."""
    printed = {name: round(number, digits) for name, number in numbers.items() if number == number}
    return [name for name, number in printed.items() if number == max(printed.values())]


def leaders(study: Study, some: Sequence[Case], metric: str) -> list[str]:
    """The systems with the best mean of a metric: several where they print alike."""
    sign = -1 if low_is_good(metric) else 1
    return top({case.system.name: sign * mean(study, case, metric) for case in some})


def ranks_alike(study: Study, case: Case) -> bool:
    """Whether a case's models, all seeds together, give every user practically the same ranking."""
    return not case.system.is_baseline and mean(study, case, "personal") < metrics.SAME_FOR_ALL


def below_popularity(study: Study) -> dict[Case, list[Case]]:
    """{popularity's case: the cases under its condition with a lower mean of the metric that chooses}."""
    metric, below = study.design.select, {}
    for popularity in study.judged:
        if popularity.system.name == POPULARITY:
            same = [c for c in study.judged if c.condition == popularity.condition and not c.system.is_baseline]
            level = mean(study, popularity, metric)
            below[popularity] = [case for case in same if mean(study, case, metric) < level]
    return {popularity: lower for popularity, lower in below.items() if lower}


# ---- two cases -----------------------------------------------------------------------------------------------------


class Comparison(NamedTuple):
    """Two systems on one metric: over seeds as the paper does, and over users as it should be."""

    metric: str
    first: Case
    second: Case
    difference: float
    seeds_p: float | None  # Student's two-sample t; None with too few seeds
    low: float
    high: float
    users_p: float  # bootstrap over users (auc), from liked@K's interval, or paired t over users


def compare(study: Study, first: Case, second: Case, metric: str) -> Comparison:
    """The Comparison of two done cases under one condition."""
    x, y = values(study, first, metric), values(study, second, metric)
    seeds_p = stats.student_t(x, y) if len(x) >= SEEDS_NEEDED else None
    if metrics.parts(metric)[0].of == "judged":
        shares = liked(study, first, second, int(metric.partition("@")[2]))
        return Comparison(metric, first, second, shares.difference, seeds_p, shares.low, shares.high, shares.p)
    if metric == "auc":
        data = study.design.conditions[first.condition]
        S_te, unseen = data.unseen("S_te"), ~data.in_both("S_te")
        scores, others = ([fit.scores[unseen] for fit in study.judged[case]] for case in (first, second))
        draws = study.budget.bootstraps
        over_users = stats.auc_bootstrap(scores, others, S_te.labels, S_te.users, draws, seed=study.seed)
        users_p = over_users.p
    else:
        x, y = (by_user(study, case, metric) for case in (first, second))
        over_users = stats.paired_bootstrap(x, y, study.budget.bootstraps, seed=study.seed)
        users_p = stats.paired_t(x, y)
    return Comparison(metric, first, second, over_users.difference, seeds_p, over_users.low, over_users.high, users_p)


def by_user(study: Study, case: Case, metric: str, part: str = "S_te") -> np.ndarray:
    """The mean over seeds of a metric for each user that has one: the same users in every fit on the same log."""
    if metric not in OF_JUDGED_USERS:
        return np.asarray(np.mean([fit.per_user[metric] for fit in study.judged[case]], axis=0))
    values = np.mean([getattr(fit.judged_users[part], metric) for fit in study.judged[case]], axis=0)
    return np.asarray(values[~np.isnan(values)])


def liked(study: Study, first: Case, second: Case, k: int, part: str = "S_te") -> stats.SharesCompared:
    """liked@K of two done cases under one condition, all seeds of each together, on S_te or S_va."""

    def counts(case: Case) -> tuple[np.ndarray, np.ndarray]:
        liked, judged = zip(*(fit.judged_users[part].counts(k) for fit in study.judged[case]), strict=True)
        return np.array(liked), np.array(judged)

    weights = study.judged[first][0].judged_users[part].weights
    return stats.compare_liked(weights, counts(first), counts(second))


def corrected(comparisons: Sequence[Comparison]) -> list[float]:
    """Holm's p-values over users of comparisons that belong together."""
    return [float(p) for p in stats.holm([c.users_p for c in comparisons])] if comparisons else []
