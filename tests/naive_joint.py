"""Joint training batch by batch in plain Python over a trainer's own epochs: the twin of `mf.side_by_side`."""

import numpy as np

from dubnb import losses
from dubnb.backbones import mf
from dubnb.backbones.mf import Stream
from dubnb.losses import LOSSES
from dubnb.objective.terms import EpochStreams, empty_stream, stream_part


def anchors(alignment, other, batch):
    """The other model's current factors for the rows that `batch` touches."""
    rows = {side: np.ascontiguousarray(other.factors(side, getattr(batch, side))) for side in alignment.sides}
    strength = alignment.strength / np.float32(len(batch.users))
    return mf.no_anchors(other.rank)._replace(strength=strength, kind=alignment.kind, **rows)


class Recorded:
    """A model in training that keeps a copy of every batch it was given, and of the weights it began with."""

    def __init__(self, weights, batch_size, lam):
        self.weights, self.trained, self.lam, self.streams = weights, weights.trainer(batch_size), lam, []

    def step(self, batch, n_terms, loss, lr, pull):
        self.streams.append(Stream(*(column.copy() for column in batch)))
        return self.trained.epoch(batch, n_terms, loss, lr, self.lam, pull)


class Jointly:
    """M_c and M_t side by side, as `train_jointly` says."""

    def __init__(self, stages, models, terms, term_e1, alignment=None):
        self.stage, self.loss, self.alignment = stages[0], LOSSES[stages[0].loss], alignment
        self.sizes = [min(each.batch_size, sum(term.size for term in terms)) for each in stages]
        self.M_c = Recorded(models[0], self.sizes[0], stages[0].lam)
        self.M_t = Recorded(models[1], sum(self.sizes), stages[1].lam)
        self.epochs = EpochStreams(terms, self.stage.seed, self.stage.name)
        self.S_t = self._endless(term_e1) if term_e1 is not None else None

    def _endless(self, term):
        epochs, number = EpochStreams([term], self.stage.seed, self.stage.name + "-t"), 0
        while True:
            samples, number = epochs.draw(number + 1), number + 1
            for start in range(0, term.size, self.sizes[1]):
                yield stream_part(samples, start, start + self.sizes[1])

    def epoch(self, number):
        """Train both; returns the sums of M_c's losses and of e.1's loss and weight."""
        samples = self.epochs.draw(number)
        parts = range(0, len(samples.users), self.sizes[0])
        found = [self._batch(stream_part(samples, start, start + self.sizes[0])) for start in parts]
        return sum(totals for totals, _ in found), sum(e1 for _, e1 in found)

    def _batch(self, batch):
        e1 = empty_stream(0) if self.S_t is None else next(self.S_t)
        for_t = self._teacher_batch(batch, e1)
        pulls = None, None
        if self.alignment is not None:
            pulls = (
                anchors(self.alignment, self.M_t.trained, batch),
                anchors(self.alignment, self.M_c.trained, for_t) if len(for_t.users) else None,
            )
        totals = self.M_c.step(batch, len(self.epochs.names), self.loss, self.stage.lr, pulls[0])
        total_e1 = self.M_t.step(for_t, 2, self.loss, self.stage.lr, pulls[1])[0] if len(for_t.users) else 0.0
        return totals, np.array([total_e1, e1.weights.sum()])

    def _teacher_batch(self, batch, e1):
        if "d" not in self.epochs.names:
            return e1
        of_d = np.flatnonzero(batch.terms == self.epochs.names.index("d"))
        users, items = batch.users[of_d], batch.items[of_d]
        batch.targets[of_d] = losses.predict(self.M_t.trained.score_pairs(users, items), self.loss.link)
        if not self.loss.symmetric:
            return e1
        targets = losses.predict(self.M_c.trained.score_pairs(users, items), self.loss.link)
        d = Stream(users, items, targets, batch.weights[of_d], np.ones(len(users), np.uint8))
        return Stream(*(np.concatenate(columns) for columns in zip(e1, d, strict=True)))
