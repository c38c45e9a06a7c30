"""Base: one model on the biased log."""

from dataclasses import dataclass

from dubnb.methods._method import RANK_AND_LAM, Method


@dataclass(kw_only=True, repr=False, eq=False)
class Base(Method):
    """c: one model on S_c."""

    name = "base"
    TERMS = "c"
    DEFAULTS = {"mf": {"rank": 50, "lam": 1e-4}, "ncf": {"rank": 50, "lam": 1e-4}}
    GRIDS = RANK_AND_LAM

    def recipe(self, run):
        return run.fit_c(run.params.lam), None
