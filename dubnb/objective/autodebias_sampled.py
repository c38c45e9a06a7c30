"""AutoDebias in mini-batches, for any backbone and loss with an affine derivative: unobserved pairs are sampled.

A batch of the base objective holds pairs of S_c and draws from D minus S_c; each draw stands for |D - S_c| / |S_a|
pairs. The loss's derivative is affine in its target (bce, mse, squared). The two targets of an observed pair, r with
weight w1 and M_y with weight alpha w2, therefore merge: weight w = w1 + alpha w2, target y = (w1 r + alpha w2 M_y) / w.

Meta-gradient: with theta' = theta - eta grad L(theta, phi) and g the gradient of J (S_t's loss) at theta', dJ/dphi is
the derivative in phi of sum_j w_j l_s(s_j, y_j) s'_j, where s'_j is the derivative of score j along -eta g, by the
backbone's forward mode. Both look-ahead models are small: they have only the rows of the two batches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dubnb import losses
from dubnb._jit import njit
from dubnb.backbones import Trainer
from dubnb.backbones import embedding as emb
from dubnb.objective.autodebias import SCALE, PairWeights, Phi, weights_of
from dubnb.stream import Stream

NEGATIVE, POSITIVE, UNOBSERVED = range(3)  # the classes of samples, as the terms of their stream
LOOK_AHEAD = 1.0  # eta: on a batch's mean loss, such a step is about as long as one of Adam with lr 1e-3


class Sampled(NamedTuple):
    """The weights for one phi, and the factors that scale them."""

    weights: PairWeights
    observed: float  # alpha
    unobserved: float  # alpha |D - S_c| / |S_a|


class Logged(NamedTuple):
    """The log's weight and target of each sample; unused for draws."""

    weights: np.ndarray  # multiply w1
    targets: np.ndarray  # r

    @classmethod
    def of(cls, batch: Stream) -> Logged:
        """Copies from a batch that `weigh` has not changed yet."""
        return cls(batch.weights.copy(), batch.targets.copy())


@njit
def weigh(batch, logged, sampled):
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
            batch.weights[j] = w1 + w2
            batch.targets[j] = (w1 * logged.targets[j] + w2 * w.M[1 + y]) / (w1 + w2)


@njit
def _add_meta(batch, logged, scores, turns, sampled, loss, out):
    """Add each sample's share of dJ/dphi, without the factor 1/5 and the activation's derivative; turns: s'."""
    w = sampled.weights
    for j in range(len(batch.users)):
        u, i, y, s, turn = batch.users[j], batch.items[j], batch.terms[j], scores[j], turns[j]
        at_zero = losses.derivative(loss, s, np.float32(0.0))
        slope = losses.derivative(loss, s, np.float32(1.0)) - at_zero  # in the target: the derivative is affine in it
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


def meta_gradient(
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
    users, user_rows = emb.distinct(np.concatenate([batch.users, S_t.users]), len(phi.a))
    items, item_rows = emb.distinct(np.concatenate([batch.items, S_t.items]), len(phi.b))
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
    """The weights and factors that `weigh` needs for phi; imputations are probabilities, sigmoid(mu)."""
    return Sampled(weights_of(phi, "sigmoid"), alpha, alpha * n_unobserved / n_draws)
