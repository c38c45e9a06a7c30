"""Bridge: the biased log, and a teacher's predictions on unseen pairs (Liu et al., 2020)."""

from dataclasses import dataclass

from dubnb import _check
from dubnb._check import InputError
from dubnb.methods._taught import Taught
from dubnb.objective import terms as bound

TEACHERS = ("frozen", "joint")


@dataclass(kw_only=True, repr=False, eq=False)
class Bridge(Taught):
    """c + gamma d. teacher="frozen": M_t pre-trained, S_a from S_u; "joint": + e.1 for M_t, S_a from all of D.

    gamma: weight of term d; teacher: see above; shrink: how far the frozen teacher is drawn towards S_t's mean label;
    solver: "sampled", or "exact" (mf, squared; lam is then the absolute decay per row); exposure_power: p of
    term d's weights by activity and popularity, one number or (for users, for items), see `DubX`; pretrain_lam,
    teacher_lam: regularisation of M_c's pre-training and of M_t.
    """

    teacher: str = "frozen"

    name = "bridge"
    TERMS = "cd"

    def _check_params(self, params):
        super()._check_params(params)
        _check.choice("teacher", params["teacher"], TEACHERS)
        if params["teacher"] == "joint" and (params["solver"] == "exact" or params["shrink"]):
            raise InputError("teacher='joint' goes with solver='sampled' and shrink=0: set them, or teacher='frozen'")

    def refine(self, run, M_c, M_t):
        data, gamma, power = run.data, run.params.gamma, run.params.exposure_power
        c = bound.term_c(data)
        if self.teacher == "joint":
            d = bound.term_d(data, gamma, everywhere=True, exposure_power=power)
            return run.refine_jointly(M_c, M_t, [c, d], bound.term_e1(data))
        teacher = bound.Teacher(data, M_t, run.loss, run.params.shrink)
        return run.refine(M_c, [c, bound.term_d(data, gamma, teacher, exposure_power=power)]), M_t
