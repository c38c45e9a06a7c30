"""Monte-Carlo tests: could a uniform policy have made this randomized log?

A uniform policy draws items for users who came by themselves. The null hypothesis therefore keeps every user's number
of pairs and redraws her items uniformly, without replacement. Only pairs outside her S_c, as it was logged, are tested,
against draws outside her S_c. Take the number of a user's pairs that repeat S_c as given: the others are then uniform
outside S_c. This holds if the policy draws from all items, and if it excludes S_c. So the test is exact for both
designs, for any users and any number of pairs per user. How many pairs repeat S_c is a separate question.

With rules of eligibility (`data.eligibility`), pairs are redrawn in the order of time and without replacement. Each
comes from the items of its stratum that were eligible for the user at that time. The expected counts of items are then
the means of separate draws. Any reference would do: the log and the draws are compared with the same one.

Every statistic of the log is compared with its values on such draws: p = (1 + draws at least as extreme) / (1 + draws),
which is exact for any counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dubnb._jit import njit
from dubnb._random import key, uniform
from dubnb.data.eligibility import Eligibility, Exclusions, Windows
from dubnb.data.partition import RANDOMIZED
from dubnb.data.pattern import Pattern, importance_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dubnb.backbones import Scorer
    from dubnb.data.partition import Partition
    from dubnb.data.pattern import Triplets

N_DRAWS = 999
N_CUTS = 40  # pieces of a catalogue; a band is any run of them
BLOCK_PAIRS = 1 << 22
PAIRS_AT_ONCE = 1 << 22  # of the biased log
MANY = 200  # with this many values on both sides, the mean is close enough to normal
FEWEST_EXPECTED = 5.0  # a band with fewer expected pairs is not judged
EXPECTED_DRAWS = 100  # draws that give the expected counts under rules of eligibility
FEWEST_TRIES = 300  # rejected draws for one pair, before the items that it can have are listed
STATISTICS = ("items", "catalogue", "popularity", "taste")


class RandomizedLog(NamedTuple):
    """The randomized log with all its parts, sorted by user."""

    users: np.ndarray
    items: np.ndarray
    labels: np.ndarray


def randomized_log(data: Partition) -> RandomizedLog:
    """S_t, S_va and S_te together, because one policy made them."""
    parts = [data.triplets(part) for part in RANDOMIZED]
    users, items, labels = (np.concatenate([part[k] for part in parts]) for k in range(3))
    order = np.argsort(users, kind="stable")
    return RandomizedLog(users[order].astype(np.int64), items[order].astype(np.int64), labels[order])


def randomized_weights(data: Partition) -> np.ndarray | None:
    """Importance times the log's own weights, of the pairs of `randomized_log`; None without propensities."""
    random = data.random
    importance = importance_of(random.propensities)
    return None if importance is None else (importance * random.weights)[np.argsort(random.users, kind="stable")]


def randomized_times(data: Partition) -> np.ndarray:
    """The times of the pairs of `randomized_log`; 0 where the log has none."""
    random = data.random
    order = np.argsort(random.users, kind="stable")
    return np.zeros(len(order)) if random.times is None else random.times[order]


def logged(data: Partition) -> Pattern:
    """S_c as it was logged: including pairs that were removed because a randomized set has them too, and rows that a
    split by time held back."""
    if data.stored_in is not None:
        return data.logged  # no rows are held back there
    logs = [data.triplets("S_c"), data.overlap, *([] if data.held_back is None else [data.held_back])]
    users, items = (np.concatenate([each[k] for each in logs]) for k in (0, 1))
    pairs = np.unique(users.astype(np.int64) * data.n_items + items)  # held-back rows may repeat shared pairs
    users, items = np.divmod(pairs, data.n_items)
    return Pattern.of(users, items.astype(np.int32), data.n_users)


def pieces(pairs: Pattern) -> Iterator[tuple[int, Pattern]]:
    """(first user, the pairs of some consecutive users, who are counted from it), about PAIRS_AT_ONCE at a time."""
    indptr, items = pairs
    first, n_users = 0, len(indptr) - 1
    while first < n_users:
        last = max(first + 1, int(np.searchsorted(indptr, indptr[first] + PAIRS_AT_ONCE, "right")) - 1)
        yield first, Pattern.from_csr(indptr[first : last + 1] - indptr[first], items[indptr[first] : indptr[last]])
        first = last


