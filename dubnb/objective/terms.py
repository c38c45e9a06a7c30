"""The bound terms as streams of samples (user, item, target, weight).

| term | pairs                        | target             |
|------|------------------------------|--------------------|
| a    | S_t                          | label r_t          |
| c    | S_c                          | label r_c          |
| d    | S_a, sampled every epoch     | p_t, M_t's         |
| e.1  | S_t                          | label r_t (for M_t)|
| e.2  | S_t                          | r_t - p_t          |

In training every sample of a, c and e weighs 1 and every sample of d gamma; `theory` gives the weights of the theorems.
"""

import numpy as np

from dubnb import losses
from dubnb import stream as streams
from dubnb._check import InputError
from dubnb._random import key
from dubnb.data.sampling import UnobservedPairs
from dubnb.objective import exposure

TERMS = "acde"  # the order of terms in every stream, whatever the method


def randomized(data):
    """S_t, which must have a pair where a method learns from it."""
    S_t = data.triplets("S_t")
    if not len(S_t.users):
        raise InputError("S_t is empty: this method needs a randomized log with at least one pair for training")
    return S_t


class Observed:
    """Samples that stay the same in every epoch: pairs of S_c or S_t with fixed targets."""

    def __init__(self, name, triplets, targets=None):
        self.name, self.users, self.items, self.weights = name, triplets.users, triplets.items, triplets.weights
        self.targets = triplets.labels if targets is None else targets
        self.size = len(self.users)
        self.scale = 1.0

    def fill(self, stream, seed, stage, epoch):
        """Write the samples; nothing here depends on the epoch."""
        stream.users[:], stream.items[:], stream.targets[:] = self.users, self.items, self.targets
        np.multiply(self.weights, np.float32(self.scale), out=stream.weights)


class Teacher:
    """What terms d and e.2 know of R^t: M_t's predictions, drawn towards S_t's mean label by `shrink` (1: the mean
    alone).

    t = shrink * mean + (1 - shrink) * p_t.
    """

    def __init__(self, data, M_t, loss, shrink=0.0):
        self.M_t, self.link, self.shrink = M_t, loss.link, shrink
        S_t = randomized(data)
        self.mean = float(np.average(S_t.labels, weights=S_t.weights))

    def predict(self, users, items, out=None):
        """t for pairs of row numbers."""
        out = np.empty(len(users), np.float32) if out is None else out
        if self.shrink == 1:
            out[:] = self.mean
            return out
        losses.predict(self.M_t.score_pairs(users, items, out=out), self.link)
        if self.shrink:
            out *= np.float32(1 - self.shrink)
            out += np.float32(self.shrink * self.mean)
        return out


class Unobserved:
    """Term d: pairs drawn uniformly from S_u anew in every epoch, with the teacher's predictions as targets.

    Without a teacher (joint training) targets stay 0 until the trainer fills in M_t's current predictions. With row
    weights (A, C) a pair weighs A_u C_i times what it would.
    """

    name = "d"

    def __init__(self, pairs, size, gamma, teacher=None, row_weights=None):
        self.pairs, self.size, self.teacher, self.scale = pairs, size, teacher, gamma
        self.row_weights = row_weights

    def fill(self, stream, seed, stage, epoch):
        """Draw the epoch's pairs, then one score pass of the teacher."""
        self.pairs.draw(key(seed, stage, "d", epoch), stream.users, stream.items)
        if self.teacher is not None:
            self.teacher.predict(stream.users, stream.items, out=stream.targets)
        stream.weights[:] = self.scale
        if self.row_weights is not None:
            A, C = self.row_weights
            stream.weights[:] *= A[stream.users] * C[stream.items]


def term_a(data):
    """S_t with its labels, for M_c."""
    return Observed("a", randomized(data))


def term_c(data):
    """S_c with its labels, for M_c."""
    return Observed("c", data.triplets("S_c"))


def term_d(data, gamma, teacher=None, everywhere=False, exposure_power=0.0):
    """As many pairs as S_c, from S_u (`everywhere`: from all of D), with the teacher's predictions; weight gamma.

    exposure_power: p of the weights A_u C_i by activity and popularity, see `exposure`; 0 weighs all pairs alike.
    """
    pairs = UnobservedPairs(data.n_users, data.n_items, None if everywhere else data.seen)
    weights = exposure.row_weights(data, exposure_power) if any(exposure.powers(exposure_power)) else None
    return Unobserved(pairs, len(data.triplets("S_c").users), gamma, teacher, weights)


def term_e1(data):
    """S_t with its labels, for M_t."""
    return Observed("e", randomized(data))


def term_e2(data, teacher):
    """S_t with the teacher's residuals r_t - t, a number in (-1, 1), for M_c."""
    S_t = randomized(data)
    return Observed("e", S_t, S_t.labels - teacher.predict(S_t.users, S_t.items))


def use_theory_weights(terms, data):
    """Weights that make the mean over an epoch's samples the theorems' objective: a, c, d over |D|, e over |S_t|.

    A sample of term d, drawn from |S_u| pairs, stands for |S_u| / |S_a| of them.
    """
    n_samples = sum(term.size for term in terms)
    n_pairs = data.n_users * data.n_items
    for term in terms:
        divisor = len(data.triplets("S_t").users) if term.name == "e" else n_pairs
        stands_for = term.pairs.size / term.size if term.name == "d" else 1.0
        term.scale *= n_samples * stands_for / divisor


class EpochStreams:
    """The shuffled concatenation of some terms, epoch after epoch, in two buffers that are allocated once."""

    def __init__(self, terms, seed, stage):
        self.terms = sorted(terms, key=lambda term: TERMS.index(term.name))
        self.names = [term.name for term in self.terms]
        self.seed, self.stage = seed, stage
        size = sum(term.size for term in self.terms)
        self.source, self.shuffled = streams.empty(size), streams.empty(size)
        self.parts, start = [], 0
        for number, term in enumerate(self.terms):
            part = streams.part(self.source, start, start + term.size)
            part.terms[:] = number
            self.parts.append(part)
            start += term.size
        self.weight_sums = np.zeros(len(self.terms))

    def draw(self, epoch):
        """The samples of one epoch in random order: resampled terms anew, the others as they are."""
        first = not self.weight_sums.any()
        for number, (term, part) in enumerate(zip(self.terms, self.parts, strict=True)):
            if first or term.name == "d":
                term.fill(part, self.seed, self.stage, epoch)
                self.weight_sums[number] = part.weights.sum(dtype=np.float64)
        streams.shuffle(key(self.seed, self.stage, "shuffle", epoch), self.source, self.shuffled)
        return self.shuffled

    def mean_losses(self, totals):
        """{term: mean loss by weight} from the sums of an epoch."""
        weighed = self.weight_sums > 0  # not so term d with gamma = 0
        means = np.divide(totals, self.weight_sums, out=np.zeros(len(totals)), where=weighed)
        return dict(zip(self.names, means, strict=True))
