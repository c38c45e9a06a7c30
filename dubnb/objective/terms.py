"""The bound terms: weighted samples (user, item, target, weight), for both solvers.

| term | pairs                        | target             |
|------|------------------------------|--------------------|
| a    | S_t                          | label r_t          |
| b    | S_c (off unless asked for)   | t - r_c            |
| c    | S_c                          | label r_c          |
| d    | S_a, sampled every epoch     | t, the teacher's   |
| e.1  | S_t                          | label r_t (for M_t)|
| e.2  | S_t                          | r_t - t            |
| n    | drawn from S_u every epoch   | 0                  |

"Label" is the target that `targets` makes of label and grade. In training every sample of a, c and e weighs 1 and
every sample of d gamma; `theory_weighted` gives the weights of the theorems. The sampled solver draws epochs of these
terms as streams; the exact one sums d over all of S_u. Term n is not in the paper: a log of clicks alone has no
negatives, so without it a model would learn to predict 1 for every pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from dubnb import stream as streams
from dubnb._random import key
from dubnb.background import BackgroundThread
from dubnb.data.sampling import UnobservedPairs
from dubnb.objective import exposure
from dubnb.objective.targets import BINARY, Targets
from dubnb.objective.teachers import Constant, Teacher, randomized

if TYPE_CHECKING:
    from dubnb.data.partition import Partition, Triplets

TERMS = "abcden"  # the order of terms in every stream, for every method
PIECE = 1 << 15  # samples written at a time: at 17 bytes each, they fit into the L2 cache
NEGATIVES_POWER = (1.0, 0.75)  # p of the users and of the items


class Term(Protocol):
    """A part of the objective, as samples. Terms are immutable: `times` makes a new one."""

    @property
    def name(self) -> str:
        """Its letter in the paper."""
        ...

    @property
    def size(self) -> int:
        """Samples per epoch."""
        ...

    @property
    def redrawn(self) -> bool:
        """Whether every epoch has new samples."""
        ...

    def samples(self, seed: int, stage: str, epoch: int) -> Callable[[streams.Stream], None]:
        """A function that fills a stream with the next samples of an epoch.

        All randomness comes from the key (seed, stage, name, epoch).
        """
        ...

    def times(self, factor: float) -> Term:
        """The same samples with `factor` times their weights."""
        ...

    @property
    def stands_for(self) -> float:
        """The number of pairs in the theorems' sums that a sample stands for."""
        ...


@dataclass(frozen=True)
class Observed:
    """Samples that are the same in every epoch: pairs of S_c or S_t with fixed targets."""

    name: str
    users: np.ndarray
    items: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    redrawn: ClassVar[bool] = False
    stands_for: ClassVar[float] = 1.0

    @classmethod
    def of(cls, name: str, triplets: Triplets, targets: np.ndarray | None = None) -> Observed:
        """A term on some feedback; the targets are its labels unless others are given."""
        targets = triplets.labels if targets is None else targets
        return cls(name, triplets.users, triplets.items, targets, triplets.weights)

    @property
    def size(self) -> int:
        return len(self.users)

    def samples(self, seed: int, stage: str, epoch: int) -> Callable[[streams.Stream], None]:
        columns, first = (self.users, self.items, self.targets, self.weights), 0

        def write(stream: streams.Stream) -> None:
            nonlocal first
            size = len(stream.users)
            for column, room in zip(columns, stream, strict=False):
                room[:] = column[first : first + size]
            first += size

        return write

    def times(self, factor: float | np.ndarray) -> Observed:
        """`factor` may also hold one number per sample."""
        return replace(self, weights=self.weights * np.float32(factor))


