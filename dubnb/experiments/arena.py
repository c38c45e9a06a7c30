"""The arena: every system on every log under one protocol with equal budgets, and a leaderboard.

**Equal budgets.** Every system may try the same number of candidates on S_va. The candidates that a fit chooses among
by itself count: dub-x tries up to 12 settings in one fit. Searches do not continue beyond an end of their grid. The
number is that of the budget, or that of the system with the most inner candidates if it is larger (not with smoke). The
table has the number that each system used.

**One metric** chooses settings on S_va, stops training and orders the leaderboard on S_te; nothing is chosen on S_te.
It is the percentile unless `metric` says otherwise.

**Over data sets**, systems are compared by ranks: Friedman's test, and Nemenyi's critical difference (Demsar, 2006). A
data set counts once: values of several draws of a simulated world are averaged before they are ranked.

**Models from elsewhere** get a row of the same tables, judged by the same rules: see `others`.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb import _check, stats
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.evaluation import LEAST_JUDGED, judge
from dubnb.experiments import budgets, pages
from dubnb.experiments.budgets import BUDGETS, Budget
from dubnb.experiments.compare import BACKBONES, GLOSSARY, LIKED, MONITORS, PERCENTILE, Claim, make_claim
from dubnb.experiments.pages import Findings, join_words
from dubnb.experiments.study import SIGNIFICANT, Case, Design, Say, SeedResult, Study, best_value, report_label
from dubnb.experiments.systems import POPULARITY, Choice, OutsideSystem, System
from dubnb.report import figures, latex
from dubnb.report.page import Cell, Figure, Gallery, Label, Section, Table, Value
from dubnb.report.plots import require_matplotlib

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.sweeps.runner import FinishedFit, Resources

NAME = "arena"
TITLE = "Leaderboard"
QUESTION = "Which system ranks best on randomized feedback, what does it cost, and what does it read?"
TEX, BIB = "leaderboard.tex", "references.bib"
WITH_INTERVAL = (PERCENTILE, LIKED)  # the metrics whose gains have intervals with a recorded coverage
SHOWN = ("percentile", "ndcg", "auc", "truth_ndcg", "truth_auc")
ENOUGH_DATASETS = 3  # for ranks over data sets
MOST_NAMED = 5  # "any other system" in place of more names
INPUTS = ("S_c", "S_t", "grades", "propensities")
PROBE_SHAPE = (60, 24)  # users and items of the log on which it is found out what a system reads
SMOKE = "This run says nothing about the systems: budget smoke only checks that everything runs."
HOLD = "docs/intervals.md shows how often these intervals hold"

Scores = Callable[[np.ndarray, np.ndarray], Any]
Other = Scores | Callable[..., Any]


@dataclass(frozen=True)
class ArenaResult:
    """The result of `arena`: the answer in sentences, the leaderboard, and the page's path."""

    answer: Sequence[str]
    leaderboard: Sequence[Mapping[str, Any]]  # a dict per system, the best first
    study: Study
    report: str
    out: str

    def __repr__(self) -> str:
        return "\n".join([*self.answer, f"Report: {self.report}"])


