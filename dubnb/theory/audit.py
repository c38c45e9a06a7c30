"""`dubnb.audit(data)`: is the randomized log random, do the sets overlap, and how biased is the other log?

The audit gives two kinds of answers.

*Verdicts* (yes or no) are about the items that the policy chose, given the user. Each has a Monte-Carlo p-value
(`uniformity`) and Holm's correction over all verdicts. A uniform policy therefore gets any "no" with a probability of
at most 5 % (`python -m bench.coverage_audit`). Which users came, how often and when does not matter. A "yes" means only
that the test found no evidence against it; `python -m bench.audit_power` measures how small a distortion it finds.

*Propensities.* A log whose propensities vary is not meant to be uniform. Two questions about the propensities p then
replace those about uniformity. Suppose that p is right, and that every item outside the user's biased log can be shown.
Then the sum of 1 / p over N impressions has the mean N times the number of such items. So in every group g of items

    Z_ug = sum over the user's impressions in group g of 1 / p  -  N_u |g outside the user's biased log|

has mean 0. If no pair is shown twice although chance alone would repeat some, the policy never repeats a pair. Then the
items that user u was shown earlier do not count: Z_ug counts |g outside both| at each impression.

`weights` tests the sum over groups by Student's t over users, corrected for skewness. `exposure` tests every tenth of
the items by popularity, with Bonferroni's correction. A few heavy pairs decide the sum of a tenth, for which the tails
of Student's t are too thin. So a tenth is tested as a weighted sum of Poisson counts (Fay and Feuer, 1997), which is
conservative. If one pair weighs more than a hundredth of the sum, nothing is tested: steep policies would fail 20 to
60 % of the tests. Logs that pass may lack such a pair by chance, and then weigh too little. So both tests allow for one
missed pair, RARER times as heavy as the heaviest, but no heavier than a tested log allows. A "no" means wrong
propensities, or items that some users could not be shown. `python -m bench.coverage_audit` counts the false alarms.

*Information* is about what the policy did not choose: users, their activity, time. It describes for whom conclusions
hold, and is never a "no".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from dubnb import _check, stats
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.data.eligibility import times_of_pairs
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.data.pattern import joined
from dubnb.report import tables
from dubnb.theory import selection, uniformity
from dubnb.theory.daily import DailyAudit, audit_by_day
from dubnb.theory.selection import Fact
from dubnb.theory.uniformity import STATISTICS, RandomizedLog, UniformPolicy

ALPHA = 0.05
YES, NO, UNKNOWN, INFORMATION = "yes", "no", "cannot be told", "information"
SIGNS = {YES: "YES", NO: "NO", UNKNOWN: "?", INFORMATION: "INFO"}
FEWEST_PAIRS = 30  # a smaller randomized log cannot be audited
SLICES = 10  # parts of the period, and of the items by popularity
OVERLAP_FEW = 3.0  # with fewer expected shared pairs, even zero shared pairs would be no evidence
FEWEST_REPEATS = 10.0  # expected pairs that are shown again: if there is none, the policy repeats no pair
ROUNDING = 1e-6  # propensities are stored with 24 bits: a smaller relative deviation is none
MOST_SHARE = 0.01  # of the sum of 1 / p: if one pair weighs more, right propensities fail the tests too often
RARER = 3.0  # how much heavier than the heaviest pair a pair may be that the log missed by chance
ON_DISK = "S_c is on disk: taste, and what explains the selection of pairs, are not measured"
CHART_HALF = 20  # characters on either side of 1 in the text chart

QUESTIONS = {
    "items": "Is every item shown as often as chance allows?",
    "catalogue": "Is every stretch of the catalogue (items in the order of their ids) shown equally often?",
    "popularity": "Is what is shown independent of popularity in the biased log?",
    "taste": "Is what is shown independent of the user's taste, as a model of the biased log predicts it?",
    "weights": "Do the weights 1 / propensity have the mean that correct propensities give them?",
    "exposure": "Is every tenth of the items, by popularity, shown as often as its propensities say?",
    "groups": "Are the given groups of items shown in proportion to their sizes?",
    "order": "Are the same items shown early and late?",
    "overlap": "Does the randomized log repeat pairs of the biased log as often as chance allows?",
    "eligible": "Were only eligible items shown?",
    "leakage": "Are the sets disjoint, and does every pair occur once?",
    "users": "How many pairs does each user have in the randomized log?",
    "activity": "Are users of the randomized log more or less active in the biased log than the others?",
    "positivity": "How rare are the rarest pairs, and how heavy the heaviest?",
    "effective": "How many uniform pairs are the weighted ones worth?",
    "time": "How is the randomized log spread over time?",
    "absent": "Are all users and items in both logs?",
}


@dataclass(frozen=True)
class Answer:
    """One question of the audit: its verdict, the reason, the number behind it, and p-values before and after Holm.

    An answer whose verdict is INFORMATION has no adjusted p-value: it is not evidence for or against the policy.
    """

    name: str
    question: str
    verdict: str
    reason: str
    number: float | None = None
    p: float | None = None
    adjusted: float | None = None

    def p_text(self) -> str:
        """The p-values in brackets, or nothing."""
        if self.p is None:
            return ""
        holm = "" if self.adjusted is None else f", Holm {self.adjusted:.3f}"
        return f" (p {self.p:.3f}{holm})"


class PendingAnswer(NamedTuple):
    """A tested question with the reason for either verdict, between which Holm's correction decides later."""

    name: str
    p: float
    number: float
    reason_yes: str
    reason_no: str


