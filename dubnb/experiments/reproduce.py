"""Run the paper's experiments and write their reports."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dubnb import _check
from dubnb._check import InputError
from dubnb.experiments import budgets, pages, rq1, rq2, rq3, rq4, rq5
from dubnb.experiments.budgets import BUDGETS
from dubnb.experiments.pages import Experiment
from dubnb.experiments.study import Say, Study
from dubnb.experiments.systems import Choice
from dubnb.report import page as html
from dubnb.report.plots import require_matplotlib

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.report.page import Page

EXPERIMENTS: dict[str, Experiment] = {each.NAME: each for each in (rq1, rq2, rq3, rq4, rq5)}
ALL = "all"


class Order(NamedTuple):
    """What to run, and where the reports go.

    Parameters
    ----------
    experiment : str
        rq1 to rq5, or all.
    out : path
        Gets results.csv, results.md, report.html and the figures; with "all", a directory for each experiment and an
        index.html. The fits are in its directory `work`.
    budget : {"smoke", "quick", "full"}
        How much is searched and fitted.
    choice : Choice
        Systems and backbones.
    seed : int
        Seed of the searches and of the first fit.
    data_words : sequence of str
        The options that name the data on the command line; the report shows the whole command.
    """

    experiment: str
    out: str | os.PathLike[str]
    budget: str = "quick"
    choice: Choice = Choice()
    seed: int = 0
    data_words: Sequence[str] = ()

    def checked(self) -> Order:
        """A checked copy; raises InputError before anything is written."""
        _check.choice("experiment", self.experiment, (*EXPERIMENTS, ALL))
        _check.choice("budget", self.budget, tuple(BUDGETS))
        seed, choice = _check.whole("seed", self.seed, low=0), self.choice.checked()
        require_matplotlib()
        pages.check_output_dir(self.out)
        return self._replace(out=os.fspath(self.out), choice=choice, seed=seed)

    @property
    def names(self) -> list[str]:
        """The experiments to run."""
        return list(EXPERIMENTS) if self.experiment == ALL else [self.experiment]

    def directory(self, name: str) -> str:
        """Where the report of an experiment goes."""
        return os.path.join(self.out, name) if self.experiment == ALL else os.fspath(self.out)

    def command(self) -> str:
        """The command that makes the reports again in the same directory."""
        names = ("reproduce", self.experiment)
        return pages.rerun_command(names, self.data_words, self.budget, self.seed, self.choice, self.out)


def reproduce(
    order: Order, data: Partition, n_jobs: int = 1, quiet: bool = True, say: Say = lambda line: None
) -> list[dict[str, Any]]:
    """Run an order on `data`; returns [{"experiment", "answer", "report", "finished"}].

    After an interruption the same call continues, and ends in the same files.
    """
    from dubnb.sweeps.runner import Resources

    order = order.checked()
    budget, work = BUDGETS[order.budget], os.path.join(order.out, pages.WORK)
    resources = Resources(n_jobs=n_jobs, pretrained=os.path.join(work, "pretrained"), quiet=quiet).checked()
    designs = {name: EXPERIMENTS[name].design(data, budget, order.choice) for name in order.names}  # may refuse data
    for name, planned in designs.items():
        if not planned.cases:
            raise InputError(f"{name} has nothing to run: none of the chosen systems fits its backbones or these data")
    asked = {"experiment": order.experiment, "data": data.fingerprint, "budget": order.budget, "seed": order.seed}
    asked |= {"systems": list(order.choice.names), "backbones": list(order.choice.backbones or ())}
    pages.claim_output_dir(order.out, asked)
    studies = {name: Study(planned, budget, work, order.seed, resources) for name, planned in designs.items()}
    if budget.epoch_share is None:
        budgets.say_how_long(list(studies.values()), say)
    complete: dict[str, Page] = {}
    outcomes = []

    def write_index() -> None:
        if order.experiment == ALL:
            out, every = os.fspath(order.out), list(EXPERIMENTS.values())
            page = pages.index_page(every, complete, out, data, budget, order.command())
            pages.write_text(os.path.join(out, pages.INDEX), html.render(page))

    for name, study in studies.items():
        experiment, directory = EXPERIMENTS[name], order.directory(name)
        say(f"{name}: {experiment.TITLE}, {len(study.design.cases)} systems, budget {budget.name}")
        pages.write_report(directory, experiment, study, experiment.findings(study), order.command())
        write_index()  # before the experiment, so that an interrupted one is marked unfinished
        try:
            study.run(say)
        finally:  # also after an interruption: the report says how far the run came
            page = pages.write_report(directory, experiment, study, experiment.findings(study), order.command())
        complete[name] = page
        report = os.path.join(directory, pages.REPORT)
        outcomes.append({"experiment": name, "answer": list(page.answer), "report": report, "finished": study.finished})
    write_index()
    return outcomes
