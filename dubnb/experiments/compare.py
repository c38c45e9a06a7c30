"""Which system suits my log: every system under one budget, the answer in words, and the fitted winner.

First every system is fitted once with the defaults for this log. The best on S_va go on, beside the model of the
ordinary log alone and the baselines; each of them is searched and fitted over seeds as in the paper's experiments. The
winner is chosen on S_va; what is said about it comes from S_te.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb import _check, stats
from dubnb._check import InputError
from dubnb.experiments import document, layout, measures, place, reliability
from dubnb.experiments.budgets import BUDGETS
from dubnb.experiments.experiment import Findings
from dubnb.experiments.study import FITS, WHOLE, Case, Design, Say, Study
from dubnb.experiments.systems import BASELINES, POPULARITY, Choice, System
from dubnb.experiments.words import in_words
from dubnb.report import figures
from dubnb.report.page import Figure, Gallery, Section, Table
from dubnb.report.plots import require_matplotlib

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method
    from dubnb.sweeps.engine import Resources
    from dubnb.sweeps.fits import FinishedFit

NAME = "compare"
TITLE = "Which system suits this log"
QUESTION = "Which system finds most of what people like, judged on feedback to items that were shown at random?"
ALONE = "base"  # the model of the ordinary log alone, which every answer is held against
GO_ON = 4  # systems that are searched after the first round, beside ALONE and the baselines
LISTED = "p@10"  # hits in the top 10
MODEL = "winner.npz"
BACKBONES = {"smoke": ("mf",), "quick": ("mf",), "full": ("mf", "ncf")}
GLOSSARY = {
    "S_c": "the ordinary, biased log: people saw what the system chose to show",
    "S_t, S_va, S_te": "the randomized log, split: for training, for choosing, for judging (nothing learns from it)",
    "P/N": "positives over negatives",
    "AUC": "how often an item that was liked gets a higher score than one that was not; one half is chance",
    "user AUC": "the same within each user's own items, then the mean over users",
    "nDCG@50": "how high liked items stand in a list of 50; 1 is perfect",
    "liked@10": "of the recommended items that the randomized log judged, the share that was liked",
    "P@10, R@10": "liked items of S_te in a top 10, over 10; over all liked items of S_te. Both count only items that "
    "happen to be in S_te: they are no shares of liked items",
    "mf, ncf": "matrix factorisation; neural collaborative filtering",
    "base": "a model of the ordinary log alone",
    "unif, combine": "a model of the randomized log alone; of both logs together",
    "ips, cause, bridge, autodebias, dub": "ways to learn from both logs that correct the bias of the first",
    "dub-x": "ours: like dub, over all unseen pairs, weighed by how likely they were to be seen",
    "popularity, popularity-t": "the same list for everyone: by likes in the ordinary log; by rates in the randomized",
}


@dataclass(frozen=True)
class Compared:
    """What `compare` found: the answer in sentences, the winner's name and fitted model, and where the page is."""

    answer: Sequence[str]
    winner: str
    model: Method
    report: str
    out: str

    def __repr__(self) -> str:
        return "\n".join([*self.answer, f"Report: {self.report}"])


def compare(
    data: Partition,
    out: str | os.PathLike[str],
    budget: str = "quick",
    choice: Choice | None = None,
    seed: int = 0,
    resources: Resources | None = None,
    say: Say = lambda line: None,
    data_words: Sequence[str] = (),
) -> Compared:
    """Find what works on a log; the same call goes on after an interruption.

    Parameters
    ----------
    data : Partition
        The log, with S_va to choose on and S_te to judge on.
    out : path
        A directory: report.html, results.csv, results.md, figures, winner.npz, and what has been computed.
    budget : {"smoke", "quick", "full"}
        How much is searched and fitted; "full" also runs ncf.
    choice : Choice, optional
        Systems and backbones.
    seed : int
        Of the searches, the first fits, and the winner.
    resources : Resources, optional
        Workers on this machine, or a Dask cluster.
    say : callable
        Gets lines about the progress.
    data_words : sequence of str
        How the command line names the data, for the report.
    """
    _check.choice("budget", budget, tuple(BUDGETS))
    require_matplotlib()
    place.check(out)
    choice = (choice or Choice()).checked()
    _check_labels(data)
    work = os.path.join(out, place.WORK)
    os.makedirs(work, exist_ok=True)
    asked = {"systems": list(choice.names), "backbones": list(choice.backbones or ())}
    place.claim(out, {"experiment": NAME, "data": data.fingerprint, "budget": budget, "seed": seed} | asked)
    run = _Run(data, work, budget, seed, resources, say)
    study = run.study(screened := run.screen(choice.systems(data, BACKBONES[budget])))
    words = ["dubnb", NAME, *data_words, "--budget", budget, "--seed", str(seed), "--out", "runs/compare"]
    try:
        study.run(say)
    finally:  # to the end, or as far as it comes
        answer = _written(study, screened, os.fspath(out), shlex.join(words))
    best, model = _fitted_winner(study, data, seed, say)
    model.save(os.path.join(out, MODEL), overwrite=True)
    return Compared(answer, best, model, os.path.join(out, document.REPORT), os.fspath(out))


