"""Choice between two candidates on S_va: is one better by more than the paired standard error of the difference?

Every candidate is judged on the same users, so a difference between two of them is far less noisy than either. Metrics
are combined in units of their standard errors,

    difference = sum over metrics of weight x (candidate - incumbent) / standard error of the incumbent's metric.

Standard errors are those of a bootstrap over users with infinitely many draws (the infinitesimal jackknife). A user's
influence on a metric is the metric's derivative in the weight of that user. The variance of the metric is the sum of
squared influences. Influences of two candidates subtract user by user, and those of two metrics add up, so that
correlations are taken care of. Nothing is drawn at random.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dubnb._check import InputError


class UserInfluence(NamedTuple):
    """A metric and how much each user moves it."""

    value: float
    of_users: np.ndarray  # (n_users,) float64; 0 for users that do not count

    def standard_error(self) -> float:
        """The standard error of the metric, over users."""
        return _standard_error(self.of_users)


class CandidateDifference(NamedTuple):
    """A candidate compared with an incumbent."""

    difference: float  # in standard errors of the incumbent's metrics, a weighted sum over metrics
    standard_error: float  # standard error of the difference, paired over users

    @property
    def replaces(self) -> bool:
        """Whether the candidate is better by more than one paired standard error."""
        return self.difference > self.standard_error


def auc_influence(
    scores: np.ndarray, labels: np.ndarray, users: np.ndarray, n_users: int, weights: np.ndarray | None = None
) -> UserInfluence:
    """The pooled AUC of weighted pairs; a tie counts one half.

    With AUC = sum over positives p and negatives n of w_p w_n [s_p > s_n] / (P N), P and N being the weight of either
    class, pair j has the influence w_j (V_j - AUC) / P if it is positive, or w_j (V_j - AUC) / N. V_j is the share of
    the other class, by weight, that the pair beats or is beaten by (Obuchowski, 1997). A user's influence is the sum
    over her pairs.
    """
    w = np.ones(len(scores)) if weights is None else np.asarray(weights, np.float64)
    positive = np.asarray(labels) > 0
    _, level = np.unique(scores, return_inverse=True)
    won = np.bincount(level, np.where(positive, w, 0.0))  # weight of the positives with each score
    lost = np.bincount(level, np.where(positive, 0.0, w))
    P, N = won.sum(), lost.sum()
    if not P > 0 or not N > 0:
        raise InputError("the judged pairs have one label only: an AUC needs positives and negatives")
    below = (np.cumsum(lost) - lost / 2) / N  # share of the negatives below each score
    above = 1 - (np.cumsum(won) - won / 2) / P  # share of the positives above it
    auc = float((won * below).sum() / P)
    influence = np.where(positive, (below[level] - auc) / P, (above[level] - auc) / N)
    return UserInfluence(auc, np.bincount(users, w * influence, n_users))


def mean_influence(
    values: np.ndarray, users: np.ndarray, n_users: int, weights: np.ndarray | None = None
) -> UserInfluence:
    """The mean of one value for each of some users, such as nDCG: w_u (value_u - mean) / sum of w; 0 without users."""
    w = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    if not len(values):
        return UserInfluence(0.0, np.zeros(n_users))
    mean = float(np.average(values, weights=w))
    return UserInfluence(mean, np.bincount(users, w * (values - mean) / w.sum(), n_users))


def mean_of_parts(parts: Sequence[Sequence[UserInfluence]], sizes: Sequence[float]) -> list[UserInfluence]:
    """Each metric's mean over disjoint parts of the pairs, weighted by their sizes; a part has one entry per metric."""
    shares = np.asarray(sizes, np.float64) / np.sum(sizes)
    return [
        UserInfluence(
            float(sum(share * own.value for share, own in zip(shares, metric, strict=True))),
            np.sum([share * own.of_users for share, own in zip(shares, metric, strict=True)], axis=0),
        )
        for metric in zip(*parts, strict=True)
    ]


def compare_candidates(
    candidate: Sequence[UserInfluence], incumbent: Sequence[UserInfluence], weights: Sequence[float] | None = None
) -> CandidateDifference:
    """Compare two candidates by the same metrics on the same users; `weights` are the metrics', 1 by default.

    Metrics of the incumbent without any spread are left out: they have no unit.
    """
    weights = [1.0] * len(incumbent) if weights is None else weights
    difference, influence = 0.0, np.zeros(len(incumbent[0].of_users))
    for new, old, weight in zip(candidate, incumbent, weights, strict=True):
        unit = old.standard_error()
        if unit > 0:
            difference += weight * (new.value - old.value) / unit
            influence += weight * (new.of_users - old.of_users) / unit
    return CandidateDifference(difference, _standard_error(influence))


class TriedSettings(NamedTuple):
    """Settings that a fit compared with those it had chosen before; see `CandidateDifference`."""

    name: str
    difference: float
    standard_error: float

    def __str__(self) -> str:
        return f"{self.name}: {self.difference:+.2f} +- {self.standard_error:.2f}"


def tried_settings(history_rows: Iterable[Mapping[str, Any]]) -> list[TriedSettings]:
    """The comparisons in a fit's history, in their order, each once."""
    found: dict[str, TriedSettings] = {}
    for row in history_rows:
        if np.isfinite(difference := _stored_number(row, "choice_difference")):
            name = _without_fold(row["stage"])
            found[name] = TriedSettings(name, difference, _stored_number(row, "choice_error"))
    return list(found.values())


class ChosenSettings(NamedTuple):
    """The settings that a fit chose, and how much better they are than the best of the others.

    The rule asks for one standard error, so the runner-up can be ahead: the difference is then below 0.
    """

    name: str
    candidates: int  # number of settings that were compared, the chosen ones included
    runner_up: str
    difference: float  # in standard errors of the chosen settings' metrics
    standard_error: float  # of the difference, paired over users


def chosen_settings(history_rows: Iterable[Mapping[str, Any]]) -> ChosenSettings | None:
    """What a fit's history says of its choice; None if nothing was chosen."""
    found: dict[str, tuple[float, float]] = {}
    for row in history_rows:
        if np.isfinite(difference := _stored_number(row, "lead_of_choice")):
            found[_without_fold(row["stage"])] = difference, _stored_number(row, "lead_error")
    chosen = next((name for name, numbers in found.items() if numbers == (0.0, 0.0)), None)
    others = {name: numbers for name, numbers in found.items() if name != chosen}
    if chosen is None or not others:
        return None
    runner_up = min(others, key=lambda name: others[name])
    return ChosenSettings(chosen, len(found), runner_up, *others[runner_up])


def _stored_number(row: Mapping[str, Any], name: str) -> float:
    """A number of a row of a history; nan if the row has none."""
    value = row.get(name)
    return float("nan") if value is None else float(value)


def _without_fold(stage: str) -> str:
    """The settings that a stage solves."""
    return re.sub(r"^fold \d+, ", "", stage)


def _standard_error(influence: np.ndarray) -> float:
    """The root of the sum of squares, with Bessel's correction for the users that count."""
    n = np.count_nonzero(influence)
    return float(np.sqrt(influence @ influence * n / (n - 1))) if n > 1 else 0.0
