"""`dubnb.plan(data)`: what more randomized traffic would gain, and what it would cost.

Methods are fitted on nested samples of the randomized log: S_t and, where S_te is larger than S_t, half of S_te. All
are judged on the rest of S_te. A power law continues each learning curve beyond the largest size, where everything is
marked as extrapolated. A plan starts from |S_t| + |S_va| + |S_te|, because the shipped model trains on the whole
randomized log (`fit(data, refit="all")`).

The curve of a metric by the number n of randomized pairs is

    m(n) = a + b x_c(n),  x_c(n) = (1 - n^-c) / c  (log n at c = 0),  b >= 0

With c > 0 gains fade and the curve has a ceiling. With c < 0 gains still grow, as they do where the randomized log is
small beside S_c. The data are the means of the metric at the measured sizes, with a covariance of two parts:

- the test pairs: all sizes are judged on the same ones, so the level is uncertain and differences less so
  (`test_covariance`, from the scores of every fit, with users as clusters);
- the training sample and the seed: sigma^2 / K for K fits per size, where sigma^2 is their variance within sizes.

For a given c this is a linear model with a known covariance. c runs over a grid with equal prior weight, a and b have
flat priors, and flat curves replace falling ones.

No law is known to hold beyond the largest size. There the slope per e-fold gets a normal error of FORM_ERROR times
itself, so that gains may end. Growing gains (c < 0) continue to grow in a share ACCELERATING of the draws and keep
their rate (c = 0) in the others. Simulated logs show all of this: some methods stop gaining from one size to the next,
others gain faster and faster. A gain is the difference of two fits, so each adds the noise of one fit.
`python -m bench.plan_coverage` measures how often the band of a gain holds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.choice import auc_influence, mean_influence
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.data.pattern import joined
from dubnb.evaluation import weights_of_users
from dubnb.report import tables
from dubnb.theory import uniformity
from dubnb.theory.selection import positive_rates
from dubnb.theory.uniformity import randomized_log, randomized_weights

if TYPE_CHECKING:
    import os

    from dubnb.sweeps.worker import TestOutput

PLANNED = ("base", "unif", "combine", "bridge", "dub", "dub-x")
BEST = "dub-x"  # our best system
FITTED_ONCE = ("base",)  # does not read S_t: one fit per seed serves all sizes
PLANNED_METRICS = ("auc", "ndcg")
HORIZON = 5.0  # how far curves are drawn, in units of the randomized log
FARTHEST = 5  # how far the end of the gain is searched, in units of the randomized log
SMALLEST_S_T = 40  # fewest pairs of S_t that a plan can start from
SMALLEST_GROWTH = 1.5  # smallest ratio of two neighbouring sizes
SMALLEST_SHARE = 16  # the smallest size is the pool divided by this

EPSILONS = (0.1, 0.3)
STRATA = ("rarest third", "middle third", "most popular third")
WORTHWHILE = 1.1  # how much more efficient strata must be

EXPONENTS = np.linspace(-1.0, 1.5, 26)
CURVE_DRAWS = 4000
BAND_LEVEL = 0.9
HIGHEST = 1.0  # the largest value of a metric
FORM_ERROR = 0.75  # standard deviation of the slope beyond the largest size, as a share of the slope
ACCELERATING = 0.25  # share of the draws in which growing gains continue to grow beyond the largest size
SMALLEST_SIGMA = 1e-6
_LOGARITHM = 1e-9  # |c| below which x_c is the logarithm


class PlanBudget(NamedTuple):
    """How much a plan fits: models per size, number of sizes, and the maximum number of epochs."""

    seeds: int
    sizes: int
    epochs: int | None


PLAN_BUDGETS = {"smoke": PlanBudget(2, 3, 2), "quick": PlanBudget(3, 5, None), "full": PlanBudget(6, 6, None)}


# ---- learning curves -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PowerLaw:
    """A learning curve as draws of a (its level at the largest measured size), b and c; sizes in units of `unit`."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    sigma: float  # standard deviation of one fit around the curve
    unit: float  # the largest measured size
    c_beyond: np.ndarray  # the exponents beyond `unit`
    factors: np.ndarray  # slope beyond `unit` / slope at `unit`, by draw
    luck: np.ndarray  # (draws, 2): the noise of the fits at the start and at the end of a gain

    def at(self, n: np.ndarray | list[float]) -> np.ndarray:
        """(draws, sizes): the curve at some sizes."""
        relative = np.asarray(n, dtype=np.float64)[None, :] / self.unit
        c = np.where(relative > 1, self.c_beyond[:, None], self.c[:, None])
        slopes = np.where(relative > 1, (self.b * self.factors)[:, None], self.b[:, None])
        return np.asarray(np.minimum(self.a[:, None] + slopes * basis(relative, c), HIGHEST))

    def band(self, n: np.ndarray | list[float], level: float = BAND_LEVEL) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Median, low and high of the curve at some sizes: of the mean over fits, also on other test pairs."""
        return _quantiles(self.at(n), level)

    def gain(self, start: float, end: float, level: float = BAND_LEVEL) -> tuple[float, float, float]:
        """Median of m(end) - m(start), and the band of the difference of one fit each, also on other test pairs."""
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
    """Fit a curve to `values`: one row per size (at least three, ascending) with one value per fit.

    `test_covariance` (sizes, sizes) is the part of the covariance of the rows' means that comes from the test pairs.
    """
    sizes, values = np.asarray(sizes, dtype=np.float64), np.asarray(values, dtype=np.float64)
    noise = _sigma(values)
    covariance = np.zeros((len(sizes),) * 2) if test_covariance is None else test_covariance
    covariance = covariance + noise**2 / values.shape[1] * np.eye(len(sizes))
    unit, rng = float(sizes[-1]), generator(seed, "power-law")
    solved = [_solve_exponent(sizes / unit, values.mean(axis=1), covariance, c) for c in EXPONENTS]
    all_best, all_roots, log_weights = (np.array(column) for column in zip(*solved, strict=True))
    weights = np.exp(log_weights - log_weights.max())
    k = rng.choice(len(EXPONENTS), CURVE_DRAWS, p=weights / weights.sum())
    normal = rng.standard_normal((CURVE_DRAWS, 2))
    a, b = (all_best[k] + np.einsum("dij,dj->di", all_roots[k], normal)).T
    factors = 1 + FORM_ERROR * rng.standard_normal(CURVE_DRAWS)
    luck = noise * rng.standard_normal((CURVE_DRAWS, 2))
    c = EXPONENTS[k]
    c_beyond = np.where(rng.random(CURVE_DRAWS) < ACCELERATING, c, np.maximum(c, 0.0))
    return PowerLaw(a, np.maximum(b, 0.0), c, noise, unit, c_beyond, factors, luck)


def _sigma(values: np.ndarray) -> float:
    """The standard deviation of fits of one size, pooled over sizes.

    Few fits estimate it badly, so it is inflated by the ratio of Student's quantile to the normal one.
    """
    from scipy.special import stdtrit

    degrees = values.shape[0] * (values.shape[1] - 1)
    if degrees < 1:
        return SMALLEST_SIGMA
    pooled = float(np.sqrt(((values - values.mean(axis=1, keepdims=True)) ** 2).sum() / degrees))
    tail = (1 - BAND_LEVEL) / 2
    return max(pooled * float(stdtrit(degrees, 1 - tail) / stdtrit(1e9, 1 - tail)), SMALLEST_SIGMA)


def _solve_exponent(
    relative: np.ndarray, means: np.ndarray, covariance: np.ndarray, c: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Generalised least squares for one exponent: (best (a, b), root of their covariance, log weight of the exponent).

    With X = [1, x_c] and V the inverse covariance: best = (X' V X)^-1 X' V y, and the weight of the exponent is
    |X' V X|^-1/2 exp(-residual / 2).
    """
    X = np.column_stack([np.ones(len(relative)), basis(relative, np.full(len(relative), c))])
    VX, Vy = (np.linalg.solve(covariance, each) for each in (X, means))
    precision = X.T @ VX
    best = np.linalg.solve(precision, X.T @ Vy)
    left = means - X @ best
    residual = float(left @ np.linalg.solve(covariance, left))
    root = np.linalg.cholesky(np.linalg.inv(precision))
    return best, root, -0.5 * (float(np.linalg.slogdet(precision)[1]) + residual)


