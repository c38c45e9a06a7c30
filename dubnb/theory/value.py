"""Off-policy value: what share of the items would be liked if a model's top K were shown.

The randomized log shows items by a known rule, so each of its pairs (u, i) stands for 1 / c_ui pairs like it. c_ui is
the chance that the log judges the pair (`dubnb.data.chances`). Let T_u be the list of a policy, |T_u| <= K, r the label
and q the model's calibrated probability. Over users u of the log, each with equal weight:

    ips     mean of V_u,  V_u = 1/|T_u| sum over the log's pairs with i in T_u of r / c_ui
    snips   sum of r / (|T_u| c_ui)  over  sum of 1 / (|T_u| c_ui), both over the log's pairs with i in T_u
    dr      mean of V_u,  V_u = 1/|T_u| [sum over T_u of q  +  sum over the log's pairs with i in T_u of (r - q) / c_ui]

IPS and DR are unbiased, whatever q is. SNIPS is a ratio: it has a small bias and a smaller variance than IPS. Intervals
treat users as independent: `stats.rare_mean_interval` for IPS, `weighted_share` for SNIPS, Student's for DR. They take
the fitted models as given. `bench/coverage_value.py` checks their coverage. As a share, a value lies in [0, 1], so
intervals end there.

Where propensities p vary, the rows "random" and "exploration" are about the same candidates as the lists. They weigh
the log's pairs by 1 / (N_u c_ui), with N_u candidates of user u, and by p_ui / c_ui. What S_t and S_va have is no
candidate, and that is what the policy likes most. The mean over all of its impressions would be a larger number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check, stats
from dubnb._check import InputError
from dubnb._jit import one_blas_thread
from dubnb.backbones.mf import Extended
from dubnb.calibration import Calibration
from dubnb.data.chances import judged_chances, judged_users
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.evaluation import BLOCK_PAIRS, popularity, scorer_of

if TYPE_CHECKING:
    import pandas as pd

FEWEST_JUDGED = 20  # pairs of the lists that the log judged: with fewer, estimates are nan
# Where propensities vary, a few rare pairs can decide everything, or be missing. Then estimates are nan as well.
FEWEST_EFFECTIVE = 10.0  # effective sample size of the judged pairs
LEAST_WEIGHT = 0.5  # sum of the judged pairs' weights over the users; its mean is 1
ESTIMATORS = ("ips", "snips", "dr")

Probability = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of a positive label, for (user rows, item rows)


class Estimate(NamedTuple):
    """The value of one policy by one estimator."""

    policy: str  # "model", "popularity", "random", "exploration" (if it is not uniform) or "log"
    estimator: str  # "ips", "snips", "dr", or "mean" where the policy itself made the log
    value: float  # the share of shown items that are liked
    low: float
    high: float
    judged: int  # pairs that the estimate rests on
    effective: float  # effective sample size of their weights


@dataclass(frozen=True)
class PolicyValue:
    """What `dubnb.value` returns."""

    k: int
    part: str
    level: float
    estimates: tuple[Estimate, ...]
    gain: stats.Rate | None  # model - popularity, by DR or else IPS, paired by user; None where too few are judged
    notes: tuple[str, ...] = ()  # what the estimates cannot be compared with

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it: nan becomes None."""
        rows = [
            {name: None if value != value else value for name, value in each._asdict().items()}
            for each in self.estimates
        ]
        gain = None if self.gain is None else {"value": self.gain.rate, "low": self.gain.low, "high": self.gain.high}
        found = {"k": self.k, "part": self.part, "level": self.level, "estimates": rows, "gain_over_popularity": gain}
        return found | {"notes": list(self.notes)}

    def to_frame(self) -> pd.DataFrame:
        """A row per policy and estimator."""
        import pandas as pd

        return pd.DataFrame(self.estimates, columns=Estimate._fields)

    def text(self) -> str:
        """A table and two sentences."""
        lines = [f"{'policy':<12}{'estimator':<10}{'liked':>8}  {100 * self.level:.0f} % interval   judged  effective"]
        for each in self.estimates:
            interval = "" if each.low != each.low else f"{each.low:.4f} .. {each.high:.4f}"
            value = "too few" if each.value != each.value else f"{each.value:.4f}"
            counts = f"{each.judged:>8,}{each.effective:>11,.0f}"
            lines.append(f"{each.policy:<12}{each.estimator:<10}{value:>8}  {interval:<16}{counts}")
        lines += ["", f"liked: the share of {self.k} shown items that people like, every user of {self.part} alike."]
        if self.gain is not None:
            low, high = f"{self.gain.low:+.4f}", f"{self.gain.high:+.4f}"
            lines.append(f"The model's lists against the most popular items: {self.gain.rate:+.4f} ({low} .. {high}).")
        return "\n".join([*lines, *self.notes])

    __str__ = text


