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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import losses
from dubnb._jit import njit, one_blas_thread
from dubnb.backbones.protocol import Scorer
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
_S_U, _S_C, _S_T = range(3)


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


class Measured(NamedTuple):
    """Everything that the theorems add up. What only the truth tells is nan on real data.

    `S_u_error_low`, `S_u_error_high`: over all labels that S_u could have; `b_low`, `b_high`: over all that S_c could
    have under the uniform policy. `b_by_class[k, y]`: b's part on S_c's pairs of class k if y^t were y. `held_out`: the
    errors of the pairs of S_va and S_te, one by one.
    """

    a: float
    b: float
    c: float
    d: float
    e: float
    S_u_error: float  # the fourth term of the propositions
    S_u_error_low: float
    S_u_error_high: float
    expected_e: float  # of S_t's items drawn anew, uniformly, for the same users
    b_low: float
    b_high: float
    b_by_class: np.ndarray
    S_c_ideal: float
    S_u_ideal: float
    held_out: np.ndarray
    held_out_ideal: np.ndarray

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
    with one_blas_thread():  # the same numbers on any number of cores
        observed = _on_S_c(M_c, data, LOSSES[loss]) | _on_S_t(M_c, M_t, data, LOSSES[loss])
        return Measured(**observed, **_on_S_u(M_c, M_t, data, LOSSES[loss], quiet))


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


def _on_S_c(M_c: Scorer, data: Partition, loss: Loss) -> dict[str, Any]:
    """c, b with its range, and the ideal loss, on S_c."""
    users, items, labels, *_ = data.triplets("S_c")
    n_pairs = data.n_users * data.n_items
    y_c, s_c = labels.astype(np.float64), M_c.score_pairs(users, items)
    if_y = np.stack([difference(loss, s_c, np.full(len(y_c), y), y_c) for y in (0.0, 1.0)])
    sums = {
        "c": loss_values(loss, s_c, y_c).sum() / n_pairs,
        "b_low": if_y.min(axis=0).sum() / n_pairs,
        "b_high": if_y.max(axis=0).sum() / n_pairs,
        "b_by_class": np.array([if_y[:, y_c == k].sum(axis=1) for k in (0.0, 1.0)]) / n_pairs,
        "b": math.nan,
        "S_c_ideal": math.nan,
    }
    if data.truth is not None:
        y_t = np.asarray(data.truth.label(users, items), dtype=np.float64)
        sums["b"] = difference(loss, s_c, y_t, y_c).sum() / n_pairs
        sums["S_c_ideal"] = loss_values(loss, s_c, y_t).sum() / n_pairs
    return sums


def _on_S_t(M_c: Scorer, M_t: Scorer, data: Partition, loss: Loss) -> dict[str, Any]:
    """a and e on S_t, and the errors and ideal losses on the randomized pairs that trained nothing."""
    S_t = randomized(data)
    held = [data.triplets(part) for part in ("S_va", "S_te")]
    held_users, held_items, held_labels = (np.concatenate([each[k] for each in held]) for k in range(3))
    y, held_y = S_t.labels.astype(np.float64), held_labels.astype(np.float64)
    s_c, s_t = (M.score_pairs(S_t.users, S_t.items) for M in (M_c, M_t))
    held_s_c, held_s_t = (M.score_pairs(held_users, held_items) for M in (M_c, M_t))
    return {
        "a": loss_values(loss, s_c, y).sum() / (data.n_users * data.n_items),
        "e": float(error(loss, s_c, s_t, y).mean()),
        "held_out": error(loss, held_s_c, held_s_t, held_y),
        "held_out_ideal": loss_values(loss, held_s_c, held_y),
    }


class _Block(NamedTuple):
    """Some users' rows."""

    s_c: np.ndarray
    s_t: np.ndarray
    labels: np.ndarray  # y^t, 0 or 1; nan where unknown
    kinds: np.ndarray  # in S_u, S_c or S_t
    shares: np.ndarray  # of S_t's pairs that are the user's


