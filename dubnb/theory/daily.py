"""`dubnb.audit(data, by="day")`: an answer for audits that run every day, valid however often and long one looks.

A test at level .05 that runs every day says "no" to a uniform policy sooner or later. Here bettors bet against the
policy instead. Each starts on one day with a part of a capital of 1. The rest is kept for bettors of later days. If
the log is right, every bet has the mean 1 given all that was shown before. So the mean of the whole capital never
rises, and the capital ever reaches 40 with a probability of at most .025 (Ville, 1939). Capital of 40 or more is an
alarm.

**A bet.** A bettor has a weight h_i >= 0 for every item, chosen before the impression. Let O be the items that the
user could still be shown: eligible at the time, neither in the user's biased log nor shown earlier. For item i,

    x = h_i / (mean of h over O),        capital <- capital (1 - s + s x),   0 <= s <= 1

Under a uniform choice from O, x has the mean 1. With logged propensities, x also gets the factor w = 1 / (p |O|). A
repeated pair does not count. With P the sum of p over the user's earlier pairs, a new pair is shown with the
probability p / (1 - P), which takes the place of p. Items of the biased log have x = 0 there, and are left out of
uniform traffic.

**What bettors learn.** A bettor looks at every item, every tenth of the catalogue and every tenth by popularity in the
biased log. It compares how often each was shown since the bettor's first day with the expected number: r = (a + shown)
/ (a + expected) with a = PRIOR. A uniform log is bet on with h = r and s = 1, a ratio of likelihoods. With
propensities, h = max(r - 1, 0), a follows the variance of the weights, and s is the stake that would have suited the
bettor's earlier x (Waudby-Smith and Ramdas, 2024). One more bet is that the mean of w alone is above 1 (h = 1). No bet
says that it is below 1, because p / (1 - P) is the chance of a new pair only while p stays the same and items may be
shown again. Otherwise P counts items that can no longer be shown, and w is too small: no bet gains by that.

**Days.** A bettor starts every day. To keep few, a bettor whose neighbours' ages differ by less than a factor of 2 is
dropped, and the younger neighbour gets the capital. Large days are cut into up to PARTS parts, and bettors learn after
each.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from dubnb._check import InputError, option
from dubnb._jit import njit
from dubnb._random import key, mix_arrays
from dubnb.data.eligibility import Eligibility
from dubnb.data.partition import Partition
from dubnb.data.pattern import Pattern, Triplets
from dubnb.data.table import EPOCH_UNITS, NANOSECONDS, YEARS
from dubnb.report import tables
from dubnb.theory import uniformity
from dubnb.theory.uniformity import is_open

ALARM = 40.0  # capital of an alarm: 1 / .025
FEWEST_A_DAY = 10  # a day with fewer pairs is joined with the next
PARTS, PART_PAIRS = 8, 100  # most parts of a day, and fewest pairs of a part
PRIOR = 5.0  # impressions that pull a ratio to 1
MOST_STAKE = 0.5
TENTHS = 10
PROPENSITIES = "the logged propensities"
ITEMS, CATALOGUE, POPULARITY, ALL = "items", "the catalogue", "popularity", "all items"
SHOWN_DAYS = 10  # days in the text
DAY = 86_400 * 1_000_000_000


class Day(NamedTuple):
    """One day, or a few with little traffic."""

    day: str  # the (last) date, or its number
    pairs: int
    e: float  # the factor of the evidence on this day
    evidence: float  # the capital of all bettors
    cause: str  # what the richest bettor bets on


@dataclass(frozen=True)
class DailyAudit:
    """The evidence against the randomized policy, day by day."""

    data: str
    days: tuple[Day, ...]
    about: str  # what is tested

    @property
    def alarm(self) -> Day | None:
        """The first day whose evidence reaches 40, or None."""
        return next((day for day in self.days if day.evidence >= ALARM), None)

    @property
    def uniform(self) -> bool:
        """Whether no day raised an alarm."""
        return self.alarm is None

    def to_dict(self) -> dict[str, Any]:
        """The audit as a dictionary of JSON types."""
        first = None if self.alarm is None else self.alarm.day
        plain = {key: value for key, value in asdict(self).items() if key != "days"}
        return plain | {"uniform": self.uniform, "alarm": first, "days": [day._asdict() for day in self.days]}

    def text(self) -> str:
        """The conclusion, and the last days."""
        last, most = self.days[-1], max(day.evidence for day in self.days)
        if self.alarm is None:
            said = f"No alarm in {len(self.days):,} days"
        else:
            said = f"ALARM on {self.alarm.day}: what was shown does not fit"
        lines = [f"daily audit of {self.data}", "", f"{said} ({self.about})."]
        if self.alarm is not None:
            lines.append(f"Most of the evidence that day: {self.alarm.cause}.")
        lines += [
            f"Evidence {_short(last.evidence)} today, {_short(most)} at most; an alarm is {ALARM:.0f} or more.",
        ]
        if self.alarm is None and self.about == PROPENSITIES:
            lines.append("Propensities that are all too large raise no alarm here: audit the whole log now and then.")
        lines.append("")
        rows = [[day.day, f"{day.pairs:,}", _short(day.e), _short(day.evidence)] for day in self.days[-SHOWN_DAYS:]]
        lines.append(tables.text(["day", "pairs", "e-value", "evidence"], rows, "<>>>"))
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def _short(number: float) -> str:
    """Two decimals, or the power of ten of a large number."""
    return f"{number:.2f}" if number < 1e6 else f"{number:.1e}"


def audit_by_day(data: Partition, seed: int = 0) -> DailyAudit:
    """The evidence of every day; needs the times of the randomized log."""
    random = data.random
    if random.times is None:
        raise InputError(f"a daily audit needs times: name their column with {option('timestamp')}")
    if len(random.users) < FEWEST_A_DAY:
        raise InputError(f"the randomized log has {len(random.users)} pairs: a daily audit needs {FEWEST_A_DAY}")
    if (random.labels == 1).all():
        raise InputError("the randomized log holds positives only: what was shown without a click is missing")
    derived = data.eligibility is not None and data.eligibility.derived
    explored = not derived and any(data.importance(part) is not None for part in ("S_t", "S_va", "S_te"))
    had = uniformity.logged(data)
    if not explored:
        random = random.take(had.find(random.users, random.items) < 0)
        if len(random.users) < FEWEST_A_DAY:
            raise InputError(
                f"{len(random.users)} randomized pairs are outside the biased log: a daily audit needs {FEWEST_A_DAY}"
            )
    assert random.times is not None
    pairs = random.users.astype(np.uint64) * np.uint64(data.n_items) + random.items.astype(np.uint64)
    shuffled = mix_arrays(np.full(len(pairs), key(seed, "daily")), pairs)  # pairs of one time in a random order
    random = random.take(np.lexsort((shuffled, random.times)))
    assert random.times is not None
    impressions, bettors = Impressions.of(data, random, had, explored), Bettors(data, had, explored)
    numbers = day_numbers(random.times)
    days: list[Day] = []
    before = 1.0
    for first, last in _days(numbers):
        start, stop = int(np.searchsorted(numbers, first, "left")), int(np.searchsorted(numbers, last, "right"))
        bettors.start(len(days))
        cuts = np.linspace(start, stop, min(PARTS, max(1, (stop - start) // PART_PAIRS)) + 1).astype(np.int64)
        for part in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            bettors.bet(impressions, *part)
        evidence = bettors.evidence()
        name = _name(last, random.times)
        names = (*(day.day for day in days), name)
        days.append(Day(name, stop - start, evidence / before, evidence, bettors.cause(data, names)))
        before = max(evidence, 1e-300)
    about = PROPENSITIES if explored else "a uniform choice of items"
    return DailyAudit(data.name, tuple(days), about)


def day_numbers(times: np.ndarray) -> np.ndarray:
    """The day of every time: by its unit since 1970 where the numbers are large enough, else the whole number."""
    middle = float(np.median(times))
    unit = next((unit for limit, unit in EPOCH_UNITS if middle >= limit), None)
    # Nanoseconds are also how dates of any year are kept.
    if unit not in (None, NANOSECONDS) and not YEARS[0] <= middle * unit < YEARS[1]:
        raise InputError(
            f"times such as {times[0]:.15g} are neither days nor times since 1970: give dates, or seconds since 1970"
        )
    days = times if unit is None else times / (DAY / unit)
    return np.asarray(np.floor(days).astype(np.int64))


def _name(day: int, times: np.ndarray) -> str:
    """A day as a date where its times are since 1970."""
    return str(np.datetime64(day, "D")) if float(np.median(times)) >= EPOCH_UNITS[-1][0] else str(day)


def _days(numbers: np.ndarray) -> list[tuple[int, int]]:
    """(first, last) of consecutive days, joined until they have enough pairs; a small rest is left for later."""
    days, counts = np.unique(numbers, return_counts=True)
    found, first, n = [], None, 0
    for day, count in zip(days.tolist(), counts.tolist(), strict=True):
        first, n = day if first is None else first, n + count
        if n >= FEWEST_A_DAY:
            found.append((first, day))
            first, n = None, 0
    return found


class Impressions(NamedTuple):
    """The randomized log in the order of time, and what each user could be shown."""

    rows: Triplets
    previous: np.ndarray  # the user's previous row, or -1
    chances: np.ndarray | None  # of a pair that is shown for the first time; None: a uniform choice
    had: Pattern
    rules: Eligibility

    @classmethod
    def of(cls, data: Partition, rows: Triplets, had: Pattern, explored: bool) -> Impressions:
        """The impressions of a log, sorted by time."""
        order = np.argsort(rows.users, kind="stable")
        same = np.append(False, np.diff(rows.users[order]) == 0)
        previous = np.full(len(order), -1)
        previous[order[same]] = order[np.flatnonzero(same) - 1]
        chances = None
        if explored:
            p = np.asarray(rows.propensities, np.float64)
            sums = np.cumsum(p[order]) - p[order]
            starts = np.flatnonzero(~same)
            sums -= np.repeat(sums[starts], np.diff(np.append(starts, len(order))))
            chances = np.empty(len(order))
            chances[order] = p[order] / np.maximum(1 - sums, 1e-9)
        rules = Eligibility.of((data.n_users, data.n_items)) if data.eligibility is None else data.eligibility
        return cls(rows, previous, chances, had, rules)

    def outcomes(self, start: int, stop: int, h: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x of some rows under the weights h (items, bettors), w, and the expected number of each item.

        w and x are 0 for items of the biased log, and 1 where the user could be shown one item at most.
        """
        users, items = (column[start:stop].astype(np.int64) for column in self.rows[:2])
        assert self.rows.times is not None
        times, (windows, strata) = self.rows.times[start:stop], (self.rules.windows, self.rules.strata)
        n_open, sums = np.zeros(len(users)), np.zeros((len(users), h.shape[1]))
        of_windows = np.repeat(np.arange(len(strata)), np.diff(windows.indptr))
        for stratum in range(len(self.rules.names)):
            own, there = np.flatnonzero(strata[items] == stratum), strata[of_windows] == stratum
            for bounds, sign in ((windows.start[there], 1), (windows.end[there], -1)):
                order = np.argsort(bounds, kind="stable")
                place = np.searchsorted(bounds[order], times[own], "right")
                n_open[own] += sign * place
                so_far = np.zeros((len(order) + 1, h.shape[1]))
                np.cumsum(h[of_windows[there][order]], axis=0, out=so_far[1:])
                sums[own] += sign * so_far[place]
        expected, stamp, mine = np.zeros(len(strata)), np.full(len(strata), -1), np.empty(len(strata), np.int64)
        inside = np.zeros(len(users), bool)
        log = self.rows.users.astype(np.int64), self.rows.items.astype(np.int64), self.rows.times, self.previous
        rules = windows, self.rules.exclusions, strata
        _take_closed(start, log, self.had, rules, h, n_open, sums, expected, inside, (stamp, mine))
        rates = np.where(n_open > 0, 1 / np.maximum(n_open, 1), 0.0)
        for stratum in range(len(self.rules.names)):
            own, there = np.flatnonzero(strata[items] == stratum), strata[of_windows] == stratum
            order = own[np.argsort(times[own], kind="stable")]
            summed = np.append(0.0, np.cumsum(rates[order]))
            first, last = (np.searchsorted(times[order], each[there], "left") for each in windows[1:])
            expected += np.bincount(of_windows[there], summed[last] - summed[first], len(strata))
        means = sums * rates[:, None]
        told = (n_open > 1)[:, None] & (means > 1e-12)
        x = np.asarray(np.divide(h[items], means, out=np.ones(sums.shape), where=told))
        w = np.ones(len(users))
        if self.chances is not None:
            w = np.asarray(np.where(n_open > 0, rates / self.chances[start:stop], 1.0))
            w[inside] = 0.0
            x = np.asarray(np.where(told, x * w[:, None], 1.0))
        return x, w, np.maximum(expected, 0.0)


