"""DUB-X: dub over all unseen pairs, weighted by exposure; exact row solves (mf) or mini-batches (ncf)."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb._random import generator
from dubnb.backbones import Weights
from dubnb.backbones.mf import Extended, rows_of
from dubnb.choice import UserInfluence, compare_candidates, mean_of_parts
from dubnb.data.partition import Partition
from dubnb.data.pattern import Triplets, joined
from dubnb.evaluation import monitored_influences
from dubnb.methods._exact import LENGTH, PRETRAINING, ExactMethod, RoughSolve
from dubnb.methods._head import AUTO, WEIGHTS, HeldOut, headed, validation_folds
from dubnb.methods._method import TEACHER, TEACHER_CHECKS, Method, teacher_stage
from dubnb.methods._params import (
    PAPER_RANKS,
    PAPER_STRENGTHS,
    YAHOO_R3,
    LogFacts,
    Settings,
    Times,
    lam_of_S_c,
    required,
    weight_of_S_t,
)
from dubnb.objective import terms as bound
from dubnb.objective.terms import ConstantTeacher, ModelTeacher, Targets, Teacher, mean_target, rates_of, shifted_rates
from dubnb.train import Fit, Log, Stage

DEFAULT = "default"  # of `head`: "auto" with mf, None with ncf
UNOBSERVED = "unobserved"  # observed negatives of S_c count as pairs of S_u
TEACHERS = ("constant", "item", "model")
FROM_S_T = ("item", "model")  # teachers that read S_t
CUTOFFS = (0.15, 0.2, 0.25, 0.3, 0.4)
DEFAULT_GAMMA, DEFAULT_POWER, DEFAULT_CUTOFF = 0.03, (1.0, 0.75), 0.25
GAMMAS = (0.06, 0.03, 0.01, 0.003)  # tried by gamma="auto"
POWERS = ((1.0, 0.75), 1.0)  # tried by gamma="auto", each with every gamma
SPREAD = 1.4  # of the grades, tried first
SMALL_CUTOFF, CUTOFF_ERRORS = 0.2, 1.5  # tried last; the standard errors by which it must be better
MOST_CANDIDATES = 12
BASE_CUTOFF = ExactMethod.CHECKS["cutoff"]  # the check of a number, or None
FEWEST = 30  # positives of S_va: with fewer nothing is chosen
ENOUGH, ENOUGH_OF_LARGE = 1_000, 100  # positives of S_va: with fewer, folds of S_t and S_va choose
FOLDS = 4
LARGE, SAMPLED = 1_000_000, 400_000  # pairs of S_c: above the first, candidates are solved on about the second
LEAST_SHARE = 0.02  # of the users without randomized pairs that a sample has
FIRST_ON_SAMPLE = RoughSolve(tolerance=1e-2, patience=2, enough=1e-4)  # of the candidate that starts at random rows
NEXT_ON_SAMPLE = RoughSolve(tolerance=1e-2, patience=1, enough=1e-3)  # of the others
NEGATIVE = 0.2  # target of an observed negative of S_c
OF_NCF = ("backbone", "loss", "lam", "lr", "batch_size", "epochs", "patience", "hidden", "activation")  # not for its mf
NCF_SHARE = 1 / 3  # of gamma in ncf's term d: chosen on S_va of yahoo-like, simulated and Coat (1, 1/3; one seed each)
LEAST_SPREAD = 1e-3  # smaller factors have vanished and are not scaled up


def _number_or(*words: str, high: float = np.inf) -> _check.Check:
    """A check for a number from 0 to `high`, or one of some words."""
    return lambda name, value: (
        str(value) if isinstance(value, str) and value in words else _check.real(name, value, high=high)
    )


def _checked_cutoff(name: str, value: Any) -> float | str | None:
    own: float | str | None = value if isinstance(value, str) and value == AUTO else BASE_CUTOFF(name, value)
    return own


def _default_targets(log: LogFacts, known: Any) -> str:
    return "graded" if log.graded else "rates" if log.has_rates else "binary"


def _default_negative(log: LogFacts, known: Any) -> float | str:
    """Chosen on S_va if a negative may be an impression that nobody looked at; .2 for ratings and clicks."""
    return NEGATIVE if log.click_only or (log.graded and not log.ranked) else AUTO


def _default_weight(log: LogFacts, known: Any) -> float | str:
    """Chosen on S_va together with gamma; with a given gamma the rule's."""
    return AUTO if known["gamma"] == AUTO else weight_of_S_t(log, known)


