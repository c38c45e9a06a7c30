"""Learning curves: a metric as a power law of the number of randomized pairs, with bands for what lies beyond.

    m(n) = a + b x_c(n),  x_c(n) = (1 - n^-c) / c  (log n at c = 0),  b >= 0

c > 0: gains fade, and the curve has a ceiling; c < 0: gains still grow, as they do where the randomized log is small
beside S_c. For a given c this is a linear model with normal noise; c runs over a grid with equal prior weight. Draws
from the posterior (flat in a, b and log sigma, and flat curves in place of falling ones) give bands that widen with the
distance from what was measured, because curves of different c agree on the data and part beyond them. No such law is
exact: by how much the one through the smaller sizes misses the largest, per e-fold, is taken for the standard deviation
of what it will miss beyond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dubnb._random import generator

EXPONENTS = np.linspace(-1.0, 1.5, 26)
N_DRAWS = 4000
LEVEL = 0.9
HIGHEST = 1.0  # of a metric
FEWEST_SIZES = 3  # of a law
_LOGARITHM = 1e-9  # |c| below which x_c is the logarithm


@dataclass(frozen=True)
class PowerLaw:
    """Draws of a (the curve's level at the measured sizes), b and c; sizes are in units of `unit`."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    offsets: np.ndarray  # the mean of x_c over the measured sizes, by draw
    sigma: float  # of one fit around the curve
    unit: float  # the largest measured size
    drifts: np.ndarray  # what the law will miss per e-fold beyond `unit`, by draw

    def at(self, n: np.ndarray | list[float]) -> np.ndarray:
        """(draws, sizes): the curve at some sizes."""
        relative = np.asarray(n, dtype=np.float64)[None, :] / self.unit
        curve = self.a[:, None] + self.b[:, None] * (basis(relative, self.c[:, None]) - self.offsets[:, None])
        beyond = np.log(np.maximum(relative, 1.0))
        return np.asarray(np.minimum(curve + self.drifts[:, None] * beyond, HIGHEST))

    def band(self, n: np.ndarray | list[float], level: float = LEVEL) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Middle, low and high of the curve at some sizes."""
        return _quantiles(self.at(n), level)

    def gain(self, start: float, end: float, level: float = LEVEL) -> tuple[float, float, float]:
        """Middle, low and high of m(end) - m(start)."""
        curve = self.at([start, end])
        middle, low, high = _quantiles(curve[:, 1:] - curve[:, :1], level)
        return float(middle[0]), float(low[0]), float(high[0])


def basis(n: np.ndarray, c: np.ndarray) -> np.ndarray:
    """x_c(n)."""
    logarithm = np.abs(c) < _LOGARITHM
    safe = np.where(logarithm, 1.0, c)
    return np.asarray(np.where(logarithm, np.log(n), (1 - n**-safe) / safe))


def _quantiles(draws: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tail = (1 - level) / 2
    low, middle, high = np.quantile(draws, [tail, 0.5, 1 - tail], axis=0)
    return middle, low, high


def fit_power_law(sizes: np.ndarray, values: np.ndarray, level_error: float = 0.0, seed: int = 0) -> PowerLaw:
    """Fit a curve to `values` (one per fit) measured at `sizes` (parallel; at least three distinct ones).

    `level_error`: the standard error of what all fits share, such as the test pairs: it moves the whole curve, so it
    widens bands but not gains.

    With x centred, level and slope are independent given c: a ~ N(mean, sigma^2 / N), b ~ N(best, sigma^2 / Sxx), and
    c's weight is Sxx^-1/2 sse^-(N - 2)/2.
    """
    sizes, values = np.asarray(sizes, dtype=np.float64), np.asarray(values, dtype=np.float64)
    unit, N = float(sizes.max()), len(values)
    x = np.stack([basis(sizes / unit, np.full(N, c)) for c in EXPONENTS])
    offsets = x.mean(axis=1)
    centred, y = x - offsets[:, None], values - values.mean()
    sxx = (centred**2).sum(axis=1)
    slopes = centred @ y / sxx
    sse = np.maximum(((y - slopes[:, None] * centred) ** 2).sum(axis=1), 1e-18)
    log_weights = -0.5 * np.log(sxx / sxx.max()) - 0.5 * (N - 2) * np.log(sse)
    weights = np.exp(log_weights - log_weights.max())
    rng = generator(seed, "power-law")
    k = rng.choice(len(EXPONENTS), N_DRAWS, p=weights / weights.sum())
    sigma = np.sqrt(sse[k] / rng.chisquare(N - 2, N_DRAWS))
    a = values.mean() + np.sqrt(sigma**2 / N + level_error**2) * rng.standard_normal(N_DRAWS)
    b = np.maximum(slopes[k] + sigma / np.sqrt(sxx[k]) * rng.standard_normal(N_DRAWS), 0.0)
    drifts = _miss(sizes, values, seed) * rng.standard_normal(N_DRAWS)
    return PowerLaw(a, b, EXPONENTS[k], offsets[k], float(np.median(sigma)), unit, drifts)


def _miss(sizes: np.ndarray, values: np.ndarray, seed: int) -> float:
    """By how much the law of all sizes but the largest misses that one, per e-fold; 0 where too few are left."""
    distinct = np.unique(sizes)
    if len(distinct) < FEWEST_SIZES + 1:
        return 0.0
    last = sizes == distinct[-1]
    law = fit_power_law(sizes[~last], values[~last], seed=seed)
    own = PowerLaw(law.a, law.b, law.c, law.offsets, law.sigma, law.unit, np.zeros(N_DRAWS))
    miss = abs(float(own.band([distinct[-1]])[0][0]) - float(values[last].mean()))
    return miss / float(np.log(distinct[-1] / distinct[-2]))
