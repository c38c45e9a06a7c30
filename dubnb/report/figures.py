"""Figures for report pages: SVG elements that take the page's fonts and colours, light or dark.

Matplotlib draws with stand-in colours, which become the page's CSS variables afterwards; text stays text. The same
numbers give the same bytes: no date, and ids that depend on the figure's name alone.
"""

import html
import io
import re

import numpy as np

from dubnb.report.plots import require_matplotlib

# CSS variable -> stand-in colour (the light theme's own, so that the SVG is right outside a page too)
COLOURS = {
    "ink": "#1a2230",
    "soft": "#5c6879",
    "grid": "#e4e8ed",
    "card": "#ffffff",
    "base": "#d55e00",
    "unif": "#7b8794",
    "combine": "#b98a00",
    "ips": "#2f8f46",
    "cause": "#c2549a",
    "bridge": "#0d8fa3",
    "autodebias": "#7a4fc0",
    "dub": "#0b5fc7",
}
MARKERS = {
    "base": "s",
    "unif": "v",
    "combine": "^",
    "ips": "D",
    "cause": "P",
    "bridge": "X",
    "autodebias": "p",
    "dub": "o",
}
FONTS = ["DejaVu Sans"]  # what Matplotlib measures with; the page's own font is drawn
WIDTH = 4.7  # inches of 72 units: about a phone, so that text there has the size given here
SHADES = (1.0, 0.6, 0.3)  # of the bars of a group
LABEL_GAP = 0.058  # of the axes' height: how far apart labels at the ends of lines stay


def colour(system):
    """A system's colour; its own where it has one."""
    return COLOURS.get(system, COLOURS["soft"])


