"""A study: search every system on S_va, fit the winners over seeds, and read the numbers that reports show.

Every fit is a trial in one ledger, and its key follows from all it depends on. So a second run continues where the
first stopped, and experiments that share a directory share their fits.

A metric has four forms on its way into a report. It begins in the dict of `evaluate`, and goes into the metrics of a
`SeedResult`, with "va_" before the names of those on S_va. `Study.values` makes an array over seeds of it, and a
table's cell has a `Value`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import metrics, stats
from dubnb.evaluation import weights_of_users
from dubnb.experiments import budgets
from dubnb.experiments.systems import POPULARITY, System

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.budgets import Budget, Search, SearchAxes
    from dubnb.sweeps.runner import FinishedFit, Fits, Resources, Trial
    from dubnb.sweeps.worker import TestOutput

LIST_LENGTH = 10  # items of the recommendation lists that are kept
WHOLE = "whole data"  # the condition that changes nothing
FITS = "fits"  # directory of all fits
TOGETHER = 24  # fits of winners between two reports: each start of the worker processes costs some seconds
KS = (5, 10)  # lengths of the lists of P@K and R@K
TRUTH = "truth_"  # prefix of the names of metrics against the truth
OF_JUDGED_USERS = ("user_auc", "percentile")  # metrics that every judged user has, on S_va and S_te
SIGNIFICANT = 0.05
SEEDS_NEEDED = 5  # with fewer seeds, their spread is not known well enough for a test

Say = Callable[[str], None]


class Case(NamedTuple):
    """A system under a condition."""

    system: System
    condition: str = WHOLE

    def __str__(self) -> str:
        where = "" if self.condition == WHOLE else f", {self.condition}"
        return f"{self.system.name} ({self.system.on}{where})"


class Design(NamedTuple):
    """What an experiment needs: its data by condition, and its cases."""

    source: Partition  # the data as they were given
    conditions: Mapping[str, Partition]
    cases: Sequence[Case]
    select: str = "auc"  # the metric on S_va that chooses
    notes: Sequence[tuple[str, str]] = ()  # (name, text): facts for the report
    monitor: str | None = None  # the metric on S_va that stops training, if it is not `select`
    tie: tuple[float, str] | None = None  # (tolerance, metric): the metric chooses among candidates this close
    uniform: bool = True  # whether S_te is randomized traffic, which liked@K needs


class Winner(NamedTuple):
    """The chosen candidate of a search."""

    params: dict[str, Any]  # all parameters except the seed
    point: dict[str, Any]  # the searched ones
    axes: SearchAxes
    n_points: int
    validation: float
    lost: tuple[str, ...] = ()  # why candidates did not finish
    extended: tuple[tuple[str, int], ...] = ()  # (parameter, how often its values continued beyond an end)
    inner: int = 1  # candidates that each fit chose among on S_va


class SeedResult(NamedTuple):
    """What a winner's fit with one seed gave."""

    seed: int
    metrics: Mapping[str, float]  # "va_..." on S_va, "truth_..." against the truth, others on S_te
    output: TestOutput  # its lists, scores and values per user


class Comparison(NamedTuple):
    """Two systems on one metric, compared over seeds as in the paper, and over users."""

    metric: str
    first: Case
    second: Case
    difference: float
    seeds_p: float | None  # Student's two-sample t; None with too few seeds
    low: float
    high: float
    users_p: float  # auc: bootstrap over users; liked@K: from its interval; others: paired t over users


# ---- metrics -------------------------------------------------------------------------------------------------------


def report_metrics() -> list[str]:
    """Every registered metric at each K; liked@K only at the largest, where most pairs are judged."""
    return [name for name in metrics.metric_names(KS) if name not in metrics.metric_names(KS[:-1], of="judged")]


def report_label(metric: str) -> str:
    """The name of a metric in tables and sentences."""
    own = metrics.metric_label(metric.removeprefix(TRUTH))
    return f"truth {own}" if metric.startswith(TRUTH) else own


def low_is_good(metric: str) -> bool:
    """Whether a smaller value is better."""
    return metrics.metric_named(metric.removeprefix(TRUTH))[0].low_is_good


def is_comparable(metric: str) -> bool:
    """Whether two systems can be compared user by user: a mean over users, the AUC, or liked@K."""
    return metrics.metric_named(metric)[0].of in ("lists", "judged") or metric in ("auc", *OF_JUDGED_USERS)


def best_value(values: Sequence[float], metric: str) -> float | None:
    """The best of the values that are not nan."""
    known = [value for value in values if value == value]
    return (min if low_is_good(metric) else max)(known) if known else None


