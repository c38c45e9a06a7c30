"""Teachers: targets t for pairs without a label (terms d and e.2), from a model M_t of S_t or from S_t's rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dubnb import losses
from dubnb._check import InputError
from dubnb.backbones.mf import rows_of
from dubnb.objective.exposure import item_rates
from dubnb.objective.targets import BINARY, Targets

if TYPE_CHECKING:
    from dubnb.backbones import Weights
    from dubnb.data.partition import Partition, Triplets


class Teacher(Protocol):
    """Targets for pairs that have no label."""

    def predict(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """t of pairs of row numbers, float32."""
        ...

    def low_rank(self, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """(P', Q') with t = P'_u . Q'_i, for the exact objectives."""
        ...


def randomized(data: Partition, targets: Targets = BINARY) -> Triplets:
    """S_t with its targets as labels; raises InputError if it is empty."""
    S_t = targets.of(data, "S_t")
    if not len(S_t.users):
        raise InputError("S_t is empty: this method needs a randomized log with at least one pair for training")
    return S_t


def mean_target(data: Partition, targets: Targets = BINARY) -> float:
    """S_t's mean target, by weight."""
    S_t = randomized(data, targets)
    return float(np.average(S_t.labels, weights=S_t.weights))


@dataclass(frozen=True)
class Constant:
    """The same t for every pair."""

    value: float

    def predict(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        out = np.empty(len(users), np.float32) if out is None else out
        out[:] = self.value
        return out

    def low_rank(self, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((shape[0], 1)), np.full((shape[1], 1), self.value)


@dataclass(frozen=True)
class ByItem:
    """One t for each item."""

    values: np.ndarray

    def predict(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        out = np.empty(len(users), np.float32) if out is None else out
        out[:] = self.values[items]
        return out

    def low_rank(self, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((shape[0], 1)), self.values[:, None]


@dataclass(frozen=True)
class Model:
    """t = shrink * mean + (1 - shrink) * p_t + shift: M_t's predictions, drawn towards a mean."""

    M_t: Weights
    link: bool
    mean: float
    shrink: float
    shift: float = 0.0

    def predict(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        out = np.empty(len(users), np.float32) if out is None else out
        losses.predict(self.M_t.score_pairs(users, items, out=out), self.link)
        if self.shrink:
            out *= np.float32(1 - self.shrink)
            out += np.float32(self.shrink * self.mean)
        if self.shift:
            out += np.float32(self.shift)
        return out

    def low_rank(self, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        rows = rows_of(self.M_t).affine(1 - self.shrink, self.shrink * self.mean)
        return rows.affine(1.0, self.shift) if self.shift else rows


def shrunk(
    data: Partition, M_t: Weights | None, loss: losses.Loss, shrink: float = 0.0, targets: Targets = BINARY
) -> Teacher:
    """M_t's predictions drawn towards S_t's mean target by `shrink`; with shrink=1 the mean alone, without M_t."""
    mean = mean_target(data, targets)
    return Constant(mean) if shrink == 1 or M_t is None else Model(M_t, loss.link, mean, shrink)


def shifted_rates(data: Partition, level: float, targets: Targets = BINARY) -> Teacher:
    """Every item's rate in S_t (see `exposure.item_rates`), shifted so that an item of average rate sits at `level`."""
    rates, base_rate = item_rates(randomized(data, targets), data.n_items)
    return ByItem(rates + (level - base_rate))
