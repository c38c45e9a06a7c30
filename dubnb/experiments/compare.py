"""Which system suits my log: every system under one budget, the answer in words, and the fitted winner.

First every system is fitted once with the defaults for this log. The best on S_va go on, beside `base`, `combine`,
dub-x and the baselines; each of them is searched and fitted over seeds as in the paper's experiments.

**One metric** screens, chooses (on S_va) and is claimed (on S_te):

- liked@10, the share of liked items in a top 10, where S_va judges at least `JUDGED` recommended pairs of every system;
- else the percentile, which every liked item of the randomized log tells: where it stands among all candidates.

`metric` sets another one. Training stops by the same metric; with liked@10, which a single epoch moves by chance, by
the percentile. Settings whose liked@10 on S_va is within one standard error of the best are told apart by the
percentile.

**The winner** is the best on S_va. Systems that S_va cannot tell from it are level with it: the 95 % interval of the
paired difference holds 0. dub-x is taken if it is one of them, as it is rarely far from the best (see
bench/coverage_compare.py).

**The rival** is the best on S_va of `base` with its defaults, `base` as searched, and `combine`: what one would have
without this package. The gain over it is promised with a paired 95 % interval over users, for these fitted models.

Nothing is recommended under the budget smoke, with few positives, or where the interval holds 0: see `Verdict`.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check, stats
from dubnb._check import InputError
from dubnb.evaluation import LEAST_JUDGED
from dubnb.experiments import budgets, document, layout, measures, place, reliability
from dubnb.experiments.budgets import BUDGETS
from dubnb.experiments.experiment import Findings
from dubnb.experiments.study import FITS, WHOLE, Case, Design, Say, Study
from dubnb.experiments.systems import BASELINES, POPULARITY, Choice, System
from dubnb.experiments.words import in_words, listed
from dubnb.report import figures
from dubnb.report.page import Figure, Gallery, Section, Table, Value
from dubnb.report.plots import require_matplotlib

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method
    from dubnb.sweeps.engine import Resources
    from dubnb.sweeps.fits import FinishedFit

NAME = "compare"
TITLE = "Which system suits this log"
QUESTION = "Which system finds most of what people like, judged on feedback to items that were shown at random?"
LIKED, PERCENTILE = "liked@10", "percentile"
MONITORS = {LIKED: PERCENTILE, PERCENTILE: PERCENTILE, "user_auc": "user_auc", "auc": "auc", "ndcg": "ndcg"}
JUDGED = 100  # recommended pairs that S_va must judge, of every system, for liked@10 to choose
VALIDATION_POSITIVES, TEST_POSITIVES = 30, 100  # fewer cannot tell which system to take
ALONE, TOGETHER = "base", "combine"  # without debiasing: the biased log alone, both logs as one
DEFAULTS = f"{ALONE} (defaults)"
RIVALS = (DEFAULTS, ALONE, TOGETHER)
PREFERRED = ("dub-x graded", "dub-x rates", "dub-x binary")  # of systems that S_va cannot tell apart
GO_ON = 3  # systems that are searched after the first round, beside the rivals, PREFERRED and the baselines
MODEL, SHIPPED = "winner.npz", "ship.npz"
BACKBONES = {"smoke": ("mf",), "quick": ("mf",), "full": ("mf", "ncf")}
NOTICEABLE = {LIKED: 0.1}  # a gain worth telling: 10 % more likes; of other metrics .01
RIVAL_WORDS = {
    ALONE: "a model of your biased log alone, searched alike",
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
    "happen to be in S_te: they are no shares of liked items",
    "mf, ncf": "matrix factorisation; neural collaborative filtering",
    "base": "a model of the biased log alone",
    "unif, combine": "a model of the random log alone; of both logs together",
    "ips, cause, bridge, autodebias, dub": "ways to learn from both logs that correct the bias of the first",
    "dub-x": "ours: like dub, over all unseen pairs, weighed by how likely they were to be seen",
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
    def told(self) -> bool:
        """Whether the interval leaves no gain out."""
        _, low, high = self.gain
        return low > 0 or high < 0


class Verdict(NamedTuple):
    """What a comparison says.

    `why_not` is empty if the best system is recommended; else it names what stands against that: "unfinished", "smoke",
    "few positives", "base" (the best one is base), "no rival", "interval holds 0", "worse" (on S_te, than the rival or
    popularity).
    """

    best: Case | None
    rival: Case | None
    level: Sequence[Case]  # what S_va cannot tell from the best
    claims: Sequence[Claim]  # over the rival, then over popularity
    why_not: tuple[str, ...]

    @property
    def takes(self) -> bool:
        """Whether the best system is recommended."""
        return not self.why_not


@dataclass(frozen=True)
class Compared:
    """What `compare` found: the answer in sentences, the winner's name and fitted models, and where the page is.

    `model` is the judged winner (winner.npz), `ship` the same system trained on all randomized data (ship.npz).
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

    def __repr__(self) -> str:
        return "\n".join([*self.answer, f"Report: {self.report}"])

    @property
    def takes(self) -> bool:
        """Whether the answer recommends the winner."""
        return self.verdict.takes

    @property
    def claims(self) -> Sequence[Claim]:
        """The gains that the answer states."""
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
    """Find what works on a log; the same call goes on after an interruption.

    Parameters
    ----------
    data : Partition
        The log, with S_va to choose on and S_te to judge on.
    out : path
        A directory: report.html, results.csv, results.md, figures, winner.npz, ship.npz, and what has been computed.
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
    metric : {"liked@10", "percentile", "user_auc", "auc", "ndcg"}, optional
        What screens, stops, chooses and is claimed; by default liked@10 or the percentile, see the module.
    """
    _check.choice("budget", budget, tuple(BUDGETS))
    if metric is not None:
        _check.choice("metric", metric, tuple(MONITORS))
    require_matplotlib()
    place.check(out)
    choice = (choice or Choice()).checked()
    _check_labels(data)
    work = os.path.join(out, place.WORK)
    os.makedirs(work, exist_ok=True)
    asked = {"systems": list(choice.names), "backbones": list(choice.backbones or ()), "metric": metric}
    place.claim(out, {"experiment": NAME, "data": data.fingerprint, "budget": budget, "seed": seed} | asked)
    run = _Run(data, work, budget, seed, resources, say, metric)
    study = run.study(screened := run.screen(choice.systems(data, BACKBONES[budget])))
    words = _command(data_words, budget, seed, choice, metric, out)
    try:
        study.run(say)
    finally:  # to the end, or as far as it comes
        verdict = judge(study)
        answer = _written(study, screened, verdict, os.fspath(out), words)
    if verdict.best is None:
        raise InputError("no system could be fitted on this log: the report says why")
    name, winner = verdict.best.system.name, study.winners[verdict.best]
    if winner is None:
        raise TypeError(f"{name} was judged, so that its search has a winner")
    say(f"fitting {name} once more, to keep it, and once on all randomized data, to ship it")
    model = verdict.best.system.method_class()(**winner.params, seed=seed).fit(data)
    model.save(os.path.join(out, MODEL), overwrite=True)
    ship = model.refitted(data, "all")
    ship.save(os.path.join(out, SHIPPED), overwrite=True)
    report = os.path.join(out, document.REPORT)
    return Compared(answer, name, model, ship, study.design.select, verdict, study, screened, report, os.fspath(out))


