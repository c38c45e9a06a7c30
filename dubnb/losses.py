"""Losses: a value and a derivative as scalar functions of a raw score s and a real target y.

Kernels choose a loss by its integer code. p = sigmoid(s) is the prediction of losses with a link. Derivatives are with
respect to s. Targets are never clipped: those of term e.2 lie in (-1, 1), where bce is unbounded below, on purpose.
"""

import math
from typing import NamedTuple

import numpy as np

from dubnb._jit import njit

BCE, MSE, SQUARED, MAE, ZERO_ONE, LINEAR = range(6)
_ZERO, _ONE, _TWO = np.float32(0.0), np.float32(1.0), np.float32(2.0)


class Loss(NamedTuple):
    """Properties of a loss that training and the bound depend on."""

    code: int
    link: bool  # predictions are sigmoid(s); without a link they are s itself
    triangle: bool  # l(c, a) <= l(b, a) + l(c, b): Eq. 1 is a proven bound
    separable: bool  # l(c, a) <= l(b, a) + l(c - b, a) for any real b, c: Eq. 2 is a proven bound
    symmetric: bool  # l(p, q) = l(q, p): term d's gradient also reaches M_t in joint training
    affine: bool  # dl/ds is affine in the target: samples of one pair can be merged into one
    equation: int  # which objective dub minimises: 1 or 2; 0 where the loss cannot train


LOSSES = {
    "bce": Loss(BCE, link=True, triangle=False, separable=True, symmetric=False, affine=True, equation=2),
    "mse": Loss(MSE, link=True, triangle=False, separable=False, symmetric=True, affine=True, equation=2),
    "squared": Loss(SQUARED, link=False, triangle=False, separable=False, symmetric=True, affine=True, equation=2),
    "mae": Loss(MAE, link=True, triangle=True, separable=False, symmetric=True, affine=False, equation=1),
    "zero_one": Loss(ZERO_ONE, link=True, triangle=True, separable=False, symmetric=True, affine=False, equation=0),
}
TRAINABLE = tuple(name for name, loss in LOSSES.items() if loss.equation)


@njit
def sigmoid(s):
    """1 / (1 + exp(-s)), stable on both sides."""
    z = math.exp(-abs(s))
    return (_ONE if s >= 0 else z) / (_ONE + z)


@njit
def slope(s):
    """dp/ds = p (1 - p), as z / (1 + z)^2 with z = exp(-|s|): p (1 - p) itself would round to 0 for large s."""
    z = math.exp(-abs(s))
    return z / ((_ONE + z) * (_ONE + z))


@njit
def bce_value(s, y):
    """softplus(s) - y s: the cross-entropy of p against y; exact, without dropped constants, for y in {0, 1}.

    The error of log(1 + z) is at most one rounding of 1 (6e-8 in float32). log1p is exact but took a sixth of an epoch.
    """
    return (s if s > _ZERO else _ZERO) + math.log(_ONE + math.exp(-abs(s))) - y * s


@njit
def bce_derivative(s, y):
    """p - y."""
    return sigmoid(s) - y


@njit
def mse_value(s, y):
    """(p - y)^2."""
    error = sigmoid(s) - y
    return error * error


@njit
def mse_derivative(s, y):
    """2 (p - y) p (1 - p)."""
    return _TWO * (sigmoid(s) - y) * slope(s)


@njit
def squared_value(s, y):
    """(s - y)^2, no link."""
    return (s - y) * (s - y)


@njit
def squared_derivative(s, y):
    """2 (s - y)."""
    return _TWO * (s - y)


@njit
def mae_value(s, y):
    """|p - y|."""
    return abs(sigmoid(s) - y)


@njit
def mae_derivative(s, y):
    """sign(p - y) p (1 - p), and 0 where p = y."""
    p = sigmoid(s)
    sign = _ONE if p > y else (-_ONE if p < y else _ONE - _ONE)
    return sign * slope(s)


@njit
def zero_one_value(s, y):
    """[(p > .5) != (y > .5)]: for evaluating the bound only, because it has no useful derivative."""
    return _ONE if (s > 0) != (y > 0.5) else _ONE - _ONE


@njit(inline=True)
def value_and_derivative(code, s, y):
    """l(s, y) and dl/ds of the trainable loss with this code; computed together, they share the exponential."""
    if code == BCE:
        return bce_value(s, y), bce_derivative(s, y)
    if code == MSE:
        return mse_value(s, y), mse_derivative(s, y)
    if code == SQUARED:
        return squared_value(s, y), squared_derivative(s, y)
    if code == MAE:
        return mae_value(s, y), mae_derivative(s, y)
    if code == LINEAR:  # the target is the slope: for objectives that couple scores
        return y * s, y
    raise ValueError("no branch for this loss code in value_and_derivative: add one")


@njit
def loss_value(code, s, y):
    """l(s, y) of the loss with this code."""
    if code == ZERO_ONE:
        return zero_one_value(s, y)
    return value_and_derivative(code, s, y)[0]


@njit
def derivative(code, s, y):
    """dl/ds of the loss with this code."""
    return value_and_derivative(code, s, y)[1]


@njit
def predict(scores, link):
    """Turn raw scores into predictions, in place: sigmoid if the loss has a link, else unchanged."""
    if link:
        for j in range(len(scores)):
            scores[j] = sigmoid(scores[j])
    return scores