def _check_labels(data: Partition) -> None:
    for part in ("S_va", "S_te"):
        if not 0 < data.triplets(part).labels.sum() < len(data.triplets(part).labels):
            raise InputError(f"{part} must hold both labels to choose and judge on: split the randomized log otherwise")


def _written(study: Study, screened: Mapping[System, FinishedFit], out: str, command: str) -> list[str]:
    """The answer, once the page and the tables are there."""
    answers = findings(study, screened)
    page = document.page(_AS_EXPERIMENT, study, answers, command)
    document.write(out, page, document.tidy(_AS_EXPERIMENT, study, answers.rows))
    return list(answers.answer)


def _fitted_winner(study: Study, data: Partition, seed: int, say: Say) -> tuple[str, Method]:
    """(the best system's name, its model fitted once more)."""
    best = _winner(study)
    winner = None if best is None else study.winners[best]
    if best is None or winner is None:
        raise InputError("no system could be fitted on this log: the report says why")
    say(f"fitting {best.system.name} once more, to keep it")
    return best.system.name, best.system.method_class()(**winner.params, seed=seed).fit(data)


@dataclass(frozen=True)
class _AsExperiment:
    """What a report asks of an experiment."""

    NAME: str = NAME
    TITLE: str = TITLE
    QUESTION: str = QUESTION


_AS_EXPERIMENT: Any = _AsExperiment()


@dataclass(frozen=True)
class _Run:
    """One comparison on its way."""

    data: Partition
    work: str
    budget: str
    seed: int
    resources: Resources | None
    say: Say

    def screen(self, systems: Sequence[System]) -> dict[System, FinishedFit]:
        """Every system once, with the defaults for this log."""
        from dubnb.sweeps.fits import planned, run_fits

        share, trials = BUDGETS[self.budget].epoch_share, {}
        for system in systems:
            fixed = dict(system.fixed)
            if share is not None:
                fixed["epochs"] = max(1, round(share * system.model().resolved_params(self.data)["epochs"]))
            params = {"backbone": system.backbone, **fixed, "seed": self.seed}
            trials[system] = planned(system.method_class(), self.data, params)
        self.say(f"every one of {len(trials)} systems once, with the defaults for this log")
        fits = run_fits(list(trials.values()), [self.data], os.path.join(self.work, FITS), self.resources)
        return {system: fits[trial] for system, trial in trials.items()}

    def study(self, screened: Mapping[System, FinishedFit]) -> Study:
        """Those that go on, with what they will take."""
        on = going_on(screened)
        budget = BUDGETS[self.budget]
        seconds = sum((screened[system].seconds or 0.0) * (budget.points + budget.seeds) for system in on)
        n_jobs = self.resources.checked().n_jobs if self.resources else 1
        self.say(f"{', '.join(system.name for system in on)} go on: about {in_words(seconds / n_jobs)}")
        left = [system.name for system in screened if system not in on]
        notes = (
            [("screening", f"after one fit each with defaults, the rest was left: {', '.join(left)}")] if left else []
        )
        design = Design(self.data, {WHOLE: self.data}, [Case(system) for system in on], notes=notes)
        return Study(design, budget, self.work, self.seed, self.resources)