def _command(data_words: Sequence[str], budget: str, seed: int, choice: Choice, metric: str | None, out: Any) -> str:
    """What makes the page again, in the same directory."""
    words = ["dubnb", NAME, *data_words, "--budget", budget, "--seed", str(seed)]
    words += ["--metric", metric] if metric else []
    words += ["--systems", ",".join(choice.names)] if choice.names != Choice().names else []
    words += ["--backbone", ",".join(choice.backbones)] if choice.backbones else []
    return shlex.join([*words, "--out", os.fspath(out)])


def _check_labels(data: Partition) -> None:
    for part in ("S_va", "S_te"):
        labels = data.unseen(part).labels
        if not 0 < labels.sum() < len(labels):
            raise InputError(f"{part} must hold both labels to choose and judge on: split the randomized log otherwise")


def _written(
    study: Study, screened: Mapping[System, FinishedFit], verdict: Verdict, out: str, command: str
) -> list[str]:
    """The answer, once the page and the tables are there."""
    found = findings(study, screened, verdict)
    page = document.page(_AS_EXPERIMENT, study, found, command)
    document.write(out, page, document.tidy(_AS_EXPERIMENT, study, found.rows))
    return list(found.answer)


@dataclass(frozen=True)
class _AsExperiment:
    """What a report asks of an experiment."""

    NAME: str = NAME
    TITLE: str = TITLE
    QUESTION: str = QUESTION


