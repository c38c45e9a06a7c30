"""Figures for report pages: SVG elements in the page's fonts and colours, light or dark.

Matplotlib draws with the colours of the light theme. They then become the page's CSS variables, which the dark theme
sets; text stays text. The same numbers give the same bytes: no date, and ids that depend on the figure's name alone.
"""

from __future__ import annotations

import colorsys
import html
import io
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dubnb.report.plots import require_matplotlib, spread_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# CSS variable -> colour of the light theme; page.css sets those of the dark theme
SYSTEM_COLOURS = {
    "base": "#d55e00",
    "unif": "#7b8794",
    "combine": "#b98a00",
    "ips": "#2f8f46",
    "cause": "#c2549a",
    "bridge": "#0d8fa3",
    "autodebias": "#7a4fc0",
    "dub": "#0b5fc7",
    "bridge-exact": "#08626f",
    "dub-exact": "#2a3f9e",
    "dub-x-binary": "#c2183f",
    "dub-x-graded": "#7a1f1f",
    "dub-x-rates": "#b0367f",
}
COLOURS = {"ink": "#1a2230", "soft": "#5c6879", "grid": "#e4e8ed", "card": "#ffffff", **SYSTEM_COLOURS}
# Of the colours of systems that have none above: hues in golden steps from FIRST_HUE, with lightness in turn, because
# hues alone are too alike. With these numbers all differ, and text on white has a contrast of 3 at least.
FIRST_HUE, LIGHTNESS, SATURATION = 0.76, (0.32, 0.22, 0.42), 0.85
MARKERS = "svD^PXpohd<>"
FONTS = ["DejaVu Sans"]  # Matplotlib measures text with this font; the page draws it in its own
WIDTH = 4.7  # inches of 72 units: about as wide as a phone, so that text keeps its size there
LABEL_GAP = 0.058  # distance of labels at the ends of lines, as a share of the axes' height
FEW = 20  # a line with fewer points has markers
DASHES = (0, (4, 3))

Numbers = Mapping[str, "np.ndarray"]  # system -> one value per seed


class Drawing(NamedTuple):
    """A figure: the name of its file, and an SVG element for an HTML page."""

    name: str
    svg: str
    width: float
    height: float


def colour(system: str) -> str:
    """A system's colour: its own, or one by its place among the registered methods, else grey; variants are darker."""
    from dubnb.methods import METHODS

    name = _css_name(system)
    if name in SYSTEM_COLOURS:
        return SYSTEM_COLOURS[name]
    method, _, variant = system.partition(" ")
    if variant and method in METHODS and (own := colour(method)) != COLOURS["soft"]:
        return "#" + "".join(f"{int(own[k : k + 2], 16) * 3 // 5:02x}" for k in (1, 3, 5))
    others = [each for each in METHODS if _css_name(each) not in SYSTEM_COLOURS and not METHODS[each].is_baseline]
    if system not in others:
        return COLOURS["soft"]
    place = others.index(system)
    hue, light = (FIRST_HUE + place * (math.sqrt(5) - 1) / 2) % 1, LIGHTNESS[place % len(LIGHTNESS)]
    return "#" + "".join(f"{round(255 * each):02x}" for each in colorsys.hls_to_rgb(hue, light, SATURATION))


def _css_name(system: str) -> str:
    return "dub-x-binary" if system == "dub-x" else system.replace(" ", "-")


def css_colour(system: str) -> str | None:
    """A system's colour in CSS, for light and dark pages; None if it has none of its own."""
    own, name = colour(system), _css_name(system)
    return None if own == COLOURS["soft"] else f"var(--{name}, {own})" if name in SYSTEM_COLOURS else own