def tested_pairs(data: Partition, log: RandomizedLog) -> np.ndarray:
    """Which pairs of the randomized log lie outside S_c as it was logged."""
    return np.asarray(logged(data).find(log.users, log.items) < 0)


@dataclass(frozen=True)
class UniformPolicy:
    """The null hypothesis: what it keeps fixed, draws from it, and the statistics that are compared."""

    users: np.ndarray  # the user of each pair, sorted
    n_items: int
    excluded: Pattern  # each user's items that cannot be drawn
    expected: np.ndarray  # number of pairs by item
    by_popularity: np.ndarray  # items from the rarest in S_c to the most frequent
    taste: Taste | None  # None where no model predicts taste
    rules: EligibleRows | None = None  # None: every item outside S_c can be drawn
    mean_taste: float = 0.0  # mean of the statistic of taste under the null hypothesis

    def draw(self, seed: int, *names: object, weights: np.ndarray | None = None) -> np.ndarray:
        """The items of a log under the null hypothesis, or under an alternative that weights the items."""
        items = np.empty(len(self.users), np.int64)
        below = np.ones(self.n_items) if weights is None else weights / weights.max()
        if self.rules is not None:
            stream, scratch = key(seed, "audit", *names), np.full(self.n_items, -1)
            _draw_eligible(stream, self.users, self.rules, self.excluded, below, scratch, items)
            return items
        _draw_items(key(seed, "audit", *names), self.users, *self.excluded, below, np.full(len(below), -1), items)
        return items

    def statistics(self, items: np.ndarray) -> np.ndarray:
        """The distance of a log from uniform in each of STATISTICS; larger is farther."""
        counts = np.bincount(items, minlength=self.n_items).astype(np.float64)
        possible = self.expected > 0
        chi2 = ((counts - self.expected)[possible] ** 2 / self.expected[possible]).sum()
        catalogue, popularity = (self.band(counts, order).z for order in (None, self.by_popularity))
        taste = 0.0 if self.taste is None else self.taste.z(self.users, items) - self.mean_taste
        return np.array([chi2, abs(catalogue), abs(popularity), abs(taste)])

    def band(self, counts: np.ndarray, order: np.ndarray | None = None) -> Band:
        """The run of items, in the given order, whose count deviates most from the expected count."""
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


class EligibleRows(NamedTuple):
    """The pairs of a log with their times and strata, and the rules that say what could be shown instead."""

    order: np.ndarray  # pairs by user and time
    items: np.ndarray  # as logged
    times: np.ndarray
    members: Pattern  # the items of each stratum
    possible: Pattern  # those that were open at some time of the log
    tries: np.ndarray  # rejected draws before `possible` is searched, by stratum
    n_open: np.ndarray  # items of the pair's stratum that were open for all users at its time
    strata: np.ndarray  # of items
    windows: Windows
    exclusions: Exclusions

    @classmethod
    def of(cls, rules: Eligibility, log: RandomizedLog, times: np.ndarray) -> EligibleRows:
        """The pairs of a log with their times."""
        order = np.lexsort((times, log.users))
        by_stratum = np.argsort(rules.strata, kind="stable")
        by_stratum = by_stratum[rules.strata[by_stratum] >= 0].astype(np.int32)
        members = Pattern.of(rules.strata[by_stratum], by_stratum, len(rules.names))
        assert rules.shares is not None
        opened = by_stratum[rules.shares[by_stratum] > 0]
        possible = Pattern.of(rules.strata[opened], opened, len(rules.names))
        tries = np.maximum(possible.sizes(), FEWEST_TRIES)  # a search takes as long, and rarely follows
        n_open = np.zeros(len(log.users), np.int64)
        for stratum in range(len(rules.names)):
            own = rules.strata[log.items] == stratum
            n_open[own] = rules.n_open(rules.strata, stratum, times[own])
        of_items = rules.strata, rules.windows, rules.exclusions
        return cls(order, log.items, times, members, possible, tries, n_open, *of_items)


class Band(NamedTuple):
    """A run of items: the items first .. last - 1 of an order."""

    z: float  # (shown - expected) / standard deviation
    first: int
    last: int
    ratio: float  # shown / expected