_AS_EXPERIMENT: Any = _AsExperiment()


# ---- the two rounds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """One comparison on its way."""

    data: Partition
    work: str
    budget: str
    seed: int
    resources: Resources | None
    say: Say
    asked: str | None  # the metric that was asked for

    def screen(self, systems: Sequence[System]) -> dict[System, FinishedFit]:
        """Every system once, with the defaults for this log."""
        from dubnb.sweeps.fits import planned, run_fits

        share, trials = BUDGETS[self.budget].epoch_share, {}
        monitor = MONITORS[self.asked or LIKED]  # both metrics of the default have this one
        for system in systems:
            fixed = {"monitor": monitor} | dict(system.fixed)
            if share is not None:
                fixed["epochs"] = max(1, round(share * system.model().resolved_params(self.data)["epochs"]))
            params = {"backbone": system.backbone, **fixed, "seed": self.seed}
            trials[system] = planned(system.method_class(), self.data, params)
        self.say(f"every one of {len(trials)} systems once, with the defaults for this log")
        fits = run_fits(list(trials.values()), [self.data], os.path.join(self.work, FITS), self.resources)
        return {system: fits[trial] for system, trial in trials.items()}

    def study(self, screened: Mapping[System, FinishedFit]) -> Study:
        """Those that go on, with what they will take."""
        metric, why = chosen_metric(screened, self.asked)
        on, budget = going_on(screened, metric), BUDGETS[self.budget]
        seconds = sum((screened[system].seconds or 0.0) * (budget.points + budget.seeds) for system in on)
        n_jobs = self.resources.checked().n_jobs if self.resources else 1
        more = "; more where a search goes on" if budget.extensions else ""
        self.say(f"{', '.join(system.name for system in on)} go on: about {in_words(seconds / n_jobs)}{more}")
        left = [system.name for system in screened if system not in on]
        notes = [("metric", why)]
        if left:
            notes.append(("screening", f"after one fit each with defaults, the rest was left: {', '.join(left)}"))
        cases = [Case(each) for system in on for each in _with_defaults(system, self.data)]
        tie = (_standard_error(screened), PERCENTILE) if metric == LIKED else None
        design = Design(self.data, {WHOLE: self.data}, cases, metric, notes, MONITORS[metric], tie)
        return Study(design, budget, self.work, self.seed, self.resources)


def _with_defaults(system: System, data: Partition) -> list[System]:
    """`base` also with nothing searched: a search may choose worse settings by chance."""
    if system.name != ALONE:
        return [system]
    model = system.model()
    resolved = model.resolve(data)
    names = dict.fromkeys([*model.settings().near, *model.grid(budgets.EVEN, data)])
    return [system, system.changed(DEFAULTS, **{name: getattr(resolved, name) for name in names})]


def chosen_metric(screened: Mapping[System, FinishedFit], asked: str | None = None) -> tuple[str, str]:
    """(the metric that screens, chooses and is claimed, why in words)."""
    if asked is not None:
        return asked, f"{measures.label(asked)}, as asked for; it screens, chooses and is claimed"
    judged = [int(fit.metrics["va_judged@10"]) for fit in _models(screened) if fit.metrics.get("va_judged@10", -1) >= 0]
    least = min(judged, default=0)
    n = f"the validation part judges {least} recommended items of a system at least, and {JUDGED} are needed"
    if least >= JUDGED:
        return LIKED, f"{LIKED} screens, chooses and is claimed; training stops by the {PERCENTILE}"
    return PERCENTILE, f"the {PERCENTILE} screens, stops, chooses and is claimed, not {LIKED}: {n}"


def _models(screened: Mapping[System, FinishedFit]) -> list[FinishedFit]:
    return [fit for system, fit in screened.items() if fit.done and not system.is_baseline]


def _standard_error(screened: Mapping[System, FinishedFit]) -> float:
    """Of liked@10 on S_va: a quarter of the interval's width, in the median over systems."""
    widths = [fit.metrics["va_liked@10_high"] - fit.metrics["va_liked@10_low"] for fit in _models(screened)]
    return float(np.nanmedian(widths)) / 4