def dots(
    name: str, values: Numbers, xlabel: str, reference: Mapping[str, float] | None = None, zero: float | None = None
) -> Drawing:
    """A row per system, sorted: a small dot per seed, and a large dot with the value for their mean.

    `reference`: numbers drawn as open diamonds; `zero`: the place of a vertical line.
    """
    reference = reference or {}
    order = sorted(values, key=lambda system: -np.mean(values[system]))
    figure, axes = new_axes(WIDTH, 0.75 + 0.34 * len(order))
    if zero is not None:
        axes.axvline(zero, color=COLOURS["soft"], linewidth=1, linestyle=DASHES, zorder=1)
    for row, system in enumerate(order):
        own, mean = colour(system), float(np.mean(values[system]))
        axes.plot(values[system], np.full(len(values[system]), row), "o", color=own, alpha=0.35, markersize=4.5, mew=0)
        axes.plot(mean, row, "o", color=own, markersize=8.5, mew=0)
        if system in reference:
            axes.plot(reference[system], row, "D", color=COLOURS["ink"], markersize=6, mfc="none", mew=1.2)
        text, at = f"{mean:+z.4f}" if zero is not None else f"{mean:.4f}", ("axes fraction", "data")
        axes.annotate(text, (1.02, row), xycoords=at, va="center", fontsize=9.5, color=own, weight="bold")
    _system_rows(axes, order)
    axes.margins(x=0.06)
    axes.set_xlabel(xlabel)
    style_axes(axes, "x")
    return drawing(figure, name, f"{xlabel} of {', '.join(order)}")


def pairs(
    name: str,
    values: Mapping[str, tuple[float, float]],
    series: tuple[str, str],
    xlabel: str,
    line: float | None = None,
) -> Drawing:
    """A row per system with two numbers of one kind, joined: a dot and a diamond; sorted by the first.

    `line`: the place of a vertical line. A number that is nan is not drawn.
    """
    order = sorted(values, key=lambda system: -np.nan_to_num(values[system][0], nan=-np.inf))
    figure, axes = new_axes(WIDTH, 1.15 + 0.34 * len(order))
    if line is not None:
        axes.axvline(line, color=COLOURS["soft"], linewidth=1, linestyle=DASHES, zorder=1)
    for row, system in enumerate(order):
        own, (first, second) = colour(system), values[system]
        axes.plot([first, second], [row, row], color=own, linewidth=1.6, alpha=0.45)
        axes.plot(first, row, "o", color=own, markersize=8.5, mew=0)
        axes.plot(second, row, "D", color=own, markersize=7, mfc=COLOURS["card"], mew=1.7)
    _system_rows(axes, order)
    axes.margins(x=0.07)
    axes.set_xlabel(xlabel)
    for place, (marker, word) in enumerate(zip("●◇", series, strict=True)):
        axes.annotate(f"{marker} {word}", (0.5 * place, 1.02), xycoords="axes fraction", fontsize=9.5, va="bottom")
    style_axes(axes, "x")
    return drawing(figure, name, f"{xlabel}: {' and '.join(series)}, for {', '.join(order)}")


def _system_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.locator_params(axis="x", nbins=5)


Line = tuple["np.ndarray", "np.ndarray | None"]  # means, and spreads if there are some


def curves(
    name: str,
    xs: Sequence[float] | np.ndarray,
    lines: Mapping[str, Line],
    labels: tuple[str, str],
    mark: float | None = None,
    bold: Collection[str] = (),
) -> Drawing:
    """Lines with bands, named at their ends.

    `labels`: of x and y; `mark`: the place of a vertical line; `bold`: systems with a thick line.
    """
    figure, axes = new_axes(WIDTH, max(3.6, 0.29 * len(lines)))
    if mark is not None:
        axes.axvline(mark, color=COLOURS["soft"], linewidth=1, linestyle=DASHES, zorder=1)
    for number, (system, (means, spreads)) in enumerate(lines.items()):
        own, means = colour(system), np.asarray(means, dtype=float)
        if spreads is not None:
            spread = np.nan_to_num(np.asarray(spreads, dtype=float))
            axes.fill_between(xs, means - spread, means + spread, color=own, alpha=0.13, linewidth=0)
        marker = MARKERS[number % len(MARKERS)] if len(xs) < FEW else None
        thick = 2.6 if system in bold else 1.6
        axes.plot(xs, means, color=own, linewidth=thick, marker=marker, markersize=5.5, mew=0)
    if len(xs) < FEW:
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
    else:
        axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.margins(x=0.03)
    style_axes(axes, "y")
    ends = {system: float(np.asarray(means)[-1]) for system, (means, _) in lines.items()}
    name_ends(axes, ends, LABEL_GAP, bold, xs[-1])
    return drawing(figure, name, f"{labels[1]} by {labels[0]}, for {', '.join(lines)}")