# ---- the plan ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A metric of one method by the number of randomized pairs trained on."""

    method: str
    metric: str
    sizes: tuple[int, ...]  # measured
    values: tuple[tuple[float, ...], ...]  # per size, one per seed
    law: PowerLaw

    def means(self) -> np.ndarray:
        """Mean over seeds at the measured sizes."""
        return np.array([np.mean(own) for own in self.values])

    def to_dict(self, beyond: Sequence[float]) -> dict[str, Any]:
        """Measured values, and the band at measured and further sizes."""
        at = [*self.sizes, *beyond]
        middle, low, high = self.law.band(np.array(at))
        columns = zip(at, middle, low, high, strict=True)
        bands = [
            {"size": float(n), "expected": float(m), "low": float(lo), "high": float(hi)}
            | {"extrapolated": n > self.sizes[-1]}
            for n, m, lo, hi in columns
        ]
        measured = [{"size": n, "values": list(own)} for n, own in zip(self.sizes, self.values, strict=True)]
        return {"method": self.method, "metric": self.metric, "measured": measured, "bands": bands}


@dataclass(frozen=True)
class Price:
    """What a random impression costs: the positives that the logging policy would have had."""

    policy_rate: float
    random_rate: float
    forgone: float  # positives per random impression
    low: float
    high: float
    share: float  # the loss as a share of the policy's positives


