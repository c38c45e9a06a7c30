"""Running an experiment: search every system on S_va, fit the winners over seeds, keep what each fit showed.

Every fit is a trial of the sweeps' engine, in one ledger, named by what it depends on: running again goes on where it
stopped, and experiments that share a directory share their fits.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb.experiments import budgets
from dubnb.experiments.systems import System

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.budgets import Axes, Budget, Search
    from dubnb.sweeps.engine import Resources
    from dubnb.sweeps.fits import FinishedFit, Fits, Trial

LIST_LENGTH = 10  # items of the recommendation lists that are kept
WHOLE = "whole data"  # the condition that changes nothing
FITS = "fits"  # directory of all fits
TOGETHER = 24  # fits of winners between two reports: each start of the engine costs some seconds
LONG = 500  # fits beyond which a study says beforehand how long it will take

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
    select: str = "auc"  # the metric on S_va that chooses, and stops training
    notes: Sequence[tuple[str, str]] = ()  # (name, text): facts for the report


class Winner(NamedTuple):
    """The chosen candidate of a search."""

    params: dict[str, Any]  # all of them, without the seed
    point: dict[str, Any]  # those that were searched
    axes: Axes
    n_points: int
    validation: float
    lost: tuple[str, ...] = ()  # reasons of candidates that did not finish


class Judged(NamedTuple):
    """What a fitted winner showed on S_te."""

    seed: int
    metrics: Mapping[str, float]
    users: np.ndarray  # rows of the users that ranking metrics count
    per_user: Mapping[str, np.ndarray]  # metric -> value for each of them
    lists: np.ndarray  # (users, LIST_LENGTH) item rows, best first; -1 where items have run out
    scores: np.ndarray  # raw scores of S_te's pairs


class Study:
    """An experiment on its way: `judged` by case, `winners` by search, `failures` by case."""

    def __init__(
        self, design: Design, budget: Budget, directory: str, seed: int = 0, resources: Resources | None = None
    ):
        self.design, self.budget, self.directory = design, budget, directory
        self.seed, self.resources = seed, resources
        self.winners: dict[Case, Winner | None] = {}
        self.judged: dict[Case, list[Judged]] = {}
        self.failures: dict[Case, str] = {}

    @property
    def seeds(self) -> range:
        """Those of every winner's fits; the first is also the searches'."""
        return range(self.seed, self.seed + self.budget.seeds)

    @property
    def finished(self) -> bool:
        """Whether every case has a result or a reason for having none."""
        return len(self.judged) + len(self.failures) == len(self.design.cases)

    def run(self, say: Say = lambda line: None) -> None:
        """Search all systems, then fit the winners, some at a time."""
        searches = {case: self._search_of(case) for case in dict.fromkeys(map(self.searched, self.design.cases))}
        candidates = {case: self._candidates(case, search) for case, search in searches.items()}
        n_candidates = sum(map(len, candidates.values()))
        n_fits = n_candidates + len(self.design.cases) * self.budget.seeds
        say(f"{n_candidates} candidates of {len(searches)} searches, then {n_fits - n_candidates} fits of winners")
        if n_fits > LONG:
            self._say_how_long(candidates, say)
        fits = self._run([trial for trials in candidates.values() for trial, _ in trials])
        for case, trials in candidates.items():
            self.winners[case] = self._winner(searches[case], trials, fits)
        for cases in self._together():
            say(f"fitting {', '.join(map(str, cases))}")
            self._fit(cases)

    def searched(self, case: Case) -> Case:
        """The case whose search a case uses: its own, or that of the whole data."""
        reuse = not self.budget.search_everywhere and WHOLE in self.design.conditions
        return Case(case.system, WHOLE) if reuse else case

    # -- searching

    def _search_of(self, case: Case) -> Search:
        search = budgets.search_of(case.system, self.budget, self.design.conditions[case.condition])
        return search._replace(fixed={"monitor": self.design.select, **search.fixed})

    def _candidates(self, case: Case, search: Search) -> list[tuple[Trial, dict[str, Any]]]:
        """(trial, point) for each."""
        points = [dict(zip(search.axes, values, strict=True)) for values in itertools.product(*search.axes.values())]
        return [(self._trial(case, search.fixed | point, self.seed), point) for point in points]

    def _winner(self, search: Search, trials: list[tuple[Trial, dict[str, Any]]], fits: Fits) -> Winner | None:
        lost = tuple(sorted(str(fits[trial].reason) for trial, _ in trials if not fits[trial].done))
        best = fits.best([trial for trial, _ in trials], self.design.select)
        if best is None:
            return None
        trial, point = trials[best]
        params = {name: value for name, value in trial.params.items() if name != "seed"}
        value = fits[trial].metrics[f"va_{self.design.select}"]
        return Winner(params, point, search.axes, search.n_points, value, lost)

    def _say_how_long(self, candidates: Mapping[Case, list[tuple[Trial, dict[str, Any]]]], say: Say) -> None:
        """Run the middle candidate of each system, which the search needs anyhow, and count on from its time."""
        by_system = {case.system: trials for case, trials in candidates.items()}
        say(f"one candidate of each of {len(by_system)} systems first, to tell how long all will take")
        middles = {system: trials[len(trials) // 2][0] for system, trials in by_system.items()}
        fits = self._run(list(middles.values()))
        seconds = 0.0
        for system, trial in middles.items():
            n_searched = sum(len(trials) for case, trials in candidates.items() if case.system == system)
            n_won = sum(case.system == system for case in self.design.cases) * self.budget.seeds
            seconds += (fits[trial].seconds or 0.0) * (n_searched + n_won)
        n_jobs = self.resources.checked().n_jobs if self.resources else 1
        workers = "1 worker" if n_jobs == 1 else f"{n_jobs} workers"
        say(f"about {in_words(seconds / n_jobs)} in all with {workers}, if nothing of it is done already")

    # -- fitting

    def _together(self) -> Iterator[list[Case]]:
        """The cases in the design's order, some at a time: whole systems, at least TOGETHER fits."""
        some: list[Case] = []
        for _, of_system in itertools.groupby(self.design.cases, lambda case: case.system):
            some += of_system
            if len(some) * self.budget.seeds >= TOGETHER:
                yield some
                some = []
        if some:
            yield some

    def _fit(self, cases: Sequence[Case]) -> None:
        trials: dict[tuple[Case, int], Trial] = {}
        for case in cases:
            winner = self.winners[self.searched(case)]
            if winner is None:
                self.failures[case] = "no candidate finished"
            else:
                trials |= {(case, seed): self._trial(case, winner.params, seed) for seed in self.seeds}
        fits = self._run(list(trials.values()), LIST_LENGTH)
        for case in dict.fromkeys(case for case, _ in trials):
            own = {seed: fits[trials[case, seed]] for seed in self.seeds}
            failed = [str(fit.reason) for fit in own.values() if not fit.done]
            if failed:
                self.failures[case] = failed[0]
            else:
                self.judged[case] = [_judged(seed, fit) for seed, fit in own.items()]

    def _trial(self, case: Case, params: Mapping[str, Any], seed: int) -> Trial:
        from dubnb.sweeps.fits import planned

        data, system = self.design.conditions[case.condition], case.system
        return planned(system.method_class(), data, {"backbone": system.backbone, **params, "seed": seed})

    def _run(self, trials: list[Trial], list_length: int | None = None) -> Fits:
        from dubnb.sweeps.fits import run_fits

        out = os.path.join(self.directory, FITS)
        return run_fits(trials, self.design.conditions.values(), out, self.resources, list_length=list_length)


def _judged(seed: int, fit: FinishedFit) -> Judged:
    """What was filed, with the metrics on S_te."""
    metrics = {name: value for name, value in fit.metrics.items() if not name.startswith("va_")}
    return Judged(seed, metrics, *fit.shown())


def in_words(seconds: float) -> str:
    """A length of time with one unit."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
