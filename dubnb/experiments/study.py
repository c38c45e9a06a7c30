"""Running an experiment: search every system on S_va, fit the winners over seeds, keep what each fit showed.

Every fit is a trial of the sweeps' engine, in one ledger, named by what it depends on: running again goes on where it
stopped, and experiments that share a directory share their fits.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb.experiments import budgets
from dubnb.experiments.systems import System

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.evaluation import JudgedUsers
    from dubnb.experiments.budgets import Axes, Budget, Search
    from dubnb.sweeps.engine import Resources
    from dubnb.sweeps.fits import FinishedFit, Fits, Trial

LIST_LENGTH = 10  # items of the recommendation lists that are kept
WHOLE = "whole data"  # the condition that changes nothing
FITS = "fits"  # directory of all fits
TOGETHER = 24  # fits of winners between two reports: each start of the engine costs some seconds

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
    monitor: str | None = None  # the metric on S_va that stops training, where it is not `select`
    tie: tuple[float, str] | None = None  # candidates within so much of the best are told apart by this metric
    uniform: bool = True  # whether S_te is randomized traffic, which liked@K needs


class Winner(NamedTuple):
    """The chosen candidate of a search."""

    params: dict[str, Any]  # all of them, without the seed
    point: dict[str, Any]  # those that were searched
    axes: Axes
    n_points: int
    validation: float
    lost: tuple[str, ...] = ()  # reasons of candidates that did not finish
    extended: tuple[tuple[str, int], ...] = ()  # (parameter, how often its values went on beyond an end of the grid)


class Judged(NamedTuple):
    """What a fitted winner showed on S_te."""

    seed: int
    metrics: Mapping[str, float]
    users: np.ndarray  # rows of the users that ranking metrics count
    per_user: Mapping[str, np.ndarray]  # metric -> value for each of them
    lists: np.ndarray  # (users, LIST_LENGTH) item rows, best first; -1 where items have run out
    scores: np.ndarray  # raw scores of S_te's pairs
    probabilities: np.ndarray  # what `predict` makes of them
    uncalibrated: np.ndarray  # the same without calibration
    judged_users: Mapping[str, JudgedUsers] = {}  # "S_va" and "S_te" -> user_auc and what makes liked@K, user by user
    validation: Mapping[str, float] = {}  # metrics on S_va


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
    def logs(self) -> list[Partition]:
        """The design's, by condition."""
        return list(self.design.conditions.values())

    @property
    def n_jobs(self) -> int:
        """Workers."""
        return self.resources.checked().n_jobs if self.resources else 1

    @property
    def finished(self) -> bool:
        """Whether every case has a result or a reason for having none."""
        return len(self.judged) + len(self.failures) == len(self.design.cases)

    def run(self, say: Say = lambda line: None) -> None:
        """Search all systems, then fit the winners, some at a time."""
        searches = {case: self._search_of(case) for case in dict.fromkeys(map(self.searched, self.design.cases))}
        n_candidates = sum(search.n_points for search in searches.values())
        n_winners = len(self.design.cases) * self.budget.seeds
        say(f"{n_candidates} candidates of {len(searches)} searches, then {n_winners} fits of winners")
        self._choose(searches)
        for _ in range(self.budget.extensions):
            searches = self._beyond(searches)
            if not searches:
                break
            say(f"{len(searches)} searches go on beyond an end of their grid")
            self._choose(searches)
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
        return search._replace(fixed={"monitor": self.design.monitor or self.design.select, **search.fixed})

    def candidates(self, case: Case) -> list[Trial]:
        """The trials of a case's search, in the grid's order."""
        return [trial for trial, _ in self._candidates(case, self._search_of(case))]

    def _candidates(self, case: Case, search: Search) -> list[tuple[Trial, dict[str, Any]]]:
        """(trial, point) for each."""
        points = [dict(zip(search.axes, values, strict=True)) for values in itertools.product(*search.axes.values())]
        return [(self._trial(case, search.fixed | point, self.seed), point) for point in points]

    def _choose(self, searches: Mapping[Case, Search]) -> None:
        """Fit every candidate and keep the winners."""
        candidates = {case: self._candidates(case, search) for case, search in searches.items()}
        fits = self.run_fits([trial for trials in candidates.values() for trial, _ in trials])
        for case, trials in candidates.items():
            self.winners[case] = self._winner(searches[case], trials, fits)

    def _beyond(self, searches: Mapping[Case, Search]) -> dict[Case, Search]:
        """The searches whose winner lies at an end of its grid, with grids that go on there."""
        won = {case: winner for case in searches if (winner := self.winners[case]) is not None}
        longer = {case: searches[case].beyond(winner.point) for case, winner in won.items()}
        return {case: search for case, search in longer.items() if search is not None}

    def _winner(self, search: Search, trials: list[tuple[Trial, dict[str, Any]]], fits: Fits) -> Winner | None:
        lost = tuple(sorted(str(fits[trial].reason) for trial, _ in trials if not fits[trial].done))
        select = self.design.select
        best = fits.best([trial for trial, _ in trials], (select, *self.design.tie) if self.design.tie else select)
        if best is None:
            return None
        trial, point = trials[best]
        params = {name: value for name, value in trial.params.items() if name != "seed"}
        value = fits[trial].metrics[f"va_{select}"]
        return Winner(params, point, search.axes, search.n_points, value, lost, search.extended)

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
        fits = self.run_fits(list(trials.values()), list_length=LIST_LENGTH)
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

    def run_fits(
        self, trials: Sequence[Trial], logs: Iterable[Partition] | None = None, list_length: int | None = None
    ) -> Fits:
        """Trials on the design's logs, or on others, as far as the directory does not hold them."""
        from dubnb.sweeps.fits import run_fits

        out, logs = os.path.join(self.directory, FITS), self.logs if logs is None else logs
        return run_fits(trials, logs, out, self.resources, list_length=list_length)


def _judged(seed: int, fit: FinishedFit) -> Judged:
    """What was filed, with the metrics on S_te."""
    metrics = {name: value for name, value in fit.metrics.items() if not name.startswith("va_")}
    validation = {name.removeprefix("va_"): value for name, value in fit.metrics.items() if name.startswith("va_")}
    return Judged(seed, metrics, *fit.shown(), validation)
