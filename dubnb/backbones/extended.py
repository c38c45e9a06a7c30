"""Extended rows: scores of mf as plain inner products, with the biases in the rows.

    P_u = [p_u, b_u, 1],   Q_i = [q_i, 1, b_i],   s = P_u . Q_i = p_u . q_i + b_u + b_i

The constant coordinates never change. The bias of one side is in the column where the other side has its constant. Only
this module knows the order of these columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ONE_P, ONE_Q = -1, -2  # the columns that hold the constant 1
BIAS_P, BIAS_Q = ONE_Q, ONE_P
EXTRA_COLUMNS = 2  # the bias and the constant


def factors(rows: np.ndarray) -> np.ndarray:
    """The embedding coordinates of some rows, as a view."""
    return rows[:, :-EXTRA_COLUMNS]


class Extended(NamedTuple):
    """Extended rows of all users and items; a score is the product of two rows."""

    P: np.ndarray  # (users, rank + 2)
    Q: np.ndarray  # (items, rank + 2)

    @classmethod
    def of_items(cls, n_users: int, values: np.ndarray) -> Extended:
        """Rank 0: every user's score of item i is values[i]."""
        values = np.asarray(values)
        P = np.tile(np.array([0, 1], values.dtype), (n_users, 1))
        return cls(P, np.stack([np.ones_like(values), values], axis=1))

    @classmethod
    def constant(cls, shape: tuple[int, int], value: float) -> Extended:
        """Rank 0: every score is `value`."""
        return cls.of_items(shape[0], np.full(shape[1], float(value)))

    @property
    def shape(self) -> tuple[int, int]:
        """(users, items)."""
        return len(self.P), len(self.Q)

    def affine(self, scale: float, shift: float) -> Extended:
        """Rows whose scores are scale * s + shift."""
        P, Q = self.P.copy(), self.Q.copy()
        P[:, :ONE_P] *= P.dtype.type(scale)
        P[:, BIAS_P] += P.dtype.type(shift)
        Q[:, BIAS_Q] *= Q.dtype.type(scale)
        return Extended(P, Q)

    def score_pairs(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Scores of the pairs (users[j], items[j])."""
        return np.einsum("jk,jk->j", self.P[users], self.Q[items])

    def score_rows(self, users: np.ndarray) -> np.ndarray:
        """Scores of every item for each of `users`, one row each."""
        return self.P[users] @ self.Q.T

    def finite(self) -> bool:
        """Whether every number is finite, tested by one sum per side."""
        with np.errstate(over="ignore", invalid="ignore"):
            return all(bool(np.isfinite(rows.sum())) for rows in self)
