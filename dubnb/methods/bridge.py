"""Bridge: the biased log, and a teacher's predictions on unseen pairs (Liu et al., 2020)."""

from dataclasses import dataclass

from dubnb import _check
from dubnb._check import InputError
from dubnb.methods._exact import EXACT_DEFAULTS, EXACT_GRIDS, check_solver, refine_exactly
from dubnb.methods._method import RANK_LAM_AND_GAMMA, Method
from dubnb.objective import terms as bound

TEACHERS = ("frozen", "joint")


@dataclass(kw_only=True, repr=False, eq=False)
class Bridge(Method):
    """c + gamma d. teacher="frozen": M_t pre-trained, S_a from S_u; "joint": + e.1 for M_t, S_a from all of D.

    gamma: weight of term d; teacher: see above; shrink: how far the frozen teacher is drawn towards S_t's mean label;
    solver: "sampled", or "exact" (mf, squared; lam is then the absolute decay per row); exposure_power: p of
    term d's weights by activity and popularity, one number or (for users, for items), see `DubX`; pretrain_lam,
    teacher_lam: regularisation of M_c's pre-training and of M_t.
    """

    gamma: float | None = None
    solver: str = "sampled"
    shrink: float | None = None
    teacher: str = "frozen"
    exposure_power: float | tuple = 0.0
    pretrain_lam: float = 1e-4
    teacher_lam: float = 1e-2

    name = "bridge"
    TERMS = "cd"
    DEFAULTS = {
        "mf": {"rank": 100, "gamma": 1.5, "lam": 4e-5, "shrink": 0.0},
        "ncf": {"rank": 50, "gamma": 0.1, "lam": 1e-5, "shrink": 0.0},
    }
    GRIDS = RANK_LAM_AND_GAMMA
    PRETRAINING = ("pretrain_lam", "teacher_lam", "batch_size")

    def _own_defaults(self):
        return EXACT_DEFAULTS if self.solver == "exact" else self.DEFAULTS[self.backbone]

    def grid(self, name):
        return EXACT_GRIDS[name] if self.solver == "exact" else super().grid(name)

    def _check_params(self, params):
        super()._check_params(params)
        check_solver(params)
        _check.choice("teacher", params["teacher"], TEACHERS)
        if params["teacher"] == "joint" and (params["solver"] == "exact" or params["shrink"]):
            raise InputError("teacher='joint' goes with solver='sampled' and shrink=0: set them, or teacher='frozen'")

    def recipe(self, run):
        data, gamma, power = run.data, run.params.gamma, run.params.exposure_power
        if self.solver == "exact":
            return refine_exactly(run)
        M_c, M_t = run.fit_c(run.params.pretrain_lam), run.fit_t(run.params.teacher_lam)
        if self.teacher == "joint":
            terms = [bound.term_c(data), bound.term_d(data, gamma, everywhere=True, exposure_power=power)]
            return run.refine_jointly(M_c, M_t, terms, bound.term_e1(data))
        teacher = bound.Teacher(data, M_t, run.loss, run.params.shrink)
        term_d = bound.term_d(data, gamma, teacher, exposure_power=power)
        return run.refine(M_c, [bound.term_c(data), term_d]), M_t
