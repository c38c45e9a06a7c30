"""The pages of `dubnb bound`, `audit` and `plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb.report import figures
from dubnb.report.figures import COLOURS, DASHES, WIDTH, Drawing, colour, drawing, name_ends, new_axes, style_axes
from dubnb.report.page import CheckedQuestion, Checklist, Figure, Gallery, Page, Section, Table, Value
from dubnb.report.plots import require_matplotlib
from dubnb.theory.audit import INFORMATION, NO, SIGNS, UNKNOWN, YES

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.theory.audit import Answer, Audit, Exposure
    from dubnb.theory.bound import Bound, Trace
    from dubnb.theory.plan import Plan

PANELS = {  # column -> (axis, caption)
    "a": ("term a", "S_t's labels against M_c: high where a method does not train on S_t."),
    "b": ("term b", "R^t - R^c against M_c, on S_c: no method can train on it, because R^t is unknown there."),
    "c": ("term c", "S_c's labels against M_c: high where a method does not train on S_c."),
    "d": ("term d", "M_t's predictions against M_c, on S_u: high where a method leaves unseen pairs alone."),
    "e": ("term e", "M_t's errors against M_c, on S_t: low where M_c has memorised S_t."),
    "sum": ("a + b + c + d + e + bias", "The bound without its slack, which is the same for all."),
    "ideal": ("ideal loss", "What the bound is for: the loss over all of D, against R^t."),
    "auc": ("AUC on S_te", "What users see of it."),
}


LABEL_GAP = 0.075  # distance of labels at the ends of lines, as a share of the axes' height
BOLD = ("dub",)  # the paper's own method


def trace_section(trace: Trace) -> Section:
    """A panel per term with its values by epoch, and a table of the last epoch."""
    panels = []
    for name, (label, about) in PANELS.items():
        figure, axes = new_axes(WIDTH, 3.0)
        lines = _draw_lines(axes, trace, name)
        drawn = drawing(figure, f"trace-{name}", f"{label} by epoch, for {', '.join(lines)}")
        panels.append(Figure("", drawn, about))
    last = trace.last()
    names = [name for name in PANELS if name in last]
    best = {name: (last[name].max() if name == "auc" else last[name].min()) for name in names}
    rows = [
        [row["method"], *(Value(float(row[name]), best=bool(row[name] == best[name])) for name in names)]
        for _, row in last.iterrows()
    ]
    note = "In bold the lowest (AUC: the highest): a method that neglects a term shows it as a large number."
    table = Table("After the last epoch", ["method", *names], rows, note)
    title = f"The bound while methods train (loss {trace.loss}, {trace.data})"
    return Section(title, [Gallery(panels), table])


def _draw_lines(axes: Any, trace: Trace, term: str) -> list[str]:
    """Draw one term, a line per method, each over its own epochs, with a dot where it ends; returns the methods."""
    by_method = trace.rows.groupby("method", sort=False)
    lines = {method: (rows["epoch"].to_numpy(), rows[term].to_numpy()) for method, rows in by_method}
    for system, (xs, ys) in lines.items():
        axes.plot(xs, ys, color=colour(system), linewidth=2.4 if system == "dub" else 1.5)
        axes.plot(xs[-1:], ys[-1:], "o", color=colour(system), markersize=5, mew=0)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("epoch")
    axes.set_ylabel(PANELS[term][0])
    style_axes(axes, "y")
    name_ends(axes, {system: float(ys[-1]) for system, (_, ys) in lines.items()}, LABEL_GAP, BOLD)
    return list(lines)


def trace_svg(trace: Trace) -> str:
    """All panels of a trace in one SVG file."""
    figure = require_matplotlib()(figsize=(2 * WIDTH, 2.7 * len(PANELS) / 2), layout="constrained")
    figure.patch.set_visible(False)
    for number, term in enumerate(PANELS):
        axes = figure.add_subplot(len(PANELS) // 2, 2, number + 1)
        axes.patch.set_visible(False)
        _draw_lines(axes, trace, term)
    drawn = drawing(figure, "trace", f"every term of the bound by epoch, loss {trace.loss}, {trace.data}")
    return figures.standalone(drawn)


def bound_section(bound: Bound) -> Section:
    """The parts of a bound: a bar for each, and the table of `Bound.text`."""
    from dubnb.theory.bound import interval_text

    parts = bound.terms
    lengths = {name: (term.value if term.value is not None else term.estimate) for name, term in parts.items()}
    known = {name: value for name, value in lengths.items() if value is not None}
    ideal = bound.ideal.value if bound.ideal.value is not None else bound.ideal.estimate
    svg = stacked_steps("bound-parts", known, ideal)
    caption = "Each part starts where the one before it ends, so that the last end is the sum. Dashed: the ideal loss."
    header = ["part", "value", "at least", "at most", "95 % interval", "what"]
    rows: list[Sequence[Any]] = []
    for name, term in [*parts.items(), (bound.title, bound.total), ("ideal", bound.ideal)]:
        unknown = term.value is None
        ends = (term.low, term.high) if unknown else (None, None)
        what = f"{term.meaning}; {term.how}" if term.how else term.meaning
        interval = interval_text(term) or ""
        rows.append([name, Value(term.value), *(Value(end) for end in ends), interval, what])
    title = f"{bound.theorem}, loss {bound.loss}: {bound.method} on {bound.data}"
    table = Table("", header, [list(row) for row in rows], " ".join(bound.notes))
    parts_shown: list[Any] = [Figure("", svg, caption), table]
    if bound.gap:
        rows = [[cause, Value(value)] for cause, value in bound.gap.items()]
        parts_shown.append(Table("Sum minus ideal loss, by cause", ["cause", "difference"], [list(r) for r in rows]))
    return Section(title, parts_shown)


def stacked_steps(name: str, lengths: Mapping[str, float], ideal: float | None) -> Drawing:
    """Bars, each from where the one above ends, and a dashed vertical line at the ideal loss."""
    figure, axes = new_axes(WIDTH, 0.9 + 0.32 * len(lengths))
    start = 0.0
    for row, (_, length) in enumerate(lengths.items()):
        axes.barh(row, length, 0.62, left=start, color=colour("dub" if length >= 0 else "base"), alpha=0.85)
        at = (max(start, start + length), row)
        text = f"{length:+.4f}"
        axes.annotate(text, at, (4, 0), textcoords="offset points", va="center", fontsize=9, color=COLOURS["soft"])
        start += length
    if ideal is not None:
        axes.axvline(ideal, color=COLOURS["ink"], linewidth=1.2, linestyle=DASHES, zorder=1)
        axes.annotate(f"ideal loss {ideal:.4f}", (ideal, -0.75), ha="center", va="bottom", fontsize=9)
    axes.set_yticks(range(len(lengths)), list(lengths))
    axes.set_ylim(len(lengths) - 0.4, -0.8)
    axes.margins(x=0.14)
    style_axes(axes, "x")
    return drawing(figure, name, f"the parts of the bound: {', '.join(lengths)}")


def bound_page(trace: Trace, sections: list[Section], data: Partition, command: str) -> Page:
    """The page of `dubnb bound --plot`."""
    question = "Which terms of the bound does a method lower, which does it neglect, and does the ideal loss follow?"
    return Page("bound", "The bound, seen", question, trace.answer(), data_facts(data), sections, command)


def data_facts(data: Partition) -> list[tuple[str, str]]:
    """The facts about the data on a page."""
    sizes = "; ".join(f"{part} {data.size(part):,}" for part in ("S_c", "S_t", "S_va", "S_te"))
    shape = f"{data.n_users:,} users x {data.n_items:,} items, fingerprint {data.fingerprint[:12]}"
    return [("data", f"{data.name}: {shape}"), ("feedback", sizes)]


TONES = {YES: "good", NO: "bad", UNKNOWN: "open", INFORMATION: "plain"}


def _shown_answer(answer: Answer) -> CheckedQuestion:
    sign, tone = SIGNS[answer.verdict], TONES[answer.verdict]
    return CheckedQuestion(sign, tone, answer.question, answer.reason, answer.p_text().strip(" ()"))


def audit_page(audit: Audit, data: Partition, command: str) -> Page:
    """The page of `dubnb audit`."""
    verdicts = [_shown_answer(answer) for answer in audit.answers if answer.verdict != INFORMATION]
    information = [_shown_answer(answer) for answer in audit.answers if answer.verdict == INFORMATION]
    note = (
        f"p-values from {audit.n_draws:,} uniform logs for the same users; Holm's correction over all of them: a "
        f"uniform policy gets any NO with a probability of at most {audit.alpha:g}. YES means that the test found no "
        "evidence against it."
    )
    facts: list[list[Any]] = [
        [f.name, Value(f.value, spread="" if f.low is None else f"{f.low:.4f}..{f.high:.4f}"), f.meaning]
        for f in audit.facts
    ]
    chart: list[Any] = []
    if audit.exposures:
        caption = (
            "Tenths of the items, from the rarest in the biased log (left) to the most popular. Points: how often the "
            "randomized log shows them, over what a uniform policy would show. Grey: where 95 of 100 points of a "
            "uniform log lie. Red points lie outside."
        )
        chart = [Figure("How often items are shown", exposure_figure(audit.exposures), caption)]
    informs = "What the policy does not choose: who comes, how often, when. Conclusions hold for these users and times."
    sections = [
        Section("Does the randomized log show items at random?", [Checklist("", verdicts, note), *chart]),
        Section("For information", [Checklist("", information, informs)]),
        Section(
            "How far is the biased log (S_c) from uniform?", [Table("", ["what", "value (95 %)", "meaning"], facts)]
        ),
    ]
    question = "Can what is measured on the randomized log be trusted, and how biased is the rest?"
    title = f"{data.name}: is it random?"
    return Page("audit", title, question, [audit.summary], data_facts(data), sections, command, warnings=audit.warnings)


def exposure_figure(exposures: Sequence[Exposure]) -> Drawing:
    """Ratios of shown to expected by tenths of popularity, with the band of uniform logs."""
    figure, axes = new_axes(WIDTH, 2.7)
    due = np.array([max(each.expected, 1e-12) for each in exposures])
    ratios = np.array([each.shown for each in exposures]) / due
    ends = [np.array([each[k] for each in exposures]) / due for k in (4, 5)]
    places = np.array([50 * (each.first + each.last) for each in exposures])
    width = 100 / len(exposures)
    axes.bar(places, ends[1] - ends[0], width * 0.96, bottom=ends[0], color=COLOURS["soft"], alpha=0.22, linewidth=0)
    axes.axhline(1.0, color=COLOURS["soft"], linewidth=1, linestyle=DASHES, zorder=1)
    inside = (ratios >= ends[0]) & (ratios <= ends[1])
    for chosen, own in ((inside, COLOURS["dub"]), (~inside, COLOURS["dub-x-binary"])):
        axes.plot(places[chosen], ratios[chosen], "o", color=own, markersize=7.5, mew=0)
    reach = 1.15 * max(0.02, float(np.abs(np.concatenate([ratios, *ends]) - 1).max()))
    axes.set_ylim(1 - reach, 1 + reach)
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 50, 100], ["rarest", "popularity in the biased log", "most popular"])
    ticks = axes.get_xticklabels()
    ticks[0].set_horizontalalignment("left")
    ticks[-1].set_horizontalalignment("right")
    axes.set_ylabel("shown / uniform")
    style_axes(axes, "y")
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return drawing(figure, "audit-items", f"shown over expected by tenths of popularity: {shown}")


METRIC_NAMES = {"auc": "AUC", "ndcg": "nDCG"}


def plan_page(plan: Plan, data: Partition, command: str) -> Page:
    """The page of `dubnb plan`."""
    from dubnb.theory.plan import price_text

    figures_of = [
        Figure(
            METRIC_NAMES[metric],
            plan_figure(plan, metric),
            "Dots: measured, mean over fits. Dashed, right of the vertical line: extrapolated. Bands: 90 %.",
        )
        for metric in METRIC_NAMES
    ]
    tables_of = [_plan_table(plan, metric) for metric in METRIC_NAMES]
    question = "What would more randomized traffic buy, and what would it cost?"
    facts = [*data_facts(data), ("budget", plan.budget), ("judged on", f"{plan.n_test:,} pairs of S_te")]
    facts += [("how", note) for note in plan.notes]
    sections = [Section("Learning curves", [Gallery(figures_of), *tables_of])]
    answer = [plan.sentence, plan.caveat, price_text(plan.price)]
    title = f"{plan.data}: how much random traffic?"
    return Page("plan", title, question, answer, facts, sections, command)


def _plan_table(plan: Plan, metric: str) -> Table:
    """Means where measured, middles with bands beyond."""
    curves = [curve for (_, own), curve in plan.curves.items() if own == metric]
    beyond = plan.beyond()
    header = [METRIC_NAMES[metric], *(f"{n:,}" for n in curves[0].sizes), *(f"{n:,.0f}*" for n in beyond)]
    rows: list[list[Any]] = []
    for curve in curves:
        row: list[Any] = [curve.method]
        row += [Value(float(np.mean(own)), spread=f"±{np.std(own, ddof=1):.4f}") for own in curve.values]
        if beyond:
            bands = zip(*curve.law.band(np.array(beyond)), strict=True)
            row += [Value(float(m), spread=f"{lo:.4f}..{hi:.4f}") for m, lo, hi in bands]
        rows.append(row)
    note = "By the number of randomized pairs trained on. *: extrapolated by a power law, with its 90 % band."
    return Table("", header, rows, note)


def plan_figure(plan: Plan, metric: str) -> Drawing:
    """A line per method over sizes, measured and beyond."""
    figure, axes = new_axes(WIDTH, 3.6)
    curves = {method: curve for (method, own), curve in plan.curves.items() if own == metric}
    sizes = next(iter(curves.values())).sizes
    grid = np.geomspace(sizes[0], max([sizes[-1], *plan.beyond()]), 60)
    inside, outside = grid[grid <= sizes[-1] * 1.0001], grid[grid >= sizes[-1] * 0.9999]
    ends = {}
    for method, curve in curves.items():
        own = colour(method)
        middle, low, high = curve.law.band(grid)
        axes.fill_between(grid, low, high, color=own, alpha=0.12, linewidth=0)
        axes.plot(inside, middle[: len(inside)], color=own, linewidth=1.6)
        axes.plot(outside, middle[len(grid) - len(outside) :], color=own, linewidth=1.6, linestyle=(0, (3, 2)))
        axes.plot(curve.sizes, curve.means(), "o", color=own, markersize=4.5, mew=0)
        ends[method] = float(middle[-1])
    axes.set_xscale("log")
    axes.axvline(sizes[-1], color=COLOURS["soft"], linewidth=1, linestyle=DASHES, zorder=1)
    ticks = sorted({sizes[0], *(n for n in (sizes[-1], plan.n_random) if 3 * n <= grid[-1]), grid[-1]})
    ticks = [n for n, after in zip(ticks, [*ticks[1:], np.inf], strict=True) if after >= 3 * n]  # else labels overlap
    axes.set_xticks(ticks, [f"{n:,.0f}" for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel("randomized pairs trained on")
    axes.set_ylabel(METRIC_NAMES[metric])
    style_axes(axes, "y")
    name_ends(axes, ends, LABEL_GAP, BOLD)
    return drawing(figure, f"plan-{metric}", f"{METRIC_NAMES[metric]} by randomized pairs")
