"""AutoDebias in mini-batches, for any backbone and loss with an affine derivative: unobserved pairs are sampled.

A batch of the base objective holds pairs of S_c and draws from D minus S_c; each draw stands for |D - S_c| / |S_a|
pairs. The loss's derivative is affine in its target (bce, mse, squared). An observed pair has two targets: r with
weight w1, and M_y with weight alpha w2. They merge into y = (w1 r + alpha w2 M_y) / w with weight w = w1 + alpha w2.

Meta-gradient: let theta' = theta - eta grad L(theta, phi), and let g be the gradient of J (S_t's loss) at theta'. Then
dJ/dphi is the derivative in phi of sum_j w_j l_s(s_j, y_j) s'_j. s'_j is the derivative of score j along -eta g; the
backbone's forward mode computes it. The models of theta and theta' have only the rows of the two batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb import losses
from dubnb._jit import njit
from dubnb._random import key
from dubnb.backbones import Trainer, Weights
from dubnb.backbones.mf import Stream, distinct
from dubnb.data.pattern import UnobservedPairs
from dubnb.objective import autodebias as meta
from dubnb.objective.autodebias import SCALE, PairWeights, Phi, pair_weights
from dubnb.objective.terms import empty_stream, shuffle, stream_part

if TYPE_CHECKING:
    from dubnb.objective.coupled import Cycle
    from dubnb.train import Stage

NEGATIVE, POSITIVE, UNOBSERVED = range(3)  # the classes of samples, as the terms of their stream
LOOK_AHEAD = 1.0  # eta: on a batch's mean loss, such a step is about as long as one of Adam with lr 1e-3


class Sampled(NamedTuple):
    """The weights for one phi, and the factors that scale them."""

    weights: PairWeights
    observed: float  # alpha
    unobserved: float  # alpha |D - S_c| / |S_a|


class Logged(NamedTuple):
    """The log's weight and target of each sample of a batch; draws do not use theirs."""

    weights: np.ndarray  # multiply w1
    targets: np.ndarray  # r

    @classmethod
    def of(cls, batch: Stream) -> Logged:
        """Copies from a batch that `weigh_batch` has not changed yet."""
        return cls(batch.weights.copy(), batch.targets.copy())


@njit(inline=True)
def merged_sample(w1, r, w2, m):
    """The weight and target of one sample that stands for target r with weight w1 and target m with weight w2."""
    return w1 + w2, (w1 * r + w2 * m) / (w1 + w2)


@njit
def weigh_batch(batch, logged, sampled):
    """Fill in the weights and targets of a batch; its `terms` are the classes of its samples."""
    w = sampled.weights
    for j in range(len(batch.users)):
        u, i, y = batch.users[j], batch.items[j], batch.terms[j]
        AC = w.A[u] * w.C[i]
        if y == UNOBSERVED:
            batch.weights[j] = sampled.unobserved * AC * w.E[0]
            batch.targets[j] = w.M[0]
        else:
            w1 = logged.weights[j] * w.user_1[u] * w.item_1[i] * w.class_1[y]
            w2 = sampled.observed * AC * w.E[1]
            batch.weights[j], batch.targets[j] = merged_sample(w1, logged.targets[j], w2, w.M[1 + y])


@njit
def _add_meta(batch, logged, scores, turns, sampled, loss, out):
    """Add each sample's share of dJ/dphi, without the factor 1/5 and the activation's derivative. `turns` are s'."""
    w = sampled.weights
    for j in range(len(batch.users)):
        u, i, y, s, turn = batch.users[j], batch.items[j], batch.terms[j], scores[j], turns[j]
        at_zero = losses.derivative(loss, s, np.float32(0.0))
        slope = losses.derivative(loss, s, np.float32(1.0)) - at_zero  # the derivative is affine in the target
        AC = w.A[u] * w.C[i] * turn
        o = 0 if y == UNOBSERVED else 1
        k = 0 if y == UNOBSERVED else 1 + y
        h = (sampled.observed if o else sampled.unobserved) * AC * w.E[o]
        out.a_prime[u] += h * (at_zero + slope * w.M[k])
        out.b_prime[i] += h * (at_zero + slope * w.M[k])
        out.c_prime[o] += h * (at_zero + slope * w.M[k])
        out.mu[k] += h * slope
        if o:
            w1 = logged.weights[j] * w.user_1[u] * w.item_1[i] * w.class_1[y]
            f = w1 * (at_zero + slope * np.float64(logged.targets[j])) * turn
            out.a[u] += f
            out.b[i] += f
            out.c[y] += f


