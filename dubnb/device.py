"""Devices: where a fit trains, as named by the parameter `device`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import MF, Scorer, Trainer, Weights
from dubnb.backbones.mf import Extended
from dubnb.objective.all_pairs import ExactTerms
from dubnb.objective.als import RowSolver
from dubnb.objective.autodebias import BaseObjective, MetaSolver, Phi, SampledProblem, SampledSolver
from dubnb.objective.coupled import Alignment, BothModels
from dubnb.objective.parts import UnfetchedRows
from dubnb.objective.terms import EpochStreams, Term

if TYPE_CHECKING:
    from dubnb.train import EpochLoop, Stage

DEVICES = ("cpu", "cuda", "auto")
checked_device = _check.choices(DEVICES)


class TrainedScorer(Scorer, Protocol):
    """A model in training: it scores with its current weights and reports divergence."""

    def finite(self) -> bool:
        """Whether every weight is finite."""
        ...


class Solver(TrainedScorer, Protocol):
    """A solver of an exact objective: it changes extended rows in full-batch epochs."""

    def step(self, epoch: int) -> float:
        """One epoch; returns the objective."""
        ...

    def weights(self) -> MF | UnfetchedRows:
        """A copy of the current rows as weights, or what they can be fetched from."""
        ...

    def fetch(self, rows: Extended) -> None:
        """Copy the current rows into `rows`, which the solver was made from."""
        ...


class EpochSolver(TrainedScorer, Protocol):
    """A model that trains itself by epochs of mini-batches."""

    def epoch(self, epoch: int) -> dict[str, float]:
        """Train; returns each term's mean loss by weight."""
        ...

    def weights(self) -> Weights:
        """A copy of the current weights."""
        ...


class TwoModels(TrainedScorer, Protocol):
    """M_c and M_t in joint training; early stopping judges M_c."""

    def epoch(self, epoch: int) -> dict[str, float]:
        """Train both; returns each term's mean loss by weight."""
        ...

    def weights(self) -> tuple[Weights, Weights]:
        """Copies of both models' weights."""
        ...


class Device(Protocol):
    """Makes the trainers and solvers of a fit."""

    def training(self, weights: Weights, terms: Sequence[Term], stage: Stage) -> tuple[Trainer, EpochStreams]:
        """A trainer that starts at `weights`, and the epochs of `terms`."""
        ...

    def both_models(
        self,
        stages: tuple[Stage, Stage],
        models: tuple[Weights, Weights],
        terms: Sequence[Term],
        term_e1: Term | None,
        alignment: Alignment | None = None,
    ) -> TwoModels:
        """Copies of M_c and M_t for joint training, see `train.train_jointly`."""
        ...

    @property
    def solves_in_parts(self) -> bool:
        """Whether `row_solver` reads the items' rows alone; the users' rows are then not made."""
        ...

    def row_solver(self, exact: ExactTerms, rows: Extended, threads: int = 1) -> Solver:
        """Alternating row solves of an exact problem from `rows`, which may change."""
        ...

    def checkpoint(self, loop: EpochLoop, solver: Solver) -> Callable[[], None]:
        """Continue the epochs of a killed fit, if there are any; returns what to call after every epoch."""
        ...

    def meta_solver(
        self, base: BaseObjective, phi: Phi, rows: Extended, S_t: tuple[np.ndarray, ...], weights_from: int
    ) -> Solver:
        """AutoDebias over all pairs from `rows` and `phi`, which may change."""
        ...

    def sampled_solver(self, problem: SampledProblem) -> EpochSolver:
        """AutoDebias in mini-batches."""
        ...


class Cpu:
    """Training on the CPU."""

    @property
    def solves_in_parts(self) -> bool:
        return False

    def training(self, weights: Weights, terms: Sequence[Term], stage: Stage) -> tuple[Trainer, EpochStreams]:
        epochs = EpochStreams(terms, stage.seed, stage.name)
        return weights.trainer(min(stage.batch_size, epochs.size)), epochs

    def both_models(
        self,
        stages: tuple[Stage, Stage],
        models: tuple[Weights, Weights],
        terms: Sequence[Term],
        term_e1: Term | None,
        alignment: Alignment | None = None,
    ) -> TwoModels:
        return BothModels(stages, models, terms, term_e1, alignment)

    def row_solver(self, exact: ExactTerms, rows: Extended, threads: int = 1) -> Solver:
        return RowSolver(exact.problem(), rows, threads)

    def checkpoint(self, loop: EpochLoop, solver: Solver) -> Callable[[], None]:
        return lambda: None

    def meta_solver(
        self, base: BaseObjective, phi: Phi, rows: Extended, S_t: tuple[np.ndarray, ...], weights_from: int
    ) -> Solver:
        return MetaSolver(base, phi, rows, S_t, weights_from)

    def sampled_solver(self, problem: SampledProblem) -> EpochSolver:
        return SampledSolver(problem)


def chosen_device(device: str, quiet: bool = True) -> str:
    """Resolve "cuda" or "auto", which takes a GPU if there is one; unless quiet, it prints why not."""
    from dubnb import cuda

    missing = cuda.why_not()
    if device == "cuda" and missing:
        raise InputError(f"device='cuda': {missing}, or use device='cpu'")
    if missing and not quiet:
        print(f"device='auto' takes the CPU: {missing}", file=sys.stderr)
    return "cpu" if missing else "cuda"


def device_named(device: str, quiet: bool = True) -> Device:
    """The device with this name, "cpu" or "cuda"."""
    if device == "cpu":
        return Cpu()
    from dubnb.cuda.device import Cuda

    return Cuda(quiet)