def going_on(screened: Mapping[System, FinishedFit], metric: str) -> list[System]:
    """The best on S_va, the rivals, what is preferred among equals, and the baselines."""
    done = [system for system, fit in screened.items() if fit.done]
    stay = [system for system in done if system.group == BASELINES or system.name in (*RIVALS, *PREFERRED)]
    rest = [system for system in done if system not in stay]
    rest.sort(key=lambda system: -_known(screened[system].metrics.get(f"va_{metric}")))
    return [system for system in done if system in stay or system in rest[:GO_ON]]


def _known(value: float | None) -> float:
    return -math.inf if value is None or value != value else value


# ---- who wins, and by how much -------------------------------------------------------------------------------------


def judge(study: Study) -> Verdict:
    """The best system, its rival, the gains on S_te, and whether to recommend it."""
    able = [case for case in study.judged if _on_S_va(study, case) > -math.inf]
    if not able:
        return Verdict(None, None, [], [], ("unfinished",))
    best, level = _best(study, able)
    rivals = [case for case in able if case.system.name in RIVALS and case != best]
    rival = max(rivals, key=lambda case: _on_S_va(study, case), default=None)
    popular = next((case for case in able if case.system.name == POPULARITY and case != best), None)
    claims = [claimed(study, best, other) for other in (rival, popular) if other is not None]
    return Verdict(best, rival, level, claims, _why_not(study, best, rival, claims))


def _on_S_va(study: Study, case: Case, metric: str | None = None) -> float:
    """The mean over seeds of a metric on S_va, by default the one that chooses; -inf where there is none."""
    values = [fit.validation.get(metric or study.design.select, math.nan) for fit in study.judged[case]]
    return _known(float(np.mean(values)))


def _best(study: Study, able: Sequence[Case]) -> tuple[Case, list[Case]]:
    """(the winner, those that S_va cannot tell from the best one, the winner included)."""
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
    """The best on S_va, then those whose paired difference to it has a 95 % interval that holds 0."""
    first = max(able, key=lambda case: _on_S_va(study, case, metric))
    return [first, *(case for case in able if case != first and not _told_apart(study, first, case, metric))]


def _told_apart(study: Study, first: Case, other: Case, metric: str) -> bool:
    if metric == LIKED:
        return measures.liked(study, first, other, 10, "S_va").low > 0
    if metric not in measures.OF_JUDGED_USERS:  # nothing is filed user by user
        return True
    x, y = (measures.by_user(study, case, metric, "S_va") for case in (first, other))
    return len(x) > 1 and stats.mean_interval(x - y).low > 0


def claimed(study: Study, first: Case, second: Case) -> Claim:
    """The gain of one system over another on S_te."""
    metric = study.design.select
    if metric == LIKED:
        shares = measures.liked(study, first, second, 10)
        return Claim(metric, first, second, "ratio", shares.ratio, shares.ratio_low, shares.ratio_high)
    found = measures.compare(study, first, second, metric)
    return Claim(metric, first, second, "difference", found.difference, found.low, found.high)


def positives(study: Study, part: str) -> int:
    """Those of a randomized part that the biased log does not have."""
    return int(np.count_nonzero(study.design.source.unseen(part).labels))


def _why_not(study: Study, best: Case, rival: Case | None, claims: Sequence[Claim]) -> tuple[str, ...]:
    """What stands against recommending the best system."""
    reasons = []
    if not study.finished:
        reasons.append("unfinished")
    if study.budget.name == "smoke":
        reasons.append("smoke")
    if positives(study, "S_va") < VALIDATION_POSITIVES or positives(study, "S_te") < TEST_POSITIVES:
        reasons.append("few positives")
    if best.system.name in (ALONE, DEFAULTS):
        reasons.append("base")
    if rival is None:
        reasons.append("no rival")
    elif not claims[0].told:
        reasons.append("interval holds 0")
    if any(claim.gain[2] < 0 for claim in claims):
        reasons.append("worse")
    return tuple(reasons)


# ---- the answer in words -------------------------------------------------------------------------------------------


def answer(study: Study, verdict: Verdict) -> list[str]:
    """The sentences of the answer box: what to take and what it gains, or what cannot be told and what it needs."""
    best = verdict.best
    if best is None:
        return []
    shown = f"{best.system.name} ({best.system.on})"
    if verdict.takes:
        return [f"Take {shown}. {_level_of(study, best)}", *(_gain_sentence(claim) for claim in verdict.claims)]
    said = [_cannot(study, verdict, best)]
    if not set(verdict.why_not) & {"smoke", "few positives"}:
        said += [_level_of(study, best), *(_gain_sentence(claim) for claim in verdict.claims)]
    needs = needed_rows(study, verdict)
    if needs is not None:
        size = len_random(study)
        said.append(f"It would take about {needs:,} rows of random traffic to tell; this log has {size:,}.")
    if "smoke" in verdict.why_not:
        said.append("Run it again with --budget quick and another --out.")
    level = [case.system.name for case in verdict.level if case != best]
    prefer = "; among equals, dub-x is preferred" if best.system.name in PREFERRED else ""
    also = f" The validation part cannot tell it from {listed(level)}{prefer}." if level else ""
    return [*said, f"{MODEL} holds {shown}, the best guess of the validation part.{also}"]


