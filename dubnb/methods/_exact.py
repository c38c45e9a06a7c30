"""Methods with an exact solver: bridge, dub, dub-x, ials, ease and AutoDebias build on this class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import MF, Weights
from dubnb.backbones.mf import Extended, rows_of
from dubnb.methods._method import Method
from dubnb.methods._params import (
    PAPER_RANKS,
    PAPER_STRENGTHS,
    Rule,
    Settings,
    required,
)
from dubnb.objective.all_pairs import BIAS_RIDGE, ExactProblem, ExactTerms
from dubnb.objective.parts import UnfetchedRows
from dubnb.objective.terms import Observed, RangedTerm, Term, Unobserved, noise_scale, total_weights
from dubnb.train import EarlyStopping, EpochLoop, Fit

PRETRAINING = {"epochs": 200, "patience": 5}  # for a teacher, which needs more epochs than row solves
LENGTH = {"epochs": 30, "patience": 2}  # limits of the row solves, in sweeps
NO_DECAY = {"lam": 0.0}  # for a stage of row solves: its problem has its own decays
CONVERGED = 1e-4  # solving ends after a sweep that lowers the objective by less than this share
CUTOFFS = (0.07, 0.14, 0.2, 0.28, 0.4)
GAMMAS = (0.0125, 0.025, 0.05, 0.1, 0.2)


class RoughSolve(NamedTuple):
    """When a solve that only compares candidates ends."""

    tolerance: float  # relative residual of a row
    patience: int  # sweeps without a better metric on S_va
    enough: float  # a sweep that lowers the objective by less than this share of it is the last


def unless_lam(cutoff: float) -> Rule:
    """A rule for the default of `cutoff`: None if lam is given."""
    return lambda log, known: cutoff if known["lam"] is None else None


EXACT = Settings(  # cutoff replaces lam, so the paper's range of lambda does not apply; rank and gamma keep theirs
    defaults={"rank": 100, "gamma": 0.05, "cutoff": unless_lam(0.2), "shrink": 1.0, "loss": "squared", **LENGTH},
    paper={"rank": PAPER_RANKS, "cutoff": CUTOFFS, "gamma": PAPER_STRENGTHS},
    wide={"rank": (50, 100, 200), "cutoff": CUTOFFS, "gamma": GAMMAS},
    even={"rank": PAPER_RANKS, "cutoff": CUTOFFS, "gamma": GAMMAS},
    near={"cutoff": 1.4, "gamma": 2.0, "rank": 2.0},
)


@dataclass(kw_only=True, repr=False, eq=False)
class ExactMethod(Method):
    """A method with an exact solver. Its decay follows from `cutoff` and the log unless lam is given.

    Parameters
    ----------
    cutoff : float
        With solver="exact": lam is 2 cutoff times the scale of noise in the log, unless you give lam. See
        `dubnb.objective.terms.noise_scale`. dub-x also takes "auto": .25, and with gamma="auto" .2 is tried too.
    """

    cutoff: float | None = None

    solves_rows: ClassVar[bool] = True
    decays_by_row: ClassVar[bool] = False  # whether a row's decay is proportional to its weight, lam on average
    bias_ridge: ClassVar[float] = BIAS_RIDGE  # bias_ridge (b_u^2 + b_i^2) is added to the objective
    CHECKS = {"lam": _check.optional(_check.reals()), "cutoff": _check.optional(_check.reals(open_low=True))}

    def check(self) -> None:
        super().check()
        if self.cutoff is not None and self.chosen_solver() != "exact":
            raise InputError(f"cutoff={self.cutoff!r} is for solver='exact': set lam instead")
        if self.cutoff is not None and self.lam is not None:
            raise InputError(f"lam={self.lam!r} and cutoff={self.cutoff!r} both set the decay: give one of them")
        if self.lam == 0 and self.chosen_solver() == "exact":  # a row solve might have no unique answer
            raise InputError("lam=0.0 must be above 0 with solver='exact': raise it, or leave it to cutoff")

    def regularisation(self) -> str:
        return super().regularisation() if self.cutoff is None else f"cutoff (now {self.cutoff:g})"

    def exact_lam(self, weight: float, shape: tuple[int, int], label_range: float = 1.0) -> float:
        """lam, or what `cutoff` makes of the total weight of all pairs and the distance between the two labels."""
        if self.cutoff is None:
            return required(self.lam)
        return 2 * self.cutoff * label_range * noise_scale(weight, shape)

    def weighed(self, terms: Sequence[Term]) -> list[Term]:
        """The terms of the exact problem: those that are not kept weigh 0, but their pairs stay outside S_u."""
        return [term if self.keeps(term.name) else term.times(0.0) for term in terms]

    def exact_problem(self, terms: Sequence[Term]) -> ExactProblem:
        """The objective of all terms, in the form that kernels read."""
        return self.exact_terms(terms).problem()

    def exact_terms(self, terms: Sequence[Term], tolerance: float | None = None) -> ExactTerms:
        """The objective of all terms, for row solves."""
        terms = self.weighed(terms)
        observed = [term for term in terms if isinstance(term, Observed | RangedTerm)]
        (d,) = (term for term in terms if isinstance(term, Unobserved))
        of_users, of_items = total_weights(observed, d)
        lam = self.exact_lam(of_users.sum(), (len(of_users), len(of_items)))
        by_row = (lam * of_users / of_users.mean(), lam * of_items / of_items.mean())
        decays = by_row if self.decays_by_row else (lam, lam)
        return ExactTerms(observed, d, decays, self.bias_ridge, tolerance)

    def random_rows(self, fit: Fit) -> Extended:
        """The rows that row solves start from: random, or those of an earlier model."""
        stage = self.stage("M_c", **NO_DECAY)
        if fit.device.solves_in_parts and fit.start is None:
            return rows_of(MF.new((0, fit.data.n_items), stage.rank, stage.seed, stage.name[-1]))
        return rows_of(fit.new(stage))

    def minimise(
        self, fit: Fit, terms: Sequence[Term], rows: Extended, name: str = "refine", rough: RoughSolve | None = None
    ) -> tuple[Weights, float]:
        """Minimise by alternating row solves from `rows`, which end at the last sweep.

        Returns the weights of the best sweep on S_va and their validation metric. An epoch is a sweep over all users,
        then all items. Full-batch gradient steps reach the same objective, but took seven times as long on yahoo-like.
        """
        tolerance, patience, enough = (None, required(self.patience), CONVERGED) if rough is None else rough
        solver = fit.device.row_solver(self.exact_terms(terms, tolerance), rows, fit.threads)
        stopping = EarlyStopping(patience, enough=enough)
        with EpochLoop(fit, self.stage(name, **NO_DECAY), solver, solver.weights, stopping) as loop:
            keep = fit.device.checkpoint(loop, solver)
            for epoch in loop:
                loop.judge({"total": solver.step(epoch)})
                keep()
        solver.fetch(rows)
        best = loop.best()
        return best.fetch() if isinstance(best, UnfetchedRows) else best, stopping.best
