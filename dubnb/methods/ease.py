"""EASE: an item's score is a weighted sum of the user's items, in closed form (Steck, 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.data.partition import Partition
from dubnb.data.pattern import Pattern, union
from dubnb.methods import _fold_in
from dubnb.methods._exact import ExactMethod, unless_lam
from dubnb.methods._params import Settings, required
from dubnb.methods.dub_i import ItemItemMethod
from dubnb.methods.ials import positives
from dubnb.objective.item_item import Inputs, ItemItem, NewUserRule
from dubnb.objective.terms import noise_scale
from dubnb.train import Fit

CUTOFFS = (1.0, 1.4, 2.0, 2.8, 4.0)


class EaseWeights(ItemItem):
    """The weights of ease: coefficients without constants. The average user has the mean of all users' items."""

    def average_user(self, cold: np.ndarray) -> ItemItem:
        items = np.arange(self.coefficients.shape[1], dtype=np.int32)
        sums = np.bincount(self.inputs.items, self.inputs.values, len(items))
        return self.alone(items, sums / max(int((~cold).sum()), 1))

    def alone(self, items: np.ndarray, values: np.ndarray) -> ItemItem:
        """The same coefficients with one user, who has some items."""
        inputs = Inputs(np.array([0, len(items)]), items.astype(np.int32), values.astype(np.float32))
        return replace(self, inputs=inputs, constants=np.zeros(1, np.float32))


@dataclass(kw_only=True, repr=False, eq=False)
class EASE(ItemItemMethod, ExactMethod):
    """Score an item by the user's other positives, with coefficients in closed form.

    The embarrassingly shallow autoencoder (Steck, 2019): a rival that every comparison should have. It reads positives
    alone, corrects no bias, and takes at most 12,000 items. Lists can be explained.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.EASE().fit(data)
    >>> items, scores = model.recommend([3], k=5)
    >>> reasons, amounts = model.explain(3, items[0, 0])

    Notes
    -----
    X is 1 for a positive of S_c (terms="ac": of S_c or S_t) and 0 for every other pair. The scores are X B, where B
    minimises |X - X B|^2 + lam |B|^2 with a diagonal of 0:

        P = (X'X + lam I)^-1,    B_ji = -P_ji / P_ii for j != i.

    lam is (cutoff (sqrt W_u + sqrt W_i))^2 unless you give it, with the mean positives W_u per user and W_i per item.
    That is the scale of the noise in X'X, as `dubnb.objective.terms.noise_scale` is of the noise in X. The default
    cutoff 2.8 was chosen on S_va of three logs. Weights and propensities of the log do not count. The parameters rank,
    lr, batch_size, epochs, patience and seed have no effect.

    Steck: Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019.
    """

    name = "ease"
    trains_on_gpu = False
    TERMS = "ac"
    folds_in = False  # no row solve: a new user has no row
    SETTINGS = {
        ("mf", "exact"): Settings(
            defaults={"terms": "c", "rank": 1, "cutoff": unless_lam(2.8), "loss": "squared", "epochs": 1},
            paper={"cutoff": CUTOFFS},
            wide={"cutoff": CUTOFFS},
            even={"cutoff": CUTOFFS},
            near={"cutoff": 1.4},
        )
    }

    def chosen_solver(self) -> str:
        return "exact"

    def check(self) -> None:
        super().check()
        if self.loss != "squared":
            raise InputError(f"ease needs loss='squared', not {self.loss!r}: leave it out")

    def idle(self) -> set[str]:
        return {"rank", "lr", "batch_size", "epochs", "patience"}

    def weights_class(self) -> type[Any]:
        return EaseWeights

    def exact_lam(self, weight: float, shape: tuple[int, int], label_range: float = 1.0) -> float:
        if self.cutoff is None:
            return required(self.lam)
        return float((self.cutoff * noise_scale(weight, shape)) ** 2)

    def recipe(self, fit: Fit) -> tuple[Any, Weights | None]:
        """Invert the Gram matrix of the positives, once."""
        inputs, n_items = self._inputs(fit.data), fit.data.n_items
        shape = fit.data.n_users, n_items
        B = coefficients(inputs, n_items, self.exact_lam(len(inputs.items), shape))
        none = np.zeros(n_items, np.float32)
        weights = EaseWeights(B, inputs, np.zeros(shape[0], np.float32), NewUserRule(none, none, 0.0, 1.0, 1.0))
        return fit.run_epochs(self.stage("solve", lam=0.0, epochs=1), lambda epoch: {}, weights, lambda: weights), None

    def _inputs(self, data: Partition) -> Inputs:
        """Each user's positives, as ones."""
        kept = [positives(data, part) for letter, part in (("a", "S_t"), ("c", "S_c")) if self.keeps(letter)]
        pairs = union([Pattern.of(each.users, each.items, data.n_users) for each in kept], data.n_items)
        return Inputs(pairs.indptr, pairs.items, np.ones(len(pairs.items), np.float32))

    def fold_in(self, items: Any, labels: Any = None) -> _fold_in.NewUser:
        """A new user from a short history; its positives are the user's items."""
        weights: Any = self._fitted()
        own = _fold_in.history(self.item_ids_, self.params_, items, labels)
        liked = np.sort(own.items[own.targets == 1])
        return _fold_in.NewUser(weights.alone(liked, np.ones(len(liked))), self.item_ids_, own.items)


def coefficients(inputs: Inputs, n_items: int, lam: float) -> np.ndarray:
    """B with a last row of zeros for the constant feature, float32: [j, i] is what having item j adds to item i."""
    from scipy.linalg import lapack  # imported here because it takes time
    from scipy.sparse import csr_matrix

    X = csr_matrix((inputs.values.astype(np.float64), inputs.items, inputs.indptr), (len(inputs.indptr) - 1, n_items))
    G = (X.T @ X).toarray(order="F")
    G[np.diag_indices(n_items)] += lam
    factor, _ = lapack.dpotrf(G, lower=1, overwrite_a=1)
    P, _ = lapack.dpotri(factor, lower=1, overwrite_c=1)  # only the lower triangle
    B = np.zeros((n_items + 1, n_items), np.float32)
    B[:-1] = (np.tril(P, -1) + np.tril(P, -1).T) / -np.diag(P)
    return B
