"""`dubnb.audit(data)`: is the randomized log random, what leaks, and how biased is the rest? Verdicts in plain words.

Every question of uniformity has a Monte-Carlo p-value (see `uniformity`) and Holm's correction over all of them: if the
log is uniform, the chance that any question says no is at most 5 %. A yes means that nothing speaks against it, no
more; `python -m bench.audit_power` shows how small a distortion is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb import _check, stats
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.report import tables
from dubnb.theory import selection, uniformity
from dubnb.theory.facts import Fact
from dubnb.theory.uniformity import STATISTICS, Design, RandomizedLog

if TYPE_CHECKING:
    pass

ALPHA = 0.05
YES, NO, UNKNOWN = "yes", "no", "cannot be told"
FEWEST_PAIRS = 30  # of a randomized log that can be audited
SLICES = 10  # of time


@dataclass(frozen=True)
class Answer:
    """One question, the verdict, the number behind it and how sure that is (p-values as they are, and after Holm)."""

    name: str
    question: str
    verdict: str
    reason: str
    number: float | None = None
    p: float | None = None
    adjusted: float | None = None


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

    @property
    def uniform(self) -> bool | None:
        """Whether nothing speaks against a uniform policy; None where nothing could be tested."""
        told = [answer.verdict for answer in self.answers if answer.p is not None]
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
        return document | {"draws": self.n_draws, "warnings": list(self.warnings)}

    def text(self) -> str:
        """The report as text."""
        lines = [f"audit of {self.data}", "", self.summary, ""]
        for answer in self.answers:
            p = "" if answer.p is None else f" (p {answer.p:.3f}, Holm {answer.adjusted:.3f})"
            sign = "?" if answer.verdict == UNKNOWN else answer.verdict.upper()
            lines += [f"{sign:<4} {answer.question}{p}", f"     {answer.reason}"]
        rows = [[f.name, f.value, _interval(f), f.meaning] for f in self.facts]
        lines += ["", tables.text(["how far S_c is from uniform", "value", "95 %", ""], rows, "<>><")]
        return "\n".join([*lines, *self.warnings])

    def __str__(self) -> str:
        return self.text()


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
    log, when = uniformity.randomized_log(data), _checked_times(data, times)
    groups = _checked_groups(data, item_groups)
    model = selection.taste_model(data, seed)
    if len(log.users) < FEWEST_PAIRS:
        answers = _untold(f"the randomized log has {len(log.users)} pairs, fewer than {FEWEST_PAIRS}")
    else:
        design = uniformity.design_of(data, log, model.scorer)
        answers = [*_uniformity(data, log, design, n_draws, seed, quiet), *_users(data, log, n_draws, seed)]
        answers += _groups(log, design, groups, n_draws, seed) + _times(log, when, n_draws, seed, design)
        answers += _overlap(data, log)
    answers = _with_holm(answers)
    findings = tuple([*answers, *_leaks(data)])
    return Audit(data.name, _summary(findings, data), findings, tuple(selection.facts(data, model, seed)), n_draws)


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
    "popularity": "Is what is shown independent of popularity in S_c?",
    "taste": "Is what is shown independent of the user's taste, as a model of S_c predicts it?",
    "users": "Do the users of the randomized log have equally many pairs?",
    "activity": "Are the users of the randomized log as active in S_c as the others?",
    "groups": "Are the given groups of items shown as often as their sizes say?",
    "time": "Is the randomized log spread evenly over time?",
    "order": "Are the same items shown early and late?",
    "overlap": "Does the randomized log meet pairs of S_c as often as chance allows?",
}


def _answer(name: str, p: float, number: float, fine: str, wrong: str) -> Answer:
    """An answer whose verdict `_with_holm` sets: `fine` and `wrong` are its two reasons."""
    return Answer(name, QUESTIONS[name], "", f"{fine}\n{wrong}", float(number), float(p))


def _unknown(name: str, because: str) -> Answer:
    return Answer(name, QUESTIONS[name], UNKNOWN, f"cannot be told from these data, because {because}")


def _untold(because: str) -> list[Answer]:
    return [_unknown(name, because) for name in (*STATISTICS, "users", "activity")]


def _with_holm(answers: list[Answer]) -> list[Answer]:
    """Verdicts by Holm's adjusted p-values, over all questions that could be tested."""
    tested = [answer for answer in answers if answer.p is not None]
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
    span = f"{ranks} of the way from the rarest to the most frequent in S_c"
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
    """Do users have equally many pairs, and are they like the other users?"""
    counts = np.bincount(log.users, minlength=data.n_users)
    there = counts > 0
    n_there, n = int(there.sum()), data.n_users
    if n_there < 2:
        return [_unknown(name, "the randomized log has one user only") for name in ("users", "activity")]
    p = uniformity.p_even(counts[there], generator(seed, "audit", "users"), n_draws)
    most, mean = int(counts.max()), counts[there].mean()
    about = f"{n_there:,} of {n:,} users are in it, with {mean:.1f} pairs on average and {most} at most"
    answers = [_answer("users", p, most / mean, f"{about}.", f"{about}: some users weigh more than others.")]
    activity = np.log1p(data.pattern("S_c").sizes())
    if n_there == n or activity.max() == activity.min():
        because = "all users are in it" if n_there == n else "all users are equally active in S_c"
        return [*answers, _unknown("activity", f"{because}, so there is nothing to compare")]
    p = uniformity.p_mean(activity, there, generator(seed, "audit", "activity"), n_draws)
    ratio = float(np.exp(activity[there].mean() - activity[~there].mean()))
    shown = f"users of the randomized log have {ratio:.2f} times the pairs in S_c of the others (geometric mean)"
    wrong = f"{shown}: what holds on it holds for such users."
    return [*answers, _answer("activity", p, ratio, f"{shown}, no more than chance.", wrong)]


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


