"""Which system suits my log: every system under one budget, the answer in words, and the fitted winner.

First every system is fitted once with the defaults for this log. The best on S_va are then searched and fitted over
seeds, together with `base`, `combine`, dub-x and the baselines, as in the paper's experiments.

**One metric** screens the systems, chooses (on S_va), and states the gain (on S_te):

- liked@10, the share of liked items in a top 10, if S_va judges at least `JUDGED` recommended pairs of every system;
- else the percentile: where a liked item of the randomized log ranks among all candidates.

The parameter `metric` sets another one. Training stops by the same metric, except with liked@10: a single epoch changes
it by chance, so the percentile stops training, and it chooses among settings whose liked@10 on S_va is within one
standard error of the best.

**The winner** is the best on S_va. A system is level with it if the 95 % interval of their paired difference on S_va
contains 0. If a dub-x is level, it wins, because it is rarely far from the best (see bench/coverage_compare.py).

**The rival** is the best on S_va of `base` with its defaults, `base` as searched, and `combine`. A user could have
these without this package. The gain over it comes with a paired 95 % interval over users, for these fitted models.

Nothing is recommended under the budget smoke, with few positives, or if the interval contains 0: see `Verdict`.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check, stats
from dubnb._check import InputError
from dubnb.choice import chosen_settings, tried_settings
from dubnb.evaluation import LEAST_JUDGED
from dubnb.experiments import budgets, pages
from dubnb.experiments.budgets import BUDGETS, duration_text
from dubnb.experiments.pages import Findings, join_words
from dubnb.experiments.study import FITS, OF_JUDGED_USERS, WHOLE, Case, Design, Say, Study, report_label
from dubnb.experiments.systems import BASELINES, POPULARITY, Choice, System
from dubnb.methods import METHODS, load
from dubnb.report import figures
from dubnb.report.page import Figure, Gallery, Section, Table, Value
from dubnb.report.plots import require_matplotlib
from dubnb.sweeps.trial import trial_key
from dubnb.sweeps.worker import path_of
from dubnb.theory import value as off_policy

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method
    from dubnb.sweeps.runner import FinishedFit, Resources

NAME = "compare"
TITLE = "Which system suits this log"
QUESTION = "Which system finds most of what people like, judged on feedback to items that were shown at random?"
LIKED, PERCENTILE = "liked@10", "percentile"
MONITORS = {LIKED: PERCENTILE, PERCENTILE: PERCENTILE, "user_auc": "user_auc", "auc": "auc", "ndcg": "ndcg"}
JUDGED = 100  # liked@10 chooses if S_va judges at least this many recommended pairs of every system
VALIDATION_POSITIVES, TEST_POSITIVES = 30, 100  # with fewer, no system is recommended
ALONE, TOGETHER = "base", "combine"  # systems without debiasing: the biased log alone, both logs as one
DEFAULTS = f"{ALONE} (defaults)"
RIVALS = (DEFAULTS, ALONE, TOGETHER)
PREFERRED = ("dub-x graded", "dub-x rates", "dub-x binary")  # preferred among systems that are level on S_va
SEARCHED = 3  # systems searched after the first round, in addition to the rivals, PREFERRED and the baselines
MODEL, SHIPPED = "winner.npz", "ship.npz"
BACKBONES = {"smoke": ("mf",), "quick": ("mf",), "full": ("mf", "ncf")}
NOTICEABLE = {LIKED: 0.1}  # the smallest gain that matters: 10 % more likes; .01 of other metrics
RIVAL_WORDS = {
    ALONE: "a model of your biased log alone, searched in the same way",
    DEFAULTS: "a model of your biased log alone, with its default settings",
    TOGETHER: "one model of both logs together",
    POPULARITY: "the most popular items for everyone",
}
GLOSSARY = {
    "biased log (S_c)": "the ordinary log: people saw what the system chose to show",
    "random log (S_t, S_va, S_te)": "items were shown at random; split into a training part, a validation part for "
    "choosing and a test part for judging, which nothing learns from",
    "P/N": "positives over negatives",
    "liked@10": "of the recommended items that the random log judged, the share that was liked",
    "percentile": "for an item that a user liked: the share of the other items she could be shown that rank below it",
    "AUC": "how often an item that was liked gets a higher score than one that was not; one half is chance",
    "user AUC": "the same within each user's own items, then the mean over users",
    "nDCG@50": "how high liked items stand in a list of 50; 1 is perfect",
    "P@10, R@10": "liked items of S_te in a top 10, over 10; over all liked items of S_te. Both count only items that "
    "happen to be in S_te, so they are not shares of liked items",
    "mf, ncf": "matrix factorisation; neural collaborative filtering",
    "base": "a model of the biased log alone",
    "unif, combine": "a model of the random log alone; of both logs together",
    "ips, cause, bridge, autodebias, dub": "ways to learn from both logs that correct the bias of the first",
    "dub-x": "like dub, over all unseen pairs, weighted by how likely they were to be seen",
    "popularity, popularity-t": "the same list for everyone: by likes in the biased log; by rates in the random log",
}


class Claim(NamedTuple):
    """How much better one system is than another on S_te, with a 95 % interval over users, for these fitted models."""

    metric: str
    first: Case
    second: Case
    kind: str  # "ratio" (liked@10) or "difference"
    value: float  # nan where the second has no likes
    low: float
    high: float

    @property
    def gain(self) -> tuple[float, float, float]:
        """(value, low, high), 0 being no gain."""
        none = 1.0 if self.kind == "ratio" else 0.0
        return self.value - none, self.low - none, self.high - none

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes a gain of 0."""
        _, low, high = self.gain
        return low > 0 or high < 0


