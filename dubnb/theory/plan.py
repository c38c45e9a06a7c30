"""`dubnb.plan(data)`: what more randomized traffic would buy, and what it would cost.

Learning curves over nested samples of the randomized log: S_t, and half of S_te lent to it, so that sizes beyond |S_t|
are measured as far as the data go; all are judged on the other half. Beyond the largest size a power law goes on, and
everything there is marked as extrapolation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.data.partition import Partition, Triplets
from dubnb.report import tables
from dubnb.theory.curves import LEVEL, PowerLaw, fit_power_law
from dubnb.theory.selection import clustered_rate
from dubnb.theory.uniformity import randomized_log

if TYPE_CHECKING:
    import os

METHODS = ("base", "unif", "combine", "bridge", "dub", "dub-x")
BEST = "dub-x"  # our best system
NEVER_READ_S_T = ("base",)  # one fit per seed serves all sizes
METRICS = ("auc", "ndcg")
HORIZON = 10.0  # how far curves are drawn, in units of |S_t|
FARTHEST = 100  # how far the end of the gain is looked for
FEWEST_PAIRS = 40  # of S_t
SMALLEST_GROWTH = 1.5  # between two sizes


class Budget(NamedTuple):
    """How much is fitted: models per size, sizes, and at most so many epochs."""

    seeds: int
    sizes: int
    epochs: int | None


BUDGETS = {"smoke": Budget(2, 3, 2), "quick": Budget(3, 5, None), "full": Budget(6, 6, None)}


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
        bands = [
            {
                "size": float(n),
                "expected": float(m),
                "low": float(lo),
                "high": float(hi),
                "extrapolated": n > self.sizes[-1],
            }
            for n, m, lo, hi in zip(at, middle, low, high, strict=True)
        ]
        measured = [{"size": n, "values": list(own)} for n, own in zip(self.sizes, self.values, strict=True)]
        return {"method": self.method, "metric": self.metric, "measured": measured, "bands": bands}


@dataclass(frozen=True)
class Price:
    """What a random impression costs: positives that the policy would have had."""

    policy_rate: float
    random_rate: float
    forgone: float  # positives per random impression
    low: float
    high: float
    share: float  # of the policy's positives


@dataclass(frozen=True)
class Plan:
    """Curves by (method, metric), the price of exploration, and one sentence."""

    data: str
    budget: str
    n_t: int  # |S_t| today
    n_test: int
    curves: dict[tuple[str, str], Curve]
    price: Price
    more: int  # random impressions that the sentence speaks of
    sentence: str
    notes: tuple[str, ...]

    def beyond(self) -> list[float]:
        """Sizes past what was measured, up to the horizon."""
        largest, horizon = next(iter(self.curves.values())).sizes[-1], HORIZON * self.n_t
        return [] if horizon <= largest else [float(n) for n in np.geomspace(largest, horizon, 5)[1:]]

    def to_dict(self) -> dict[str, Any]:
        """Everything, in JSON's own types."""
        document = {"data": self.data, "budget": self.budget, "S_t": self.n_t, "test_pairs": self.n_test}
        document |= {"curves": [curve.to_dict(self.beyond()) for curve in self.curves.values()]}
        return document | {"price": asdict(self.price), "sentence": self.sentence, "notes": list(self.notes)}

    def text(self) -> str:
        """The report as text."""
        lines = [f"plan for {self.data}: {self.n_t:,} randomized pairs are trained on today", "", self.sentence, ""]
        for metric in METRICS:
            rows = [self._row(curve) for (_, own), curve in self.curves.items() if own == metric]
            sizes = [*next(iter(self.curves.values())).sizes, *self.beyond()]
            header = [
                metric,
                *(f"{n:,.0f}{'*' if n > sizes[len(sizes) - len(self.beyond()) - 1] else ''}" for n in sizes),
            ]
            lines += [tables.text(header, rows, "<" + ">" * len(sizes)), ""]
        return "\n".join(
            [*lines, "* extrapolated by a power law: middle of the 90 % band", price_text(self.price), *self.notes]
        )

    def _row(self, curve: Curve) -> list[Any]:
        beyond = [float(x) for x in curve.law.band(np.array(self.beyond()))[0]] if self.beyond() else []
        return [curve.method, *(float(x) for x in curve.means()), *beyond]

    def __str__(self) -> str:
        return self.text()


