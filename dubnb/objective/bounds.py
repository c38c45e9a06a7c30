"""The two theorems of the paper as numbers: every sum over its own pairs, S_u included, exactly.

With |D| = users x items, s_c and s_t the raw scores of M_c and M_t, p_t the prediction of M_t, y^t and y^c the labels:

| sum | pairs | Theorem 4.2 (triangle)     | Theorem 4.5 (separability)  | divided by |
|-----|-------|----------------------------|-----------------------------|------------|
| a   | S_t   | l(y^t, s_c)                | l(y^t, s_c)                 | D          |
| b   | S_c   | l(y^t, y^c)                | l(y^t - y^c, s_c)           | D          |
| c   | S_c   | l(y^c, s_c)                | l(y^c, s_c)                 | D          |
| d   | S_u   | l(p_t, s_c)                | l(p_t, s_c)                 | D          |
| e   | S_t   | l(y^t, s_t)                | l(y^t - p_t, s_c)           | S_t        |

"error" below is the summand of e, wherever it is summed. The ideal loss is l(y^t, s_c) over all of D. Sums over S_u go
through blocks of users, in float64, so that memory is O(block x items) and nothing is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb import losses
from dubnb._jit import njit, one_blas_thread
from dubnb.backbones.protocol import Scorer
from dubnb.data.pattern import Pattern
from dubnb.data.triplets import PARTS, Triplets
from dubnb.losses import LOSSES, Loss
from dubnb.objective.teachers import randomized

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

BLOCK_PAIRS = 1 << 22  # of a block of users: some 100 MB with labels, masks and both models' scores
DELTAS = {"mae": 1.0, "zero_one": 1.0}  # the largest value of a loss; the others have none
DISTANCES = {  # triangle losses between two labels
    losses.MAE: lambda y, other: np.abs(y - other),
    losses.ZERO_ONE: lambda y, other: ((y > 0.5) != (other > 0.5)).astype(np.float64),
}
SMALLEST_P = 1e-7  # predictions without a link are clipped to so much inside (0, 1) before they get one
_REST, _S_C, _S_T, _HELD = range(4)
_KINDS = {"S_c": _S_C, "S_t": _S_T, "S_va": _HELD, "S_te": _HELD}


@dataclass(frozen=True)
class Predictions:
    """A model's raw scores in the form in which a loss reads them, whatever loss it was trained with.

    A model without a link (squared) predicts its score, clipped to (0, 1) for a loss that has one; a model with a link
    shows its prediction to a loss that has none.
    """

    scorer: Scorer
    has_link: bool  # of the loss that the model was trained with
    wants_link: bool  # of the loss that is evaluated

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Scores of pairs, float64."""
        return self._form(np.asarray(self.scorer.score_pairs(users, items), dtype=np.float64))

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Scores of all items for some users, float64."""
        return self._form(np.asarray(self.scorer.score_rows(users), dtype=np.float64))

    def _form(self, scores: np.ndarray) -> np.ndarray:
        if self.has_link == self.wants_link:
            return scores
        if self.has_link:
            return np.asarray(losses.predict(scores.ravel(), True)).reshape(scores.shape)
        p = np.clip(scores, SMALLEST_P, 1 - SMALLEST_P)
        return np.asarray(np.log(p / (1 - p)))


class Unknown(NamedTuple):
    """A sum over D of which some labels y^t are unknown: those of S_c and of the pairs in no log.

    It is `known` + the sum over the pairs in no log + the sum over S_c. Every summand is linear in its 0/1 label.
    """

    known: float  # the part whose labels are known: S_t, S_va, S_te
    rest_low: float  # the pairs in no log, if all their labels were the worst for the sum
    rest_high: float
    rest_weights: np.ndarray  # by user: her pairs in no log, times the weight of each in the sum
    sample: np.ndarray  # the summand, without its weight, on the pairs of `Measured.sample_users`
    S_c_if: np.ndarray | None  # (2, |S_c|): the weighted summand on S_c if y^t were 0, and if it were 1

    @property
    def low(self) -> float:
        """The least that any labels allow."""
        return self.known + self.rest_low + (0.0 if self.S_c_if is None else float(self.S_c_if.min(axis=0).sum()))

    @property
    def high(self) -> float:
        """The most that any labels allow."""
        return self.known + self.rest_high + (0.0 if self.S_c_if is None else float(self.S_c_if.max(axis=0).sum()))


class Measured(NamedTuple):
    """Everything that the theorems add up. What only the truth tells is nan on real data.

    `unknown` holds what is observed of b, the bias and the ideal loss without the truth. `sample_users` are the users
    of the pairs of S_va and S_te outside the logged S_c, on which `Unknown.sample` is measured: no model trained on
    them. `rest_sizes` counts each user's pairs in no log.
    """

    a: float
    b: float
    c: float
    d: float
    e: float
    S_u_error: float  # the fourth term of the propositions
    expected_e: float  # of S_t's items drawn anew, uniformly, for the same users
    S_c_ideal: float
    S_u_ideal: float
    unknown: dict[str, Unknown]
    sample_users: np.ndarray
    rest_sizes: np.ndarray

    @property
    def ideal(self) -> float:
        """The ideal loss over all of D: its part on S_t is term a."""
        return self.a + self.S_c_ideal + self.S_u_ideal

    @property
    def bias(self) -> float:
        """L^{S_u} of the errors, minus the expectation of e."""
        return self.S_u_error - self.expected_e

    @property
    def proposition(self) -> float:
        """The right-hand side of Proposition 4.1 or 4.4."""
        return self.a + self.b + self.c + self.S_u_error + self.d


def measure(M_c: Scorer, M_t: Scorer, data: Partition, loss: str, *, quiet: bool = True) -> Measured:
    """All sums of the theorem that a loss belongs to. The scorers' scores have the loss's own form (`Predictions`)."""
    own = LOSSES[loss]
    with one_blas_thread():  # the same numbers on any number of cores
        S_t, held = randomized(data), _held_out(data)
        n_pairs, in_e, S_c = data.n_users * data.n_items, _weights_in_e(data), _on_S_c(M_c, M_t, data, own)
        on_S_t, on_held = _observed(M_c, M_t, own, S_t), _observed(M_c, M_t, own, held)
        sums = _on_S_u(M_c, M_t, data, own, in_e, quiet)
    outside = ~_in_overlap(data, held)
    held_users = held.users[outside]
    rest = data.n_items - np.sum([data.pattern(part).sizes() for part in PARTS], axis=0)
    in_bias = 1 / n_pairs - in_e  # the weight of an error on S_u: once in S_u's sum, once in the expectation of e
    S_c_in_e = in_e[data.triplets("S_c").users] if data.removed else None
    unknown = {
        "b": Unknown(0.0, 0.0, 0.0, np.zeros(data.n_users), np.zeros(len(held_users)), S_c.difference_if / n_pairs),
        "bias": Unknown(
            float(in_bias[held.users] @ on_held.error - in_e[S_t.users] @ on_S_t.error),
            *sums.bias,
            in_bias * rest,
            on_held.error[outside],
            None if S_c_in_e is None else -S_c_in_e * S_c.error_if,
        ),
        "ideal": Unknown(
            float((on_S_t.ideal.sum() + on_held.ideal.sum()) / n_pairs),
            *sums.ideal,
            rest / n_pairs,
            on_held.ideal[outside],
            S_c.ideal_if / n_pairs,
        ),
    }
    return Measured(
        a=on_S_t.ideal.sum() / n_pairs,
        b=_with_truth(data, S_c.difference_if) / n_pairs,
        c=S_c.c.sum() / n_pairs,
        d=sums.d,
        e=float(on_S_t.error.mean()),
        S_u_error=sums.error,
        expected_e=sums.expected_e,
        S_c_ideal=_with_truth(data, S_c.ideal_if) / n_pairs,
        S_u_ideal=sums.S_u_ideal,
        unknown=unknown,
        sample_users=held_users,
        rest_sizes=rest,
    )


def slack(delta: float, n_t: int, n_pairs: int, eta: float, log_hypotheses: float = 0.0) -> float:
    """Delta / |S_t| sqrt(|D| / 2 log(2 |H| / eta)), as both theorems print it; log |H|, for H may be huge."""
    return delta / n_t * math.sqrt(n_pairs / 2 * (math.log(2 / eta) + log_hypotheses))


def sampling_slack(delta: float, n_t: int, eta: float, log_hypotheses: float = 0.0) -> float:
    """Delta sqrt(log(2 |H| / eta) / (2 |S_t|)): what holds for |S_t| draws without replacement (Hoeffding, 1963, § 6).

    It is sqrt(|D| / |S_t|) times smaller than the printed one, whose proof lets every pair of D be in S_t or not,
    independently.
    """
    return delta * math.sqrt((math.log(2 / eta) + log_hypotheses) / (2 * n_t))


def error(loss: Loss, s_c: np.ndarray, s_t: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The summand of e: l(y, s_t) by the triangle inequality, l(y - p_t, s_c) by separability."""
    if loss.triangle:
        return loss_values(loss, s_t, y)
    return loss_values(loss, s_c, y - losses.predict(s_t.copy(), loss.link))


