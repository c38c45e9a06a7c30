"""The objective of a fit: targets of observed pairs, teachers of unobserved pairs, bound terms, epochs of samples.

| term | pairs                        | target             |
|------|------------------------------|--------------------|
| a    | S_t                          | label r_t          |
| b    | S_c (off unless asked for)   | t - r_c            |
| c    | S_c                          | label r_c          |
| d    | S_a, sampled every epoch     | t, the teacher's   |
| e.1  | S_t                          | label r_t (for M_t)|
| e.2  | S_t                          | r_t - t            |
| n    | drawn from S_u every epoch   | 0                  |

A term is a set of weighted samples (user, item, target, weight), for both solvers. "Label" is the target that `Targets`
makes of label and grade. In training every sample of a, c and e weighs 1 and every sample of d gamma; `theory_weighted`
gives the weights of the theorems. The sampled solver draws shuffled epochs of the terms (`EpochStreams`); the exact
solver sums d over all of S_u. Term n is not in the paper. A log of clicks alone has no negatives, and without this term
a model would learn to predict 1 for every pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np

from dubnb import losses
from dubnb._check import InputError
from dubnb._jit import njit, span
from dubnb._random import key, uniform
from dubnb.backbones.mf import Stream, copy_sample, mf_of_users, rows_of
from dubnb.background import BackgroundThread
from dubnb.data.partition import StoredPartition
from dubnb.data.pattern import Pattern, UnobservedPairs

if TYPE_CHECKING:
    from dubnb.backbones import Weights
    from dubnb.data.partition import Partition, Triplets
    from dubnb.data.stored import PairRange

TERMS = "abcden"  # the order of terms in every stream, for every method
_BUCKET = 8192  # samples shuffled at a time: at 17 bytes each, a bucket fits into the L2 cache
PIECE = 1 << 15  # samples written at a time: at 17 bytes each, they fit into the L2 cache
NEGATIVES_POWER = (1.0, 0.75)  # p of the users and of the items, in term n
TARGET_KINDS = ("binary", "graded", "rates")
MIDDLE = 0.25  # the middle of the three negative levels of five
RATE_PRIOR = 40.0  # k: in an item's rate the base rate counts as k ratings of S_t


class GradesOf(NamedTuple):
    """What the targets of a log depend on, apart from its pairs; it can be sent to another process."""

    name: str
    graded: bool
    has_rates: bool

    @classmethod
    def log(cls, data: Partition) -> GradesOf:
        """Those of a log."""
        return cls(data.name, data.graded, data.has_rates)


@dataclass(frozen=True)
class Targets:
    """The rule that turns an observed pair's (label, grade, set) into (target, weight); part of a stage of training.

        binary   S_t: y = label                          S_c: y = 1 if positive, else `negative`
        graded   S_t: y = 1 if positive, else the grade    S_c: y = 1 if positive, else 1/4 + spread (grade - 1/4)
        rates    S_t: y = rate                           S_c: y = negative + (1 - negative) rate

        weight   S_t: 1, or by propensity                 S_c: 1 - slope/2 + slope y, that is 1/2 + y with slope 1

    The log's own weights multiply these. By propensity, samples of S_t weigh `Partition.importance`. With negative = 0
    and slope = 0 the binary rule is the paper's. Being chosen is itself a signal, so an observed and disliked pair may
    deserve a higher target than an unobserved pair. `negative` sets it where there are no grades. A rate is the share
    of a pair's impressions that are positive: the label where a pair was shown once.
    """

    kind: str = "binary"
    negative: float = 0.0
    slope: float = 0.0
    spread: float = 1.0

    def of(self, data: Partition, part: str) -> Triplets:
        """The feedback of S_c or S_t with targets in place of its labels, and the rule's weights."""
        feedback = self.of_pairs(GradesOf.log(data), part, data.triplets(part))
        importance = None if part == "S_c" else data.importance(part)
        if importance is None:
            return feedback
        return feedback._replace(weights=(feedback.weights * importance).astype(np.float32))

    def of_pairs(self, data: GradesOf, part: str, feedback: Triplets) -> Triplets:
        """The same, for some pairs of S_c or all pairs of S_t, which then lack their importance."""
        negative = np.float32(self.negative if part == "S_c" else 0.0)
        if self.kind == "rates":
            y = rates_of(data, feedback)
            return self._sloped(feedback._replace(labels=negative + (1 - negative) * y if negative else y), part)
        below: np.ndarray | np.float32 = negative
        if self.kind == "graded":
            if not data.graded:
                raise InputError(
                    f"targets='graded' needs grades, and {data.name} has none: load it with threshold= or grade=, or "
                    "take targets='binary'"
                )
            grades = np.asarray(feedback.grades)
            below = grades if part != "S_c" else spread_grades(grades, self.spread)
        y = feedback.labels
        if self.kind == "graded" or negative:  # else labels are targets as they are, and are not copied
            y = np.where(y > 0, np.float32(1.0), np.float32(0.0) + below).astype(np.float32, copy=False)
        return self._sloped(feedback._replace(labels=y), part)

    def _sloped(self, feedback: Triplets, part: str) -> Triplets:
        """Feedback whose labels are targets already, with the rule's weights of S_c."""
        if part != "S_c" or not self.slope:
            return feedback
        factors = np.float32(1 - self.slope / 2) + np.float32(self.slope) * feedback.labels
        return feedback._replace(weights=feedback.weights * np.maximum(factors, np.float32(0)))


