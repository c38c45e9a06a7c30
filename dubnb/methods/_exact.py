"""Objectives with term d over *all* of S_u (mf, loss squared), solved by alternating row solves."""

from __future__ import annotations

from collections.abc import Sequence

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.backbones.extended import Extended
from dubnb.methods._method import Method
from dubnb.methods._settings import PAPER_RANKS, PAPER_STRENGTHS, Settings
from dubnb.methods._teacher import TEACHER
from dubnb.objective import als, exposure
from dubnb.objective.all_pairs import ExactProblem, exact_problem
from dubnb.objective.terms import Observed, Term, Unobserved
from dubnb.train import EarlyStopping, Fit

PRETRAINING = {"epochs": 200, "patience": 5}  # of a teacher
LENGTH = {"epochs": 30, "patience": 2}  # of the row solves, in sweeps
CONVERGED = 1e-4  # a sweep that lowers the objective by less than this share is the last
CUTOFFS = (0.06, 0.12, 0.18, 0.24, 0.48)
GAMMAS = (0.0125, 0.025, 0.05, 0.1, 0.2)
EXACT = Settings(  # cutoff takes lam's place, so the paper's range of lambda means nothing; rank and gamma keep it
    defaults={"rank": 100, "gamma": 0.05, "cutoff": 0.18, "shrink": 1.0, "loss": "squared", **LENGTH, **TEACHER},
    paper={"rank": PAPER_RANKS, "cutoff": CUTOFFS, "gamma": PAPER_STRENGTHS},
    wide={"rank": (50, 100, 200), "cutoff": CUTOFFS, "gamma": GAMMAS},
    even={"rank": PAPER_RANKS, "cutoff": CUTOFFS, "gamma": GAMMAS},
    near={"cutoff": 1.4, "gamma": 2.0, "rank": 2.0},
)
CUTOFF_CHECKS = {"lam": _check.optional(_check.reals()), "cutoff": _check.optional(_check.reals(open_low=True))}


def check_cutoff(method: Method) -> None:
    """`cutoff` belongs to the exact solver, which needs some decay: without it a row solve may have no unique answer."""
    if method.chosen_solver() != "exact" and method.cutoff is not None:
        raise InputError(f"cutoff={method.cutoff!r} is for solver='exact': set lam instead")
    if method.chosen_solver() == "exact" and method.lam == 0:
        raise InputError("lam=0.0 must be above 0 with solver='exact': raise it, or leave it to cutoff")


def problem_of(method: Method, terms: Sequence[Term], by_row: bool = False) -> ExactProblem:
    """The kept terms as one exact problem; `by_row`: rows decay in proportion to their weights.

    Where lam is not given, it is set to 2 cutoff (sqrt(W_u) + sqrt(W_i)), see `exposure.noise_scale`.
    """
    weighed = [term if term.name in method.terms else term.times(0.0) for term in terms]
    observed = [term for term in weighed if isinstance(term, Observed)]
    (d,) = (term for term in weighed if isinstance(term, Unobserved))
    weights = exposure.total_weights(observed, d)
    if method.lam is None:
        method.lam = 2 * method.cutoff * exposure.noise_scale(weights[0].sum(), (len(weights[0]), len(weights[1])))
    decays = [method.lam * each / each.mean() if by_row else method.lam for each in weights]
    return exact_problem(observed, d, decays=(decays[0], decays[1]))


def random_rows(fit: Fit, method: Method) -> Extended:
    """Where row solves begin."""
    return method.stage("M_c", 0.0).new(fit.data).extended()


def minimise(fit: Fit, method: Method, problem: ExactProblem, rows: Extended, name: str = "refine") -> Weights:
    """The minimum by alternating row solves from `rows`, which are changed; S_va's best sweep is returned.

    An epoch is a sweep over all users, then all items. Full-batch gradient steps end at the same objective: on
    yahoo-like they needed 500 to 1,000 of them, seven times as long as twenty sweeps.
    """
    ready = als.prepare(problem)

    def sweep(epoch: int) -> float:
        als.sweep(ready, *rows)
        return als.objective(ready, *rows)

    return fit.descend(method.stage(name, method.lam), rows, sweep, EarlyStopping(method.patience, enough=CONVERGED))
