"""Objectives that couple scores: a sample's slope dL/ds depends on another sample's score, or on another model's.

Every batch is scored first. The slopes are then written as targets of the linear loss, whose derivative is its target,
and the backbone's own kernel makes the step. Two loops use this: over pairs of items for one user (bpr, pda), and over
samples of two models (dr, mrdr, stable-dr, dib). In joint training (Eq. 1, joint bridge, cause) each of two models has
its own samples and optimizer, and `mf.side_by_side` couples them in term d or by an alignment of factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb._jit import by_type, njit, span
from dubnb._random import key, uniform
from dubnb.backbones import Weights, mf
from dubnb.backbones.mf import Stream, copy_sample, rates, samples_of, score_batch, train_batch, unanchored
from dubnb.losses import BCE, LINEAR, LOSSES, loss_value, sigmoid, slope
from dubnb.objective.terms import EpochStreams, Observed, Term, empty_stream, stream_part

if TYPE_CHECKING:
    from dubnb.data.pattern import Pattern
    from dubnb.train import Stage

_ONE, _TWO = np.float32(1.0), np.float32(2.0)
DR_KIND, MRDR_KIND, STABLE_KIND = range(3)
LARGEST_TILT, TILT_STEPS = 4.0, 20
SIDES = {"items": ("items",), "users": ("users",), "both": ("users", "items")}
NORMS = {"l1": mf.L1, "frobenius": mf.FROBENIUS}


# ---- pairs of items -------------------------------------------------------------------------------------------------


@njit
def preference(s):
    """s + 1 for s >= 0, else exp(s): positive and increasing (ELU + 1), pda's preference for an item."""
    return s + _ONE if s >= 0 else math.exp(s)


@njit
def preference_slope(s):
    """Derivative of `preference`."""
    return _ONE if s >= 0 else math.exp(s)


class PairRoom(NamedTuple):
    """Scratch space for a batch of pairs.

    A positive is followed by its other item. Their slopes cancel exactly in the biases of users, which Adam would
    otherwise move by the noise of rounding.
    """

    batch: Stream
    scores: np.ndarray
    unused: np.ndarray  # the linear loss has no meaning as a total


class Pairwise:
    """Training on pairs of a user's positive i and another item j, drawn anew in every epoch.

        mean of softplus(-(x_i - x_j)),    x_i = s_i (bpr)  or  x_i = preference(s_i) popularity_i (pda)

    j is uniform over the items outside of `liked`, the user's positives.
    """

    def __init__(
        self, weights: Weights, positives: Sequence[Observed], liked: Pattern, stage: Stage, popularity: np.ndarray
    ):
        self.stage, self.liked, self.popularity = stage, liked, popularity.astype(np.float32)
        self.epochs = EpochStreams(positives, stage.seed, stage.name)
        size = min(stage.batch_size, len(self.epochs.shuffled.users))
        self.trainer = weights.trainer(2 * size)
        self.score_pairs, self.score_rows = self.trainer.score_pairs, self.trainer.score_rows
        self.finite, self.weights = self.trainer.finite, self.trainer.weights
        self.model, self.n_items = self.trainer.model(stage.lam), len(weights.items)
        self.room = PairRoom(empty_stream(2 * size), np.zeros(2 * size, np.float32), np.zeros(1))
        self.others = np.zeros(len(self.epochs.shuffled.users), np.int32)
        self.size, self.step = size, 0

    def epoch(self, epoch: int) -> dict[str, float]:
        """Train on every positive once; returns each term's mean loss by weight."""
        samples = self.epochs.draw(epoch)
        draw_others(
            key(self.stage.seed, self.stage.name, "others", epoch),
            samples.users,
            *self.liked,
            self.n_items,
            self.others,
        )
        totals = np.zeros(len(self.epochs.names))
        pulls = unanchored(self.trainer.rank)
        self.step = train_pairs(
            self.model,
            samples,
            self.others,
            self.popularity,
            pulls,
            self.room,
            self.size,
            self.stage.lr,
            self.step,
            totals,
        )
        return self.epochs.mean_losses(totals)