def name_ends(axes: Axes, ends: Mapping[str, float], gap: float, bold: Collection[str], x: float | None = None) -> None:
    """Write each line's name right of the axes at the height of its end, moved apart so that none touch.

    `x`: the place of the lines' ends, to join each name to its line.
    """
    finite = {system: end for system, end in ends.items() if np.isfinite(end)}
    low, high = axes.get_ylim()
    order = sorted(finite, key=lambda system: finite[system])
    wanted = np.array([(finite[system] - low) / (high - low) for system in order])
    for system, place in zip(order, spread_out(wanted, gap), strict=True):
        own = colour(system)
        style: dict[str, Any] = {"va": "center", "fontsize": 9.5, "color": own}
        style["weight"] = "bold" if system in bold else "normal"
        if x is None:
            axes.annotate(system, (1.02, place), xycoords="axes fraction", **style)
        else:
            arrow = {"arrowstyle": "-", "color": own, "lw": 0.6, "shrinkA": 1, "shrinkB": 3}
            place_at = (1.035, place)
            axes.annotate(system, (x, finite[system]), place_at, textcoords="axes fraction", arrowprops=arrow, **style)


def rank_cliques(ranks: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """(first, last) of the largest runs of sorted ranks whose ends are at most `difference` apart."""
    found: list[tuple[int, int]] = []
    for first in range(len(ranks)):
        last = max(k for k in range(first, len(ranks)) if ranks[k] - ranks[first] <= difference)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def critical_difference(name: str, ranks: Mapping[str, float], difference: float) -> Drawing:
    """Mean ranks on a line, the best at the left; a bar joins systems that are at most `difference` apart."""
    order = sorted(ranks, key=lambda system: ranks[system])
    values, k = [ranks[system] for system in order], len(ranks)
    cliques = rank_cliques(values, difference)
    left, row, bar = -(-k // 2), 0.26, 0.13
    top = 0.2 + bar * len(cliques)
    figure, axes = new_axes(WIDTH, 0.75 + top + row * left)
    axes.set_xlim(1 - 0.55 * (k - 1), k + 0.55 * (k - 1))
    axes.set_ylim(-(top + row * left), 0.75)
    axes.axis("off")
    axes.plot([1, k], [0, 0], color=COLOURS["ink"], linewidth=1.2)
    step = max(1, round((k - 1) / 6))
    for tick in range(1, k + 1, step):
        axes.plot([tick, tick], [0, 0.06], color=COLOURS["ink"], linewidth=1)
        axes.annotate(str(tick), (tick, 0.09), ha="center", va="bottom", fontsize=9, color=COLOURS["soft"])
    length = min(difference, k - 1)
    axes.plot([1, 1 + length], [0.42, 0.42], color=COLOURS["ink"], linewidth=2)
    end = "" if length == difference else ", longer than the line"
    text = f"critical difference {difference:.2f}{end}"
    axes.annotate(text, (1, 0.48), va="bottom", fontsize=9, color=COLOURS["ink"])
    for number, (first, last) in enumerate(cliques):
        y = -0.12 - bar * number
        axes.plot([values[first], values[last]], [y, y], color=COLOURS["ink"], linewidth=3, solid_capstyle="round")
    for number, system in enumerate(order):
        at_left = number < left
        y = -top - row * (number if at_left else k - 1 - number)
        edge = 1 - 0.03 * (k - 1) if at_left else k + 0.03 * (k - 1)
        own = colour(system)
        axes.plot([values[number], values[number], edge], [0, y, y], color=own, linewidth=0.9)
        words = (f"{system} ", f"{values[number]:.1f}")
        text, side = "".join(words if at_left else (words[1], " ", system)), "right" if at_left else "left"
        axes.annotate(text, (edge, y), ha=side, va="center", fontsize=9, color=own)
    return drawing(figure, name, f"mean ranks of {', '.join(order)}; critical difference {difference:.2f}")


class ProbabilityGroups(NamedTuple):
    """Groups of pairs by predicted probability, for a reliability diagram."""

    calibrated: np.ndarray  # (2, groups): predicted, observed
    trained: np.ndarray  # the same before calibration, in groups of its own
    intervals: np.ndarray  # (groups, 2): intervals of the observed shares of the calibrated groups
    truth: np.ndarray | None  # the true shares of the calibrated groups, if they are known
    pairs: int  # the size of a group


PROBABILITY_TICKS = (0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)


def reliability_diagram(name: str, system: str, groups: ProbabilityGroups) -> Drawing:
    """Predicted against observed shares: dots with intervals as calibrated, diamonds as trained, bars for the truth.

    The axes are scaled by square roots, because most pairs have small probabilities.
    """
    figure, axes = new_axes(WIDTH, 4.3)
    own, (x, y) = colour(system), groups.calibrated
    top = min(1.0, 1.05 * max(groups.trained.max(), x.max(), groups.intervals.max()))
    for axis, limits in ((axes.set_xscale, axes.set_xlim), (axes.set_yscale, axes.set_ylim)):
        axis("function", functions=(lambda p: np.sqrt(np.maximum(p, 0.0)), np.square))
        limits(0.0, top)
    axes.plot([0, top], [0, top], color=COLOURS["soft"], linewidth=1, linestyle=DASHES, zorder=1)
    hollow: dict[str, Any] = {"mfc": COLOURS["card"], "mew": 1.2, "clip_on": False}
    axes.plot(*groups.trained, "D-", color=own, markersize=5.5, linewidth=1, alpha=0.55, **hollow)
    axes.vlines(x, *groups.intervals.T, color=own, linewidth=1.4)
    axes.plot(x, y, "o", color=own, markersize=6.5, mew=0, clip_on=False)
    if groups.truth is not None:
        axes.plot(x, groups.truth, "_", color=COLOURS["ink"], markersize=11, mew=1.8, clip_on=False)
    ticks = [tick for tick in PROBABILITY_TICKS if tick <= top]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("predicted probability")
    axes.set_ylabel("observed share of positives")
    words = ("● calibrated", "◇ as trained", *(() if groups.truth is None else ("▬ truth",)))
    for place, word in enumerate(words):
        axes.annotate(word, (0.36 * place, 1.02), xycoords="axes fraction", fontsize=9.5, va="bottom")
    style_axes(axes, "y")
    return drawing(figure, name, f"observed share of positives by predicted probability, {system}")


def new_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of a size in inches, and its axes, without a background."""
    figure = require_matplotlib()(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.patch.set_visible(False)
    figure.patch.set_visible(False)
    return figure, axes


def style_axes(axes: Axes, grid: Literal["x", "y"]) -> None:
    """The style of all figures: a light grid along "x" or "y", no frame."""
    axes.grid(axis=grid, color=COLOURS["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=COLOURS["ink"], length=0, labelsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(COLOURS["grid"])
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(COLOURS["soft"])
        label.set_fontsize(9.5)
    for text in axes.texts:
        if text.get_color() == "black":
            text.set_color(COLOURS["ink"])


def drawing(figure: Figure, name: str, description: str) -> Drawing:
    """The figure for an HTML page: ids begin with its name, and colours are the page's variables."""
    import matplotlib

    text = io.StringIO()
    settings: Any = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "axes.unicode_minus": False,
        "font.family": "sans-serif",
        "font.sans-serif": FONTS,
    }
    with matplotlib.rc_context(settings):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("font-family: 'DejaVu Sans', sans-serif", "font-family: inherit")
    for own, stand_in in COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{own}, {stand_in})")
    width, height = (float(72 * inches) for inches in figure.get_size_inches())
    label = html.escape(description, quote=True)
    head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">'
    return Drawing(name, head + svg[svg.index(">") + 1 :], width, height)


def standalone(drawn: Drawing) -> str:
    """The figure as an SVG file of its own: light colours on white."""
    svg = re.sub(r"var\(--[a-z-]+, (#[0-9a-f]{6})\)", r"\1", drawn.svg)
    head, body = svg.replace("font-family: inherit", "font-family: sans-serif").split(">", 1)
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = head.replace("<svg", f'<svg {spaces} width="{drawn.width:g}" height="{drawn.height:g}"', 1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}><rect width="100%" height="100%" fill="#ffffff"/>{body}'
