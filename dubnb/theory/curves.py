"""Learning curves: a metric as a power law of the number of randomized pairs, with bands for what lies beyond.

    m(n) = a + b x_c(n),  x_c(n) = (1 - n^-c) / c  (log n at c = 0),  b >= 0

c > 0: gains fade, and the curve has a ceiling; c < 0: gains still grow, as they do where the randomized log is small
beside S_c. The data are the means of the metric at the measured sizes, with a covariance of two parts:

- the test pairs: all sizes are judged on the same ones, so that the level is uncertain and differences less so
  (`test_covariance`, from the scores of every fit, with users as clusters);
- the training sample and the seed: sigma^2 / K for K fits per size, sigma^2 being their variance within sizes.

For a given c this is a linear model with a known covariance; c runs over a grid with equal prior weight, a and b have
flat priors, and flat curves stand in place of falling ones.

Beyond the largest size nothing was measured, and no law is known to go on. There the slope per e-fold gets a normal
error of FORM_ERROR times itself, so that gains may end; and growing gains (c < 0) go on growing in a share of
ACCELERATING of the draws only, and keep their rate (c = 0) in the others. On simulated logs all of this occurs: some
methods stop gaining from one size to the next, others gain faster and faster. A gain is the difference of two fits, so
each adds the noise of one fit. `python -m bench.plan_coverage` measures how often the band of a gain holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dubnb._random import generator

EXPONENTS = np.linspace(-1.0, 1.5, 26)
N_DRAWS = 4000
LEVEL = 0.9
HIGHEST = 1.0  # of a metric
FORM_ERROR = 0.75  # standard deviation of the slope beyond the largest size, as a share of the slope
ACCELERATING = 0.25  # share of the draws in which growing gains go on growing beyond the largest size
SMALLEST_SIGMA = 1e-6
_LOGARITHM = 1e-9  # |c| below which x_c is the logarithm


@dataclass(frozen=True)
class PowerLaw:
    """Draws of a (the curve's level at the largest measured size), b and c; sizes are in units of `unit`."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    sigma: float  # of one fit around the curve
    unit: float  # the largest measured size
    c_beyond: np.ndarray  # the exponents beyond `unit`
    factors: np.ndarray  # by which the slope beyond `unit` differs from that at `unit`, by draw
    luck: np.ndarray  # (draws, 2): the noise of the fits at the start and at the end of a gain

    def at(self, n: np.ndarray | list[float]) -> np.ndarray:
        """(draws, sizes): the curve at some sizes."""
        relative = np.asarray(n, dtype=np.float64)[None, :] / self.unit
        c = np.where(relative > 1, self.c_beyond[:, None], self.c[:, None])
        slopes = np.where(relative > 1, (self.b * self.factors)[:, None], self.b[:, None])
        return np.asarray(np.minimum(self.a[:, None] + slopes * basis(relative, c), HIGHEST))

    def band(self, n: np.ndarray | list[float], level: float = LEVEL) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Middle, low and high of the curve at some sizes: of the mean over fits, on other test pairs too."""
        return _quantiles(self.at(n), level)

    def gain(self, start: float, end: float, level: float = LEVEL) -> tuple[float, float, float]:
        """Middle of m(end) - m(start), and low and high of what one fit with each brings, on other test pairs too."""
        curve = self.at([start, end])
        expected = curve[:, 1:] - curve[:, :1]
        middle, *_ = _quantiles(expected, level)
        _, low, high = _quantiles(expected + self.luck[:, 1:] - self.luck[:, :1], level)
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


def fit_power_law(
    sizes: np.ndarray | list[int], values: np.ndarray, test_covariance: np.ndarray | None = None, seed: int = 0
) -> PowerLaw:
    """Fit a curve to `values`, a row per size (at least three, rising) with one value per fit.

    `test_covariance`: (sizes, sizes), of the rows' means, for all that they owe to the test pairs.
    """
    sizes, values = np.asarray(sizes, dtype=np.float64), np.asarray(values, dtype=np.float64)
    noise = _sigma(values)
    covariance = np.zeros((len(sizes),) * 2) if test_covariance is None else test_covariance
    covariance = covariance + noise**2 / values.shape[1] * np.eye(len(sizes))
    unit, rng = float(sizes[-1]), generator(seed, "power-law")
    solutions = [_solved(sizes / unit, values.mean(axis=1), covariance, c) for c in EXPONENTS]
    log_weights = np.array([solution.log_weight for solution in solutions])
    weights = np.exp(log_weights - log_weights.max())
    k = rng.choice(len(EXPONENTS), N_DRAWS, p=weights / weights.sum())
    normal = rng.standard_normal((N_DRAWS, 2))
    best = np.stack([solution.best for solution in solutions])[k]
    roots = np.stack([solution.root for solution in solutions])[k]
    a, b = (best + np.einsum("dij,dj->di", roots, normal)).T
    factors = 1 + FORM_ERROR * rng.standard_normal(N_DRAWS)
    luck = noise * rng.standard_normal((N_DRAWS, 2))
    c = EXPONENTS[k]
    c_beyond = np.where(rng.random(N_DRAWS) < ACCELERATING, c, np.maximum(c, 0.0))
    return PowerLaw(a, np.maximum(b, 0.0), c, noise, unit, c_beyond, factors, luck)


def _sigma(values: np.ndarray) -> float:
    """The standard deviation of fits of one size, pooled over sizes.

    It is inflated as Student's law is beside the normal one, since few fits tell it.
    """
    from scipy.special import stdtrit

    degrees = values.shape[0] * (values.shape[1] - 1)
    if degrees < 1:
        return SMALLEST_SIGMA
    pooled = float(np.sqrt(((values - values.mean(axis=1, keepdims=True)) ** 2).sum() / degrees))
    tail = (1 - LEVEL) / 2
    return max(pooled * float(stdtrit(degrees, 1 - tail) / stdtrit(1e9, 1 - tail)), SMALLEST_SIGMA)


@dataclass(frozen=True)
class _Solution:
    """Generalised least squares for one exponent: the posterior of (a, b) and the weight of the exponent."""

    best: np.ndarray
    root: np.ndarray  # of the posterior's covariance
    log_weight: float


def _solved(relative: np.ndarray, means: np.ndarray, covariance: np.ndarray, c: float) -> _Solution:
    """With X = [1, x_c] and V the inverse covariance: best = (X' V X)^-1 X' V y, and the exponent weighs
    |X' V X|^-1/2 exp(-residual / 2)."""
    X = np.column_stack([np.ones(len(relative)), basis(relative, np.full(len(relative), c))])
    VX, Vy = (np.linalg.solve(covariance, each) for each in (X, means))
    precision = X.T @ VX
    best = np.linalg.solve(precision, X.T @ Vy)
    left = means - X @ best
    residual = float(left @ np.linalg.solve(covariance, left))
    root = np.linalg.cholesky(np.linalg.inv(precision))
    return _Solution(best, root, -0.5 * (float(np.linalg.slogdet(precision)[1]) + residual))