class Exposure(NamedTuple):
    """How often items were shown, and how often a uniform policy would show them, for a group by popularity in S_c."""

    first: float  # share of the items that are rarer in S_c than the group
    last: float
    shown: int
    expected: float
    low: float  # a uniform policy shows low to high in 95 % of logs
    high: float


@dataclass(frozen=True)
class Audit:
    """The answers about the randomized log, and facts about both logs."""

    data: str
    summary: str
    answers: tuple[Answer, ...]
    facts: tuple[Fact, ...]
    n_draws: int
    alpha: float = ALPHA
    warnings: tuple[str, ...] = field(default=())
    exposures: tuple[Exposure, ...] = ()  # tenths of the items, from the rarest in S_c to the most popular

    @property
    def uniform(self) -> bool | None:
        """Whether no test found evidence against a uniform choice of items; None where nothing could be tested.

        For a log whose propensities vary: whether none found evidence against them.
        """
        verdicts = [answer.verdict for answer in self.answers if answer.adjusted is not None]
        return None if not verdicts else NO not in verdicts

    def to_dict(self) -> dict[str, Any]:
        """The audit as a dictionary of JSON types."""
        return {
            "data": self.data,
            "summary": self.summary,
            "uniform": self.uniform,
            "alpha": self.alpha,
            "answers": [asdict(answer) for answer in self.answers],
            "facts": [asdict(fact) for fact in self.facts],
            "exposures": [each._asdict() for each in self.exposures],
            "draws": self.n_draws,
            "warnings": list(self.warnings),
        }

    def text(self, paint: Callable[[str, str], str] = lambda text, verdict: text) -> str:
        """The report as text; `paint(text, verdict)` may colour a sign by its verdict."""
        lines = [f"audit of {self.data}", "", self.summary]
        for informs in (False, True):
            lines += ["", "For information only:" if informs else "What is shown, given the user:"]
            for answer in self.answers:
                if (answer.verdict == INFORMATION) == informs:
                    sign = paint(f"{SIGNS[answer.verdict]:<4}", answer.verdict)
                    lines += [f"{sign} {answer.question}{answer.p_text()}", f"     {answer.reason}"]
        if self.exposures:
            title = "Tenths of the items by popularity in the biased log: shown / expected of a uniform policy"
            lines += ["", title, "(| marks 1, - the 95 % range of a uniform policy, o inside it, X outside)"]
            lines += _chart(self.exposures, paint)
        rows = [[f.name, f.value, "" if f.low is None else f"{f.low:.4f}..{f.high:.4f}", f.meaning] for f in self.facts]
        lines += ["", tables.text(["how far the biased log (S_c) is from uniform", "value", "95 %", ""], rows, "<>><")]
        return "\n".join([*lines, *self.warnings])

    def __str__(self) -> str:
        return self.text()


def _chart(exposures: tuple[Exposure, ...], paint: Callable[[str, str], str]) -> list[str]:
    """One line per tenth of the items."""
    ratios = [[value / max(each.expected, 1e-12) for value in (each.shown, each.low, each.high)] for each in exposures]
    reach = max(0.02, *(abs(value - 1) for row in ratios for value in row))
    lines = []
    for k, (ratio, low, high) in enumerate(ratios):
        at, start, end = (round(CHART_HALF * (1 + (value - 1) / reach)) for value in (ratio, low, high))
        inside = low <= ratio <= high
        cells = ["-" if start <= column <= end else " " for column in range(2 * CHART_HALF + 1)]
        cells[CHART_HALF], cells[at] = "|", "o" if inside else "X"
        name = {0: "rarest", len(ratios) - 1: "most popular"}.get(k, "")
        lines.append(f"  {name:<12} {ratio:5.2f}  {paint(''.join(cells), YES if inside else NO)}".rstrip())
    return lines


