"""AutoDebias in mini-batches on the device: `objective/autodebias.py` with one thread per sample or coordinate.

A second trainer of the full size holds the look-ahead. Only rows of the two batches are ever written or read there: the
weights theta' are in the place of its weights, and the direction g, the gradient of J at theta', in the place of its
first moments. So no rows are renumbered and none of them leaves the device. As in closed form, the seven scalars of phi
and their sums are on the host.
"""

from __future__ import annotations

import numpy as np
from numba import cuda

from dubnb import losses
from dubnb._random import key
from dubnb.cuda import ncf, streams
from dubnb.cuda._launch import (
    DOUBLES,
    F4,
    F8,
    FLOATS,
    I8,
    INTS,
    MATRIX,
    STREAM,
    TABLE,
    WIDE_MATRIX,
    Totals,
    device_array,
    kernel,
    stream_to_device,
)
from dubnb.cuda.autodebias import FACTORS, SCALARS, PhiOnDevice
from dubnb.cuda.rows import GROUPS, Batches, Epoch
from dubnb.objective.autodebias import (
    LOOK_AHEAD,
    NEGATIVE,
    POSITIVE,
    SCALE,
    UNOBSERVED,
    SampledProblem,
    mean_losses,
    merged_sample,
    with_draws,
)
from dubnb.objective.terms import empty_stream, stream_part


@kernel(STREAM, FLOATS, FLOATS, I8, I8, FACTORS, SCALARS, F8)
def weigh_samples(stream, logged_weights, logged_targets, start, n, factors, scalars, draw_factor):
    """Weights and targets of the n samples from `start`; a draw stands for `draw_factor` / alpha pairs."""
    for j in range(start + cuda.grid(1), start + n, cuda.gridsize(1)):
        u, i, y = stream.users[j], stream.items[j], stream.terms[j]
        AC = factors.A[u] * factors.C[i]
        if y == UNOBSERVED:
            stream.weights[j], stream.targets[j] = draw_factor * AC * scalars.E_0, scalars.M_0
        else:
            c_y, M_y = (scalars.positive, scalars.M_positive) if y else (scalars.negative, scalars.M_negative)
            w1 = logged_weights[j] * factors.user_1[u] * factors.item_1[i] * c_y
            w2 = scalars.alpha * AC * scalars.E_1
            stream.weights[j], stream.targets[j] = merged_sample(w1, np.float64(logged_targets[j]), w2, M_y)


@kernel(TABLE, TABLE, INTS, GROUPS, I8, I8, MATRIX, F4, F4, I8)
def look_ahead(table, ahead, rows, groups, start, n, gradients, eta, lam, rank):
    """theta' = w - eta (gradient + lam w) of the rows of the n samples from `start`; their direction becomes 0."""
    width = table.shape[2]
    for at in range(cuda.grid(1), n * width, cuda.gridsize(1)):
        place, k = at // width, at % width
        if groups.sizes[start + place] > 0:
            row = rows[groups.order[start + place]]
            w = table[row, 0, k]
            g = gradients[place, k] + (lam if k < rank else np.float32(0.0)) * w
            ahead[row, 0, k], ahead[row, 1, k] = w - eta * g, np.float32(0.0)


@kernel(TABLE, TABLE, INTS, GROUPS, I8)
def copy_rows(table, ahead, rows, groups, n):
    """theta' = w for the rows of the first n samples, which the look-ahead does not move unless its batch has them."""
    width = table.shape[2]
    for at in range(cuda.grid(1), n * width, cuda.gridsize(1)):
        place, k = at // width, at % width
        if groups.sizes[place] > 0:
            row = rows[groups.order[place]]
            ahead[row, 0, k] = table[row, 0, k]


@kernel(TABLE, INTS, GROUPS, I8, MATRIX)
def put_directions(ahead, rows, groups, n, gradients):
    """The direction of the rows of the first n samples: their gradient."""
    width = ahead.shape[2]
    for at in range(cuda.grid(1), n * width, cuda.gridsize(1)):
        place, k = at // width, at % width
        if groups.sizes[place] > 0:
            ahead[rows[groups.order[place]], 1, k] = gradients[place, k]


