"""The reports of experiments: their sentences, tables and warnings, their files, and the directory that holds them.

`calibration_sections` shows whether probabilities are right: predicted against observed shares on S_te, and on
simulated data against the truth.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dubnb import calibration, stats
from dubnb._check import InputError
from dubnb._files import atomic_write, quote_path, spreadsheet_safe
from dubnb.experiments import budgets
from dubnb.experiments.budgets import Budget
from dubnb.experiments.study import (
    SEEDS_NEEDED,
    SIGNIFICANT,
    WHOLE,
    Case,
    Comparison,
    Design,
    Study,
    best_value,
    report_label,
)
from dubnb.experiments.systems import HEADINGS, Choice
from dubnb.report import figures
from dubnb.report import page as html
from dubnb.report.page import Cell, Figure, Gallery, Label, Link, Page, Section, Table, Value

if TYPE_CHECKING:
    import pandas as pd

    from dubnb.data.partition import Partition


PROTOCOL = "full-ranking"
PROTOCOL_RULES = f"{PROTOCOL}: all items outside the user's biased log (S_c), nDCG@50, pooled AUC"
REPORT, INDEX = "report.html", "index.html"
WORK = "work"  # the directory of fits and pre-trained models
ABOUT_FILE = "about.json"  # what the reports of a directory are about
RUN_AGAIN = "Run the same command again, with the same --out, to continue."
PART_WORDS = {"S_c": "biased log", "S_t": "random log for training", "S_va": "for choosing", "S_te": "for judging"}
COLUMNS = ("experiment", "protocol", "condition", "backbone", "system", "seed", "metric", "value")
SIMULATED = (
    "These data are simulated: the truth is known, but differences between methods are smaller than on Yahoo! R3 and "
    "can turn around in other worlds."
)
SMOKE = "Budget smoke checks that everything runs: too few epochs and candidates for any conclusion."
READS_GRADES, RANKS_ALIKE = "reads grades", "same ranking for all users"
MEANS = "Mean over seeds, ± standard deviation; best in bold."
SEED_DOTS = "Small dots: seeds; large dots: their mean."


class Findings(NamedTuple):
    """What an experiment found: sentences, sections of the report, and further rows for results.csv."""

    answer: Sequence[str]
    sections: Sequence[Section]
    rows: Sequence[Mapping[str, Any]] = ()  # with condition, backbone, system, seed, metric, value


class Experiment(Protocol):
    """The parts of an experiment: a module, or any object, that has them."""

    NAME: str
    TITLE: str
    QUESTION: str

    def design(self, data: Partition, budget: Budget, choice: Choice) -> Design:
        """The data by condition, and the cases to fit on them."""

    def findings(self, study: Study) -> Findings:
        """What the finished cases show; also called while some are missing."""


# ---- words ---------------------------------------------------------------------------------------------------------


def join_words(words: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def format_p(p: float | None) -> str:
    """A p-value as text."""
    return "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def p_cell(p: float | None) -> Value:
    """A p-value as a cell."""
    return Value(p, format_p(p))


def difference_cell(c: Comparison) -> Value:
    """The difference of a Comparison, with its interval over users below."""
    return Value(c.difference, f"{c.difference:+z.4f}", f"{c.low:+z.4f} to {c.high:+z.4f}")


def lead_sentence(study: Study, among: Sequence[Case], c: Comparison) -> str:
    """Which system has the best mean of a metric, and whether the difference to the second is significant."""
    name, first, best = report_label(c.metric), study.leaders(among, c.metric), study.mean(c.first, c.metric)
    if len(first) > 1:
        return f"{join_words(first)} share the best {name} ({best:.4f})"
    ahead = f"{c.first.system.name} has the best {name} ({best:.4f}), {abs(c.difference):.4f} ahead of"
    return f"{ahead} {c.second.system.name}: {significance_text(c.users_p, c.seeds_p, study.budget.seeds)}"


def significance_text(users_p: float, seeds_p: float | None, n_seeds: int) -> str:
    """What the p-values over users and over seeds say about a difference."""
    by_users, by_seeds = f"over users (p {format_p(users_p)})", f"over seeds (p {format_p(seeds_p)})"
    if seeds_p is None:
        significant = "significant" if users_p <= SIGNIFICANT else "not significant"
        few = "there is only one" if n_seeds == 1 else f"there are only {n_seeds}"
        return f"{significant} {by_users}, not tested over seeds, as {few} ({SEEDS_NEEDED} are needed)"
    sure = users_p <= SIGNIFICANT, seeds_p <= SIGNIFICANT
    if sure[0] == sure[1]:
        return f"significant {by_users} and {by_seeds}" if sure[0] else f"significant neither {by_users} nor {by_seeds}"
    return f"significant {by_users} but not {by_seeds}" if sure[0] else f"significant {by_seeds} but not {by_users}"


# ---- tables --------------------------------------------------------------------------------------------------------


def case_label(study: Study, case: Case) -> Label:
    """The name of a case in a table, with a remark that readers need."""
    grades = case.system.reads_grades(study.design.conditions[case.condition])
    remarks = ((READS_GRADES, grades), (RANKS_ALIKE, study.ranks_alike(case)))
    return Label(case.system.name, ", ".join(text for text, holds in remarks if holds))


def group_headings(cases: Sequence[Case]) -> dict[int, str]:
    """{row: heading} for the rows where a group of systems begins; empty if there is only one group."""
    starts = {}
    for row, case in enumerate(cases):
        if row == 0 or cases[row - 1].system.group != case.system.group:
            starts[row] = HEADINGS[case.system.group]
    return starts if len(starts) > 1 else {}


def metric_table(
    study: Study,
    title: str,
    cases: Sequence[Case],
    note: str,
    stars: Mapping[str, str] | None = None,
    paper: Mapping[str, Mapping[str, float]] | None = None,
) -> Table:
    """A row per case and a column per metric; the best of each column is bold.

    `stars`: {metric: signs after the best}. `paper`: {system: {metric: published value}}, in columns of their own.
    """
    header: list[str] = ["system"]
    rows: list[list[Cell]] = [[case_label(study, case)] for case in cases]
    for metric in study.metric_names():
        best = best_value([study.mean(case, metric) for case in cases], metric)
        header.append(report_label(metric))
        for case, row in zip(cases, rows, strict=True):
            row.append(metric_cell(study, case, metric, best, (stars or {}).get(metric, "")))
        if paper and any(metric in numbers for numbers in paper.values()):
            header.append("paper")
            for case, row in zip(cases, rows, strict=True):
                row.append(Value(paper.get(case.system.name, {}).get(metric)))
    return Table(title, header, rows, note, group_headings(cases))


def metric_cell(study: Study, case: Case, metric: str, best: float | None, stars: str = "") -> Value:
    """The mean of a metric with its spread over seeds; empty if the case is not done."""
    mean = study.mean(case, metric)
    if mean != mean:
        return Value(None)
    values = study.values(case, metric)
    spread = f"±{values.std(ddof=1):.4f}" if len(values) > 1 else ""
    return Value(mean, f"{mean:.4f}{stars if mean == best else ''}", spread, mean == best)


def published(data: Partition, tables: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """{backbone: {system: {metric: value}}} from the paper, if `data` are its Yahoo! R3 in its split; else {}."""
    columns = ("auc", "ndcg", "p@5", "p@10", "r@5", "r@10")
    if data.name != "yahoo-r3" or (data.n_users, data.n_items) != (15_400, 1_000):
        return {}
    return {
        backbone: {name: dict(zip(columns, row, strict=True)) for name, row in rows.items()}
        for backbone, rows in tables.items()
    }


def winners_section(study: Study) -> Section:
    """What each search chose, and where in its grid that is."""
    one_condition = all(case.condition == WHOLE for case in study.winners)
    rows: list[list[Cell]] = []
    for case, winner in study.winners.items():
        about: list[Cell] = [case.system.name, case.system.on, *([] if one_condition else [case.condition])]
        if winner is None:
            rows.append([*about, "-", Value(None), "no candidate finished", Value(None), "-"])
        elif winner.axes:
            chosen = ", ".join(f"{name} {value:g}" for name, value in winner.point.items())
            grid = "; ".join(f"{name} {_range(values)}" for name, values in winner.axes.items())
            at_edge = ", ".join(f"{name} at the {side} end" for name, side in budgets.edges(winner.axes, winner.point))
            times = ", ".join(f"{budgets.times_text(n)}: {name}" for name, n in winner.extended)
            tried = Value(winner.n_points, f"{winner.n_points}", f"extended {times}" if times else "")
            where = f"⚠ {at_edge}" if at_edge else "inside"
            rows.append([*about, chosen, Value(winner.validation), where, tried, grid])
    header = ["system", "backbone", *([] if one_condition else ["condition"]), "chosen"]
    header += [f"S_va {report_label(study.design.select)}", "in the grid", "candidates", "grid"]
    note = (
        "Chosen on S_va alone. Candidates: all that were tried, also beyond an end of the first grid. A parameter that "
        "is still at an end may have its optimum outside: a wider search could change the order of the systems."
    )
    return Section("What the searches chose", [Table("", header, rows, note)] if rows else [])


def _range(values: Sequence[Any]) -> str:
    values = sorted(values)
    if len(values) <= 5:
        return ", ".join(f"{value:g}" for value in values)
    return f"{values[0]:g} to {values[-1]:g} ({len(values)} values)"


# ---- warnings ------------------------------------------------------------------------------------------------------


def study_warnings(study: Study) -> list[str]:
    """What a reader must know before trusting the numbers."""
    lines, select = data_warnings(study.design.source, study.budget), study.design.select
    for popularity, lower in study.below_popularity().items():
        where = "" if popularity.condition == WHOLE else f", {popularity.condition}"
        level = f"{report_label(select)} {study.mean(popularity, select):.4f}{where}"
        names = join_words([f"{case.system.name} ({case.system.on})" for case in lower])
        lines.append(f"Below popularity, which gives everyone the same ranking ({level}): {names}.")
    alike = [str(case) for case in study.results if study.ranks_alike(case)]
    if alike:
        lines.append(f"The factors have vanished, so that every user gets the same ranking: {', '.join(alike)}.")
    ends: dict[tuple[str, str], dict[str, None]] = {}
    for case, winner in study.winners.items():
        for end in budgets.edges(winner.axes, winner.point) if winner else ():
            ends.setdefault(end, {})[f"{case.system.name} ({case.system.on})"] = None
        if winner and winner.lost:
            n = f"{len(winner.lost)} of {winner.n_points} candidates"
            lines.append(f"{n} of {case} did not finish: {winner.lost[0]}")
    for (name, side), systems in ends.items():
        where = f"at the {side} end of its grid, so perhaps beyond it"
        lines.append(f"The best {name} lies {where}: {', '.join(systems)}.")
    return lines + [f"{case} has no result: {reason}" for case, reason in study.failures.items()]


def data_warnings(data: Partition, budget: Budget) -> list[str]:
    """The warnings that hold for all experiments on these data."""
    return [*([SMOKE] if budget.name == "smoke" else []), *([SIMULATED] if data.truth is not None else [])]


# ---- pages ---------------------------------------------------------------------------------------------------------


def study_page(experiment: Experiment, study: Study, findings: Findings, command: str) -> Page:
    """The Page of one experiment."""
    rules = f"{PROTOCOL_RULES}; selected on S_va {report_label(study.design.select)}"
    unfinished = None
    if not study.finished:
        n_done, total = len(study.results) + len(study.failures), len(study.design.cases)
        what = "systems" if len(study.design.conditions) == 1 else "systems and conditions"
        missing = "so there is no answer yet and every number below is preliminary"
        unfinished = f"{n_done} of {total} {what} are done, {missing}. {RUN_AGAIN}"
    return Page(
        f"dubnb · {experiment.NAME.upper()}",
        experiment.TITLE,
        experiment.QUESTION,
        findings.answer if study.finished else [],
        [*_facts(study.design.source, study.budget), ("protocol", rules), *study.design.notes],
        [*findings.sections, winners_section(study)],
        command,
        study_warnings(study),
        unfinished,
    )


def index_page(
    experiments: Sequence[Experiment],
    complete: Mapping[str, Page],
    directory: str,
    data: Partition,
    budget: Budget,
    command: str,
) -> Page:
    """The Page that links to the reports. `complete`: the pages of finished experiments by name."""
    links = []
    for experiment in experiments:
        name, report = experiment.NAME, complete.get(experiment.NAME)
        written = os.path.exists(os.path.join(directory, name, REPORT))
        drawing = next((figure.drawing for figure in _figures_of_page(report)), None) if report else None
        href = f"{name}/{REPORT}" if written else None
        answer = report.answer if report else []
        links.append(Link(f"{name.upper()} · {experiment.TITLE}", href, report is not None, answer, drawing))
    missing = f"Complete: {len(complete)} of {len(experiments)} experiments. {RUN_AGAIN}"
    return Page(
        "dubnb",
        "The paper's experiments",
        "Bounding System-Induced Biases in Recommender Systems with A Randomized Dataset (Liu et al., TOIS 2023)",
        [],
        _facts(data, budget),
        [Section("Experiments", links)],
        command,
        data_warnings(data, budget),
        None if len(complete) == len(experiments) else missing,
    )


def _facts(data: Partition, budget: Budget) -> list[tuple[str, str]]:
    sizes = []
    for part, words in PART_WORDS.items():
        labels = data.triplets(part).labels
        n, positives = len(labels), int(labels.sum(dtype=np.float64))
        ratio = f" ({100 * positives / (n - positives):.1f} %)" if positives < n else ""
        sizes.append(f"{words} ({part}) {n:,}{ratio}")
    about = f"{data.name}: {data.n_users:,} users x {data.n_items:,} items{', graded' if data.graded else ''}"
    candidates = f"{budget.points} candidates for every system{budget.extensions_text()}"
    if budget.counts_inner:
        candidates = f"{budget.points} candidates for every system, or one fit of a system that tries more inside it"
    return [
        ("data", f"{about}, fingerprint {data.fingerprint[:12]}"),
        ("feedback (P/N)", "; ".join(sizes)),
        (f"budget {budget.name}", f"{candidates}, {budget.seeds} seeds for every winner; {budget.description}"),
    ]


def _figures_of_page(page: Page) -> Iterator[Figure]:
    """Every figure of a page, in order."""
    for section in page.sections:
        for part in section.parts:
            if isinstance(part, Gallery):
                yield from part.figures
            elif isinstance(part, Figure):
                yield part


# ---- files ---------------------------------------------------------------------------------------------------------


def results_frame(experiment: Experiment, study: Study, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """results.csv as a DataFrame: one number per row. `rows` are the further rows of the findings."""
    import pandas as pd

    own = [
        (case.condition, case.system.on, case.system.name, fit.seed, metric, value)
        for case in study.design.cases
        for fit in study.results.get(case, ())
        for metric, value in fit.metrics.items()
        if not metric.startswith("va_")
    ]
    frame = pd.DataFrame([*(dict(zip(COLUMNS[2:], row, strict=True)) for row in own), *rows], columns=list(COLUMNS))
    return frame.assign(experiment=experiment.NAME, protocol=PROTOCOL).astype({"seed": "Int64"})


def write_report(directory: str, experiment: Experiment, study: Study, findings: Findings, command: str) -> Page:
    """Write results.csv, results.md, report.html and each figure as an SVG file, each atomically."""
    page = study_page(experiment, study, findings, command)
    os.makedirs(os.path.join(directory, "figures"), exist_ok=True)
    drawings = [figure.drawing for figure in _figures_of_page(page)]
    texts = {os.path.join("figures", f"{drawn.name}.svg"): figures.standalone(drawn) for drawn in drawings}
    frame = results_frame(experiment, study, findings.rows)
    texts["results.csv"] = frame.map(spreadsheet_safe).to_csv(index=False, lineterminator="\n")
    texts |= {"results.md": html.render_markdown(page), REPORT: html.render(page)}
    for name, text in texts.items():
        write_text(os.path.join(directory, name), text)
    return page


def write_text(path: str, text: str) -> None:
    """Replace a file atomically."""
    with atomic_write(path, overwrite=True) as file:
        file.write(text.encode())


# ---- the output directory ------------------------------------------------------------------------------------------


def rerun_command(
    names: Sequence[str],
    data_words: Sequence[str],
    budget: str,
    seed: int,
    choice: Choice,
    out: Any,
    metric: str | None = None,
) -> str:
    """The command that makes the page again in the same directory; `names`: the command's, and an experiment's."""
    words = ["dubnb", *names, *data_words, "--budget", budget, "--seed", str(seed)]
    words += ["--metric", metric] if metric else []
    return shlex.join([*words, *choice.options(), "--out", os.fspath(out)])


def check_both_labels(data: Partition, whose: str = "") -> None:
    """Refuse a log without both labels in S_va, which chooses, or in S_te, which judges."""
    for part in ("S_va", "S_te"):
        labels = data.unseen(part).labels
        if not 0 < labels.sum() < len(labels):
            rule = "must hold both labels to choose and judge on: split the randomized log otherwise"
            raise InputError(f"{part}{whose} {rule}")


def check_output_dir(out: str | os.PathLike[str]) -> None:
    """Refuse a directory that holds anything else than an earlier run."""
    if not os.path.lexists(out):
        return
    if not os.path.isdir(out):
        raise InputError(f"--out {quote_path(out)} is a file: give a directory, which need not exist")
    if os.listdir(out) and not os.path.isdir(os.path.join(out, WORK)):
        raise InputError(f"--out {quote_path(out)} holds other files and no earlier run: give a new or empty directory")


def claim_output_dir(out: str | os.PathLike[str], asked: Mapping[str, Any]) -> str:
    """Record what the directory's reports are about, or refuse a directory with reports about something else.

    Makes the directory of the fits if it is missing, and returns its path.
    """
    work, path = os.path.join(out, WORK), os.path.join(out, ABOUT_FILE)
    os.makedirs(work, exist_ok=True)
    try:
        with open(path, encoding="utf-8") as file:
            held = json.load(file)
    except FileNotFoundError:
        with atomic_write(path) as new:
            new.write((json.dumps(asked, indent=2) + "\n").encode())
        return work
    except (OSError, ValueError):
        raise InputError(f"{quote_path(path)} cannot be read: remove it if the reports beside it may go") from None
    for name, value in asked.items():
        if held.get(name) != value:
            was = f"{name} {json.dumps(held.get(name))}, not {json.dumps(value)}"
            raise InputError(
                f"--out {quote_path(out)} holds a report of {was}: give another --out, or ask for the same"
            )
    return work


# ---- are probabilities right? ----------------------------------------------------------------------------------------


CALIBRATION_TITLE = "Are the probabilities right?"
ALWAYS_DRAWN = ("base", "dub")  # drawn in addition to the leader
CALIBRATION_NOTE = (
    "Calibration error: mean difference between predicted and observed shares, over {bins} groups of S_te's pairs. "
    "Groups have equal sizes and go by predicted probability. Means over seeds. As trained: what the loss itself makes "
    "of scores. "
    "Calibrated: Platt scaling on S_va, which is what predict gives; ranking does not change.{truth}"
)
TRUTH_NOTE = " Off the truth: the same against the simulation's true probabilities, without the noise of labels."
CALIBRATION_CAPTION = (
    "The first seed's fit (the table has means over seeds). Groups of {pairs:,} test pairs. Dots: calibrated on S_va, "
    "with 95 % intervals of the observed share; diamonds: as trained{truth}. On the dashed line, predictions are "
    "right. Axes by square roots."
)


def calibration_sections(study: Study, cases: Sequence[Case]) -> list[Section]:
    """Diagrams of the leader, base and dub on every backbone, and the errors of all done cases except baselines."""
    able = [case for case in cases if case in study.results and not case.system.is_baseline]
    drawn = []
    for backbone in study.backbones():
        own = [case for case in able if case.system.backbone == backbone]
        leader = study.ranked(own, study.design.select)[:1]
        drawn += [
            _reliability_figure(study, case) for case in own if case.system.name in ALWAYS_DRAWN or case in leader
        ]
    return [Section(CALIBRATION_TITLE, [Gallery(drawn), _calibration_table(study, able)])] if drawn else []


def reliability_groups(
    data: Partition, probabilities: np.ndarray, uncalibrated: np.ndarray
) -> figures.ProbabilityGroups:
    """Group S_te's pairs outside the biased log: as calibrated, as trained, and with the truth if it is known."""
    S_te, unseen = data.unseen("S_te"), ~data.in_both("S_te")
    probabilities, uncalibrated = probabilities[unseen], uncalibrated[unseen]
    weights = data.judging_weights("S_te")
    sizes = calibration.reliability_bins(probabilities, S_te.labels)[:, 2]
    if weights is not None:  # intervals use the effective number of pairs
        sizes *= weights.sum() ** 2 / (weights @ weights) / len(weights)
    predicted, observed = calibration.reliability_bins(probabilities, S_te.labels, weights=weights)[:, :2].T
    rates = [
        stats.binomial_rate(round(share * int(n)), max(int(n), 1)) for share, n in zip(observed, sizes, strict=True)
    ]
    trained = calibration.reliability_bins(uncalibrated, S_te.labels, weights=weights)[:, :2].T
    truth = None
    if data.truth is not None:
        true = data.truth.probability(S_te.users, S_te.items)
        truth = calibration.reliability_bins(probabilities, true, weights=weights)[:, 1]
    intervals = np.array([(rate.low, rate.high) for rate in rates])
    return figures.ProbabilityGroups(np.stack([predicted, observed]), trained, intervals, truth, int(sizes[0]))


