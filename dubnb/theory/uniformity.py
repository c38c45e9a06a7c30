"""Could a uniform policy have made this randomized log? Monte-Carlo tests that keep what the policy does not choose.

A uniform policy draws items for users who came by themselves, so the null hypothesis keeps every user's number of pairs
and draws her items anew: uniformly, without replacement. Only the pairs outside her S_c, as it was logged, are tested,
against draws outside her S_c. Given how many of a user's pairs repeat S_c, the others are uniform outside it whether
the policy draws from all items or leaves S_c out, so the test is exact for both, for any number of pairs per user and
for any users; how many pairs repeat S_c is a question of its own. Every statistic of the log is compared with its
values on such draws: p = (1 + draws at least as extreme) / (1 + draws), which is exact whatever the counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb._jit import njit
from dubnb._random import key, uniform
from dubnb.data.partition import RANDOMIZED
from dubnb.data.pattern import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dubnb.backbones import Scorer
    from dubnb.data.partition import Partition

N_DRAWS = 999
N_CUTS = 40  # a catalogue is cut into so many pieces; a band is any run of them
BLOCK_PAIRS = 1 << 22
MANY = 200  # values on both sides, from which a mean is normal enough
FEWEST_EXPECTED = 5.0  # pairs that a band must expect, or its deviation means nothing
STATISTICS = ("items", "catalogue", "popularity", "taste")


class RandomizedLog(NamedTuple):
    """The randomized log, all its parts together, in the order of users."""

    users: np.ndarray
    items: np.ndarray
    labels: np.ndarray


def randomized_log(data: Partition) -> RandomizedLog:
    """S_t, S_va and S_te: one policy made them."""
    parts = [data.triplets(part) for part in RANDOMIZED]
    users, items, labels = (np.concatenate([part[k] for part in parts]) for k in range(3))
    order = np.argsort(users, kind="stable")
    return RandomizedLog(users[order].astype(np.int64), items[order].astype(np.int64), labels[order])


def logged(data: Partition) -> Pattern:
    """S_c as it was logged: with the pairs that were removed because a randomized set has them too, and with the rows
    that a split by time held back."""
    logs = [data.triplets("S_c"), data.overlap, *([] if data.held_back is None else [data.held_back])]
    users, items = (np.concatenate([each[k] for each in logs]) for k in (0, 1))
    pairs = np.unique(users.astype(np.int64) * data.n_items + items)  # held-back rows may repeat shared pairs
    users, items = np.divmod(pairs, data.n_items)
    return Pattern.of(users, items.astype(np.int32), data.n_users)


def tested_pairs(data: Partition, log: RandomizedLog) -> np.ndarray:
    """Which pairs of the randomized log lie outside S_c as it was logged."""
    return np.asarray(logged(data).find(log.users, log.items) < 0)


@dataclass(frozen=True)
class Design:
    """What is fixed under the null hypothesis, and the statistics that depend on it.

    `excluded`: each user's items that could not be drawn; `expected`: pairs of each item; `taste`: a scorer with the
    mean and the deviation of its scores over each user's items, or None.
    """

    users: np.ndarray  # of the log's pairs, sorted
    n_items: int
    excluded: Pattern
    expected: np.ndarray
    by_popularity: np.ndarray  # items from the rarest in S_c to the most frequent
    taste: Taste | None

    def draw(self, seed: int, *names: object, weights: np.ndarray | None = None) -> np.ndarray:
        """Items of a log under the null hypothesis; with `weights`, by item, under an alternative to it."""
        items = np.empty(len(self.users), np.int64)
        below = np.ones(self.n_items) if weights is None else weights / weights.max()
        _draw_items(key(seed, "audit", *names), self.users, *self.excluded, below, np.full(len(below), -1), items)
        return items

    def statistics(self, items: np.ndarray) -> np.ndarray:
        """How far a log is from uniform, in each of STATISTICS: large is far."""
        counts = np.bincount(items, minlength=self.n_items).astype(np.float64)
        possible = self.expected > 0
        chi2 = ((counts - self.expected)[possible] ** 2 / self.expected[possible]).sum()
        catalogue, popularity = (self.band(counts, order).z for order in (None, self.by_popularity))
        taste = 0.0 if self.taste is None else self.taste.z(self.users, items)
        return np.array([chi2, abs(catalogue), abs(popularity), abs(taste)])

    def band(self, counts: np.ndarray, order: np.ndarray | None = None) -> Band:
        """The run of items, in some order, that deviates most from what is expected of it."""
        observed = counts if order is None else counts[order]
        expected = self.expected if order is None else self.expected[order]
        cuts = np.unique(np.linspace(0, self.n_items, min(N_CUTS, self.n_items) + 1).astype(np.int64))
        O, E = (np.concatenate([[0.0], np.cumsum(x)])[cuts] for x in (observed, expected))
        O, E = O[None, :] - O[:, None], E[None, :] - E[:, None]
        n = expected.sum()
        fine = (E >= FEWEST_EXPECTED) & (n - E >= FEWEST_EXPECTED)
        z = np.zeros(E.shape)
        z[fine] = (O - E)[fine] / np.sqrt((E * (1 - E / n))[fine])
        first, last = np.unravel_index(np.abs(z).argmax(), z.shape)
        ratio = float(O[first, last] / E[first, last]) if fine[first, last] else 1.0
        return Band(float(z[first, last]), int(cuts[first]), int(cuts[last]), ratio)


class Band(NamedTuple):
    """Items first..last-1 of an order, how often they were shown over what was expected, and how unlikely."""

    z: float
    first: int
    last: int
    ratio: float


@dataclass(frozen=True)
class Taste:
    """A model's scores, standardised over the items that each user could have got."""

    scorer: Scorer
    means: np.ndarray  # by user
    deviations: np.ndarray

    def values(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Deviations from the user's mean score, in her standard deviations."""
        scores = np.asarray(self.scorer.score_pairs(users, items), np.float64)
        deviations, values = self.deviations[users], scores - self.means[users]
        return np.divide(values, deviations, out=np.zeros(len(values)), where=deviations > 0)

    def z(self, users: np.ndarray, items: np.ndarray) -> float:
        """Their sum over the root of their number: about standard normal under a uniform policy."""
        return float(self.values(users, items).sum() / np.sqrt(len(users)))


def design_of(data: Partition, log: RandomizedLog, scorer: Scorer | None = None) -> Design:
    """The null hypothesis for a log without pairs of S_c; `scorer` is what taste is predicted with."""
    excluded = logged(data)
    counts = np.bincount(log.users, minlength=data.n_users)
    open_to = np.maximum(data.n_items - excluded.sizes(), 1)
    rate = counts / open_to  # P(item is drawn) for each of the user's items, when she could have got it
    expected = np.full(data.n_items, rate.sum())
    expected -= np.bincount(excluded.items, weights=rate[excluded.users()], minlength=data.n_items)
    popularity = np.bincount(excluded.items, minlength=data.n_items)
    by_popularity = np.argsort(popularity, kind="stable")
    taste = None if scorer is None else Taste(scorer, *_moments(scorer, data, np.flatnonzero(counts), excluded))
    return Design(log.users, data.n_items, excluded, np.maximum(expected, 0.0), by_popularity, taste)


def expected_overlap(data: Partition, log: RandomizedLog) -> float:
    """Pairs of S_c, as it was logged, that a uniform policy over all items would have repeated."""
    counts = np.bincount(log.users, minlength=data.n_users)
    return float((counts * logged(data).sizes()).sum() / data.n_items)


def _moments(scorer: Scorer, data: Partition, users: np.ndarray, excluded: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each user's scores over the items that she could have got."""
    means, deviations = np.zeros(data.n_users), np.zeros(data.n_users)
    size = max(1, BLOCK_PAIRS // data.n_items)
    for start in range(0, len(users), size):
        block = users[start : start + size]
        scores = np.ma.array(np.asarray(scorer.score_rows(block), np.float64), mask=excluded.mask(block, data.n_items))
        means[block], deviations[block] = scores.mean(axis=1).filled(0.0), scores.std(axis=1).filled(0.0)
    return means, deviations


@njit
def _draw_items(stream, users, indptr, excluded, below, closed, items):
    """For every user as many distinct items, none of hers excluded, as she has pairs; item i by weight below[i].

    `closed`: scratch space for the last user to whom an item is closed, -1 at first.

    By rejection: most items are open, since logs are sparse; a user with fewer open items than pairs gets repetitions.
    """
    n_items = len(below)
    counter, user, n_open = 0, -1, 0
    for j in range(len(users)):
        if users[j] != user:
            user = users[j]
            for place in range(indptr[user], indptr[user + 1]):
                closed[excluded[place]] = user
            n_open = n_items - (indptr[user + 1] - indptr[user])
        while True:
            item = np.int64(uniform(stream, counter) * n_items)
            wanted = uniform(stream, counter + 1) < below[item]
            counter += 2
            if wanted and (closed[item] != user or n_open <= 0):
                break
        closed[item] = user
        n_open -= 1
        items[j] = item


def null_draws(design: Design, n: int, seed: int, quiet: bool = True) -> np.ndarray:
    """(n, statistics): the statistics of n logs that a uniform policy made."""
    from tqdm import tqdm

    draws = tqdm(range(n), desc="uniform logs", leave=False, delay=2, disable=quiet)
    return np.array([design.statistics(design.draw(seed, "null", draw)) for draw in draws])


def p_values(observed: np.ndarray, null: np.ndarray) -> np.ndarray:
    """Monte-Carlo p-values, one per statistic."""
    return np.asarray((1 + (null >= observed - 1e-9).sum(axis=0)) / (1 + len(null)))


# ---- users and times -----------------------------------------------------------------------------------------------


def p_even(counts: np.ndarray, rng: np.random.Generator, n: int = N_DRAWS) -> float:
    """Monte-Carlo p-value of even counts: Pearson's chi-squared against multinomial draws; large counts alone tell."""
    total, even = int(counts.sum()), np.full(len(counts), 1 / len(counts))
    chi2 = ((counts - total / len(counts)) ** 2).sum()
    draws = (((rng.multinomial(total, even) - total / len(counts)) ** 2).sum() for _ in range(n))
    return float((1 + sum(draw >= chi2 - 1e-9 for draw in draws)) / (1 + n))


def p_mean(values: np.ndarray, chosen: np.ndarray, rng: np.random.Generator, n: int = N_DRAWS) -> float:
    """Two-sided p-value: is the mean of the chosen values that of all? By permutation where either side is small, else
    by the normal law of a mean of draws without replacement."""
    size, mean = int(chosen.sum()), values.mean()
    off = abs(values[chosen].mean() - mean)
    if min(size, len(values) - size) >= MANY:
        from scipy.special import ndtr

        error = values.std(ddof=1) * np.sqrt(1 / size - 1 / len(values))
        return float(2 * ndtr(-off / error)) if error > 0 else 1.0
    draws = (abs(rng.choice(values, size, replace=False, shuffle=False).mean() - mean) for _ in range(n))
    return float((1 + sum(draw >= off - 1e-12 for draw in draws)) / (1 + n))


def p_table(rows: np.ndarray, columns: np.ndarray, draws: Iterable[np.ndarray]) -> float:
    """Monte-Carlo p-value of independence: chi-squared of the table of two classifications.

    `draws`: other columns for the same rows, under the null hypothesis.
    """
    null = [_table_chi2(rows, drawn) for drawn in draws]
    return (1 + sum(chi2 >= _table_chi2(rows, columns) - 1e-9 for chi2 in null)) / (1 + len(null))


def _table_chi2(rows: np.ndarray, columns: np.ndarray) -> float:
    shape = (int(rows.max()) + 1, int(columns.max()) + 1)
    table = np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / len(rows)
    return float(((table - expected) ** 2 / np.maximum(expected, 1e-12)).sum())
