"""What bridge and dub share: a pre-trained student M_c, a teacher M_t, and term d between them."""

from dataclasses import dataclass

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.methods._exact import EXACT, PRETRAINING, ExactlySolved
from dubnb.methods._method import Method
from dubnb.methods._params import required
from dubnb.methods._settings import lam_of_S_c, letters_of_pretraining, of_gamma, rank_of
from dubnb.methods._teacher import TEACHER, TEACHER_CHECKS, teacher_stage
from dubnb.objective import exposure, teachers
from dubnb.objective import terms as bound
from dubnb.train import Fit, Stage


@dataclass(kw_only=True, repr=False, eq=False)
class Taught(ExactlySolved):
    """Pre-train M_c and M_t, then minimise the method's terms; or solve the exact objective.

    Parameters
    ----------
    gamma : float
        Weight of term d.
    solver : {"sampled", "exact"}
        Term d in mini-batches of a sample, or over all of S_u (mf, squared), by alternating row solves.
    shrink : float
        How far a frozen teacher is drawn towards S_t's mean label, 0 to 1.
    exposure_power : float or (float, float)
        p of term d's weights by activity and popularity, one number or (for users, for items), see `DubX`.
    pretrain_lam, teacher_lam : float
        Regularisation of M_c's pre-training, and of M_t.
    pretrain_terms : {"c", "ac"}
        What M_c is pre-trained on: S_c, or both logs. As refinement never ends below its start on S_va, "ac" makes
        `combine` the least that comes out: the default of dub with mf where S_t is 3 % of S_c or more. With less of S_t
        it is the paper's "c", as for bridge and ncf.
    teacher_batch_size : int
        Samples of S_t per mini-batch of M_t: as many as give some 42 steps an epoch, at most 128.
    """

    gamma: float | None = None
    solver: str = "sampled"
    shrink: float | None = None
    exposure_power: float | tuple[float, float] = 0.0
    pretrain_lam: float | None = None
    pretrain_terms: str | None = None
    teacher_lam: float | None = None
    teacher_batch_size: int | None = None

    COMMON = {
        **Method.COMMON,
        "shrink": 0.0,
        "pretrain_lam": lam_of_S_c(1e-4),
        "pretrain_terms": letters_of_pretraining,
        **TEACHER,
    }
    SETTINGS = {
        ("mf", "sampled"): of_gamma({"rank": rank_of(100, 50), "gamma": 1.5, "lam": lam_of_S_c(4e-5)}),
        ("ncf", "sampled"): of_gamma({"rank": 50, "gamma": 0.1, "lam": lam_of_S_c(1e-5)}),
        ("mf", "exact"): EXACT,
    }
    CHECKS = {
        "gamma": _check.reals(),
        "solver": _check.choices(("sampled", "exact")),
        "shrink": _check.reals(high=1.0),
        "exposure_power": exposure.checked_powers,
        "pretrain_lam": _check.reals(),
        "pretrain_terms": _check.choices(("c", "ac")),
        **TEACHER_CHECKS,
    }

    def check(self) -> None:
        super().check()
        if self.solver == "exact" and self.loss != "squared":
            raise InputError(f"solver='exact' needs loss='squared', not {self.loss!r}: set it, or solver='sampled'")

    def idle(self) -> set[str]:
        return set() if self.keeps("d") else {"gamma"}

    def pretraining(self) -> tuple[Stage, ...]:
        if self.solver == "exact":
            return () if self.shrink == 1 else (teacher_stage(self, **PRETRAINING),)
        with_a = "a" in required(self.pretrain_terms)
        return teacher_stage(self), self.stage("M_c", lam=self.pretrain_lam, with_a=with_a)

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        if self.solver == "exact":
            return self._solve_exactly(fit)
        M_t_stage, M_c_stage = self.pretraining()
        return self.refine(fit, fit.pretrain(M_t_stage), M_c_stage)

    def refine(self, fit: Fit, M_t: Weights, M_c_stage: Stage) -> tuple[Weights, Weights]:
        """The method's own terms, from M_c as `M_c_stage` gives it; returns (M_c, M_t)."""
        raise NotImplementedError

    def joint_stages(self) -> tuple[Stage, Stage]:
        """The refinement of M_c and of M_t side by side."""
        return self.stage("refine"), teacher_stage(self)

    def refine_with(self, fit: Fit, M_t: Weights, M_c_stage: Stage) -> tuple[Weights, Weights]:
        """M_c alone on all kept terms together, M_t being frozen."""
        terms = self._all_terms(fit, M_t)
        return fit.train(self.stage("refine"), self.kept(terms), lambda: fit.pretrain(M_c_stage)), M_t

    def _all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        """a, c, d and e.2, whether kept or not."""
        data, targets = fit.data, self.target_rule()
        teacher = teachers.shrunk(data, M_t, self.trained_loss(), required(self.shrink), targets)
        d = bound.term_d(data, required(self.gamma), teacher, exposure_power=self.exposure_power)
        return [bound.term_a(data, targets), bound.term_c(data, targets), d, bound.term_e2(data, teacher, targets)]

    def _solve_exactly(self, fit: Fit) -> tuple[Weights, Weights | None]:
        """Terms a, c, e.2 on their pairs and d on all of S_u."""
        # A constant teacher needs no M_t; another is trained in mini-batches, which need more epochs than row solves.
        M_t = next(map(fit.pretrain, self.pretraining()), None)
        problem = self.exact_problem(self._all_terms(fit, M_t))
        return self.minimise(fit, problem, self.random_rows(fit)), M_t
