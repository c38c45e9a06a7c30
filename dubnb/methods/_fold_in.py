"""Users without a row of their own: cold users get the average user's row, new users an exact row solve (mf).

Cold users have no pair that the model learned from. With mf the scores are linear in the user's row, so the mean row's
scores are the mean scores of all users that the model learned from. With ncf the mean row is used too, but its scores
are not the mean scores.

A new user with a short history gets the row that training would have given. Given the items' rows Q, with z_i = (q_i,
1) the partner of the free coordinates x = (p_u, b_u), a user's own part of the objective is

    sum over the history of w l(s, y)  +  A_u sum over the other items of v_i l(s_i, t_i)  +  ridge/2 |p|^2
    +  bias_ridge/2 (b_u - bias)^2,          s_i = b0 + b_i + z_i . x,

where A_u = (n + 1)^p divided by the mean over the training users. For the losses bce and squared it is convex in x:
Newton's method from the average user ends at the minimum, with the squared loss in one step. `RowObjective` holds
all of it except the history. With the exact solvers it is the objective that was minimised. With mini-batches it is the
expected objective of an epoch: a sample weighs 1 / batch size, every batch that touches the row decays it by lam, and
draws from S_u hit each of its pairs equally often. Biases are not regularised there, and a history without negatives
would send b_u to infinity; so b_u is held near the training users' mean, by their variance.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb._jit import one_blas_thread
from dubnb.backbones import MF, Weights
from dubnb.backbones.mf import BIAS_P, BIAS_Q, EXTRA_COLUMNS, Extended
from dubnb.evaluation import top_k
from dubnb.methods._params import required
from dubnb.objective.terms import (
    ModelTeacher,
    Observed,
    RangedTerm,
    Teacher,
    Unobserved,
    spread_grades,
    total_weights,
)
from dubnb.train import with_negatives

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dubnb.data.ids import Ids
    from dubnb.data.partition import Partition
    from dubnb.head import Head
    from dubnb.train import Fit

LOSSES = ("bce", "squared")
STEPS, ENOUGH = 50, 1e-10  # Newton's method: the largest number of steps; a smaller relative decrease ends it
LOWEST = -500.0  # scores are clipped here, because exp would overflow
FALLBACK_ROWS = 5.0  # rows at the mean rate that an item's own random rows are shrunk by
LEAST_VARIANCE = 1e-3  # lower limit of the variance of the training users' biases


def cold_users(data: Partition, parts: Sequence[str]) -> np.ndarray:
    """Bool per user: whether it has no pair in `parts`, from which a model has learned.

    Without parts nothing is learned per user (baselines), and no user is cold.
    """
    met = np.full(data.n_users, not parts)
    for part in parts:
        if part == "S_c":
            met |= data.biased_counts.users > 0
        else:
            met[data.triplets(part).users] = True
    return ~met


def average_user(weights: Any, cold: np.ndarray) -> Any:
    """Weights with one user, the mean of all that are not cold, and the same items."""
    if hasattr(weights, "average_user"):
        return weights.average_user(cold)
    mean = weights.users.mean(axis=0, dtype=np.float64, where=~cold[:, None])
    alone = copy.copy(weights)
    alone.users = mean.astype(np.float32)[None]
    return alone


def with_average(weights: Any, cold: np.ndarray) -> Any:
    """The same weights with the average user's row in place of every cold user's.

    Weights without a row per user, such as those of dub-i, stay as they are: cold users have no items there.
    """
    if hasattr(weights, "with_average"):
        return weights.with_average(cold)
    if not cold.any() or cold.all() or hasattr(weights, "average_user"):
        return weights
    filled = copy.copy(weights)
    filled.users = weights.users.copy()
    filled.users[cold] = average_user(weights, cold).users[0]
    return filled


def with_random_items(weights: Any, data: Partition, link: bool) -> Any:
    """The same weights with a fallback for the items of a user bucket that a model of S_c has not learned.

    Such an item gets the mean factors and bias of the learned items, and its bias is shifted by its rows in S_t:

        f(r_i) - f(r),   r_i = (positives + 5 r) / (rows + 5),   f: logit where the loss has a link, else the identity

    with r the positive rate of S_t, weighted by 1 / propensity where there are some. Only mf has such biases.
    """
    from dubnb.backbones.mf import MF

    S_t = data.triplets("S_t")
    cold = data.biased_counts.items == 0
    if not isinstance(weights, MF) or not cold.any() or not len(S_t.users):
        return weights
    importance = data.importance("S_t")
    own = np.ones(len(S_t.users)) if importance is None else importance
    rate = float(np.clip(np.average(S_t.labels, weights=own), 1e-3, 1 - 1e-3))
    rows, positives = (np.bincount(S_t.items, w, data.n_items) for w in (own, own * S_t.labels))
    rates = (positives + FALLBACK_ROWS * rate) / (rows + FALLBACK_ROWS)
    shift = np.log(rates / (1 - rates)) - np.log(rate / (1 - rate)) if link else rates - rate
    filled = copy.copy(weights)
    filled.items = weights.items.copy()
    filled.items[cold] = weights.items[~cold].mean(axis=0, dtype=np.float64)
    filled.items[cold, weights.rank + 1] += shift[cold]
    return filled


@dataclass(frozen=True)
class RowObjective:
    """The part of the training objective that concerns one user, apart from the user's own history."""

    item_weights: np.ndarray  # v_i, float32
    item_targets: np.ndarray  # t_i, float32
    power: float  # p
    mean_activity: float  # mean of (n_u + 1)^p over the training users
    decay: float  # ridge = decay + decay_per_sample n + decay_per_weight W, where W is the row's total weight
    decay_per_sample: float
    decay_per_weight: float
    bias_ridge: float
    bias: float

    NUMBERS: ClassVar[tuple[str, ...]] = (
        "power",
        "mean_activity",
        "decay",
        "decay_per_sample",
        "decay_per_weight",
        "bias_ridge",
        "bias",
    )

    def header(self) -> dict[str, float]:
        """The numbers, for a model file."""
        return {name: float(getattr(self, name)) for name in self.NUMBERS}

    def activity(self, n: int) -> float:
        """A_u of a user with a history of n items."""
        return float((n + 1.0) ** self.power / self.mean_activity)