def _cannot(study: Study, verdict: Verdict, best: Case) -> str:
    """The first sentence where nothing is recommended."""
    if "smoke" in verdict.why_not:
        return "This run says nothing about which system to take: budget smoke only checks that everything runs."
    if "few positives" in verdict.why_not:
        va, te = positives(study, "S_va"), positives(study, "S_te")
        return (
            f"This log cannot tell which system to take: its random traffic has {va} positives in the validation part "
            f"({VALIDATION_POSITIVES} are needed) and {te} in the test part ({TEST_POSITIVES} are needed)."
        )
    if "base" in verdict.why_not:
        return f"No system does better on the validation part than {RIVAL_WORDS[best.system.name]}: keep that."
    if "worse" in verdict.why_not:
        over = listed([claim.second.system.name for claim in verdict.claims if claim.gain[2] < 0])
        name = best.system.name
        return f"Do not take {name}: the validation part chose it, but on the test part it is worse than {over}."
    if "no rival" in verdict.why_not:
        return f"{best.system.name} is the best on the validation part; no system to hold it against was run."
    return "This log cannot tell which system to take: the difference may be chance."


def _level_of(study: Study, case: Case) -> str:
    """How good a system is on S_te, in plain words."""
    metric = study.design.select
    mean = measures.mean(study, case, metric)
    if metric == LIKED:
        share = measures.liked(study, case, case, 10).first
        return (
            f"Of the items that {case.system.name} recommends, {100 * share.rate:.0f} % are liked ({LIKED}; 95 % "
            f"interval {100 * share.low:.0f} to {100 * share.high:.0f} %; the test part judged {share.n:,} of them)."
        )
    if metric == PERCENTILE:
        return (
            f"With {case.system.name}, an item that a user likes ranks above {100 * mean:.1f} % of the other items she "
            f"could be shown ({PERCENTILE}; chance is 50 %)."
        )
    return f"{case.system.name} has {measures.label(metric)} {mean:.4f} on the test part."


def _gain_sentence(claim: Claim) -> str:
    """A gain with its interval, in plain words."""
    other = claim.second.system.name
    over = f"{RIVAL_WORDS[other]} ({other})" if other in RIVAL_WORDS else other
    value, low, high = claim.gain
    how = "95 % interval over users, for these fitted models"
    if claim.kind == "ratio":
        if value != value:
            return f"{over[0].upper()}{over[1:]} finds no liked item that the test part judged."
        top = f"{100 * high:+.0f} %" if math.isfinite(high) else "no limit"
        said = f"{100 * value:+.0f} % liked items ({how}: {100 * low:+.0f} to {top})"
    elif claim.metric == PERCENTILE:
        said = f"{100 * value:+.1f} points of percentile ({how}: {100 * low:+.1f} to {100 * high:+.1f})"
    else:
        said = f"{value:+.4f} {measures.label(claim.metric)} ({how}: {low:+.4f} to {high:+.4f})"
    noise = "" if claim.told else ", which may be chance"
    return f"Against {over}: {said}{noise}."


def len_random(study: Study) -> int:
    """Pairs of the randomized log."""
    return sum(len(study.design.source.triplets(part).users) for part in ("S_t", "S_va", "S_te"))