@njit
def draw_others(key, users, indptr, liked, n_items, others):
    """For each sample an item that is uniform over those outside of the user's `liked`, ascending items."""
    for j in range(len(users)):
        start, n = indptr[users[j]], indptr[users[j] + 1] - indptr[users[j]]
        rank = np.int64(uniform(key, j) * (n_items - n))
        low, high = 0, n  # the number of liked items below the one with this rank, by bisection
        while low < high:
            middle = (low + high) // 2
            if liked[start + middle] - middle <= rank:
                low = middle + 1
            else:
                high = middle
        others[j] = rank + low


@njit
def train_pairs(model, samples, others, popularity, anchors, room, size, lr, step, totals):
    """One pass over the pairs (samples.items, others); returns the optimizer's number of steps."""
    n_all = len(samples.users)
    for start in range(0, n_all, size):
        stop = start + size if start + size < n_all else n_all
        n = stop - start
        batch, scores = samples_of(room.batch, 0, 2 * n), span(room.scores, 0, 2 * n)
        for j in range(n):
            copy_sample(samples, start + j, batch, 2 * j)
            copy_sample(samples, start + j, batch, 2 * j + 1)
            batch.items[2 * j + 1] = others[start + j]
        score_batch(model, batch.users, batch.items, scores)
        for i in range(0, 2 * n, 2):
            j = i + 1
            x, slope_i, slope_j = scores[i] - scores[j], _ONE, _ONE
            if len(popularity):
                m_i, m_j = popularity[batch.items[i]], popularity[batch.items[j]]
                x = m_i * preference(scores[i]) - m_j * preference(scores[j])
                slope_i, slope_j = m_i * preference_slope(scores[i]), m_j * preference_slope(scores[j])
            totals[batch.terms[i]] += batch.weights[i] * loss_value(BCE, x, _ONE)
            against = sigmoid(-x)
            batch.targets[i], batch.targets[j] = -against * slope_i, against * slope_j
            batch.weights[i] *= _TWO  # the mean is over pairs, and each is two samples
            batch.weights[j] = batch.weights[i]
            batch.terms[i] = batch.terms[j] = 0
        step += 1
        train_batch(model, batch, anchors, LINEAR, rates(lr, step), room.unused)
    return step


# ---- two models with the same samples -------------------------------------------------------------------------------


class DoublyRobust(NamedTuple):
    """dr, mrdr or stable-dr; a sample of term c has the weight W = 1 / propensity."""

    kind: int
    share: np.float32  # k: drawn pairs / all pairs outside of S_c
    loss: int  # M_c's: cross-entropy, or linear with slopes for stable-dr


class Bottleneck(NamedTuple):
    """dib: M_c has the unbiased part of the score, M_t the biased one."""

    alpha: np.float32
    gamma: np.float32
    loss: int = LINEAR


class BothRoom(NamedTuple):
    """Scratch space for a batch of two models. for_c and for_t share users and items with `batch`."""

    batch: Stream  # samples of term c first
    s_c: np.ndarray
    s_t: np.ndarray
    for_c: Stream
    for_t: Stream
    unused: np.ndarray


class CoupledModels:
    """M_c and M_t, trained batch by batch with the slopes of a rule; early stopping judges M_c."""

    def __init__(self, stages: tuple[Stage, Stage], models: tuple[Weights, Weights], terms: Sequence[Term], rule: Any):
        self.stage, self.rule = stages[0], rule
        self.epochs = EpochStreams(terms, self.stage.seed, self.stage.name)
        self.size = min(self.stage.batch_size, len(self.epochs.shuffled.users))
        self.trainers = models[0].trainer(self.size), models[1].trainer(self.size)
        self.score_pairs, self.score_rows = self.trainers[0].score_pairs, self.trainers[0].score_rows
        self.models = self.trainers[0].model(stages[0].lam), self.trainers[1].model(stages[1].lam)
        batch = empty_stream(self.size)
        for_c, for_t = (empty_stream(self.size)._replace(users=batch.users, items=batch.items) for _ in range(2))
        s_c, s_t = np.zeros((2, self.size), np.float32)
        self.room = BothRoom(batch, s_c, s_t, for_c, for_t, np.zeros(1))
        self.steps = np.zeros(2, np.int64)

    def epoch(self, epoch: int) -> dict[str, float]:
        """Train both; returns the mean loss of each term, and "t", that of M_t."""
        samples, names = self.epochs.draw(epoch), self.epochs.names
        totals, counts = np.zeros(len(names) + 1), np.zeros(len(names) + 1)
        pulls = unanchored(self.trainers[0].rank)
        c = names.index("c") if "c" in names else -1
        train_both(
            self.rule,
            self.models,
            samples,
            c,
            pulls,
            self.room,
            self.size,
            self.stage.lr,
            self.steps,
            totals,
            counts,
        )
        means = np.divide(totals, counts, out=np.zeros(len(totals)), where=counts > 0)
        return dict(zip([*names, "t"], means.tolist(), strict=True))

    def finite(self) -> bool:
        return self.trainers[0].finite() and self.trainers[1].finite()

    def weights(self) -> tuple[Weights, Weights]:
        return self.trainers[0].weights(), self.trainers[1].weights()


