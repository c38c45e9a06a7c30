"""Joint training of M_c and M_t (Eq. 1, joint bridge, CausE); each model has its own stream and optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dubnb import stream as streams
from dubnb.backbones import Weights, epochs
from dubnb.backbones import embedding as emb
from dubnb.losses import LOSSES
from dubnb.objective.terms import EpochStreams, Term
from dubnb.stream import Stream

if TYPE_CHECKING:
    from dubnb.train import Stage

SIDES = {"items": ("items",), "users": ("users",), "both": ("users", "items")}
NORMS = {"l1": emb.L1, "frobenius": emb.FROBENIUS}


class Alignment:
    """CausE's pull between the factors of M_c and M_t: of "items" (default), "users" or "both", l1 or Frobenius.

    It adds strength x |W - W'| / (samples of the batch) to a batch's mean objective.
    """

    def __init__(self, strength: float, side: str = "items", norm: str = "l1"):
        self.strength, self.sides, self.kind = np.float32(strength), SIDES[side], NORMS[norm]

    def room(self, rank: int, batch_size: int) -> emb.Anchors:
        """Scratch space for the other model's factors; its strength is not yet divided by the batch's size."""
        rows = {side: np.zeros((batch_size, rank), np.float32) for side in self.sides}
        return emb.no_anchors(rank)._replace(strength=self.strength, kind=self.kind, **rows)


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
        batch = streams.part(self.samples, self.position, end)
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
        self.sides = epochs.Sides((n_c, n_t), d, loss.code, loss.link, loss.symmetric, stage.lr)
        pulls = (
            emb.no_anchors(trainer.rank) if alignment is None else alignment.room(trainer.rank, trainer.batch_size)
            for trainer in (self.student, self.teacher)
        )
        self.room = epochs.JointRoom(streams.empty(n_c + n_t), np.zeros(n_c, np.float32), *pulls)
        self.steps = np.zeros(2, np.int64)

    def epoch(self, epoch: int) -> dict[str, float]:
        """Train both; returns each term's mean loss by weight.

        One call of the kernel runs to the end of the epoch, or until S_t has to be reshuffled.
        """
        samples, (n_c, n_t) = self.epochs.draw(epoch), self.sides.batch_sizes
        totals, weight_e1 = (np.zeros(len(self.epochs.names)), np.zeros(2)), 0.0
        left = -(-len(samples.users) // n_c)
        while left:
            e1 = streams.empty(0) if self.cycle is None else self.cycle.next(left)
            n_batches = left if self.cycle is None else -(-len(e1.users) // n_t)
            epochs.side_by_side(n_batches, self.models, samples, e1, self.sides, self.room, self.steps, totals)
            samples, left = streams.part(samples, n_batches * n_c, None), left - n_batches
            weight_e1 += e1.weights.sum(dtype=np.float64)
        means = self.epochs.mean_losses(totals[0])
        return means | ({"e": totals[1][0] / weight_e1} if weight_e1 else {})

    def finite(self) -> bool:
        return self.student.finite() and self.teacher.finite()

    def weights(self) -> tuple[Weights, Weights]:
        return self.student.weights(), self.teacher.weights()
