"""`dubnb.plan(data)`: what more randomized traffic would buy, and what it would cost.

Learning curves over nested samples of the randomized log: S_t and, where S_te is larger than S_t, half of S_te; all are
judged on the rest of S_te. Beyond the largest size a power law goes on, and everything there is marked as
extrapolation. What one has today is the whole randomized log: S_va and S_te train the model that is shipped
(`fit(data, refit="all")`), so a plan starts from |S_t| + |S_va| + |S_te|.
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
from dubnb.data.partition import Partition, Triplets
from dubnb.report import tables
from dubnb.theory import uniformity
from dubnb.theory.curves import LEVEL, PowerLaw, fit_power_law
from dubnb.theory.selection import clustered_rate
from dubnb.theory.uniformity import randomized_log

if TYPE_CHECKING:
    import os

    from dubnb.sweeps.filed import Shown

METHODS = ("base", "unif", "combine", "bridge", "dub", "dub-x")
BEST = "dub-x"  # our best system
NEVER_READ_S_T = ("base",)  # one fit per seed serves all sizes
METRICS = ("auc", "ndcg")
HORIZON = 5.0  # how far curves are drawn, in units of the randomized log
FARTHEST = 5  # how far the end of the gain is looked for, in units of the randomized log
FEWEST_PAIRS = 40  # of S_t
SMALLEST_GROWTH = 1.5  # between two sizes
SMALLEST_SHARE = 16  # the smallest size is the pool over this


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
    n_t: int  # |S_t|
    n_random: int  # the whole randomized log, which the shipped model trains on
    n_test: int
    curves: dict[tuple[str, str], Curve]
    price: Price
    more: int  # random impressions that the sentence speaks of
    sentence: str
    caveat: str  # belongs right below the sentence
    notes: tuple[str, ...]

    def beyond(self) -> list[float]:
        """Sizes past what was measured, up to the horizon."""
        largest, horizon = next(iter(self.curves.values())).sizes[-1], HORIZON * self.n_random
        return [] if horizon <= largest else [float(n) for n in np.geomspace(largest, horizon, 5)[1:]]

    def to_dict(self) -> dict[str, Any]:
        """Everything, in JSON's own types."""
        document: dict[str, Any] = {"data": self.data, "budget": self.budget, "S_t": self.n_t}
        document |= {"randomized_pairs": self.n_random, "test_pairs": self.n_test}
        document |= {"curves": [curve.to_dict(self.beyond()) for curve in self.curves.values()]}
        return document | {
            "price": asdict(self.price),
            "sentence": self.sentence,
            "caveat": self.caveat,
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """The report as text."""
        lines = [f"plan for {self.data}: {self.n_random:,} randomized pairs are there today", ""]
        lines += [self.sentence, self.caveat, ""]
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
        Random impressions that the sentence speaks of; by default as many as the randomized log has.
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
    n_t, n_random = len(data.triplets("S_t").users), len(randomized_log(data).users)
    more = n_random if more is None else _check.whole("more", more)
    seed = _check.whole("seed", seed, low=0)
    logs = nested_logs(data, own, seed)
    fits = _fitted(logs, methods, own, out, n_jobs, seed, quiet)
    curves = {(method, metric): _curve(method, metric, fits[method], seed) for method in methods for metric in METRICS}
    n_test = len(next(iter(logs.values())).triplets("S_te").users)
    told = curves[_best(curves, methods), "auc"]
    words = (_sentence(told, n_random, more), _caveat(data, told, more, budget), _notes(budget, curves))
    return Plan(data.name, budget, n_t, n_random, n_test, curves, price_of(data), more, *words)


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

    The pool is S_t and, where S_te is larger, half of S_te. What is left of S_te, the same for all, is judged on.
    """
    S_t, S_te = data.triplets("S_t"), data.triplets("S_te")
    n_lent = len(S_te.users) // 2 if len(S_te.users) > len(S_t.users) else 0
    order = generator(seed, "plan", "lent").permutation(len(S_te.users))
    lent, kept = S_te.take(np.sort(order[:n_lent])), S_te.take(np.sort(order[n_lent:]))
    pool = _joined(S_t, lent)
    logs = {}
    for k in range(budget.seeds):
        shuffled = pool.take(generator(seed, "plan", "order", k).permutation(len(pool.users)))
        for size in _sizes(len(pool.users), budget.sizes):
            name = f"{data.name}, {size:,} randomized pairs"
            logs[size, k] = data.replace(S_t=shuffled.take(slice(size)), S_te=kept, truth=None, name=name)
    return logs


def _sizes(largest: int, wanted: int) -> list[int]:
    """From a sixteenth of the pool (20 pairs at least) to all of it, each at least half as much again as the last."""
    smallest = min(max(20, largest // SMALLEST_SHARE), largest // 3)
    wanted = max(3, min(wanted, 1 + int(np.log(largest / smallest) / np.log(SMALLEST_GROWTH))))
    return [round(float(n)) for n in np.geomspace(smallest, largest, wanted)]


def _joined(first: Triplets, second: Triplets) -> Triplets:
    columns = {name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in Triplets._fields[:4]}
    if first.grades is None or second.grades is None:
        return Triplets(**columns)
    return Triplets(**columns, grades=np.concatenate([first.grades, second.grades]))


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


class Judged(NamedTuple):
    """A metric of one fit, and how it moves with each user's weight among the test pairs (an influence function)."""

    value: float
    influences: np.ndarray  # by user: the value changes by influences @ (weights - 1)


Fits = dict[tuple[int, int], dict[str, Judged]]  # (size, k) -> metric


def _fitted(
    logs: dict[tuple[int, int], Partition],
    methods: Sequence[str],
    budget: Budget,
    out: str | os.PathLike[str] | None,
    n_jobs: int,
    seed: int,
    quiet: bool,
) -> dict[str, Fits]:
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
        fits = run_fits(trials.values(), logs.values(), directory if out is None else out, resources, list_length=1)
        by_method: dict[str, Fits] = {method: {} for method in methods}
        for method in methods:
            for (size, k), log in logs.items():
                fit = fits[trials.get((method, size, k)) or trials[method, largest, k]]
                if not fit.done:
                    raise InputError(f"{method} with {size:,} randomized pairs failed: {fit.reason}; leave it out")
                by_method[method][size, k] = judged(fit.metrics, fit.shown(), log)
    return by_method


def judged(values: Mapping[str, float], shown: Shown, log: Partition) -> dict[str, Judged]:
    """A fit's metrics with their influence functions, from what it showed on S_te."""
    S_te = log.triplets("S_te")
    there = uniformity.logged(log).find(S_te.users, S_te.items) < 0  # what the biased log has is not judged
    influences = auc_influences(shown.scores[there], S_te.labels[there])
    by_user = np.bincount(S_te.users[there], weights=influences, minlength=log.n_users)
    ndcg = shown.per_user["ndcg"]
    of_lists = np.bincount(shown.users, weights=(ndcg - ndcg.mean()) / max(len(ndcg), 1), minlength=log.n_users)
    return {"auc": Judged(values["auc"], by_user), "ndcg": Judged(values["ndcg"], of_lists)}


def auc_influences(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """By pair: for a positive (share of negatives below it - AUC) / positives, for a negative (share of positives above
    it - AUC) / negatives; ties count one half (DeLong, DeLong and Clarke-Pearson, 1988)."""
    positive = labels > 0
    ordered = [np.sort(scores[own]) for own in (~positive, positive)]

    def below(others: np.ndarray, own: np.ndarray) -> np.ndarray:
        ends = (np.searchsorted(others, own, side) for side in ("left", "right"))
        return np.asarray(sum(ends) / (2 * max(len(others), 1)))

    influences = np.empty(len(scores))
    influences[positive] = below(ordered[0], scores[positive])
    auc = float(influences[positive].mean())
    influences[~positive] = 1 - below(ordered[1], scores[~positive])
    influences -= auc
    influences[positive] /= positive.sum()
    influences[~positive] /= (~positive).sum()
    return influences


def _curve(method: str, metric: str, fits: Fits, seed: int) -> Curve:
    """The curve of one metric; users are the clusters of its test covariance."""
    sizes, ks = (sorted({key[place] for key in fits}) for place in (0, 1))
    table = np.array([[fits[size, k][metric].value for k in ks] for size in sizes])
    influences = np.array([np.mean([fits[size, k][metric].influences for k in ks], axis=0) for size in sizes])
    law = fit_power_law(sizes, table, influences @ influences.T, seed)
    return Curve(method, metric, tuple(sizes), tuple(map(tuple, table.tolist())), law)


# ---- words ---------------------------------------------------------------------------------------------------------


def _best(curves: dict[tuple[str, str], Curve], methods: Sequence[str]) -> str:
    """Our best system where it is there, else the best at the largest size."""
    if BEST in methods:
        return BEST
    return max(methods, key=lambda method: float(curves[method, "auc"].means()[-1]))


def _sentence(curve: Curve, n_random: int, more: int) -> str:
    """What `more` random impressions bring on top of the whole randomized log, and from where on it is noise."""
    gain, low, high = curve.law.gain(n_random, n_random + more)
    end = beyond_noise(curve, n_random)
    noise = f"the noise of one fit ({curve.law.sigma:.4f})"
    if end is None:
        limit = f"up to {FARTHEST * n_random:,} in all, twice as many bring more than {noise}"
    elif end <= n_random:
        limit = f"already now, twice as many bring less than {noise}"
    else:
        limit = f"beyond {end:,.0f} in all, twice as many bring less than {noise}"
    return (
        f"With {more:,} more random impressions, on top of the {n_random:,} that are there, expect {gain:+.4f} "
        f"({low:+.4f} to {high:+.4f}) AUC of {curve.method}; {limit}."
    )


def _caveat(data: Partition, curve: Curve, more: int, budget: str) -> str:
    """What the sentence rests on."""
    n_random, largest = len(randomized_log(data).users), curve.sizes[-1]
    smoke = " Budget smoke trains too few epochs for any conclusion." if budget == "smoke" else ""
    return (
        "S_va and S_te count as traffic that is there: dubnb fit --refit all trains on them. This is extrapolated "
        f"from fits with {curve.sizes[0]:,} to {largest:,} randomized pairs to {n_random + more:,}. The {LEVEL:.0%} "
        "band counts the test pairs, the training samples and the form of the curve; it holds if later traffic and "
        f"users are like today's.{smoke}"
    )


def beyond_noise(curve: Curve, n_random: int) -> float | None:
    """The smallest size, up to FARTHEST times today's, from which doubling gains less than the noise of one fit."""
    for n in np.geomspace(curve.sizes[0], FARTHEST * n_random, 60):
        if curve.law.gain(float(n), 2 * float(n))[0] < curve.law.sigma:
            return float(n)
    return None


def _notes(budget: str, curves: dict[tuple[str, str], Curve]) -> tuple[str, ...]:
    seeds = len(next(iter(curves.values())).values[0])
    notes = [
        f"{seeds} fits per size and method, each with its own sample; bands of the curves hold {LEVEL:.0%} of what the "
        "mean over fits could be, on other test pairs too."
    ]
    if budget == "smoke":
        notes.append("Budget smoke checks that everything runs: too few epochs for any conclusion.")
    return tuple(notes)