class Spending(NamedTuple):
    """One way to spend impressions: what it is worth, what it costs, and what it brings."""

    design: str
    impressions: int
    effective: float  # uniform pairs that the weighted ones are worth
    forgone: float  # likes, with a 95 % interval
    forgone_low: float
    forgone_high: float
    gain: float  # of the best method's AUC, with the 90 % band of its curve
    gain_low: float
    gain_high: float


class Stratum(NamedTuple):
    """A third of the items by popularity in S_c, and the share of random impressions that it deserves."""

    name: str
    pairs: int  # in the randomized log
    rate: float  # of positives
    share: float  # by Neyman's (1934) rule: in proportion to items x standard deviation of the label


@dataclass(frozen=True)
class Plan:
    """Learning curves by (method, metric), the price of exploration, and the conclusion in one sentence."""

    data: str
    budget: str
    n_t: int  # |S_t|
    n_random: int  # the whole randomized log, which the shipped model trains on
    n_test: int
    curves: dict[tuple[str, str], Curve]
    price: Price
    more: int  # random impressions that the sentence is about
    sentence: str
    caveat: str  # to be shown right below the sentence
    notes: tuple[str, ...]
    spendings: tuple[Spending, ...] = ()  # of `impressions=`
    strata: tuple[Stratum, ...] = ()

    def beyond(self) -> list[float]:
        """Sizes beyond the largest measured one, up to the horizon."""
        largest, horizon = next(iter(self.curves.values())).sizes[-1], HORIZON * self.n_random
        return [] if horizon <= largest else [float(n) for n in np.geomspace(largest, horizon, 5)[1:]]

    def to_dict(self) -> dict[str, Any]:
        """The plan as a dictionary of JSON types."""
        return {
            "data": self.data,
            "budget": self.budget,
            "S_t": self.n_t,
            "randomized_pairs": self.n_random,
            "test_pairs": self.n_test,
            "curves": [curve.to_dict(self.beyond()) for curve in self.curves.values()],
            "price": asdict(self.price),
            "sentence": self.sentence,
            "caveat": self.caveat,
            "notes": list(self.notes),
            "spendings": [each._asdict() for each in self.spendings],
            "strata": [each._asdict() for each in self.strata],
        }

    def text(self) -> str:
        """The report as text."""
        lines = [f"plan for {self.data}: {self.n_random:,} randomized pairs today", "", self.sentence, self.caveat, ""]
        measured, beyond = next(iter(self.curves.values())).sizes, self.beyond()
        sizes = [*(f"{n:,.0f}" for n in measured), *(f"{n:,.0f}*" for n in beyond)]
        for metric in PLANNED_METRICS:
            rows = []
            for (method, own), curve in self.curves.items():
                if own == metric:
                    extrapolated = curve.law.band(np.array(beyond))[0] if beyond else ()
                    rows.append([method, *(float(x) for x in curve.means()), *(float(x) for x in extrapolated)])
            lines += [tables.text([metric, *sizes], rows, "<" + ">" * len(sizes)), ""]
        note = "* extrapolated by a power law: median of the 90 % band"
        return "\n".join([*lines, note, price_text(self.price), *self.notes, *self._spending_lines()])

    def _spending_lines(self) -> list[str]:
        """The tables of `impressions=`."""
        if not self.spendings:
            return []
        rows = [
            [
                each.design,
                f"{each.impressions:,}",
                f"{each.effective:,.0f}",
                f"{each.forgone:,.0f} ({each.forgone_low:,.0f} to {each.forgone_high:,.0f})",
                f"{each.gain:+.4f} ({each.gain_low:+.4f} to {each.gain_high:+.4f})",
            ]
            for each in self.spendings
        ]
        header = ["design", "impressions", "worth uniform", "likes forgone", "gain in AUC"]
        thirds = [[each.name, f"{each.pairs:,}", f"{each.rate:.3f}", f"{each.share:.0%}"] for each in self.strata]
        strata = ["items by popularity", "random pairs", "liked", "best share"]
        return ["", tables.text(header, rows, "<>>>>"), "", tables.text(strata, thirds, "<>>>")]

    def __str__(self) -> str:
        return self.text()