class Verdict(NamedTuple):
    """The outcome of a comparison.

    `why_not` is empty if the best system is recommended. Else it gives the reasons: "unfinished", "smoke",
    "few positives", "base" (the best one is base), "no rival", "interval holds 0", "worse" (than the rival or
    popularity on S_te).
    """

    best: Case | None
    rival: Case | None
    level: Sequence[Case]  # systems that are level with the best on S_va
    claims: Sequence[Claim]  # over the rival, then over popularity
    why_not: tuple[str, ...]

    @property
    def takes(self) -> bool:
        """Whether the best system is recommended."""
        return not self.why_not


@dataclass(frozen=True)
class Compared:
    """The result of `compare`: the answer in sentences, the winner's name and fitted models, and the page's path.

    `model` is the judged winner (winner.npz), `ship` the same system trained on all randomized data (ship.npz).
    `promise` is the off-policy value of the winner's top 10 in a sentence, `value` the estimates behind it.
    """

    answer: Sequence[str]
    winner: str
    model: Method
    ship: Method
    metric: str
    verdict: Verdict
    study: Study
    screened: Mapping[System, FinishedFit]
    report: str
    out: str
    promise: str = ""
    value: off_policy.PolicyValue | None = None

    def __repr__(self) -> str:
        return "\n".join([*self.answer, *([self.promise] if self.promise else []), f"Report: {self.report}"])

    @property
    def takes(self) -> bool:
        """Whether the answer recommends the winner."""
        return self.verdict.takes

    @property
    def claims(self) -> Sequence[Claim]:
        """The gains in the answer."""
        return self.verdict.claims


