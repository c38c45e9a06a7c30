"""A sweep that was asked for, checked before anything is touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dubnb import _check, metrics
from dubnb._check import InputError
from dubnb.sweeps import grid as grids
from dubnb.sweeps import results
from dubnb.sweeps.runner import checked_data
from dubnb.sweeps.trial import EXACT_WHOLE, planned

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method

INSTEAD = {"seed": "seeds", "backbone": "backbone"}  # what says it where `fixed` must not
MOST_TRIALS = 1_000_000


class Request(NamedTuple):
    """What a sweep is to do."""

    method: type[Method]
    backbone: str
    data: Partition
    points: list[tuple[grids.Point, dict[str, Any]]]  # each with all its parameters
    n_grid: int  # points of the whole grid
    seeds: Sequence[int]
    select: results.Select
    protocol: str
    halving: bool

    @property
    def identity(self) -> dict[str, Any]:
        """What a ledger's trials must have in common."""
        return {
            "kind": "sweep",
            "method": self.method.name,
            "backbone": self.backbone,
            "protocol": self.protocol,
            "data": self.data.fingerprint,
        }


def checked_request(
    method: str | type[Method], backbone: str, data: Any, points: Points, seeds: Any, select: Any, protocol: str
) -> Request:
    """A Request, or an InputError that says what is wrong with it."""
    from dubnb.evaluation import PROTOCOLS

    cls, data = grids.method_class(method), checked_data(data)
    for name in points.fixed.keys() & INSTEAD.keys():
        raise InputError(f"{name} is set in `fixed`: use {INSTEAD[name]}= instead")
    axes = grids.axes(cls, backbone, points.grid, points.fixed, data)
    chosen = grids.points(axes, points.wanted())
    if points.halving and "epochs" in axes:
        raise InputError("halving sets the epochs itself: take epochs out of the grid, or leave halving out")
    labels = data.triplets("S_va").labels
    if not 0 < labels.sum() < len(labels):
        raise InputError("S_va must hold both labels: a sweep chooses on it; split the randomized log another way")
    how = results.selection(select)
    _check.choice("protocol", protocol, tuple(PROTOCOLS))
    for metric in (how.primary, how.secondary):
        if metric and metrics.parts(metric)[0].of == "judged" and not PROTOCOLS[protocol].shows:
            raise InputError(f"select={metric} needs lists of all candidates, which {protocol} lacks: use full-ranking")
    seeds = checked_seeds(seeds)
    if len(chosen) * len(seeds) > MOST_TRIALS:
        each = f"{len(chosen):,} points x {len(seeds):,} seeds"
        raise InputError(f"{each} are {len(chosen) * len(seeds):,} trials, at most {MOST_TRIALS:,}: take fewer seeds")
    return Request(
        cls,
        backbone,
        data,
        _distinct(cls, data, {"backbone": backbone, **points.fixed}, chosen),
        grids.n_points(axes),
        seeds,
        how,
        protocol,
        bool(points.halving),
    )


class Points(NamedTuple):
    """Which points a sweep tries: see `dubnb.sweep`."""

    grid: Any
    fixed: dict[str, Any]
    random: int | None
    full: bool
    halving: bool

    def wanted(self) -> int | None:
        """How many of the grid's points, at random; None: all."""
        if self.random is not None:
            return _check.whole("random", self.random)
        is_wide = isinstance(self.grid, str) and self.grid == "wide"
        return grids.WIDE_BUDGET if is_wide and not self.full else None


def _distinct(
    cls: type[Method], data: Partition, shared: dict[str, Any], points: Sequence[grids.Point]
) -> list[tuple[grids.Point, dict[str, Any]]]:
    """(point, its parameters) for each point that differs from those before; every point is checked."""
    distinct: dict[str, tuple[grids.Point, dict[str, Any]]] = {}
    for point in points:
        trial = planned(cls, data, {**shared, **point, "seed": 0})
        distinct.setdefault(trial.key, (point, trial.params))
    return list(distinct.values())


def checked_seeds(seeds: Any) -> Sequence[int]:
    """How many seeds, from 0 on, or which."""
    if not isinstance(seeds, list | tuple | range):
        return range(_check.whole("seeds", seeds))
    if isinstance(seeds, range) and len(seeds) > MOST_TRIALS:
        raise InputError(f"{len(seeds):,} seeds are more than {MOST_TRIALS:,} trials: take fewer seeds")
    checked = tuple(_check.whole("seed", seed, low=0, high=EXACT_WHOLE) for seed in seeds)
    if not checked or len(set(checked)) < len(checked):
        raise InputError(f"seeds={_check.shown(seeds)} must hold at least one seed and none twice")
    return checked
