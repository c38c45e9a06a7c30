"""`dubnb.audit(data, by="day")`: an answer for audits that run every day, valid however often and long one looks.

A test at level .05 that runs every day says "no" to a uniform policy sooner or later. Here every day d gets an e-value
e_d: a number of at least 0 whose mean is at most 1 given all earlier days, if the policy is what the log says. The
evidence after t days is a mixture over the day s on which the policy broke,

    M_t = sum over s <= t of w_s e_s e_(s+1) .. e_t  +  (1 - sum over s <= t of w_s),   w_s = 1 / (s (s + 1)).

It starts at 1, and its mean never rises, so P(M_t >= 40 on any day) <= .025 (Ville, 1939). Evidence of 40 or more is an
alarm. Late breaks are found too, because the mixture has terms that begin late.

**Uniform traffic**, also among eligible items: chi-squared of the day's items, of tenths of the catalogue and of tenths
by popularity is compared with draws outside the user's biased log and her earlier pairs. Draws stop early (Besag and
Clifford, 1991). The smallest p-value times 3 becomes e = (1 - p + p log p) / (p log(p)^2), a mean of Vovk and Wang's
(2021) calibrators.

**Logged propensities**: w = 1 / (p x items that the user could be shown) has mean 1, so bets on it have a mean of at
most 1: e is the mean of prod (1 + b (w - 1)) over b = BET, and b = -BET / W with W four times the largest earlier w.
Repeated impressions of a pair do not count, and w allows for it (`_weights`) if the policy itself does not change.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from dubnb._check import InputError, option
from dubnb.data.partition import Partition
from dubnb.data.pattern import Pattern, union
from dubnb.data.triplets import Triplets
from dubnb.report import tables
from dubnb.theory import uniformity
from dubnb.theory.uniformity import RandomizedLog

ALARM = 40.0  # evidence of an alarm: 1 / .025
FEWEST_A_DAY = 10  # a day with fewer pairs is joined with the next
EXCEEDANCES = 5  # draws as extreme as the log after which draws stop
MOST_DRAWS = 199
BET = 0.1
SHOWN_DAYS = 10  # days in the text
N_STATISTICS, TENTHS = 3, 10  # items, catalogue, popularity; the last two by tenths of the items
# nanoseconds of one unit of times since 1970, by the size of the numbers
UNITS = ((1e17, 1), (1e14, 1_000), (1e11, 1_000_000), (1e8, 1_000_000_000))
DAY = 86_400 * 1_000_000_000


class Day(NamedTuple):
    """One day, or a few with little traffic."""

    day: str  # the (last) date, or its number
    pairs: int
    p: float | None  # None with propensities
    e: float
    evidence: float  # M_t


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
        lines += [f"Evidence {last.evidence:.2f} today, {most:.2f} at most; an alarm is {ALARM:.0f} or more.", ""]
        rows = [
            [day.day, f"{day.pairs:,}", "-" if day.p is None else f"{day.p:.3f}", f"{day.e:.2f}", f"{day.evidence:.2f}"]
            for day in self.days[-SHOWN_DAYS:]
        ]
        lines.append(tables.text(["day", "pairs", "p", "e-value", "evidence"], rows, "<>>>>"))
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def audit_by_day(data: Partition, seed: int = 0) -> DailyAudit:
    """The evidence of every day; needs the times of the randomized log."""
    random = data.random
    if random.times is None:
        raise InputError(f"a daily audit needs times: name their column with {option('timestamp')}")
    if len(random.users) < FEWEST_A_DAY:
        raise InputError(f"the randomized log has {len(random.users)} pairs: a daily audit needs {FEWEST_A_DAY}")
    if (random.labels == 1).all():
        raise InputError("the randomized log holds positives only: what was shown without a click is missing")
    numbers = day_numbers(random.times)
    derived = data.eligibility is not None and data.eligibility.derived
    logged_chances = not derived and any(data.importance(part) is not None for part in ("S_t", "S_va", "S_te"))
    had = uniformity.logged(data)
    outside = had.find(random.users, random.items) < 0
    days, before, evidence = [], [had], Evidence()
    w = _weights(data, had) if logged_chances else np.empty(0)
    largest = 1.0
    for first, last in _days(numbers[outside] if not logged_chances else numbers):
        own = (numbers >= first) & (numbers <= last)
        rows = random.take(own if logged_chances else own & outside)
        p = None
        if logged_chances:
            own_w = w[own]
            e, largest = _bets(own_w, 4 * largest), max(largest, float(own_w.max(initial=0.0)))
        else:
            p = _p_of_day(data, rows, union(before, data.n_items), seed, first)
            e = e_value(p)
            order = np.lexsort((rows.items, rows.users))
            before = [union([*before, Pattern.of(rows.users[order], rows.items[order], data.n_users)], data.n_items)]
        days.append(Day(_name(last, random.times), len(rows.users), p, e, evidence.add(e)))
    about = "the logged propensities" if logged_chances else "a uniform choice of items"
    return DailyAudit(data.name, tuple(days), about)


class Evidence:
    """M_t, updated by one e-value after the other."""

    def __init__(self) -> None:
        self.t, self.started = 0, 0.0  # days so far, and the sum over s of w_s e_s .. e_t

    def add(self, e: float) -> float:
        """M_t after one more day."""
        self.t += 1
        self.started = (self.started + 1 / (self.t * (self.t + 1))) * e
        return self.started + 1 / (self.t + 1)  # the weights of later days sum to 1 / (t + 1)


def e_value(p: float) -> float:
    """(1 - p + p log p) / (p log(p)^2), the integral of k p^(k - 1) over k in (0, 1); 1/2 at p = 1."""
    if p >= 1:
        return 0.5
    log = float(np.log(p))
    if log > -1e-3:
        return 0.5 - log / 6
    return (1 - p + p * log) / (p * log * log)


def day_numbers(times: np.ndarray) -> np.ndarray:
    """The day of every time: by its unit since 1970 where the numbers are large enough, else the whole number."""
    middle = float(np.median(times))
    unit = next((unit for limit, unit in UNITS if middle >= limit), None)
    days = times if unit is None else times / (DAY / unit)
    return np.asarray(np.floor(days).astype(np.int64))


def _name(day: int, times: np.ndarray) -> str:
    """A day as a date where its times are since 1970."""
    return str(np.datetime64(day, "D")) if float(np.median(times)) >= UNITS[-1][0] else str(day)


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


def _p_of_day(data: Partition, rows: Triplets, excluded: Pattern, seed: int, day: int) -> float:
    """The smallest of the day's p-values, by Bonferroni."""
    order = np.argsort(rows.users, kind="stable")
    log = RandomizedLog(rows.users[order].astype(np.int64), rows.items[order].astype(np.int64), rows.labels[order])
    assert rows.times is not None
    policy = uniformity.uniform_policy(data, log, None, rows.times[order], seed, excluded)
    tenths = np.arange(data.n_items) * TENTHS // data.n_items
    by_popularity = np.empty(data.n_items, np.int64)
    by_popularity[policy.by_popularity] = tenths
    groups = (np.arange(data.n_items), tenths, by_popularity)
    means = [np.maximum(np.bincount(group, policy.expected), 1e-3) for group in groups]

    def statistics(items: np.ndarray) -> np.ndarray:
        """Pearson's chi-squared of the items, of tenths of the catalogue, and of tenths by popularity."""
        found = zip(groups, means, strict=True)
        return np.array([((np.bincount(g[items], minlength=len(m)) - m) ** 2 / m).sum() for g, m in found])

    observed = statistics(log.items)
    reached, p = np.zeros(N_STATISTICS, np.int64), np.full(N_STATISTICS, np.nan)
    for draw in range(1, MOST_DRAWS + 1):
        reached += statistics(policy.draw(seed, "day", day, draw)) >= observed - 1e-9
        p = np.where(np.isnan(p) & (reached >= EXCEEDANCES), EXCEEDANCES / draw, p)
        if not np.isnan(p).any():
            break
    p = np.where(np.isnan(p), (1 + reached) / (1 + MOST_DRAWS), p)
    return float(min(1.0, N_STATISTICS * p.min()))