def _reliability_figure(study: Study, case: Case) -> Figure:
    name = f"reliability-{case.system.on}-{case.system.name.replace(' ', '-')}"
    first = study.results[case][0].output
    groups = reliability_groups(study.design.conditions[case.condition], first.probabilities, first.uncalibrated)
    truth = "" if groups.truth is None else "; bars across: the truth of the dots' pairs"
    drawing = figures.reliability_diagram(name, case.system.name, groups)
    return Figure(
        f"{case.system.name} ({case.system.on})", drawing, CALIBRATION_CAPTION.format(pairs=groups.pairs, truth=truth)
    )


def calibration_errors(study: Study, case: Case) -> list[float]:
    """Calibration errors as trained and calibrated, then both against the truth if it is known; means over seeds."""
    data = study.design.conditions[case.condition]
    S_te, unseen = data.unseen("S_te"), ~data.in_both("S_te")
    against = [S_te.labels] + ([] if data.truth is None else [data.truth.probability(S_te.users, S_te.items)])
    outputs, weights = [fit.output for fit in study.results[case]], data.judging_weights("S_te")
    return [
        float(np.mean([calibration.expected_calibration_error(p[unseen], right, weights) for p in by_seed]))
        for right in against
        for by_seed in zip(*((output.uncalibrated, output.probabilities) for output in outputs), strict=True)
    ]


def _calibration_table(study: Study, able: Sequence[Case]) -> Table:
    header = ["system", "backbone", "error as trained", "error calibrated"]
    with_truth = study.design.source.truth is not None
    header += ["off the truth as trained", "off the truth calibrated"] if with_truth else []
    rows: list[list[Cell]] = [
        [case_label(study, case), case.system.on, *map(Value, calibration_errors(study, case))] for case in able
    ]
    return Table(
        "", header, rows, CALIBRATION_NOTE.format(bins=calibration.BINS, truth=TRUTH_NOTE if with_truth else "")
    )
