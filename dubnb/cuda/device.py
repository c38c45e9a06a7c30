"""device="cuda": trainers and solvers that run on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb.backbones import Weights
from dubnb.backbones.mf import Extended
from dubnb.cuda import mf, ncf
from dubnb.cuda._launch import check_memory
from dubnb.cuda.als import CudaRowSolver
from dubnb.cuda.autodebias import CudaMetaSolver, CudaSampledSolver, PhiOnDevice
from dubnb.cuda.joint import CudaBothModels
from dubnb.cuda.streams import DeviceStreams
from dubnb.objective.all_pairs import ExactTerms
from dubnb.objective.autodebias import BaseObjective, Phi, SampledProblem
from dubnb.objective.coupled import Cycle
from dubnb.objective.terms import Term, Unobserved

if TYPE_CHECKING:
    from dubnb.device import Solver
    from dubnb.objective.coupled import Alignment
    from dubnb.train import EpochLoop, Stage

TRAINERS = {"mf": mf.CudaMFTrainer, "ncf": ncf.CudaNCFTrainer}
SCORERS = {"mf": mf.MFScorer, "ncf": ncf.NCFScorer}
PER_SAMPLE = 2 * 17 + 2 * 8 + 4 + 12  # two streams, two groupings, the order, value and error


def device_scorer(weights: Weights) -> Any:
    """A copy of `weights` on the device that scores pairs."""
    return SCORERS[weights.name](weights)


def training_plan(weights: Weights, terms: Sequence[Term], batch_size: int) -> dict[str, int]:
    """Bytes that a stage of training takes on the device."""
    samples, table = sum(term.size for term in terms), weights.users.nbytes + weights.items.nbytes
    plan = {"tables": 4 * table, "streams": PER_SAMPLE * samples}  # weights, two moments, one copy for the host
    plan["batch"] = 8 * batch_size * weights.users.shape[1]
    for term in terms:
        if isinstance(term, Unobserved):
            plan["S_u"] = 4 * len(term.pairs.seen.items) + 16 * sum(term.pairs.shape) + 8 * term.size
            M_t = getattr(term.teacher, "M_t", None)
            plan["M_t"] = 0 if M_t is None else M_t.users.nbytes + M_t.items.nbytes
    return plan


class Cuda:
    """Training on the GPU, or in Numba's simulator."""

    solves_in_parts = False

    def __init__(self, quiet: bool = True):
        self.quiet = quiet

    def training(self, weights: Weights, terms: Sequence[Term], stage: Stage) -> tuple[Any, DeviceStreams]:
        """A trainer that starts at `weights`, and the epochs of `terms`."""
        batch_size = min(stage.batch_size, sum(term.size for term in terms))
        check_memory(training_plan(weights, terms, batch_size), self.quiet)
        trainer = TRAINERS[weights.name](weights, batch_size)
        return trainer, DeviceStreams(terms, stage.seed, stage.name, device_scorer)

    def both_models(
        self,
        stages: tuple[Stage, Stage],
        models: tuple[Weights, Weights],
        terms: Sequence[Term],
        term_e1: Term | None,
        alignment: Alignment | None = None,
    ) -> CudaBothModels:
        """Copies of M_c and M_t for joint training."""
        n_samples = sum(term.size for term in terms)
        n_c, n_t = (min(stage.batch_size, n_samples) for stage in stages)
        of_t = [*terms, *([] if term_e1 is None else [term_e1])]
        plans = training_plan(models[0], terms, n_c), training_plan(models[1], of_t, n_c + n_t)
        check_memory(
            {
                f"{what} of {of}": size
                for of, plan in zip(("M_c", "M_t"), plans, strict=True)
                for what, size in plan.items()
            },
            self.quiet,
        )
        stage, streams = stages[0], partial(DeviceStreams, scorer_of=device_scorer)
        trainers = [TRAINERS[own.name](own, size) for own, size in zip(models, (n_c, n_c + n_t), strict=True)]
        cycle = None
        if term_e1 is not None:
            cycle = Cycle(term_e1, n_t, stage.seed, stage.name + "-t")
            cycle.epochs = streams([term_e1], stage.seed, stage.name + "-t")
        epochs = streams(terms, stage.seed, stage.name)
        return CudaBothModels(stages, (trainers[0], trainers[1]), epochs, cycle, alignment)

    def row_solver(self, exact: ExactTerms, rows: Extended, threads: int = 1) -> CudaRowSolver:
        """Alternating row solves of an exact problem from `rows`."""
        return CudaRowSolver(exact.problem(), rows, self.quiet)

    def checkpoint(self, loop: EpochLoop, solver: Solver) -> Callable[[], None]:
        """Do nothing: a fit on a GPU starts anew."""
        return lambda: None

    def meta_solver(
        self, base: BaseObjective, phi: Phi, rows: Extended, S_t: tuple[np.ndarray, ...], weights_from: int
    ) -> CudaMetaSolver:
        """AutoDebias over all pairs from `rows` and `phi`, which may change."""
        return CudaMetaSolver(base, phi, rows, S_t, weights_from, self.quiet)

    def sampled_solver(self, problem: SampledProblem) -> CudaSampledSolver:
        """AutoDebias in mini-batches."""
        weights, stage, n = problem.weights, problem.stage, len(problem.observed.users)
        table, rows = weights.users.nbytes + weights.items.nbytes, sum(problem.pairs.shape)
        plan = {"tables": 7 * table, "streams": 2 * (PER_SAMPLE + 16) * n, "phi": 8 * 10 * rows}  # see `training_plan`
        plan["batch"] = stage.batch_size * (2 * 8 * weights.users.shape[1] + 32)
        plan["S_u"] = 4 * len(problem.pairs.seen.items) + 8 * rows + 8 * n
        check_memory(plan, self.quiet)
        trainers = [TRAINERS[weights.name](weights, stage.batch_size) for _ in range(2)]
        problem.S_t.epochs = DeviceStreams(
            problem.S_t.epochs.terms, stage.seed, problem.S_t.epochs.stage, device_scorer
        )
        phi = PhiOnDevice(problem.phi, problem.alpha, "sigmoid")
        return CudaSampledSolver(problem, (trainers[0], trainers[1]), phi)