def compare(
    data: Partition,
    out: str | os.PathLike[str],
    budget: str = "quick",
    choice: Choice | None = None,
    seed: int = 0,
    resources: Resources | None = None,
    say: Say = lambda line: None,
    data_words: Sequence[str] = (),
    metric: str | None = None,
) -> Compared:
    """Find the system that suits a log; the same call continues after an interruption.

    Parameters
    ----------
    data : Partition
        The log, with S_va to choose on and S_te to judge on.
    out : path
        A directory for report.html, results.csv, results.md, figures, winner.npz, ship.npz and the fits.
    budget : {"smoke", "quick", "full"}
        How much to search and fit; "full" also runs ncf.
    choice : Choice, optional
        Systems and backbones.
    seed : int
        Seed of the searches, the first fits, and the winner.
    resources : Resources, optional
        Workers on this machine, or a Dask cluster.
    say : callable
        Receives lines about the progress.
    data_words : sequence of str
        The options that name the data on the command line; the report shows the whole command.
    metric : {"liked@10", "percentile", "user_auc", "auc", "ndcg"}, optional
        The metric that screens, stops, chooses and states the gain; by default liked@10 or the percentile.
    """
    _check.choice("budget", budget, tuple(BUDGETS))
    if metric is not None:
        _check.choice("metric", metric, tuple(MONITORS))
    require_matplotlib()
    pages.check_output_dir(out)
    choice = (choice or Choice()).checked()
    pages.check_both_labels(data)
    asked = {"systems": list(choice.names), "backbones": list(choice.backbones or ()), "metric": metric}
    about = {"experiment": NAME, "data": data.fingerprint, "budget": budget, "seed": seed}
    work = pages.claim_output_dir(out, about | asked)
    run = _Run(data, work, budget, seed, resources, say, metric)
    study = run.study(screened := run.screen(choice.systems(data, BACKBONES[budget])))
    command = pages.rerun_command((NAME,), data_words, budget, seed, choice, out, metric)
    try:
        study.run(say)
    finally:  # also after an interruption: the report says how far the run came
        verdict = reach_verdict(study)
        found = findings(study, screened, verdict)
        pages.write_report(os.fspath(out), _AS_EXPERIMENT, study, found, command)
    if verdict.best is None:
        raise InputError("no system could be fitted on this log: the report says why")
    name, model = verdict.best.system.name, _winners_model(study, verdict.best, os.path.join(out, MODEL))
    value = off_policy.value(model, data, k=10)
    promise = value_sentence(name, value)
    sections = [*_with_value(found.sections, name, value), *_tried(model)]
    promised = found._replace(answer=[*found.answer, promise], sections=sections)
    pages.write_report(os.fspath(out), _AS_EXPERIMENT, study, promised, command)
    say(f"fitting {name} on all randomized data, to ship it")
    ship = model.refitted(data, "all")
    ship.save(os.path.join(out, SHIPPED), overwrite=True)
    report, answer, metric = os.path.join(out, pages.REPORT), list(found.answer), study.design.select
    return Compared(answer, name, model, ship, metric, verdict, study, screened, report, os.fspath(out), promise, value)


def _winners_model(study: Study, best: Case, path: str) -> Method:
    """The model of the winner's first fit, which becomes the file `path`; models of the other systems are removed.

    It is fitted again only if its file is missing, as after a run of an earlier version.
    """
    trial, directory = study.first_trial(best), study.models
    with contextlib.suppress(OSError):
        os.replace(path_of(directory, trial.key), path)
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(InputError):
        model = load(path)  # a second run finds the file of the first
        if trial_key(model.name, model.params_, model.data_["fingerprint"]) == trial.key:
            return model
    model = trial.method(**trial.params).fit(study.design.source)
    model.save(path, overwrite=True)
    return model


_AS_EXPERIMENT: Any = sys.modules[__name__]  # its NAME, TITLE and QUESTION are those of the page


# ---- the two rounds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """The two rounds of a comparison."""

    data: Partition
    work: str
    budget: str
    seed: int
    resources: Resources | None
    say: Say
    asked: str | None  # the metric of the caller

    def screen(self, systems: Sequence[System]) -> dict[System, FinishedFit]:
        """Fit every system once, with the defaults for this log."""
        from dubnb.sweeps.runner import planned, run_fits

        budget, trials = BUDGETS[self.budget], {}
        monitor = MONITORS[self.asked or LIKED]  # the two default metrics share one
        for system in systems:
            fixed = {"monitor": monitor} | dict(system.fixed)
            if budget.epoch_share is not None:
                fixed["epochs"] = budget.epochs(system.model().resolved_params(self.data)["epochs"])
            params = {"backbone": system.backbone, **fixed, "seed": self.seed}
            trials[system] = planned(system.method_class(), self.data, params)
        self.say(f"fitting each of {len(trials)} systems once, with the defaults for this log")
        fits = run_fits(list(trials.values()), [self.data], os.path.join(self.work, FITS), self.resources)
        return {system: fits[trial] for system, trial in trials.items()}

    def study(self, screened: Mapping[System, FinishedFit]) -> Study:
        """The second round: the systems to search, and an estimate of its time."""
        metric, why = chosen_metric(screened, self.asked)
        kept, budget = second_round(screened, metric), BUDGETS[self.budget]
        seconds = sum((screened[system].seconds or 0.0) * (budget.points + budget.seeds) for system in kept)
        n_jobs = self.resources.checked().n_jobs if self.resources else 1
        more = "; more if a search continues" if budget.extensions else ""
        names = ", ".join(system.name for system in kept)
        self.say(f"the second round has {names}: about {duration_text(seconds / n_jobs)}{more}")
        left = [system.name for system in screened if system not in kept]
        notes = [("metric", why)]
        if left:
            notes.append(("screening", f"left out after one fit each with defaults: {', '.join(left)}"))
        cases = [Case(each) for system in kept for each in _with_defaults(system, self.data)]
        tie = None
        if metric == LIKED:  # within a standard error: a quarter of the interval's width, median over systems
            ends = [[fit.metrics[f"va_{LIKED}_{end}"] for end in ("low", "high")] for fit in _models(screened)]
            tie = float(np.nanmedian([high - low for low, high in ends])) / 4, PERCENTILE
        design = Design(self.data, {WHOLE: self.data}, cases, metric, notes, MONITORS[metric], tie)
        return Study(design, budget, self.work, self.seed, self.resources, keep_models=True)


