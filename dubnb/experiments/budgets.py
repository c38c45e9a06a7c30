"""Budgets: how much an experiment searches and fits, and how long that takes.

Every system gets the same number of candidates at first. A search whose winner lies at an end of its grid continues
beyond that end, at most `Budget.extensions` times; reports give the number of candidates of each system.

A search is made from the method's own Settings. Small searches lie around the defaults for the log; the full one is the
method's grid "even". Parameters that have no effect under the others (`Method.idle`) are not searched: the other
parameters get finer steps instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.experiments.study import Say, Study
    from dubnb.experiments.systems import System
    from dubnb.sweeps.runner import Trial

NEAR, EVEN = "near", "even"
STEPS = 3  # values of a parameter in a small search
WIDEST = 9.0  # largest ratio of two values of a small search of one parameter

SearchAxes = dict[str, tuple[Any, ...]]  # parameter -> values


class Budget(NamedTuple):
    """What an experiment may spend."""

    name: str
    points: int  # candidates per system and search
    seeds: int  # fits of each winner
    grid: str  # NEAR the defaults, or EVEN over the method's own grid
    epoch_share: float | None  # share of the method's own number of epochs; None: all of them
    search_everywhere: bool  # search under every condition of rq4, not once on the whole data
    bootstraps: int
    description: str
    extensions: int = 0  # how often a search may continue beyond an end of its grid
    counts_inner: bool = False  # candidates that a fit chooses among on S_va count, and `points` is the most of all

    def extensions_text(self) -> str:
        """What reports and help say about searches that continue; "" if none does."""
        if not self.extensions:
            return ""
        return f", more if a search continues beyond an end of its grid (at most {times_text(self.extensions)})"

    def epochs(self, own: int) -> int:
        """The epochs of a method whose own number is `own`; at least one."""
        return own if self.epoch_share is None else max(1, round(self.epoch_share * own))


def times_text(n: int) -> str:
    """How often, as a word."""
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


_SMOKE = "a check that everything runs, not a result: very few epochs"
_QUICK = "a small search around the defaults for this log"
_FULL = "the paper's whole grid, and as many points where a method has no gamma; takes hours or days"
BUDGETS = {
    budget.name: budget
    for budget in (
        Budget("smoke", 3, 2, NEAR, 0.04, False, 1000, _SMOKE),
        Budget("quick", 9, 3, NEAR, None, False, 2000, _QUICK, extensions=3),
        Budget("full", 75, 10, EVEN, None, True, 2000, _FULL, extensions=2),
    )
}


class Search(NamedTuple):
    """The values to search, and the parameters that all candidates share."""

    axes: SearchAxes
    fixed: dict[str, Any]
    extended: tuple[tuple[str, int], ...] = ()  # (parameter, how often its values continued beyond an end)
    limit: int | None = None  # at most so many points of the grid, the nearest to its middle
    inner: int = 1  # candidates that each fit chooses among on S_va
    default: Mapping[str, Any] | None = None  # the candidate that wins ties

    @property
    def n_points(self) -> int:
        """The number of candidates."""
        every = math.prod(len(values) for values in self.axes.values())
        return every if self.limit is None else min(every, self.limit)

    def points(self) -> list[dict[str, Any]]:
        """The candidates, in the grid's order."""
        every = [dict(zip(self.axes, values, strict=True)) for values in itertools.product(*self.axes.values())]

        def distance(point: Mapping[str, Any]) -> int:
            return sum(abs(values.index(point[name]) - len(values) // 2) for name, values in self.axes.items())

        near = sorted(range(len(every)), key=lambda k: (distance(every[k]), k))[: self.n_points]
        return [every[k] for k in sorted(near)]

    def beyond(self, point: Mapping[str, Any]) -> Search | None:
        """The search with one value more beyond each end at which the chosen `point` lies; None if it lies inside."""
        longer = extend_axes(self.axes, point)
        times = dict(self.extended)
        for name in longer:
            if longer[name] != self.axes[name]:
                times[name] = times.get(name, 0) + 1
        return self._replace(axes=longer, extended=tuple(times.items())) if longer != self.axes else None


def search_of(system: System, budget: Budget, data: Partition) -> Search:
    """A search with `budget.points` candidates; a system with nothing to tune gets one candidate."""
    model = system.model()
    resolved: Any = model.resolve(data)  # no parameter is None
    fixed = dict(system.fixed)
    if budget.epoch_share is not None:
        fixed["epochs"] = budget.epochs(resolved.epochs)
    not_searched = resolved.idle() | fixed.keys()
    near = model.settings().near
    even = {name: values for name, values in model.grid(EVEN, data).items() if name not in not_searched}
    if not budget.counts_inner:
        if budget.grid == NEAR:
            axes = _around_defaults(resolved, near, not_searched, budget.points)
            return Search(axes, fixed, default=_default_point(axes, resolved))
        return Search(_refined(even, near, budget.points), fixed)
    first = {} if budget.grid == NEAR else {name: values[0] for name, values in even.items()}
    inner = model.set_params(**first).inner_candidates(data)
    limit = max(1, budget.points // inner)
    if budget.grid != NEAR:
        return Search(_refined(even, near, limit), fixed, limit=limit, inner=inner)
    axes = {} if limit == 1 else _around_defaults(resolved, near, not_searched, limit, at_least=True)
    return Search(axes, fixed, limit=limit, inner=inner, default=_default_point(axes, resolved))


def _around_defaults(
    resolved: Any, near: Mapping[str, float], not_searched: set[str], points: int, at_least: bool = False
) -> SearchAxes:
    """The parameters that matter most, each at its default and at factors of it.

    `steps` values have `factor` between neighbours and the default in the middle; whole numbers stay whole. One
    parameter alone has many values: they lie closer if they would span more than WIDEST. The grid has about `points`
    points, or no fewer with `at_least`.
    """
    defaults = {name: resolved.centre(name) for name in near if name not in not_searched}
    names = [name for name, value in defaults.items() if isinstance(value, int | float) and value > 0]
    names = names[: round(math.log(points, STEPS))]
    axes: SearchAxes = {}
    for name in names:
        share = points ** (1 / len(names))
        centre, steps = defaults[name], math.ceil(share - 1e-9) if at_least else round(share)
        factor = min(near[name], WIDEST ** (1 / max(1, steps - 1))) if len(names) == 1 else near[name]
        values = [centre * factor ** (k - steps // 2) for k in range(steps)]
        whole = (max(1, round(value)) for value in values)
        axes[name] = tuple(dict.fromkeys(whole)) if isinstance(centre, int) else tuple(map(_three_digits, values))
    return axes


def _default_point(axes: SearchAxes, resolved: Any) -> dict[str, Any]:
    """The candidate of a search around the defaults that has them; real numbers are rounded to three digits there."""
    return {name: min(own, key=lambda value: abs(value - resolved.centre(name))) for name, own in axes.items()}


def _refined(axes: SearchAxes, near: Mapping[str, float], points: int) -> SearchAxes:
    """`axes` with finer steps of the first real parameter, if `points` allow at least twice as many."""
    more = points // math.prod(len(values) for values in axes.values())
    finer = next((name for name in near if name in axes and isinstance(axes[name][0], float)), None)
    if more < 2 or finer is None:
        return axes
    low, high, n = min(axes[finer]), max(axes[finer]), more * len(axes[finer])
    return axes | {finer: tuple(_three_digits(low * (high / low) ** (k / (n - 1))) for k in range(n))}


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def edges(axes: Mapping[str, Sequence[Any]], point: Mapping[str, Any]) -> list[tuple[str, str]]:
    """[(parameter, "low" or "high")] where the point has the smallest or largest of three or more values."""
    ends = []
    for name, values in axes.items():
        if len(values) >= 3 and point[name] in (min(values), max(values)):
            ends.append((name, "low" if point[name] == min(values) else "high"))
    return ends


def extend_axes(axes: SearchAxes, point: Mapping[str, Any]) -> SearchAxes:
    """`axes` with one value more beyond each end at which the point lies, at the same ratio as the last two values."""
    longer = dict(axes)
    for name, end in edges(axes, point):
        values = sorted(axes[name])
        last, before = values[:2] if end == "low" else values[:-3:-1]
        beyond = _three_digits(last * last / before)
        beyond = max(1, round(beyond)) if isinstance(last, int) else beyond
        if beyond not in values:  # whole numbers end at 1
            longer[name] = (*axes[name], beyond)
    return longer


# ---- how long it takes ---------------------------------------------------------------------------------------------


class FitEstimate(NamedTuple):
    """What studies will fit of one system."""

    sample: Trial  # a candidate from the middle of its grid, on its largest log: the fit to time
    n_fits: int  # each fit that studies share counts once


def estimates(studies: Iterable[Study]) -> dict[System, FitEstimate]:
    """What some studies will fit of each system: all candidates, and every winner over its seeds."""
    fits: dict[System, set[object]] = {}
    largest: dict[System, tuple[int, Trial]] = {}
    for study in studies:
        logs = study.design.conditions
        for case in dict.fromkeys(map(study.searched, study.design.cases)):
            trials = study.candidates(case)
            fits.setdefault(case.system, set()).update(trial.key for trial in trials)
            size = sum(len(logs[case.condition].triplets(part).users) for part in ("S_c", "S_t"))
            if case.system not in largest or size > largest[case.system][0]:
                largest[case.system] = size, trials[len(trials) // 2]
        for case in study.design.cases:
            log = logs[case.condition].fingerprint
            fits[case.system] |= {(log, study.design.select, seed) for seed in study.seeds}
    return {system: FitEstimate(largest[system][1], len(own)) for system, own in fits.items()}


def say_how_long(studies: Sequence[Study], say: Say) -> None:
    """Run one candidate of each system, which its search needs anyway, and say how long all fits will take."""
    fits = estimates(studies)
    n_fits, n_jobs = sum(own.n_fits for own in fits.values()), studies[0].n_jobs
    say(f"{n_fits:,} fits of {len(fits)} systems; one fit of each comes first, to estimate the time")
    ran = studies[0].run_fits([own.sample for own in fits.values()], [log for s in studies for log in s.logs])
    seconds = sum((ran[own.sample].seconds or 0.0) * own.n_fits for own in fits.values()) / n_jobs
    workers = "1 worker" if n_jobs == 1 else f"{n_jobs} workers"
    more = "; more if a search continues" if any(study.budget.extensions for study in studies) else ""
    say(f"about {duration_text(seconds)} in all with {workers} on this machine, less what is done already{more}")


def duration_text(seconds: float) -> str:
    """A length of time with one unit, such as "1.5 minutes" or "20 days"."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