@overload
def audit(data: Partition, *, by: Literal["day"], seed: int = 0) -> DailyAudit: ...


@overload
def audit(
    data: Partition,
    *,
    times: Mapping[str, Any] | None = None,
    item_groups: Any = None,
    n_draws: int = uniformity.N_DRAWS,
    seed: int = 0,
    by: None = None,
    quiet: bool = True,
) -> Audit: ...


def audit(
    data: Partition,
    *,
    times: Mapping[str, Any] | None = None,
    item_groups: Any = None,
    n_draws: int = uniformity.N_DRAWS,
    seed: int = 0,
    by: str | None = None,
    quiet: bool = True,
) -> Audit | DailyAudit:
    """Check whether the randomized log is random, for anyone who trains or evaluates on it.

    The audit tests whether items were shown uniformly at random, reports pairs that occur in several sets, and
    measures how biased the other log is. `print` shows the report; `.uniform` is its conclusion.

    Parameters
    ----------
    data : Partition
        The logs. S_t, S_va and S_te are audited together, because one policy made them.
    times : mapping of part to array, optional
        When each pair was shown, in the order of `data.triplets(part)`, for every randomized part that has pairs.
    item_groups : array, optional
        A group for every item, in the order of `data.item_ids`. Tests whether groups are shown in proportion to
        their sizes.
    n_draws : int
        Number of simulated uniform logs that the log is compared with.
    seed : int
        Seed of these draws and of the model that predicts taste.
    by : {"day"}, optional
        "day" is for audits that run every day: it adds up the evidence of all days so far. The probability that a
        uniform policy ever raises an alarm is at most 2.5 %. Needs a log with times (`timestamp` of
        `Partition.from_frames`). Takes `seed` alone.
    quiet : bool
        Whether to hide the progress bar.

    Returns
    -------
    Audit or DailyAudit
        Answers with p-values, facts about both logs; `.text()`, `.to_dict()` and `.uniform`. By day: `.days`, the first
        `.alarm`, and the same three.

    Examples
    --------
    >>> audit = dubnb.audit(dubnb.load_dataset("simulated"))
    >>> audit.uniform
    True
    """
    if not isinstance(data, Partition):
        raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset returns")
    if by is not None:
        _check.choice("by", by, ("day",))
        if times is not None or item_groups is not None:
            raise InputError("by='day' takes neither times= nor item_groups=: give the log a column of times")
        return audit_by_day(data, _check.whole("seed", seed, low=0))
    n_draws, seed = _check.whole("n_draws", n_draws, low=99), _check.whole("seed", seed, low=0)
    when, groups = _checked_times(data, times), _checked_groups(data, item_groups)
    whole = uniformity.randomized_log(data)
    taste = selection.taste_model(data, seed)
    outside = uniformity.tested_pairs(data, whole)
    log = RandomizedLog(*(column[outside] for column in whole))
    exposures: tuple[Exposure, ...] = ()
    tested: list[PendingAnswer | Answer]
    derived = data.eligibility is not None and data.eligibility.derived
    explored = not derived and any(data.importance(part) is not None for part in RANDOMIZED)
    if explored:
        tested = _propensities(data, groups)
    elif _clicks_only(whole):
        because = (
            "the randomized log holds positives only: pairs that were shown without a click are missing, and clicks "
            "follow taste under any policy"
        )
        tested = [_unknown(name, because) for name in STATISTICS]
    elif len(log.users) < FEWEST_PAIRS:
        because = f"the randomized log has {len(log.users)} pairs outside S_c, fewer than {FEWEST_PAIRS}"
        tested = [_unknown(name, because) for name in STATISTICS]
    else:
        times_of = uniformity.randomized_times(data)[outside]
        policy = uniformity.uniform_policy(data, log, taste.scorer, times_of, seed)
        exposures = _exposures(log, policy)
        tested = _uniformity(data, log, policy, n_draws, seed, quiet)
        if groups is not None:
            tested.append(_groups(log, policy, groups, n_draws, seed))
        if when is not None:
            tested.append(_order(log, when[outside], n_draws, seed, policy))
    if not explored:
        tested.append(_overlap(data, whole))
    information = [
        *(_of_weights(data) if explored or (derived and data.importance("S_t") is not None) else ()),
        *_users(data, whole, n_draws, seed),
        *_times(when, n_draws, seed),
        _absent(data),
    ]
    answers = (*_with_holm(tested), *_eligible(data), _leakage(data), *information)
    facts = tuple(selection.selection_facts(data, taste, seed))
    notes = () if data.stored_in is None else (ON_DISK,)
    return Audit(data.name, _summary(answers, data), answers, facts, n_draws, warnings=notes, exposures=exposures)


