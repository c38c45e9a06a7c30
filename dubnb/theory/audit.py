"""`dubnb.audit(data)`: is the randomized log random, what leaks, and how biased is the rest? Verdicts in plain words.

Two kinds of answers. *Verdicts* are about the items that the policy chose, given the user: each has a Monte-Carlo
p-value (see `uniformity`) and Holm's correction over all of them, so that a uniform policy meets any "no" with a
probability of at most 5 %, whichever users came, how often and when (`python -m bench.coverage_audit`). *Information*
is about what the policy did not choose: users, their activity, time. It says for whom conclusions hold, and is never a
"no".
A yes means that nothing speaks against it, no more; `python -m bench.audit_power` shows how small a distortion is
found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dubnb import _check, stats
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.report import tables
from dubnb.theory import selection, uniformity
from dubnb.theory.facts import Fact
from dubnb.theory.uniformity import STATISTICS, Design, RandomizedLog

ALPHA = 0.05
YES, NO, UNKNOWN, INFORMATION = "yes", "no", "cannot be told", "information"
SIGNS = {YES: "YES", NO: "NO", UNKNOWN: "?", INFORMATION: "INFO"}
FEWEST_PAIRS = 30  # of a randomized log that can be audited
SLICES = 10  # of time


@dataclass(frozen=True)
class Answer:
    """One question, the verdict, the number behind it and how sure that is (p-values as they are, and after Holm).

    An answer whose verdict is INFORMATION has no adjusted p-value: it does not speak for or against the policy.
    """

    name: str
    question: str
    verdict: str
    reason: str
    number: float | None = None
    p: float | None = None
    adjusted: float | None = None


class Exposure(NamedTuple):
    """How often a group of items was shown, and how often a uniform policy would have; items by popularity in S_c."""

    first: float  # share of the items that are rarer in S_c than the group
    last: float
    shown: int
    expected: float
    low: float  # the middle 95 % of what a uniform policy would show
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
        """Whether nothing speaks against a uniform choice of items; None where nothing could be tested."""
        told = [answer.verdict for answer in self.answers if answer.adjusted is not None]
        return None if not told else NO not in told

    def to_dict(self) -> dict[str, Any]:
        """Everything, in JSON's own types."""
        document: dict[str, Any] = {
            "data": self.data,
            "summary": self.summary,
            "uniform": self.uniform,
            "alpha": self.alpha,
        }
        document |= {"answers": [asdict(a) for a in self.answers], "facts": [asdict(f) for f in self.facts]}
        document |= {"exposures": [each._asdict() for each in self.exposures]}
        return document | {"draws": self.n_draws, "warnings": list(self.warnings)}

    def text(self, paint: Callable[[str, str], str] = lambda text, verdict: text) -> str:
        """The report as text; `paint` may colour a sign by its verdict."""
        lines = [f"audit of {self.data}", "", self.summary]
        for informs in (False, True):
            lines += ["", "For information, whatever the answer:" if informs else "What is shown, given the user:"]
            for answer in self.answers:
                if (answer.verdict == INFORMATION) == informs:
                    sign = paint(f"{SIGNS[answer.verdict]:<4}", answer.verdict)
                    lines += [f"{sign} {answer.question}{p_text(answer)}", f"     {answer.reason}"]
        if self.exposures:
            lines += [
                "",
                "Tenths of the items by popularity in the biased log: shown, over what a uniform policy shows",
            ]
            lines += ["(| is 1; -: 95 of 100 tenths of a uniform log; X: outside)", *_chart(self.exposures, paint)]
        rows = [[f.name, f.value, _interval(f), f.meaning] for f in self.facts]
        lines += ["", tables.text(["how far the biased log (S_c) is from uniform", "value", "95 %", ""], rows, "<>><")]
        return "\n".join([*lines, *self.warnings])

    def __str__(self) -> str:
        return self.text()


def p_text(answer: Answer) -> str:
    """The p-value of an answer in brackets, or nothing."""
    if answer.p is None:
        return ""
    holm = "" if answer.adjusted is None else f", Holm {answer.adjusted:.3f}"
    return f" (p {answer.p:.3f}{holm})"


HALF = 20  # characters on either side of 1 in the chart in text