@by_type
def write_slopes(rule, n_c, n, room, totals, counts):
    """Write the slopes of both models for a batch of n samples, of which n_c are of term c, as targets and weights.

    Returns how many samples M_c and M_t train on, from the batch's start. Losses and weights are added to `totals` and
    `counts`, by term; the last entry is M_t's.
    """


@njit
def train_both(rule, models, samples, c, anchors, room, size, lr, steps, totals, counts):
    """One pass over the samples with both models; each sees the other's weights from before the batch."""
    M_c, M_t = models
    n_all = len(samples.users)
    for start in range(0, n_all, size):
        stop = start + size if start + size < n_all else n_all
        n, n_c, last = stop - start, 0, stop - start
        for j in range(start, stop):
            if samples.terms[j] == c:
                copy_sample(samples, j, room.batch, n_c)
                n_c += 1
            else:
                last -= 1
                copy_sample(samples, j, room.batch, last)
        users, items = span(room.batch.users, 0, n), span(room.batch.items, 0, n)
        of_c = n if rule.loss == LINEAR else n_c  # with the cross-entropy, slopes outside of S_c need no score of M_c
        scored = samples_of(room.batch, 0, of_c)
        score_batch(M_c, scored.users, scored.items, span(room.s_c, 0, of_c))
        score_batch(M_t, users, items, span(room.s_t, 0, n))
        of_c, of_t = write_slopes(rule, n_c, n, room, totals, counts)
        if of_c > 0:
            steps[0] += 1
            sums = room.unused if rule.loss == LINEAR else totals
            train_batch(M_c, samples_of(room.for_c, 0, of_c), anchors, rule.loss, rates(lr, steps[0]), sums)
        if of_t > 0:
            steps[1] += 1
            train_batch(M_t, samples_of(room.for_t, 0, of_t), anchors, LINEAR, rates(lr, steps[1]), room.unused)


@njit
def robust_target(t, r, W):
    """t + W (r - t).

    The cross-entropy l is affine in its target, so l(s, this) is e' + W (e - e') with e = l(s, r) and e' = l(s, t). For
    a pair outside of S_c it is e' (W = 0).
    """
    return t + W * (r - t)


@njit
def imputation_value(s, s_t, r, w):
    """w (e - e')^2 with e - e' = -s (r - t), t = sigmoid(s_t)."""
    gap = s * (r - sigmoid(s_t))
    return w * gap * gap


@njit
def imputation_slope(s, s_t, r, w):
    """Derivative of `imputation_value` with respect to s_t."""
    return _TWO * w * s * s * (sigmoid(s_t) - r) * slope(s_t)


@njit
def tilt_of(errors, weights, n, mean):
    """The tau for which the mean of `errors` with weights W exp(tau (error - mean)) is `mean`, by Newton's method.

    It is limited to +-4: where all errors lie on one side of `mean`, there is no such tau.
    """
    tau = 0.0
    for _ in range(TILT_STEPS):
        first = second = 0.0
        for j in range(n):
            gap = np.float64(errors[j]) - mean
            w = weights[j] * math.exp(tau * gap)
            first += w * gap
            second += w * gap * gap
        if second <= 0.0:
            return tau
        tau -= first / second
        if tau > LARGEST_TILT:
            tau = LARGEST_TILT
        if tau < -LARGEST_TILT:
            tau = -LARGEST_TILT
    return tau


