"""A new user from a short history: the row that training would have given, by one exact row solve (mf).

Given the items' rows Q, with z_i = (q_i, 1) the partner of the free coordinates x = (p_u, b_u), a user's own part of
the objective is

    sum over the history of w l(s, y)  +  A_u sum over the other items of v_i l(s_i, t_i)  +  ridge/2 |p|^2
    +  bias_ridge/2 (b_u - bias)^2,          s_i = b0 + b_i + z_i . x,

A_u = (n + 1)^p over the mean of the training users'. It is convex in x for the losses bce and squared: Newton's method
from the average user ends at its minimum, with the squared loss in one step. `RowObjective` keeps what a fit knows of
it. With the exact solvers it is the very objective that was minimised. With mini-batches it is that of an epoch in
expectation: a sample weighs 1 / batch size, every batch that touches the row decays it by lam, and a draw from S_u
falls on each of its pairs alike. (Biases are not regularised there, and a history without negatives would send b_u to
infinity: it is held at the mean of the training users by their own variance.)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import MF, Weights
from dubnb.backbones.extended import BIAS_P, BIAS_Q, Extended
from dubnb.methods._fallback import average_user
from dubnb.methods._params import required
from dubnb.objective import exposure, teachers
from dubnb.objective.als import BIAS_RIDGE
from dubnb.objective.targets import spread_grades
from dubnb.objective.terms import Observed, Term, Unobserved
from dubnb.ranking import top_k

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dubnb.data.ids import Ids
    from dubnb.methods._method import Method
    from dubnb.train import Fit

LOSSES = ("bce", "squared")
STEPS, ENOUGH = 50, 1e-10  # of Newton's method: at most so many, and until the objective falls by less than this share
LOWEST = -500.0  # score that is told from lower ones: exp would overflow
LEAST_VARIANCE = 1e-3  # of the training users' biases


@dataclass(frozen=True)
class RowObjective:
    """What training minimised for one user, beyond the user's own history."""

    item_weights: np.ndarray  # v_i, float32
    item_targets: np.ndarray  # t_i, float32
    power: float  # p
    mean_activity: float  # of (n_u + 1)^p over the training users
    decay: float  # ridge = decay + decay_per_sample n + decay_per_weight W, W the row's whole weight
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
        """A_u of a user with a history of n."""
        return float((n + 1.0) ** self.power / self.mean_activity)


def row_objective(
    method: Method, fit: Fit, weights: Weights, M_t: Weights | None, cold: np.ndarray
) -> RowObjective | None:
    """That of a fit which ended with `weights`; None where a row has no exact solve."""
    if not isinstance(weights, MF) or method.loss not in LOSSES or not method.folds_in or not method.keeps("c"):
        return None
    data = fit.data
    exact = method.chosen_solver() == "exact"
    terms = [term for term in method._all_terms(fit, M_t) if exact or term.name == "n" or method.keeps(term.name)]
    if exact:  # as in its problem
        terms = [term if method.keeps(term.name) else term.times(0.0) for term in terms]
    d = next((t for t in terms if isinstance(t, Unobserved) and t.teacher is not None), None)
    share = 0.0 if d is None else 1.0 if exact else d.size / max(d.pairs.size, 1)  # of S_u that an epoch draws
    v, t = np.zeros(data.n_items), np.zeros(data.n_items)
    power = 0.0
    if d is not None and d.teacher is not None:
        C = np.ones(data.n_items) if d.row_weights is None else d.row_weights[1]
        v, t = d.weight * share * C, _targets(d.teacher, data.n_items, cold)
        power = d.power
    counts = np.bincount(data.triplets("S_c").users, minlength=data.n_users)
    decays = _exact_decays(method, terms, d) if exact else _sampled_decays(method, share * data.n_items)
    biases = weights.extended().P[~cold, BIAS_P].astype(np.float64)
    bias = (2 * BIAS_RIDGE, 0.0) if exact else (1 / max(biases.var(), LEAST_VARIANCE), biases.mean() - weights.b0)
    mean = float(((counts + 1.0) ** power).mean())
    return RowObjective(v.astype(np.float32), t.astype(np.float32), power, mean, *decays, *map(float, bias))