def _chart(exposures: tuple[Exposure, ...], paint: Callable[[str, str], str]) -> list[str]:
    """A line per tenth: dashes where a uniform policy leads, | at 1, o or X (outside) where the log is."""
    ratios = [[value / max(each.expected, 1e-12) for value in (each.shown, each.low, each.high)] for each in exposures]
    reach = max(0.02, *(abs(value - 1) for row in ratios for value in row))
    lines = []
    for k, (ratio, low, high) in enumerate(ratios):
        places = [round(HALF + HALF * (value - 1) / reach) for value in (ratio, low, high)]
        inside = low <= ratio <= high
        cells = ["-" if places[1] <= place <= places[2] else " " for place in range(2 * HALF + 1)]
        cells[HALF], cells[places[0]] = "|", "o" if inside else "X"
        name = {0: "rarest", len(ratios) - 1: "most popular"}.get(k, "")
        lines.append(f"  {name:<12} {ratio:5.2f}  {paint(''.join(cells), YES if inside else NO)}".rstrip())
    return lines


def _interval(fact: Fact) -> str:
    return "" if fact.low is None else f"{fact.low:.4f}..{fact.high:.4f}"


def audit(
    data: Partition,
    *,
    times: Mapping[str, Any] | None = None,
    item_groups: Any = None,
    n_draws: int = uniformity.N_DRAWS,
    seed: int = 0,
    quiet: bool = True,
) -> Audit:
    """Ask of both logs what every later number rests on.

    Parameters
    ----------
    data : Partition
        The logs. S_t, S_va and S_te are audited together, since one policy made them.
    times : mapping of part to array, optional
        When each pair was shown, in the order of `data.triplets(part)`, for every randomized part that has pairs.
    item_groups : array, optional
        A group for every item, in the order of `data.item_ids`: are the groups shown as often as their sizes say?
    n_draws : int
        Uniform logs that the log is compared with.
    seed : int
        Of these draws, and of the model that predicts taste.
    quiet : bool
        Whether to show no progress.
    """
    if not isinstance(data, Partition):
        raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset returns")
    n_draws, seed = _check.whole("n_draws", n_draws, low=99), _check.whole("seed", seed, low=0)
    whole, when = uniformity.randomized_log(data), _checked_times(data, times)
    groups = _checked_groups(data, item_groups)
    model = selection.taste_model(data, seed)
    outside = uniformity.tested_pairs(data, whole)
    log = RandomizedLog(*(column[outside] for column in whole))
    because = _untestable(whole, log)
    exposures: tuple[Exposure, ...] = ()
    if because is not None:
        answers = [_unknown(name, because) for name in STATISTICS]
    else:
        design = uniformity.design_of(data, log, model.scorer)
        exposures = _exposures(log, design)
        answers = [*_uniformity(data, log, design, n_draws, seed, quiet), *_groups(log, design, groups, n_draws, seed)]
        answers += _order(log, None if when is None else when[outside], n_draws, seed, design)
    answers += [_overlap(data, whole)]
    information = [*_users(data, whole, n_draws, seed), *_times(when, n_draws, seed), _absent(data)]
    findings = (*_with_holm(answers), *_leaks(data), *information)
    facts = tuple(selection.facts(data, model, seed))
    return Audit(data.name, _summary(findings, data), findings, facts, n_draws, exposures=exposures)


def _untestable(whole: RandomizedLog, outside: RandomizedLog) -> str | None:
    """Why the items of a randomized log cannot be tested, if so."""
    if _clicks_only(whole):
        return (
            "the randomized log holds positives alone: what was shown without a click is missing, and clicks follow "
            "taste whatever the policy shows"
        )
    if len(outside.users) < FEWEST_PAIRS:
        return f"the randomized log has {len(outside.users)} pairs outside S_c, fewer than {FEWEST_PAIRS}"
    return None


def _clicks_only(log: RandomizedLog) -> bool:
    return bool(len(log.labels)) and bool((log.labels == 1).all())


# ---- input ---------------------------------------------------------------------------------------------------------


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
        raise InputError("item_groups holds one group only: two are needed to compare them")
    return np.asarray(codes)


# ---- the questions -------------------------------------------------------------------------------------------------

QUESTIONS = {
    "items": "Is every item shown as often as chance allows?",
    "catalogue": "Is every stretch of the catalogue (items in the order of their ids) shown equally often?",
    "popularity": "Is what is shown independent of popularity in the biased log?",
    "taste": "Is what is shown independent of the user's taste, as a model of the biased log predicts it?",
    "users": "How many pairs has each user of the randomized log?",
    "activity": "How active in the biased log are the users of the randomized log, beside the others?",
    "groups": "Are the given groups of items shown as often as their sizes say?",
    "time": "How is the randomized log spread over time?",
    "order": "Are the same items shown early and late?",
    "overlap": "Does the randomized log repeat pairs of the biased log as often as chance allows?",
    "leakage": "Are the sets disjoint, and is every pair there once?",
    "absent": "Are all users and items in both logs?",
}


