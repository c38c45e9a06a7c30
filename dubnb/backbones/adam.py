"""Adam: lazy for embedding rows (only rows in the batch move), dense for other parameters.

m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  w <- w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

t is the global step, as in torch's SparseAdam; eps is added to the bias-corrected root. Rows outside the batch keep
their moments.
"""

import math
from typing import NamedTuple

import numpy as np

from dubnb._jit import njit
from dubnb.backbones import embedding as emb

BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8
_KEEP_1, _NEW_1 = np.float32(BETA_1), np.float32(1.0 - BETA_1)
_KEEP_2, _NEW_2 = np.float32(BETA_2), np.float32(1.0 - BETA_2)
_EPS = np.float32(EPS)
_LONG = 0x10000  # above this exponent Numba's `**` calls the C library's pow


class Rates(NamedTuple):
    """Step t's constants: lr / (1 - b1^t) and 1 / (1 - b2^t)."""

    step: np.float32
    inverse: np.float32


@njit
def power(base, n):
    """base^n for n = 0, 1, ..., bit for bit Numba's `**`, whose other cases would take .3 s to compile."""
    if n > _LONG:
        return math.pow(base, float(n))
    result = 1.0
    while n != 0:
        if n & 1:
            result *= base
        n >>= 1
        base *= base
    return result


@njit
def rates(lr, t):
    """The constants of step t = 1, 2, ..."""
    return Rates(np.float32(lr / (1.0 - power(BETA_1, t))), np.float32(1.0 / (1.0 - power(BETA_2, t))))


@njit
def update(w, m, v, g, now):
    """One coordinate's Adam step: the new (w, m, v)."""
    m = _KEEP_1 * m + _NEW_1 * g
    v = _KEEP_2 * v + _NEW_2 * g * g
    return w - now.step * m / (math.sqrt(v * now.inverse) + _EPS), m, v


@njit(inline=True)
def update_row(w, m, v, gradient, decay, now):
    """Adam step of a row with g = gradient + decay w, coordinate by coordinate."""
    w, m, v, gradient, decay = emb.as_span(w), emb.as_span(m), emb.as_span(v), emb.as_span(gradient), emb.as_span(decay)
    for k in range(len(gradient)):
        w[k], m[k], v[k] = update(w[k], m[k], v[k], gradient[k] + decay[k] * w[k], now)
