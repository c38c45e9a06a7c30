"""DUB-X: exposure-weighted dub over all of S_u: exact by alternating row solves (mf), in mini-batches (ncf)."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.methods._exact import LENGTH, PRETRAINING, ExactlySolved, unless_lam
from dubnb.methods._method import Method
from dubnb.methods._params import required
from dubnb.methods._settings import PAPER_RANKS, PAPER_STRENGTHS, LogFacts, Settings, Times, lam_of_S_c, weight_of_S_t
from dubnb.methods._teacher import TEACHER, TEACHER_CHECKS, teacher_stage
from dubnb.objective import exposure, teachers
from dubnb.objective import terms as bound
from dubnb.objective.targets import Targets, rates_of
from dubnb.train import Fit, Stage

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

AUTO = "auto"
TEACHERS = ("constant", "item", "model")
CUTOFFS = (0.15, 0.2, 0.25, 0.3, 0.4)
GAMMAS = (0.003, 0.01, 0.03)  # what "auto" tries, the most first: how much absence tells differs between worlds
POWERS = (0.75, 1.0)
FIXED = (0.03, 1.0)  # gamma and p where S_va cannot choose
FEWEST = 30  # positives of S_va to choose on
SPREAD = 1.4  # of the grades, tried after gamma and p
NEGATIVE = 0.2  # target of an observed negative of S_c
UNOBSERVED = "unobserved"  # instead: it counts as a pair of S_u
Power = float | tuple[float, float]  # p of users and items, or of either
OF_NCF = ("backbone", "loss", "lam", "lr", "batch_size", "epochs", "patience", "hidden", "activation")  # not of its mf
ABSENCE = 1 / 3  # of gamma in ncf's term d: S_va's choice on yahoo-like, simulated and Coat (1, 1/3; one seed each)
LEAST_SPREAD = 1e-3  # of factors: those that have vanished are not blown up


def _checked_gamma(name: str, value: Any) -> float | str:
    return AUTO if isinstance(value, str) and value == AUTO else _check.real(name, value)


def _checked_negative(name: str, value: Any) -> float | str:
    return str(value) if isinstance(value, str) and value in (AUTO, UNOBSERVED) else _check.real(name, value, high=1.0)


def _targets(log: LogFacts, known: Any) -> str:
    return "graded" if log.graded else "rates" if log.has_rates else "binary"


def _negative(log: LogFacts, known: Any) -> float | str:
    """Chosen on S_va where a negative may be an impression that nobody looked at: not where people gave a rating."""
    return NEGATIVE if log.click_only or (log.graded and not log.ranked) else AUTO


RECIPE = {"gamma": AUTO, "terms": "acd", "targets": _targets, "negative": _negative, "target_slope": 1.0}


class Candidate(NamedTuple):
    """What S_va chooses, by the parameters' names."""

    gamma: float
    exposure_power: Power
    grade_spread: float
    negative: float | str

    def text(self) -> str:
        """As its stage of training is called."""
        spread = "" if self.grade_spread == 1 else f", spread {self.grade_spread:g}"
        negative = ", negatives unobserved" if self.negative == UNOBSERVED else ""
        return f"gamma {self.gamma:g}, p {self.exposure_power}{spread}{negative}"


CHOSEN = Candidate._fields