def difference(loss: Loss, s_c: np.ndarray, y_t: np.ndarray, y_c: np.ndarray) -> np.ndarray:
    """The summand of b: l(y^t, y^c) by the triangle inequality, l(y^t - y^c, s_c) by separability."""
    return DISTANCES[loss.code](y_t, y_c) if loss.triangle else loss_values(loss, s_c, y_t - y_c)


def loss_values(loss: Loss, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """l(s, y) one by one, float64."""
    out = np.empty(len(scores))
    _fill_values(loss.code, np.asarray(scores, np.float64), np.asarray(targets, np.float64), out)
    return out


@njit
def _fill_values(code, scores, targets, out):
    for j in range(len(scores)):
        out[j] = losses.value(code, scores[j], targets[j])


class _OnS_c(NamedTuple):
    """Summands on S_c's pairs; (2, pairs) where they depend on y^t, for y^t = 0 and 1."""

    c: np.ndarray
    difference_if: np.ndarray
    error_if: np.ndarray
    ideal_if: np.ndarray


def _on_S_c(M_c: Scorer, M_t: Scorer, data: Partition, loss: Loss) -> _OnS_c:
    users, items, labels, *_ = data.triplets("S_c")
    y_c, s_c, s_t = labels.astype(np.float64), M_c.score_pairs(users, items), M_t.score_pairs(users, items)
    both = [np.full(len(y_c), y) for y in (0.0, 1.0)]
    return _OnS_c(
        c=loss_values(loss, s_c, y_c),
        difference_if=np.stack([difference(loss, s_c, y, y_c) for y in both]),
        error_if=np.stack([error(loss, s_c, s_t, y) for y in both]),
        ideal_if=np.stack([loss_values(loss, s_c, y) for y in both]),
    )


def _with_truth(data: Partition, if_y: np.ndarray) -> float:
    """The sum over S_c with its true labels, nan where they are unknown."""
    if data.truth is None:
        return math.nan
    users, items, *_ = data.triplets("S_c")
    y_t = np.asarray(data.truth.label(users, items)) > 0
    return float(np.where(y_t, if_y[1], if_y[0]).sum())


class _Observed(NamedTuple):
    """Summands on randomized pairs, whose y^t is known."""

    error: np.ndarray
    ideal: np.ndarray


def _observed(M_c: Scorer, M_t: Scorer, loss: Loss, pairs: Triplets) -> _Observed:
    y = pairs.labels.astype(np.float64)
    s_c, s_t = (M.score_pairs(pairs.users, pairs.items) for M in (M_c, M_t))
    return _Observed(error(loss, s_c, s_t, y), loss_values(loss, s_c, y))


def _held_out(data: Partition) -> Triplets:
    """S_va and S_te: randomized pairs that trained nothing."""
    held = [data.triplets(part) for part in ("S_va", "S_te")]
    return Triplets(*(np.concatenate([each[k] for each in held]) for k in range(4)))


def _in_overlap(data: Partition, pairs: Triplets) -> np.ndarray:
    """Which pairs were in S_c as it was logged."""
    overlap = Pattern.of(data.overlap.users, data.overlap.items, data.n_users)
    return overlap.find(pairs.users, pairs.items) >= 0


def _weights_in_e(data: Partition) -> np.ndarray:
    """By user: the weight of each of her pairs in the expectation of e.

    The uniform policy draws items for a given user, so the expectation holds the number of pairs of each user fixed:
    it is the mean over users, by their share of S_t, of the error over all items that could have been drawn: those
    outside S_c, or all where the log shows that S_t may repeat pairs of S_c.
    """
    counts = data.pattern("S_t").sizes()
    open_to = data.n_items - (0 if data.removed else data.pattern("S_c").sizes())
    return np.asarray(counts / counts.sum() / np.maximum(open_to, 1))


class _Block(NamedTuple):
    """Some users' rows."""

    s_c: np.ndarray
    s_t: np.ndarray
    labels: np.ndarray  # y^t, 0 or 1; nan where unknown
    kinds: np.ndarray  # in S_c, S_t, S_va or S_te, or in no log
    in_e: np.ndarray  # weight of each of the user's pairs in the expectation of e


class _Sums(NamedTuple):
    """Sums over S_u; those that need the truth are nan without it."""

    d: float
    error: float
    S_u_ideal: float
    expected_e: float
    bias: tuple[float, float]  # the part of the pairs in no log: least and most that any labels allow
    ideal: tuple[float, float]


def _on_S_u(M_c: Scorer, M_t: Scorer, data: Partition, loss: Loss, in_e: np.ndarray, quiet: bool) -> _Sums:
    """d, the errors and the ideal loss on S_u, the expectation of e, and what any labels would allow."""
    sums, n_pairs = np.zeros(8), data.n_users * data.n_items
    for block in _progress(_blocks(M_c, M_t, data, in_e), data, quiet):
        _add_rows(loss.code, loss.link, loss.triangle, data.removed > 0, 1 / n_pairs, *block, sums)
    d, error, ideal, expected, *ranges = sums.tolist()
    if data.truth is None:
        error = ideal = expected = math.nan
    return _Sums(d, error, ideal, expected, (ranges[0], ranges[1]), (ranges[2], ranges[3]))


def _blocks(M_c: Scorer, M_t: Scorer, data: Partition, in_e: np.ndarray) -> Iterator[_Block]:
    """All users, in blocks of about BLOCK_PAIRS pairs."""
    patterns = [(data.pattern(part), kind) for part, kind in _KINDS.items()]
    size = max(1, BLOCK_PAIRS // data.n_items)
    for start in range(0, data.n_users, size):
        users = np.arange(start, min(start + size, data.n_users))
        kinds = np.zeros((len(users), data.n_items), np.int8)
        for pattern, kind in patterns:
            kinds[pattern.mask(users, data.n_items)] = kind
        labels = np.full((1, 1), np.nan, np.float32) if data.truth is None else data.truth.label_rows(users)
        labels = np.broadcast_to(np.asarray(labels, np.float32), kinds.shape)
        yield _Block(M_c.score_rows(users), M_t.score_rows(users), labels, kinds, in_e[users])


@njit
def _error(code, triangle, s, t, p_t, y):
    return losses.value(code, t, y) if triangle else losses.value(code, s, y - p_t)


@njit
def _add_rows(code, link, triangle, everywhere, share, s_c, s_t, labels, kinds, in_e, sums):
    """Add some users' pairs to (d, error, ideal loss: all on S_u; expectation of e; of the pairs in no log the least
    and the most of their part in the bias, and of their part in the ideal loss). `share`: 1 / |D|."""
    for r in range(s_c.shape[0]):
        in_bias = share - in_e[r]
        for j in range(s_c.shape[1]):
            kind = kinds[r, j]
            if kind == _S_C and (in_e[r] == 0 or not everywhere):
                continue
            s, t, y = np.float64(s_c[r, j]), np.float64(s_t[r, j]), np.float64(labels[r, j])
            p_t = losses.sigmoid(t) if link else t
            if_0, if_1 = _error(code, triangle, s, t, p_t, 0.0), _error(code, triangle, s, t, p_t, 1.0)
            error = if_1 if y > 0 else if_0
            sums[3] += in_e[r] * error
            if kind in (_S_C, _S_T):
                continue
            sums[0] += share * losses.value(code, s, p_t)
            sums[1] += share * error
            sums[2] += share * losses.value(code, s, y)
            if kind == _REST:
                ideal_0, ideal_1 = losses.value(code, s, 0.0), losses.value(code, s, 1.0)
                sums[4] += min(in_bias * if_0, in_bias * if_1)
                sums[5] += max(in_bias * if_0, in_bias * if_1)
                sums[6] += share * min(ideal_0, ideal_1)
                sums[7] += share * max(ideal_0, ideal_1)


def _progress(blocks: Iterator[_Block], data: Partition, quiet: bool) -> Iterator[_Block]:
    """The blocks, with a bar after two seconds."""
    from tqdm import tqdm

    with tqdm(total=data.n_users, desc="sums over S_u", unit=" users", unit_scale=True, delay=2, disable=quiet) as bar:
        for block in blocks:
            yield block
            bar.update(len(block.in_e))