def dots(name, values, xlabel, reference=None, zero=None):
    """A row per system, sorted: each seed a small dot, their mean a large one with its value.

    `values`: {system: array}; `reference`: {system: number} drawn as open diamonds; `zero`: where a vertical line goes.
    """
    reference = reference or {}
    order = sorted(values, key=lambda system: -np.mean(values[system]))
    figure, axes = _figure(WIDTH, 0.75 + 0.34 * len(order))
    if zero is not None:
        axes.axvline(zero, color=COLOURS["soft"], linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for row, system in enumerate(order):
        own, mean = colour(system), float(np.mean(values[system]))
        axes.plot(values[system], np.full(len(values[system]), row), "o", color=own, alpha=0.35, markersize=4.5, mew=0)
        axes.plot(mean, row, "o", color=own, markersize=8.5, mew=0)
        if system in reference:
            axes.plot(reference[system], row, "D", color=COLOURS["ink"], markersize=6, mfc="none", mew=1.2)
        _beside(axes, f"{mean:+z.4f}" if zero is not None else f"{mean:.4f}", row, own)
    _system_rows(axes, order)
    axes.margins(x=0.06)
    axes.set_xlabel(xlabel)
    _plain(axes, "x")
    return _svg(figure, name, f"{xlabel} of {', '.join(order)}")


def columns(name, values, xlabel):
    """A bar per system, its length the mean over seeds, each seed a dot. `values`: {system: array}."""
    figure, axes = _figure(WIDTH, 0.7 + 0.34 * len(values))
    for row, (system, own) in enumerate(values.items()):
        mean = float(np.mean(own))
        axes.barh(row, mean, 0.7, color=colour(system), alpha=0.85)
        axes.plot(own, np.full(len(own), row), "o", color=COLOURS["ink"], markersize=3, alpha=0.6, mew=0)
        _beside(axes, f"{mean:.4f}", row, colour(system))
    _system_rows(axes, list(values))
    axes.set_xlabel(xlabel)
    _plain(axes, "x")
    return _svg(figure, name, f"{xlabel} of {', '.join(values)}")


def bars(name, groups, xlabel):
    """Bars below each other, in groups. `groups`: {group: {series: value}}; nan where there is none."""
    series = list(next(iter(groups.values())))
    figure, axes = _figure(WIDTH, 0.95 + 0.2 * len(groups) * len(series))
    height = 0.8 / len(series)
    for k, one in enumerate(series):
        places = np.arange(len(groups)) + (k - (len(series) - 1) / 2) * height
        lengths = [groups[group][one] for group in groups]
        drawn = axes.barh(places, np.nan_to_num(lengths), height * 0.9, color=[colour(group) for group in groups])
        for bar in drawn:
            bar.set_alpha(SHADES[k % len(SHADES)])
        for place, length in zip(places, lengths, strict=True):
            text = f"{one} -" if length != length else f"{one} {length:.2f}"
            at = (float(np.nan_to_num(length)), place)
            axes.annotate(text, at, (3, 0), textcoords="offset points", va="center", fontsize=9, color=COLOURS["soft"])
    _system_rows(axes, list(groups))
    axes.set_xlabel(xlabel)
    axes.margins(x=0.22)
    axes.set_xlim(left=0)
    _plain(axes, "x")
    return _svg(figure, name, f"{xlabel}: {', '.join(series)}, for {', '.join(groups)}")


def _system_rows(axes, names):
    """Rows named from the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.locator_params(axis="x", nbins=5)


def _beside(axes, text, row, own):
    """A row's value at the right of the axes."""
    axes.annotate(
        text, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=9.5, color=own, weight="bold"
    )


def curves(name, xs, lines, xlabel, ylabel, mark=None):
    """Lines with bands, named at their ends. `lines`: {system: (means, spreads or None)}; `mark`: a vertical line."""
    figure, axes = _figure(WIDTH, 3.6)
    if mark is not None:
        axes.axvline(mark, color=COLOURS["soft"], linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for system, (means, spreads) in lines.items():
        own, means = colour(system), np.asarray(means, dtype=float)
        if spreads is not None:
            spread = np.nan_to_num(np.asarray(spreads, dtype=float))
            axes.fill_between(xs, means - spread, means + spread, color=own, alpha=0.13, linewidth=0)
        marker = MARKERS.get(system, "o") if len(xs) < 20 else None
        thick = 2.6 if system == "dub" else 1.6
        axes.plot(xs, means, color=own, linewidth=thick, marker=marker, markersize=5.5, mew=0)
    if len(xs) < 20:
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
    else:
        axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.margins(x=0.03)
    _plain(axes, "y")
    _name_ends(axes, xs, lines)
    return _svg(figure, name, f"{ylabel} by {xlabel}, for {', '.join(lines)}")


def _name_ends(axes, xs, lines):
    """Each line's name at its right end, moved apart where they would touch."""
    ends = {system: float(np.asarray(means)[-1]) for system, (means, _) in lines.items()}
    ends = {system: end for system, end in ends.items() if np.isfinite(end)}
    low, high = axes.get_ylim()
    order = sorted(ends, key=ends.get)
    wanted = np.array([(ends[system] - low) / (high - low) for system in order])
    for system, place in zip(order, spread_out(wanted, LABEL_GAP), strict=True):
        axes.annotate(
            system,
            (xs[-1], ends[system]),
            (1.035, place),
            textcoords="axes fraction",
            va="center",
            fontsize=9.5,
            color=colour(system),
            weight="bold" if system == "dub" else "normal",
            arrowprops={"arrowstyle": "-", "color": colour(system), "lw": 0.6, "shrinkA": 1, "shrinkB": 3},
        )


def spread_out(places, gap):
    """Rising places moved as little as needed to be `gap` apart: neighbours that touch share their mean."""
    groups = []  # [sum of (place - own offset), members]
    for k, place in enumerate(places):
        groups.append([place - gap * k, 1])
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] > groups[-1][0] / groups[-1][1]:
            total, n = groups.pop()
            groups[-1][0] += total
            groups[-1][1] += n
    moved = np.concatenate([np.full(n, total / n) for total, n in groups]) if groups else np.empty(0)
    return moved + gap * np.arange(len(places))


def _figure(width, height):
    figure = require_matplotlib()(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.patch.set_visible(False)
    figure.patch.set_visible(False)
    return figure, axes


def _plain(axes, grid):
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


def _svg(figure, name, description):
    """The figure as an SVG element for an HTML page: ids begin with the figure's name, colours are the page's."""
    import matplotlib

    text = io.StringIO()
    settings = {
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
    for variable, stand_in in COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{variable}, {stand_in})")
    box = re.search(r'viewBox="[0-9. ]*"', svg).group()
    label = html.escape(description, quote=True)
    return f'<svg {box} data-name="{name}" role="img" aria-label="{label}">{svg[svg.index(">") + 1 :]}'


def standalone(svg):
    """(name, the figure as a file of its own): light colours on white, for papers and READMEs."""
    name, box = re.search(r'data-name="([^"]*)"', svg).group(1), re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', svg)
    svg = re.sub(r"var\(--[a-z]+, (#[0-9a-f]{6})\)", r"\1", svg).replace(
        "font-family: inherit", "font-family: sans-serif"
    )
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head, body = svg.split(">", 1)
    head = head.replace("<svg", f'<svg {spaces} width="{box[1]}" height="{box[2]}"', 1)
    return (
        name,
        f'<?xml version="1.0" encoding="utf-8"?>\n{head}><rect width="100%" height="100%" fill="#ffffff"/>{body}',
    )