def _with_defaults(system: System, data: Partition) -> list[System]:
    """`base` twice, searched and with its defaults: a search may choose worse settings by chance."""
    if system.name != ALONE:
        return [system]
    model = system.model()
    resolved = model.resolve(data)
    names = dict.fromkeys([*model.settings().near, *model.grid(budgets.EVEN, data)])
    return [system, system.changed(DEFAULTS, **{name: getattr(resolved, name) for name in names})]


def chosen_metric(screened: Mapping[System, FinishedFit], asked: str | None = None) -> tuple[str, str]:
    """(metric, reason in words): the metric that screens, chooses and states the gain."""
    if asked is not None:
        return asked, f"{report_label(asked)}, as asked for; it screens, chooses and states the gain"
    judged = [int(fit.metrics["va_judged@10"]) for fit in _models(screened) if fit.metrics.get("va_judged@10", -1) >= 0]
    least = min(judged, default=0)
    n = f"the validation part judges only {least} recommended items of some system, and {JUDGED} are needed"
    if least >= JUDGED:
        return LIKED, f"{LIKED} screens, chooses and states the gain; the {PERCENTILE} stops training"
    return PERCENTILE, f"the {PERCENTILE} screens, stops, chooses and states the gain, not {LIKED}: {n}"


def _models(screened: Mapping[System, FinishedFit]) -> list[FinishedFit]:
    return [fit for system, fit in screened.items() if fit.done and not system.is_baseline]


def second_round(screened: Mapping[System, FinishedFit], metric: str) -> list[System]:
    """The systems to search: the best on S_va, the rivals, PREFERRED and the baselines."""
    done = [system for system, fit in screened.items() if fit.done]
    stay = [system for system in done if system.group == BASELINES or system.name in (*RIVALS, *PREFERRED)]
    rest = [system for system in done if system not in stay]
    rest.sort(key=lambda system: -_known(screened[system].metrics.get(f"va_{metric}")))
    return [system for system in done if system in stay or system in rest[:SEARCHED]]


def _known(value: float | None) -> float:
    return -math.inf if value is None or value != value else value


# ---- who wins, and by how much -------------------------------------------------------------------------------------


def reach_verdict(study: Study) -> Verdict:
    """The best system, its rival, the gains on S_te, and whether to recommend it."""
    able = [case for case in study.results if _on_S_va(study, case) > -math.inf]
    if not able:
        return Verdict(None, None, [], [], ("unfinished",))
    best, level = _best(study, able)
    rivals = [case for case in able if case.system.name in RIVALS and case != best]
    rival = max(rivals, key=lambda case: _on_S_va(study, case), default=None)
    popular = next((case for case in able if case.system.name == POPULARITY and case != best), None)
    claims = [make_claim(study, best, other) for other in (rival, popular) if other is not None]
    return Verdict(best, rival, level, claims, _why_not(study, best, rival, claims))


def _on_S_va(study: Study, case: Case, metric: str | None = None) -> float:
    """The mean over seeds of a metric on S_va, by default the one that chooses; -inf if there is none."""
    return _known(study.mean(case, f"va_{metric or study.design.select}"))