def price_text(price: Price) -> str:
    """The price of exploration in a sentence."""
    return (
        f"Price: {price.policy_rate:.1%} of the policy's impressions are positive and {price.random_rate:.1%} of "
        f"random ones. So 1,000 random impressions forgo {1000 * price.forgone:,.0f} ({1000 * price.low:,.0f} to "
        f"{1000 * price.high:,.0f}) positives, {price.share:.0%} of the policy's."
    )


def plan(
    data: Partition,
    *,
    budget: str = "quick",
    methods: Sequence[str] = PLANNED,
    more: int | None = None,
    impressions: int | None = None,
    out: str | os.PathLike[str] | None = None,
    n_jobs: int = 1,
    seed: int = 0,
    quiet: bool = True,
) -> Plan:
    """Estimate what more randomized traffic would gain and cost, for anyone who decides how much to collect.

    Fits learning curves of AUC and nDCG over growing samples of the randomized log and extrapolates them, with bands.
    `print` shows the conclusion, its caveat and the curves.

    Parameters
    ----------
    data : Partition
        The logs. S_t, S_va and S_te must each have positives and negatives.
    budget : {"smoke", "quick", "full"}
        2, 3 or 6 fits per size and method. "smoke" trains two epochs and only checks that everything runs.
    methods : sequence of str
        Methods to fit, with the defaults that suit the log.
    more : int, optional
        Uniform random impressions that the conclusion is about; by default as many as the randomized log has.
    impressions : int, optional
        Impressions that could be spent on exploration. The plan then says how many to spend, uniform or
        epsilon-greedy, on which items, how many likes that forgoes and what it gains. Replaces `more`.
    out : path, optional
        Directory of the fits; a second run resumes there. By default a temporary one.
    n_jobs : int
        Number of worker processes.
    seed : int
        Seed of the samples and of the first model.
    quiet : bool
        Whether to hide the progress bar.

    Returns
    -------
    Plan
        Curves, price and conclusion; `.text()` and `.to_dict()`.

    Examples
    --------
    >>> plan = dubnb.plan(dubnb.load_dataset("simulated"), budget="smoke")
    >>> print(plan.sentence)  # doctest: +SKIP
    """
    own = PLAN_BUDGETS[_check.choice("budget", budget, tuple(PLAN_BUDGETS))]
    _check_logs(data)
    methods = _checked_methods(methods)
    n_t, n_random = len(data.triplets("S_t").users), len(randomized_log(data).users)
    if impressions is not None:
        if more is not None:
            raise InputError("more= and impressions= are given: keep one, the number of impressions to plan for")
        more = _check.whole("impressions", impressions)
    more = n_random if more is None else _check.whole("more", more)
    seed = _check.whole("seed", seed, low=0)
    logs = nested_logs(data, own, seed)
    fits = _fit_all(logs, methods, own, out, n_jobs, seed, quiet)
    curves = {
        (method, metric): _curve(method, metric, fits[method], seed) for method in methods for metric in PLANNED_METRICS
    }
    best = BEST if BEST in methods else max(methods, key=lambda name: float(curves[name, "auc"].means()[-1]))
    price, spent = price_of(data), None
    uniform = pairs_per_uniform(data)
    if impressions is not None:
        spent = spend(data, curves[best, "auc"], price, n_random, more, uniform)
    smoke = "Budget smoke checks that everything runs: too few epochs for any conclusion."
    return Plan(
        data=data.name,
        budget=budget,
        n_t=n_t,
        n_random=n_random,
        n_test=len(next(iter(logs.values())).triplets("S_te").users),
        curves=curves,
        price=price,
        more=more,
        sentence=_sentence(curves[best, "auc"], n_random, more, uniform),
        caveat=_caveat(n_random, curves[best, "auc"], more * uniform, budget),
        notes=(
            f"{own.seeds} fits per size and method, each with its own sample. Bands of the curves hold "
            f"{BAND_LEVEL:.0%} of what the mean over fits could be, also on other test pairs.",
            *([smoke] if budget == "smoke" else []),
            *(() if spent is None else spent[2]),
        ),
        spendings=() if spent is None else spent[0],
        strata=() if spent is None else spent[1],
    )