def _clicks_only(log: RandomizedLog) -> bool:
    return bool(len(log.labels)) and bool((log.labels == 1).all())


def _checked_times(data: Partition, times: Mapping[str, Any] | None) -> np.ndarray | None:
    """Times in the order of `uniformity.randomized_log`."""
    if times is None:
        return None
    columns = []
    for part in RANDOMIZED:
        n = len(data.triplets(part).users)
        own = np.asarray(times.get(part, np.zeros(0)))
        if own.shape != (n,) or own.dtype.kind not in "iufM":
            raise InputError(f"times[{part!r}] of {own.dtype} and shape {own.shape}: pass one number or date per pair")
        columns.append(own.astype("M8[us]").astype(np.float64) if own.dtype.kind == "M" else own.astype(np.float64))
    column = np.concatenate(columns)
    if not np.isfinite(column).all():
        raise InputError("times hold a value that is not finite: pass a number or date for every pair")
    users = np.concatenate([data.triplets(part).users for part in RANDOMIZED])
    return np.asarray(column[np.argsort(users, kind="stable")])


def _checked_groups(data: Partition, groups: Any) -> np.ndarray | None:
    if groups is None:
        return None
    groups = np.asarray(groups)
    if groups.shape != (data.n_items,):
        raise InputError(f"item_groups of shape {groups.shape} for {data.n_items} items: pass one group per item")
    codes = np.unique(groups, return_inverse=True)[1]
    if codes.max() == 0:
        raise InputError("item_groups holds one group only: pass at least two to compare them")
    return np.asarray(codes)


# ---- the questions -------------------------------------------------------------------------------------------------


def _unknown(name: str, because: str) -> Answer:
    return Answer(name, QUESTIONS[name], UNKNOWN, f"cannot be told from these data, because {because}")


def _informs(name: str, text: str, number: float | None = None, p: float | None = None) -> Answer:
    return Answer(name, QUESTIONS[name], INFORMATION, text, number, p)


def _with_holm(tested: list[PendingAnswer | Answer]) -> list[Answer]:
    """Decide the verdicts by Holm's adjusted p-values, over all questions that could be tested."""
    p = [each.p for each in tested if isinstance(each, PendingAnswer)]
    adjusted = iter(stats.holm(p) if p else ())
    answers = []
    for each in tested:
        if isinstance(each, PendingAnswer):
            value = float(next(adjusted))
            verdict, reason = (NO, each.reason_no) if value <= ALPHA else (YES, each.reason_yes)
            question = QUESTIONS[each.name]
            each = Answer(each.name, question, verdict, reason, float(each.number), float(each.p), value)
        answers.append(each)
    return answers


def _uniformity(
    data: Partition, log: RandomizedLog, policy: UniformPolicy, n_draws: int, seed: int, quiet: bool
) -> list[PendingAnswer | Answer]:
    """Items, catalogue, popularity, taste: against uniform logs for the same users."""
    null = uniformity.null_draws(policy, n_draws, seed, quiet)
    observed = policy.statistics(log.items)
    p = dict(zip(STATISTICS, uniformity.p_values(observed, null), strict=True))
    chi2, middle = observed[0], float(np.median(null[:, 0]))
    answers: list[PendingAnswer | Answer] = [
        PendingAnswer(
            "items",
            p["items"],
            chi2,
            f"counts of items vary as much as chance explains: chi-squared {chi2:,.0f}, uniform logs {middle:,.0f}.",
            f"counts of items vary too much: chi-squared {chi2:,.0f} where uniform logs have {middle:,.0f}.",
        )
    ]
    counts = np.bincount(log.items, minlength=data.n_items).astype(np.float64)
    ids, n = data.item_ids.values, data.n_items
    by_id, by_popularity = policy.band(counts), policy.band(counts, policy.by_popularity)
    spans = {
        "catalogue": f"items {tables.printable(ids[by_id.first])} to {tables.printable(ids[by_id.last - 1])}",
        "popularity": f"items {100 * by_popularity.first / n:.0f} to {100 * by_popularity.last / n:.0f} % of the way "
        "from the rarest to the most frequent in the biased log",
    }
    for (name, span), band in zip(spans.items(), (by_id, by_popularity), strict=True):
        how = f"{abs(band.ratio - 1):.1%} {'more' if band.ratio >= 1 else 'less'} often than expected"
        shown = f"{span} are shown {how}"
        answers.append(
            PendingAnswer(name, p[name], band.ratio, f"chance explains the largest deviation: {shown}.", f"{shown}.")
        )
    if policy.taste is None or not (policy.taste.deviations[log.users] > 0).any():
        because = "no model of S_c can rank the items: its labels are all equal, or too few"
        if data.stored_in is not None:
            because = "S_c is on disk, and a model of taste needs it in memory"
        return [*answers, _unknown("taste", because)]
    mean = float(policy.taste.values(log.users, log.items).mean())
    side = "above" if mean >= 0 else "below"
    shown = f"shown items score {abs(mean):.3f} standard deviations {side} the user's mean"
    return [*answers, PendingAnswer("taste", p["taste"], mean, f"{shown}, which chance explains.", f"{shown}.")]