def sampled_meta_gradient(
    trainer: Trainer,
    batch: Stream,
    logged: Logged,
    S_t: Stream,
    phi: Phi,
    sampled: Sampled,
    loss: losses.Loss,
    lam: float,
) -> Phi:
    """dJ/dphi of one batch at the trainer's current weights; J is the mean loss of the stream S_t."""
    users, user_rows = distinct(np.concatenate([batch.users, S_t.users]), len(phi.a))
    items, item_rows = distinct(np.concatenate([batch.items, S_t.items]), len(phi.b))
    here = trainer.subset(users, items)
    n = len(batch.users)
    base = _renumbered(batch, user_rows[:n], item_rows[:n])
    ahead = here.plus(-LOOK_AHEAD, here.gradient(base, loss, lam, trainer))
    g = ahead.gradient(_renumbered(S_t, user_rows[n:], item_rows[n:]), loss, 0.0, trainer)
    out = Phi(*map(np.zeros_like, phi))
    scores, turns = here.tangent(g, base.users, base.items, trainer)
    _add_meta(batch, logged, scores, turns * np.float32(-LOOK_AHEAD / n), sampled, loss.code, out)
    for group in out[:-1]:
        group /= SCALE
    M = sampled.weights.M
    out.mu[:] *= M * (1.0 - M)
    return out


def _renumbered(batch: Stream, users: np.ndarray, items: np.ndarray) -> Stream:
    """The batch with row numbers of a small model, all samples in term 0."""
    return Stream(users, items, batch.targets, batch.weights, np.zeros(len(users), np.uint8))


def sampled_weights(phi: Phi, alpha: float, n_unobserved: int, n_draws: int) -> Sampled:
    """The weights and factors that `weigh_batch` needs for phi; imputations are probabilities, sigmoid(mu)."""
    return Sampled(pair_weights(phi, "sigmoid"), alpha, alpha * n_unobserved / n_draws)


class SampledProblem(NamedTuple):
    """What a fit in mini-batches trains on; its arrays may change."""

    weights: Weights  # theta at the start
    stage: Stage
    loss: losses.Loss
    observed: Stream  # S_c: targets r, the log's weights, and the classes as terms
    pairs: UnobservedPairs
    S_t: Cycle
    phi: Phi
    rates: meta.Rates  # of phi
    alpha: float
    meta_every: int  # batches between two look-aheads
    weights_from: int  # the epoch after which w1 and w2 change


class SampledSolver:
    """Trains theta by Adam on pairs of S_c and of D - S_c, and phi by a look-ahead before some batches."""

    def __init__(self, problem: SampledProblem):
        self.problem, self.phi, self.n = problem, problem.phi, len(problem.observed.users)
        self.source, self.shuffled = with_draws(problem.observed), empty_stream(2 * self.n)
        self.adam, self.sampled = meta.init_adam(self.phi), self._weights()
        self.trainer = problem.weights.trainer(problem.stage.batch_size)
        self.score_pairs, self.score_rows = self.trainer.score_pairs, self.trainer.score_rows
        self.weights, self.finite = self.trainer.weights, self.trainer.finite

    def epoch(self, epoch: int) -> dict[str, float]:
        """Train; returns the mean loss of S_c and of the draws."""
        problem, stage, draws = self.problem, self.problem.stage, stream_part(self.source, self.n, 2 * self.n)
        problem.pairs.draw(key(stage.seed, "refine", "d", epoch), draws.users, draws.items)
        shuffle(key(stage.seed, "refine", "shuffle", epoch), self.source, self.shuffled)
        totals, weights, size = np.zeros(3), np.zeros(3), stage.batch_size
        for start in range(0, 2 * self.n, size * problem.meta_every):
            # phi does not change until the next look-ahead: the batches up to it are weighed and trained together
            batches = stream_part(self.shuffled, start, start + size * problem.meta_every)
            logged, first = Logged.of(batches), stream_part(batches, 0, size)
            weigh_batch(first, logged, self.sampled)
            self._learn_phi(first, logged, weights_move=epoch > problem.weights_from)
            weigh_batch(batches, logged, self.sampled)
            totals += self.trainer.epoch(batches, 3, problem.loss, stage.lr, stage.lam)
            weights += np.bincount(batches.terms, batches.weights, 3)
        return mean_losses(totals, weights, problem.alpha)

    def _learn_phi(self, batch: Stream, logged: Logged, weights_move: bool) -> None:
        problem = self.problem
        gradient = sampled_meta_gradient(
            self.trainer, batch, logged, problem.S_t.next(), self.phi, self.sampled, problem.loss, problem.stage.lam
        )
        meta.phi_step(self.phi, gradient, self.adam, weights_move, problem.rates)
        self.sampled = self._weights()

    def _weights(self) -> Sampled:
        return sampled_weights(self.phi, self.problem.alpha, self.problem.pairs.size, self.n)


def with_draws(observed: Stream) -> Stream:
    """S_c followed by as many samples for draws, whose pairs are not filled in."""
    n = len(observed.users)
    source = empty_stream(2 * n)
    for own, given in zip(source, observed, strict=True):
        own[:n] = given
    source.terms[n:] = UNOBSERVED
    return source


def mean_losses(totals: np.ndarray, weights: np.ndarray, alpha: float) -> dict[str, float]:
    """The mean loss of terms c and d from sums over each class."""
    return {"c": totals[:2].sum() / weights[:2].sum(), "d": totals[2] / weights[2] if alpha else 0.0}
