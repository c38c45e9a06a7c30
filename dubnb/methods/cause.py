"""CausE: two models whose factors are pulled together (Bonner and Vasile, 2018)."""

from dataclasses import dataclass

from dubnb import _check
from dubnb.methods._method import RANK_LAM_AND_GAMMA, Method
from dubnb.objective import terms as bound
from dubnb.train import NORMS, SIDES, Alignment


@dataclass(kw_only=True, repr=False, eq=False)
class CausE(Method):
    """c + e.1 + gamma x |W_c - W_t|, over W_c and W_t together.

    gamma: strength of the alignment; side: factors that align, "items", "users" or "both"; norm: "l1" (as its authors'
    code) or "frobenius" (as the paper writes), over the rows a batch touches; teacher_lam: regularisation of M_t.
    """

    gamma: float | None = None
    side: str = "items"
    norm: str = "l1"
    teacher_lam: float = 1e-2

    name = "cause"
    TERMS = "ce"
    DEFAULTS = {
        "mf": {"rank": 50, "lam": 1e-4, "gamma": 1e-2},
        "ncf": {"rank": 50, "lam": 1e-4, "gamma": 1e-2},
    }
    GRIDS = RANK_LAM_AND_GAMMA

    def _check_params(self, params):
        super()._check_params(params)
        _check.choice("side", params["side"], tuple(SIDES))
        _check.choice("norm", params["norm"], tuple(NORMS))

    def recipe(self, run):
        pull = Alignment(run.params.gamma, run.params.side, run.params.norm)
        e1 = bound.term_e1(run.data) if "e" in run.params.terms else None
        return run.refine_jointly(run.new("c"), run.new("t"), [bound.term_c(run.data)], e1, pull)