@dataclass(frozen=True)
class Unobserved:
    """Terms d and n: pairs drawn uniformly from S_u anew in every epoch, with the teacher's predictions as targets.

    Without a teacher (joint training) targets stay 0 until the trainer fills in M_t's current predictions. With row
    weights (A, C) a pair weighs A_u C_i times what it would.
    """

    pairs: UnobservedPairs
    size: int
    weight: float
    teacher: Teacher | None = None
    row_weights: tuple[np.ndarray, np.ndarray] | None = None
    power: float = 0.0  # p of the users' weights
    name: str = "d"

    redrawn: ClassVar[bool] = True

    @property
    def stands_for(self) -> float:
        """|S_u| / |S_a|."""
        return self.pairs.size / self.size

    def samples(self, seed: int, stage: str, epoch: int) -> Callable[[streams.Stream], None]:
        """Draw pairs, then score them once with the teacher."""
        draw = self.pairs.draws(key(seed, stage, self.name, epoch), self.size)

        def write(stream: streams.Stream) -> None:
            draw(stream.users, stream.items)
            stream.targets[:] = 0.0
            if self.teacher is not None:
                self.teacher.predict(stream.users, stream.items, out=stream.targets)
            stream.weights[:] = self.weight
            if self.row_weights is not None:
                A, C = self.row_weights
                stream.weights[:] *= A[stream.users] * C[stream.items]

        return write

    def times(self, factor: float) -> Unobserved:
        return replace(self, weight=self.weight * factor)


def term_a(data: Partition, targets: Targets = BINARY) -> Observed:
    """S_t with its labels, for M_c."""
    return Observed.of("a", randomized(data, targets))


def term_b(data: Partition, teacher: Teacher, weight: float, targets: Targets = BINARY) -> Observed:
    """S_c with t - r_c, the teacher standing in for the unknown R^t; for M_c.

    The paper leaves b out because R^t is unknown there. Beware: with a loss whose derivative is affine in the target
    (bce, mse, squared), c + w b pulls M_c towards ((1 - w) r_c + w t) / (1 + w): at w = 1 the labels of S_c cancel.
    """
    S_c = targets.of(data, "S_c")
    return Observed.of("b", S_c, teacher.predict(S_c.users, S_c.items) - S_c.labels).times(weight)


def term_c(data: Partition, targets: Targets = BINARY) -> Observed:
    """S_c with its labels, for M_c."""
    return Observed.of("c", targets.of(data, "S_c"))


def term_d(
    data: Partition,
    gamma: float,
    teacher: Teacher | None = None,
    everywhere: bool = False,
    exposure_power: float | tuple[float, float] = 0.0,
) -> Unobserved:
    """As many pairs as S_c, from S_u (`everywhere`: from all of D), with the teacher's predictions; weight gamma.

    exposure_power: p of the weights A_u C_i by activity and popularity, see `exposure`; 0: equal weights.
    """
    pairs = UnobservedPairs(data.n_users, data.n_items, None if everywhere else data.seen)
    weights = exposure.row_weights(data, exposure_power) if any(exposure.powers(exposure_power)) else None
    power = exposure.powers(exposure_power)[0]
    return Unobserved(pairs, len(data.triplets("S_c").users), gamma, teacher, weights, power)


def term_n(data: Partition, per_positive: int) -> Unobserved:
    """`per_positive` negatives for each positive of S_c, drawn from S_u and weighed by activity and popularity.

    A user's negatives weigh (n_u + 1) / mean, so that they are in proportion to the positives, and an item's
    (n_i + 1)^.75 / mean, which is the draw "by exposure power" in expectation.
    """
    pairs = UnobservedPairs(data.n_users, data.n_items, data.seen)
    n_positives = int((data.triplets("S_c").labels > 0).sum())
    weights = exposure.row_weights(data, NEGATIVES_POWER)
    power = NEGATIVES_POWER[0]
    return Unobserved(pairs, per_positive * n_positives, 1.0, Constant(0.0), weights, power, name="n")


def term_e1(data: Partition, targets: Targets = BINARY) -> Observed:
    """S_t with its labels, for M_t."""
    return Observed.of("e", randomized(data, targets))


def term_e2(data: Partition, teacher: Teacher, targets: Targets = BINARY) -> Observed:
    """S_t with the teacher's residuals r_t - t, a number in (-1, 1), for M_c."""
    S_t = randomized(data, targets)
    return Observed.of("e", S_t, S_t.labels - teacher.predict(S_t.users, S_t.items))


