"""Input checks. Every message is one line with the value, the rule and the remedy."""

import difflib
import math
import numbers


class InputError(ValueError):
    """Bad input or wrong use: the command line prints it as one line and exits with code 2."""


class NotFittedError(InputError, AttributeError):
    """A method that needs a fitted model was called before `fit`."""


class DivergenceError(ArithmeticError):
    """Training produced a parameter that is not finite."""


def choice(name, value, allowed):
    """`value` must be one of `allowed`; the message names the closest."""
    if value in allowed:
        return value
    near = difflib.get_close_matches(str(value), [str(a) for a in allowed], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"{name}={value!r} is unknown: choose one of {', '.join(map(str, allowed))}{hint}")


def whole(name, value, low=1):
    """`value` must be a whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low:
        raise InputError(f"{name}={value!r} must be a whole number of at least {low}")
    return int(value)


def real(name, value, low=0.0, high=math.inf, open_low=False):
    """`value` must be a finite number in [low, high] (or (low, high])."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise InputError(f"{name}={value!r} must be a finite number")
    if value < low or value > high or (open_low and value == low):
        above = "above" if open_low else "at least"
        raise InputError(
            f"{name}={value!r} must be {above} {low:g}" + ("" if high == math.inf else f" and at most {high:g}")
        )
    return float(value)