def row_objective(
    method: Any, fit: Fit, weights: Weights, M_t: Weights | None, cold: np.ndarray
) -> RowObjective | None:
    """The objective of one user's row after a fit that ended with `weights`; None if a row has no exact solve."""
    weights = getattr(weights, "mf", weights)  # dub-xi: the part with factors
    if not isinstance(weights, MF) or method.loss not in LOSSES or not method.folds_in or not method.keeps("c"):
        return None
    data, exact = fit.data, method.chosen_solver() == "exact"
    terms = method.all_terms(fit, M_t)
    terms = method.weighed(terms) if exact else with_negatives(method.kept(terms), method.stage("M_c"), data)
    d = next((t for t in terms if isinstance(t, Unobserved) and t.teacher is not None), None)
    share = 0.0 if d is None else 1.0 if exact else d.size / max(d.pairs.size, 1)  # share of S_u that an epoch draws
    v, t, power = np.zeros(data.n_items), np.zeros(data.n_items), 0.0
    if d is not None and d.teacher is not None:
        C = np.ones(data.n_items) if d.row_weights is None else d.row_weights[1]
        v, t, power = d.weight * share * C, _targets(d.teacher, data.n_items, cold), d.power
    if exact:
        observed = [term for term in terms if isinstance(term, Observed | RangedTerm)]
        of_users, of_items = total_weights(observed, required(d))
        lam = method.exact_lam(of_users.sum(), (len(of_users), len(of_items)))
        decays = (0.0, 0.0, lam / float(of_users.mean())) if method.decays_by_row else (lam, 0.0, 0.0)
        bias = 2 * method.bias_ridge, 0.0
    else:
        per_sample = required(method.lam) * required(method.batch_size)
        decays = per_sample * (share * data.n_items), per_sample, 0.0
        biases = weights.extended().P[~cold, BIAS_P].astype(np.float64)
        bias = 1 / max(biases.var(), LEAST_VARIANCE), biases.mean() - weights.b0
    mean = float(((data.biased_counts.users + 1.0) ** power).mean())
    return RowObjective(v.astype(np.float32), t.astype(np.float32), power, mean, *decays, *map(float, bias))