def going_on(screened: Mapping[System, FinishedFit]) -> list[System]:
    """The best on S_va, the model of the ordinary log alone, and the baselines."""
    done = [system for system, fit in screened.items() if fit.done]
    rivals = [system for system in done if system.group != BASELINES and system.name != ALONE]
    rivals.sort(key=lambda system: -screened[system].metrics["va_auc"])
    best = set(rivals[:GO_ON])
    return [system for system in done if system in best or system.name == ALONE or system.group == BASELINES]


def findings(study: Study, screened: Mapping[System, FinishedFit]) -> Findings:
    """The answer, the table, what the first round showed, and what the words mean."""
    cases = [case for case in study.design.cases if case in study.judged]
    sections = [Section("Results on S_te", [layout.metric_table(study, "", cases, layout.MEANS)])] if cases else []
    if cases:
        values = {case.system.name: 100 * _hits(study, case) for case in cases}
        drawing = figures.dots(f"{NAME}-hits", values, "liked items per hundred shown (top 10)")
        caption = "Small dots: seeds; large dots: their mean."
        sections.append(
            Section("What a top 10 holds", [Gallery([Figure("Liked items in the top 10", drawing, caption)])])
        )
        sections += reliability.sections(study, cases)
    rows: list[list[Any]] = [[system.name, system.on, *_first_round(fit)] for system, fit in screened.items()]
    note = "One fit each, nothing searched. Those that went on are above."
    first = Table("", ["system", "backbone", "S_va AUC", "seconds", ""], rows, note)
    words: list[list[Any]] = [[word, meaning] for word, meaning in GLOSSARY.items()]
    sections += [Section("The first round", [first]), Section("Words", [Table("", ["word", "meaning"], words)])]
    return Findings(_answer(study), sections)


def _first_round(fit: FinishedFit) -> list[Any]:
    if not fit.done:
        return [None, None, fit.reason]
    return [fit.metrics["va_auc"], fit.seconds, ""]


def _winner(study: Study) -> Case | None:
    """The best on S_va of those that are done."""
    able = {case: winner.validation for case in study.judged if (winner := study.winners[case]) is not None}
    return max(able, key=lambda case: able[case]) if able else None


def _hits(study: Study, case: Case) -> np.ndarray:
    """Mean P@10 by seed."""
    return measures.values(study, case, LISTED)


def _answer(study: Study) -> list[str]:
    best = _winner(study)
    if best is None:
        return []
    alone, popular = (_called(study, name) for name in (ALONE, POPULARITY))
    level = f"AUC {measures.mean(study, best, 'auc'):.4f}, nDCG {measures.mean(study, best, 'ndcg'):.4f} on S_te"
    if best.system.name == ALONE:
        said = [f"Nothing chosen on S_va does better than the model of your ordinary log alone ({ALONE}: {level})."]
    else:
        said = [f"Take {best.system.name} ({best.system.on}): {level}."]
        if alone is not None:
            said.append(_gain(study, best, alone, "your ordinary log alone would"))
    if popular is not None and best != popular:
        said.append(_gain(study, best, popular, "the most popular items for everyone would"))
    return said


def _called(study: Study, name: str) -> Case | None:
    return next((case for case in study.judged if case.system.name == name), None)


def _gain(study: Study, best: Case, other: Case, than: str) -> str:
    """How many more liked items a top 10 holds, with an interval over users, in words."""
    x, y = (np.mean([fit.per_user[LISTED] for fit in study.judged[case]], axis=0) for case in (best, other))
    if not y.sum():
        return f"Its top 10 holds {100 * x.mean():.2f} liked items per hundred; {than} find none."

    def gain(counts: np.ndarray) -> float:
        total = float(counts @ y)
        return float(counts @ x) / total - 1 if total else float("nan")

    over = stats.cluster_bootstrap(gain, len(x), study.budget.bootstraps, seed=study.seed)
    low, high = 100 * over.low, 100 * over.high
    interval = f"95 % interval {low:+.0f} to {high:+.0f} %, over users"
    if low <= 0 <= high:
        difference = f"{100 * over.difference:+.0f} % liked items in the top 10"
        return f"Against what {than} find: {difference}, which may be noise ({interval})."
    more = "more" if over.difference > 0 else "fewer"
    return f"It finds {abs(100 * over.difference):.0f} % {more} liked items in the top 10 than {than} ({interval})."