def _targets(teacher: teachers.Teacher, n_items: int, cold: np.ndarray) -> np.ndarray:
    """t of every item for a user whom the teacher does not know."""
    if isinstance(teacher, teachers.Model):
        teacher = dataclasses.replace(teacher, M_t=average_user(teacher.M_t, np.zeros_like(cold)))
    return teacher.predict(np.zeros(n_items, np.int32), np.arange(n_items, dtype=np.int32))


def _exact_decays(method: Any, terms: Sequence[Term], d: Any) -> tuple[float, float, float]:
    """Of a method with an exact solver."""
    observed = [term for term in terms if isinstance(term, Observed)]
    of_users, of_items = exposure.total_weights(observed, d)
    lam = method.exact_lam(of_users.sum(), (len(of_users), len(of_items)))
    return (0.0, 0.0, lam / float(of_users.mean())) if method.decays_by_row else (lam, 0.0, 0.0)


def _sampled_decays(method: Method, draws: float) -> tuple[float, float, float]:
    per_sample = required(method.lam) * required(method.batch_size)
    return per_sample * draws, per_sample, 0.0


def solve(
    weights: MF, objective: RowObjective, loss: str, items: np.ndarray, observed: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """The extended row (p, b_u, 1), b0 included, of a user with a history: item rows, (targets, weights).

    Where a weight is nan, the item counts as one outside the history.
    """
    Q = weights.extended().Q.astype(np.float64)
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
    x = _newton(Z[kept], offsets[kept], w[kept], y[kept], ridge, centre, loss)
    row = np.ones(Q.shape[1])
    row[:-1] = x
    row[BIAS_P] += float(weights.b0)
    return row.astype(np.float32)


def _newton(
    Z: np.ndarray, offsets: np.ndarray, w: np.ndarray, y: np.ndarray, ridge: np.ndarray, centre: np.ndarray, loss: str
) -> np.ndarray:
    """argmin of sum w l(offset + z . x, y) + 1/2 sum ridge (x - centre)^2; steps are halved until they help."""

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


def history(
    item_ids: Ids, params: Mapping[str, Any], items: Any, labels: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(item rows, targets, weights) of a history by original ids, under the model's rule of targets.

    The weight is nan where the model counts a negative as a pair of S_u.
    """
    items = np.atleast_1d(np.asarray(items))
    rows = item_ids.rows(items, "item") if items.size else np.zeros(items.shape, np.int64)
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
        raise InputError("an item stands twice in the history: keep one label for each")
    negative, slope = params["negative"], params["target_slope"]
    if isinstance(negative, str):  # unobserved
        clicked = labels if params["targets"] == "rates" else labels == 1
        return rows, np.ones(len(rows)), np.where(clicked > 0, clicked * (1 + slope / 2), np.nan)
    targets = np.where(labels > 0, 1.0, negative)
    if params["targets"] == "rates":
        targets = negative + (1 - negative) * labels
    if params["targets"] == "graded":
        targets = np.where(labels == 1, 1.0, spread_grades(labels, params.get("grade_spread", 1.0)))
    return rows, targets, np.maximum(1 - slope / 2 + slope * targets, 0.0)


def as_weights(row: np.ndarray, weights: MF) -> MF:
    """A model of this one user and the same items."""
    return MF.from_extended(Extended(row[None], weights.extended().Q))


class NewUser:
    """A user outside the model's tables: a row that scores and ranks like every other."""

    def __init__(self, weights: MF, item_ids: Ids, had: np.ndarray):
        self.weights, self.item_ids, self.had = weights, item_ids, had

    @property
    def row(self) -> np.ndarray:
        """The vector whose inner product with the item vectors of `export` is the score."""
        return self.weights.extended().P[0]

    def decision_function(self, items: Any) -> np.ndarray:
        """Raw scores of items by original id."""
        rows = self.item_ids.rows(np.atleast_1d(np.asarray(items)), "item")
        return self.weights.score_pairs(np.zeros(len(rows), np.int32), rows)

    def recommend(self, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """The best items outside the history, at most k, and their raw scores, best first."""
        scores = self.weights.score_rows(np.array([0]))
        barred = np.zeros(scores.shape, dtype=bool)
        barred[:, self.had] = True
        top = top_k(scores, _check.whole("k", k), barred)[0]
        top = top[top >= 0]
        return self.item_ids.values[top], scores[0, top]