def _weights(data: Partition, had: Pattern) -> np.ndarray:
    """w of every pair of the randomized log, given the user's earlier pairs.

    A pair counts when it is shown first. With P the sum of p over the user's earlier pairs, a new pair is shown with
    the probability p / (1 - P), so w = (1 - P) / (p x items that are left) has mean 1; inside the biased log w is 0.
    """
    random = data.random
    assert random.times is not None
    outside = had.find(random.users, random.items) < 0
    if data.eligibility is None:
        possible = (data.n_items - had.sizes())[random.users].astype(np.float64)
    else:
        ones = random._replace(weights=np.ones(len(random.users), np.float32))
        sums = uniformity.eligible_sums(data, ones, had, np.zeros(data.n_items, np.int64))[:, 0]
        possible = (sums / np.maximum(np.bincount(random.users, minlength=data.n_users), 1))[random.users]
    p, order = np.asarray(random.propensities, np.float64), np.lexsort((random.times, random.users))
    starts = np.flatnonzero(np.append(True, np.diff(random.users[order]) != 0))
    sizes = np.diff(np.append(starts, len(order)))
    w = np.empty(len(order))
    earlier, left = (np.cumsum(column[order]) - column[order] for column in (p, outside.astype(np.float64)))
    earlier, left = (column - np.repeat(column[starts], sizes) for column in (earlier, left))
    chances = p[order] / np.maximum(1 - earlier, 1e-9)
    w[order] = np.where(outside[order], 1 / (chances * np.maximum(possible[order] - left, 1.0)), 0.0)
    return w


def _bets(w: np.ndarray, limit: float) -> float:
    """The mean of two products of bets on w, whose mean is 1: that it is larger, and that it is smaller."""
    factors = [np.maximum(1 + bet * (w - 1), 0.0) for bet in (BET, -BET / limit)]
    with np.errstate(divide="ignore"):
        return float(np.mean([np.exp(min(float(np.log(each).sum()), 700.0)) for each in factors]))