def needed_rows(study: Study, verdict: Verdict) -> int | None:
    """About how many rows of random traffic would tell, of two digits; None where no number of rows is what lacks.

    Half the interval shrinks with the root of the rows: n (half / gain)^2 rows bring it down to the gain, or to a
    noticeable one where the gain is smaller.
    """
    n, least = len_random(study), 0.0
    if "few positives" in verdict.why_not:
        wanted = (("S_va", VALIDATION_POSITIVES), ("S_te", TEST_POSITIVES))
        least = max(n * positive / positives(study, part) for part, positive in wanted)
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
    """The answer, the table, what the first round showed, and what the words mean."""
    verdict = judge(study) if verdict is None else verdict
    cases = [case for case in study.design.cases if case in study.judged]
    sections = []
    if cases:
        sections.append(Section("Which file to ship", [_files_table(study, verdict)]))
        sections.append(
            Section("Results on the test part (S_te)", [layout.metric_table(study, "", cases, layout.MEANS)])
        )
        sections.append(Section("How much better than the rivals", [_claims_table(study, verdict, cases)]))
        sections += [_dots(study, cases), *reliability.sections(study, cases)]
    metric = study.design.select
    rows: list[list[Any]] = [[system.name, system.on, *_first_round(fit, metric)] for system, fit in screened.items()]
    note = "One fit each, nothing searched. Those that went on are above."
    header = ["system", "backbone", f"S_va {measures.label(metric)}", "judged on S_va", "seconds", ""]
    words: list[list[Any]] = [[word, meaning] for word, meaning in GLOSSARY.items()]
    sections.append(Section("The first round", [Table("", header, rows, note)]))
    sections.append(Section("Words", [Table("", ["word", "meaning"], words)]))
    return Findings(answer(study, verdict), sections)


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
    """Every system against the rival, as the answer tells it of the winner, and liked@10 with its interval."""
    against, label = verdict.rival, measures.label(study.design.select)
    rival = against.system.name if against else "-"
    rows: list[list[Any]] = []
    for case in cases:
        on_va = _on_S_va(study, case)
        row: list[Any] = [layout.name_of(study, case), Value(on_va if on_va > -math.inf else None)]
        if against is None or case == against:
            row += [Value(None), "the rival" if case == against else "-"]
        else:
            claim = claimed(study, case, against)
            value, low, high = (_shown_gain(claim, each) for each in claim.gain)
            row += [Value(claim.gain[0], value), f"{low} to {high}"]
        rows.append([*row, *_liked(study, case)])
    note = (
        f"Gain in {label} over {rival}, the best on S_va of {listed(RIVALS)}; 95 % intervals over users, paired, for "
        "these fitted models. Each interval stands for itself: of many systems, one may leave 0 out by chance. "
        f"{LIKED}: {GLOSSARY[LIKED]}, with its 95 % interval; judged: how many there were, in the mean over seeds."
    )
    header = ["system", f"S_va {label}", f"gain over {rival}", "95 % interval", LIKED, "judged"]
    return Table("", header, rows, note)


def _shown_gain(claim: Claim, value: float) -> str:
    if not math.isfinite(value):
        return "-" if value != value else "no limit"
    return f"{100 * value:+.0f} %" if claim.kind == "ratio" else f"{value:+.4f}"


def _liked(study: Study, case: Case) -> list[Value]:
    """liked@10 of a system on S_te with its interval, and how many of its recommended items were judged."""
    counts = [fit.judged_users["S_te"].counts(10) for fit in study.judged[case]]
    n = round(sum(int(judged.sum()) for _, judged in counts) / len(counts))
    if n < LEAST_JUDGED:
        return [Value(None), Value(n, f"{n:,}")]
    share = measures.liked(study, case, case, 10).first
    return [Value(share.rate, f"{share.rate:.3f}", f"{share.low:.3f} to {share.high:.3f}"), Value(n, f"{n:,}")]


def _dots(study: Study, cases: Sequence[Case]) -> Section:
    metric = study.design.select
    values = {case.system.name: measures.values(study, case, metric) for case in cases}
    values = {name: own[~np.isnan(own)] for name, own in values.items() if not np.isnan(own).all()}
    label = measures.label(metric)
    drawing = figures.dots(f"{NAME}-{metric.replace('@', '-')}", values, f"{label} on the test part")
    caption = "Small dots: seeds; large dots: their mean."
    if metric == LIKED:
        n = [measures.mean(study, case, "judged@10") for case in cases]
        caption += f" The test part judged {min(n):.0f} to {max(n):.0f} recommended items of each system."
    return Section("What a user sees", [Gallery([Figure(GLOSSARY.get(label, label), drawing, caption)])])


def _first_round(fit: FinishedFit, metric: str) -> list[Any]:
    if not fit.done:
        return [None, None, None, fit.reason]
    judged = fit.metrics.get("va_judged@10")
    return [fit.metrics.get(f"va_{metric}"), None if judged is None else int(judged), fit.seconds, ""]