def _check_logs(data: Any) -> None:
    if not isinstance(data, Partition):
        raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset returns")
    for part in ("S_t", "S_va", "S_te"):
        labels = data.triplets(part).labels
        if not len(labels) or labels.min() == labels.max():
            what = "is empty" if not len(labels) else f"has labels of one class only ({labels[0]:g})"
            raise InputError(f"{part} {what}: a plan needs positives and negatives in S_t, S_va and S_te")
    n_t = len(data.triplets("S_t").users)
    if n_t < SMALLEST_S_T:
        raise InputError(f"S_t has {n_t} pairs: a learning curve needs at least {SMALLEST_S_T}")


def _checked_methods(methods: Sequence[str]) -> tuple[str, ...]:
    from dubnb.methods import METHODS

    for method in methods:
        _check.choice("method", method, tuple(METHODS))
    if not methods or len(set(methods)) < len(methods):
        raise InputError(f"methods={tuple(methods)!r} must name at least one method and none twice")
    return tuple(methods)


# ---- logs ----------------------------------------------------------------------------------------------------------


def nested_logs(data: Partition, budget: PlanBudget, seed: int) -> dict[tuple[int, int], Partition]:
    """{(size, k): log}: for every k one order of the pool, whose first `size` pairs are S_t.

    The pool is S_t and, where S_te is larger, half of S_te. All logs share the rest of S_te as their test set.
    """
    S_t, S_te = data.triplets("S_t"), data.triplets("S_te")
    n_lent = len(S_te.users) // 2 if len(S_te.users) > len(S_t.users) else 0
    order = generator(seed, "plan", "lent").permutation(len(S_te.users))
    lent, kept = S_te.take(np.sort(order[:n_lent])), S_te.take(np.sort(order[n_lent:]))
    pool = joined(S_t, lent)
    logs = {}
    for k in range(budget.seeds):
        shuffled = pool.take(generator(seed, "plan", "order", k).permutation(len(pool.users)))
        for size in _sample_sizes(len(pool.users), budget.sizes):
            name = f"{data.name}, {size:,} randomized pairs"
            logs[size, k] = data.replace(S_t=shuffled.take(slice(size)), S_te=kept, truth=None, name=name)
    return logs


