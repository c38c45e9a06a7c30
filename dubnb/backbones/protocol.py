"""What a backbone is to the rest of the engine: weights that score, and a trainer that changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from dubnb.backbones.embedding import Anchors
from dubnb.losses import Loss
from dubnb.stream import Stream


class Scorer(Protocol):
    """Anything that scores pairs of row numbers: weights, a trainer, another program's model behind an adapter."""

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Raw scores of the pairs (users[j], items[j])."""
        ...

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users`, one row each."""
        ...


class Weights(Protocol):
    """The parameters of one model: what is scored, saved and restored. They never change."""

    name: ClassVar[str]
    OPTIONS: ClassVar[Mapping[str, Callable[[str, Any], Any]]]  # parameters of its own: name -> check and conversion
    users: np.ndarray  # a row per user
    items: np.ndarray  # a row per item

    @property
    def rank(self) -> int:
        """Factors per user and item."""
        ...

    @classmethod
    def new(cls, shape: tuple[int, int], rank: int, seed: int, model: str, *own: Any, **options: Any) -> Self:
        """Random initial weights for (users, items); `model`, "c" or "t", names the random stream."""
        ...

    @staticmethod
    def size(shape: tuple[int, int], rank: int, *own: Any, **options: Any) -> int:
        """Bytes of such weights, before any are allocated."""
        ...

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """From the arrays that `arrays` gives; whatever does not fit together is an InputError."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays, for saving and for other programs."""
        ...

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Raw scores of the pairs (users[j], items[j])."""
        ...

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users`, one row each."""
        ...

    def gradient(self, batch: Stream, loss: Loss, lam: float, room: Trainer | None = None) -> Self:
        """The gradient that a batch trains with, in the form of weights: of its mean loss, and lam/2 |row|^2 once for
        every row that it touches. `room`: a trainer of as many rows and samples, whose scratch space may serve."""
        ...

    def tangent(
        self, direction: Self, users: np.ndarray, items: np.ndarray, room: Trainer | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores of some pairs, and how fast they change along `direction`, which has the form of weights. `room`: as
        for `gradient`."""
        ...

    def plus(self, step: float, direction: Self) -> Self:
        """self + step * direction, coordinate by coordinate."""
        ...

    def trainer(self, batch_size: int) -> Trainer:
        """A copy that can be trained, with a fresh optimizer."""
        ...


class Trainer(Protocol):
    """Weights in training, with their optimizer's state."""

    rank: int
    batch_size: int

    def epoch(
        self, stream: Stream, n_terms: int, loss: Loss, lr: float, lam: float, anchors: Anchors | None = None
    ) -> np.ndarray:
        """Train on every sample of `stream`, batch by batch; returns each term's sum of weighted losses."""
        ...

    def model(self, lam: float) -> Any:
        """What the kernels in `epochs` train and score, with this regularisation."""
        ...

    def weights(self) -> Weights:
        """A copy of the weights alone."""
        ...

    def subset(self, users: np.ndarray, items: np.ndarray) -> Weights:
        """The current weights of some rows, as a small model of its own."""
        ...

    def factors(self, side: str, rows: np.ndarray) -> np.ndarray:
        """Current factors of some rows of the "users" or "items" table."""
        ...

    def score_pairs(self, users: np.ndarray, items: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Raw scores of pairs under the current weights."""
        ...

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Raw scores of every item for each of `users` under the current weights."""
        ...

    def finite(self) -> bool:
        """Whether every weight is a finite number."""
        ...