@dataclass(kw_only=True, repr=False, eq=False)
class DubX(ExactlySolved):
    """Eq. 2 with the squared loss, term d over all of S_u with weights A_u C_i, solved exactly, row by row.

        sum over S_c of w (s - y)^2  +  w_t sum over S_t of (s - y_t)^2  +  gamma sum over S_u of A_u C_i (s - t)^2
        +  sum over rows of lam_row / 2 |row|^2  +  .1 |biases|^2,        mf without b0; ncf below

    Observed pairs have the targets and weights of `dubnb.objective.targets`: with grades y = 1 for a positive and the
    grade of a negative, without y = .2 for a negative of S_c, and y = .2 + .8 r where the share r of a pair's
    impressions is positive; w = 1/2 + y in S_c.

    Derivation: term d of Eq. 2 is the loss between M_c's and the teacher's predictions, averaged over S_u, where
    every pair counts alike. Weighing pair (u, i) by A_u C_i, A_u = (n_u + 1)^p and C_i = (n_i + 1)^p over their
    means, n = counts in S_c, says that an absence tells the more, the more chances there were to be seen: a product
    of activity and popularity stands in for exposure. Weights of mean 1 leave gamma its meaning; their product form
    leaves the sum exact. A row decays in proportion to its weight (its samples', plus gamma A_u sum C), by lam on
    average, and lam follows from `cutoff` and the log's own scale of noise.

    How much absence tells differs between worlds, and S_va can say it: gamma="auto" solves for three gammas and two
    powers, each from where the last ended, then with the grades of negatives further apart, and keeps the best on S_va.
    An impression without a click may say nothing, because nobody looked. negative="unobserved" counts the negatives of
    S_c among S_u, with weight gamma A_u C_i and target t, and of a pair that was clicked in the share r of its
    impressions only that share, with y = 1. negative="auto", the default where labels are 0/1 or grades are ranks (such
    as seconds, not ratings), makes this the last candidate; with a given gamma it is .2.

    With backbone="ncf" the same terms are minimised in expectation, with bce unless loss= says otherwise, in
    mini-batches and with a third of gamma: a pair of S_u that an epoch draws stands for |S_u| / |S_a| of them. From a
    random start ncf hardly gets beyond biases before it learns S_c by heart, so mf is solved first, as above: S_va
    chooses gamma and p there, and mf's factors are where the embeddings begin (as He et al., 2017, pre-train theirs),
    at a learning rate of 3e-4.

    Not known: why p below 1 ranks best where popular items are also the better ones. And the theorem does not cover it:
    weighting changes the objective that the theorem bounds, and with the squared loss Eq. 2 is no proven bound to begin
    with.

    Parameters
    ----------
    gamma : float or "auto"
        Weight of term d.
    exposure_power : float or (float, float)
        p, one number or (for users, for items); 0 weighs all pairs alike, which is the exact dub. By default .75, or
        chosen along with gamma="auto"; where S_va has fewer than 30 positives to choose on, gamma is .03 and p is 1.
    grade_spread : float
        With graded targets a negative of S_c has the target 1/4 + grade_spread (grade - 1/4): at 1.4 that is -.1, .25
        and .6 instead of 0, .25 and .5. By default 1, or with mf and gamma="auto" 1 or 1.4, as S_va says; with a given
        gamma it is 1 unless set.
    randomized_weight : float
        w_t, also of term e.2 where `terms` has it: 5 where S_t is 1.7 % of S_c or less, as at Yahoo! R3, else 5 times
        the root of 1.7 % over that share, and at least 2; with ncf 5.
    teacher : {"constant", "item", "model"}
        t = teacher_value, or an empirical-Bayes rate of the item in S_t, or shrink x mean + (1 - shrink) x score of a
        low-rank M_t trained on S_t (mean = S_t's mean target); the last two shifted by teacher_value - mean, so that an
        average pair sits at teacher_value.
    teacher_value : float
        0 by default, below S_t's mean label.
    shrink : float
        .8, as a weak M_t misleads (AUC on S_va, yahoo-like, one seed: shrink 0 .755, .5 .784, .8 .795; constant .796).
    teacher_lam : float
        Regularisation of M_t.
    teacher_batch_size : int
        Samples of S_t per mini-batch of M_t.
    """

    gamma: float | str | None = None
    exposure_power: float | tuple[float, float] | None = None
    grade_spread: float | None = None
    negative: float | str | None = None  # type: ignore[assignment]
    randomized_weight: float | None = None
    teacher: str = "constant"
    teacher_value: float = 0.0
    shrink: float = 0.8
    teacher_lam: float | None = None
    teacher_batch_size: int | None = None

    name = "dub-x"
    decays_by_row = True
    TERMS = "acde"
    COMMON = {**Method.COMMON, **TEACHER}
    SETTINGS = {
        ("mf", "exact"): Settings(
            defaults={
                **RECIPE,
                "rank": 50,
                "cutoff": unless_lam(0.25),
                "loss": "squared",
                "randomized_weight": weight_of_S_t,
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
                "grade_spread": 1.0,
                "randomized_weight": 5.0,
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
        "gamma": _checked_gamma,
        "exposure_power": _check.optional(exposure.checked_powers),
        "grade_spread": _check.optional(_check.reals(high=2.0)),
        "negative": _checked_negative,
        "randomized_weight": _check.reals(),
        "teacher": _check.choices(TEACHERS),
        "teacher_value": _check.reals(low=-np.inf),
        "shrink": _check.reals(high=1.0),
        **TEACHER_CHECKS,
    }

    def chosen_solver(self) -> str:
        return "sampled" if self.backbone == "ncf" else "exact"

    def check(self) -> None:
        super().check()
        if self.chosen_solver() == "exact" and self.loss != "squared":
            raise InputError(f"dub-x needs loss='squared', not {self.loss!r}: set it, or give exposure_power= to dub")
        if self.weighting == "theory":
            raise InputError("weighting='theory' means nothing beside dub-x's own weights: use weighting='sample'")

    def idle(self) -> set[str]:
        return set() if self.keeps("d") else {"gamma", "exposure_power"}

    def pretraining(self) -> tuple[Stage, ...]:
        has_M_t = self.chosen_solver() == "exact" and self.teacher == "model" and self.shrink < 1
        return (teacher_stage(self, **PRETRAINING),) if has_M_t else ()

    def reads_S_t(self) -> bool:
        return any(map(self.keeps, "ae")) or (self.keeps("d") and self.teacher != "constant")

    def keep_choices(self, model: Any) -> None:
        if self.chosen_solver() != "exact":
            super().keep_choices(model)
        if not isinstance(model, DubX):
            raise InputError(f"start= is {_check.shown(getattr(model, 'name', model))}: give an earlier dub-x")
        model._fitted()
        if isinstance(self.gamma, str):
            for name in CHOSEN:
                if getattr(self, name) in (None, AUTO):
                    setattr(self, name, model.params_[name])

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        return self._solve(fit, "refine") if self.chosen_solver() == "exact" else (self._in_batches(fit), None)

    def _in_batches(self, fit: Fit) -> Weights:
        """ncf on the same terms: mf's solution chooses gamma and p, and is where the embeddings begin."""
        mf = DubX(**{name: value for name, value in self.get_params().items() if name not in OF_NCF}).resolve(fit.data)
        solved, M_t = mf._solve(fit, "embeddings")
        self.gamma, self.exposure_power, self.negative = mf.gamma, mf.exposure_power, mf.negative
        terms = self.kept(mf._all_terms(fit, M_t))
        terms = [term.times(ABSENCE * term.stands_for) if term.redrawn else term for term in terms]
        start = self.stage("M_c")
        return fit.train(self.stage("refine"), terms, lambda: _embedded(fit, start, solved))

    def _solve(self, fit: Fit, only: str) -> tuple[Weights, Weights | None]:
        """(M_c, M_t) of mf: the best of the candidates on S_va; `only` names the stage where there is but one."""
        M_t = next(map(fit.pretrain, self.pretraining()), None)
        rows, candidates = self.random_rows(fit), self._candidates(fit)
        best: tuple[float, Weights, Candidate] | None = None
        last = (required(best)[2]._replace(**change) for change in self._changes(candidates))  # of the best so far
        for candidate in itertools.chain(candidates, last):
            self._take(candidate)
            name = only if len(candidates) == 1 else candidate.text()
            problem = self.exact_problem(self._all_terms(fit, M_t))
            minimum = self.minimise(fit, problem, rows, name)
            if best is None or fit.kept > best[0]:
                best = fit.kept, minimum, candidate
        _, M_c, candidate = required(best)
        self._take(candidate)
        return M_c, M_t

    def _take(self, candidate: Candidate) -> None:
        for name, value in candidate._asdict().items():
            setattr(self, name, value)

    def _candidates(self, fit: Fit) -> list[Candidate]:
        """What to choose gamma and p from on S_va; one where they are given, or where it cannot tell."""
        spread = 1.0 if self.grade_spread is None else self.grade_spread
        negative: float | str = NEGATIVE if self.negative in (None, AUTO) else self.negative
        if not isinstance(self.gamma, str):
            power = POWERS[0] if self.exposure_power is None else self.exposure_power
            return [Candidate(required(self.gamma), power, spread, negative)]
        powers: Sequence[Power] = POWERS if self.exposure_power is None else (self.exposure_power,)
        if self.keeps("d") and self._can_choose(fit):
            pairs = itertools.product(powers, GAMMAS[::-1])
            return [Candidate(gamma, power, spread, negative) for power, gamma in pairs]
        power = FIXED[1] if self.exposure_power is None else self.exposure_power
        return [Candidate(FIXED[0], power, spread, negative)]

    def _changes(self, candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
        """What is tried after gamma and p, one after the other."""
        if len(candidates) == 1:
            return []
        changes: list[dict[str, Any]] = []
        if self.grade_spread is None and self.targets == "graded":
            changes.append({"grade_spread": SPREAD})
        if self.negative == AUTO:
            changes.append({"negative": UNOBSERVED})
        return changes

    def _can_choose(self, fit: Fit) -> bool:
        """Whether S_va has positives enough to choose settings on; few of them are said."""
        positives = int(np.count_nonzero(fit.data.triplets("S_va").labels))
        if fit.validation.usable and positives < FEWEST:
            warnings.warn(
                f"S_va has {positives} positives: gamma {FIXED[0]:g} and exposure_power {FIXED[1]:g} are fixed, as "
                f"choosing them needs {FEWEST}",
                stacklevel=6,
            )
        return fit.validation.usable and positives >= FEWEST

    def target_rule(self) -> Targets:
        spread = 1.0 if self.grade_spread is None else self.grade_spread
        negative = NEGATIVE if isinstance(self.negative, str) else required(self.negative)
        return Targets(required(self.targets), negative, required(self.target_slope), spread)

    def _all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        """a, c, d and e.2, whether kept or not; without S_t those of it are left out."""
        data, targets, teacher = fit.data, self.target_rule(), self._teacher(fit, M_t)
        c = bound.term_c(data, targets)
        gamma, power = self.gamma, self.exposure_power
        if not isinstance(gamma, float) or power is None:
            raise TypeError("gamma and exposure_power are chosen by the recipe, before any term is made")
        d = bound.term_d(data, gamma, teacher, exposure_power=power)
        if self.negative == UNOBSERVED:
            c = self._of_positives(data, c, d)
        if not any(map(self.keeps, "ae")) and not len(data.triplets("S_t").users):
            return [c, d]
        of_S_t = bound.term_a(data, targets), bound.term_e2(data, teacher, targets)
        return [c, *(term.times(required(self.randomized_weight)) for term in of_S_t), d]

    def _of_positives(self, data: Partition, c: bound.Observed, d: bound.Unobserved) -> bound.Observed:
        """Term c of what was clicked: a pair's clicked share, with y = 1; pairs without a click are as those of d."""
        S_c, teacher = data.triplets("S_c"), required(d.teacher)
        clicked = rates_of(data, "S_c") if self.targets == "rates" else S_c.labels
        A, C = d.row_weights or (np.ones(data.n_users), np.ones(data.n_items))
        weights = np.where(
            clicked > 0,
            S_c.weights * clicked * np.float32(1 + required(self.target_slope) / 2),
            d.weight * A[S_c.users] * C[S_c.items],
        )
        targets = np.where(clicked > 0, np.float32(1.0), teacher.predict(S_c.users, S_c.items))
        return dataclasses.replace(c, targets=targets.astype(np.float32), weights=weights.astype(np.float32))

    def _teacher(self, fit: Fit, M_t: Weights | None) -> teachers.Teacher:
        targets = self.target_rule()
        if M_t is not None:
            mean = teachers.mean_target(fit.data, targets)
            return teachers.Model(M_t, self.trained_loss().link, mean, self.shrink, self.teacher_value - mean)
        if self.teacher == "item":
            return teachers.shifted_rates(fit.data, self.teacher_value, targets)
        return teachers.Constant(self.teacher_value)


def _embedded(fit: Fit, stage: Stage, solved: Weights) -> Weights:
    """Where ncf begins: at random, its embeddings being mf's factors at unit variance.

    At the variance of a random start, 1/rank, hidden units are as good as linear, and biases are what they learn first.
    """
    M_c = fit.new(stage)
    P, Q = (solved.arrays()[name] for name in ("user_factors", "item_factors"))
    turn = _upright(Q.astype(np.float64))
    for rows, given in ((M_c.users, P), (M_c.items, Q)):
        spread = np.sqrt(np.mean(np.square(given, dtype=np.float64)))
        rows[:] = given @ (turn / max(spread, LEAST_SPREAD)).astype(np.float32)
    return M_c


def _upright(Q: np.ndarray) -> np.ndarray:
    """The rotation of mf's factors to the items' principal axes, each towards where the items' cubes add up to more.

    Scores leave the rotation open, and row solves end at any: where training begins must not hang on that.
    """
    turn = np.linalg.eigh(Q.T @ Q)[1]
    return np.where(((Q @ turn) ** 3).sum(axis=0) < 0, -turn, turn)
