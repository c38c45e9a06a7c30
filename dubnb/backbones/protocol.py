"""The interface of a backbone: `Weights`, which score, and a `Trainer`, which changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from dubnb.losses import Loss

if TYPE_CHECKING:
    from dubnb.backbones.mf import Anchors, Stream


class Scorer(Protocol):
    """Anything that scores pairs of row numbers: weights, a trainer, an adapter of another program's model."""

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Raw scores of the pairs (users[j], items[j])."""

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users`, one row each."""


class Weights(Protocol):
    """The parameters of one model, which are scored, saved and restored. They are immutable."""

    name: ClassVar[str]
    OPTIONS: ClassVar[Mapping[str, Callable[[str, Any], Any]]]  # its own parameters: name -> check and conversion
    users: np.ndarray  # a row per user
    items: np.ndarray  # a row per item

    @property
    def rank(self) -> int:
        """Factors per user and item."""

    @classmethod
    def new(cls, shape: tuple[int, int], rank: int, seed: int, model: str, *own: Any, **options: Any) -> Self:
        """Random initial weights for (users, items); `model`, "c" or "t", names the random stream."""

    @staticmethod
    def size(shape: tuple[int, int], rank: int, *own: Any, **options: Any) -> int:
        """Bytes that such weights would take."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Weights from the arrays that `arrays` returns; raises InputError if they do not fit together."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays, for saving and for other programs."""

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Raw scores of the pairs (users[j], items[j])."""

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users`, one row each."""

    def gradient(self, batch: Stream, loss: Loss, lam: float, room: Trainer | None = None) -> Self:
        """The gradient that training on a batch uses, in the form of weights.

        It is that of the batch's mean loss plus lam/2 |row|^2, counted once for each row in the batch. `room` is a
        trainer with at least as many rows and samples, whose scratch space is used.
        """

    def tangent(
        self, direction: Self, users: np.ndarray, items: np.ndarray, room: Trainer | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(scores of some pairs, their derivatives along `direction`, in the form of weights); `room` as above."""

    def plus(self, step: float, direction: Self) -> Self:
        """self + step * direction, coordinate by coordinate."""

    def trainer(self, batch_size: int) -> Trainer:
        """A trainer that starts at these weights, with a fresh optimizer."""


class Trainer(Protocol):
    """Weights in training, with their optimizer's state."""

    rank: int
    batch_size: int

    def epoch(
        self, stream: Stream, n_terms: int, loss: Loss, lr: float, lam: float, anchors: Anchors | None = None
    ) -> np.ndarray:
        """Train on every sample of `stream`, batch by batch; returns each term's sum of weighted losses."""

    def model(self, lam: float) -> Any:
        """The argument of the kernels in `epochs`, with regularisation `lam`."""

    def weights(self) -> Weights:
        """A copy of the weights alone."""

    def subset(self, users: np.ndarray, items: np.ndarray) -> Weights:
        """The current weights of some rows, as a small model."""

    def factors(self, side: str, rows: np.ndarray) -> np.ndarray:
        """Current factors of some rows of the "users" or "items" table."""

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Raw scores of pairs under the current weights."""

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users` under the current weights."""

    def finite(self) -> bool:
        """Whether every weight is finite."""