@kernel(MATRIX, MATRIX, FLOATS, FLOATS, F4)
def look_ahead_dense(parameters, ahead, gradient, decay, eta):
    """theta' of the parameters outside the tables."""
    for k in range(cuda.grid(1), len(gradient), cuda.gridsize(1)):
        w = parameters[0, k]
        ahead[0, k] = w - eta * (gradient[k] + decay[k] * w)


@kernel(MATRIX, FLOATS)
def put_direction_dense(ahead, gradient):
    """The direction of the parameters outside the tables."""
    for k in range(cuda.grid(1), len(gradient), cuda.gridsize(1)):
        ahead[1, k] = gradient[k]


@kernel(STREAM, FLOATS, FLOATS, I8, FLOATS, FLOATS, F4, FACTORS, SCALARS, F8, I8, WIDE_MATRIX)
def sample_shares(
    stream, logged_weights, logged_targets, start, scores, turns, times, factors, scalars, draw_factor, loss, shares
):
    """Every sample's share of dJ/dphi by w1, by w2 and by mu, see `autodebias_sampled._add_meta`; s' = times x turn."""
    for n in range(cuda.grid(1), len(scores), cuda.gridsize(1)):
        j, s, turn = start + n, scores[n], times * turns[n]
        u, i, y = stream.users[j], stream.items[j], stream.terms[j]
        at_zero = losses.derivative(loss, s, np.float32(0.0))
        slope = losses.derivative(loss, s, np.float32(1.0)) - at_zero
        AC, f = factors.A[u] * factors.C[i] * turn, 0.0
        h, M = draw_factor * AC * scalars.E_0, scalars.M_0
        if y <= POSITIVE:
            c_y, M = (scalars.positive, scalars.M_positive) if y else (scalars.negative, scalars.M_negative)
            h = scalars.alpha * AC * scalars.E_1
            w1 = logged_weights[j] * factors.user_1[u] * factors.item_1[i] * c_y
            f = w1 * (at_zero + slope * np.float64(logged_targets[j])) * turn
        shares[0, n], shares[1, n], shares[2, n] = f, h * (at_zero + slope * M), h * slope


@kernel(DOUBLES, DOUBLES)
def clear(of_1, of_2):
    """Zeros."""
    for k in range(cuda.grid(1), len(of_1), cuda.gridsize(1)):
        of_1[k] = of_2[k] = 0.0


@kernel(INTS, GROUPS, I8, I8, WIDE_MATRIX, DOUBLES, DOUBLES)
def sum_shares(rows, groups, start, n, shares, of_1, of_2):
    """Each row's sums of the shares of w1 and w2 over its samples, in ascending order."""
    for place in range(cuda.grid(1), n, cuda.gridsize(1)):
        size = groups.sizes[start + place]
        if size > 0:
            f, h = 0.0, 0.0
            for position in range(start + place, start + place + size):
                f += shares[0, groups.order[position] - start]
                h += shares[1, groups.order[position] - start]
            row = rows[groups.order[start + place]]
            of_1[row], of_2[row] = f, h


