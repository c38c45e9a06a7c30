"""Joint training on the device: `coupled.BothModels`, with the same samples in the same batches.

The positions of term d's samples are known when an epoch is drawn, so both models' batches are laid out for the whole
epoch. Each model's predictions for the other, and its pull, are filled in batch by batch before either model moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

from dubnb.backbones import Weights
from dubnb.backbones.mf import Stream
from dubnb.cuda._launch import BYTES, I8, INTS, STREAM, Totals, device_array, kernel, stream_to_device, zeros
from dubnb.cuda.rows import Batches
from dubnb.cuda.streams import FLOATS, DeviceStreams, soften, widen
from dubnb.losses import LOSSES
from dubnb.objective.coupled import Alignment, Cycle
from dubnb.objective.terms import empty_stream, stream_part

if TYPE_CHECKING:
    from dubnb.train import Stage


@kernel(BYTES, I8, I8, INTS, INTS)
def place_term(terms, batch_size, d, places, counts):
    """places[j]: the number of term d's samples before j in its batch; counts: their number in each batch."""
    for j in range(cuda.grid(1), len(terms), cuda.gridsize(1)):
        start, before = j // batch_size * batch_size, 0
        stop = min(start + batch_size, len(terms))
        for k in range(start, j):
            before += 1 if terms[k] == d else 0
        places[j] = before
        if j == stop - 1:
            counts[j // batch_size] = before + (1 if terms[j] == d else 0)


@kernel(STREAM, I8, I8, I8, INTS, STREAM, I8)
def pick_term(stream, start, n, d, places, target, first):
    """Copy term d's samples of a batch to `target`, from `first` on, as samples of term 1."""
    for j in range(start + cuda.grid(1), start + n, cuda.gridsize(1)):
        if stream.terms[j] == d:
            k = first + places[j]
            target.users[k], target.items[k] = stream.users[j], stream.items[j]
            target.weights[k], target.terms[k] = stream.weights[j], 1


@kernel(STREAM, I8, I8, I8, INTS, FLOATS)
def put_targets(stream, start, n, d, places, targets):
    """Give term d's samples of a batch their targets."""
    for j in range(start + cuda.grid(1), start + n, cuda.gridsize(1)):
        if stream.terms[j] == d:
            stream.targets[j] = targets[places[j]]


@kernel(STREAM, STREAM)
def copy_samples(source, target):
    """target = source, samples of term 0."""
    for j in range(cuda.grid(1), len(source.users), cuda.gridsize(1)):
        target.users[j], target.items[j] = source.users[j], source.items[j]
        target.targets[j], target.weights[j], target.terms[j] = source.targets[j], source.weights[j], 0


class CudaBothModels:
    """M_c, the student, and M_t, the teacher, in joint training on the device; early stopping judges M_c."""

    def __init__(
        self,
        stages: tuple[Stage, Stage],
        trainers: tuple[Batches, Batches],
        epochs: DeviceStreams,
        cycle: Cycle | None,
        alignment: Alignment | None,
    ):
        self.stages, self.loss, self.alignment = stages, LOSSES[stages[0].loss], alignment
        self.student, self.teacher = trainers
        self.epochs, self.cycle = epochs, cycle
        self.score_pairs, self.score_rows = self.student.score_pairs, self.student.score_rows
        n, self.n_c = len(epochs.source.users), self.student.batch_size
        self.d = epochs.names.index("d") if "d" in epochs.names else -1
        self.places, self.counts = device_array(n, np.int32), device_array(-(-n // self.n_c), np.int32)
        self.targets = device_array(self.n_c)
        self.room = device_array(self.teacher.batch_size, np.float64), device_array(1)

    def epoch(self, epoch: int) -> dict[str, float]:
        """Train both; returns each term's mean loss by weight."""
        samples, n = self.epochs.draw(epoch), len(self.places)
        place_term(n, samples.terms, self.n_c, self.d, self.places, self.counts)
        counts = self.counts.copy_to_host()
        n_t = 0 if self.cycle is None else self.cycle.batch_size
        for_t = stream_to_device(empty_stream(len(counts) * n_t + int(counts.sum())))
        values, wide, used = zeros(len(for_t.users), np.float64), device_array(len(for_t.users), np.float64), 0
        both = self.student.begin(samples)
        for number, start in enumerate(range(0, n, self.n_c)):
            size, e1 = min(self.n_c, n - start), None if self.cycle is None else self.cycle.next()
            n_e1 = 0 if e1 is None else len(e1.users)
            batch_t = stream_part(for_t, used, used + n_e1 + int(counts[number]))
            if e1 is not None:
                copy_samples(n_e1, e1, batch_t)
            batch_t = self._exchange(samples, start, size, batch_t, n_e1)
            n_batch = len(batch_t.users)
            self._train(both, start, size, batch_t, values[used : used + n_batch])
            used += n_batch
        means = self.epochs.mean_losses(Totals(len(self.epochs.names)).of(both.values, samples.terms))
        widen(used, for_t.weights[:used], wide[:used])
        labels = for_t.terms[:used]
        total, weight = (float(Totals(2).of(of[:used], labels)[0]) for of in (values, wide))
        return means | ({"e": total / weight} if weight else {})

    def _exchange(self, samples: Stream, start: int, n: int, batch_t: Stream, n_e1: int) -> Any:
        """Set term d's targets to M_t's predictions and, with a symmetric loss, M_t's targets to M_c's.

        Returns M_t's batch, which has samples of term d only if the loss is symmetric.
        """
        n_d, link, one = len(batch_t.users) - n_e1, int(self.loss.link), np.float32(1.0)
        if n_d:
            pick_term(n, samples, start, n, self.d, self.places, batch_t, n_e1)
            of_d = stream_part(batch_t, n_e1, n_e1 + n_d)
            targets = self.targets[:n_d]
            for model, out in ((self.teacher, targets), (self.student, of_d.targets)):
                model.score(of_d.users, of_d.items, out)
                soften(n_d, out, link, one, np.float32(0.0))
            put_targets(n, samples, start, n, self.d, self.places, targets)
        return batch_t if self.loss.symmetric else stream_part(batch_t, 0, n_e1)

    def _train(self, both: Any, start: int, n: int, batch_t: Stream, values: Any) -> None:
        """Compute both models' gradients at the old weights of both, then make both steps."""
        n_t, lr = len(batch_t.users), self.stages[0].lr
        self.student.add_gradients(both, start, n, self.loss)
        if n_t:
            of_t = self.teacher.begin(batch_t)._replace(values=values)
            self.teacher.add_gradients(of_t, 0, n_t, self.loss)
        if self.alignment is not None:
            self.student.add_pull(both, start, n, self.teacher, self.alignment, self.room)
            if n_t:
                self.teacher.add_pull(of_t, 0, n_t, self.student, self.alignment, self.room)
        self.student.take_step(both, start, n, lr, self.stages[0].lam)
        if n_t:
            self.teacher.take_step(of_t, 0, n_t, lr, self.stages[1].lam)

    def finite(self) -> bool:
        return self.student.finite() and self.teacher.finite()

    def weights(self) -> tuple[Weights, Weights]:
        return self.student.weights(), self.teacher.weights()
