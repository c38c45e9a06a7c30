"""Run experiments and write their reports."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dubnb import _check
from dubnb._check import InputError
from dubnb.experiments import document, estimate, place, rq1, rq2, rq3, rq4, rq5
from dubnb.experiments.budgets import BUDGETS, Budget
from dubnb.experiments.study import Say, Study
from dubnb.experiments.systems import Choice
from dubnb.report.plots import require_matplotlib

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.experiment import Experiment
    from dubnb.report.page import Page

EXPERIMENTS: dict[str, Experiment] = {each.NAME: each for each in (rq1, rq2, rq3, rq4, rq5)}
ALL = "all"


class Order(NamedTuple):
    """What was asked for.

    Parameters
    ----------
    experiment : str
        rq1 to rq5, or all.
    out : path
        Gets results.csv, results.md, report.html and its figures (a directory for each experiment where there are
        several, and an index.html that leads to them), and what has been computed in `work`.
    budget : {"smoke", "quick", "full"}
        How much is searched and fitted.
    choice : Choice
        Systems and backbones.
    seed : int
        Of the searches and of the first fit.
    data_words : sequence of str
        How the command line names the data, for the line that the report prints.
    """

    experiment: str
    out: str | os.PathLike[str]
    budget: str = "quick"
    choice: Choice = Choice()
    seed: int = 0
    data_words: Sequence[str] = ()

    def checked(self) -> Order:
        """The same, or an InputError; nothing is written."""
        _check.choice("experiment", self.experiment, (*EXPERIMENTS, ALL))
        _check.choice("budget", self.budget, tuple(BUDGETS))
        seed, choice = _check.whole("seed", self.seed, low=0), self.choice.checked()
        require_matplotlib()
        place.check(self.out)
        return self._replace(out=os.fspath(self.out), choice=choice, seed=seed)

    def about(self, data: Partition) -> dict[str, Any]:
        """What the reports of its directory are of."""
        return {
            "experiment": self.experiment,
            "data": data.fingerprint,
            "budget": self.budget,
            "seed": self.seed,
            "systems": list(self.choice.names),
            "backbones": list(self.choice.backbones or ()),
        }

    @property
    def names(self) -> list[str]:
        """The experiments that are meant."""
        return list(EXPERIMENTS) if self.experiment == ALL else [self.experiment]

    def directory(self, name: str) -> str:
        """Where the report of an experiment goes."""
        return os.path.join(self.out, name) if self.experiment == ALL else os.fspath(self.out)

    def command(self, name: str) -> str:
        """The command that makes the reports of one experiment, or of all, again in the same directory."""
        words = ["dubnb", "reproduce", name, *self.data_words, "--budget", self.budget, "--seed", str(self.seed)]
        if self.choice.names != Choice().names:
            words += ["--systems", ",".join(self.choice.names)]
        if self.choice.backbones:
            words += ["--backbone", ",".join(self.choice.backbones)]
        return shlex.join([*words, "--out", os.fspath(self.out)])


def reproduce(
    order: Order, data: Partition, n_jobs: int = 1, quiet: bool = True, say: Say = lambda line: None
) -> list[dict[str, Any]]:
    """Run what is ordered on `data`; returns [{"experiment", "answer", "report", "finished"}].

    The same call goes on after an interruption, and ends in the same files.
    """
    from dubnb.sweeps.engine import Resources

    order = order.checked()
    budget, work = BUDGETS[order.budget], os.path.join(order.out, place.WORK)
    resources = Resources(n_jobs=n_jobs, pretrained=os.path.join(work, "pretrained"), quiet=quiet).checked()
    designs = {name: EXPERIMENTS[name].design(data, budget, order.choice) for name in order.names}  # may refuse data
    for name, planned in designs.items():
        if not planned.cases:
            raise InputError(f"{name} has nothing to run: none of the chosen systems fits its backbones or these data")
    os.makedirs(work, exist_ok=True)
    place.claim(order.out, order.about(data))
    studies = {name: Study(planned, budget, work, order.seed, resources) for name, planned in designs.items()}
    if budget.epoch_share is None:
        estimate.say_how_long(list(studies.values()), say)
    complete: dict[str, Page] = {}
    outcomes = []
    for name, study in studies.items():
        say(f"{name}: {EXPERIMENTS[name].TITLE}, {len(study.design.cases)} systems, budget {budget.name}")
        _write(EXPERIMENTS[name], study, order)
        _write_index(order, complete, data, budget)
        try:
            study.run(say)
        finally:  # to the end, or as far as it comes: either way the report says how far that was
            page = _write(EXPERIMENTS[name], study, order)
        complete[name] = page
        report = os.path.join(order.directory(name), document.REPORT)
        outcomes.append({"experiment": name, "answer": list(page.answer), "report": report, "finished": study.finished})
    _write_index(order, complete, data, budget)
    return outcomes


def _write(experiment: Experiment, study: Study, order: Order) -> Page:
    """The files of one report, as far as things are."""
    findings = experiment.findings(study)
    page = document.page(experiment, study, findings, order.command(order.experiment))
    document.write(order.directory(experiment.NAME), page, document.tidy(experiment, study, findings.rows))
    return page


def _write_index(order: Order, complete: dict[str, Page], data: Partition, budget: Budget) -> None:
    """index.html; written before each experiment, so that an interrupted one is unfinished."""
    if order.experiment == ALL:
        every = list(EXPERIMENTS.values())
        page = document.index_page(every, complete, os.fspath(order.out), data, budget, order.command(ALL))
        document.write_index(os.fspath(order.out), page)