BINARY = Targets()


def rates_of(data: Partition | GradesOf, feedback: Triplets) -> np.ndarray:
    """The share of each pair's impressions that are positive: its label if the log has no impression counts."""
    return np.asarray(feedback.grades) if data.has_rates else feedback.labels


def spread_grades(grades: np.ndarray, spread: float) -> np.ndarray:
    """Grades spread about MIDDLE, the middle of the three negative levels of five; unchanged with spread 1."""
    return grades if spread == 1 else MIDDLE + spread * (grades - MIDDLE)


def randomized(data: Partition, targets: Targets = BINARY) -> Triplets:
    """S_t with its targets as labels; raises InputError if it is empty."""
    S_t = targets.of(data, "S_t")
    if not len(S_t.users):
        raise InputError("S_t is empty: this method needs a randomized log with at least one pair for training")
    return S_t


def mean_target(data: Partition, targets: Targets = BINARY) -> float:
    """S_t's mean target, by weight."""
    S_t = randomized(data, targets)
    return float(np.average(S_t.labels, weights=S_t.weights))


class Teacher(Protocol):
    """Targets t for pairs without a label (terms d and e.2): from a model M_t of S_t, or from S_t's rates."""

    def predict(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """t of pairs of row numbers, float32."""

    def low_rank(self, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """(P', Q') with t = P'_u . Q'_i, for the exact objectives."""

    def of_users(self, first: int, last: int) -> Teacher:
        """The teacher of the users from `first` to before `last`, who are counted from 0 in it."""


@dataclass(frozen=True)
class ConstantTeacher:
    """The same t for every pair."""

    value: float

    def predict(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        out = np.empty(len(users), np.float32) if out is None else out
        out[:] = self.value
        return out

    def low_rank(self, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((shape[0], 1)), np.full((shape[1], 1), self.value)

    def of_users(self, first: int, last: int) -> Teacher:
        return self


@dataclass(frozen=True)
class ItemTeacher:
    """One t for each item."""

    values: np.ndarray

    def predict(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        out = np.empty(len(users), np.float32) if out is None else out
        out[:] = self.values[items]
        return out

    def low_rank(self, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((shape[0], 1)), self.values[:, None]

    def of_users(self, first: int, last: int) -> Teacher:
        return self


@dataclass(frozen=True)
class ModelTeacher:
    """t = shrink * mean + (1 - shrink) * p_t + shift: M_t's predictions, drawn towards a mean."""

    M_t: Weights
    link: bool
    mean: float
    shrink: float
    shift: float = 0.0

    def predict(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        out = np.empty(len(users), np.float32) if out is None else out
        losses.predict(self.M_t.score_pairs(users, items, out=out), self.link)
        if self.shrink:
            out *= np.float32(1 - self.shrink)
            out += np.float32(self.shrink * self.mean)
        if self.shift:
            out += np.float32(self.shift)
        return out

    def low_rank(self, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        rows = rows_of(self.M_t).affine(1 - self.shrink, self.shrink * self.mean)
        return rows.affine(1.0, self.shift) if self.shift else rows

    def of_users(self, first: int, last: int) -> Teacher:
        return replace(self, M_t=mf_of_users(self.M_t, first, last))


def shrunk_teacher(
    data: Partition, M_t: Weights | None, loss: losses.Loss, shrink: float = 0.0, targets: Targets = BINARY
) -> Teacher:
    """M_t's predictions drawn towards S_t's mean target by `shrink`; with shrink=1 the mean alone, without M_t."""
    mean = mean_target(data, targets)
    return ConstantTeacher(mean) if shrink == 1 or M_t is None else ModelTeacher(M_t, loss.link, mean, shrink)


def shifted_rates(data: Partition, level: float, targets: Targets = BINARY) -> Teacher:
    """Every item's rate in S_t (see `item_rates`), shifted so that an item of average rate sits at `level`."""
    rates, base_rate = item_rates(randomized(data, targets), data.n_items)
    return ItemTeacher(rates + (level - base_rate))


def item_rates(S_t: Triplets, n_items: int, prior: float = RATE_PRIOR) -> tuple[np.ndarray, float]:
    """(rates, pi): t_i = (sum of targets + k pi) / (n_i + k), an item's rate drawn towards the base rate pi."""
    weights = S_t.weights.astype(np.float64)
    base_rate = float(np.average(S_t.labels, weights=weights))
    totals = np.bincount(S_t.items, weights * S_t.labels, n_items)
    counts = np.bincount(S_t.items, weights, n_items)
    return (totals + prior * base_rate) / (counts + prior), base_rate


def exposure_powers(exposure_power: float | tuple[float, float]) -> tuple[float, float]:
    """(p of the users, p of the items)."""
    return exposure_power if isinstance(exposure_power, tuple) else (exposure_power, exposure_power)


def exposure_weights(data: Partition, exposure_power: float | tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Weights (A, C) of unobserved pairs by activity and popularity, float64, each of mean 1; a pair weighs A_u C_i.

        A_u = (n_u + 1)^p / mean,    C_i = (n_i + 1)^p / mean,    n = counts in S_c

    A missing pair is stronger evidence of dislike the more often it was exposed. A popular item that a busy user
    did not choose was probably shown to her. With p = 0 all pairs have equal weight. `exposure_power`
    is p, or (p of the users, p of the items).
    """
    sides = zip(data.biased_counts[:2], exposure_powers(exposure_power), strict=True)
    A, C = ((counts + 1.0) ** p for counts, p in sides)
    return A / A.mean(), C / C.mean()


class Term(Protocol):
    """A part of the objective, as samples. Terms are immutable: `times` makes a new one."""

    @property
    def name(self) -> str:
        """Its letter in the paper."""

    @property
    def size(self) -> int:
        """Samples per epoch."""

    @property
    def redrawn(self) -> bool:
        """Whether every epoch has new samples."""

    def samples(self, seed: int, stage: str, epoch: int) -> Callable[[Stream], None]:
        """A function that fills a stream with the next samples of an epoch.

        All randomness comes from the key (seed, stage, name, epoch).
        """

    def times(self, factor: float) -> Term:
        """The same samples with `factor` times their weights."""

    @property
    def stands_for(self) -> float:
        """The number of pairs in the theorems' sums that a sample stands for."""


@dataclass(frozen=True)
class Observed:
    """Samples that are the same in every epoch: pairs of S_c or S_t with fixed targets."""

    name: str
    users: np.ndarray
    items: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    redrawn: ClassVar[bool] = False
    folder: ClassVar[str | None] = None  # of pairs on disk
    stands_for: ClassVar[float] = 1.0

    @classmethod
    def of(cls, name: str, triplets: Triplets, targets: np.ndarray | None = None) -> Observed:
        """A term on some feedback; the targets are its labels unless others are given."""
        targets = triplets.labels if targets is None else targets
        return cls(name, triplets.users, triplets.items, targets, triplets.weights)

    @property
    def size(self) -> int:
        return len(self.users)

    def samples(self, seed: int, stage: str, epoch: int) -> Callable[[Stream], None]:
        columns, first = (self.users, self.items, self.targets, self.weights), 0

        def write(stream: Stream) -> None:
            nonlocal first
            size = len(stream.users)
            for column, room in zip(columns, stream, strict=False):
                room[:] = column[first : first + size]
            first += size

        return write

    def times(self, factor: float | np.ndarray) -> Observed:
        """`factor` may also hold one number per sample."""
        return replace(self, weights=self.weights * np.float32(factor))

    def whole(self) -> Observed:
        """All samples, in memory."""
        return self

    def pieces(self) -> Iterator[Observed]:
        """The samples, PIECE at a time."""
        for first in range(0, self.size, PIECE):
            some = slice(first, first + PIECE)
            yield Observed(self.name, self.users[some], self.items[some], self.targets[some], self.weights[some])

    def of_users(self, first: int, last: int) -> Observed:
        """The samples of the users from `first` to before `last`, counted from 0; the term is sorted by user."""
        own = slice(*np.searchsorted(self.users, np.array([first, last], self.users.dtype)))
        return Observed(self.name, self.users[own] - first, self.items[own], self.targets[own], self.weights[own])


SamplesOf: TypeAlias = "Callable[[Triplets, Unobserved | None], Observed]"  # of some pairs of S_c, and term d


@dataclass(frozen=True)
class RangedTerm:
    """Samples of an S_c on disk, made for a range of users at a time; for row solves in parts."""

    name: str
    data: StoredPartition
    make: SamplesOf
    d: Unobserved | None = None
    factors: tuple[float, ...] = ()

    redrawn: ClassVar[bool] = False
    stands_for: ClassVar[float] = 1.0

    @property
    def size(self) -> int:
        return self.data.size("S_c")

    @property
    def folder(self) -> str:
        """The directory of the pairs."""
        return self.data.files.folder.path

    def samples(self, seed: int, stage: str, epoch: int) -> Callable[[Stream], None]:
        raise self.data.needs_memory()

    def whole(self) -> Observed:
        """Refused: all samples would be in memory."""
        raise self.data.needs_memory()

    def times(self, factor: float | np.ndarray) -> RangedTerm:
        if isinstance(factor, np.ndarray):
            raise self.data.needs_memory()
        return replace(self, factors=(*self.factors, factor))

    def pieces(self) -> Iterator[Observed]:
        """The samples, PIECE at a time."""
        for first, last in self.data.ranges():
            made = self.of_users(first, last).whole()
            yield from replace(made, users=made.users + np.int32(first)).pieces()

    def of_users(self, first: int, last: int) -> RangeOfTerm:
        """The samples of the users from `first` to before `last`, who are counted from 0; they are not yet read."""
        d = None if self.d is None else self.d.of_users(first, last)
        return RangeOfTerm(self.data.range_in_files(first, last), self.make, d, self.factors)


@dataclass(frozen=True)
class RangeOfTerm:
    """The samples of a range of users that are made when they are needed, also by another process."""

    pairs: PairRange
    make: SamplesOf
    d: Unobserved | None
    factors: tuple[float, ...]

    @property
    def folder(self) -> str:
        """The directory of the pairs."""
        return self.pairs.files.path

    def whole(self) -> Observed:
        """The samples, in memory."""
        made = self.make(self.pairs.read(), self.d)
        for factor in self.factors:
            made = made.times(factor)
        return made


def over_S_c(name: str, data: Partition, make: SamplesOf, d: Unobserved | None = None) -> Observed | RangedTerm:
    """The term that `make` makes of pairs of S_c and d: of all at once, or by ranges of users if S_c is on disk.

    A function that is sent to workers must be one of a module, or a partial one of it.
    """
    return RangedTerm(name, data, make, d) if isinstance(data, StoredPartition) else make(data.triplets("S_c"), d)


@dataclass(frozen=True)
class Unobserved:
    """Terms d and n: pairs drawn uniformly from S_u anew in every epoch, with the teacher's predictions as targets.

    Without a teacher (joint training) targets stay 0 until the trainer fills in M_t's current predictions. With row
    weights (A, C) a pair's weight is multiplied by A_u C_i.
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

    def samples(self, seed: int, stage: str, epoch: int) -> Callable[[Stream], None]:
        """Draw pairs, then score them once with the teacher."""
        draw = self.pairs.draws(key(seed, stage, self.name, epoch), self.size)

        def write(stream: Stream) -> None:
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

    def of_users(self, first: int, last: int) -> Unobserved:
        """The pairs of the users from `first` to before `last`, who are counted from 0."""
        indptr, items = self.pairs.seen
        seen = Pattern.from_csr(indptr[first : last + 1] - indptr[first], items[indptr[first] : indptr[last]])
        return replace(
            self,
            pairs=UnobservedPairs(last - first, self.pairs.shape[1], seen),
            teacher=None if self.teacher is None else self.teacher.of_users(first, last),
            row_weights=None if self.row_weights is None else (self.row_weights[0][first:last], self.row_weights[1]),
        )


def term_a(data: Partition, targets: Targets = BINARY) -> Observed:
    """S_t with its labels, for M_c."""
    return Observed.of("a", randomized(data, targets))


def term_b(data: Partition, teacher: Teacher, weight: float, targets: Targets = BINARY) -> Observed:
    """S_c with t - r_c, the teacher standing in for the unknown R^t; for M_c.

    The paper leaves b out because R^t is unknown there. With a loss whose derivative is affine in the target
    (bce, mse, squared), c + w b pulls M_c towards ((1 - w) r_c + w t) / (1 + w): at w = 1 the labels of S_c cancel.
    """
    S_c = targets.of(data, "S_c")
    return Observed.of("b", S_c, teacher.predict(S_c.users, S_c.items) - S_c.labels).times(weight)


def term_c(data: Partition, targets: Targets = BINARY) -> Observed | RangedTerm:
    """S_c with its labels, for M_c."""
    return over_S_c("c", data, partial(_labels_of_S_c, targets, GradesOf.log(data)))


def _labels_of_S_c(targets: Targets, log: GradesOf, S_c: Triplets, _: Unobserved | None) -> Observed:
    return Observed.of("c", targets.of_pairs(log, "S_c", S_c))


def term_d(
    data: Partition,
    gamma: float,
    teacher: Teacher | None = None,
    everywhere: bool = False,
    exposure_power: float | tuple[float, float] = 0.0,
) -> Unobserved:
    """As many pairs as S_c, from S_u (`everywhere`: from all of D), with the teacher's predictions; weight gamma.

    exposure_power: p of the weights A_u C_i by activity and popularity, see `exposure_weights`; 0: equal weights.
    """
    pairs = UnobservedPairs(data.n_users, data.n_items) if everywhere else data.S_u
    weights = exposure_weights(data, exposure_power) if any(exposure_powers(exposure_power)) else None
    power = exposure_powers(exposure_power)[0]
    return Unobserved(pairs, data.size("S_c"), gamma, teacher, weights, power)


def term_n(data: Partition, per_positive: int) -> Unobserved:
    """`per_positive` negatives for each positive of S_c, drawn from S_u and weighed by activity and popularity.

    A pair weighs A_u C_i with A_u = (n_u + 1) / mean and C_i = (n_i + 1)^.75 / mean. So a user's negatives
    weigh in proportion to the user's pairs in S_c, and negatives of popular items weigh more.
    """
    n_positives = int((data.triplets("S_c").labels > 0).sum())
    weights = exposure_weights(data, NEGATIVES_POWER)
    power = NEGATIVES_POWER[0]
    return Unobserved(data.S_u, per_positive * n_positives, 1.0, ConstantTeacher(0.0), weights, power, name="n")


def term_e1(data: Partition, targets: Targets = BINARY) -> Observed:
    """S_t with its labels, for M_t."""
    return Observed.of("e", randomized(data, targets))


def term_e2(data: Partition, teacher: Teacher, targets: Targets = BINARY) -> Observed:
    """S_t with the teacher's residuals r_t - t, a number in (-1, 1), for M_c."""
    S_t = randomized(data, targets)
    return Observed.of("e", S_t, S_t.labels - teacher.predict(S_t.users, S_t.items))


def theory_weighted(terms: Sequence[Term], data: Partition) -> list[Term]:
    """The terms with weights such that the mean over an epoch's samples is the theorems' objective.

    Term e is divided by |S_t|, every other term by |D|.
    """
    n_samples, n_pairs = sum(term.size for term in terms), data.n_users * data.n_items
    divisors = [term.size if term.name == "e" else n_pairs for term in terms]
    return [term.times(n_samples * term.stands_for / by) for term, by in zip(terms, divisors, strict=True)]


def total_weights(observed: Sequence[Observed | RangedTerm], d: Unobserved) -> tuple[np.ndarray, np.ndarray]:
    """(weight of each user's row, of each item's row): its observed samples' weights plus gamma A_u sum C."""
    shape = d.pairs.shape
    A, C = d.row_weights or (np.ones(shape[0]), np.ones(shape[1]))
    of_users, of_items = np.zeros(shape[0]), np.zeros(shape[1])
    for term in observed:
        for piece in term.pieces():  # pieces need no float64 copy of a whole log's weights
            weights = piece.weights.astype(np.float64)
            np.add.at(of_users, piece.users, weights)
            np.add.at(of_items, piece.items, weights)
    return of_users + d.weight * A * C.sum(), of_items + d.weight * C * A.sum()


def noise_scale(weight: float, shape: tuple[int, int]) -> float:
    """sqrt(W_u) + sqrt(W_i), the scale for a decay; W_u and W_i are the mean weights of a user's and an item's row.

    weight: the total weight of all pairs. The objective is a weighted sum of squared errors, so the data enter as a
    matrix of weights times labels. If the labels were pure noise, this would be a noise matrix with independent
    entries, whose largest singular value grows like sqrt(row weight) + sqrt(column weight) (Bai and Yin). A decay
    lam/2 (|p|^2 + |q|^2) removes singular values below lam/2. With lam/2 = c (sqrt(W_u) + sqrt(W_i)), one c removes
    the same share of the noise from logs of any size and density. The best c is .2 to .3 rather than 1 because labels
    have a std well below 1 and rows have unequal weights; above .5 only biases remain.
    """
    return float(np.sqrt(weight / shape[0]) + np.sqrt(weight / shape[1]))


def empty_stream(size: int) -> Stream:
    """A stream with room for `size` samples."""
    return Stream(
        np.zeros(size, np.int32),
        np.zeros(size, np.int32),
        np.zeros(size, np.float32),
        np.ones(size, np.float32),
        np.zeros(size, np.uint8),
    )


def stream_part(stream: Stream, start: int, stop: int | None) -> Stream:
    """The samples from `start` to `stop`, as a view."""
    return Stream(*(column[start:stop] for column in stream))


def n_buckets(n: int) -> int:
    """The number of buckets in the shuffle of n samples."""
    return n // _BUCKET + 1


def shuffle(key: np.uint64, source: Stream, target: Stream) -> None:
    """Write `source` to `target` in a uniformly random order that depends on `key` alone."""
    Shuffle(key, target).add(source)


class Shuffle:
    """`shuffle` for samples that arrive in pieces; the order does not depend on how they are cut.

    Every sample goes to a random bucket, then each bucket is shuffled (Rao, 1961; Sandelius, 1962). The order is
    uniform, as with Fisher-Yates. But memory is touched bucket by bucket, so the cost per sample does not grow with the
    stream.
    """

    def __init__(self, key: np.uint64, target: Stream):
        count = n_buckets(len(target.users))
        self.key, self.target, self.first = key, target, 0
        self.starts, self.fill = np.zeros(count + 1, np.int64), np.zeros(count, np.int64)

    def add(self, piece: Stream) -> None:
        """Add the next samples; the order is complete after the last of them."""
        _shuffle_piece(self.key, self.first, piece, self.target, self.starts, self.fill)
        self.first += len(piece.users)


@njit
def _shuffle_piece(key, first, piece, target, starts, fill):
    n, size, count = len(target.users), len(piece.users), len(fill)
    starts, fill = span(starts, 0, count + 1), span(fill, 0, count)
    if first == 0:
        for j in range(n):
            starts[np.uint64(uniform(key, j) * count) + np.uint64(1)] += 1
        for b in range(count):
            starts[b + 1] += starts[b]
            fill[b] = starts[b]
    for j in range(size):
        b = np.uint64(uniform(key, first + j) * count)
        copy_sample(piece, j, target, np.uint64(fill[b]))
        fill[b] += 1
    if first + size < n:
        return
    for b in range(count):
        for j in range(starts[b + 1] - 1, starts[b], -1):
            k = starts[b] + np.int64(uniform(key, n + j) * (j - starts[b] + 1))
            _swap_samples(target, np.uint64(j), np.uint64(k))


@njit
def _swap_samples(stream, j, k):
    stream.users[j], stream.users[k] = stream.users[k], stream.users[j]
    stream.items[j], stream.items[k] = stream.items[k], stream.items[j]
    stream.targets[j], stream.targets[k] = stream.targets[k], stream.targets[j]
    stream.weights[j], stream.weights[k] = stream.weights[k], stream.weights[j]
    stream.terms[j], stream.terms[k] = stream.terms[k], stream.terms[j]


class EpochStreams:
    """The shuffled concatenation of some terms, one epoch at a time, in a buffer that is allocated once.

    The buffer takes 17 bytes per sample; there is no second copy.
    """

    def __init__(self, terms: Iterable[Term], seed: int, stage: str):
        self.terms = sorted(terms, key=lambda term: TERMS.index(term.name))
        self.names = [term.name for term in self.terms]
        self.seed, self.stage = seed, stage
        self.size = sum(term.size for term in self.terms)
        self.piece, self.shuffled = empty_stream(min(self.size, PIECE)), empty_stream(self.size)
        self.weight_sums = np.zeros(len(self.terms))

    def draw(self, epoch: int) -> Stream:
        """The samples of one epoch in random order; terms that are redrawn have new samples."""
        return self.draw_into(self.shuffled, epoch)

    def draw_into(self, room: Stream, epoch: int) -> Stream:
        """`draw` into the caller's buffer."""
        shuffle = Shuffle(key(self.seed, self.stage, "shuffle", epoch), room)
        for number, term in enumerate(self.terms):
            write, weights = term.samples(self.seed, self.stage, epoch), 0.0
            for first in range(0, term.size, PIECE):
                piece = stream_part(self.piece, 0, min(PIECE, term.size - first))
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
        self.rooms = epochs.shuffled, empty_stream(len(epochs.shuffled.users))
        self.weight_sums = epochs.weight_sums  # those of the last epoch drawn
        self.next: Future[Any] | None = None

    def draw(self, epoch: int) -> Stream:
        """The samples of one epoch; the background thread begins to draw the next."""
        drawn = self.background.submit(self._drawn, epoch) if self.next is None else self.next
        samples, self.weight_sums = drawn.result()
        self.next = self.background.submit(self._drawn, epoch + 1) if epoch < self.last else None
        return samples

    def _drawn(self, epoch: int) -> tuple[Stream, np.ndarray]:
        return self.epochs.draw_into(self.rooms[epoch % 2], epoch), self.epochs.weight_sums.copy()

    def mean_losses(self, totals: np.ndarray) -> dict[str, float]:
        """{term: weighted mean loss} from the sums of the last epoch drawn."""
        return self.epochs.mean_losses(totals, self.weight_sums)