def _targets(teacher: Teacher, n_items: int, cold: np.ndarray) -> np.ndarray:
    """The target t of every item for a user that the teacher does not know."""
    if isinstance(teacher, ModelTeacher):
        teacher = dataclasses.replace(teacher, M_t=average_user(teacher.M_t, np.zeros_like(cold)))
    return teacher.predict(np.zeros(n_items, np.int32), np.arange(n_items, dtype=np.int32))


def solve(
    weights: MF, objective: RowObjective, loss: str, items: np.ndarray, observed: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """The extended row (p, b_u, 1), b0 included, of a user with a history: item rows, (targets, weights).

    An item whose weight is nan counts as one outside the history.
    """
    Q = item_rows(weights).astype(np.float64)
    Z, offsets = np.delete(Q, BIAS_Q, axis=1), Q[:, BIAS_Q] + float(weights.b0)
    w = objective.activity(len(items)) * objective.item_weights.astype(np.float64)
    y = objective.item_targets.astype(np.float64)
    own_y, own_w = (
        np.where(np.isnan(observed[1]), of_S_u[items], own) for of_S_u, own in zip((y, w), observed, strict=True)
    )
    whole = w.sum() + own_w.sum()
    y[items], w[items] = own_y, own_w
    ridge = np.full(Z.shape[1], objective.decay + objective.decay_per_sample * len(items))
    ridge += objective.decay_per_weight * whole
    ridge[-1] = objective.bias_ridge
    centre = np.zeros(Z.shape[1])
    centre[-1] = objective.bias
    kept = np.flatnonzero(w)
    x = _minimise(Z[kept], offsets[kept], w[kept], y[kept], ridge, centre, loss)
    row = np.ones(Q.shape[1])
    row[:-1] = x
    row[BIAS_P] += float(weights.b0)
    return row.astype(np.float32)


def _minimise(
    Z: np.ndarray, offsets: np.ndarray, w: np.ndarray, y: np.ndarray, ridge: np.ndarray, centre: np.ndarray, loss: str
) -> np.ndarray:
    """argmin of sum w l(offset + z . x, y) + 1/2 sum ridge (x - centre)^2.

    A step is halved until it lowers the objective.
    """

    def value(x: np.ndarray) -> float:
        s = offsets + Z @ x
        losses = np.logaddexp(0.0, s) - y * s if loss == "bce" else (s - y) ** 2
        return float(w @ losses + 0.5 * ridge @ (x - centre) ** 2)

    x, best = centre.copy(), value(centre)
    for _ in range(STEPS):
        s = offsets + Z @ x
        p = 1 / (1 + np.exp(-np.maximum(s, LOWEST))) if loss == "bce" else s
        slope, bend = (p - y, p * (1 - p)) if loss == "bce" else (2 * (s - y), np.full(len(s), 2.0))
        gradient = Z.T @ (w * slope) + ridge * (x - centre)
        hessian = (Z * (w * bend)[:, None]).T @ Z + np.diag(np.maximum(ridge, 1e-12))
        step = np.linalg.solve(hessian, gradient)
        while value(x - step) > best and np.abs(step).max() > 1e-12:
            step *= 0.5
        before, x = best, x - step
        best = value(x)
        if before - best <= ENOUGH * abs(best):
            break
    return x


class History(NamedTuple):
    """The pairs of a new user, by the model's rule of targets."""

    items: np.ndarray  # row numbers
    targets: np.ndarray
    weights: np.ndarray  # nan: the model counts the negative as a pair of S_u
    inputs: np.ndarray  # what a pair is as dub-i's input: its grade, share or 0/1 label
    positives: float  # that the head counts; with rates the sum of the shares

    @property
    def observed(self) -> tuple[np.ndarray, np.ndarray]:
        """(targets, weights)."""
        return self.targets, self.weights


def history(item_ids: Ids, params: Mapping[str, Any], items: Any, labels: Any) -> History:
    """A history by original ids."""
    rows = item_ids.rows(item_ids.listed(items, "item"), "item")
    labels = np.ones(len(rows)) if labels is None else np.atleast_1d(np.asarray(labels, dtype=np.float64))
    if rows.ndim != 1 or labels.shape != rows.shape:
        raise InputError(f"items of shape {rows.shape} and labels {labels.shape}: pass two 1-d lists of one length")
    graded = params["targets"] in ("graded", "rates")
    fine = (labels >= 0) & (labels <= 1) if graded else np.isin(labels, (0.0, 1.0))
    if not fine.all():
        rule = "between 0 and 1: rescale it" if graded else "neither 0 nor 1: threshold it first"
        raise InputError(
            f"label {labels[~fine][0]:g} is not {rule}" if graded else f"label {labels[~fine][0]:g} is {rule}"
        )
    if len(np.unique(rows)) < len(rows):
        raise InputError("an item occurs twice in the history: keep one label for each")
    negative, slope, kind = params["negative"], params["target_slope"], params["targets"]
    inputs = labels
    if kind == "graded":
        inputs = np.where(labels == 1, 1.0, spread_grades(labels, params.get("grade_spread", 1.0)))
    clicked = labels if kind == "rates" else (labels == 1).astype(np.float64)
    positives = float(clicked.sum())
    if isinstance(negative, str):  # unobserved
        weights = np.where(clicked > 0, clicked * (1 + slope / 2), np.nan)
        return History(rows, np.ones(len(rows)), weights, inputs, positives)
    targets = inputs if kind == "graded" else np.where(labels == 1, 1.0, negative + (1 - negative) * labels)
    return History(rows, targets, np.maximum(1 - slope / 2 + slope * targets, 0.0), inputs, positives)


def without_head(weights: Any, head: Head | None) -> Any:
    """The weights without a head's offsets of items, as they were when rows were solved."""
    if head is None:
        return weights
    return weights.with_offsets(np.zeros(len(weights.users)), -head.item_offsets)


def new_user_with_head(weights: Any, head: Head | None, own: History) -> Any:
    """Weights of one new user with the head's offsets: of all items, and of a user with this history."""
    if head is None:
        return weights
    return weights.with_offsets(np.array([head.of_new_user(len(own.items), own.positives)]), head.item_offsets)


def item_rows(weights: MF) -> np.ndarray:
    """The extended rows of the items."""
    return weights.items[:, : weights.rank + EXTRA_COLUMNS]


def as_weights(row: np.ndarray, weights: MF) -> MF:
    """A model with this one user and the same items."""
    return MF.from_extended(Extended(row[None], item_rows(weights)))


class NewUser:
    """A user outside the model's tables, with a row that scores and ranks items as any other."""

    def __init__(self, weights: MF, item_ids: Ids, had: np.ndarray):
        self.weights, self.item_ids, self.had = weights, item_ids, had

    @property
    def row(self) -> np.ndarray:
        """The vector whose inner product with the item vectors of `export` is the score."""
        return self.weights.extended().P[0]

    @one_blas_thread()
    def decision_function(self, items: Any) -> np.ndarray:
        """Raw scores of items by original id."""
        rows = self.item_ids.rows(self.item_ids.listed(items, "item"), "item")
        return self.weights.score_pairs(np.zeros(len(rows), np.int32), rows)

    @one_blas_thread()
    def recommend(self, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """The best items outside the history, at most k, and their raw scores, best first."""
        scores = self.weights.score_rows(np.array([0]))
        barred = np.zeros(scores.shape, dtype=bool)
        barred[:, self.had] = True
        top = top_k(scores, _check.whole("k", k), barred)[0]
        top = top[top >= 0]
        return self.item_ids.values[top], scores[0, top]
