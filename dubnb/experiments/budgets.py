"""How much is searched: the same number of candidates for every system at first, whatever it has to tune.

A search whose winner lies at an end of its grid goes on beyond that end, at most `Budget.extensions` times: how many
candidates a system had is part of every report.

A search is made from the method's own Settings: small ones lie around the defaults that follow from the log, the full
one is the method's grid "even". Parameters that do nothing under the others (`Method.idle`) are never searched: what
they would have cost goes into finer steps of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.systems import System

NEAR, EVEN = "near", "even"
STEPS = 3  # values of a parameter in a small search

Axes = dict[str, tuple[Any, ...]]  # parameter -> values


class Budget(NamedTuple):
    """What an experiment may spend."""

    name: str
    points: int  # candidates per system and search
    seeds: int  # fits of each winner
    grid: str  # NEAR the defaults, or EVEN over the method's own grid
    epoch_share: float | None  # of the methods' own number of epochs; None: all of it
    search_everywhere: bool  # search under every condition of rq4, not once on the whole data
    bootstraps: int
    description: str
    extensions: int = 0  # how often a search whose winner lies at an end of its grid goes on beyond that end


BUDGETS = {
    budget.name: budget
    for budget in (
        Budget("smoke", 3, 2, NEAR, 0.04, False, 1000, "a check that everything runs, not a result: very few epochs"),
        Budget("quick", 9, 3, NEAR, None, False, 2000, "a small search around the defaults for this log", extensions=3),
        Budget(
            "full",
            75,
            10,
            EVEN,
            None,
            True,
            2000,
            "the paper's whole grid, and as many points where a method has no gamma; takes hours or days",
            extensions=2,
        ),
    )
}


class Search(NamedTuple):
    """What is searched, and what all candidates share."""

    axes: Axes
    fixed: dict[str, Any]
    extended: tuple[tuple[str, int], ...] = ()  # (parameter, how often its values went on beyond an end)

    @property
    def n_points(self) -> int:
        """How many candidates there are."""
        return n_points(self.axes)

    def beyond(self, point: Mapping[str, Any]) -> Search | None:
        """The search that goes on where the chosen point lies at an end of its grid; None where it lies inside."""
        longer = extended(self.axes, point)
        times = dict(self.extended)
        for name in longer:
            if longer[name] != self.axes[name]:
                times[name] = times.get(name, 0) + 1
        return self._replace(axes=longer, extended=tuple(times.items())) if longer != self.axes else None


def went_on(budget: Budget) -> str:
    """What reports and help say about searches that go on; "" where none does."""
    if not budget.extensions:
        return ""
    times = {1: "once", 2: "twice"}.get(budget.extensions, f"{budget.extensions} times")
    return f", more where a search goes on beyond an end of its grid (at most {times})"


def search_of(system: System, budget: Budget, data: Partition) -> Search:
    """`budget.points` candidates; one where a system has nothing to tune."""
    model = system.model()
    resolved: Any = model.resolve(data)  # no parameter is None
    fixed = dict(system.fixed)
    if budget.epoch_share is not None:
        fixed["epochs"] = max(1, round(budget.epoch_share * resolved.epochs))
    still = resolved.idle() | fixed.keys()
    near = model.settings().near
    if budget.grid == NEAR:
        return Search(_around_defaults(resolved, near, still, budget.points), fixed)
    axes = {name: values for name, values in model.grid(EVEN, data).items() if name not in still}
    return Search(_refined(axes, near, budget.points), fixed)


def _around_defaults(resolved: Any, near: Mapping[str, float], still: set[str], points: int) -> Axes:
    """The most telling parameters, each at its default and at factors of it."""
    values = {name: getattr(resolved, name) for name in near if name not in still}
    able = [name for name, value in values.items() if isinstance(value, int | float) and value > 0]
    if not able:
        return {}
    able = able[: round(math.log(points, STEPS))]
    steps = round(points ** (1 / len(able)))
    return {name: _around(values[name], near[name], steps) for name in able}


def _around(centre: float, factor: float, steps: int) -> tuple[float, ...]:
    """`steps` values with `factor` between neighbours, the centre in their middle; whole numbers stay whole."""
    values = [centre * factor ** (k - steps // 2) for k in range(steps)]
    if isinstance(centre, int):
        return tuple(dict.fromkeys(max(1, round(value)) for value in values))
    return tuple(_digits(value) for value in values)


def _refined(axes: Axes, near: Mapping[str, float], points: int) -> Axes:
    """Axes with finer steps of the most telling parameter, where a parameter that is not searched has left room."""
    missing = points // n_points(axes)
    finer = next((name for name in near if name in axes and isinstance(axes[name][0], float)), None)
    if missing < 2 or finer is None:
        return axes
    low, high, n = min(axes[finer]), max(axes[finer]), missing * len(axes[finer])
    values = tuple(_digits(low * (high / low) ** (k / (n - 1))) for k in range(n))
    return axes | {finer: values}


def _digits(value: float) -> float:
    """Three significant digits."""
    return float(f"{value:.3g}")


def n_points(axes: Mapping[str, Sequence[Any]]) -> int:
    """How many points a grid has."""
    return math.prod(len(values) for values in axes.values())


def edges(axes: Mapping[str, Sequence[Any]], point: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where the chosen point is the smallest or largest of three or more values: [(parameter, "low" or "high")]."""
    ends = []
    for name, values in axes.items():
        if len(values) >= 3 and point[name] in (min(values), max(values)):
            ends.append((name, "low" if point[name] == min(values) else "high"))
    return ends


def extended(axes: Axes, point: Mapping[str, Any]) -> Axes:
    """Axes with one value more beyond each end at which the chosen point lies, as far on as its neighbour is off."""
    longer = dict(axes)
    for name, end in edges(axes, point):
        values = sorted(axes[name])
        last, before = values[:2] if end == "low" else values[:-3:-1]
        beyond = _digits(last * last / before)
        beyond = max(1, round(beyond)) if isinstance(last, int) else beyond
        if beyond not in values:  # whole numbers end at 1
            longer[name] = (*axes[name], beyond)
    return longer
