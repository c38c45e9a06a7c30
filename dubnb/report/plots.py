"""The demo's plot. Matplotlib (extra `report`) is imported on use and draws to memory, without windows."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Literal

import numpy as np

from dubnb._check import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dubnb.demo import DemoResult

# Okabe and Ito's colours, which colour-blind readers can tell apart, also in grey.
ORANGE, BLUE, INK, GREY, PALE = "#D55E00", "#0072B2", "#222222", "#8A8A8A", "#DDDDDD"
LABEL_GAP = 0.11  # distance of labels at the ends of lines, as a share of the axes' height
LABEL_ROOM = 0.1  # room to the right of the best method's dots, as a share of the axis
COLOURS = {"base": ORANGE, "truth": INK}  # the best method is blue


def require_matplotlib() -> type[Figure]:
    """Matplotlib's Figure, or an InputError that says how to get it."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise InputError("plots need matplotlib: pip install 'dubnb[report]'") from None
    return Figure


def spread_out(places: np.ndarray, gap: float) -> np.ndarray:
    """Rising places, moved as little as needed to be `gap` apart; neighbours that touch are centred on their mean."""
    groups: list[tuple[float, int]] = []  # (sum of place - own offset, members)
    for k, place in enumerate(places):
        total, n = float(place) - gap * k, 1
        while groups and groups[-1][0] / groups[-1][1] > total / n:
            before, members = groups.pop()
            total, n = before + total, members + n
        groups.append((total, n))
    moved = np.concatenate([np.full(n, total / n) for total, n in groups]) if groups else np.empty(0)
    return moved + gap * np.arange(len(places))


def demo_png(result: DemoResult) -> bytes:
    """The demo's plot as PNG bytes: which method ranks best on the truth, and what debiasing corrects."""
    figure = require_matplotlib()(figsize=(11, 4.9), dpi=150, facecolor="white")
    ranking, bias = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.15]})
    figure.subplots_adjust(left=0.085, right=0.915, top=0.74, bottom=0.14, wspace=0.22)
    _draw_ranking(ranking, result)
    _draw_bias(bias, result)
    figure.text(0.02, 0.945, _finding(result), fontsize=11.5, weight="bold", color=INK, va="center")
    n = len(result.data_seeds)
    seeds = f"{n} data seeds" if n > 1 else "one data seed"
    reads = f"; {', '.join(result.graded)} reads grades, the others 0/1 labels" if result.graded else ""
    subtitle = f"dubnb demo: simulated logs whose truth is known, {seeds}{reads}"
    figure.text(0.02, 0.885, subtitle, fontsize=9.5, color=GREY, va="center")
    png = io.BytesIO()
    figure.savefig(png, format="png", metadata={"Software": "dubnb demo"})
    return png.getvalue()


def _finding(result: DemoResult) -> str:
    """The plot's title: what the best method gains over base."""
    best = result.best
    if best == "base":
        return "No method ranks unseen pairs better than base, the model of the biased log alone"
    auc = {method: result.values[method]["truth_auc"].mean() for method in ("base", best)}
    off = {name: np.abs(result.curves[name] - result.curves["truth"]).mean() for name in ("base", best)}
    return (
        f"{best} ranks unseen pairs best (AUC {auc['base']:.3f} for base → {auc[best]:.3f}); "
        f"its probabilities are off by {off[best]:.3f} instead of {off['base']:.3f}"
    )


def _colour(result: DemoResult, name: str) -> str:
    """Blue for the best method, orange for base, grey for the other methods."""
    return COLOURS.get(name, BLUE if name == result.best else GREY)


def _draw_ranking(axes: Axes, result: DemoResult) -> None:
    """A row per method, sorted: a small dot per data seed, a large dot for their mean, and its value beside them."""
    values = {method: columns["truth_auc"] for method, columns in result.values.items()}
    order = sorted(values, key=lambda method: values[method].mean())
    axes.axvline(values["base"].mean(), color=ORANGE, linewidth=1, linestyle=(0, (4, 3)), alpha=0.7, zorder=1)
    for row, method in enumerate(order):
        colour = _colour(result, method)
        mean = values[method].mean()
        axes.plot(values[method], np.full(len(values[method]), row), "o", color=colour, alpha=0.35, markersize=5, mew=0)
        axes.plot(mean, row, "o", color=colour, markersize=10)
        axes.annotate(
            f"{mean:.3f}",
            (values[method].max(), row),
            (9, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            weight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    axes.set_yticks(range(len(order)), order, fontsize=11, color=INK)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.margins(x=0.08)
    axes.set_xlim(right=axes.get_xlim()[1] + LABEL_ROOM * (axes.get_xlim()[1] - axes.get_xlim()[0]))
    axes.set_xlabel("AUC on the truth (small dots: single seeds)", color=INK)
    _plain_axes(axes, "Who ranks unseen pairs best?", grid="x")


def _draw_bias(axes: Axes, result: DemoResult) -> None:
    """Mean probability by item popularity: the truth, base and the best method."""
    curves = result.curves
    bands = np.arange(1, len(curves["truth"]) + 1)
    axes.fill_between(bands, curves["truth"], curves["base"], color=ORANGE, alpha=0.07, linewidth=0)
    for name, curve in curves.items():
        line = {"linestyle": (0, (4, 2))} if name == "truth" else {"marker": "o", "markersize": 4.5}
        axes.plot(bands, curve, color=_colour(result, name), linewidth=2, **line)
    top = 1.12 * max(curve.max() for curve in curves.values())
    order = sorted(curves, key=lambda name: curves[name][-1])
    places = spread_out(np.array([curves[name][-1] / top for name in order]), LABEL_GAP)
    for name, place in zip(order, places, strict=True):
        axes.annotate(
            "truth, Rᵗ" if name == "truth" else f"{name}\npredicts",
            (1.02, place),
            xycoords="axes fraction",
            fontsize=10.5,
            weight="bold",
            color=_colour(result, name),
            va="center",
        )
    axes.set_xticks(bands, ["rarest", *([""] * (len(bands) - 2)), "most shown"])
    axes.set_ylim(0, top)
    axes.set_xlabel("tenths of the items, by how often S_c shows them", color=INK)
    axes.set_ylabel("mean probability of a positive", color=INK)
    _plain_axes(axes, "What probability do unseen pairs get, and deserve?", grid="y")


def _plain_axes(axes: Axes, title: str, grid: Literal["x", "y"]) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=12)
    axes.grid(axis=grid, color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(PALE)
