"""Objectives with term d over *all* of S_u (mf, loss squared), solved by alternating row solves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dubnb.backbones import Weights
from dubnb.methods._method import Method
from dubnb.methods._settings import PAPER_RANKS, PAPER_STRENGTHS, Settings
from dubnb.objective import als
from dubnb.objective.all_pairs import exact_problem
from dubnb.objective.terms import Observed, Term, Unobserved
from dubnb.train import Fit

Decays = tuple[float | np.ndarray, float | np.ndarray]
PRETRAINING = {"epochs": 200, "patience": 5}  # of a teacher
LENGTH = {"epochs": 30, "patience": 2}  # of the row solves, in sweeps
# lam is an absolute decay per row here, so the paper's range of lambda means nothing; rank and gamma keep the paper's.
LAMS = (5.0, 10.0, 15.0, 20.0, 40.0)
EXACT = Settings(
    defaults={"rank": 100, "gamma": 0.05, "lam": 15.0, "shrink": 1.0, "loss": "squared", **LENGTH},
    paper={"rank": PAPER_RANKS, "lam": LAMS, "gamma": PAPER_STRENGTHS},
    wide={"rank": (50, 100, 200), "lam": LAMS, "gamma": (0.0125, 0.025, 0.05, 0.1, 0.2)},
    even={"rank": PAPER_RANKS, "lam": LAMS, "gamma": (0.0125, 0.025, 0.05, 0.1, 0.2)},
    near={"lam": 2.0, "gamma": 3.0, "rank": 2.0},
)


def minimise(
    fit: Fit, method: Method, terms: Sequence[Term], decays: Callable[[Sequence[Observed], Unobserved], Decays]
) -> Weights:
    """The minimum of the kept terms by alternating row solves from random rows; S_va's best sweep is kept.

    An epoch is a sweep over all users, then all items. Full-batch gradient steps end at the same objective: on
    yahoo-like they needed 500 to 1,000 of them, seven times as long as twenty sweeps.
    """
    weighed = [term if term.name in method.terms else term.times(0.0) for term in terms]
    observed = [term for term in weighed if isinstance(term, Observed)]
    (d,) = (term for term in weighed if isinstance(term, Unobserved))
    ready = als.prepare(exact_problem(observed, d, decays=decays(observed, d)))
    rows = method.stage("M_c", method.lam).new(fit.data).extended()

    def sweep(epoch: int) -> float:
        als.sweep(ready, *rows)
        return als.objective(ready, *rows)

    return fit.descend(method.stage("refine", method.lam), rows, sweep)