def printed_leaders(numbers: Mapping[str, float], digits: int = 4) -> list[str]:
    """The names with the largest number as printed: several if their numbers print alike."""
    printed = {name: round(number, digits) for name, number in numbers.items() if number == number}
    return [name for name, number in printed.items() if number == max(printed.values())]


def holm_p(comparisons: Sequence[Comparison]) -> list[float]:
    """The p-values over users of comparisons that belong together, with Holm's correction."""
    return [float(p) for p in stats.holm([c.users_p for c in comparisons])] if comparisons else []


# ---- the study -----------------------------------------------------------------------------------------------------


class Study:
    """An experiment: `run` fits it; `results` by case, `winners` by search and `failures` by case hold what is done.

    keep_models: whether every winner's first fit saves its model in the directory `models`.
    """

    def __init__(
        self,
        design: Design,
        budget: Budget,
        directory: str,
        seed: int = 0,
        resources: Resources | None = None,
        keep_models: bool = False,
    ):
        self.design, self.budget, self.directory = design, budget, directory
        self.seed, self.resources, self.keep_models = seed, resources, keep_models
        self.winners: dict[Case, Winner | None] = {}
        self.results: dict[Case, list[SeedResult]] = {}
        self.failures: dict[Case, str] = {}
        self.tried: dict[Case, list[FinishedFit]] = {}  # the candidates by search
        self.fitted: dict[Case, list[FinishedFit]] = {}  # the fits of winners

    @property
    def seeds(self) -> range:
        """The seeds of every winner's fits; searches use the first."""
        return range(self.seed, self.seed + self.budget.seeds)

    @property
    def logs(self) -> list[Partition]:
        """The data of all conditions."""
        return list(self.design.conditions.values())

    @property
    def n_jobs(self) -> int:
        """The number of worker processes."""
        return self.resources.checked().n_jobs if self.resources else 1

    @property
    def models(self) -> str:
        """The directory of the models that `keep_models` asks for."""
        return os.path.join(os.path.abspath(self.directory), "models")

    @property
    def finished(self) -> bool:
        """Whether every case has a result or a reason for having none."""
        return len(self.results) + len(self.failures) == len(self.design.cases)

    def run(self, say: Say = lambda line: None) -> None:
        """Search all systems, then fit the winners in batches; cases with a result or a failure are left alone."""
        missing = [case for case in self.design.cases if case not in self.results and case not in self.failures]
        searches = {case: self._search_of(case) for case in dict.fromkeys(map(self.searched, missing))}
        n_candidates = sum(search.n_points for search in searches.values())
        n_winners = len(missing) * self.budget.seeds
        say(f"{n_candidates} candidates of {len(searches)} searches, then {n_winners} fits of winners")
        self._choose(searches)
        for _ in range(self.budget.extensions):
            won = {case: winner for case in searches if (winner := self.winners[case]) is not None}
            longer = {case: searches[case].beyond(winner.point) for case, winner in won.items()}
            searches = {case: search for case, search in longer.items() if search is not None}
            if not searches:
                break
            say(f"{len(searches)} searches continue beyond an end of their grid")
            self._choose(searches)
        for cases in self._batches(missing):
            say(f"fitting {', '.join(map(str, cases))}")
            self._fit(cases)

    def searched(self, case: Case) -> Case:
        """The case whose search a case uses: its own, or that of the whole data."""
        reuse = not self.budget.search_everywhere and WHOLE in self.design.conditions
        return Case(case.system, WHOLE) if reuse else case

    def candidates(self, case: Case) -> list[Trial]:
        """The trials of a case's search, in the grid's order."""
        return [trial for trial, _ in self._candidates(case, self._search_of(case))]

    def _search_of(self, case: Case) -> Search:
        search = budgets.search_of(case.system, self.budget, self.design.conditions[case.condition])
        return search._replace(fixed={"monitor": self.design.monitor or self.design.select, **search.fixed})

    def _candidates(self, case: Case, search: Search) -> list[tuple[Trial, dict[str, Any]]]:
        """(trial, point) of each candidate."""
        return [(self._trial(case, search.fixed | point, self.seed), point) for point in search.points()]

    def _choose(self, searches: Mapping[Case, Search]) -> None:
        """Fit every candidate and keep the winners."""
        candidates = {case: self._candidates(case, search) for case, search in searches.items()}
        fits = self.run_fits([trial for trials in candidates.values() for trial, _ in trials])
        select = self.design.select
        for case, trials in candidates.items():
            search = searches[case]
            trials.sort(key=lambda each: each[1] != search.default)  # the first of equals wins
            lost = tuple(sorted(str(fits[trial].reason) for trial, _ in trials if not fits[trial].done))
            best = fits.best([trial for trial, _ in trials], (select, *self.design.tie) if self.design.tie else select)
            self.winners[case], self.tried[case] = None, [fits[trial] for trial, _ in trials]
            if best is not None:
                trial, point = trials[best]
                params = {name: value for name, value in trial.params.items() if name != "seed"}
                value = fits[trial].metrics[f"va_{select}"]
                found = Winner(params, point, search.axes, search.n_points, value, lost, search.extended, search.inner)
                self.winners[case] = found

    def _batches(self, cases: Sequence[Case]) -> Iterator[list[Case]]:
        """The cases in their order, in batches of whole systems and at least TOGETHER fits."""
        batch: list[Case] = []
        for _, of_system in itertools.groupby(cases, lambda case: case.system):
            batch += of_system
            if len(batch) * self.budget.seeds >= TOGETHER:
                yield batch
                batch = []
        if batch:
            yield batch

    def _fit(self, cases: Sequence[Case]) -> None:
        trials: dict[tuple[Case, int], Trial] = {}
        for case in cases:
            winner = self.winners[self.searched(case)]
            if winner is None:
                reasons = dict.fromkeys(fit.reason for fit in self.tried[self.searched(case)] if fit.reason)
                self.failures[case] = ": ".join(["no candidate finished", *list(reasons)[:1]])
            else:
                trials |= {(case, seed): self._trial(case, winner.params, seed) for seed in self.seeds}
        fits = self.run_fits(list(trials.values()), list_length=LIST_LENGTH)
        for case in dict.fromkeys(case for case, _ in trials):
            own = {seed: fits[trials[case, seed]] for seed in self.seeds}
            self.fitted[case] = list(own.values())
            failed = [str(fit.reason) for fit in own.values() if not fit.done]
            if failed:
                self.failures[case] = failed[0]
            else:
                self.results[case] = [SeedResult(seed, fit.metrics, fit.test_output()) for seed, fit in own.items()]

    def _trial(self, case: Case, params: Mapping[str, Any], seed: int) -> Trial:
        from dubnb.sweeps.runner import planned

        data, system = self.design.conditions[case.condition], case.system
        return planned(system.method_class(), data, {"backbone": system.backbone, **params, "seed": seed})

    def first_trial(self, case: Case) -> Trial:
        """The fit of a case's winner with the first seed."""
        winner = self.winners[self.searched(case)]
        if winner is None:
            raise TypeError(f"the search of {case} has no winner")
        return self._trial(case, winner.params, self.seed)

    def run_fits(
        self, trials: Sequence[Trial], logs: Iterable[Partition] | None = None, list_length: int | None = None
    ) -> Fits:
        """Run the trials that the directory does not hold yet, on the design's logs or on others.

        With `list_length` they are fits of winners.
        """
        from dubnb.sweeps.runner import run_fits
        from dubnb.sweeps.trial import ModelFiles

        out, logs = os.path.join(self.directory, FITS), self.logs if logs is None else logs
        models = ModelFiles(self.models, self.seed) if self.keep_models and list_length else None
        return run_fits(trials, logs, out, self.resources, list_length=list_length, models=models)

    # -- numbers

    def metric_names(self, truth: bool = True) -> list[str]:
        """The metrics that at least one fit has; those against the truth come last, or not at all."""
        known = {name for fits in self.results.values() for fit in fits for name, v in fit.metrics.items() if v == v}
        every = report_metrics()
        if not self.design.uniform:
            every = [name for name in every if metrics.metric_named(name)[0].of != "judged"]
        every += [TRUTH + name for name in every] if truth else []
        return [name for name in every if name in known] or report_metrics()

    def backbones(self) -> list[str]:
        """The backbones of the design."""
        return list(dict.fromkeys(case.system.backbone for case in self.design.cases if not case.system.is_baseline))

    def cases(self, backbone: str, condition: str = WHOLE) -> list[Case]:
        """All cases of a backbone and a condition, done or not; baselines belong to every backbone."""
        under = (case for case in self.design.cases if case.condition == condition)
        return [case for case in under if case.system.is_baseline or case.system.backbone == backbone]

    def done(self, backbone: str, condition: str = WHOLE) -> list[Case]:
        """Those of `cases` that have a result."""
        return [case for case in self.cases(backbone, condition) if case in self.results]

    def values(self, case: Case, metric: str) -> np.ndarray:
        """A metric of a case that is done: one value per seed, nan if a fit has none."""
        return np.array([fit.metrics.get(metric, np.nan) for fit in self.results[case]])

    def mean(self, case: Case, metric: str) -> float:
        """The mean of a metric over seeds; nan if the case is not done or a seed has no value."""
        return float(self.values(case, metric).mean()) if case in self.results else float("nan")

    def ranked(self, some: Sequence[Case], metric: str) -> list[Case]:
        """The cases that have a mean, the best first."""
        known = {case: number for case in some if (number := self.mean(case, metric)) == number}
        return sorted(known, key=lambda case: known[case], reverse=not low_is_good(metric))

    def leaders(self, some: Sequence[Case], metric: str) -> list[str]:
        """The systems with the best mean of a metric: several if their means print alike."""
        sign = -1 if low_is_good(metric) else 1
        return printed_leaders({case.system.name: sign * self.mean(case, metric) for case in some})

    def ranks_alike(self, case: Case) -> bool:
        """Whether a case's models give every user practically the same ranking, in the mean over seeds."""
        return not case.system.is_baseline and self.mean(case, "personal") < metrics.SAME_FOR_ALL

    def below_popularity(self) -> dict[Case, list[Case]]:
        """{popularity's case: the cases under its condition with a lower mean of the metric that chooses}."""
        below = {}
        for popularity in self.results:
            if popularity.system.name == POPULARITY:
                same = [c for c in self.results if c.condition == popularity.condition and not c.system.is_baseline]
                level = self.mean(popularity, self.design.select)
                below[popularity] = [case for case in same if self.mean(case, self.design.select) < level]
        return {popularity: lower for popularity, lower in below.items() if lower}

    def compare(self, first: Case, second: Case, metric: str) -> Comparison:
        """Compare two done cases under one condition."""
        x, y = self.values(first, metric), self.values(second, metric)
        seeds_p = stats.student_t(x, y) if len(x) >= SEEDS_NEEDED else None
        if metrics.metric_named(metric)[0].of == "judged":
            shares = self.liked(first, second, int(metric.partition("@")[2]))
            return Comparison(metric, first, second, shares.difference, seeds_p, shares.low, shares.high, shares.p)
        draws = self.budget.bootstraps
        if metric == "auc":
            data = self.design.conditions[first.condition]
            S_te, unseen = data.unseen("S_te"), ~data.in_both("S_te")
            scores, others = ([fit.output.scores[unseen] for fit in self.results[case]] for case in (first, second))
            pairs = S_te.labels, S_te.users
            weights = data.judging_weights("S_te")
            over_users = stats.auc_bootstrap(scores, others, *pairs, draws, seed=self.seed, weights=weights)
            users_p = over_users.p
        else:
            x, y = (self.by_user(case, metric) for case in (first, second))
            over_users = stats.paired_bootstrap(x, y, draws, seed=self.seed)
            users_p = stats.paired_t(x, y)
        interval = over_users.low, over_users.high
        return Comparison(metric, first, second, over_users.difference, seeds_p, *interval, users_p)

    def by_user(self, case: Case, metric: str, part: str = "S_te") -> np.ndarray:
        """The mean over seeds of a metric for each user that has one; all fits on a log have the same users.

        On a log with propensities values are multiplied by users' weights of mean 1: their mean is the weighted mean.
        """
        outputs = [fit.output for fit in self.results[case]]
        if metric not in OF_JUDGED_USERS:
            values, users = np.mean([output.per_user[metric] for output in outputs], axis=0), outputs[0].users
        else:
            values = np.mean([getattr(output.judged_users[part], metric) for output in outputs], axis=0)
            users = outputs[0].judged_users[part].users
        known = ~np.isnan(values)
        weights = weights_of_users(self.design.conditions[case.condition], part, metrics.metric_named(metric)[0].of)
        if weights is None:
            return np.asarray(values[known] if metric in OF_JUDGED_USERS else values)
        own = weights[users[known]]
        return np.asarray(values[known] * own / own.mean())

    def liked(self, first: Case, second: Case, k: int, part: str = "S_te") -> stats.SharesCompared:
        """liked@K of two done cases under one condition, all seeds of each together, on S_te or S_va."""

        def counts(case: Case) -> tuple[np.ndarray, np.ndarray]:
            judged_users = (fit.output.judged_users[part] for fit in self.results[case])
            liked, judged = zip(*(users.counts(k) for users in judged_users), strict=True)
            return np.array(liked), np.array(judged)

        weights = self.results[first][0].output.judged_users[part].weights
        return stats.compare_liked(weights, counts(first), counts(second))