class _Policy(NamedTuple):
    """One policy's estimates for each user of the part, and the pairs of its lists that were judged."""

    ips: np.ndarray  # V_u
    dr: np.ndarray | None  # V_u; None where there are no probabilities
    rows: np.ndarray  # users of the judged pairs
    weights: np.ndarray  # 1 / (|T_u| c_ui) of the judged pairs
    labels: np.ndarray  # of the judged pairs
    enough: bool  # whether the judged pairs allow estimates


def value(model: Any, data: Partition, k: int = 10, *, part: str = "S_te", level: float = 0.95) -> PolicyValue:
    """Estimate what share of the items people would like if a model's top K were shown.

    Answers "what would we gain by shipping this?" before an A/B test, from the randomized log alone. The answer stands
    beside those for the most popular items, for items at random, and for what the biased log itself showed.

    Parameters
    ----------
    model : fitted method, Scorer or function
        A fitted model, or any scores, as `dubnb.evaluate` takes them. Doubly robust estimates need probabilities: those
        of the model, or the scores calibrated on S_va (Platt scaling). Without S_va, scores get no such estimate.
    data : Partition
        The logs.
    k : int
        Items shown to each user; fewer if no user has so many candidates.
    part : {"S_te", "S_va", "S_t"}
        The part of the randomized log to estimate from. A model must not have been trained on it.
    level : float
        Confidence level of the intervals.

    Returns
    -------
    PolicyValue
        `estimates`, a row per policy and estimator, and `gain`, the model against popularity, paired by user.

    Examples
    --------
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> print(dubnb.value(dubnb.DubX().fit(data), data, k=10))  # doctest: +SKIP
    """
    k = _check.whole("k", k)
    level = _check.real("level", level, high=1.0)
    _check.choice("part", part, RANDOMIZED)
    feedback = data.unseen(part)
    if not len(feedback.users):
        raise InputError(f"{part} is empty: value needs randomized feedback that the model has not seen")
    if hasattr(model, "weights_"):
        _check_unseen(model, data, part)
    scorer = scorer_of(getattr(model, "weights_", model), data)
    calibrated = getattr(model, "probabilities", None)
    if calibrated is None and part != "S_va":
        calibrated = Calibration.on_S_va(scorer, data)
    probability: Probability | None = None
    if calibrated is not None:

        def probability(users: np.ndarray, items: np.ndarray) -> np.ndarray:
            return np.asarray(calibrated(scorer.score_pairs(users, items)), dtype=np.float64)

    lengths = data.n_items - data.not_candidates(part).sizes()[judged_users(data, part)]
    wanted, k = k, max(1, min(k, int(lengths.max())))  # nobody can be shown more
    popular = scorer_of(Extended.of_items(data.n_users, popularity(data).astype(np.float32)), data)
    with one_blas_thread():
        own, best = (_policy(each, probability, data, part, k) for each in (scorer, popular))
    estimates = [*_estimates("model", own, level), *_estimates("popularity", best, level)]
    own_weights = {"random": feedback.weights}
    if data.importance(part) is not None:
        one_over_c = 1 / judged_chances(data, part)
        candidates = np.maximum(data.n_items - data.not_candidates(part).sizes(), 1)[feedback.users]
        p = np.asarray(feedback.propensities, np.float64)
        own_weights = {"random": one_over_c / candidates, "exploration": p * one_over_c}
    for policy, weights in own_weights.items():
        shown = stats.weighted_share(weights, feedback.labels, feedback.users, level)
        estimates.append(Estimate(policy, "mean", *shown[:3], len(feedback.users), float(shown.n)))
    S_c = data.triplets("S_c")
    if 0 < S_c.labels.sum() < len(S_c.labels):
        logged = stats.weighted_share(S_c.weights, S_c.labels, S_c.users, level)
        estimates.append(Estimate("log", "mean", *logged[:3], len(S_c.users), float(logged.n)))
    enough = own.enough and best.enough
    difference = own.ips - best.ips if own.dr is None or best.dr is None else own.dr - best.dr
    gain = stats.mean_interval(difference, level) if enough and len(difference) > 1 else None
    notes = _notes(data, part, own, best)
    if wanted > k:
        shorter = f"{np.count_nonzero(lengths < k):,} of {len(lengths):,} users"
        notes.append(f"No user has {wanted:,} candidates: lists have {k:,} items, those of {shorter} fewer.")
    return PolicyValue(k, part, level, tuple(estimates), gain, tuple(notes))