def price_text(price: Price) -> str:
    """The price of exploration in a sentence."""
    return (
        f"Price: {price.policy_rate:.1%} of the policy's impressions are positive and {price.random_rate:.1%} of "
        f"random ones, so 1,000 random impressions forgo {1000 * price.forgone:,.0f} ({1000 * price.low:,.0f} to "
        f"{1000 * price.high:,.0f}) positives, {price.share:.0%} of what the policy would have had."
    )


def plan(
    data: Partition,
    *,
    budget: str = "quick",
    methods: Sequence[str] = METHODS,
    more: int | None = None,
    out: str | os.PathLike[str] | None = None,
    n_jobs: int = 1,
    seed: int = 0,
    quiet: bool = True,
) -> Plan:
    """Expected AUC and nDCG by the amount of randomized traffic, with bands, and what it costs.

    Parameters
    ----------
    data : Partition
        The logs; S_t, S_va and S_te must have positives and negatives.
    budget : {"smoke", "quick", "full"}
        2, 3 or 6 fits per size and method; smoke trains two epochs, to see that everything runs.
    methods : sequence of str
        Fitted with their defaults, which follow from the log.
    more : int, optional
        Random impressions that the sentence speaks of; as many as S_t has, by default.
    out : path, optional
        Directory of the fits: run again, it resumes. By default a temporary one.
    n_jobs : int
        Worker processes.
    seed : int
        Of the samples and of the first model.
    quiet : bool
        Whether to show no progress.
    """
    own = BUDGETS[_check.choice("budget", budget, tuple(BUDGETS))]
    _check_data(data)
    methods = _checked_methods(methods)
    n_t = len(data.triplets("S_t").users)
    more = n_t if more is None else _check.whole("more", more)
    seed = _check.whole("seed", seed, low=0)
    logs = nested_logs(data, own, seed)
    values = _fitted(logs, methods, own, out, n_jobs, seed, quiet)
    errors = _Errors(next(iter(logs.values())))
    curves = {
        (method, metric): _curve(method, metric, values[method], errors, seed)
        for method in methods
        for metric in METRICS
    }
    n_test = len(next(iter(logs.values())).triplets("S_te").users)
    sentence = _sentence(curves[_best(curves, methods), "auc"], n_t, more)
    return Plan(data.name, budget, n_t, n_test, curves, price_of(data), more, sentence, _notes(budget, curves))


def _check_data(data: Any) -> None:
    if not isinstance(data, Partition):
        raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset returns")
    for part in ("S_t", "S_va", "S_te"):
        labels = data.triplets(part).labels
        if not len(labels) or labels.min() == labels.max():
            what = "is empty" if not len(labels) else f"has labels of one class only ({labels[0]:g})"
            raise InputError(f"{part} {what}: a plan needs positives and negatives in S_t, S_va and S_te")
    n_t = len(data.triplets("S_t").users)
    if n_t < FEWEST_PAIRS:
        raise InputError(f"S_t has {n_t} pairs: a learning curve needs at least {FEWEST_PAIRS}")


def _checked_methods(methods: Sequence[str]) -> tuple[str, ...]:
    from dubnb.methods import METHODS as KNOWN

    for method in methods:
        _check.choice("method", method, tuple(KNOWN))
    if not methods or len(set(methods)) < len(methods):
        raise InputError(f"methods={tuple(methods)!r} must name at least one method and none twice")
    return tuple(methods)


# ---- logs ----------------------------------------------------------------------------------------------------------


