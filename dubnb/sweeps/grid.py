"""What a sweep searches: the points of a grid, the rungs of successive halving, and the choice of the best point.

Successive halving gives every point a few epochs, the best third more, and the best third of these all epochs. A rung
begins when the one before has ended. So which points go on depends on the results alone, never on the order in which
trials end.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check, metrics
from dubnb._check import InputError
from dubnb._files import quote_path
from dubnb._random import generator
from dubnb.sweeps.trial import DONE, EXACT_WHOLE, Row, canonical, plain, planned

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method

Axes = dict[str, list[Any]]  # parameter -> its values
Point = dict[str, Any]

NAMES = ("paper", "wide", "even")
WIDE_BUDGET = 60  # points of the grid "wide" that are tried unless full=True
MOST_POINTS = 1_000_000
MOST_TRIALS = 1_000_000
RESERVED = {"seed": "seeds=", "backbone": "backbone=", "device": "the method's default"}
KS = (5, 10)  # K of the metrics that a trial records
KEEP = 3  # halving: one in KEEP points goes on to the next rung
SHARES = (1 / KEEP**2, 1 / KEEP, 1.0)  # halving: each rung's share of the epochs


# Points


def method_class(method: str | type[Method]) -> type[Method]:
    """Return a Method subclass, given itself or its name."""
    from dubnb.methods import METHODS
    from dubnb.methods._method import Method

    if isinstance(method, type) and issubclass(method, Method):
        return method
    return METHODS[_check.choice("method", method, tuple(METHODS))]


def axes(
    cls: type[Method], backbone: str, grid: str | os.PathLike[str] | dict[str, Any], fixed: Point, data: Partition
) -> Axes:
    """Return {parameter: values} of a named grid on this log, a TOML file or a dict, without parameters in `fixed`."""
    model = cls().set_params(backbone=backbone, **fixed)
    model.resolved_params(data)
    if isinstance(grid, dict):
        axes, where = grid, "the grid"
    elif isinstance(grid, str) and grid in NAMES:
        axes, where = dict(model.grid(grid, data)), f"grid {grid!r}"
    else:
        axes, where = _read_axes(grid), f"grid file {quote_path(grid)}"
    checked = {name: _checked_values(name, values, where) for name, values in axes.items()}
    for name in checked:
        if name in RESERVED:
            raise InputError(f"{where} has {name!r}, which cannot be an axis of a grid: use {RESERVED[name]} instead")
        _check.choice("parameter", name, tuple(model.get_params()))
    if not checked:
        raise InputError(f"{where} is empty: give at least one parameter with its values, such as rank = [50, 100]")
    return {name: values for name, values in checked.items() if name not in fixed}


def _read_axes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the axes from a TOML file, one `name = [values]` per line."""
    import tomllib

    if not isinstance(path, str | os.PathLike):
        raise InputError(f"grid={path!r} must be one of {', '.join(NAMES)}, the path of a TOML file, or a dict")
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise InputError(
            f"grid {quote_path(path)} is neither {' nor '.join(NAMES)} nor a file: check its name"
        ) from None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"grid file {quote_path(path)} cannot be read ({reason}): write name = [values] lines"
        ) from None


def _checked_values(name: str, values: Any, where: str) -> list[Any]:
    """The distinct values of one axis, in order."""
    values = values if isinstance(values, list | tuple) or hasattr(values, "tolist") else [values]
    values = [plain(name, value) for value in values]
    if not values:
        raise InputError(f"{where} gives no value for {name!r}: give at least one or leave it out")
    distinct = {json.dumps(canonical(value)): value for value in reversed(values)}
    return list(reversed(distinct.values()))


def n_points(grid_axes: Mapping[str, Sequence[Any]]) -> int:
    """The number of points in the product of the axes."""
    return math.prod(len(values) for values in grid_axes.values())


def points(grid_axes: Axes, random: int | None = None) -> list[Point]:
    """Return all points of the product in order, or `random` of them.

    A random search takes the first points of one fixed shuffle, so a larger `random` contains a smaller one.
    """
    total = n_points(grid_axes)
    if total > MOST_POINTS:
        raise InputError(f"the grid has {total:,} points, at most {MOST_POINTS:,} are possible: take fewer values")
    every = [dict(zip(grid_axes, values, strict=True)) for values in itertools.product(*grid_axes.values())]
    if random is None:
        return every
    chosen = generator(0, "sweep", "random-search").permutation(total)[:random]
    return [every[index] for index in sorted(chosen)]


# Requests


class Points(NamedTuple):
    """Which points a sweep tries; the fields are parameters of `dubnb.sweep`."""

    grid: Any
    fixed: dict[str, Any]
    random: int | None
    full: bool
    halving: bool

    def wanted(self) -> int | None:
        """How many of the grid's points to draw at random; None for all points."""
        if self.random is not None:
            return _check.whole("random", self.random)
        is_wide = isinstance(self.grid, str) and self.grid == "wide"
        return WIDE_BUDGET if is_wide and not self.full else None


class Select(NamedTuple):
    """The rule of choice: the best mean of `primary` on S_va, or among those within `tolerance`, of `secondary`."""

    primary: str
    tolerance: float = 0.0
    secondary: str | None = None


class Request(NamedTuple):
    """A checked request for a sweep."""

    method: type[Method]
    backbone: str
    data: Partition
    points: list[tuple[Point, dict[str, Any]]]  # each with all its parameters
    n_grid: int  # points of the whole grid
    seeds: Sequence[int]
    select: Select
    protocol: str
    halving: bool

    @property
    def identity(self) -> dict[str, Any]:
        """What all trials of a ledger must have in common."""
        return {
            "kind": "sweep",
            "method": self.method.name,
            "backbone": self.backbone,
            "protocol": self.protocol,
            "data": self.data.fingerprint,
        }


