"""Where training runs: what the parameter `device` names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Trainer, Weights
from dubnb.objective.terms import EpochStreams, Term

if TYPE_CHECKING:
    from dubnb.train import Stage

DEVICES = ("cpu", "cuda", "auto")
checked_device = _check.choices(DEVICES)


class Engine(Protocol):
    """Makes what a fit trains with."""

    def training(
        self, weights: Weights, terms: Sequence[Term], stage: Stage, batch_size: int, threads: int
    ) -> tuple[Trainer, EpochStreams]:
        """A trainer that starts at `weights`, and the epochs of `terms`."""
        ...


class Cpu:
    """Training on the CPU."""

    def training(
        self, weights: Weights, terms: Sequence[Term], stage: Stage, batch_size: int, threads: int
    ) -> tuple[Trainer, EpochStreams]:
        return weights.trainer(batch_size, threads), EpochStreams(terms, stage.seed, stage.name)


def chosen_device(device: str, quiet: bool = True) -> str:
    """"cpu" or "cuda": "auto" takes the GPU where there is one; unless quiet, it says why not."""
    from dubnb import cuda

    if device == "cpu":
        return device
    missing = cuda.why_not()
    if device == "cuda" and missing:
        raise InputError(f"device='cuda': {missing}, or use device='cpu'")
    if missing and not quiet:
        print(f"device='auto' takes the CPU: {missing}", file=sys.stderr)
    return "cpu" if missing else "cuda"


def engine_of(device: str, quiet: bool = True) -> Engine:
    """The engine of a chosen device."""
    if device == "cpu":
        return Cpu()
    from dubnb.cuda.engine import Cuda

    return Cuda(quiet)