def _on_S_u(M_c: Scorer, M_t: Scorer, data: Partition, loss: Loss, quiet: bool) -> dict[str, Any]:
    """d, the errors and the ideal loss on S_u, and the expectation of e.

    The uniform policy draws items for a given user, so the expectation holds the number of pairs of each user fixed:
    it is the mean over users, by their share of S_t, of the error over all items that could have been drawn: those
    outside S_c, or all where the log shows that S_t may repeat pairs of S_c.
    """
    sums, everywhere = np.zeros(6), data.removed > 0
    for block in _progress(_blocks(M_c, M_t, data), data, quiet):
        _add_rows(loss.code, loss.link, loss.triangle, everywhere, *block, sums)
    d, low, high, S_u_error, S_u_ideal = (sums[:5] / (data.n_users * data.n_items)).tolist()
    known = data.truth is not None
    return {
        "d": d,
        "S_u_error_low": low,
        "S_u_error_high": high,
        "S_u_error": S_u_error if known else math.nan,
        "S_u_ideal": S_u_ideal if known else math.nan,
        "expected_e": float(sums[5]) if known else math.nan,
    }


def _blocks(M_c: Scorer, M_t: Scorer, data: Partition) -> Iterator[_Block]:
    """All users, in blocks of about BLOCK_PAIRS pairs."""
    in_S_c, in_S_t = data.pattern("S_c"), data.pattern("S_t")
    counts = in_S_t.sizes()
    size = max(1, BLOCK_PAIRS // data.n_items)
    for start in range(0, data.n_users, size):
        users = np.arange(start, min(start + size, data.n_users))
        kinds = np.zeros((len(users), data.n_items), np.int8)
        kinds[in_S_c.mask(users, data.n_items)] = _S_C
        kinds[in_S_t.mask(users, data.n_items)] = _S_T
        labels = np.full((1, 1), np.nan, np.float32) if data.truth is None else data.truth.label_rows(users)
        labels = np.broadcast_to(np.asarray(labels, np.float32), kinds.shape)
        yield _Block(M_c.score_rows(users), M_t.score_rows(users), labels, kinds, counts[users] / counts.sum())


@njit
def _error(code, triangle, s, t, p_t, y):
    return losses.value(code, t, y) if triangle else losses.value(code, s, y - p_t)


@njit
def _add_rows(code, link, triangle, everywhere, s_c, s_t, labels, kinds, shares, sums):
    """Add some users' pairs to (d, lowest error, highest error, error, ideal loss: all on S_u; expectation of e)."""
    for r in range(s_c.shape[0]):
        total, n = 0.0, 0
        for j in range(s_c.shape[1]):
            kind = kinds[r, j]
            if kind == _S_C and (shares[r] == 0 or not everywhere):
                continue
            s, t, y = np.float64(s_c[r, j]), np.float64(s_t[r, j]), np.float64(labels[r, j])
            p_t = losses.sigmoid(t) if link else t
            if_0, if_1 = _error(code, triangle, s, t, p_t, 0.0), _error(code, triangle, s, t, p_t, 1.0)
            error = if_1 if y > 0 else if_0
            total += error
            n += 1
            if kind == _S_U:
                sums[0] += losses.value(code, s, p_t)
                sums[1] += min(if_0, if_1)
                sums[2] += max(if_0, if_1)
                sums[3] += error
                sums[4] += losses.value(code, s, y)
        if n > 0:  # not so where S_c holds all of a user's pairs
            sums[5] += shares[r] * total / n


def _progress(blocks: Iterator[_Block], data: Partition, quiet: bool) -> Iterator[_Block]:
    """The blocks, with a bar after two seconds."""
    from tqdm import tqdm

    with tqdm(total=data.n_users, desc="sums over S_u", unit=" users", unit_scale=True, delay=2, disable=quiet) as bar:
        for block in blocks:
            yield block
            bar.update(len(block.shares))