def _times(log: RandomizedLog, when: np.ndarray | None, n_draws: int, seed: int, design: Design) -> list[Answer]:
    """Over time: as many pairs in every tenth of the period, and the same items in each."""
    if when is None:
        return []
    start, end = when.min(), when.max()
    if start == end:
        return [_unknown(name, "all times are equal") for name in ("time", "order")]
    slices = np.minimum(((when - start) / (end - start) * SLICES).astype(np.int64), SLICES - 1)
    counts = np.bincount(slices, minlength=SLICES)
    p = uniformity.p_even(counts, generator(seed, "audit", "time"), n_draws)
    low, high = counts.min() * SLICES / counts.sum(), counts.max() * SLICES / counts.sum()
    shown = f"tenths of the period hold {low:.2f} to {high:.2f} times their share of pairs"
    answers = [_answer("time", p, high, f"{shown}, no more than chance.", f"{shown}.")]
    ranks = np.empty(design.n_items, np.int64)
    ranks[design.by_popularity] = np.arange(design.n_items) * SLICES // design.n_items
    quantile = np.argsort(np.argsort(when, kind="stable")) * SLICES // len(when)
    p = uniformity.p_table(quantile, ranks[log.items], generator(seed, "audit", "order"), n_draws)
    shown = "tenths of the items by popularity, against tenths of the pairs by time"
    return [*answers, _answer("order", p, p, f"{shown}: independent.", f"{shown}: what is shown changed over time.")]


def _overlap(data: Partition, log: RandomizedLog) -> list[Answer]:
    """Pairs met under both policies: fewer or more than chance means that one log knew of the other."""
    expected = uniformity.expected_overlap(data, log)
    if uniformity.leaves_out_S_c(data, log):
        reason = (
            f"the logs share no pair where {expected:,.0f} were due: the randomized log leaves S_c out, and is judged "
            "against the items outside each user's S_c."
        )
        return [Answer("overlap", QUESTIONS["overlap"], NO, reason, 0.0)]
    if data.click_only and (log.labels > 0).all():
        reason = "both logs hold clicks alone: people click the same items in both, whatever was shown"
        return [_unknown("overlap", reason)]
    if expected < OVERLAP_FEW:
        return [_unknown("overlap", f"only {expected:.1f} shared pairs are due")]
    from scipy.special import pdtr

    n = data.removed
    tail = min(pdtr(n, expected), 1 - pdtr(n - 1, expected) if n else 1.0)
    shown = f"{n:,} pairs are in both logs where {expected:,.0f} are due"
    return [_answer("overlap", min(1.0, 2 * tail), n / expected, f"{shown}.", f"{shown}: one log knew of the other.")]


OVERLAP_FEW = 3.0  # expected shared pairs below which none at all would tell nothing


def _leaks(data: Partition) -> list[Answer]:
    """What the loading of the logs has settled already: said, not tested."""
    n = data.removed
    shared = f"{n:,} pairs of S_c were in a randomized set and were removed from S_c" if n else "no pair is in two sets"
    log, S_c = uniformity.randomized_log(data), data.triplets("S_c")
    absent, complete = [], True
    for what, randomized, biased, size in (
        ("users", log.users, S_c.users, data.n_users),
        ("items", log.items, S_c.items, data.n_items),
    ):
        in_t, in_c = np.bincount(randomized, minlength=size) > 0, np.bincount(biased, minlength=size) > 0
        complete &= bool((in_t & in_c).all())
        absent.append(
            f"{int((in_t & ~in_c).sum()):,} {what} are in the randomized log only, "
            f"{int((in_c & ~in_t).sum()):,} in S_c only, {int((~in_c & ~in_t).sum()):,} in neither"
        )
    leak = "Are the sets disjoint, and is every pair there once?"
    reason = f"{shared}; repeated pairs were merged when the logs were read, with a warning."
    missing = "Are all users and items in both logs?"
    return [
        Answer("leakage", leak, YES, reason, float(n)),
        Answer("absent", missing, YES if complete else NO, "; ".join(absent) + "."),
    ]


def _summary(answers: tuple[Answer, ...], data: Partition) -> str:
    tested = [answer for answer in answers if answer.p is not None]
    if not tested:
        return "Whether the randomized log is uniform cannot be told from these data."
    against = [answer.name for answer in tested if answer.verdict == NO]
    n = sum(len(data.triplets(part).users) for part in RANDOMIZED)
    about_items = [name for name in against if name not in ("users", "activity", "time")]
    if not against:
        return f"Nothing speaks against a uniform policy: {len(tested)} questions, {n:,} randomized pairs."
    if not about_items:
        return (
            "What is shown is uniform as far as can be told, but who comes is not "
            f"({', '.join(against)}): conclusions hold for the users who came."
        )
    return f"The randomized log is NOT uniform: {', '.join(about_items)} (of {len(tested)} questions, after Holm)."