def _answer(name: str, p: float, number: float, fine: str, wrong: str) -> Answer:
    """An answer whose verdict `_with_holm` sets: `fine` and `wrong` are its two reasons."""
    return Answer(name, QUESTIONS[name], "", f"{fine}\n{wrong}", float(number), float(p))


def _unknown(name: str, because: str) -> Answer:
    return Answer(name, QUESTIONS[name], UNKNOWN, f"cannot be told from these data, because {because}")


def _informs(name: str, text: str, number: float | None = None, p: float | None = None) -> Answer:
    return Answer(name, QUESTIONS[name], INFORMATION, text, number, p)


def _with_holm(answers: list[Answer]) -> list[Answer]:
    """Verdicts by Holm's adjusted p-values, over all questions about items that could be tested."""
    tested = [answer for answer in answers if not answer.verdict]
    adjusted = stats.holm([float(answer.p or 0.0) for answer in tested]) if tested else np.zeros(0)
    told = {}
    for answer, value in zip(tested, adjusted, strict=True):
        fine, _, wrong = answer.reason.partition("\n")
        verdict = NO if value <= ALPHA else YES
        told[answer.name] = Answer(
            answer.name,
            answer.question,
            verdict,
            wrong if verdict == NO else fine,
            answer.number,
            answer.p,
            float(value),
        )
    return [told.get(answer.name, answer) for answer in answers]


def _uniformity(
    data: Partition, log: RandomizedLog, design: Design, n_draws: int, seed: int, quiet: bool
) -> list[Answer]:
    """Items, catalogue, popularity, taste: against uniform logs for the same users."""
    null = uniformity.null_draws(design, n_draws, seed, quiet)
    observed = design.statistics(log.items)
    p = dict(zip(STATISTICS, uniformity.p_values(observed, null), strict=True))
    counts = np.bincount(log.items, minlength=data.n_items).astype(np.float64)
    chi2, middle = observed[0], float(np.median(null[:, 0]))
    answers = [
        _answer(
            "items",
            p["items"],
            chi2,
            f"counts of items scatter as chance would have it: chi-squared {chi2:,.0f}, uniform logs {middle:,.0f}.",
            f"counts of items scatter too much: chi-squared {chi2:,.0f} where uniform logs have {middle:,.0f}.",
        )
    ]
    ids = data.item_ids.values
    in_order, by_popularity = design.band(counts), design.band(counts, design.by_popularity)
    span = f"items {tables.printable(ids[in_order.first])} to {tables.printable(ids[in_order.last - 1])}"
    answers.append(_band_answer("catalogue", p["catalogue"], in_order.ratio, span))
    ranks = f"items {100 * by_popularity.first / data.n_items:.0f} to {100 * by_popularity.last / data.n_items:.0f} %"
    span = f"{ranks} of the way from the rarest to the most frequent in the biased log"
    answers.append(_band_answer("popularity", p["popularity"], by_popularity.ratio, span))
    return [*answers, _taste_answer(design, log, p["taste"])]


def _band_answer(name: str, p: float, ratio: float, span: str) -> Answer:
    shown = (
        f"{span} are shown {abs(ratio - 1):.1%} {'more' if ratio >= 1 else 'less'} often than a uniform policy would"
    )
    return _answer(name, p, ratio, f"the largest deviation is no more than chance: {shown}.", f"{shown}.")


def _taste_answer(design: Design, log: RandomizedLog, p: float) -> Answer:
    if design.taste is None or not (design.taste.deviations[log.users] > 0).any():
        return _unknown("taste", "no model of S_c tells items apart: its labels are all equal, or too few")
    mean = float(design.taste.values(log.users, log.items).mean())
    shown = f"shown items lie {abs(mean):.3f} standard deviations {'above' if mean >= 0 else 'below'} the user's mean"
    return _answer("taste", p, mean, f"{shown}, no more than chance.", f"{shown}.")


