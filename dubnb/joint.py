"""Two models trained side by side (Eq. 1, joint bridge, CausE), each with its own streams, optimizer, denominators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dubnb import losses
from dubnb import stream as streams
from dubnb.backbones import Trainer, Weights
from dubnb.backbones import embedding as emb
from dubnb.losses import LOSSES, Loss
from dubnb.objective.terms import EpochStreams, Term
from dubnb.stream import Stream
from dubnb.train import Fit, Stage

SIDES = {"items": ("items",), "users": ("users",), "both": ("users", "items")}
NORMS = {"l1": emb.L1, "frobenius": emb.FROBENIUS}


class Alignment:
    """CausE's pull between the factors of M_c and M_t: of "items" (default), "users" or "both", l1 or Frobenius.

    A term of the batch's mean objective like every other: strength x |W - W'| / samples of the batch.
    """

    def __init__(self, strength: float, side: str = "items", norm: str = "l1"):
        self.strength, self.sides, self.kind = np.float32(strength), SIDES[side], NORMS[norm]

    def anchors(self, other: Trainer, batch: Stream) -> emb.Anchors:
        """The other model's current factors for the rows that `batch` touches."""
        none = emb.no_anchors(other.rank)
        rows = {side: np.ascontiguousarray(other.factors(side, getattr(batch, side))) for side in self.sides}
        return none._replace(strength=self.strength / np.float32(len(batch.users)), kind=self.kind, **rows)


class Cycle:
    """Batches of S_t (term e.1) without end: reshuffled whenever all of them were seen."""

    def __init__(self, term: Term, batch_size: int, seed: int, stage: str):
        self.epochs, self.batch_size = EpochStreams([term], seed, stage), batch_size
        self.round, self.position = 0, 0
        self.samples: Stream | None = None

    def next(self) -> Stream:
        """The next batch, as a view."""
        if self.samples is None or self.position >= len(self.samples.users):
            self.round += 1
            self.samples, self.position = self.epochs.draw(self.round), 0
        batch = streams.part(self.samples, self.position, self.position + self.batch_size)
        self.position += self.batch_size
        return batch


class BothModels:
    """Two models in training: the student is judged, both are kept."""

    def __init__(self, student: Trainer, teacher: Trainer):
        self.student, self.teacher = student, teacher
        self.score_pairs, self.score_rows = student.score_pairs, student.score_rows

    def finite(self) -> bool:
        return self.student.finite() and self.teacher.finite()

    def weights(self) -> tuple[Weights, Weights]:
        return self.student.weights(), self.teacher.weights()


def train_jointly(
    fit: Fit,
    stages: tuple[Stage, Stage],
    models: tuple[Weights, Weights],
    terms: Sequence[Term],
    term_e1: Term | None,
    alignment: Alignment | None = None,
) -> tuple[Weights, Weights]:
    """Train copies of M_c on `terms` and of M_t on e.1, batch by batch side by side; returns the best pair on S_va.

    `stages` and `models` are those of M_c and of M_t. Within a batch each model sees the other's weights as they were
    before the batch: M_t's predictions are term d's targets, M_c's are those of the same pairs for M_t where the loss
    is symmetric, and an alignment pulls both ways.
    """
    stage, loss, n_samples = stages[0], LOSSES[stages[0].loss], sum(term.size for term in terms)
    batch_sizes = [min(each.batch_size, n_samples) for each in stages]
    student, teacher = models[0].trainer(batch_sizes[0]), models[1].trainer(sum(batch_sizes))
    epochs = EpochStreams(terms, stage.seed, stage.name)
    cycle = None if term_e1 is None else Cycle(term_e1, batch_sizes[1], stage.seed, stage.name + "-t")

    def one_batch(batch: Stream) -> tuple[np.ndarray, np.ndarray]:
        for_t, weight_e1 = _teacher_batch(student, teacher, batch, epochs.names, cycle, loss)
        pull_c = pull_t = None
        if alignment is not None:
            pull_c, pull_t = alignment.anchors(teacher, batch), alignment.anchors(student, for_t)
        totals = student.epoch(batch, len(terms), loss, stage.lr, stage.lam, pull_c)
        total_e1 = 0.0
        if len(for_t.users):
            total_e1 = teacher.epoch(for_t, 2, loss, stage.lr, stages[1].lam, pull_t)[0]
        return totals, np.array([total_e1, weight_e1])

    def one_epoch(epoch: int) -> dict[str, float]:
        samples = epochs.draw(epoch)
        starts = range(0, len(samples.users), batch_sizes[0])
        results = [one_batch(streams.part(samples, start, start + batch_sizes[0])) for start in starts]
        term_losses = epochs.mean_losses(sum(totals for totals, _ in results))
        total_e1, weight_e1 = sum(e1 for _, e1 in results)
        return term_losses | ({"e": total_e1 / weight_e1} if weight_e1 else {})

    both = BothModels(student, teacher)
    return fit.run_epochs(stage, one_epoch, both, both.weights)


def _teacher_batch(
    student: Trainer, teacher: Trainer, batch: Stream, names: list[str], cycle: Cycle | None, loss: Loss
) -> tuple[Stream, float]:
    """Fill in term d's targets in `batch`, and make M_t's batch: some of S_t, and term d's pairs the other way round.

    Returns M_t's batch (its terms: 0 for e.1, 1 for d) and the weight of its e.1 samples.
    """
    e1 = cycle.next() if cycle is not None else streams.empty(0)
    if "d" not in names:
        return e1, float(e1.weights.sum())
    of_d = np.flatnonzero(batch.terms == names.index("d"))
    users, items = batch.users[of_d], batch.items[of_d]
    batch.targets[of_d] = losses.predict(teacher.score_pairs(users, items), loss.link)
    if not loss.symmetric:
        return e1, float(e1.weights.sum())
    targets = losses.predict(student.score_pairs(users, items), loss.link)
    d = Stream(users, items, targets, batch.weights[of_d], np.ones(len(users), np.uint8))
    together = Stream(*(np.concatenate(columns) for columns in zip(e1, d, strict=True)))
    return together, float(e1.weights.sum())
