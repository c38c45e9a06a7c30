"""AutoDebias in mini-batches, for every backbone: theta by Adam, phi by a look-ahead before every few batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dubnb import stream as streams
from dubnb._check import InputError
from dubnb._random import key
from dubnb.backbones import Weights
from dubnb.data.sampling import UnobservedPairs
from dubnb.joint import Cycle
from dubnb.methods._params import required
from dubnb.objective import autodebias as meta
from dubnb.objective import exposure
from dubnb.objective.autodebias_sampled import UNOBSERVED, Logged, Sampled, meta_gradient, sampled_weights, weigh
from dubnb.objective.terms import term_e1
from dubnb.train import Fit

if TYPE_CHECKING:
    from dubnb.methods.autodebias import AutoDebias

# Adam's (lr, wd) on phi for a step before every batch. Many more steps than with full batches, so they are smaller;
# gradients of a batch's mean are so small that a coupled decay would drown them.
RATES = {name: (1e-2, 0.0) if name == "mu" else (1e-3, 0.0) for name in meta.Phi._fields}


class SampledAutoDebias:
    """One fit: theta by Adam in batches of pairs of S_c and of D - S_c, phi by a look-ahead before some of them.

    A look-ahead costs more than twice what the batch itself does. With one before every fourth batch, and steps four
    times as long, phi goes as far in an epoch.
    """

    def __init__(self, fit: Fit, method: AutoDebias):
        if method.device != "cpu":
            raise InputError("device='cuda' is not there yet for autodebias with solver='sampled': use device='cpu'")
        data, seed = fit.data, method.seed
        self.fit, self.method, self.stage = fit, method, method.stage("refine")
        self.loss = method.trained_loss()
        self.pairs = UnobservedPairs(data.n_users, data.n_items, data.pattern("S_c"))
        targets = method.target_rule()
        S_c = targets.of(data, "S_c")
        self.n = len(S_c.users)
        self.source, self.shuffled = streams.empty(2 * self.n), streams.empty(2 * self.n)
        self.source.users[: self.n], self.source.items[: self.n] = S_c.users, S_c.items
        self.source.targets[: self.n], self.source.weights[: self.n] = S_c.labels, S_c.weights
        self.source.terms[: self.n] = data.triplets("S_c").labels  # the class
        self.source.terms[self.n :] = UNOBSERVED
        self.phi = meta.init_phi(data.n_users, data.n_items, seed, exposure.row_weights(data, method.exposure_power))
        self.adam, self.sampled = meta.init_adam(self.phi), self._weights()
        self.rates = {name: (lr * method.meta_every, wd) for name, (lr, wd) in RATES.items()}
        self.trainer = fit.new(method.stage("M_c")).trainer(self.stage.batch_size)
        self.S_t = Cycle(term_e1(data, targets), self.stage.batch_size, seed, "refine-t")

    def train(self) -> Weights:
        """The best weights on S_va."""
        return self.fit.run_epochs(self.stage, self._epoch, self.trainer, self.trainer.weights)

    def _epoch(self, epoch: int) -> dict[str, float]:
        stage, draws = self.stage, streams.part(self.source, self.n, 2 * self.n)
        self.pairs.draw(key(stage.seed, "refine", "d", epoch), draws.users, draws.items)
        streams.shuffle(key(stage.seed, "refine", "shuffle", epoch), self.source, self.shuffled)
        totals, weights, size = np.zeros(3), np.zeros(3), stage.batch_size
        for start in range(0, 2 * self.n, size * self.method.meta_every):
            # phi rests until the next look-ahead: the batches up to it are weighed and trained together
            batches = streams.part(self.shuffled, start, start + size * self.method.meta_every)
            logged, first = Logged.of(batches), streams.part(batches, 0, size)
            weigh(first, logged, self.sampled)
            self._learn_phi(first, logged, weights_move=epoch > required(self.method.weights_from))
            weigh(batches, logged, self.sampled)
            totals += self.trainer.epoch(batches, 3, self.loss, stage.lr, stage.lam)
            weights += np.bincount(batches.terms, batches.weights, 3)
        d = totals[2] / weights[2] if self.method.alpha else 0.0
        return {"c": totals[:2].sum() / weights[:2].sum(), "d": d}

    def _learn_phi(self, batch: streams.Stream, logged: Logged, weights_move: bool) -> None:
        gradient = meta_gradient(
            self.trainer, batch, logged, self.S_t.next(), self.phi, self.sampled, self.loss, self.stage.lam
        )
        meta.phi_step(self.phi, gradient, self.adam, weights_move, self.rates)
        self.sampled = self._weights()

    def _weights(self) -> Sampled:
        return sampled_weights(self.phi, required(self.method.alpha), self.pairs.size, self.n)