class CudaSampledSolver:
    """Trains theta and phi on the device; `trainers` are the model and its look-ahead."""

    def __init__(self, problem: SampledProblem, trainers: tuple[Batches, Batches], phi: PhiOnDevice):
        self.problem, self.phi = problem, phi
        self.trainer, self.ahead = trainers
        self.n, batch_size = len(problem.observed.users), problem.stage.batch_size
        self.source = stream_to_device(with_draws(problem.observed))
        self.shuffled = stream_to_device(empty_stream(2 * self.n))
        self.logged = device_array(2 * self.n), device_array(2 * self.n)  # weights and targets before they change
        self.draws, self.shuffle = streams.DeviceDraws(problem.pairs, self.n), streams.CudaShuffle(2 * self.n)
        self.draw_factor = problem.alpha * problem.pairs.size / self.n
        self.shares, self.wide = device_array((3, batch_size), np.float64), device_array(2 * self.n, np.float64)
        self.scores, self.turns = device_array(batch_size), device_array(batch_size)
        self.by_class = Totals(3)
        self.score_pairs, self.score_rows = self.trainer.score_pairs, self.trainer.score_rows
        self.weights, self.finite = self.trainer.weights, self.trainer.finite

    def epoch(self, epoch: int) -> dict[str, float]:
        """Train; returns the mean loss of S_c and of the draws."""
        problem, stage, samples, n = self.problem, self.problem.stage, self.shuffled, 2 * self.n
        draws = stream_part(self.source, self.n, n)
        self.draws.draw(key(stage.seed, "refine", "d", epoch), draws.users, draws.items)
        self.shuffle(key(stage.seed, "refine", "shuffle", epoch), self.source, samples)
        for column, own in zip((samples.weights, samples.targets), self.logged, strict=True):
            ncf.copy(n, column, 0, own, 0, n)
        here, chunk = self.trainer.begin(samples), stage.batch_size * problem.meta_every
        for start in range(0, n, stage.batch_size):
            size = min(stage.batch_size, n - start)
            if start % chunk == 0:
                self._weigh(start, size)
                self._learn_phi(here, start, size, weights_move=epoch > problem.weights_from)
                self._weigh(start, min(chunk, n - start))
            self.trainer.add_gradients(here, start, size, problem.loss)
            self.trainer.take_step(here, start, size, stage.lr, stage.lam)
        streams.widen(n, samples.weights, self.wide)
        totals, weights = (self.by_class.of(of, samples.terms) for of in (here.values, self.wide))
        return mean_losses(totals, weights, problem.alpha)

    def _weigh(self, start: int, n: int) -> None:
        phi = self.phi.factors, self.phi.scalars, self.draw_factor
        weigh_samples(n, self.shuffled, *self.logged, start, n, *phi)

    def _learn_phi(self, here: Epoch, start: int, n: int, weights_move: bool) -> None:
        """One step of phi by the look-ahead from the batch at `start`."""
        trainer, ahead, stream, loss = self.trainer, self.ahead, here.stream, self.problem.loss
        self._step_ahead(here, start, n)
        scores, turns, shares = self.scores[:n], self.turns[:n], self.shares
        trainer.tangents(ahead, stream, start, scores, turns)
        times = np.float32(-LOOK_AHEAD / n)
        phi = self.phi.factors, self.phi.scalars, self.draw_factor
        sample_shares(n, stream, *self.logged, start, scores, turns, times, *phi, loss.code, shares)
        for side, names in (("users", ("a", "a_prime")), ("items", ("b", "b_prime"))):
            sums = [self.phi.gradients[name] for name in names]
            clear(len(sums[0]), *sums)
            sum_shares(n, getattr(stream, side), getattr(here, side), start, n, shares, *sums)
        classes = stream.terms[start : start + n]
        f, h, slopes = (self.by_class.of(shares[k][:n], classes) for k in range(3))
        c_prime, M = np.array([h[UNOBSERVED], h[:UNOBSERVED].sum()]), self.phi.imputed()
        mu = slopes[[UNOBSERVED, NEGATIVE, POSITIVE]] * M * (1.0 - M)
        small = {"c": f[:UNOBSERVED] / SCALE, "c_prime": c_prime / SCALE, "mu": mu}
        self.phi.step(small, weights_move, self.problem.rates)

    def _step_ahead(self, here: Epoch, start: int, n: int) -> None:
        """Compute theta' from the batch at `start`, and the gradient of J there, on the next batch of S_t."""
        trainer, ahead, stage, loss = self.trainer, self.ahead, self.problem.stage, self.problem.loss
        S_t = self.problem.S_t.next()
        there, n_t, eta = ahead.begin(S_t), len(S_t.users), np.float32(LOOK_AHEAD)
        trainer.add_gradients(here, start, n, loss)
        for side, table in trainer.tables.items():
            pair, width, gradients = (table, ahead.tables[side]), table.shape[2], trainer.gradients[side]
            copy_rows(n_t * width, *pair, getattr(S_t, side), getattr(there, side), n_t)
            of_c = getattr(here.stream, side), getattr(here, side), start, n
            look_ahead(n * width, *pair, *of_c, gradients, eta, np.float32(stage.lam), trainer.rank)
        others, ahead_others = trainer.other_parameters(), ahead.other_parameters()
        gradient, decay = trainer.other_gradient(here, start, n, stage.lam)
        look_ahead_dense(len(gradient), others, ahead_others, gradient, decay, eta)
        ahead.add_gradients(there, 0, n_t, loss)
        for side, table in ahead.tables.items():
            of_t = getattr(S_t, side), getattr(there, side), n_t
            put_directions(n_t * table.shape[2], table, *of_t, ahead.gradients[side])
        put_direction_dense(len(gradient), ahead_others, ahead.other_gradient(there, 0, n_t, 0.0)[0])
