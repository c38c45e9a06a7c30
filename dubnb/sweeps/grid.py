"""Grids: which points of a method's parameters a sweep tries, and in which order."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dubnb import _check
from dubnb._check import InputError
from dubnb._files import quote_path
from dubnb._random import generator
from dubnb.sweeps.trial import canonical, plain

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method

Axes = dict[str, list[Any]]  # parameter -> its values
Point = dict[str, Any]

NAMES = ("paper", "wide", "even")
WIDE_BUDGET = 60  # points of a named grid `wide` that are tried unless all are asked for
MOST_POINTS = 1_000_000
RESERVED = {"seed": "seeds=", "backbone": "backbone=", "device": "the method's default"}


def method_class(method: str | type[Method]) -> type[Method]:
    """A Method subclass, by its name or as it is."""
    from dubnb.methods import METHODS
    from dubnb.methods._method import Method

    if isinstance(method, type) and issubclass(method, Method):
        return method
    return METHODS[_check.choice("method", method, tuple(METHODS))]


def axes(
    cls: type[Method], backbone: str, grid: str | os.PathLike[str] | dict[str, Any], fixed: Point, data: Partition
) -> Axes:
    """{parameter: values} of a named grid on this log, a TOML file or a dict, without those that `fixed` sets."""
    model = cls().set_params(backbone=backbone, **fixed)
    model.resolved_params(data)
    if isinstance(grid, dict):
        axes, where = grid, "the grid"
    elif isinstance(grid, str) and grid in NAMES:
        axes, where = dict(model.grid(grid, data)), f"grid {grid!r}"
    else:
        axes, where = _read(grid), f"grid file {quote_path(grid)}"
    checked = {name: _values(name, values, where) for name, values in axes.items()}
    for name in checked:
        if name in RESERVED:
            raise InputError(f"{where} has {name!r}: that is no axis of a grid; use {RESERVED[name]} instead")
        _check.choice("parameter", name, tuple(model.get_params()))
    if not checked:
        raise InputError(f"{where} is empty: give at least one parameter with its values, such as rank = [50, 100]")
    return {name: values for name, values in checked.items() if name not in fixed}


def n_points(grid_axes: Mapping[str, Sequence[Any]]) -> int:
    """How many points the axes' product has."""
    return math.prod(len(values) for values in grid_axes.values())


def points(grid_axes: Axes, random: int | None = None) -> list[Point]:
    """All points of the axes' product in order, or `random` of them: the first of one fixed shuffle, so more extend."""
    total = n_points(grid_axes)
    if total > MOST_POINTS:
        raise InputError(f"the grid has {total:,} points, at most {MOST_POINTS:,} are possible: take fewer values")
    every = [dict(zip(grid_axes, values, strict=True)) for values in itertools.product(*grid_axes.values())]
    if random is None:
        return every
    chosen = generator(0, "sweep", "random-search").permutation(total)[:random]
    return [every[index] for index in sorted(chosen)]


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The axes of a TOML file, one `name = [values]` per line."""
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


def _values(name: str, values: Any, where: str) -> list[Any]:
    """The values of one axis, each once."""
    values = values if isinstance(values, list | tuple) or hasattr(values, "tolist") else [values]
    values = [plain(name, value) for value in values]
    if not values:
        raise InputError(f"{where} gives no value for {name!r}: give at least one or leave it out")
    distinct = {json.dumps(canonical(value)): value for value in reversed(values)}
    return list(reversed(distinct.values()))
