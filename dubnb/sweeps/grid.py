"""Grids: which points of a method's parameters a sweep tries, and in which order."""

import hashlib
import itertools
import json
import math
import os

from dubnb import _check
from dubnb._check import InputError
from dubnb._files import shown
from dubnb._random import generator

NAMES = ("paper", "wide")
WIDE_BUDGET = 60  # points of a named grid `wide` that are tried unless all are asked for
MOST_POINTS = 1_000_000
LARGEST_WHOLE = 1 << 53  # beyond it two whole numbers may be the same float, and so have the same key
RESERVED = {"seed": "seeds=", "backbone": "backbone=", "device": "the method's default"}


def method_class(method):
    """A Method subclass, by its name or as it is."""
    from dubnb.methods import METHODS
    from dubnb.methods._method import Method

    if isinstance(method, type) and issubclass(method, Method):
        return method
    return METHODS[_check.choice("method", method, tuple(METHODS))]


def axes(cls, backbone, grid, fixed):
    """{parameter: values} of a named grid, a TOML file or a dict, without the parameters that `fixed` sets."""
    model = cls().set_params(backbone=backbone, **fixed)
    model.resolved_params()
    if isinstance(grid, dict):
        found, where = grid, "the grid"
    elif grid in NAMES:
        found, where = model.grid(grid), f"grid {grid!r}"
    else:
        found, where = _read(grid), f"grid file {shown(grid)}"
    found = {name: _values(name, values, where) for name, values in found.items()}
    for name in found:
        if name in RESERVED:
            raise InputError(f"{where} has {name!r}: that is no axis of a grid; use {RESERVED[name]} instead")
        _check.choice("parameter", name, tuple(model.get_params()))
    if not found:
        raise InputError(f"{where} is empty: give at least one parameter with its values, such as rank = [50, 100]")
    return {name: values for name, values in found.items() if name not in fixed}


def points(grid_axes, random=None):
    """All points of the axes' product in order, or `random` of them: the first of one fixed shuffle, so more extend."""
    total = math.prod(len(values) for values in grid_axes.values())
    if total > MOST_POINTS:
        raise InputError(f"the grid has {total:,} points, at most {MOST_POINTS:,} are possible: take fewer values")
    every = [dict(zip(grid_axes, values, strict=True)) for values in itertools.product(*grid_axes.values())]
    if random is None or random >= total:
        return every
    chosen = generator(0, "sweep", "random-search").permutation(total)[:random]
    return [every[index] for index in sorted(chosen)]


def resolve(cls, backbone, fixed, point, seed):
    """All parameters of one trial, checked, as plain values."""
    model = cls().set_params(**{"backbone": backbone, **fixed, **point, "seed": seed})
    params = model.resolved_params()
    return {name: _plain(name, value) for name, value in params.items()}


def trial_key(name, params):
    """A name for the trial that depends on every parameter's value, 1 and 1.0 being the same."""
    return digest([name, sorted((name, _canonical(value)) for name, value in params.items())])


def digest(value):
    """A short hash of anything JSON can hold."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=12).hexdigest()


def _canonical(value):
    if isinstance(value, tuple):
        return [_canonical(each) for each in value]
    return repr(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _plain(name, value):
    """`value` in Python's own types, or an error: the ledger must be able to hold it."""
    value = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if isinstance(value, list | tuple):
        return tuple(_plain(name, each) for each in value)
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        raise InputError(f"{name} has a whole number beyond {LARGEST_WHOLE}: a sweep cannot tell such numbers apart")
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise InputError(f"{name} is {str(value)[:40]} in a sweep: only finite numbers, text and lists of them can be kept")


def _read(path):
    """The axes of a TOML file, one `name = [values]` per line."""
    import tomllib

    if not isinstance(path, str | os.PathLike):
        raise InputError(f"grid={path!r} must be one of {', '.join(NAMES)}, the path of a TOML file, or a dict")
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise InputError(f"grid {shown(path)} is neither {' nor '.join(NAMES)} nor a file: check its name") from None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"grid file {shown(path)} cannot be read ({reason}): write name = [values] lines") from None


def _values(name, values, where):
    """The values of one axis, each once."""
    values = values if isinstance(values, list | tuple) or hasattr(values, "tolist") else [values]
    values = [_plain(name, value) for value in values]
    if not values:
        raise InputError(f"{where} gives no value for {name!r}: give at least one or leave it out")
    distinct = {json.dumps(_canonical(value)): value for value in reversed(values)}
    return [value for value in reversed(distinct.values())]