def _users(data: Partition, log: RandomizedLog, n_draws: int, seed: int) -> list[Answer]:
    """How many pairs users have, and how active those who came are: information, since users come by themselves."""
    counts = np.bincount(log.users, minlength=data.n_users)
    there = counts > 0
    n_there, n = int(there.sum()), data.n_users
    if n_there < 2:
        return [_informs(name, f"the randomized log has {n_there} users.") for name in ("users", "activity")]
    p = uniformity.p_even(counts[there], generator(seed, "audit", "users"), n_draws)
    most, mean = int(counts.max()), counts[there].mean()
    about = f"{n_there:,} of {n:,} users are in it, with {mean:.1f} pairs on average and {most:,} at most"
    even = "as even as chance" if p > ALPHA else "some users weigh more than others"
    answers = [_informs("users", f"{about}: {even}.", most / mean, p)]
    # Users in neither log are unknown, so users without a pair in S_c are all in the randomized log: leave them out.
    sizes = uniformity.logged(data).sizes()
    known = sizes > 0
    activity, there = np.log(sizes[known]), there[known]
    if there.all() or not there.any() or activity.max() == activity.min():
        return [*answers, _informs("activity", _why_no_activity(there))]
    p = uniformity.p_mean(activity, there, generator(seed, "audit", "activity"), n_draws)
    ratio = float(np.exp(activity[there].mean() - activity[~there].mean()))
    shown = (
        f"of the biased log's users, those in the randomized log have {ratio:.2f} times the pairs in S_c of the others"
    )
    meaning = "no more than chance" if p > ALPHA else "what holds on the randomized log holds for such users"
    return [*answers, _informs("activity", f"{shown} (geometric mean): {meaning}.", ratio, p)]


def _why_no_activity(there: np.ndarray) -> str:
    if there.all():
        return "all users of S_c are in the randomized log."
    return "no user of S_c is in the randomized log." if not there.any() else "all users are equally active in S_c."


def _groups(log: RandomizedLog, design: Design, groups: np.ndarray | None, n_draws: int, seed: int) -> list[Answer]:
    if groups is None:
        return []
    expected = np.bincount(groups, weights=design.expected)

    def chi2(items: np.ndarray) -> np.ndarray:
        observed = np.bincount(groups[items], minlength=len(expected))
        return np.array([((observed - expected) ** 2 / np.maximum(expected, 1e-12)).sum()])

    null = np.array([chi2(design.draw(seed, "groups", draw)) for draw in range(n_draws)])
    p = float(uniformity.p_values(chi2(log.items), null)[0])
    ratios = np.bincount(groups[log.items], minlength=len(expected)) / np.maximum(expected, 1e-12)
    worst = float(ratios[np.abs(np.log(np.maximum(ratios, 1e-6))).argmax()])
    shown = f"the group that deviates most is shown {worst:.2f} times as often as a uniform policy would"
    return [_answer("groups", p, worst, f"{shown}, no more than chance.", f"{shown}.")]


def _times(when: np.ndarray | None, n_draws: int, seed: int) -> list[Answer]:
    """How even the traffic is over time: information, since people come when they like."""
    if when is None or not len(when):
        return []
    slices = _tenths(when)
    if slices is None:
        return [_informs("time", "all times are equal.")]
    counts = np.bincount(slices, minlength=SLICES)
    p = uniformity.p_even(counts, generator(seed, "audit", "time"), n_draws)
    low, high = counts.min() * SLICES / counts.sum(), counts.max() * SLICES / counts.sum()
    even = "as even as chance" if p > ALPHA else "traffic comes and goes"
    return [_informs("time", f"tenths of the period hold {low:.2f} to {high:.2f} times their share: {even}.", high, p)]


def _tenths(when: np.ndarray) -> np.ndarray | None:
    """The tenth of the period in which each time lies; None where all times are equal."""
    start, end = when.min(), when.max()
    if start == end:
        return None
    return np.asarray(np.minimum(((when - start) / (end - start) * SLICES).astype(np.int64), SLICES - 1))


def _order(log: RandomizedLog, when: np.ndarray | None, n_draws: int, seed: int, design: Design) -> list[Answer]:
    """Whether what is shown changed over time: items are drawn anew for the same users at the same times."""
    if when is None:
        return []
    if _tenths(when) is None:
        return [_unknown("order", "all times are equal")]
    ranks = np.empty(design.n_items, np.int64)
    ranks[design.by_popularity] = np.arange(design.n_items) * SLICES // design.n_items
    quantile = np.argsort(np.argsort(when, kind="stable")) * SLICES // len(when)
    draws = (ranks[design.draw(seed, "order", draw)] for draw in range(n_draws))
    p = uniformity.p_table(quantile, ranks[log.items], draws)
    shown = "tenths of the items by popularity, against tenths of the pairs by time"
    return [_answer("order", p, p, f"{shown}: independent.", f"{shown}: what is shown changed over time.")]