@dataclass(frozen=True)
class Taste:
    """A model's scores, standardised per user over the items that the user could have been shown."""

    scorer: Scorer
    means: np.ndarray  # one per user
    deviations: np.ndarray

    def values(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """(score - the user's mean) / the user's standard deviation; 0 where that deviation is 0."""
        scores = np.asarray(self.scorer.score_pairs(users, items), np.float64)
        deviations, values = self.deviations[users], scores - self.means[users]
        return np.divide(values, deviations, out=np.zeros(len(values)), where=deviations > 0)

    def z(self, users: np.ndarray, items: np.ndarray) -> float:
        """Sum of the values over the root of their number: about standard normal under a uniform policy."""
        return float(self.values(users, items).sum() / np.sqrt(len(users)))


def uniform_policy(
    data: Partition,
    log: RandomizedLog,
    scorer: Scorer | None = None,
    times: np.ndarray | None = None,
    seed: int = 0,
    excluded: Pattern | None = None,
) -> UniformPolicy:
    """The null hypothesis for a log without pairs of S_c; `scorer` predicts taste.

    `times` of the pairs and `seed` are for data with rules of eligibility. `excluded`: each user's items that are not
    drawn, S_c by default.
    """
    excluded = logged(data) if excluded is None else excluded
    counts = np.bincount(log.users, minlength=data.n_users)
    n_open = np.maximum(data.n_items - excluded.sizes(), 1)
    rate = counts / n_open  # P(item is drawn) for each of the user's open items
    popularity, closed = np.zeros(data.n_items, np.int64), np.zeros(data.n_items)
    for first, some in pieces(excluded):  # it may be larger than memory
        np.add.at(popularity, some.items, 1)
        np.add.at(closed, some.items, rate[first + some.users()])
    expected = rate.sum() - closed
    by_popularity = np.argsort(popularity, kind="stable")
    taste = None if scorer is None else Taste(scorer, *_user_moments(scorer, data, np.flatnonzero(counts), excluded))
    policy = UniformPolicy(log.users, data.n_items, excluded, np.maximum(expected, 0.0), by_popularity, taste)
    if data.eligibility is None or times is None:
        return policy
    policy = replace(policy, rules=EligibleRows.of(data.eligibility, log, times))
    draws = [policy.draw(seed, "expected", draw) for draw in range(EXPECTED_DRAWS)]
    means = np.bincount(np.concatenate(draws), minlength=data.n_items) / EXPECTED_DRAWS
    tastes = [0.0 if taste is None else taste.z(log.users, draw) for draw in draws]
    return replace(policy, expected=means, mean_taste=float(np.mean(tastes)))


def expected_overlap(data: Partition, log: RandomizedLog) -> float:
    """How many pairs of S_c, as it was logged, a uniform policy over all items repeats on average."""
    counts = np.bincount(log.users, minlength=data.n_users)
    if data.eligibility is None:
        return float((counts * logged(data).sizes()).sum() / data.n_items)
    rows = EligibleRows.of(data.eligibility, log, randomized_times(data))
    shares = np.zeros(len(log.users))
    _overlap_shares(log.users, rows, logged(data), shares)
    return float(shares.sum())


def _user_moments(
    scorer: Scorer, data: Partition, users: np.ndarray, excluded: Pattern
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each user's scores over her open items."""
    means, deviations = np.zeros(data.n_users), np.zeros(data.n_users)
    size = max(1, BLOCK_PAIRS // data.n_items)
    for start in range(0, len(users), size):
        block = users[start : start + size]
        scores = np.ma.array(np.asarray(scorer.score_rows(block), np.float64), mask=excluded.mask(block, data.n_items))
        means[block], deviations[block] = scores.mean(axis=1).filled(0.0), scores.std(axis=1).filled(0.0)
    return means, deviations


@njit
def _draw_items(stream, users, indptr, excluded, below, closed, items):
    """Draw an item for every pair: distinct per user, not among her excluded items, item i with weight below[i].

    `closed` is scratch space, -1 at first: the last user for whom an item is closed. Items are drawn by rejection,
    because logs are sparse and most items are open. A user with fewer open items than pairs gets repeated items.
    """
    n_items = len(below)
    counter, user, n_open = 0, -1, 0
    for j in range(len(users)):
        if users[j] != user:
            user = users[j]
            for k in range(indptr[user], indptr[user + 1]):
                closed[excluded[k]] = user
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


@njit
def is_open(windows, item, time):
    """Whether an item is in one of its windows."""
    for k in range(windows.indptr[item], windows.indptr[item + 1]):
        if windows.start[k] <= time and time < windows.end[k]:
            return True
    return False


@njit
def _is_hidden(exclusions, user, item, time):
    """Whether an item is excluded for a user, by a bisection of her exclusions."""
    low, high = exclusions.indptr[user], exclusions.indptr[user + 1]
    stop = high
    while low < high:
        middle = (low + high) // 2
        if exclusions.items[middle] < item:
            low = middle + 1
        else:
            high = middle
    while low < stop and exclusions.items[low] == item:
        if exclusions.start[low] < time and time < exclusions.end[low]:
            return True
        low += 1
    return False


@njit
def _can_have(rows, user, item, time, closed):
    """Whether an item is open, not hidden from the user and not closed for her."""
    there = closed[item] != user and is_open(rows.windows, item, time)
    return there and not _is_hidden(rows.exclusions, user, item, time)


@njit
def _draw_eligible(stream, users, rows, logged, below, closed, items):
    """Draw an item for every pair, in the order of time: of its stratum, open at its time, not hidden from the user,
    outside her log, and not drawn for her before. Item i has the weight below[i].

    `closed` is scratch space, -1 at first: the last user for whom an item is closed. Items are drawn by rejection.
    After `tries` rejected draws all items that the pair can have are listed. Without any, the pair keeps its own.
    """
    counter, user = 0, -1
    for k in range(len(rows.order)):
        j = rows.order[k]
        if users[j] != user:
            user = users[j]
            for entry in range(logged.indptr[user], logged.indptr[user + 1]):
                closed[logged.items[entry]] = user
        stratum, item, time = rows.strata[rows.items[j]], rows.items[j], rows.times[j]
        found = stratum < 0 or rows.n_open[j] <= 0  # nothing can be drawn
        if not found:
            first = rows.members.indptr[stratum]
            n = rows.members.indptr[stratum + 1] - first
            for _ in range(rows.tries[stratum]):
                other = np.int64(rows.members.items[first + np.int64(uniform(stream, counter) * n)])
                wanted = uniform(stream, counter + 1) < below[other]
                counter += 2
                if wanted and _can_have(rows, user, other, time, closed):
                    item, found = other, True
                    break
        if not found:
            item = _draw_listed(uniform(stream, counter), rows, user, j, below, closed)
            counter += 2
        closed[item] = user
        items[j] = item


@njit
def _draw_listed(quantile, rows, user, j, below, closed):
    """The item at a quantile of the weights of all items that the user can have at pair j; without any, its own."""
    stratum, time, total = rows.strata[rows.items[j]], rows.times[j], 0.0
    entries = range(rows.possible.indptr[stratum], rows.possible.indptr[stratum + 1])
    for entry in entries:
        other = rows.possible.items[entry]
        if _can_have(rows, user, other, time, closed):
            total += below[other]
    item, left = rows.items[j], quantile * total
    for entry in entries:
        other = np.int64(rows.possible.items[entry])
        if total > 0 and left >= 0 and below[other] > 0 and _can_have(rows, user, other, time, closed):
            item = other
            left -= below[other]
    return item


@njit
def _overlap_shares(users, rows, logged, shares):
    """For every pair, the share of her log among the items that the user could be shown."""
    for j in range(len(users)):
        user, stratum, time = users[j], rows.strata[rows.items[j]], rows.times[j]
        own, possible = 0, rows.n_open[j]
        for entry in range(logged.indptr[user], logged.indptr[user + 1]):
            item = logged.items[entry]
            there = rows.strata[item] == stratum and is_open(rows.windows, item, time)
            if there and not _is_hidden(rows.exclusions, user, item, time):
                own += 1
        previous = -1
        for entry in range(rows.exclusions.indptr[user], rows.exclusions.indptr[user + 1]):
            item = rows.exclusions.items[entry]
            there = item != previous and rows.strata[item] == stratum and is_open(rows.windows, item, time)
            if there and _is_hidden(rows.exclusions, user, item, time):
                possible -= 1
            previous = item
        shares[j] = own / possible if possible > 0 else 0.0


@njit
def count_taken(users, times, weights, groups, pairs, windows, exclusions, barred, taken):
    """Add to taken[user, group], for each of a user's rows, the weight of every open item of the group in `pairs`.

    With `barred`, only items that are hidden from the user at that time count, else only those that are not.
    """
    for j in range(len(users)):
        user, previous = users[j], -1
        for entry in range(pairs.indptr[user], pairs.indptr[user + 1]):
            item = pairs.items[entry]
            there = item != previous and is_open(windows, item, times[j])
            if there and barred == _is_hidden(exclusions, user, item, times[j]):
                taken[user, groups[item]] += weights[j]
            previous = item


def eligible_sums(data: Partition, rows: Triplets, had: Pattern, groups: np.ndarray) -> np.ndarray:
    """(all users, groups): over a user's impressions, the eligible items of the group outside her biased log."""
    rules, n_groups = data.eligibility, int(groups.max()) + 1
    assert rules is not None
    times, weights, users = (
        np.zeros(len(rows.users)) if rows.times is None else rows.times,
        rows.weights.astype(np.float64),
        rows.users.astype(np.int64),
    )
    sums = np.zeros((data.n_users, n_groups))
    for group in range(n_groups):
        sums[:, group] = np.bincount(users, weights * rules.n_open(groups, group, times), data.n_users)
    groups = np.where(rules.strata >= 0, groups, n_groups)  # items without a stratum are never open
    taken = np.zeros((data.n_users, n_groups + 1))
    hidden = Pattern(rules.exclusions.indptr, rules.exclusions.items)
    for pairs, barred in ((had, False), (hidden, True)):
        count_taken(users, times, weights, groups, pairs, rules.windows, rules.exclusions, barred, taken)
    return sums - taken[:, :n_groups]


def null_draws(policy: UniformPolicy, n: int, seed: int, quiet: bool = True) -> np.ndarray:
    """The statistics of n uniform logs, an (n, statistics) array."""
    from tqdm import tqdm

    draws = tqdm(range(n), desc="uniform logs", leave=False, delay=2, disable=quiet)
    return np.array([policy.statistics(policy.draw(seed, "null", draw)) for draw in draws])


def p_values(observed: np.ndarray, null: np.ndarray) -> np.ndarray:
    """Monte-Carlo p-values, one per statistic."""
    return np.asarray((1 + (null >= observed - 1e-9).sum(axis=0)) / (1 + len(null)))


# ---- users and times -----------------------------------------------------------------------------------------------


def p_even(counts: np.ndarray, rng: np.random.Generator, n: int = N_DRAWS) -> float:
    """Monte-Carlo p-value of the hypothesis that counts are even: Pearson's chi-squared against multinomial draws."""
    total, even = int(counts.sum()), np.full(len(counts), 1 / len(counts))
    chi2 = ((counts - total / len(counts)) ** 2).sum()
    draws = (((rng.multinomial(total, even) - total / len(counts)) ** 2).sum() for _ in range(n))
    return float((1 + sum(draw >= chi2 - 1e-9 for draw in draws)) / (1 + n))


def p_mean(values: np.ndarray, chosen: np.ndarray, rng: np.random.Generator, n: int = N_DRAWS) -> float:
    """Two-sided p-value of the hypothesis that the chosen values have the mean of all values.

    By permutation where either side is small, else by the normal approximation for draws without replacement.
    """
    size, mean = int(chosen.sum()), values.mean()
    off = abs(values[chosen].mean() - mean)
    if min(size, len(values) - size) >= MANY:
        from scipy.special import ndtr

        error = values.std(ddof=1) * np.sqrt(1 / size - 1 / len(values))
        return float(2 * ndtr(-off / error)) if error > 0 else 1.0
    draws = (abs(rng.choice(values, size, replace=False, shuffle=False).mean() - mean) for _ in range(n))
    return float((1 + sum(draw >= off - 1e-12 for draw in draws)) / (1 + n))


def p_table(rows: np.ndarray, columns: np.ndarray, draws: Iterable[np.ndarray]) -> float:
    """Monte-Carlo p-value of the hypothesis that two classifications are independent, by chi-squared of their table.

    `draws` are other columns for the same rows, under the null hypothesis.
    """
    null = [_table_chi2(rows, drawn) for drawn in draws]
    return (1 + sum(chi2 >= _table_chi2(rows, columns) - 1e-9 for chi2 in null)) / (1 + len(null))


def _table_chi2(rows: np.ndarray, columns: np.ndarray) -> float:
    shape = (int(rows.max()) + 1, int(columns.max()) + 1)
    table = np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / len(rows)
    return float(((table - expected) ** 2 / np.maximum(expected, 1e-12)).sum())