def _sample_sizes(largest: int, wanted: int) -> list[int]:
    """Sizes from a sixteenth of the pool (at least 20 pairs) to all of it, each at least 1.5 times the one before."""
    smallest = min(max(20, largest // SMALLEST_SHARE), largest // 3)
    wanted = max(3, min(wanted, 1 + int(np.log(largest / smallest) / np.log(SMALLEST_GROWTH))))
    return [round(float(n)) for n in np.geomspace(smallest, largest, wanted)]


def price_of(data: Partition) -> Price:
    """The positive rates of both logs (S_c as it was logged), and their difference."""
    rates = positive_rates(data)
    assert rates.biased is not None and rates.randomized is not None  # `plan` has checked the data
    forgone, low, high = rates.difference()
    share = forgone / rates.biased.rate if rates.biased.rate else 0.0
    return Price(rates.biased.rate, rates.randomized.rate, forgone, low, high, share)


# ---- impressions to spend ------------------------------------------------------------------------------------------


def pairs_per_uniform(data: Partition) -> float:
    """How many pairs of today's log, which curves count, a uniform pair is worth: above 1 with propensities."""
    return len(data.random.users) / sum(data.effective_sample_size(part) for part in RANDOMIZED)


def spend(
    data: Partition, curve: Curve, price: Price, n_random: int, impressions: int, uniform: float
) -> tuple[tuple[Spending, ...], tuple[Stratum, ...], tuple[str, ...]]:
    """Ways to spend impressions, the strata, and the advice in sentences.

    An epsilon-greedy impression is random with probability epsilon. With M items, the weights 1 / p make n of them
    worth n / E[w^2] uniform ones, E[w^2] = ((M - 1) M / epsilon + 1 / (1 - epsilon + epsilon / M)) / M^2, about n
    epsilon. It forgoes epsilon times the likes. So both designs cost the same for the same worth. `uniform` is
    `pairs_per_uniform`.
    """
    end = beyond_noise(curve, n_random)
    useful = impressions if end is None else int(np.clip(round((end - n_random) / uniform), 0, impressions))
    n_items = float(data.n_items - uniformity.logged(data).sizes().mean())

    def spending(design: str, n: int, epsilon: float) -> Spending:
        second = ((n_items - 1) * n_items / epsilon + 1 / (1 - epsilon + epsilon / n_items)) / n_items**2
        worth = n / second if epsilon < 1 else float(n)
        likes, low, high = (n * epsilon * rate for rate in (price.forgone, price.low, price.high))
        gain, gain_low, gain_high = curve.law.gain(n_random, n_random + worth * uniform)
        return Spending(design, n, worth, likes, low, high, gain, gain_low, gain_high)

    ways = [spending("uniform, all", impressions, 1.0)]
    if 0 < useful < impressions:
        ways.append(spending("uniform, as long as it helps", useful, 1.0))
    ways += [spending(f"epsilon-greedy, {epsilon:g}", impressions, epsilon) for epsilon in EPSILONS]
    strata, factor = _strata_of_items(data)
    chosen = ways[1] if 0 < useful < impressions else ways[0]
    if useful:
        advice = (
            f"Of {impressions:,} impressions, spend {chosen.impressions:,} uniformly: {chosen.forgone:,.0f} likes "
            f"forgone ({chosen.forgone_low:,.0f} to {chosen.forgone_high:,.0f}) for {chosen.gain:+.4f} "
            f"({chosen.gain_low:+.4f} to {chosen.gain_high:+.4f}) AUC of {curve.method}. Epsilon-greedy with epsilon "
            f"{useful / impressions:.2g} over all of them is worth as much, and costs about the same. Use it if no "
            "impression may be fully random."
        )
    else:
        advice = (
            f"Spend none of the {impressions:,} impressions to gain AUC: already now, doubling the randomized log "
            "gains less than the noise of one fit. Keep what the audit and S_te need."
        )
    better = f"Best shares by stratum estimate the mean label {factor:.2f} times as efficiently as uniform traffic"
    verdict = "worth it: log the stratum" if factor >= WORTHWHILE else "not worth the trouble: stay uniform"
    return tuple(ways), strata, (advice, f"{better}: {verdict}.")


def _strata_of_items(data: Partition) -> tuple[tuple[Stratum, ...], float]:
    """Thirds of the items by popularity, and the ratio of variances, uniform / best shares."""
    log = randomized_log(data)
    S_c = data.triplets("S_c")
    order = np.argsort(np.bincount(S_c.items, minlength=data.n_items), kind="stable")
    third = np.empty(data.n_items, np.int64)
    third[order] = np.arange(data.n_items) * len(STRATA) // data.n_items
    pairs = np.bincount(third[log.items], minlength=len(STRATA))
    w = randomized_weights(data)
    w = np.ones(len(log.items)) if w is None else w * len(w) / w.sum()
    counts, liked = (np.bincount(third[log.items], each, len(STRATA)) for each in (w, w * log.labels))
    rates = (liked + 0.5) / (counts + 1)
    sizes, deviations = np.bincount(third, minlength=len(STRATA)) / data.n_items, np.sqrt(rates * (1 - rates))
    shares = sizes * deviations / (sizes @ deviations)
    columns = zip(STRATA, pairs.tolist(), rates.tolist(), shares.tolist(), strict=True)
    # uniform traffic: the variance of a label; best shares: (sum of size x deviation)^2
    mean = float(sizes @ rates)
    return tuple(Stratum(*row) for row in columns), mean * (1 - mean) / float(sizes @ deviations) ** 2


# ---- fits ----------------------------------------------------------------------------------------------------------


class JudgedMetric(NamedTuple):
    """A metric of one fit, and how it changes with each user's weight among the test pairs (an influence function)."""

    value: float
    influences: np.ndarray  # by user: the value changes by influences @ (weights - 1)


JudgedFits = dict[tuple[int, int], dict[str, JudgedMetric]]  # (size, k) -> metric


def _fit_all(
    logs: dict[tuple[int, int], Partition],
    methods: Sequence[str],
    budget: PlanBudget,
    out: str | os.PathLike[str] | None,
    n_jobs: int,
    seed: int,
    quiet: bool,
) -> dict[str, JudgedFits]:
    """Fit every method on every log, as a sweep does."""
    from dubnb.methods import METHODS
    from dubnb.sweeps.runner import Resources, planned, run_fits

    fixed = {} if budget.epochs is None else {"epochs": budget.epochs}
    largest = max(size for size, _ in logs)
    trials = {
        (method, size, k): planned(METHODS[method], data, {**fixed, "seed": seed + k})
        for method in methods
        for (size, k), data in logs.items()
        if size == largest or method not in FITTED_ONCE
    }
    with tempfile.TemporaryDirectory() as directory:
        resources = Resources(n_jobs=n_jobs, quiet=quiet)
        fits = run_fits(trials.values(), logs.values(), directory if out is None else out, resources, list_length=1)
        by_method: dict[str, JudgedFits] = {method: {} for method in methods}
        for method in methods:
            for (size, k), log in logs.items():
                fit = fits[trials.get((method, size, k)) or trials[method, largest, k]]
                if not fit.done:
                    raise InputError(f"{method} with {size:,} randomized pairs failed: {fit.reason}; leave it out")
                by_method[method][size, k] = judged_metrics(fit.metrics, fit.test_output(), log)
    return by_method


def judged_metrics(values: Mapping[str, float], shown: TestOutput, log: Partition) -> dict[str, JudgedMetric]:
    """A fit's metrics with their influence functions, from its scores and lists on S_te."""
    S_te = log.triplets("S_te")
    there = uniformity.logged(log).find(S_te.users, S_te.items) < 0  # pairs of the biased log are not judged
    weights, by_list = log.judging_weights("S_te"), weights_of_users(log, "S_te", "lists")
    auc = auc_influence(shown.scores[there], S_te.labels[there], S_te.users[there], log.n_users, weights)
    of_lists = None if by_list is None else by_list[shown.users]
    ndcg = mean_influence(shown.per_user["ndcg"], shown.users, log.n_users, of_lists)
    return {
        "auc": JudgedMetric(values["auc"], auc.of_users),
        "ndcg": JudgedMetric(values["ndcg"], ndcg.of_users),
    }


def _curve(method: str, metric: str, fits: JudgedFits, seed: int) -> Curve:
    """The curve of one metric; users are the clusters of its test covariance."""
    sizes, ks = (sorted({key[place] for key in fits}) for place in (0, 1))
    table = np.array([[fits[size, k][metric].value for k in ks] for size in sizes])
    influences = np.array([np.mean([fits[size, k][metric].influences for k in ks], axis=0) for size in sizes])
    law = fit_power_law(sizes, table, influences @ influences.T, seed)
    return Curve(method, metric, tuple(sizes), tuple(map(tuple, table.tolist())), law)


# ---- conclusions ---------------------------------------------------------------------------------------------------


def _sentence(curve: Curve, n_random: int, more: int, uniform: float = 1.0) -> str:
    """What `more` random impressions gain on top of the whole randomized log, and where gains become noise.

    An impression is worth `uniform` pairs of today's log.
    """
    gain, low, high = curve.law.gain(n_random, n_random + more * uniform)
    end = beyond_noise(curve, n_random)
    noise = f"the noise of one fit ({curve.law.sigma:.4f})"
    if end is None:
        limit = f"up to {FARTHEST * n_random:,} in all, doubling still gains more than {noise}"
    elif end <= n_random:
        limit = f"already now, doubling gains less than {noise}"
    else:
        limit = f"beyond {end:,.0f} in all, doubling gains less than {noise}"
    worth = "random impressions"
    if uniform > 1:
        worth = f"uniform impressions (worth {more * uniform:,.0f} pairs like today's)"
    return (
        f"With {more:,} more {worth}, on top of today's {n_random:,}, expect {gain:+.4f} "
        f"({low:+.4f} to {high:+.4f}) AUC of {curve.method}; {limit}."
    )


def _caveat(n_random: int, curve: Curve, more: float, budget: str) -> str:
    """The assumptions behind the sentence."""
    smoke = " Budget smoke trains too few epochs for any conclusion." if budget == "smoke" else ""
    return (
        "S_va and S_te count as today's traffic, because dubnb fit --refit all trains on them. The gain is "
        f"extrapolated from fits with {curve.sizes[0]:,} to {curve.sizes[-1]:,} randomized pairs to "
        f"{n_random + more:,.0f}. "
        f"The {BAND_LEVEL:.0%} band covers the test pairs, the training samples and the form of the curve. It holds if "
        f"later traffic and users are like today's.{smoke}"
    )


def beyond_noise(curve: Curve, n_random: int) -> float | None:
    """The smallest size, up to FARTHEST times today's, from which doubling gains less than the noise of one fit."""
    for n in np.geomspace(curve.sizes[0], FARTHEST * n_random, 60):
        if curve.law.gain(float(n), 2 * float(n))[0] < curve.law.sigma:
            return float(n)
    return None