def arena(
    data: Partition | Mapping[str, Partition],
    out: str | os.PathLike[str],
    budget: str = "quick",
    choice: Choice | None = None,
    seed: int = 0,
    resources: Resources | None = None,
    say: Say = lambda line: None,
    data_words: Sequence[str] = (),
    metric: str = PERCENTILE,
    others: Mapping[str, Other] | None = None,
) -> ArenaResult:
    """Run all systems on one or several logs under equal budgets; the same call continues after an interruption.

    Parameters
    ----------
    data : Partition, or {label: Partition}
        The logs, each with S_va to choose on and S_te to judge on. Logs with the same `name` are draws of one data set.
    out : path
        A directory for report.html, results.csv, results.md, leaderboard.tex, references.bib, figures and the fits.
    budget : {"smoke", "quick", "full"}
        How much to search and fit; "full" also runs ncf.
    choice : Choice, optional
        Systems and backbones; by default all registered methods.
    seed : int
        Seed of the searches and of the first fits.
    resources : Resources, optional
        Workers on this machine, or a Dask cluster.
    say : callable
        Receives lines about the progress.
    data_words : sequence of str
        The options that name the data on the command line; the report shows the whole command.
    metric : {"percentile", "liked@10", "user_auc", "auc", "ndcg"}
        The metric that stops training, chooses and orders.
    others : {name: function}, optional
        Models from elsewhere. A function whose first parameter is called `data` is a factory: it gets the Partition
        (and a seed, if it has a parameter `seed`), trains on S_c, S_t and S_va, and returns a score function. Any
        other function is a score function itself, as `dubnb.evaluate` takes it: (users, items) -> scores, by original
        ids. They run in this process, and again in every run.

    Examples
    --------
    >>> import dubnb, tempfile
    >>> from dubnb.experiments.systems import Choice
    >>> data = dubnb.load_dataset("bias-popularity", seed=1)
    >>> few = Choice(("popularity", "random"))
    >>> found = dubnb.arena(data, tempfile.mkdtemp() + "/arena", "smoke", few)
    >>> found.leaderboard[0]["system"]
    'popularity'
    """
    logs = _checked_logs(data)
    _check.choice("budget", budget, tuple(BUDGETS))
    _check.choice("metric", metric, tuple(MONITORS))
    seed = _check.whole("seed", seed, low=0)
    others = dict(others or {})
    choice = (choice or Choice.everything()).checked()
    systems = {label: choice.systems(log, BACKBONES[budget]) for label, log in logs.items()}
    _check_others(others, systems, len(logs))
    require_matplotlib()
    pages.check_output_dir(out)
    about = {"experiment": NAME, "data": [log.fingerprint for log in logs.values()], "budget": budget, "seed": seed}
    about |= {"systems": list(choice.names), "backbones": list(choice.backbones or ()), "metric": metric}
    work = pages.claim_output_dir(out, about | {"others": sorted(others)})

    equal = equal_budget(BUDGETS[budget], logs, systems)
    every = list(dict.fromkeys(system for own in systems.values() for system in own))
    cases = [Case(system, label) for system in every for label in logs if system in systems[label]]
    notes = [("metric", _metric_text(metric))]
    notes += [("logs", f"{len(logs)} logs, of which the card above shows the first; a table below has all")] * (
        len(logs) > 1
    )
    notes.append(("files", f"{TEX} and {BIB} hold the leaderboard for a paper, results.csv every number"))
    design = Design(next(iter(logs.values())), logs, cases, metric, notes, MONITORS[metric])
    study = Study(design, equal, work, seed, resources)
    if equal.epoch_share is None and cases:
        budgets.say_how_long([study], say)
    outside = [Case(OutsideSystem(name), label) for name in others for label in logs]
    study.design = design._replace(cases=[*cases, *outside])
    costs = {case: _run_other(study, case, others[case.system.name], say) for case in outside}
    command = pages.rerun_command((NAME,), data_words, budget, seed, choice, out, metric)
    reads: dict[System, dict[str, bool]] = {}
    try:
        study.run(say)
        say("finding out what each system reads")
        reads = _inputs_on_logs(logs, systems)
    finally:  # also after an interruption: the report says how far the run came
        claims = claims_over_popularity(study)
        board = leaderboard(study, reads, costs, claims)
        found = findings(study, board, claims, costs)
        pages.write_report(os.fspath(out), _AS_EXPERIMENT, study, found, command)
        remark = SMOKE if budget == "smoke" else ""
        texts = {TEX: latex.latex_table(board, list(logs), report_label(metric), remark)}
        own = [case.system for case in study.design.cases]
        texts[BIB] = latex.bibtex_entries({name for system in own for name in (system.method, system.name)})
        for name, text in texts.items():
            pages.write_text(os.path.join(out, name), text)
    return ArenaResult(list(found.answer), board, study, os.path.join(out, pages.REPORT), os.fspath(out))


_AS_EXPERIMENT: Any = sys.modules[__name__]  # its NAME, TITLE and QUESTION are those of the page


def _metric_text(metric: str) -> str:
    """What the metric does here, and what it is."""
    label, monitor = report_label(metric), MONITORS[metric]
    if monitor == metric:
        text = f"{label} stops training, chooses on S_va and orders on S_te"
    else:
        text = f"{label} chooses on S_va and orders on S_te; {report_label(monitor)} stops training"
    meanings = [f"{name}: {words}" for name, words in GLOSSARY.items() if label.endswith(name.removesuffix("@50"))]
    return ". ".join([text, *meanings])


