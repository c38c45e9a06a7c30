"""Unif: one model on the randomized log."""

from dataclasses import dataclass

from dubnb.methods._method import RANK_AND_LAM, S_T_BATCH, WIDE_RANKS, Method


@dataclass(kw_only=True, repr=False, eq=False)
class Unif(Method):
    """e.1 alone: one model on S_t."""

    name = "unif"
    TERMS = "e"
    DEFAULTS = {
        "mf": {"rank": 50, "lam": 1e-2, "batch_size": S_T_BATCH},
        "ncf": {"rank": 50, "lam": 1e-3, "batch_size": S_T_BATCH},
    }
    GRIDS = {"paper": RANK_AND_LAM["paper"], "wide": {"rank": WIDE_RANKS, "lam": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)}}

    def recipe(self, run):
        return run.fit_t(run.params.lam, run.params.batch_size), None