class Bettors:
    """Bettors by the day on which they started, from the oldest; each has a bet on every grouping of the items."""

    def __init__(self, data: Partition, had: Pattern, explored: bool) -> None:
        n, tenths = data.n_items, np.arange(data.n_items) * TENTHS // data.n_items
        by_popularity = np.empty(n, np.int64)
        counts = np.zeros(n, np.int64)
        for _, some in uniformity.pieces(had):
            counts += np.bincount(some.items, minlength=n)
        by_popularity[np.argsort(counts, kind="stable")] = tenths
        self.explored = explored
        self.groups = {ITEMS: np.arange(n), CATALOGUE: tenths, POPULARITY: by_popularity}
        if explored:
            self.groups[ALL] = np.zeros(n, np.int64)
        self.days: list[int] = []
        self.log_capital = np.zeros((0, len(self.groups)))
        self.waiting = 1.0  # capital of later days
        self.gains = np.zeros((2, 0, len(self.groups)))  # sums of x - 1 and of its square
        self.shown, self.expected = np.zeros((0, n)), np.zeros((0, n))  # by bettor and item
        self.squares = np.zeros((0, 2))  # sums of w and of w^2

    def start(self, day: int) -> None:
        """Let a bettor start with the share of this day, and drop one who is no longer needed."""
        later = 1 / (1 + np.log1p(day + 1))
        share = (self.waiting - later) / len(self.groups)
        self.waiting = later
        self._append(day, np.log(share))
        k = 1
        while k < len(self.days) - 1:
            if day + 1 - self.days[k - 1] < 2 * (day + 1 - self.days[k + 1]):
                self.log_capital[k + 1] = np.logaddexp(self.log_capital[k], self.log_capital[k + 1])
                self._drop(k)
            else:
                k += 1

    def _append(self, day: int, log_share: float) -> None:
        self.days.append(day)
        self.log_capital = np.append(self.log_capital, np.full((1, len(self.groups)), log_share), axis=0)
        self.gains = np.append(self.gains, np.zeros((2, 1, len(self.groups))), axis=1)
        empty = np.zeros((1, self.shown.shape[1]))
        self.shown, self.expected = (np.append(each, empty, axis=0) for each in (self.shown, self.expected))
        self.squares = np.append(self.squares, np.zeros((1, 2)), axis=0)

    def _drop(self, k: int) -> None:
        del self.days[k]
        self.log_capital, self.shown, self.expected, self.squares = (
            np.delete(each, k, axis=0) for each in (self.log_capital, self.shown, self.expected, self.squares)
        )
        self.gains = np.delete(self.gains, k, axis=1)

    def bet(self, impressions: Impressions, start: int, stop: int) -> None:
        """Bet on some rows, then learn from them."""
        h = np.stack([self.weights(name) for name in self.groups], axis=1).reshape(-1, self.shown.shape[1]).T
        x, w, expected = impressions.outcomes(start, stop, np.ascontiguousarray(h))
        x = x.reshape(len(x), *self.log_capital.shape)
        stakes = np.ones(self.log_capital.shape)
        if self.explored:
            stakes = np.clip(self.gains[0] / np.maximum(self.gains[1], 1e-9), 0.0, MOST_STAKE)
            stakes *= self.gains[1] > 0
            self.gains += np.stack([(x - 1).sum(axis=0), ((x - 1) ** 2).sum(axis=0)])
        with np.errstate(divide="ignore"):
            self.log_capital = self.log_capital + np.log(1 + stakes * (x - 1)).sum(axis=0)
        items = impressions.rows.items[start:stop]
        self.shown += np.bincount(items, w, self.shown.shape[1])
        self.expected += expected
        self.squares += w.sum(), (w**2).sum()

    def counts(self, grouping: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(bettors, groups): how often every group was shown, its expected number, and their ratio r."""
        group, sums = self.groups[grouping], self.squares
        a = PRIOR * np.divide(sums[:, 1], sums[:, 0], out=np.ones(len(sums)), where=sums[:, 0] > 0)[:, None]
        shown, expected = (
            np.stack([np.bincount(group, each, int(group.max()) + 1) for each in every])
            for every in (self.shown, self.expected)
        )
        return shown, expected, (a + shown) / (a + expected)

    def weights(self, grouping: str) -> np.ndarray:
        """(bettors, items): h."""
        if grouping == ALL:
            return np.ones(self.shown.shape)
        *_, r = self.counts(grouping)
        return (np.maximum(r - 1, 0.0) if self.explored else r)[:, self.groups[grouping]]

    def evidence(self) -> float:
        """The capital of all bettors, and what is kept for those of later days."""
        return float(np.exp(np.minimum(self.log_capital, 700.0)).sum() + self.waiting)

    def cause(self, data: Partition, days: tuple[str, ...]) -> str:
        """Describe the bet with the most capital, which is the likely cause of an alarm."""
        k, number = np.unravel_index(np.argmax(self.log_capital), self.log_capital.shape)
        name = list(self.groups)[number]
        since = f"since {days[self.days[k]]}"
        if name == ALL:
            return f"1 / propensity is too large on average {since}"
        shown, expected, r = (each[k] for each in self.counts(name))
        group, ids = int(np.argmax(np.abs(shown - expected) / np.sqrt(expected + 1))), data.item_ids.values
        own = np.flatnonzero(self.groups[name] == group)
        what = {
            ITEMS: f"item {tables.printable(ids[own[0]])} is",
            CATALOGUE: f"items {tables.printable(ids[own[0]])} to {tables.printable(ids[own[-1]])} are",
            POPULARITY: f"tenth {group + 1} of the items, from the rarest in the biased log, is",
        }[name]
        return f"{what} shown {r[group]:.2f} times as often as expected {since}"


@njit
def _take_closed(first, log, had, rules, h, n_open, sums, expected, inside, scratch):
    """Subtract the items that a user could not be shown from n_open and sums, and 1 / n_open from their `expected`.

    Rows first .. first + len(n_open) - 1 are read. A row whose own item could not be shown gets n_open 0, and `inside`
    where it is in the biased log. `scratch` is two arrays by item, the first with -1.
    """
    users, items, times, previous = log
    windows, exclusions, strata = rules
    stamp, mine = scratch
    for row in range(len(n_open)):
        j = first + row
        user, time, stratum = users[j], times[j], strata[items[j]]
        n = 0
        for k in range(had.indptr[user], had.indptr[user + 1]):
            item = np.int64(had.items[k])
            if item == items[j]:
                inside[row] = True
            if stamp[item] != j and strata[item] == stratum and is_open(windows, item, time):
                stamp[item] = j
                mine[n] = item
                n += 1
        earlier = previous[j]
        while earlier >= 0:
            item = items[earlier]
            if stamp[item] != j and strata[item] == stratum and is_open(windows, item, time):
                stamp[item] = j
                mine[n] = item
                n += 1
            earlier = previous[earlier]
        hidden = False
        for k in range(exclusions.indptr[user], exclusions.indptr[user + 1]):
            item = np.int64(exclusions.items[k])
            there = exclusions.start[k] < time and time < exclusions.end[k]
            if there and item == items[j]:
                hidden = True
            if there and stamp[item] != j and strata[item] == stratum and is_open(windows, item, time):
                stamp[item] = j
                mine[n] = item
                n += 1
        n_open[row] -= n
        if hidden or stratum < 0 or not is_open(windows, items[j], time):
            n_open[row] = 0
        for place in range(n):
            for bettor in range(h.shape[1]):
                sums[row, bettor] -= h[mine[place], bettor]
            if n_open[row] > 0:
                expected[mine[place]] -= 1 / n_open[row]