@write_slopes.of(DoublyRobust)
def _robust_slopes(rule, n_c, n, room, totals, counts):
    batch, s_c, s_t, for_c, for_t = room.batch, room.s_c, room.s_t, room.for_c, room.for_t
    k, stable = rule.share, rule.kind == STABLE_KIND
    for j in range(n):
        t, number = sigmoid(s_t[j]), batch.terms[j]
        observed = j < n_c
        if not stable:
            W, weight = (batch.weights[j], k) if observed else (np.float32(0.0), batch.weights[j])
            for_c.targets[j], for_c.weights[j] = robust_target(t, batch.targets[j], W), weight
            for_c.terms[j] = number
            counts[number] += weight
        if observed:
            W = batch.weights[j]
            w = k * W * (W - _ONE) if rule.kind == MRDR_KIND else k * W
            for_t.targets[j], for_t.weights[j] = imputation_slope(s_c[j], s_t[j], batch.targets[j], w), _ONE
            totals[len(totals) - 1] += imputation_value(s_c[j], s_t[j], batch.targets[j], w)
            counts[len(counts) - 1] += w
    if not stable:
        return n, n_c
    mean = 0.0
    for j in range(n):  # the imputed errors, in for_c.targets
        for_c.targets[j] = loss_value(BCE, s_c[j], sigmoid(s_t[j]))
        if j >= n_c:
            mean += for_c.targets[j]
            totals[batch.terms[j]] += for_c.targets[j]
            counts[batch.terms[j]] += 1.0
        else:
            mean += k * for_c.targets[j]  # a drawn pair stands for 1 / k pairs, a pair of S_c for itself
    tau = 0.0
    if n > n_c:
        mean /= k * n_c + (n - n_c)
        tau = tilt_of(for_c.targets, batch.weights, n_c, mean)
    total = 0.0
    for j in range(n_c):
        for_c.weights[j] = batch.weights[j] * math.exp(tau * (np.float64(for_c.targets[j]) - mean))
        total += for_c.weights[j]
    for j in range(n_c):
        for_c.weights[j] *= n_c / total
        for_c.targets[j] = sigmoid(s_c[j]) - batch.targets[j]
        totals[batch.terms[j]] += for_c.weights[j] * loss_value(BCE, s_c[j], batch.targets[j])
        counts[batch.terms[j]] += for_c.weights[j]
    return n_c, n_c


@njit
def bottleneck_value(s, b, y, alpha, gamma):
    """(1 - alpha) l(s, y) - gamma l(b, y) + alpha l(s + b, y)."""
    own, biased, both = loss_value(BCE, s, y), loss_value(BCE, b, y), loss_value(BCE, s + b, y)
    return (_ONE - alpha) * own - gamma * biased + alpha * both


@njit
def bottleneck_slopes(s, b, y, alpha, gamma):
    """Derivatives of `bottleneck_value` with respect to s and b."""
    both = alpha * (sigmoid(s + b) - y)
    return (_ONE - alpha) * (sigmoid(s) - y) + both, both - gamma * (sigmoid(b) - y)


@write_slopes.of(Bottleneck)
def _bottleneck_slopes(rule, n_c, n, room, totals, counts):
    batch, s_c, s_t, for_c, for_t = room.batch, room.s_c, room.s_t, room.for_c, room.for_t
    for j in range(n):
        y, w = batch.targets[j], batch.weights[j]
        for_c.targets[j], for_t.targets[j] = bottleneck_slopes(s_c[j], s_t[j], y, rule.alpha, rule.gamma)
        for_c.weights[j] = for_t.weights[j] = w
        totals[batch.terms[j]] += w * bottleneck_value(s_c[j], s_t[j], y, rule.alpha, rule.gamma)
        counts[batch.terms[j]] += w
        totals[len(totals) - 1] += w * loss_value(BCE, s_t[j], y)
        counts[len(counts) - 1] += w
    return n, n


# ---- joint training: two models, each with its own samples ----------------------------------------------------------