def _checked_logs(data: Any) -> dict[str, Partition]:
    from dubnb.data.partition import Partition

    logs = dict(data) if isinstance(data, Mapping) else {getattr(data, "name", ""): data}
    if not logs:
        raise InputError("no data: pass a Partition, or {label: Partition}")
    for label, log in logs.items():
        if not isinstance(log, Partition):
            kind = type(log).__name__
            raise InputError(f"data {label!r} is a {kind}: pass a Partition, such as dubnb.load_dataset returns")
        pages.check_both_labels(log, f" of {label!r}")
    if len({log.fingerprint for log in logs.values()}) < len(logs):
        raise InputError(f"two of the logs {', '.join(logs)} are the same: leave one out")
    return logs


def equal_budget(budget: Budget, logs: Mapping[str, Partition], systems: Mapping[str, Sequence[System]]) -> Budget:
    """The budget with the same number of candidates for every system, those inside a fit included."""
    counted = budget._replace(extensions=0, counts_inner=True, search_everywhere=True)
    if budget.epoch_share is not None:
        return counted
    inner = [budgets.search_of(system, counted, logs[label]).inner for label, own in systems.items() for system in own]
    return counted._replace(points=max(budget.points, *inner) if inner else budget.points)


# ---- models from elsewhere -----------------------------------------------------------------------------------------


def _check_others(others: Mapping[str, Other], systems: Mapping[str, Sequence[System]], n_logs: int) -> None:
    names = {system.name for own in systems.values() for system in own}
    if not names and not others:
        raise InputError("the arena has nothing to run: none of the chosen systems fits these data")
    for name, other in others.items():
        if name in names:
            raise InputError(f"others has {name!r}, which is a system of dubnb: choose another name")
        if not callable(other):
            kind = type(other).__name__
            raise InputError(f"others[{name!r}] is a {kind}: pass a function (users, items) -> scores, or a factory")
        if not _is_factory(other):
            required = _required_parameters(other)
            if required is not None and len(required) != 2:
                rule = "a score function takes (users, items), and a factory's first parameter is called data"
                raise InputError(f"others[{name!r}] takes {len(required)} arguments: {rule}")
            if n_logs > 1:
                rule = "a score function knows one log"
                raise InputError(f"others[{name!r}] is judged on {n_logs} logs: {rule}; pass a factory of `data`")


def _required_parameters(function: Any) -> list[str] | None:
    """The names of a function's parameters without a default; None if they are not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in parameters if each.kind in kinds and each.default is each.empty]


def _is_factory(function: Any) -> bool:
    return (_required_parameters(function) or [""])[0] == "data"


def _run_other(study: Study, case: Case, other: Other, say: Say) -> float | None:
    """Train and judge a model from elsewhere, and keep its results in the study; returns its mean CPU seconds."""
    data, name = study.design.conditions[case.condition], case.system.name
    say(f"running {name} on {case.condition}")
    results, seconds = [], []
    takes_seed = _is_factory(other) and "seed" in inspect.signature(other).parameters
    for seed in study.seeds if takes_seed else [study.seed]:
        start = time.process_time()
        try:
            score: Any = other
            if _is_factory(other):
                score = score(data, seed=seed) if takes_seed else score(data)
            seconds.append(time.process_time() - start)
            results.append(SeedResult(seed, *_judged(score, data)))
        except Exception as error:  # the code is not ours: its failure is a result like any other
            study.failures[case] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            return None
    study.results[case] = results
    return float(np.mean(seconds)) if _is_factory(other) else None


def _judged(score: Any, data: Partition) -> tuple[dict[str, float], Any]:
    """(metrics, TestOutput) of a score function, as of dubnb's own models."""
    from dubnb.sweeps.worker import TestOutput

    parts = {part: judge(score, data, truth=False if part == "S_va" else None, part=part) for part in ("S_va", "S_te")}
    metrics: dict[str, float] = {}
    for part, found in parts.items():
        prefix = "va_" if part == "S_va" else ""
        metrics |= {prefix + name: float(value) for name, value in found.result.items() if name != "protocol"}
    last = parts["S_te"]
    unknown = np.full(len(last.scores), np.nan)
    judged_users = {part: found.judged for part, found in parts.items()}
    lists = np.empty((len(last.users), 0), dtype=np.int32)
    return metrics, TestOutput(last.users, last.values, lists, last.scores, unknown, unknown, judged_users)


# ---- what a system reads -------------------------------------------------------------------------------------------


LogKind = tuple[str | None, bool, bool]  # how labels are graded, positives alone, a column of propensities