def _default_cutoff(log: LogFacts, known: Any) -> float | str | None:
    """Chosen on S_va together with gamma; None if lam is given."""
    return None if known["lam"] is not None else AUTO if known["gamma"] == AUTO else DEFAULT_CUTOFF


RECIPE = {
    "gamma": AUTO,
    "terms": "acd",
    "targets": _default_targets,
    "negative": _default_negative,
    "target_slope": 1.0,
}


class Candidate(NamedTuple):
    """Settings that S_va chooses among, by the names of the parameters."""

    gamma: float
    exposure_power: float | tuple[float, float]
    teacher: str
    randomized_weight: float
    grade_spread: float
    negative: float | str
    cutoff: float | None  # None: lam is given

    def stage_name(self) -> str:
        """The name of its stage in the history."""
        spread = "" if self.grade_spread == 1 else f", spread {self.grade_spread:g}"
        negative = ", negatives unobserved" if self.negative == UNOBSERVED else ""
        teacher = "" if self.teacher == "constant" else f", {self.teacher} teacher"
        weight = ", without S_t" if self.randomized_weight == 0 else ""
        cutoff = f", cutoff {SMALL_CUTOFF:g}" if self.cutoff == SMALL_CUTOFF else ""
        return f"gamma {self.gamma:g}, p {self.exposure_power}{spread}{negative}{teacher}{weight}{cutoff}"


class Solution(NamedTuple):
    """What a fit of mf leaves."""

    M_c: Weights  # with the head, if there is one
    M_t: Weights | None
    held_out: list[HeldOut]  # the chosen settings on every fold, without a head; empty unless folds chose


class UserSample(NamedTuple):
    """Some users of a large log, for solving candidates: all that have randomized pairs, and a share of the others."""

    weights: np.ndarray  # of each user's row: 1 with randomized pairs; else 1 / share, or 0 outside the sample
    exposure: dict[Any, tuple[np.ndarray, np.ndarray]]  # exposure_power -> A and C of the whole log


class CandidateLog(NamedTuple):
    """A log on which candidates are solved, each from the rows of the last, and judged on its S_va."""

    fit: Fit
    M_t: Weights | None
    rows: Extended
    sample: UserSample | None = None


