"""The two theorems of the paper as numbers: every sum over its own pairs, S_u included, exactly.

With |D| = users x items, s_c and s_t the raw scores of M_c and M_t, p_t the prediction of M_t, y^t and y^c the labels:

| sum | pairs | Theorem 4.2 (triangle)     | Theorem 4.5 (separability)  | divided by |
|-----|-------|----------------------------|-----------------------------|------------|
| a   | S_t   | l(y^t, s_c)                | l(y^t, s_c)                 | D          |
| b   | S_c   | l(y^t, y^c)                | l(y^t - y^c, s_c)           | D          |
| c   | S_c   | l(y^c, s_c)                | l(y^c, s_c)                 | D          |
| d   | S_u   | l(p_t, s_c)                | l(p_t, s_c)                 | D          |
| e   | S_t   | l(y^t, s_t)                | l(y^t - p_t, s_c)           | S_t        |

If the propensities p of S_t vary, e is the mean of w l over its draws, with w = 1 / (p x items that the user could be
shown). w is neither clipped nor normalised, so that the expectation of e is that of uniform traffic.

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
from dubnb.data.pattern import PARTS, Pattern, Triplets
from dubnb.losses import LOSSES, Loss
from dubnb.objective.terms import randomized

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

BLOCK_PAIRS = 1 << 22  # pairs per block of users: about 100 MB with labels, masks and both models' scores
DELTAS = {"mae": 1.0, "zero_one": 1.0}  # the largest value of a loss; other losses are unbounded
DISTANCES = {  # triangle losses between two labels
    losses.MAE: lambda y, other: np.abs(y - other),
    losses.ZERO_ONE: lambda y, other: ((y > 0.5) != (other > 0.5)).astype(np.float64),
}
SMALLEST_P = 1e-7  # predictions without a link are clipped to [SMALLEST_P, 1 - SMALLEST_P] before a link needs them
_REST, _S_C, _S_T, _HELD = range(4)
_KINDS = {"S_c": _S_C, "S_t": _S_T, "S_va": _HELD, "S_te": _HELD}


@dataclass(frozen=True)
class Predictions:
    """A model's scores in the form that the evaluated loss takes, also if the model was trained with another loss.

    A loss with a link (sigmoid) takes raw scores: a model without a link gives the logit of its score, clipped to
    (0, 1). A loss without a link takes predictions: a model with a link gives sigmoid(score).
    """

    scorer: Scorer
    has_link: bool  # whether the loss of training has a link
    wants_link: bool  # whether the evaluated loss has a link

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
    """All sums of the theorems; values that need the truth are nan on real data.

    `unknown` holds the observed parts of b, the bias and the ideal loss, for estimates without the truth.
    `Unknown.sample` is measured on the pairs of S_va and S_te outside the logged S_c, on which no model was trained;
    `sample_users` are their users. `rest_sizes` counts each user's pairs in no log.
    """

    a: float
    b: float
    c: float
    d: float
    e: float
    S_u_error: float  # the fourth term of the propositions
    expected_e: float  # expectation of e if S_t's items were drawn again, uniformly, for the same users
    S_c_ideal: float
    S_u_ideal: float
    unknown: dict[str, Unknown]
    sample_users: np.ndarray
    rest_sizes: np.ndarray
    S_t_error: np.ndarray  # the summand of e, by pair of S_t

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
        S_t, never_trained_on = randomized(data), [data.triplets(part) for part in ("S_va", "S_te")]
        held = Triplets(*(np.concatenate([each[k] for each in never_trained_on]) for k in range(4)))
        n_pairs, in_e, S_c = data.n_users * data.n_items, _weights_in_e(data), _on_S_c(M_c, M_t, data, own)
        on_S_t, on_held = _observed(M_c, M_t, own, S_t), _observed(M_c, M_t, own, held)
        sums = _on_S_u(M_c, M_t, data, own, in_e, quiet)
    overlap = Pattern.of(data.overlap.users, data.overlap.items, data.n_users)
    outside = overlap.find(held.users, held.items) < 0
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
        e=float(on_S_t.error.mean() if data.importance("S_t") is None else draws_of(data).shares @ on_S_t.error),
        S_t_error=on_S_t.error,
        S_u_error=sums.error,
        expected_e=sums.expected_e,
        S_c_ideal=_with_truth(data, S_c.ideal_if) / n_pairs,
        S_u_ideal=sums.S_u_ideal,
        unknown=unknown,
        sample_users=held_users,
        rest_sizes=rest,
    )


def slack(delta: float, n_t: int, n_pairs: int, eta: float, log_hypotheses: float = 0.0) -> float:
    """Delta / |S_t| sqrt(|D| / 2 log(2 |H| / eta)), as in both theorems. Takes log |H| because |H| can overflow."""
    return delta / n_t * math.sqrt(n_pairs / 2 * (math.log(2 / eta) + log_hypotheses))


def sampling_slack(delta: float, n_t: int, eta: float, log_hypotheses: float = 0.0) -> float:
    """Delta sqrt(log(2 |H| / eta) / (2 |S_t|)): what holds for |S_t| draws without replacement (Hoeffding, 1963, § 6).

    It is sqrt(|D| / |S_t|) times smaller than `slack`. The paper's proof assumes instead that each pair of D is in
    S_t independently of the others.
    """
    return delta * math.sqrt((math.log(2 / eta) + log_hypotheses) / (2 * n_t))


def design_slack(delta: float, c: np.ndarray, eta: float, log_hypotheses: float = 0.0) -> float:
    """Delta sqrt(1/2 sum c_j^2 log(2 |H| / eta)), for sum_j c_j l_j with fixed c_j and independent l_j (Hoeffding)."""
    return delta * math.sqrt(float(np.square(c).sum()) / 2 * (math.log(2 / eta) + log_hypotheses))


def propensity_slack(delta: float, largest: float, n_t: int, eta: float, log_hypotheses: float = 0.0) -> float:
    """Delta W sqrt(log(2 |H| / eta) / (2 n)), for 1/n sum w_j l_j over independent draws.

    w = 1 / (p |D|) are the unclipped, unnormalised weights, in [0, W]; losses lie in [0, Delta].
    """
    return largest * sampling_slack(delta, n_t, eta, log_hypotheses)


def bernstein_slack(
    values: np.ndarray, largest: float, eta: float, log_hypotheses: float = 0.0, counts: np.ndarray | None = None
) -> float:
    """sqrt(2 V L / n) + 7 b L / (3 (n - 1)), L = log(4 |H| / eta): the empirical Bernstein bound, two-sided.

    values: w_j l_j, independent, in [0, b], b = Delta W; V is their sample variance (Maurer and Pontil, 2009). `counts`
    says how often each value was drawn.
    """
    counts = np.ones(len(values)) if counts is None else counts
    n, L = float(counts.sum()), math.log(4 / eta) + log_hypotheses
    variance = float(counts @ (values - float(counts @ values) / n) ** 2) / (n - 1)
    return math.sqrt(2 * variance * L / n) + 7 * largest * L / (3 * (n - 1))


def freedman_slack(delta: float, largest: float, n_t: int, eta: float, log_hypotheses: float = 0.0) -> float:
    """b + sqrt(b^2 + 2 Delta^2 W L / n), b = Delta W L / (3 n), L = log(2 |H| / eta): for a log that adapts.

    The policy may choose each propensity by all earlier rows. Then w_j l_j minus the mean loss are differences of a
    martingale, at most Delta W, with a conditional variance of at most Delta^2 W, because E[w] = 1 and w <= W. Solves
    Freedman's (1975) P(|sum| >= n t) <= 2 exp(-n t^2 / (2 Delta^2 W + 2 Delta W t / 3)) for t.
    """
    L = math.log(2 / eta) + log_hypotheses
    b = delta * largest * L / (3 * n_t)
    return b + math.sqrt(b * b + 2 * delta**2 * largest * L / n_t)


class Draws(NamedTuple):
    """S_t as draws of a policy with known propensities, for e = sum counts w l / sum counts."""

    counts: np.ndarray  # how often each pair was drawn
    weights: np.ndarray  # w = 1 / (p x items that the user could be shown): mean 1 over draws, not clipped

    @property
    def n(self) -> float:
        """The number of draws."""
        return float(self.counts.sum())

    @property
    def shares(self) -> np.ndarray:
        """c_j of e = sum c_j l_j."""
        return np.asarray(self.counts * self.weights / self.n)


def draws_of(data: Partition) -> Draws:
    """S_t as draws; all alike if the traffic is uniform."""
    S_t = data.triplets("S_t")
    if data.importance("S_t") is None:
        return Draws(np.ones(len(S_t.users)), np.ones(len(S_t.users)))
    p = np.asarray(S_t.propensities, np.float64)
    return Draws(S_t.weights.astype(np.float64), 1 / (p * _open_to(data)[S_t.users]))


def error(loss: Loss, s_c: np.ndarray, s_t: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The summand of e: l(y, s_t) by the triangle inequality, l(y - p_t, s_c) by separability."""
    if loss.triangle:
        return loss_values(loss, s_t, y)
    return loss_values(loss, s_c, y - losses.predict(s_t.copy(), loss.link))