def _propensities(data: Partition, groups: np.ndarray | None) -> list[PendingAnswer | Answer]:
    """Are the logged propensities right? See the module's docstring."""
    rows = joined(*(data.triplets(part) for part in RANDOMIZED))
    users, n_users = np.unique(rows.users, return_inverse=True)
    if min(len(users), len(rows.users)) < FEWEST_PAIRS:
        because = f"the randomized log has {len(rows.users)} pairs of {len(users)} users, fewer than {FEWEST_PAIRS}"
        return [_unknown(name, because) for name in ("weights", "exposure")]
    had = uniformity.logged(data)
    outside = had.find(rows.users, rows.items) < 0
    impressions = np.bincount(n_users, rows.weights)
    weights = np.where(outside, rows.weights / np.asarray(rows.propensities, np.float64), 0.0)
    popularity = data.biased_counts.items
    tenth = np.empty(data.n_items, np.int64)
    n_tenths = min(SLICES, data.n_items)
    for number, own in enumerate(np.array_split(np.argsort(popularity, kind="stable"), n_tenths)):
        tenth[own] = number

    one_over_p = np.where(outside, 1 / np.asarray(rows.propensities, np.float64), 0.0)
    later = _impressions_later(n_users, times_of_pairs(rows))
    repeats = rows.weights.max() > 1 or float(np.asarray(rows.propensities, np.float64) @ later) < FEWEST_REPEATS

    def sums(group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(users, groups) sums of 1 / p, and their means if the propensities are right."""
        size = int(group.max()) + 1
        found = np.bincount(n_users * size + group[rows.items], weights, len(users) * size).reshape(len(users), size)
        if data.eligibility is not None:
            return found, uniformity.eligible_sums(data, rows, had, group)[users]
        place = np.full(data.n_users, -1)
        place[users] = np.arange(len(users))
        taken = np.zeros(len(users) * size, np.int64)
        for first, some in uniformity.pieces(had):
            mine = place[first + some.users()]
            np.add.at(taken, (mine * size + group[some.items])[mine >= 0], 1)
        expected = impressions[:, None] * (np.bincount(group, minlength=size) - taken.reshape(len(users), size))
        if not repeats:
            gone = np.bincount(n_users * size + group[rows.items], later * outside, len(users) * size)
            expected = expected - gone.reshape(len(users), size)
        return found, expected

    def p_of(group: np.ndarray, expected: np.ndarray) -> float:
        """The p-value of the hypothesis that every group has its mean: the least of the groups, by Bonferroni."""
        p = []
        for number, mean in enumerate(expected.sum(axis=0)):
            own = group[rows.items] == number
            if mean > 0 or one_over_p[own].any():
                p.append(p_weighted_count(one_over_p[own], rows.weights[own], mean, missed))
        return min(1.0, len(p) * min(p)) if p else 1.0

    found, expected = sums(tenth)
    heaviest = float(one_over_p.max()) / max(float(expected.sum()), 1e-300)
    if heaviest > MOST_SHARE:
        because = (
            f"one pair alone weighs {heaviest:.1%} of what all should, more than {MOST_SHARE:.0%}: the rarest pairs "
            "decide; log more traffic, or raise the least propensity"
        )
        return [
            _unknown(name, because) for name in ("weights", "exposure", *(("groups",) if groups is not None else ()))
        ]
    missed = min(RARER * float(one_over_p.max()), MOST_SHARE * float(expected.sum()))
    ratio = float(found.sum() / expected.sum())
    together = 1.0 if abs(ratio - 1) < ROUNDING else _p_of_sum((found - expected).sum(axis=1), missed)
    had_earlier = "biased log" if repeats or data.eligibility is not None else "biased log and not shown before"
    mean = f"the mean of 1 / propensity is {ratio:.3f} of the number of items outside the users' {had_earlier}"
    ratios = found.sum(axis=0) / np.maximum(expected.sum(axis=0), 1e-300)
    worst = int(np.argmax(np.abs(ratios - 1)))
    shown = f"tenth {worst + 1} of {n_tenths}, counted from the rarest, weighs {ratios[worst]:.3f} of what it should"
    why = "the propensities are wrong, or some users could not be shown all items (eligibility)."
    answers: list[PendingAnswer | Answer] = [
        PendingAnswer("weights", together, ratio, f"{mean}.", f"{mean}: {why}"),
        PendingAnswer(
            "exposure",
            p_of(tenth, expected),
            float(ratios[worst]),
            f"chance explains it: {shown}.",
            f"{shown}: {why}",
        ),
    ]
    if groups is not None:
        by_group = p_of(groups, sums(groups)[1])
        text = "groups weigh as much as their sizes say"
        answers.append(PendingAnswer("groups", by_group, by_group, f"{text}.", f"NOT all {text}: {why}"))
    return answers


def _impressions_later(users: np.ndarray, times: np.ndarray) -> np.ndarray:
    """How many impressions of the same user come after each impression; of equal times, half of the others."""
    order = np.lexsort((times, users))
    user, time, places = users[order], times[order], np.arange(len(order))
    of_user = np.append(np.flatnonzero(np.diff(user)) + 1, len(order))
    of_time = np.append(np.flatnonzero((np.diff(user) != 0) | (np.diff(time) != 0)) + 1, len(order))
    at = np.searchsorted(of_time, places, "right")
    middle = (np.append(0, of_time)[at] + of_time[at] - 1) / 2
    later = np.empty(len(order))
    later[order] = of_user[np.searchsorted(of_user, places, "right")] - 1 - middle
    return later


def p_weighted_count(values: np.ndarray, counts: np.ndarray, mean: float, largest: float) -> float:
    """The two-sided p-value of a mean of y = sum counts x values, with Poisson counts (Fay and Feuer, 1997).

    With v = sum counts x values^2, y is compared with a gamma law of mean y and variance v from below, and of mean
    y + w and variance v + w^2 from above. One pair of value w might have been missed: `largest`, or the largest seen.
    """
    from scipy.special import gammainc, gammaincc

    y, v = float(counts @ values), float(counts @ values**2)
    w = max(float(values.max(initial=0.0)), largest)
    too_many = float(gammainc(y * y / v, mean * y / v)) if v > 0 else 1.0
    y, v = y + w, v + w * w
    too_few = float(gammaincc(y * y / v, mean * y / v))
    return min(1.0, 2 * min(too_many, too_few))


def _p_of_sum(values: np.ndarray, missed: float) -> float:
    """The p-value of mean 0; a sum below 0 may lack `missed`."""
    total = float(values.sum())
    return 1.0 if -missed <= total < 0 else _p_mean_zero(values + (missed / len(values) if total < 0 else 0.0))


def _p_mean_zero(values: np.ndarray) -> float:
    """The two-sided p-value of mean 0, by Student's t after Hall's (1992) correction for skewness g.

        t' = t + g (2 t^2 + 1) / (6 sqrt n) + g^2 t^3 / (27 n)

    1 / p is skewed: logs without one of the heaviest pairs have both a small mean and a small variance.
    """
    from scipy.special import stdtr

    n, spread = len(values), float(values.std())
    if not spread > 0:
        return 1.0
    t = float(values.mean()) / spread * np.sqrt(n - 1)
    skewness = float(((values - values.mean()) ** 3).mean()) / spread**3
    t += skewness * (2 * t * t + 1) / (6 * np.sqrt(n)) + skewness**2 * t**3 / (27 * n)
    return float(2 * stdtr(n - 1, -abs(t)))


def _of_weights(data: Partition) -> list[Answer]:
    """Positivity and effective sample sizes of a log whose propensities vary."""
    answers = []
    own = np.concatenate([data.triplets(part).propensities for part in RANDOMIZED if len(data.triplets(part).users)])
    heaviest = max(float(weights.max()) for part in RANDOMIZED if (weights := data.importance(part)) is not None)
    text = (
        f"propensities are {own.min():.2g} to {own.max():.2g}; the heaviest pair weighs {heaviest:.1f} times the mean. "
        "Pairs that the policy never shows are not represented at all."
    )
    answers.append(_informs("positivity", text, float(own.min())))
    sizes = {part: (data.effective_sample_size(part), len(data.triplets(part).users)) for part in RANDOMIZED}
    listed = ", ".join(f"{part} {size:,.0f} of {n:,}" for part, (size, n) in sizes.items())
    total = sum(size for size, _ in sizes.values()) / sum(n for _, n in sizes.values())
    answers.append(_informs("effective", f"effective sample sizes: {listed}.", total))
    return answers


def _groups(log: RandomizedLog, policy: UniformPolicy, groups: np.ndarray, n_draws: int, seed: int) -> PendingAnswer:
    expected = np.bincount(groups, weights=policy.expected)

    def chi2(items: np.ndarray) -> np.ndarray:
        observed = np.bincount(groups[items], minlength=len(expected))
        return np.array([((observed - expected) ** 2 / np.maximum(expected, 1e-12)).sum()])

    null = np.array([chi2(policy.draw(seed, "groups", draw)) for draw in range(n_draws)])
    p = float(uniformity.p_values(chi2(log.items), null)[0])
    ratios = np.bincount(groups[log.items], minlength=len(expected)) / np.maximum(expected, 1e-12)
    worst = float(ratios[np.abs(np.log(np.maximum(ratios, 1e-6))).argmax()])
    shown = f"the group that deviates most is shown {worst:.2f} times as often as expected"
    return PendingAnswer("groups", p, worst, f"{shown}, which chance explains.", f"{shown}.")


def _order(
    log: RandomizedLog, when: np.ndarray, n_draws: int, seed: int, policy: UniformPolicy
) -> PendingAnswer | Answer:
    """Whether what is shown changed over time: items are redrawn for the same users at the same times."""
    if when.min() == when.max():
        return _unknown("order", "all times are equal")
    ranks = np.empty(policy.n_items, np.int64)
    ranks[policy.by_popularity] = np.arange(policy.n_items) * SLICES // policy.n_items
    quantile = np.argsort(np.argsort(when, kind="stable")) * SLICES // len(when)
    draws = (ranks[policy.draw(seed, "order", draw)] for draw in range(n_draws))
    p = uniformity.p_table(quantile, ranks[log.items], draws)
    about = "tenths of the items by popularity, against tenths of the pairs by time"
    return PendingAnswer("order", p, p, f"{about}: independent.", f"{about}: what is shown changed over time.")


def _overlap(data: Partition, log: RandomizedLog) -> PendingAnswer | Answer:
    """Pairs that both logs hold.

    No shared pair means that one log excludes the other, which is a valid design: the tests of items allow for it.
    A few shared pairs, but too few or too many, are a distortion.
    """
    expected, n = uniformity.expected_overlap(data, log), int((~uniformity.tested_pairs(data, log)).sum())
    if _clicks_only(log):
        logs = "both logs hold clicks only" if data.click_only else "the randomized log holds clicks only"
        return _unknown("overlap", f"{logs}: people click the same items under any policy")
    if expected < OVERLAP_FEW:
        return _unknown("overlap", f"only {expected:.1f} shared pairs are expected")
    about = f"{n:,} pairs are in both logs where {expected:,.0f} are expected"
    if n == 0:
        reason = f"{about}: one log excludes the other. Items are tested outside each user's pairs of the biased log."
        return _informs("overlap", reason, 0.0)
    from scipy.special import pdtr

    tail = min(pdtr(n, expected), 1 - pdtr(n - 1, expected))
    reason_no = f"{about}: one log {'avoids' if n < expected else 'repeats'} the other."
    return PendingAnswer("overlap", min(1.0, 2 * tail), n / expected, f"{about}.", reason_no)


def _users(data: Partition, log: RandomizedLog, n_draws: int, seed: int) -> list[Answer]:
    """How many pairs users have and how active they are. Information only, because users come by themselves."""
    counts = np.bincount(log.users, minlength=data.n_users)
    present = counts > 0
    n_present = int(present.sum())
    if n_present < 2:
        return [_informs(name, f"the randomized log has {n_present} users.") for name in ("users", "activity")]
    p = uniformity.p_even(counts[present], generator(seed, "audit", "users"), n_draws)
    most, mean = int(counts.max()), counts[present].mean()
    about = f"{n_present:,} of {data.n_users:,} users are in it, with {mean:.1f} pairs on average and {most:,} at most"
    even = "as even as chance" if p > ALPHA else "some users weigh more than others"
    answers = [_informs("users", f"{about}: {even}.", most / mean, p)]
    # Users without a pair in S_c are known from the randomized log alone, so they cannot be compared.
    sizes = uniformity.logged(data).sizes()
    known = sizes > 0
    activity, present = np.log(sizes[known]), present[known]
    if present.all():
        return [*answers, _informs("activity", "all users of S_c are in the randomized log.")]
    if not present.any():
        return [*answers, _informs("activity", "no user of S_c is in the randomized log.")]
    if activity.max() == activity.min():
        return [*answers, _informs("activity", "all users are equally active in S_c.")]
    p = uniformity.p_mean(activity, present, generator(seed, "audit", "activity"), n_draws)
    ratio = float(np.exp(activity[present].mean() - activity[~present].mean()))
    about = f"in S_c, users of the randomized log have {ratio:.2f} times the pairs of the others (geometric mean)"
    meaning = "chance explains it" if p > ALPHA else "results on the randomized log hold for such users"
    return [*answers, _informs("activity", f"{about}: {meaning}.", ratio, p)]


def _times(when: np.ndarray | None, n_draws: int, seed: int) -> list[Answer]:
    """How even the traffic is over time. Information only, because people come when they like."""
    if when is None or not len(when):
        return []
    start, end = when.min(), when.max()
    if start == end:
        return [_informs("time", "all times are equal.")]
    tenths = np.minimum(((when - start) / (end - start) * SLICES).astype(np.int64), SLICES - 1)
    counts = np.bincount(tenths, minlength=SLICES)
    p = uniformity.p_even(counts, generator(seed, "audit", "time"), n_draws)
    low, high = counts.min() * SLICES / counts.sum(), counts.max() * SLICES / counts.sum()
    even = "as even as chance" if p > ALPHA else "traffic is uneven"
    return [_informs("time", f"tenths of the period hold {low:.2f} to {high:.2f} times their share: {even}.", high, p)]


def _eligible(data: Partition) -> list[Answer]:
    """Whether the rules of eligibility, where there are some, allow what was shown; not a test."""
    if data.eligibility is None:
        return []
    n = int((~data.shown_eligible()).sum())
    strata = len(data.eligibility.names)
    rules = "windows, exclusions" + (f" and {strata} strata" if strata > 1 else "")
    reason = f"{n:,} of {len(data.random.users):,} pairs were shown although they were not eligible ({rules})."
    return [Answer("eligible", QUESTIONS["eligible"], NO if n else YES, reason, float(n))]


def _leakage(data: Partition) -> Answer:
    """What loading the logs has already ensured; not a test."""
    n = data.removed
    shared = f"{n:,} pairs of S_c were in a randomized set and were removed from S_c" if n else "no pair is in two sets"
    reason = f"{shared}; repeated pairs were merged when the logs were read, with a warning."
    return Answer("leakage", QUESTIONS["leakage"], YES, reason, float(n))


def _absent(data: Partition) -> Answer:
    """Users and items that one of the logs lacks."""
    log, S_c = uniformity.randomized_log(data), uniformity.logged(data)
    met = np.zeros(data.n_items, bool)
    for _, some in uniformity.pieces(S_c):
        met[some.items] = True
    absent = []
    for what, randomized, in_c in (("users", log.users, S_c.sizes() > 0), ("items", log.items, met)):
        in_t = np.bincount(randomized, minlength=len(in_c)) > 0
        absent.append(
            f"{int((in_t & ~in_c).sum()):,} {what} are in the randomized log only, "
            f"{int((in_c & ~in_t).sum()):,} in S_c only, {int((~in_c & ~in_t).sum()):,} in neither"
        )
    return _informs("absent", "; ".join(absent) + ".")


def _exposures(log: RandomizedLog, policy: UniformPolicy) -> tuple[Exposure, ...]:
    """Tenths of the items by popularity in S_c, with the normal 95 % range of a uniform policy."""
    counts = np.bincount(log.items, minlength=policy.n_items)[policy.by_popularity]
    expected = policy.expected[policy.by_popularity]
    exposures = []
    for group in np.array_split(np.arange(policy.n_items), min(SLICES, policy.n_items)):
        own, n = float(expected[group].sum()), float(expected.sum())
        half = 1.96 * np.sqrt(max(own * (1 - own / n), 0.0))
        first, last = group[0] / policy.n_items, (group[-1] + 1) / policy.n_items
        exposures.append(Exposure(first, last, int(counts[group].sum()), own, max(0.0, own - half), own + half))
    return tuple(exposures)


def _summary(answers: tuple[Answer, ...], data: Partition) -> str:
    tested = [answer for answer in answers if answer.adjusted is not None]
    if not tested:
        because = next((a.reason.partition(", because ")[2] for a in answers if a.verdict == UNKNOWN), "")
        why = f", because {because}" if because else ""
        explored = any(answer.name == "weights" for answer in answers)
        asked = "the logged propensities are right" if explored else "the randomized log is uniform"
        return f"Whether {asked} cannot be told from these data{why}."
    against = [answer.name for answer in tested if answer.verdict == NO]
    if any(answer.name == "weights" for answer in tested):
        if against:
            return f"The logged propensities do NOT fit what was shown: {', '.join(against)} (after Holm)."
        return f"No evidence against the logged propensities: {len(tested)} questions."
    n = sum(len(data.triplets(part).users) for part in RANDOMIZED)
    if not against:
        return f"No evidence against a uniform choice of items: {len(tested)} questions, {n:,} randomized pairs."
    return f"The randomized log is NOT uniform: {', '.join(against)} (of {len(tested)} questions, after Holm)."