@dataclass(kw_only=True, repr=False, eq=False)
class DubX(ExactMethod):
    """Our best method: learn from both logs, and treat unseen pairs as weak dislikes.

    Use it if you have a large biased log and a little randomized traffic. It needs no tuning: it chooses its settings
    on the validation part of the randomized log. It reads clicks, 0/1 labels, ratings and shares of impressions.

    Parameters
    ----------
    gamma : float or "auto"
        Weight of the unseen pairs (term d). "auto", the default, starts at .03 and tries .06, .01 and .003 on S_va.
    exposure_power : float or (float, float)
        Power p of the weights of unseen pairs, one number or (for users, for items); 0 weighs all pairs alike, which is
        the exact dub. The default is (1, .75); with gamma="auto", 1 is also tried.
    grade_spread : float
        With graded targets a negative of S_c has the target 1/4 + grade_spread (grade - 1/4): at 1.4 that is -.1, .25
        and .6 instead of 0, .25 and .5. The default is 1; with gamma="auto", 1.4 is also tried.
    randomized_weight : float or "auto"
        Weight w_t of a pair of S_t (terms a and e.2). The rule is 5 if S_t is at most 1.7 % of S_c, as in Yahoo! R3,
        else 5 times the root of 1.7 % over that share, at least 2. "auto" takes the rule's weight; with gamma="auto" 0
        is also tried. The default with ncf is 5.
    teacher : {"auto", "constant", "item", "model"}
        The target t of an unseen pair. "constant": teacher_value. "item": an empirical-Bayes rate of the item in S_t.
        "model": shrink x mean + (1 - shrink) x score of a low-rank M_t trained on S_t, with S_t's mean target. The last
        two are shifted by teacher_value - mean, so that an average pair has the target teacher_value. "auto", the
        default, is "constant"; with gamma="auto", "item" is also tried.
    teacher_value : float
        See `teacher`; the default 0 is below S_t's mean label.
    shrink : float
        See `teacher`. A weak M_t misleads (AUC on S_va, yahoo-like, one seed: shrink 0 .755, .5 .784, .8 .795; constant
        teacher .796).
    teacher_lam : float
        Regularisation of M_t.
    teacher_batch_size : int
        Samples of S_t per mini-batch of M_t.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.DubX(rank=8).fit(data)
    >>> items, scores = model.recommend([3], k=5)
    >>> probability = model.predict(3, items)

    Notes
    -----
    Eq. 2 with the squared loss, term d over all of S_u, solved exactly row by row:

        sum over S_c of w (s - y)^2  +  w_t sum over S_t of (s - y_t)^2  +  gamma sum over S_u of A_u C_i (s - t)^2
        +  sum over rows of lam_row / 2 |row|^2  +  .1 |biases|^2,        mf without b0; ncf below

    Targets and weights of observed pairs are those of `dubnb.objective.terms.Targets`. With grades, y is 1 for a
    positive and the grade of a negative. Without, y is .2 for a negative of S_c, and .2 + .8 r if the share r of the
    pair's impressions is positive. In S_c, w = 1/2 + y.

    Term d of Eq. 2 is the loss between M_c's and the teacher's predictions, averaged over S_u, where every pair counts
    alike. Here pair (u, i) weighs A_u C_i, where A_u = (n_u + 1)^p and C_i = (n_i + 1)^p, each divided by its mean, and
    n counts pairs of S_c. The product of activity and popularity stands for exposure: a missing pair is stronger
    evidence of dislike the more often it was probably shown. The weights have mean 1, so gamma keeps its meaning, and
    their product form keeps the sum exact. A row decays in proportion to its weight (its samples' plus gamma A_u sum
    C), by lam on average; lam follows from `cutoff` and the noise in the log.

    **The choice on S_va.** With gamma="auto", the settings above that you do not give are chosen among at most 12
    candidates, each solved from the rows of the last. The first has gamma .03, p (1, .75), the constant teacher, the
    rule's w_t, grade_spread 1, negative .2 and cutoff .25. Changes are then tried in this order: grade_spread 1.4 (with
    graded targets); negative="unobserved" (with negative="auto"); the seven other pairs of gamma in {.06, .03, .01,
    .003} and p in {(1, .75), 1}; the item teacher; w_t = 0; cutoff .2, if that makes at most 12 candidates. A candidate
    replaces the settings so far only if it is better by more than one standard error of the difference, paired over
    users (see `dubnb.choice`), or by more than 1.5 for cutoff .2. Of the seven pairs, the one with the largest
    difference is taken. What counts depends on `monitor`: with "auc" it is AUC plus half of nDCG, each
    divided by its standard error; with any other monitor it is that metric. In `history_`, `choice_difference` and
    `choice_error` are a candidate's difference to the settings so far and its standard error; `lead_of_choice` and
    `lead_error` are the difference of the settings that were chosen in the end to the candidate. `chosen` is 1 in the
    rows of the solve that the model comes from.

    If S_va has fewer than 1,000 positives, candidates are judged by cross-validation: S_t and S_va together are cut
    into four folds, and each fold takes the place of S_va once. Every candidate is then solved on every fold and the
    chosen one on the whole log, at most 49 solves. With fewer than 30 positives, nothing is chosen and the settings of
    the first candidate are used. If S_c has more than a million pairs, folds are used with fewer than 100 positives
    only, and candidates (or their folds) are solved on a sample: all users with randomized pairs and a random share of
    the others, which weigh more in return. The sample has 400,000 pairs of S_c, or more if users with randomized pairs
    and 2 % of the others have more. There, a row is solved to a relative residual of .01. The candidates after the
    first also stop at the first sweep that is not better on S_va, or that lowers the objective by less than .1 %. Only
    the final settings are solved exactly, on all users.

    **The head.** With head="auto", offsets of users and items are added to the scores where held-out pairs show a gain
    (see `dubnb.head`). They are fitted on the out-of-fold scores of S_t and S_va if folds choose the settings, and on
    S_va alone otherwise, as when gamma is given. The weights contain the offsets, so `export` and `predict` do too.

    An impression without a click may mean that nobody looked: negative="unobserved" counts the negatives of S_c as
    pairs of S_u, and of a pair with the share r of clicks only that share, with y = 1. negative="auto" is the default
    if labels are 0/1 or grades are ranks (such as seconds, not ratings). With a given gamma, "auto" is .2.

    With backbone="ncf" the same terms are minimised in expectation, in mini-batches, with bce unless you set `loss`,
    and with a third of gamma. A pair drawn from S_u stands for |S_u| / |S_a| pairs. From a random start ncf hardly
    learns more than biases before it overfits S_c. Therefore mf is solved first: S_va chooses the settings there,
    except randomized_weight, and mf's factors initialise the embeddings (as in He et al., 2017), at a learning rate of
    3e-4.

    Open questions: it is not known why p below 1 ranks best where popular items are also better ones. The theorem does
    not cover this objective: the weights change what it bounds, and Eq. 2 has no proof for the squared loss.
    """

    cutoff: float | str | None = None  # type: ignore[assignment]
    gamma: float | str | None = None
    exposure_power: float | tuple[float, float] | None = None
    grade_spread: float | None = None
    negative: float | str | None = None  # type: ignore[assignment]
    randomized_weight: float | str | None = None
    teacher: str | None = None
    teacher_value: float = 0.0
    shrink: float = 0.8
    teacher_lam: float | None = None
    teacher_batch_size: int | None = None
    head: str | None = DEFAULT

    name = "dub-x"
    decays_by_row = True
    TERMS = "acde"
    COMMON = {**Method.COMMON, **TEACHER}
    SETTINGS = {
        ("mf", "exact"): Settings(
            defaults={
                **RECIPE,
                "rank": 50,
                "cutoff": _default_cutoff,
                "loss": "squared",
                "randomized_weight": _default_weight,
                "teacher": AUTO,
                **LENGTH,
            },
            paper={"rank": PAPER_RANKS, "cutoff": CUTOFFS, "gamma": PAPER_STRENGTHS},
            wide={
                "rank": (20, 50, 100),
                "cutoff": CUTOFFS,
                "gamma": (0.003, 0.0125, 0.025, 0.05),
                "exposure_power": (0.5, 0.75, 1.0),
            },
            even={"rank": PAPER_RANKS, "cutoff": CUTOFFS, "gamma": (0.003, 0.0125, 0.025, 0.05, 0.1)},
            near={"cutoff": 1.3, "rank": 2.0},
        ),
        ("ncf", "sampled"): Settings(
            defaults={
                **RECIPE,
                "rank": 50,
                "randomized_weight": 5.0,
                "teacher": AUTO,
                "lam": lam_of_S_c(1e-5),
                "lr": 3e-4,
            },
            paper={"rank": PAPER_RANKS, "lam": PAPER_STRENGTHS, "gamma": PAPER_STRENGTHS},
            wide={
                "rank": (20, 50, 100),
                "lam": Times((1.0, 10.0)),
                "lr": (1e-4, 3e-4, 1e-3),
                "gamma": (0.003, 0.01, 0.03),
            },
            even={"rank": PAPER_RANKS, "lam": PAPER_STRENGTHS, "gamma": (0.003, 0.0125, 0.025, 0.05, 0.1)},
            near={"lam": 3.0, "lr": 2.0, "rank": 2.0},
        ),
    }
    CHECKS = {
        "cutoff": _checked_cutoff,
        "gamma": _number_or(AUTO),
        "exposure_power": _check.optional(_check.powers),
        "grade_spread": _check.optional(_check.reals(high=2.0)),
        "negative": _number_or(AUTO, UNOBSERVED, high=1.0),
        "randomized_weight": _number_or(AUTO),
        "teacher": _check.choices((AUTO, *TEACHERS)),
        "teacher_value": _check.reals(low=-np.inf),
        "shrink": _check.reals(high=1.0),
        **TEACHER_CHECKS,
        "head": _check.optional(_check.choices((AUTO, DEFAULT))),
    }

    def resolve(self, data: Partition | None = None) -> Self:
        if self.head == DEFAULT:  # None is a value of `head`, so it cannot stand for the default
            return dataclasses.replace(self, head=None if self.backbone == "ncf" else AUTO).resolve(data)
        return super().resolve(data)

    def chosen_solver(self) -> str:
        return "sampled" if self.backbone == "ncf" else "exact"

    def check(self) -> None:
        super().check()
        if self.chosen_solver() == "exact" and self.loss != "squared":
            raise InputError(f"dub-x needs loss='squared', not {self.loss!r}: set it, or give exposure_power= to dub")
        if self.weighting == "theory":
            raise InputError("weighting='theory' does not apply to dub-x, which has its own: use weighting='sample'")

    def centre(self, parameter: str) -> Any:
        own: Any = self._given() if parameter in Candidate._fields else self
        return getattr(own, parameter)

    def idle(self) -> set[str]:
        return set() if self.keeps("d") else {"gamma", "exposure_power"}

    def pretraining(self) -> tuple[Stage, ...]:
        has_M_t = self.chosen_solver() == "exact" and self.teacher == "model" and self.shrink < 1
        return (teacher_stage(self, **PRETRAINING),) if has_M_t else ()

    def reads_S_t(self) -> bool:
        return any(map(self.keeps, "ae")) or (self.keeps("d") and self.teacher in FROM_S_T)

    def _check_log(self, data: Partition) -> None:
        super()._check_log(data)
        if not len(data.triplets("S_t").users):
            needs = [f"term {letter}" for letter in "ae" if self.keeps(letter)]
            needs += [f"teacher={self.teacher!r}"] if self.keeps("d") and self.teacher in FROM_S_T else []
            if needs:
                other = ", teacher='constant'" if self.teacher in FROM_S_T else ""
                raise InputError(
                    f"S_t is empty, and {' and '.join(needs)} of {self.name} {'needs' if len(needs) == 1 else 'need'} "
                    f"it: set terms='cd'{other}, or give more random traffic"
                )

    def inner_candidates(self, data: Partition) -> int:
        method = self.resolve(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # `fit` warns of too few positives
            _, rounds = method._candidates(Fit(data, method.monitor))
        return 1 + sum(map(len, rounds))

    def keep_choices(self, model: Any) -> None:
        if self.chosen_solver() != "exact":
            super().keep_choices(model)
        if not isinstance(model, DubX):
            raise InputError(f"start= is {_check.short_repr(getattr(model, 'name', model))}: give an earlier dub-x")
        model._fitted()
        if isinstance(self.gamma, str):
            for name in Candidate._fields:
                if getattr(self, name) in (None, AUTO) and model.params_[name] is not None:
                    setattr(self, name, model.params_[name])

    # -- training

    def apply_head(self, fit: Fit, weights: Any) -> Any:
        return weights  # the recipe has applied it

    def recipe(self, fit: Fit, stage: str = "refine") -> tuple[Weights, Weights | None]:
        """Choose the settings on S_va and solve; `stage` names the stage of a solve outside the choice."""
        if self.chosen_solver() == "sampled":
            return self._train_ncf(fit), None
        return self.solved(fit, stage)[:2]

    def solved(self, fit: Fit, stage: str) -> Solution:
        """The recipe of mf."""
        M_t = next(map(fit.pretrain, self.pretraining()), None)
        whole = CandidateLog(fit, M_t, self.random_rows(fit))
        best, rounds = self._candidates(fit)
        held_out: list[HeldOut] = []
        judging = fit.data
        if not rounds:
            M_c = self._solve(whole, best, stage)
        else:
            trials = self._trials(whole)
            best, solved = self._choose(trials, best, rounds)
            if trials == [whole]:
                M_c, stage = solved[0], best.stage_name()
            elif len(trials) == 1:  # the items of a sample of users are a good start
                stage = f"{best.stage_name()}, all users"
                M_c = self._solve(whole._replace(rows=rows_of(solved[0])), best, stage)
                judging = trials[0].fit.data  # smaller, and has all pairs of the users of S_va
            else:
                held_out = self._held_out(fit, trials, solved)
                M_c = self._solve(whole, best, stage)
            for row in fit.log.rows:
                row["chosen"] = float(row["stage"] == stage)
        self.set_params(**best._asdict())
        if self.head is not None:
            M_c = headed(self, fit, M_c, held_out or validation_folds(judging, M_c, self.seed))
        return Solution(M_c, M_t, held_out)

    def solved_on_folds(self, fit: Fit, M_t: Weights | None) -> list[HeldOut]:
        """The method's own settings, solved on every fold; empty if S_va has enough positives to judge alone."""
        trials = self._trials(CandidateLog(fit, M_t, self.random_rows(fit)))
        if len(trials) == 1:
            return []
        _, solved = self._choose(trials, self._given(fit.data), [])
        return self._held_out(fit, trials, solved)

    def _held_out(self, fit: Fit, trials: list[CandidateLog], solved: list[Weights]) -> list[HeldOut]:
        """What was solved on folds, whose rows are added to the history of the fit."""
        for number, trial in enumerate(trials, 1):
            fit.log.rows += [row | {"stage": f"fold {number}, {row['stage']}"} for row in trial.fit.log.rows]
        return [HeldOut(trial.fit.data, own) for trial, own in zip(trials, solved, strict=True)]

    def _solve(self, trial: CandidateLog, candidate: Candidate, stage: str, rough: RoughSolve | None = None) -> Weights:
        """The weights of one candidate; solving starts from the trial's rows and changes them."""
        terms = self._terms(trial.fit, candidate, trial.M_t, trial.sample)
        own = dataclasses.replace(self, cutoff=candidate.cutoff)
        return own.minimise(trial.fit, terms, trial.rows, stage, rough)[0]

    def _candidates(self, fit: Fit) -> tuple[Candidate, list[list[dict[str, Any]]]]:
        """(the first candidate, rounds of changes); the changes of a round are tried on the best candidate before it.

        There are no changes if gamma is given or S_va cannot choose.
        """
        data, first = fit.data, self._given(fit.data)
        if not isinstance(self.gamma, str):
            return first, []
        fixed = f"gamma {first.gamma:g} and exposure_power {first.exposure_power} are fixed; choosing them"
        if not (self.keeps("d") and can_choose(fit, fixed)):
            return first, []
        rounds: list[list[dict[str, Any]]] = []
        if self.grade_spread is None and self.targets == "graded":
            rounds.append([{"grade_spread": SPREAD}])
        if self.negative == AUTO:
            rounds.append([{"negative": UNOBSERVED}])
        powers = POWERS if self.exposure_power is None else (first.exposure_power,)
        grid = [(gamma, p) for p in powers for gamma in GAMMAS if (gamma, p) != (first.gamma, first.exposure_power)]
        rounds.append([{"gamma": gamma, "exposure_power": p} for gamma, p in grid])
        if any(map(self.keeps, "ae")) and len(data.triplets("S_t").users):
            rounds += [[{"teacher": "item"}]] if self.teacher == AUTO else []
            rounds += [[{"randomized_weight": 0.0}]] if self.randomized_weight == AUTO else []
        if self.cutoff == AUTO and 1 + sum(map(len, rounds)) < MOST_CANDIDATES:
            rounds.append([{"cutoff": SMALL_CUTOFF}])
        return first, rounds

    def _given(self, data: Partition | None = None) -> Candidate:
        """The method's own settings, with a value in place of None and "auto"; `data` determines the rule's weight."""
        weight = self.randomized_weight
        if isinstance(weight, str):
            weight = weight_of_S_t(YAHOO_R3 if data is None else LogFacts.of(data), {})
        return Candidate(
            gamma=DEFAULT_GAMMA if isinstance(self.gamma, str) else required(self.gamma),
            exposure_power=DEFAULT_POWER if self.exposure_power is None else self.exposure_power,
            teacher="constant" if self.teacher == AUTO else required(self.teacher),
            randomized_weight=required(weight),
            grade_spread=1.0 if self.grade_spread is None else self.grade_spread,
            negative=NEGATIVE if self.negative is None or self.negative == AUTO else self.negative,
            cutoff=DEFAULT_CUTOFF if isinstance(self.cutoff, str) else self.cutoff,
        )

    def _trials(self, whole: CandidateLog) -> list[CandidateLog]:
        """What candidates are solved on: the whole log, folds of its randomized pairs, or a sample of its users."""
        fit, data, sample = whole.fit, whole.fit.data, None
        positives, large = np.count_nonzero(data.triplets("S_va").labels), data.size("S_c") > LARGE
        if large:
            sample = self._sample_of_users(data)
            S_c = data.biased_rows_of(sample.weights > 0)
            data = data.replace(S_c=S_c, held_back=None, held_back_propensities=None)
        some = CandidateLog(fit.on(data, fit.log), whole.M_t, whole.rows, sample) if large else whole
        if positives >= (ENOUGH_OF_LARGE if large else ENOUGH):
            return [some]
        trials = [self._fold(fit, each, sample) for each in folds(data, FOLDS, self.seed)]
        usable = [trial for trial in trials if trial.fit.validation.usable]
        return usable if len(usable) > 1 else [some]  # one fold judges on fewer pairs than S_va has

    def _sample_of_users(self, data: Partition) -> UserSample:
        """The users of S_t and S_va, and so many others that there are about SAMPLED pairs of S_c."""
        n_pairs, of_users, randomized = data.size("S_c"), data.biased_counts.users, np.zeros(data.n_users, bool)
        for part in ("S_t", "S_va"):
            randomized[data.triplets(part).users] = True
        others = int(of_users[~randomized].sum())
        share = min(1.0, max(LEAST_SHARE, (SAMPLED - (n_pairs - others)) / max(others, 1)))
        taken = generator(self.seed, "choice-users").random(data.n_users) < share
        powers = {self._given(data).exposure_power, *POWERS}
        return UserSample(
            np.where(randomized, 1.0, np.where(taken, 1 / share, 0.0)),
            {power: bound.exposure_weights(data, power) for power in powers},
        )

    def _fold(self, fit: Fit, data: Partition, sample: UserSample | None = None) -> CandidateLog:
        """A trial on another log with rows and a teacher of its own."""
        own = fit.on(data, Log(fit.log.quiet, fit.log.callback))
        own.start = None  # an earlier model may have learned the labels of this fold
        return CandidateLog(own, next(map(own.pretrain, self.pretraining()), None), self.random_rows(own), sample)

    def _choose(
        self, trials: list[CandidateLog], best: Candidate, rounds: list[list[dict[str, Any]]]
    ) -> tuple[Candidate, list[Weights]]:
        """(the best candidate, its weights in each trial): the first, unless a change is better by a standard error."""
        weights = WEIGHTS.get(self.monitor)
        of_S_va = np.unique(np.concatenate([trial.fit.data.triplets("S_va").users for trial in trials]))
        solved, judged = self._tried(trials, best, FIRST_ON_SAMPLE)
        every = {best: _of_users(judged, of_S_va)}
        for changes in rounds:
            winner, largest = None, -np.inf
            for change in changes:
                candidate = best._replace(**change)
                own_solved, own_judged = self._tried(trials, candidate, NEXT_ON_SAMPLE)
                found = compare_candidates(own_judged, judged, weights)
                every[candidate] = _of_users(own_judged, of_S_va)
                numbers = {"choice_difference": found.difference, "choice_error": found.standard_error}
                _note(trials, candidate, numbers)
                errors = CUTOFF_ERRORS if "cutoff" in change else 1.0
                if found.difference > max(largest, errors * found.standard_error):
                    winner, largest = (candidate, own_solved, own_judged), found.difference
            if winner is not None:
                best, solved, judged = winner
        for candidate in every if rounds else ():
            found = compare_candidates(every[candidate], every[best], weights)
            _note(trials, candidate, {"lead_of_choice": 0.0 - found.difference, "lead_error": found.standard_error})
        return best, solved

    def _tried(
        self, trials: list[CandidateLog], candidate: Candidate, on_sample: RoughSolve
    ) -> tuple[list[Weights], list[UserInfluence]]:
        """(weights in each trial, the metrics that choose, averaged over trials) of a candidate."""
        solved = [
            self._solve(trial, candidate, candidate.stage_name(), None if trial.sample is None else on_sample)
            for trial in trials
        ]
        judged = [
            monitored_influences(weights, trial.fit.data, self.monitor)
            for weights, trial in zip(solved, trials, strict=True)
        ]
        return solved, mean_of_parts(judged, [len(trial.fit.data.triplets("S_va").users) for trial in trials])

    def _train_ncf(self, fit: Fit) -> Weights:
        """Train ncf on the same terms; mf's solution chooses the candidate and initialises the embeddings."""
        own = {name: value for name, value in self.get_params().items() if name not in OF_NCF}
        mf = DubX(**(own | {"head": None})).resolve(fit.data)
        solved, M_t = mf.recipe(fit, "embeddings")
        for name in ("gamma", "exposure_power", "negative", "teacher", "grade_spread"):
            setattr(self, name, getattr(mf, name))
        terms = self.kept(mf.all_terms(fit, M_t))
        terms = [term.times(NCF_SHARE * term.stands_for) if term.redrawn else term for term in terms]
        return fit.train(self.stage("refine"), terms, _embedded(fit, self.stage("M_c"), solved))

    # -- terms

    def target_rule(self) -> Targets:
        return self._targets_of(self._given())

    def _targets_of(self, candidate: Candidate) -> Targets:
        negative = NEGATIVE if isinstance(candidate.negative, str) else candidate.negative
        return Targets(required(self.targets), negative, required(self.target_slope), candidate.grade_spread)

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        """c, a, e.2 and d with the method's own settings, which the recipe has chosen."""
        return self._terms(fit, self._given(fit.data), M_t)

    def _terms(
        self, fit: Fit, candidate: Candidate, M_t: Weights | None, sample: UserSample | None = None
    ) -> list[bound.Term]:
        """c, a, e.2 and d of a candidate; a and e.2 are left out if they are not kept and S_t is empty.

        With a sample of users, A and C are those of the whole log.
        """
        data, targets = fit.data, self._targets_of(candidate)
        teacher: Teacher = ConstantTeacher(self.teacher_value)
        if M_t is not None:
            mean = mean_target(data, targets)
            teacher = ModelTeacher(M_t, self.trained_loss().link, mean, self.shrink, self.teacher_value - mean)
        elif candidate.teacher == "item":
            teacher = shifted_rates(data, self.teacher_value, targets)
        if sample is None:
            d = bound.term_d(data, candidate.gamma, teacher, exposure_power=candidate.exposure_power)
        else:
            d = bound.term_d(data, candidate.gamma, teacher)
            d = dataclasses.replace(d, row_weights=sample.exposure[candidate.exposure_power])
        if candidate.negative == UNOBSERVED:
            rates = bound.GradesOf.log(data) if self.targets == "rates" else None
            c = bound.over_S_c("c", data, functools.partial(_clicks, rates, required(self.target_slope)), d)
        else:
            c = bound.term_c(data, targets)
        if sample is not None:
            c = c.times(sample.weights[data.triplets("S_c").users])
            A, C = d.row_weights or (np.ones(data.n_users), np.ones(data.n_items))
            d = dataclasses.replace(d, row_weights=(A * sample.weights, C))
        if not any(map(self.keeps, "ae")) and not len(data.triplets("S_t").users):
            return [c, d]
        of_S_t = bound.term_a(data, targets), bound.term_e2(data, teacher, targets)
        return [c, *(term.times(candidate.randomized_weight) for term in of_S_t), d]


def _clicks(rates: bound.GradesOf | None, slope: float, S_c: Triplets, d: bound.Unobserved | None) -> bound.Observed:
    """A pair's clicked share with y = 1; pairs without a click are as in d."""
    assert d is not None and d.teacher is not None
    clicked = S_c.labels if rates is None else rates_of(rates, S_c)
    A, C = d.row_weights or (np.ones(d.pairs.shape[0]), np.ones(d.pairs.shape[1]))
    weights = np.where(
        clicked > 0, S_c.weights * clicked * np.float32(1 + slope / 2), d.weight * A[S_c.users] * C[S_c.items]
    ).astype(np.float32)
    y = np.where(clicked > 0, np.float32(1.0), d.teacher.predict(S_c.users, S_c.items)).astype(np.float32)
    return bound.Observed("c", S_c.users, S_c.items, y, weights)


def _of_users(judged: Sequence[UserInfluence], users: np.ndarray) -> list[UserInfluence]:
    """The influences of some users alone, which need less memory; all others are 0."""
    return [own._replace(of_users=own.of_users[users]) for own in judged]


def _note(trials: Sequence[CandidateLog], candidate: Candidate, numbers: Mapping[str, float]) -> None:
    """Add numbers to a candidate's rows of the history."""
    for trial in trials:
        for row in trial.fit.log.rows:
            if row["stage"] == candidate.stage_name():
                row.update(numbers)


def can_choose(fit: Fit, fixed: str = "") -> bool:
    """Whether S_va can choose; if it cannot, the warning says what is `fixed`."""
    positives = int(np.count_nonzero(fit.data.triplets("S_va").labels))
    if fixed and not fit.validation.usable:
        metric = fit.validation.monitor
        warnings.warn(f"S_va cannot judge {metric}: {fixed} needs {FEWEST} positives, and negatives", stacklevel=5)
    elif fixed and positives < FEWEST:
        warnings.warn(f"S_va has {positives} positives: {fixed} needs {FEWEST}", stacklevel=5)
    return fit.validation.usable and positives >= FEWEST


def folds(data: Partition, count: int, seed: int) -> list[Partition]:
    """Logs whose S_va is each fold of the pairs of S_t and S_va once, and whose S_t is the rest.

    Folds are random, with equally many positives in each.
    """
    pairs = joined(data.triplets("S_t"), data.triplets("S_va"))
    order = generator(seed, "choice-folds").permutation(len(pairs.users))
    fold = np.empty(len(order), np.int64)
    fold[order[np.argsort(pairs.labels[order], kind="stable")]] = np.arange(len(order)) % count
    return [data.replace(S_t=pairs.take(fold != k), S_va=pairs.take(fold == k)) for k in range(count)]


def _embedded(fit: Fit, stage: Stage, solved: Weights) -> Weights:
    """Initial weights of ncf: random, with mf's factors at unit variance as the embeddings.

    At the variance of a random start, 1/rank, hidden units are almost linear and learn biases first. The factors are
    rotated to the items' principal axes, each with the sign that makes the sum of cubes positive: scores do not
    determine the rotation, row solves end at any, and training must not depend on it.
    """
    M_c = fit.new(stage)
    P, Q = (solved.arrays()[name] for name in ("user_factors", "item_factors"))
    wide = Q.astype(np.float64)
    turn = np.linalg.eigh(wide.T @ wide)[1]
    turn = np.where(((wide @ turn) ** 3).sum(axis=0) < 0, -turn, turn)
    for rows, given in ((M_c.users, P), (M_c.items, Q)):
        spread = np.sqrt(np.mean(np.square(given, dtype=np.float64)))
        rows[:] = given @ (turn / max(spread, LEAST_SPREAD)).astype(np.float32)
    return M_c
