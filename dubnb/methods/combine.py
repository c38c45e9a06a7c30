"""Combine: one model on both logs."""

from dataclasses import dataclass

from dubnb.methods._method import RANK_AND_LAM, Method
from dubnb.objective import terms as bound


@dataclass(kw_only=True, repr=False, eq=False)
class Combine(Method):
    """a + c: one model on S_c and S_t together."""

    name = "combine"
    TERMS = "ac"
    DEFAULTS = {"mf": {"rank": 50, "lam": 1e-4}, "ncf": {"rank": 50, "lam": 1e-4}}
    GRIDS = RANK_AND_LAM

    def recipe(self, run):
        terms = run.keep([bound.term_a(run.data), bound.term_c(run.data)])
        return run.train(run.new("c"), terms, "M_c", run.params.lam), None