def nested_logs(data: Partition, budget: Budget, seed: int) -> dict[tuple[int, int], Partition]:
    """{(size, k): log}: for each of k = 0, 1 ... one order of the pool, whose first `size` pairs are S_t.

    The pool is S_t and half of S_te; the other half, the same for all, is what is judged on. S_t comes first in every
    order, shuffled, so that sizes up to |S_t| are samples of today's S_t.
    """
    S_t, S_te = data.triplets("S_t"), data.triplets("S_te")
    order = generator(seed, "plan", "lent").permutation(len(S_te.users))
    lent, kept = S_te.take(np.sort(order[: len(order) // 2])), S_te.take(np.sort(order[len(order) // 2 :]))
    sizes = _sizes(len(S_t.users), len(S_t.users) + len(lent.users), budget.sizes)
    logs = {}
    for k in range(budget.seeds):
        rng = generator(seed, "plan", "order", k)
        pool = _joined(S_t.take(rng.permutation(len(S_t.users))), lent.take(rng.permutation(len(lent.users))))
        for size in sizes:
            name = f"{data.name}, {size:,} randomized pairs"
            logs[size, k] = data.replace(S_t=pool.take(slice(size)), S_te=kept, truth=None, name=name)
    return logs


def _sizes(n_t: int, largest: int, wanted: int) -> list[int]:
    """From a quarter of S_t (20 pairs at least) to the whole pool, each at least half as much again as the last."""
    smallest = max(20, n_t // 4)
    wanted = max(3, min(wanted, 1 + int(np.log(largest / smallest) / np.log(SMALLEST_GROWTH))))
    return [round(float(n)) for n in np.geomspace(smallest, largest, wanted)]


def _joined(first: Triplets, second: Triplets) -> Triplets:
    columns = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in Triplets._fields[:4]}
    graded = first.grades is not None and second.grades is not None
    return Triplets(**columns, grades=np.concatenate([first.grades, second.grades]) if graded else None)


def price_of(data: Partition) -> Price:
    """Positive rates of both logs (S_c as it was logged, before pairs were removed), and what is between them."""
    S_c, log, overlap = data.triplets("S_c"), randomized_log(data), data.overlap
    policy = clustered_rate(
        np.concatenate([S_c.users, overlap.users]), np.concatenate([S_c.labels, overlap.policy_labels])
    )
    random = clustered_rate(log.users, log.labels)
    assert policy is not None and random is not None  # the data were checked
    forgone = policy.rate - random.rate
    half = float(np.hypot(policy.high - policy.rate, random.high - random.rate))
    share = forgone / policy.rate if policy.rate else 0.0
    return Price(policy.rate, random.rate, forgone, forgone - half, forgone + half, share)


# ---- fits ----------------------------------------------------------------------------------------------------------

Values = dict[tuple[int, int], dict[str, float]]  # (size, k) -> metric -> value


def _fitted(
    logs: dict[tuple[int, int], Partition],
    methods: Sequence[str],
    budget: Budget,
    out: str | os.PathLike[str] | None,
    n_jobs: int,
    seed: int,
    quiet: bool,
) -> dict[str, Values]:
    """Every method on every log, through the sweeps' engine."""
    from dubnb.methods import METHODS as KNOWN
    from dubnb.sweeps.fits import Resources, planned, run_fits

    fixed = {} if budget.epochs is None else {"epochs": budget.epochs}
    largest = max(size for size, _ in logs)
    trials = {
        (method, size, k): planned(KNOWN[method], data, {**fixed, "seed": seed + k})
        for method in methods
        for (size, k), data in logs.items()
        if size == largest or method not in NEVER_READ_S_T
    }
    with tempfile.TemporaryDirectory() as directory:
        resources = Resources(n_jobs=n_jobs, quiet=quiet)
        fits = run_fits(trials.values(), logs.values(), directory if out is None else out, resources)
        by_method: dict[str, Values] = {method: {} for method in methods}
        for method in methods:
            for size, k in logs:
                fit = fits[trials.get((method, size, k)) or trials[method, largest, k]]
                if not fit.done:
                    raise InputError(f"{method} with {size:,} randomized pairs failed: {fit.reason}; leave it out")
                by_method[method][size, k] = {metric: fit.metrics[metric] for metric in METRICS}
    return by_method


class _Errors:
    """Standard errors of the metrics, for all that they owe to the pairs they are judged on."""

    def __init__(self, data: Partition):
        S_te = data.triplets("S_te")
        self.n_positive = int(S_te.labels.sum())
        self.n_negative = len(S_te.labels) - self.n_positive
        counted = np.intersect1d(S_te.users[S_te.labels > 0], data.triplets("S_c").users)
        self.n_users = max(1, len(counted))

    def of(self, metric: str, value: float) -> float:
        """Hanley and McNeil's for AUC; for nDCG, in [0, 1] with most users at 0, that of as many 0/1 values at most."""
        if metric != "auc":
            return float(np.sqrt(value * (1 - value) / self.n_users))
        A, P, N = value, self.n_positive, self.n_negative
        above, below = A / (2 - A) - A**2, 2 * A**2 / (1 + A) - A**2
        return float(np.sqrt((A * (1 - A) + (P - 1) * above + (N - 1) * below) / (P * N)))


def _curve(method: str, metric: str, values: Values, errors: _Errors, seed: int) -> Curve:
    sizes, ks = (sorted({key[place] for key in values}) for place in (0, 1))
    table = tuple(tuple(values[size, k][metric] for k in ks) for size in sizes)
    measured = np.array(table).ravel()
    error = errors.of(metric, float(np.mean(table[-1])))
    return Curve(method, metric, tuple(sizes), table, fit_power_law(np.repeat(sizes, len(ks)), measured, error, seed))


# ---- words ---------------------------------------------------------------------------------------------------------


def _best(curves: dict[tuple[str, str], Curve], methods: Sequence[str]) -> str:
    """Our best system where it is there, else the best at the largest size."""
    if BEST in methods:
        return BEST
    return max(methods, key=lambda method: float(curves[method, "auc"].means()[-1]))


def _sentence(curve: Curve, n_t: int, more: int) -> str:
    """What `more` random impressions bring, and from where on it is noise."""
    gain, low, high = curve.law.gain(n_t, n_t + more)
    extrapolated = " (extrapolated)" if n_t + more > curve.sizes[-1] else ""
    end = beyond_noise(curve, n_t)
    noise = f"the noise of one fit ({curve.law.sigma:.4f})"
    limit = (
        f"beyond {end:,.0f} in all, twice as many bring less than {noise}"
        if end is not None
        else f"up to {FARTHEST * n_t:,} in all, twice as many bring more than {noise}"
    )
    return (
        f"With {more:,} more random impressions expect {gain:+.4f} ({low:+.4f} to {high:+.4f}) AUC of "
        f"{curve.method}{extrapolated}; {limit}."
    )


def beyond_noise(curve: Curve, n_t: int) -> float | None:
    """The smallest size, up to FARTHEST |S_t|, from which doubling gains less than the noise of one fit."""
    for n in np.geomspace(curve.sizes[0], FARTHEST * n_t, 60):
        if curve.law.gain(float(n), 2 * float(n))[0] < curve.law.sigma:
            return float(n)
    return None


def _notes(budget: str, curves: dict[tuple[str, str], Curve]) -> tuple[str, ...]:
    seeds = len(next(iter(curves.values())).values[0])
    notes = [
        f"{seeds} fits per size and method, each with its own sample, judged on one half of S_te; bands hold "
        f"{LEVEL:.0%} of what the curve could be, on other test pairs too."
    ]
    if budget == "smoke":
        notes.append("Budget smoke checks that everything runs: too few epochs for any conclusion.")
    return tuple(notes)