def _best(study: Study, able: Sequence[Case]) -> tuple[Case, list[Case]]:
    """(the winner, all systems that are level with the best one, including the winner)."""
    metric = study.design.select
    close = _level(study, able, metric)
    if metric == LIKED:
        close = _level(study, close, PERCENTILE)
    for name in PREFERRED:
        named = [case for case in close if case.system.name == name]
        if named:
            return max(named, key=lambda case: _on_S_va(study, case)), close
    return close[0], close


def _level(study: Study, able: Sequence[Case], metric: str) -> list[Case]:
    """The best on S_va, then the systems that are level with it."""
    first = max(able, key=lambda case: _on_S_va(study, case, metric))
    return [first, *(case for case in able if case != first and not _differ(study, first, case, metric))]


def _differ(study: Study, first: Case, other: Case, metric: str) -> bool:
    """Whether the 95 % interval of the paired difference on S_va lies above 0."""
    if metric == LIKED:
        return study.liked(first, other, 10, "S_va").low > 0
    if metric not in OF_JUDGED_USERS:  # their values per user are not kept
        return True
    x, y = (study.by_user(case, metric, "S_va") for case in (first, other))
    return len(x) > 1 and stats.mean_interval(x - y).low > 0


def make_claim(study: Study, first: Case, second: Case) -> Claim:
    """The gain of one system over another on S_te."""
    metric = study.design.select
    if metric == LIKED:
        shares = study.liked(first, second, 10)
        return Claim(metric, first, second, "ratio", shares.ratio, shares.ratio_low, shares.ratio_high)
    found = study.compare(first, second, metric)
    return Claim(metric, first, second, "difference", found.difference, found.low, found.high)


def count_positives(study: Study, part: str) -> int:
    """The number of positives of a randomized part that are not in the biased log."""
    return int(np.count_nonzero(study.design.source.unseen(part).labels))


def _why_not(study: Study, best: Case, rival: Case | None, claims: Sequence[Claim]) -> tuple[str, ...]:
    """The reasons for not recommending the best system."""
    reasons = []
    if not study.finished:
        reasons.append("unfinished")
    if study.budget.name == "smoke":
        reasons.append("smoke")
    if count_positives(study, "S_va") < VALIDATION_POSITIVES or count_positives(study, "S_te") < TEST_POSITIVES:
        reasons.append("few positives")
    if best.system.name in (ALONE, DEFAULTS):
        reasons.append("base")
    if rival is None:
        reasons.append("no rival")
    elif not claims[0].is_certain:
        reasons.append("interval holds 0")
    if any(claim.gain[2] < 0 for claim in claims):
        reasons.append("worse")
    return tuple(reasons)


# ---- the answer in words -------------------------------------------------------------------------------------------


def answer(study: Study, verdict: Verdict) -> list[str]:
    """The sentences of the answer box: what to take and what it gains, or why nothing is recommended."""
    best = verdict.best
    if best is None:
        return []
    shown = f"{best.system.name} ({best.system.on})"
    if verdict.takes:
        return [f"Take {shown}. {_quality_sentence(study, best)}", *(_gain_sentence(claim) for claim in verdict.claims)]
    lines = [_not_recommended(study, verdict, best)]
    if not set(verdict.why_not) & {"smoke", "few positives"}:
        lines += [_quality_sentence(study, best), *(_gain_sentence(claim) for claim in verdict.claims)]
    needs = needed_rows(study, verdict)
    if needs is not None:
        size = n_random_pairs(study)
        lines.append(f"About {needs:,} rows of random traffic would be needed to tell; this log has {size:,}.")
    if "smoke" in verdict.why_not:
        lines.append("Run it again with --budget quick and another --out.")
    level = [case.system.name for case in verdict.level if case != best]
    prefer = "; among equals, dub-x is preferred" if best.system.name in PREFERRED else ""
    also = f" The validation part cannot tell it from {join_words(level)}{prefer}." if level else ""
    return [*lines, f"{MODEL} holds {shown}, the best guess of the validation part.{also}"]