def _inputs_on_logs(
    logs: Mapping[str, Partition], systems: Mapping[str, Sequence[System]]
) -> dict[System, dict[str, bool]]:
    """{system: which inputs it reads on at least one of the logs}."""
    reads: dict[System, dict[str, bool]] = {}
    known: dict[tuple[System, LogKind], dict[str, bool]] = {}
    for label, log in logs.items():
        with_grades = log.triplets("S_c").grades is not None
        kind = (log.grading or "levels") if with_grades else None, log.click_only, log.propensities is not None
        for system in systems[label]:
            if (system, kind) not in known:
                try:
                    known[system, kind] = inputs_of(system, _small_log(kind))
                except InputError:  # it refuses logs of this kind: its fits failed too, and the page has the reason
                    known[system, kind] = {}
            for name, read in known[system, kind].items():
                own = reads.setdefault(system, dict.fromkeys(INPUTS, False))
                own[name] = own[name] or read
    return reads


def _small_log(kind: LogKind) -> Partition:
    """A small log of a kind."""
    from dubnb.data.partition import Partition
    from dubnb.data.pattern import Triplets

    grading, click_only, with_propensities = kind
    n_users, n_items = PROBE_SHAPE
    stream = generator(0, "arena", "inputs")
    pairs = stream.permutation(n_users * n_items)
    labels = (stream.random(len(pairs)) < 0.4).astype(np.float32)
    parts: dict[str, Triplets] = {}
    for number, part in enumerate(("S_c", "S_t", "S_va", "S_te")):
        own = pairs[number::4]
        y = labels[own]
        if part == "S_c" and click_only:
            own, y = own[y > 0], y[y > 0]
        grades = None
        if grading is not None:
            grades = np.where(y > 0, 1.0, np.where(own % 2 == 0, 0.25, 0.0))
        parts[part] = Triplets(own // n_items, own % n_items, y, np.ones(len(own), np.float32), grades)
    propensities = stream.uniform(0.2, 0.8, len(parts["S_c"].users)) if with_propensities else None
    return Partition(parts, PROBE_SHAPE, propensities=propensities, grading=grading, name="small log")


def inputs_of(system: System, small: Partition) -> dict[str, bool]:
    """Which inputs change the fitted model: each is altered on a small log, and the scores are compared.

    The fits have no S_va, so that all epochs run. With S_va, early stopping can keep a start that saw one log alone.
    """
    import warnings

    S_c, S_t, chances = small.triplets("S_c"), small.triplets("S_t"), small.propensities
    small = small.replace(S_va=small.triplets("S_va").take(slice(0)), propensities=chances)

    def flipped(log: Any) -> Any:
        some = np.arange(len(log.labels)) % 3 == 0
        grades = None if log.grades is None else np.where(some, 1.0 - log.grades, log.grades)
        return log._replace(labels=np.where(some, 1 - log.labels, log.labels).astype(log.labels.dtype), grades=grades)

    logs = {"": small, "S_t": small.replace(S_t=flipped(S_t))}
    if small.click_only:  # every label stays 1: leave pairs out
        half = np.arange(len(S_c.users)) % 2 == 0
        logs["S_c"] = small.replace(S_c=S_c.take(half), propensities=None if chances is None else chances[half])
    else:
        logs["S_c"] = small.replace(S_c=flipped(S_c), propensities=chances)
    if S_c.grades is not None:
        grades = np.where(S_c.labels > 0, S_c.grades, 0.5 * S_c.grades)
        logs["grades"] = small.replace(S_c=S_c._replace(grades=grades), propensities=chances)
    if chances is not None:
        logs["propensities"] = small.replace(propensities=chances[::-1].copy())
    scores = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, log in logs.items():
            model = system.model().set_params(epochs=2).fit(log)
            scores[name] = np.asarray(model.weights_.score_rows(np.arange(log.n_users)))
    return {name: name in scores and not np.array_equal(scores[name], scores[""]) for name in INPUTS}


# ---- the leaderboard -----------------------------------------------------------------------------------------------


def datasets_of(study: Study) -> dict[str, list[str]]:
    """{data set: labels of its logs}; draws of a simulated world are one data set."""
    grouped: dict[str, list[str]] = {}
    for label, log in study.design.conditions.items():
        grouped.setdefault(log.name, []).append(label)
    return grouped


def _systems(study: Study) -> list[System]:
    return list(dict.fromkeys(case.system for case in study.design.cases))


def dataset_means(study: Study, metric: str) -> dict[System, list[float]]:
    """{system: its mean over seeds and draws on each data set}; nan if one of the fits is missing."""
    groups = datasets_of(study).values()
    return {
        system: [float(np.mean([study.mean(Case(system, label), metric) for label in labels])) for labels in groups]
        for system in _systems(study)
    }


def ranks_over_datasets(study: Study) -> tuple[dict[System, float], stats.RankTest | None]:
    """(mean ranks of the systems that have a result on every data set, the test if there are enough data sets)."""
    means = {s: own for s, own in dataset_means(study, study.design.select).items() if np.isfinite(own).all()}
    if not means:
        return {}, None
    values = np.array(list(means.values())).T
    if len(values) >= 2 and len(means) >= 2:
        test = stats.rank_test(values)
        return dict(zip(means, test.mean_ranks.tolist(), strict=True)), test if len(values) >= ENOUGH_DATASETS else None
    order = sorted(means, key=lambda system: -means[system][0])
    return {system: float(1 + order.index(system)) for system in means}, None


def claims_over_popularity(study: Study) -> dict[Case, Claim]:
    """{case: its gain over popularity on the same log, with an interval}, if the metric has recorded intervals."""
    if study.design.select not in WITH_INTERVAL:
        return {}
    found: dict[Case, Claim] = {}
    for label in study.design.conditions:
        own = [case for case in study.design.cases if case.condition == label and case in study.results]
        popularity = next((case for case in own if case.system.name == POPULARITY), None)
        if popularity is not None:
            found |= {case: make_claim(study, case, popularity) for case in own if case != popularity}
    return found


def leaderboard(
    study: Study,
    reads: Mapping[System, Mapping[str, bool]],
    costs: Mapping[Case, float | None],
    claims: Mapping[Case, Claim],
) -> list[dict[str, Any]]:
    """A dict per system, the best first: its mean rank, its metric on each log, and what it cost and read.

    "gains" has the gain over popularity on each log as (value, low, high), where its interval is known.
    """
    ranks, _ = ranks_over_datasets(study)
    rows = []
    for system in _systems(study):
        own = [Case(system, label) for label in study.design.conditions]
        known = system in reads
        row: dict[str, Any] = {"system": system.name, "backbone": system.on, "method": system.method}
        row["mean_rank"] = ranks.get(system)
        row["values"] = {case.condition: study.mean(case, study.design.select) for case in own}
        row["gains"] = {case.condition: claims[case].gain if case in claims else None for case in own}
        row["reads"] = [name for name in INPUTS if reads[system][name]] if known else None
        rows.append(row | _costs(study, own, costs))
    return sorted(rows, key=lambda row: (row["mean_rank"] is None, row["mean_rank"] or 0.0))


def _costs(study: Study, cases: Sequence[Case], others: Mapping[Case, float | None]) -> dict[str, Any]:
    """Candidates and CPU seconds of the searches, summed over logs; CPU seconds and memory of a training."""
    winners = [(case, winner) for case in cases if (winner := study.winners.get(case)) is not None]
    fits = [fit for case in cases for fit in study.fitted.get(case, ())]
    tried = [fit for case in cases for fit in study.tried.get(case, ())]
    training = [fit.cpu_seconds for fit in fits if fit.cpu_seconds is not None]
    training += [seconds for case in cases if (seconds := others.get(case)) is not None]
    memory = [fit.peak_mb for fit in (*fits, *tried) if fit.peak_mb is not None]
    return {
        "candidates": [winner.n_points * winner.inner for _, winner in winners] or None,
        "fits": [winner.n_points for _, winner in winners] or None,
        "training_cpu_seconds": float(np.mean(training)) if training else None,
        "search_cpu_seconds": sum(fit.cpu_seconds or 0.0 for fit in tried) if tried else None,
        "peak_mb": max(memory) if memory else None,
    }


# ---- the page ------------------------------------------------------------------------------------------------------


def findings(
    study: Study,
    board: Sequence[Mapping[str, Any]],
    claims: Mapping[Case, Claim],
    costs: Mapping[Case, float | None],
) -> Findings:
    """The answer, the leaderboard, the diagram over data sets, what systems cost and read, and a table per log."""
    sections = [Section("Leaderboard", [_board_table(study, board)])]
    ranks, test = ranks_over_datasets(study)
    if test is not None:
        sections.append(Section("Over data sets", [Gallery([_diagram(study, ranks, test)])]))
    sections.append(Section("What it costs and what it reads", [_cost_table(study, board)]))
    for label in study.design.conditions:
        done = [case for case in study.design.cases if case.condition == label and case in study.results]
        if done:
            sections.append(Section(f"On {label}", [_log_table(study, label, done, claims)]))
    if len(study.design.conditions) > 1:
        sections.append(Section("The logs", [_size_table(study.design.conditions)]))
    return Findings(_ranks_in_words(study, ranks, test) + _failed_others(study), sections, _result_rows(study, costs))


def _failed_others(study: Study) -> list[str]:
    """A sentence for each model from elsewhere that has failed on a log, with the first reason."""
    reasons: dict[str, str] = {}
    for case, reason in study.failures.items():
        if isinstance(case.system, OutsideSystem):
            end = "" if reason.endswith((".", "?", "!")) else "."
            reasons.setdefault(case.system.name, f"{case.system.name} has no result on {case.condition}: {reason}{end}")
    return list(reasons.values())


def _ranks_in_words(study: Study, ranks: Mapping[System, float], test: stats.RankTest | None) -> list[str]:
    if not ranks:
        return []
    if study.budget.name == "smoke":
        return [SMOKE]
    label, names = report_label(study.design.select), list(datasets_of(study))
    order = sorted(ranks, key=lambda system: ranks[system])
    best = order[0]
    shown = f"{best.name} ({best.on})"
    if len(names) > 1:
        lines = [
            f"{shown} has the best mean rank by {label}: {ranks[best]:.1f} of {len(order)} systems on {len(names)} "
            "data sets."
        ]
        if test is not None:
            close = [s.name for s in order[1:] if ranks[s] - ranks[best] <= test.critical_difference]
            alike = (
                f"It cannot be told apart from {_names_in_words(close, order)}"
                if close
                else "It differs from every other system"
            )
            lines.append(
                f"{alike} (Nemenyi's critical difference {test.critical_difference:.1f}; Friedman's p "
                f"{pages.format_p(test.p)}). The order holds for these data sets."
            )
            lines += [text] if (text := _dependence(names)) else []
        else:
            lines.append(f"{len(names)} data sets are too few for a test over data sets: {ENOUGH_DATASETS} are needed.")
        return lines
    (where,) = names
    own = [Case(system, study_label) for system in order for study_label in datasets_of(study)[where]]
    if len(own) > len(order):
        return [f"{shown} has the best mean {label} over the draws of {where}."]
    lines = [f"{shown} has the best {label} on {where}: {study.mean(own[0], study.design.select):.4f}."]
    if len(own) > 1:
        adjusted = _against_best(study, own)
        close = [case.system.name for case in own[1:] if adjusted[case] > SIGNIFICANT]
        alike = (
            f"It cannot be told apart from {_names_in_words(close, order)}"
            if close
            else "It is better than every other system"
        )
        lines.append(f"{alike} (paired over users, Holm's correction, level {SIGNIFICANT}).")
    return lines


def _names_in_words(close: Sequence[str], order: Sequence[System]) -> str:
    """Systems in words; all but the first of the order are not listed one by one if they are many."""
    return "any other system" if len(close) == len(order) - 1 > MOST_NAMED else join_words(close)


def _dependence(datasets: Iterable[str]) -> str:
    """A sentence if data sets share their people: the tests over data sets take them as independent."""
    from dubnb.data.biases import BIASES

    if len([name for name in datasets if name in BIASES]) < 2:
        return ""
    return "The worlds bias-* of a seed share their people and likes, so p is too small and the difference too short."


def _against_best(study: Study, cases: Sequence[Case]) -> dict[Case, float]:
    """{case: p of its difference to the first case, over users, with Holm's correction}."""
    best, *rest = cases
    found = [study.compare(best, case, study.design.select).users_p for case in rest]
    return dict(zip(rest, stats.holm(found).tolist(), strict=True)) if rest else {}


def _board_table(study: Study, board: Sequence[Mapping[str, Any]]) -> Table:
    several, label = len(datasets_of(study)) > 1, report_label(study.design.select)
    logs = list(study.design.conditions)
    header = ["system", "backbone", *(["mean rank"] if several else []), *(f"{label} on {log}" for log in logs)]
    header += ["CPU s of a training", "candidates"]
    best = {log: best_value([row["values"][log] for row in board], study.design.select) for log in logs}
    rows: list[list[Cell]] = []
    for row in board:
        rank = row["mean_rank"]
        cells: list[Cell] = [row["system"], row["backbone"]]
        cells += [Value(rank, None if rank is None else f"{rank:.1f}")] if several else []
        for log in logs:
            value = row["values"][log]
            known, is_best = value if value == value else None, value == best[log]
            cells.append(Value(known, spread=gain_interval(row["gains"][log], study.design.select), best=is_best))
        rows.append([*cells, _seconds_cell(row["training_cpu_seconds"]), _range_cell(row["candidates"])])
    below = " Below a value: the 95 % interval of its gain over popularity, over users, for these fitted models."
    note = (
        f"Mean {label} on S_te over {study.budget.seeds} seeds; best in bold."
        + (f"{below} " if any(gain for row in board for gain in row["gains"].values()) else " ")
        + ("Mean rank: over data sets; a world with several draws counts once. " if several else "")
        + _candidates_text(study.budget)
    )
    return Table("", header, rows, note)


def _candidates_text(budget: Budget) -> str:
    text = f"Every system may try {budget.points} candidates for each log; what a fit tries inside itself counts."
    if budget.grid == budgets.NEAR:
        text += (
            " They lie around the default, and the best on S_va is kept, however small its lead; ties keep the default."
            " dub-x and dub-xi change a setting inside a fit only for a lead of one paired standard error. With few "
            "positives in S_va they judge it on folds of S_t and S_va."
        )
    if budget.epoch_share is not None:
        text += " With this budget a system whose fit tries more inside itself has one fit."
    return text


def _diagram(study: Study, ranks: Mapping[System, float], test: stats.RankTest) -> Figure:
    names = {system: f"{system.name} {system.on}" for system in ranks}
    if len({system.name for system in ranks}) == len(ranks):
        names = {system: system.name for system in ranks}
    left_out = [system.name for system in _systems(study) if system not in ranks]
    drawing = figures.critical_difference(
        f"{NAME}-ranks", {names[system]: rank for system, rank in ranks.items()}, test.critical_difference
    )
    caption = (
        f"Mean ranks by {report_label(study.design.select)} over {test.n} data sets; 1 is the best. A bar joins "
        "systems that Nemenyi's test cannot tell apart at level .05 (Demsar, 2006). Friedman's test that all are "
        f"alike: p {pages.format_p(test.p)}."
    )
    if text := _dependence(datasets_of(study)):
        caption += f" {text}"
    if left_out:
        caption += f" Without a result on every data set: {join_words(left_out)}."
    return Figure("Critical differences", drawing, caption)


def _cost_table(study: Study, board: Sequence[Mapping[str, Any]]) -> Table:
    header = ["system", "backbone", *INPUTS, "candidates", "fits", "CPU s of the search", "CPU s of a training"]
    rows: list[list[Cell]] = []
    for row in board:
        reads = ["?" if row["reads"] is None else "yes" if name in row["reads"] else "-" for name in INPUTS]
        search = _seconds_cell(row["search_cpu_seconds"])
        cells = [_range_cell(row["candidates"]), _range_cell(row["fits"]), search]
        memory = row["peak_mb"]
        cells += [_seconds_cell(row["training_cpu_seconds"]), Value(memory, memory and f"{memory:,.0f}")]
        rows.append([row["system"], row["backbone"], *reads, *cells])
    note = (
        "Reads: found out on a small log with the same columns, by altering each input; all systems use S_va to stop "
        "or to choose. Candidates: settings judged on S_va for each log, those inside a fit included; fits: trainings "
        "of the search for each log. CPU seconds: of the search, summed over logs; of one training, mean over seeds "
        "and logs, pre-training included, without evaluation. Memory: the peak of the whole process that fits, with "
        "Python, the log and all kernels that fits in it have compiled. Small differences mean nothing."
    )
    return Table("", [*header, "peak MB of the process"], rows, note)


def _log_table(study: Study, label: str, cases: Sequence[Case], claims: Mapping[Case, Claim]) -> Table:
    metric = study.design.select
    order = study.ranked(cases, metric)
    popularity = next((case for case in cases if case.system.name == POPULARITY), None)
    adjusted = _against_best(study, order)
    shown = [name for name in SHOWN if name in study.metric_names() and name != metric]
    header = ["system", report_label(metric), "p against the best", "gain over popularity", LIKED]
    header += [report_label(name) for name in shown]
    rows: list[list[Cell]] = []
    for case in order:
        row: list[Cell] = [Label(case.system.name, pages.case_label(study, case).remark)]
        numbers = [
            pages.metric_cell(study, case, name, best_value([study.mean(each, name) for each in cases], name))
            for name in (metric, *shown)
        ]
        row += [numbers[0], pages.p_cell(adjusted.get(case)), _gain_cell(study, case, popularity, claims)]
        rows.append([*row, _liked_cell(study, case), *numbers[1:]])
    note = (
        f"{pages.MEANS} p against the best: of the difference in {report_label(metric)} to the first row, paired over "
        "users, with Holm's correction. The first was picked by looking, so p is somewhat too small. "
        f"{LIKED}: the share of liked items among those that S_te judged. It and the gain over popularity in "
        f"{report_label(metric)} have 95 % intervals over users, for these fitted models; {HOLD}."
    )
    if metric not in WITH_INTERVAL:
        note += f" No coverage is recorded for intervals of {report_label(metric)}, so its gains have none."
    return Table("", header, rows, note)


def _gain_cell(study: Study, case: Case, popularity: Case | None, claims: Mapping[Case, Claim]) -> Value:
    if popularity is None or case == popularity:
        return Value(None)
    if case not in claims:
        gain = study.mean(case, study.design.select) - study.mean(popularity, study.design.select)
        return Value(gain, f"{gain:+.4f}")
    value = claims[case].gain[0]
    text = f"{100 * value:+.0f} %" if claims[case].kind == "ratio" else f"{value:+.4f}"
    return Value(value, text, gain_interval(claims[case].gain, study.design.select))


def gain_interval(gain: tuple[float, float, float] | None, metric: str) -> str:
    """The interval of a gain over popularity; "" if it has none."""
    if gain is None:
        return ""
    _, low, high = gain
    if metric == LIKED:
        return f"{100 * low:+.0f} to {100 * high:+.0f} %"
    return f"{low:+.4f} to {high:+.4f}"


def _liked_cell(study: Study, case: Case) -> Value:
    counts = [fit.output.judged_users["S_te"].counts(10) for fit in study.results[case]]
    if sum(int(judged.sum()) for _, judged in counts) / len(counts) < LEAST_JUDGED:
        return Value(None)
    share = study.liked(case, case, 10).first
    return Value(share.rate, f"{share.rate:.3f}", f"{share.low:.3f} to {share.high:.3f}, {share.n:,} judged")


def _seconds_cell(seconds: float | None) -> Value:
    return Value(seconds, None if seconds is None else f"{seconds:,.2f}" if seconds < 100 else f"{seconds:,.0f}")


def _range_cell(counts: Sequence[int] | None) -> Value:
    """A number, or the least and the largest where logs differ."""
    if not counts:
        return Value(None)
    low, high = min(counts), max(counts)
    return Value(high, f"{low}" if low == high else f"{low} to {high}")


def _result_rows(study: Study, costs: Mapping[Case, float | None]) -> list[dict[str, Any]]:
    """The further rows of results.csv: what every fit and every search cost."""
    rows: list[dict[str, Any]] = []

    def add(case: Case, seed: int | None, metric: str, value: float | None) -> None:
        if value is not None:
            own = {"condition": case.condition, "backbone": case.system.on, "system": case.system.name}
            rows.append(own | {"seed": seed, "metric": metric, "value": float(value)})

    for case in study.design.cases:
        fits: Sequence[FinishedFit] = study.fitted.get(case, ())
        for seed, fit in zip(study.seeds, fits, strict=False):
            add(case, seed, "cpu_seconds", fit.cpu_seconds)
            add(case, seed, "peak_mb", fit.peak_mb)
        winner, tried = study.winners.get(case), study.tried.get(case)
        if winner is not None and tried:
            add(case, None, "candidates", winner.n_points * winner.inner)
            add(case, None, "search_cpu_seconds", sum(fit.cpu_seconds or 0.0 for fit in tried))
        add(case, None, "cpu_seconds", costs.get(case))
    return rows


def _size_table(logs: Mapping[str, Partition]) -> Table:
    header = ["log", "users", "items", *pages.PART_WORDS, "fingerprint"]
    rows: list[list[Cell]] = []
    for label, log in logs.items():
        sizes = [log.n_users, log.n_items, *(len(log.triplets(part).users) for part in pages.PART_WORDS)]
        rows.append([label, *(Value(size, f"{size:,}") for size in sizes), log.fingerprint[:12]])
    return Table("", header, rows, "Pairs in each part of a log; every system has trained and was judged on the same.")
