"""What bridge and dub share: a pre-trained student M_c, a teacher M_t, and term d between them."""

from dataclasses import dataclass

from dubnb.methods._exact import EXACT_DEFAULTS, EXACT_GRIDS, check_solver, refine_exactly
from dubnb.methods._method import RANK_LAM_AND_GAMMA, Method


@dataclass(kw_only=True, repr=False, eq=False)
class Taught(Method):
    """Pre-train M_c on S_c and M_t on S_t, then `refine`; or solve the exact objective.

    gamma: weight of term d; solver: "sampled", or "exact" (mf, squared; lam is then the absolute decay per row);
    shrink: how far a frozen teacher is drawn towards S_t's mean label; exposure_power: p of term d's weights by
    activity and popularity, one number or (for users, for items), see `DubX`; pretrain_lam, teacher_lam:
    regularisation of M_c's pre-training and of M_t.
    """

    gamma: float | None = None
    solver: str = "sampled"
    shrink: float | None = None
    exposure_power: float | tuple = 0.0
    pretrain_lam: float = 1e-4
    teacher_lam: float = 1e-2

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

    def recipe(self, run):
        if self.solver == "exact":
            return refine_exactly(run)
        return self.refine(run, run.fit_c(run.params.pretrain_lam), run.fit_t(run.params.teacher_lam))

    def refine(self, run, M_c, M_t):
        """The method's own terms on the two pre-trained models; returns (M_c, M_t)."""
        raise NotImplementedError