class Alignment:
    """CausE's alignment of the factors of M_c and M_t: of "items" (default), "users" or "both", l1 or Frobenius.

    It adds strength x |W - W'| / (samples of the batch) to a batch's mean objective.
    """

    def __init__(self, strength: float, side: str = "items", norm: str = "l1"):
        self.strength, self.sides, self.kind = np.float32(strength), SIDES[side], NORMS[norm]

    def room(self, rank: int, batch_size: int) -> mf.Anchors:
        """Scratch space for the other model's factors; its strength is not yet divided by the batch's size."""
        rows = {side: np.zeros((batch_size, rank), np.float32) for side in self.sides}
        return mf.no_anchors(rank)._replace(strength=self.strength, kind=self.kind, **rows)


class Cycle:
    """Endless batches of S_t (term e.1), reshuffled after each round."""

    def __init__(self, term: Term, batch_size: int, seed: int, stage: str):
        self.epochs, self.batch_size = EpochStreams([term], seed, stage), batch_size
        self.round, self.position = 0, 0
        self.samples: Stream | None = None

    def next(self, batches: int = 1) -> Stream:
        """The next batches as a view: `batches` of them, or as many as are left in this round."""
        if self.samples is None or self.position >= len(self.samples.users):
            self.round += 1
            self.samples, self.position = self.epochs.draw(self.round), 0
        end = self.position + batches * self.batch_size
        batch = stream_part(self.samples, self.position, end)
        self.position = end
        return batch


class BothModels:
    """M_c, the student, and M_t, the teacher, in joint training; early stopping judges M_c."""

    def __init__(
        self,
        stages: tuple[Stage, Stage],
        models: tuple[Weights, Weights],
        terms: Sequence[Term],
        term_e1: Term | None,
        alignment: Alignment | None = None,
    ):
        stage, loss, size = stages[0], LOSSES[stages[0].loss], sum(term.size for term in terms)
        n_c, n_t = (min(each.batch_size, size) for each in stages)
        self.student, self.teacher = models[0].trainer(n_c), models[1].trainer(n_c + n_t)
        self.score_pairs, self.score_rows = self.student.score_pairs, self.student.score_rows
        self.epochs = EpochStreams(terms, stage.seed, stage.name)
        self.cycle = None if term_e1 is None else Cycle(term_e1, n_t, stage.seed, stage.name + "-t")
        self.models = self.student.model(stage.lam), self.teacher.model(stages[1].lam)
        d = self.epochs.names.index("d") if "d" in self.epochs.names else -1
        self.sides = mf.Sides((n_c, n_t), d, loss.code, loss.link, loss.symmetric, stage.lr)
        pulls = (
            mf.no_anchors(trainer.rank) if alignment is None else alignment.room(trainer.rank, trainer.batch_size)
            for trainer in (self.student, self.teacher)
        )
        self.room = mf.JointRoom(empty_stream(n_c + n_t), np.zeros(n_c, np.float32), *pulls)
        self.steps = np.zeros(2, np.int64)

    def epoch(self, epoch: int) -> dict[str, float]:
        """Train both; returns each term's mean loss by weight.

        One call of the kernel runs to the end of the epoch, or until S_t has to be reshuffled.
        """
        samples, (n_c, n_t) = self.epochs.draw(epoch), self.sides.batch_sizes
        totals, weight_e1 = (np.zeros(len(self.epochs.names)), np.zeros(2)), 0.0
        left = -(-len(samples.users) // n_c)
        while left:
            e1 = empty_stream(0) if self.cycle is None else self.cycle.next(left)
            n_batches = left if self.cycle is None else -(-len(e1.users) // n_t)
            mf.side_by_side(n_batches, self.models, samples, e1, self.sides, self.room, self.steps, totals)
            samples, left = stream_part(samples, n_batches * n_c, None), left - n_batches
            weight_e1 += e1.weights.sum(dtype=np.float64)
        means = self.epochs.mean_losses(totals[0])
        return means | ({"e": totals[1][0] / weight_e1} if weight_e1 else {})

    def finite(self) -> bool:
        return self.student.finite() and self.teacher.finite()

    def weights(self) -> tuple[Weights, Weights]:
        return self.student.weights(), self.teacher.weights()