def _overlap(data: Partition, log: RandomizedLog) -> Answer:
    """Pairs met under both policies. None at all means that one log leaves the other out, which is a valid design: the
    tests of items allow for it. Some, but too few or too many, is a distortion."""
    expected, n = uniformity.expected_overlap(data, log), int((~uniformity.tested_pairs(data, log)).sum())
    if _clicks_only(log):
        logs = "both logs hold clicks alone" if data.click_only else "the randomized log holds clicks alone"
        return _unknown("overlap", f"{logs}: people click the same items, whatever was shown")
    if expected < OVERLAP_FEW:
        return _unknown("overlap", f"only {expected:.1f} shared pairs are due")
    shown = f"{n:,} pairs are in both logs where {expected:,.0f} are due"
    if n == 0:
        reason = f"{shown}: one log leaves the other out. Items are judged outside each user's pairs of the biased log."
        return _informs("overlap", reason, 0.0)
    from scipy.special import pdtr

    tail = min(pdtr(n, expected), 1 - pdtr(n - 1, expected))
    wrong = f"{shown}: one log {'avoids' if n < expected else 'repeats'} the other."
    return _answer("overlap", min(1.0, 2 * tail), n / expected, f"{shown}.", wrong)


OVERLAP_FEW = 3.0  # expected shared pairs below which none at all would tell nothing


def _exposures(log: RandomizedLog, design: Design) -> tuple[Exposure, ...]:
    """Tenths of the items by popularity in S_c: how often shown, and what a uniform policy shows (normal, 95 %)."""
    counts = np.bincount(log.items, minlength=design.n_items)[design.by_popularity]
    expected = design.expected[design.by_popularity]
    groups = np.array_split(np.arange(design.n_items), min(SLICES, design.n_items))
    exposures = []
    for group in groups:
        due, n = float(expected[group].sum()), float(expected.sum())
        half = 1.96 * np.sqrt(max(due * (1 - due / n), 0.0))
        place = (group[0] / design.n_items, (group[-1] + 1) / design.n_items)
        exposures.append(Exposure(*place, int(counts[group].sum()), due, max(0.0, due - half), due + half))
    return tuple(exposures)


def _leaks(data: Partition) -> list[Answer]:
    """What the loading of the logs has settled already: said, not tested."""
    n = data.removed
    shared = f"{n:,} pairs of S_c were in a randomized set and were removed from S_c" if n else "no pair is in two sets"
    reason = f"{shared}; repeated pairs were merged when the logs were read, with a warning."
    return [Answer("leakage", QUESTIONS["leakage"], YES, reason, float(n))]


def _absent(data: Partition) -> Answer:
    """Users and items that one log lacks."""
    log, S_c = uniformity.randomized_log(data), uniformity.logged(data)
    absent = []
    for what, randomized, biased, size in (
        ("users", log.users, S_c.users(), data.n_users),
        ("items", log.items, S_c.items, data.n_items),
    ):
        in_t, in_c = np.bincount(randomized, minlength=size) > 0, np.bincount(biased, minlength=size) > 0
        absent.append(
            f"{int((in_t & ~in_c).sum()):,} {what} are in the randomized log only, "
            f"{int((in_c & ~in_t).sum()):,} in S_c only, {int((~in_c & ~in_t).sum()):,} in neither"
        )
    return _informs("absent", "; ".join(absent) + ".")


def _summary(answers: tuple[Answer, ...], data: Partition) -> str:
    tested = [answer for answer in answers if answer.adjusted is not None]
    if not tested:
        reasons = [answer.reason for answer in answers if answer.verdict == UNKNOWN]
        because = reasons[0].partition(", because ")[2] if reasons else ""
        why = f", because {because}" if because else ""
        return f"Whether the randomized log is uniform cannot be told from these data{why}."
    against = [answer.name for answer in tested if answer.verdict == NO]
    n = sum(len(data.triplets(part).users) for part in RANDOMIZED)
    if not against:
        return f"Nothing speaks against a uniform choice of items: {len(tested)} questions, {n:,} randomized pairs."
    return f"The randomized log is NOT uniform: {', '.join(against)} (of {len(tested)} questions, after Holm)."