def label_difference(loss: Loss, s_c: np.ndarray, y_t: np.ndarray, y_c: np.ndarray) -> np.ndarray:
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
        out[j] = losses.loss_value(code, scores[j], targets[j])


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
        difference_if=np.stack([label_difference(loss, s_c, y, y_c) for y in both]),
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


def _weights_in_e(data: Partition) -> np.ndarray:
    """For each user, the weight of each of her pairs in the expectation of e.

    The uniform policy draws items for a given user, so each user's number of pairs is fixed. The expectation is the
    mean error over all items that could have been drawn for a user, averaged over users by their share of S_t. These
    are the items outside S_c, or all items if the log shows that S_t may repeat pairs of S_c.
    """
    S_t, draws = data.triplets("S_t"), draws_of(data).counts
    counts = np.bincount(S_t.users, draws, data.n_users)
    return np.asarray(counts / counts.sum() / _open_to(data))


def _open_to(data: Partition) -> np.ndarray:
    """The number of items that each user could be shown."""
    had = np.zeros(data.n_users, np.int64) if data.removed else data.pattern("S_c").sizes()
    return np.maximum(data.n_items - had, 1)


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
    bias: tuple[float, float]  # part of the pairs in no log: the least and the most, over all possible labels
    ideal: tuple[float, float]


def _on_S_u(M_c: Scorer, M_t: Scorer, data: Partition, loss: Loss, in_e: np.ndarray, quiet: bool) -> _Sums:
    """d, the errors and the ideal loss on S_u, the expectation of e, and the ranges over all possible labels."""
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
    return losses.loss_value(code, t, y) if triangle else losses.loss_value(code, s, y - p_t)


@njit
def _add_rows(code, link, triangle, everywhere, share, s_c, s_t, labels, kinds, in_e, sums):
    """Add the pairs of a block of users to the eight `sums`; `share` is 1 / |D|.

    0 to 2: d, error and ideal loss on S_u. 3: the expectation of e. 4 to 7, for the pairs in no log: the least and the
    most that they can add to the bias, then to the ideal loss.
    """
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
            sums[0] += share * losses.loss_value(code, s, p_t)
            sums[1] += share * error
            sums[2] += share * losses.loss_value(code, s, y)
            if kind == _REST:
                ideal_0, ideal_1 = losses.loss_value(code, s, 0.0), losses.loss_value(code, s, 1.0)
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