def _notes(data: Partition, part: str, *policies: _Policy) -> list[str]:
    """Why there are no estimates, and what the rows beside the model's are about."""
    notes = []
    if any(not each.enough and len(each.rows) >= FEWEST_JUDGED for each in policies):
        notes.append(
            f"too few: pairs that the policy rarely shows decide, and {part} has hardly any of them. Log more random "
            "traffic, or raise the least propensity."
        )
    if data.importance(part) is not None:
        others = ", ".join(each for each in RANDOMIZED if each != part)
        notes.append(f"All rows but the log's leave out what {others} or the biased log showed to the user.")
    if data.bucket:
        notes.append("The row of the log is about other users: the randomized traffic is a user bucket.")
    return notes


def _check_unseen(model: Any, data: Partition, part: str) -> None:
    """Refuse a model of another log, and one that was trained on the pairs that would judge it."""
    if model.data_["fingerprint"] != data.fingerprint:
        raise InputError(
            f"the model was fitted on other data ({model.data_['name']}) than {data.name}: fit it on this log, or read "
            "the log with the same options"
        )
    refitted = None if model.refit_ is None else model.refit_["on"]
    if part == "S_t" or refitted == "all" or (refitted is not None and part == "S_va"):
        raise InputError(f"the model was trained on {part}, which would flatter it: pass the model before its refit")


def _policy(
    scorer: Any,
    probability: Probability | None,
    data: Partition,
    part: str,
    k: int,
) -> _Policy:
    """Rank the K best candidates of every user and look up the labels that the part has; O(block x items) memory."""
    feedback, barred = data.unseen(part), data.not_candidates(part)
    users = judged_users(data, part)
    place = np.searchsorted(users, feedback.users)
    chances = judged_chances(data, part)
    sizes, sums = np.zeros(len(users)), np.zeros(len(users))
    listed = np.zeros(len(feedback.users), dtype=bool)
    first = 0
    step = max(1, BLOCK_PAIRS // data.n_items)
    for start in range(0, len(users), step):
        block = users[start : start + step]
        top = scorer.top_k(block, k, barred.mask(block, data.n_items))
        inside = np.zeros((len(block), data.n_items), dtype=bool)
        row, rank = np.nonzero(top >= 0)
        inside[row, top[row, rank]] = True
        sizes[start : start + step] = (top >= 0).sum(axis=1)
        last = first + int(np.count_nonzero((place >= start) & (place < start + step)))
        own = slice(first, last)  # pairs stand in the order of users
        listed[own] = inside[place[own] - start, feedback.items[own]]
        first = last
        if probability is not None:
            q = probability(block[row], top[row, rank].astype(np.int32))
            sums[start : start + step] = np.bincount(row, weights=q, minlength=len(block))
    weights = np.where(listed, 1 / (np.maximum(sizes, 1)[place] * chances), 0.0)
    ips = np.bincount(place, weights=weights * feedback.labels, minlength=len(users))
    dr = None
    if probability is not None:
        q = probability(feedback.users, feedback.items)
        residuals = np.bincount(place, weights=weights * (feedback.labels - q), minlength=len(users))
        dr = sums / np.maximum(sizes, 1) + residuals
    return _Policy(
        ips, dr, feedback.users[listed], weights[listed], feedback.labels[listed], _enough(data, part, weights, sizes)
    )


def _enough(data: Partition, part: str, weights: np.ndarray, sizes: np.ndarray) -> bool:
    """Whether enough pairs of the lists were judged; `weights` are 0 for pairs that are not listed."""
    if np.count_nonzero(weights) < FEWEST_JUDGED or len(sizes) < 2:
        return False
    if data.importance(part) is None:
        return True
    total = float(weights.sum())
    effective = total**2 / float(weights @ weights)
    return bool(effective >= FEWEST_EFFECTIVE and total >= LEAST_WEIGHT * np.count_nonzero(sizes))


def _estimates(policy: str, found: _Policy, level: float) -> list[Estimate]:
    """One row per estimator; nan where the log judged too few of the listed pairs."""
    judged = len(found.rows)
    effective = float(found.weights.sum() ** 2 / (found.weights @ found.weights)) if judged else 0.0
    rows = []
    for estimator in ESTIMATORS:
        if estimator == "dr" and found.dr is None:
            continue
        rate = low = high = float("nan")
        if found.enough:
            if estimator == "snips":
                rate, low, high, _ = stats.weighted_share(found.weights, found.labels, found.rows, level)
            elif estimator == "ips":
                rate, low, high, _ = stats.rare_mean_interval(found.ips, found.weights.max(), level)
            elif found.dr is not None:
                rate, low, high, _ = stats.mean_interval(found.dr, level)
            low, high = max(low, 0.0), min(high, 1.0)
        rows.append(Estimate(policy, estimator, rate, low, high, judged, effective))
    return rows