def _not_recommended(study: Study, verdict: Verdict, best: Case) -> str:
    """The first sentence if nothing is recommended."""
    if "smoke" in verdict.why_not:
        return "This run says nothing about which system to take: budget smoke only checks that everything runs."
    if "few positives" in verdict.why_not:
        va, te = count_positives(study, "S_va"), count_positives(study, "S_te")
        return (
            "This log cannot tell which system to take: its random traffic has too few positives. It has "
            f"{va} in the validation part ({VALIDATION_POSITIVES} are needed) and {te} in the test part "
            f"({TEST_POSITIVES} are needed)."
        )
    if "base" in verdict.why_not:
        return f"No system does better on the validation part than {RIVAL_WORDS[best.system.name]}: keep that."
    if "worse" in verdict.why_not:
        over = join_words([claim.second.system.name for claim in verdict.claims if claim.gain[2] < 0])
        name = best.system.name
        return f"Do not take {name}: the validation part chose it, but on the test part it is worse than {over}."
    if "no rival" in verdict.why_not:
        return f"{best.system.name} is the best on the validation part; no system to compare it with was run."
    return "This log cannot tell which system to take: the difference may be chance."


def _quality_sentence(study: Study, case: Case) -> str:
    """How good a system is on S_te."""
    metric = study.design.select
    mean = study.mean(case, metric)
    if metric == LIKED:
        share = study.liked(case, case, 10).first
        return (
            f"Of the items that {case.system.name} recommends, {100 * share.rate:.0f} % are liked ({LIKED}; 95 % "
            f"interval {100 * share.low:.0f} to {100 * share.high:.0f} %; the test part judged {share.n:,} of them)."
        )
    if metric == PERCENTILE:
        return (
            f"With {case.system.name}, an item that a user likes ranks above {100 * mean:.1f} % of the other items she "
            f"could be shown ({PERCENTILE}; chance is 50 %)."
        )
    return f"{case.system.name} has {report_label(metric)} {mean:.4f} on the test part."


def _gain_sentence(claim: Claim) -> str:
    """A gain with its interval."""
    other = claim.second.system.name
    over = f"{RIVAL_WORDS[other]} ({other})" if other in RIVAL_WORDS else other
    value, low, high = claim.gain
    how = "95 % interval over users, for these fitted models"
    if claim.kind == "ratio":
        if value != value:
            return f"{over[0].upper()}{over[1:]} finds no liked item that the test part judged."
        top = f"{100 * high:+.0f} %" if math.isfinite(high) else "no limit"
        gain = f"{100 * value:+.0f} % liked items ({how}: {100 * low:+.0f} to {top})"
    elif claim.metric == PERCENTILE:
        gain = f"{100 * value:+.1f} points of percentile ({how}: {100 * low:+.1f} to {100 * high:+.1f})"
    else:
        gain = f"{value:+.4f} {report_label(claim.metric)} ({how}: {low:+.4f} to {high:+.4f})"
    return f"Against {over}: {gain}{'' if claim.is_certain else ', which may be chance'}."


def value_sentence(name: str, found: off_policy.PolicyValue) -> str:
    """The off-policy value of the winner's top 10 on S_te, as `dubnb value` estimates it."""
    by_name = {(each.policy, each.estimator): each for each in found.estimates}
    own = by_name.get(("model", "dr"), by_name["model", "snips"])
    if own.value != own.value:
        worth = "" if own.effective >= own.judged - 0.5 else f" (effective sample size {own.effective:,.0f})"
        return f"Off-policy value: the test part judged {own.judged} of the winner's recommended pairs{worth}, too few."
    how = {"dr": "doubly robust", "snips": "self-normalised"}[own.estimator]
    said = (
        f"Off-policy value: if {name}'s top 10 were shown, people would like {100 * own.value:.1f} % of the "
        f"items ({how}, 95 % interval {100 * own.low:.1f} to {100 * own.high:.1f} %"
    )
    if found.gain is None:
        return f"{said})."
    gain, low, high = (100 * each for each in found.gain[:3])
    return f"{said}), {gain:+.1f} points ({low:+.1f} to {high:+.1f}) against the most popular items."


def n_random_pairs(study: Study) -> int:
    """The number of pairs of the randomized log."""
    return sum(len(study.design.source.triplets(part).users) for part in ("S_t", "S_va", "S_te"))


