"""What bridge and dub share: a pre-trained student M_c, a teacher M_t, and term d between them."""

from dataclasses import dataclass

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.losses import LOSSES
from dubnb.methods._exact import EXACT, PRETRAINING, minimise
from dubnb.methods._method import Method
from dubnb.methods._settings import of_gamma
from dubnb.objective import exposure, teachers
from dubnb.objective import terms as bound
from dubnb.train import Fit, Stage


def check_joint(method: Method) -> None:
    """Refuse what two models in training cannot do."""
    if not set(method.terms) & set("acd"):
        raise InputError(f"terms={method.terms!r} leaves nothing to train M_c on: keep one of a, c, d")
    if method.weighting == "theory":
        raise InputError("weighting='theory' goes with one model in training (Eq. 2): use weighting='sample' here")


@dataclass(kw_only=True, repr=False, eq=False)
class Taught(Method):
    """Pre-train M_c on S_c and M_t on S_t, then minimise the method's terms; or solve the exact objective.

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
    """

    gamma: float | None = None
    solver: str = "sampled"
    shrink: float | None = None
    exposure_power: float | tuple[float, float] = 0.0
    pretrain_lam: float = 1e-4
    teacher_lam: float = 1e-2

    SETTINGS = {
        ("mf", "sampled"): of_gamma({"rank": 100, "gamma": 1.5, "lam": 4e-5, "shrink": 0.0}),
        ("ncf", "sampled"): of_gamma({"rank": 50, "gamma": 0.1, "lam": 1e-5, "shrink": 0.0}),
        ("mf", "exact"): EXACT,
    }
    CHECKS = {
        "gamma": _check.reals(),
        "solver": _check.choices(("sampled", "exact")),
        "shrink": _check.reals(high=1.0),
        "exposure_power": exposure.checked_powers,
        "pretrain_lam": _check.reals(),
        "teacher_lam": _check.reals(),
    }

    def check(self):
        super().check()
        if self.solver == "exact" and self.loss != "squared":
            raise InputError(f"solver='exact' needs loss='squared', not {self.loss!r}: set it, or solver='sampled'")

    def idle(self):
        return set() if "d" in self.terms else {"gamma"}

    def pretraining(self) -> tuple[Stage, ...]:
        if self.solver == "exact":
            return () if self.shrink == 1 else (self.teacher_stage(self.teacher_lam, **PRETRAINING),)
        return self.teacher_stage(self.teacher_lam), self.stage("M_c", self.pretrain_lam)

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
        return self.stage("refine", self.lam), self.teacher_stage(self.teacher_lam)

    def refine_with(self, fit: Fit, M_t: Weights, M_c_stage: Stage) -> tuple[Weights, Weights]:
        """M_c alone on all kept terms together, M_t being frozen."""
        terms = self._all_terms(fit, M_t)
        return fit.train(self.stage("refine", self.lam), self.kept(terms), lambda: fit.pretrain(M_c_stage)), M_t

    def _all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        """a, c, d and e.2, whether kept or not."""
        data = fit.data
        teacher = teachers.shrunk(data, M_t, LOSSES[self.loss], self.shrink)
        d = bound.term_d(data, self.gamma, teacher, exposure_power=self.exposure_power)
        return [bound.term_a(data), bound.term_c(data), d, bound.term_e2(data, teacher)]

    def _solve_exactly(self, fit: Fit) -> tuple[Weights, Weights | None]:
        """Terms a, c, e.2 on their pairs and d on all of S_u."""
        # A constant teacher needs no M_t; another is trained in mini-batches, which need more epochs than row solves.
        M_t = next(map(fit.pretrain, self.pretraining()), None)
        return minimise(fit, self, self._all_terms(fit, M_t), lambda observed, d: (self.lam, self.lam)), M_t
