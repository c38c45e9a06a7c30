"""Devices: where a fit trains, as named by the parameter `device`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import MF, Scorer, Trainer, Weights
from dubnb.backbones.extended import Extended
from dubnb.joint import Alignment, BothModels
from dubnb.objective.all_pairs import ExactProblem
from dubnb.objective.als import RowSolver
from dubnb.objective.autodebias import BaseObjective, MetaSolver, Phi
from dubnb.objective.terms import EpochStreams, Term

if TYPE_CHECKING:
    from dubnb.train import Stage

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

    def weights(self) -> MF:
        """A copy of the current rows as weights."""
        ...

    def fetch(self, rows: Extended) -> None:
        """Copy the current rows into `rows`, which the solver was made from."""
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

    def training(
        self, weights: Weights, terms: Sequence[Term], stage: Stage, batch_size: int
    ) -> tuple[Trainer, EpochStreams]:
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

    def row_solver(self, problem: ExactProblem, rows: Extended, threads: int = 1) -> Solver:
        """Alternating row solves of an exact problem from `rows`, which may change."""
        ...

    def meta_solver(
        self, base: BaseObjective, phi: Phi, rows: Extended, S_t: tuple[np.ndarray, ...], weights_from: int
    ) -> Solver:
        """AutoDebias over all pairs from `rows` and `phi`, which may change."""
        ...


class Cpu:
    """Training on the CPU."""

    def training(
        self, weights: Weights, terms: Sequence[Term], stage: Stage, batch_size: int
    ) -> tuple[Trainer, EpochStreams]:
        return weights.trainer(batch_size), EpochStreams(terms, stage.seed, stage.name)

    def both_models(
        self,
        stages: tuple[Stage, Stage],
        models: tuple[Weights, Weights],
        terms: Sequence[Term],
        term_e1: Term | None,
        alignment: Alignment | None = None,
    ) -> TwoModels:
        return BothModels(stages, models, terms, term_e1, alignment)

    def row_solver(self, problem: ExactProblem, rows: Extended, threads: int = 1) -> Solver:
        return RowSolver(problem, rows, threads)

    def meta_solver(
        self, base: BaseObjective, phi: Phi, rows: Extended, S_t: tuple[np.ndarray, ...], weights_from: int
    ) -> Solver:
        return MetaSolver(base, phi, rows, S_t, weights_from)


def chosen_device(device: str, quiet: bool = True) -> str:
    """Resolve `device` to "cpu" or "cuda": "auto" takes a GPU if there is one; unless quiet, it prints why not."""
    from dubnb import cuda

    if device == "cpu":
        return device
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
