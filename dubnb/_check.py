"""Input checks. Every message is one line with the value, the rule and the remedy.

`whole`, `real`, `choice` check one value and return it in Python's own type; `wholes`, `reals`, `choices` make such a
check for parameters, `(name, value) -> value`.
"""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

LARGEST_WHOLE = 2**31 - 1  # the largest count or size that is accepted: a larger one is a mistake
LONGEST_SHOWN = 60  # characters of a value in a message

Check = Callable[[str, Any], Any]

_shell_names: contextvars.ContextVar[Mapping[str, str] | None] = contextvars.ContextVar("_shell_names", default=None)


class InputError(ValueError):
    """Bad input or wrong use: the command line prints it as one line and exits with code 2."""


class NotFittedError(InputError, AttributeError):
    """A method that needs a fitted model was called before `fit`."""


class DivergenceError(ArithmeticError):
    """Training produced a parameter that is not finite."""


class Terminated(KeyboardInterrupt):
    """SIGTERM was received. It stops and cleans up as Ctrl-C does."""


@contextlib.contextmanager
def cli_option_names(names: Mapping[str, str] | None) -> Iterator[None]:
    """Name parameters as options in messages inside the block: --threshold instead of threshold=.

    `names` maps parameters whose option has another name; with None they are named as in Python.
    """
    token = _shell_names.set(names)
    try:
        yield
    finally:
        _shell_names.reset(token)


def option_names() -> Mapping[str, str] | None:
    """What `cli_option_names` was given, for a task that another process runs."""
    return _shell_names.get()


def option(name: str, sign: str = "=") -> str:
    """A parameter as the reader of a message writes it: threshold= in Python, --threshold on the command line."""
    names = _shell_names.get()
    return name + sign if names is None else names.get(name, "--" + name.replace("_", "-"))


def switch(name: str) -> str:
    """A parameter that is set to true: overwrite=True, or --overwrite."""
    return option(name) + ("True" if _shell_names.get() is None else "")


def setting(name: str, value: Any) -> str:
    """A parameter with its value in the same way: user_type='str', or --user-type str."""
    return option(name) + repr(value) if _shell_names.get() is None else f"{option(name)} {value}"


def short_repr(value: Any) -> str:
    """`value` as a message shows it: on one line and shortened; its repr may fail."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def choice(name: str, value: Any, allowed: Sequence[str]) -> str:
    """`value` must be one of `allowed`; the message names the closest."""
    if isinstance(value, str) and value in allowed:
        return str(value)
    near = difflib.get_close_matches(str(value), allowed) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"{name}={short_repr(value)} is unknown: choose one of {', '.join(allowed)}{hint}")


def whole(name: str, value: Any, low: int = 1, high: int = LARGEST_WHOLE) -> int:
    """`value` must be a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < low:
        raise InputError(f"{name}={short_repr(value)} must be a whole number of at least {low}")
    if int(value) > high:
        raise InputError(f"{name}={short_repr(value)} must be at most {high:,}: take a smaller number")
    return int(value)


def real(name: str, value: Any, low: float = 0.0, high: float = math.inf, open_low: bool = False) -> float:
    """`value` must be a finite number in [low, high] (or (low, high])."""
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, numbers.Real) else float(value)
    except (OverflowError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name}={short_repr(value)} must be a finite number")
    if number < low or number > high or (open_low and number == low):
        above = "above" if open_low else "at least"
        raise InputError(
            f"{name}={short_repr(value)} must be {above} {low:g}"
            + ("" if high == math.inf else f" and at most {high:g}")
        )
    return number


def flag(name: str, value: Any) -> bool:
    """`value` must be True or False."""
    if not isinstance(value, bool) and not (hasattr(value, "dtype") and value.dtype == bool and value.ndim == 0):
        raise InputError(f"{name}={short_repr(value)} must be True or False")
    return bool(value)


def string(name: str, value: Any) -> str:
    """`value` must be a string."""
    if not isinstance(value, str):
        raise InputError(f"{name}={short_repr(value)} must be a string")
    return str(value)


def powers(name: str, value: Any) -> float | tuple[float, float]:
    """`value` must be a number of at least 0, or two of them: (for users, for items)."""
    if not isinstance(value, tuple | list):
        return real(name, value)
    if len(value) != 2:
        raise InputError(f"{name}={short_repr(value)} must be a number, or two: (for users, for items)")
    return real(name, value[0]), real(name, value[1])


def wholes(low: int = 1, high: int = LARGEST_WHOLE) -> Check:
    """A check for whole numbers."""
    return lambda name, value: whole(name, value, low, high)


def reals(low: float = 0.0, high: float = math.inf, open_low: bool = False) -> Check:
    """A check for finite numbers."""
    return lambda name, value: real(name, value, low, high, open_low)


def choices(allowed: Sequence[str]) -> Check:
    """A check for one of the allowed words."""
    return lambda name, value: choice(name, value, allowed)


def optional(check: Check) -> Check:
    """A check that None passes."""
    return lambda name, value: None if value is None else check(name, value)


def hidden(name: str, value: Any) -> tuple[int, ...] | None:
    """Widths of the hidden layers of ncf; None stands for one layer of width 2 rank."""
    if value is None:
        return None
    if not isinstance(value, tuple | list):
        raise InputError(f"{name}={short_repr(value)} must list the widths of the hidden layers, such as (64,)")
    return tuple(whole(name, width) for width in value)
