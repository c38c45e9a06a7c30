"""AutoDebias in mini-batches, for every backbone: theta by Adam, phi by a look-ahead before every batch."""

import numpy as np

from dubnb import stream as streams
from dubnb._random import key
from dubnb.data.sampling import UnobservedPairs
from dubnb.objective import autodebias as meta
from dubnb.objective import exposure
from dubnb.objective.autodebias_sampled import UNOBSERVED, meta_gradient, sampled_weights, weigh
from dubnb.objective.terms import term_e1
from dubnb.train import Cycle, run_epochs

# Adam's (lr, wd) on phi. Many more steps than with full batches, so they are smaller; gradients of a batch's mean are
# so small that a coupled decay would drown them.
RATES = {name: (1e-2, 0.0) if name == "mu" else (1e-3, 0.0) for name in meta.Phi._fields}


class SampledAutoDebias:
    """One fit: theta by Adam in batches of pairs of S_c and of D - S_c, phi by a look-ahead before every batch."""

    def __init__(self, run):
        p, data = run.params, run.data
        self.run, self.settings = run, p
        self.pairs = UnobservedPairs(data.n_users, data.n_items, (data.S_c.indptr.astype(np.int64), data.S_c.indices))
        S_c = data.triplets("S_c")
        self.n = len(S_c.users)
        self.source, self.shuffled = streams.empty(2 * self.n), streams.empty(2 * self.n)
        self.source.users[: self.n], self.source.items[: self.n] = S_c.users, S_c.items
        self.source.terms[: self.n], self.source.weights[: self.n] = S_c.labels, S_c.weights
        self.source.terms[self.n :] = UNOBSERVED
        self.phi = meta.init_phi(data.n_users, data.n_items, p.seed, exposure.row_weights(data, p.exposure_power))
        self.adam = meta.init_adam(self.phi)
        self.trainer = run.new("c").trainer(p.batch_size)
        self.S_t = Cycle(term_e1(data), p.batch_size, p.seed, "refine-t")

    def train(self):
        return run_epochs(
            self._epoch,
            self.trainer,
            self.trainer.weights,
            stage="refine",
            settings=self.settings,
            validation=self.run.validation,
            log=self.run.log,
        )

    def _epoch(self, epoch):
        p, draws = self.settings, streams.part(self.source, self.n, 2 * self.n)
        self.pairs.draw(key(p.seed, "refine", "d", epoch), draws.users, draws.items)
        streams.shuffle(key(p.seed, "refine", "shuffle", epoch), self.source, self.shuffled)
        totals = np.zeros(3)
        weights = np.zeros(3)
        for start in range(0, 2 * self.n, p.batch_size):
            batch = streams.part(self.shuffled, start, start + p.batch_size)
            logged = batch.weights.copy()
            self._learn_phi(batch, logged, weights_move=epoch > p.weights_from)
            weigh(batch, logged, self._weights())
            totals += self.trainer.epoch(batch, 3, self.run.loss, p.lr, p.lam)
            weights += np.bincount(batch.terms, batch.weights, 3)
        return {"c": totals[:2].sum() / weights[:2].sum(), "d": totals[2] / weights[2] if p.alpha else 0.0}

    def _learn_phi(self, batch, logged, weights_move):
        sampled = self._weights()
        weigh(batch, logged, sampled)
        gradient = meta_gradient(
            self.trainer, batch, logged, self.S_t.next(), self.phi, sampled, self.run.loss, self.settings.lam
        )
        meta.phi_step(self.phi, gradient, self.adam, weights_move, RATES)

    def _weights(self):
        return sampled_weights(self.phi, self.settings.alpha, self.pairs.size, self.n)