def theory_weighted(terms: Sequence[Term], data: Partition) -> list[Term]:
    """Weights that make the mean over an epoch's samples the theorems' objective: all over |D| but e, over |S_t|."""
    n_samples, n_pairs = sum(term.size for term in terms), data.n_users * data.n_items
    divisors = [term.size if term.name == "e" else n_pairs for term in terms]
    return [term.times(n_samples * term.stands_for / by) for term, by in zip(terms, divisors, strict=True)]


class EpochStreams:
    """The shuffled concatenation of some terms, one epoch at a time, in a buffer that is allocated once.

    The buffer takes 17 bytes per sample; there is no second copy.
    """

    def __init__(self, terms: Iterable[Term], seed: int, stage: str):
        self.terms = sorted(terms, key=lambda term: TERMS.index(term.name))
        self.names = [term.name for term in self.terms]
        self.seed, self.stage = seed, stage
        size = sum(term.size for term in self.terms)
        self.piece, self.shuffled = streams.empty(min(size, PIECE)), streams.empty(size)
        self.weight_sums = np.zeros(len(self.terms))

    def draw(self, epoch: int) -> streams.Stream:
        """The samples of one epoch in random order; terms that are redrawn have new samples."""
        return self.draw_into(self.shuffled, epoch)

    def draw_into(self, room: streams.Stream, epoch: int) -> streams.Stream:
        """`draw` into the caller's buffer."""
        shuffle = streams.Shuffle(key(self.seed, self.stage, "shuffle", epoch), room)
        for number, term in enumerate(self.terms):
            write, weights = term.samples(self.seed, self.stage, epoch), 0.0
            for first in range(0, term.size, PIECE):
                piece = streams.part(self.piece, 0, min(PIECE, term.size - first))
                write(piece)
                piece.terms[:] = number
                weights = np.add.reduce(piece.weights, dtype=np.float64, initial=weights)
                shuffle.add(piece)
            self.weight_sums[number] = weights
        return room

    def mean_losses(self, totals: np.ndarray, weight_sums: np.ndarray | None = None) -> dict[str, float]:
        """{term: weighted mean loss} from an epoch's sums; `weight_sums` are by default those of the last draw."""
        weight_sums = self.weight_sums if weight_sums is None else weight_sums
        weighed = weight_sums > 0  # false for term d with gamma = 0
        means = np.divide(totals, weight_sums, out=np.zeros(len(totals)), where=weighed)
        return dict(zip(self.names, means.tolist(), strict=True))


class PrefetchedEpochs:
    """The epochs of an EpochStreams up to number `last`; a background thread draws each one before it is needed.

    A second buffer holds the samples of the next epoch while the current one is trained on.
    """

    def __init__(self, epochs: EpochStreams, background: BackgroundThread, last: int):
        self.epochs, self.background, self.last = epochs, background, last
        self.rooms = epochs.shuffled, streams.empty(len(epochs.shuffled.users))
        self.weight_sums = epochs.weight_sums  # of the epoch drawn last
        self.next: Future[Any] | None = None

    def draw(self, epoch: int) -> streams.Stream:
        """The samples of one epoch; the background thread begins to draw the next."""
        drawn = self.background.submit(self._drawn, epoch) if self.next is None else self.next
        samples, self.weight_sums = drawn.result()
        self.next = self.background.submit(self._drawn, epoch + 1) if epoch < self.last else None
        return samples

    def _drawn(self, epoch: int) -> tuple[streams.Stream, np.ndarray]:
        return self.epochs.draw_into(self.rooms[epoch % 2], epoch), self.epochs.weight_sums.copy()

    def mean_losses(self, totals: np.ndarray) -> dict[str, float]:
        """{term: weighted mean loss} from the sums of the last epoch drawn."""
        return self.epochs.mean_losses(totals, self.weight_sums)