def needed_rows(study: Study, verdict: Verdict) -> int | None:
    """About how many rows of random traffic are needed, in two digits; None if more rows would not help.

    Half the interval shrinks with the root of the rows, so n (half / gain)^2 rows bring it down to the gain. A gain
    below the smallest one that matters counts as that one.
    """
    n, least = n_random_pairs(study), 0.0
    if "few positives" in verdict.why_not:
        wanted = (("S_va", VALIDATION_POSITIVES), ("S_te", TEST_POSITIVES))
        least = max(n * positive / count_positives(study, part) for part, positive in wanted)
    elif "interval holds 0" in verdict.why_not and "smoke" not in verdict.why_not:
        value, low, high = verdict.claims[0].gain
        size = max(abs(value), NOTICEABLE.get(study.design.select, 0.01)) if value == value else math.nan
        least = n * ((high - low) / 2 / size) ** 2
    if not (math.isfinite(least) and least > n):
        return None
    digits = 10 ** max(0, math.floor(math.log10(least)) - 1)
    return int(math.ceil(least / digits) * digits)


# ---- the page ------------------------------------------------------------------------------------------------------


def findings(study: Study, screened: Mapping[System, FinishedFit], verdict: Verdict | None = None) -> Findings:
    """The answer, the tables, the first round, and a glossary."""
    verdict = reach_verdict(study) if verdict is None else verdict
    cases = [case for case in study.design.cases if case in study.results]
    sections = []
    if cases:
        sections.append(Section("Which file to ship", [_files_table(study, verdict)]))
        sections.append(Section("Results on the test part (S_te)", [pages.metric_table(study, "", cases, pages.MEANS)]))
        sections.append(Section("How much better than the rivals", [_claims_table(study, verdict, cases)]))
        sections += [_dot_plots(study, cases), *pages.calibration_sections(study, cases)]
    metric = study.design.select
    rows: list[list[Any]] = []
    for system, fit in screened.items():
        value, judged = fit.metrics.get(f"va_{metric}"), fit.metrics.get("va_judged@10")
        numbers = [value, None if judged is None else int(judged), fit.seconds, ""]
        rows.append([system.name, system.on, *(numbers if fit.done else [None, None, None, fit.reason])])
    note = "One fit each, nothing searched. The tables above have the systems of the second round."
    header = ["system", "backbone", f"S_va {report_label(metric)}", "judged on S_va", "seconds", ""]
    described = {name.strip() for names in GLOSSARY for name in names.split(",")}
    methods = {system.method for system in screened} - described
    words: list[list[Any]] = [[word, meaning] for word, meaning in GLOSSARY.items()]
    words += [[name, METHODS[name].summary()] for name in sorted(methods)]
    sections.append(Section("The first round", [Table("", header, rows, note)]))
    sections.append(Section("Words", [Table("", ["word", "meaning"], words)]))
    return Findings(answer(study, verdict), sections)


def _with_value(sections: Sequence[Section], winner: str, found: off_policy.PolicyValue) -> list[Section]:
    """The page's sections and, after the files, the off-policy value of the winner's lists."""
    rows: list[list[Any]] = []
    for each in found.estimates:
        policy = {"model": winner, "log": "what the biased log showed", "random": "items at random"}.get(each.policy)
        interval = "-" if each.low != each.low else f"{each.low:.4f} to {each.high:.4f}"
        value = Value(None) if each.value != each.value else Value(each.value)
        counts = [Value(each.judged, f"{each.judged:,}"), Value(each.effective, f"{each.effective:,.0f}")]
        rows.append([policy or each.policy, each.estimator, value, interval, *counts])
    note = (
        f"The share of {found.k} shown items that people would like, estimated from the random log. Every user of "
        f"{found.part} has the same weight. {100 * found.level:.0f} % intervals over users, for this fitted model. "
        "The estimates dr (doubly robust) and ips are unbiased; snips has a small bias. Judged: listed pairs that the "
        "random log has. Effective: their effective sample size."
    )
    note = " ".join([note, *found.notes])
    header = ["shown to everyone", "estimator", "liked", f"{100 * found.level:.0f} % interval", "judged", "effective"]
    section = Section(f"What people would like of {winner}'s top {found.k}", [Table("", header, rows, note)])
    return [*sections[:1], section, *sections[1:]]