def checked_request(
    method: str | type[Method], backbone: str, data: Any, asked: Points, seeds: Any, select: Any, protocol: str
) -> Request:
    """Return a Request, or raise an InputError; nothing is written."""
    from dubnb.evaluation import PROTOCOLS

    cls, data = method_class(method), checked_data(data)
    for name in asked.fixed.keys() & {"seed", "backbone"}:
        raise InputError(f"{name} is set in `fixed`: use {RESERVED[name]} instead")
    own_axes = axes(cls, backbone, asked.grid, asked.fixed, data)
    chosen = points(own_axes, asked.wanted())
    if asked.halving and "epochs" in own_axes:
        raise InputError("halving sets the epochs itself: take epochs out of the grid, or leave halving out")
    labels = data.triplets("S_va").labels
    if not 0 < labels.sum() < len(labels):
        raise InputError("S_va must hold both labels: a sweep chooses on it; split the randomized log another way")
    rule = selection(select)
    _check.choice("protocol", protocol, tuple(PROTOCOLS))
    for metric in (rule.primary, rule.secondary):
        if metric and metrics.metric_named(metric)[0].of == "judged" and not PROTOCOLS[protocol].shows:
            raise InputError(f"select={metric} needs lists of all candidates, which {protocol} lacks: use full-ranking")
    seeds = checked_seeds(seeds)
    if len(chosen) * len(seeds) > MOST_TRIALS:
        each = f"{len(chosen):,} points x {len(seeds):,} seeds"
        raise InputError(f"{each} are {len(chosen) * len(seeds):,} trials, at most {MOST_TRIALS:,}: take fewer seeds")
    distinct: dict[str, tuple[Point, dict[str, Any]]] = {}  # two points can be the same fit: None and the default
    for point in chosen:
        trial = planned(cls, data, {"backbone": backbone, **asked.fixed, **point, "seed": 0})
        distinct.setdefault(trial.key, (point, trial.params))
    n_grid, halving = n_points(own_axes), bool(asked.halving)
    return Request(cls, backbone, data, list(distinct.values()), n_grid, seeds, rule, protocol, halving)


def checked_data(data: Any) -> Partition:
    """Return `data` if it is a Partition."""
    from dubnb.data.partition import Partition

    if not isinstance(data, Partition):
        raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset('simulated')")
    return data


def checked_seeds(seeds: Any) -> Sequence[int]:
    """Return the seeds, given their number (0, 1, ...) or a list of them."""
    if not isinstance(seeds, list | tuple | range):
        return range(_check.whole("seeds", seeds))
    if isinstance(seeds, range) and len(seeds) > MOST_TRIALS:
        raise InputError(f"{len(seeds):,} seeds are more than {MOST_TRIALS:,} trials: take fewer seeds")
    checked = tuple(_check.whole("seed", seed, low=0, high=EXACT_WHOLE) for seed in seeds)
    if not checked or len(set(checked)) < len(checked):
        raise InputError(f"seeds={_check.short_repr(seeds)} must hold at least one seed and none twice")
    return checked


def selection(select: Any) -> Select:
    """Return a Select, given a metric's name or (primary, tolerance, secondary)."""
    parts = (select,) if isinstance(select, str) else tuple(select)
    if len(parts) not in (1, 3):
        raise InputError(f"select={select!r} must be a metric, or (metric, tolerance, other metric)")
    known = metrics.metric_names(KS)
    _check.choice("select", parts[0], known)
    if len(parts) == 1:
        return Select(parts[0])
    _check.choice("select", parts[2], known)
    return Select(parts[0], _check.real("select's tolerance", parts[1]), parts[2])


# Choice


def means(points: Sequence[Sequence[str]], rows: Mapping[str, Row], metric: str) -> np.ndarray:
    """The mean of a metric over each point's trials, given by their keys; -inf if a trial is not done or lacks it."""
    means = []
    for keys in points:
        values: list[Any] = [(rows[key]["metrics"] or {}).get(metric) if key in rows else None for key in keys]
        done = all(key in rows and rows[key]["status"] == DONE for key in keys) and None not in values
        means.append(float(np.mean(values)) if done else -np.inf)
    return np.array(means)


def choose(points: Sequence[Sequence[str]], rows: Mapping[str, Row], select: Select) -> int | None:
    """The index of the best point on S_va, the first of equals; None if no point has finished."""
    primary = means(points, rows, f"va_{select.primary}")
    if not len(primary) or primary.max() == -np.inf:
        return None
    if select.secondary is None:
        return int(primary.argmax())
    close = np.flatnonzero(primary >= primary.max() - select.tolerance)
    return int(close[means(points, rows, f"va_{select.secondary}")[close].argmax()])


# Successive halving


def rung_sizes(n_points: int) -> list[int]:
    """The number of points in each rung."""
    rungs = [n_points]
    for _ in SHARES[1:]:
        rungs.append(math.ceil(rungs[-1] / KEEP))
    return rungs


def rung_epochs(full: int, share: float) -> int:
    """The epochs of a trial in a rung."""
    return max(1, math.ceil(full * share))


def survivors(values: Sequence[float], n: int) -> list[int]:
    """Sorted indices of the n best values; the first of equals wins, and -inf (not finished) never does."""
    order = sorted(range(len(values)), key=lambda index: (-values[index], index))
    return sorted(index for index in order[:n] if values[index] != -math.inf)


def saved_epochs(n_points: int) -> float:
    """The share of a full grid's epochs that halving saves."""
    return 1 - sum(n * share for n, share in zip(rung_sizes(n_points), SHARES, strict=True)) / n_points
