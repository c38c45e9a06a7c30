"""Bridge: the biased log, and a teacher's predictions on unseen pairs."""

from dataclasses import dataclass

from dubnb import _check
from dubnb.methods._method import Method
from dubnb.objective import terms as bound

TEACHERS = ("frozen", "joint")


@dataclass(kw_only=True, repr=False, eq=False)
class Bridge(Method):
    """c + gamma d. teacher="frozen": M_t pre-trained, S_a from S_u; "joint": + e.1 for M_t, S_a from all of D.

    gamma: weight of term d; teacher: see above; pretrain_lam, teacher_lam: regularisation of M_c's pre-training and of M_t.
    """

    gamma: float | None = None
    teacher: str = "frozen"
    pretrain_lam: float = 1e-4
    teacher_lam: float = 1e-2

    name = "bridge"
    TERMS = "cd"
    DEFAULTS = {
        "mf": {"rank": 100, "gamma": 1.5, "lam": 4e-5},
        "ncf": {"rank": 50, "gamma": 0.1, "lam": 1e-5},
    }

    def _check_params(self, params):
        super()._check_params(params)
        _check.choice("teacher", params["teacher"], TEACHERS)

    def recipe(self, run):
        data, gamma = run.data, run.params.gamma
        M_c, M_t = run.pretrain_c(), run.pretrain_t()
        if self.teacher == "joint":
            terms = [bound.term_c(data), bound.term_d(data, gamma, everywhere=True)]
            return run.refine_jointly(M_c, M_t, terms, bound.term_e1(data))
        return run.refine(M_c, [bound.term_c(data), bound.term_d(data, gamma, M_t, run.loss)]), M_t