def _tried(model: Method) -> list[Section]:
    """What the winner's fit chose among, if it chose anything."""
    tried = tried_settings(model.history_rows_)
    if not tried:
        return []
    settings = chosen_settings(model.history_rows_)
    note = (
        ""
        if settings is None
        else (
            f"The fit chose {settings.name}. The difference to the runner-up ({settings.runner_up}) is "
            f"{settings.difference:+.2f} with a standard error of {settings.standard_error:.2f}. "
        )
    )
    note += (
        "Every row is compared with the settings that were chosen before it, in standard errors of the metrics. It can "
        "only replace them if the difference is larger than its own standard error, which is paired over users."
    )
    rows: list[list[Any]] = [[each.name, Value(each.difference), Value(each.standard_error)] for each in tried]
    header = ["settings", "difference on S_va", "standard error"]
    return [Section(f"What the fit of {model.name} chose among", [Table("", header, rows, note)])]


def _files_table(study: Study, verdict: Verdict) -> Table:
    name = verdict.best.system.name if verdict.best else "-"
    n = len(study.seeds)
    rows: list[list[Any]] = [
        [
            MODEL,
            f"{name}, trained on the biased log and the training part of the random log",
            f"the first of the {n} fits whose mean this page shows",
        ],
        [
            SHIPPED,
            f"{name} with the same settings and epochs, trained on all of the random log, and on rows that a split by "
            "time held back",
            "nothing is left to judge it on; it had more to learn from",
        ],
    ]
    if verdict.takes:
        note = f"Ship {SHIPPED}."
    elif "smoke" in verdict.why_not:
        note = "Ship neither: this run only checks that everything runs."
    else:
        note = f"This page does not recommend to ship {name}. If you do, ship {SHIPPED}."
    note += f" The numbers of this page belong to {MODEL}: use it for dubnb evaluate on this log."
    return Table("", ["file", "what it is", "what is known of it"], rows, note)


def _claims_table(study: Study, verdict: Verdict, cases: Sequence[Case]) -> Table:
    """The gain of every system over the rival, and its liked@10 with an interval."""
    against, label = verdict.rival, report_label(study.design.select)
    rival = against.system.name if against else "-"
    rows: list[list[Any]] = []
    for case in cases:
        on_va = _on_S_va(study, case)
        row: list[Any] = [pages.case_label(study, case), Value(on_va if on_va > -math.inf else None)]
        if against is None or case == against:
            row += [Value(None), "the rival" if case == against else "-"]
        else:
            claim = make_claim(study, case, against)
            value, low, high = (_gain_text(claim, each) for each in claim.gain)
            row += [Value(claim.gain[0], value), f"{low} to {high}"]
        counts = [fit.output.judged_users["S_te"].counts(10) for fit in study.results[case]]
        n = round(sum(int(judged.sum()) for _, judged in counts) / len(counts))
        liked = Value(None)
        if n >= LEAST_JUDGED:
            share = study.liked(case, case, 10).first
            liked = Value(share.rate, f"{share.rate:.3f}", f"{share.low:.3f} to {share.high:.3f}")
        rows.append([*row, liked, Value(n, f"{n:,}")])
    note = (
        f"Gain in {label} over {rival}, the best on S_va of {join_words(RIVALS)}; 95 % intervals over users, paired, "
        "for these fitted models. The intervals are not corrected: of many systems, one may exclude 0 by chance. "
        f"{LIKED}: {GLOSSARY[LIKED]}, with its 95 % interval; judged: how many there were, in the mean over seeds."
    )
    header = ["system", f"S_va {label}", f"gain over {rival}", "95 % interval", LIKED, "judged"]
    return Table("", header, rows, note)


def _gain_text(claim: Claim, value: float) -> str:
    if not math.isfinite(value):
        return "-" if value != value else "no limit"
    return f"{100 * value:+.0f} %" if claim.kind == "ratio" else f"{value:+.4f}"


def _dot_plots(study: Study, cases: Sequence[Case]) -> Section:
    metric = study.design.select
    values = {case.system.name: study.values(case, metric) for case in cases}
    values = {name: own[~np.isnan(own)] for name, own in values.items() if not np.isnan(own).all()}
    label = report_label(metric)
    drawing = figures.dots(f"{NAME}-{metric.replace('@', '-')}", values, f"{label} on the test part")
    caption = pages.SEED_DOTS
    if metric == LIKED:
        n = [study.mean(case, "judged@10") for case in cases]
        caption += f" The test part judged {min(n):.0f} to {max(n):.0f} recommended items of each system."
    return Section("What a user sees", [Gallery([Figure(GLOSSARY.get(label, label), drawing, caption)])])
