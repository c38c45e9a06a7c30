"""A thin adapter to scikit-learn: interactions as X, labels as y, so that `Pipeline` and `GridSearchCV` work.

    from dubnb.sklearn import Recommender
    search = GridSearchCV(Recommender("dub-x", random=randomized), {"params": [{"rank": 20}, {"rank": 50}]}, cv=3)
    search.fit(X, y)          # X: (n, 2) of user and item ids, y: 0 or 1: the biased log

X and y are the biased log, S_c. The randomized log is a parameter, because it is not split and scored. Every fit uses
its S_t for training and its S_va for early stopping. Cross-validation then evaluates on folds of the *biased* log,
which the randomized log exists to avoid. To choose a model, use `dubnb.sweep`, which evaluates on S_va; use this
adapter for tools that expect scikit-learn's interface. Pairs of a fold that are in the randomized log are removed from
S_c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from dubnb._check import InputError
from dubnb.methods import make
from dubnb.methods._fold_in import average_user

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("user", "item", "label")


class Recommender(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A method of dubnb as a classifier of interactions.

    Parameters
    ----------
    method : str
        The name of the method, such as "dub-x".
    params : dict, optional
        The parameters of the method.
    random : DataFrame
        The randomized log, with the columns user, item and label.
    """

    def __init__(self, method: str = "dub-x", params: dict[str, Any] | None = None, random: pd.DataFrame | None = None):
        self.method, self.params, self.random = method, params, random

    def fit(self, X: Any, y: Any) -> Recommender:
        """Train on interactions X (n, 2) of users and items, and their labels y."""
        import pandas as pd

        from dubnb.data.partition import Partition

        if self.random is None:
            raise InputError("random=None: pass the randomized log as a DataFrame with columns user, item and label")
        users, items = _columns(X)
        biased = pd.DataFrame({"user": users, "item": items, "label": np.asarray(y)})
        data = Partition.from_frames(biased, self.random[list(COLUMNS)])
        self.model_ = make(self.method, **(self.params or {})).fit(data)
        self.classes_ = np.array([0, 1])
        self.n_features_in_ = 2
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Raw scores; unknown users score as the average user, unknown items as the mean item."""
        users, items = _columns(X)
        model = self.model_
        rows, columns = model.user_ids_.find(users), model.item_ids_.find(items)
        scores = np.empty(len(rows), np.float64)
        known = (rows >= 0) & (columns >= 0)
        scores[known] = model.weights_.score_pairs(rows[known], columns[known])
        average = average_user(model.weights_, model.cold_).score_rows(np.zeros(1, np.int64))[0]
        scores[~known] = np.where(columns[~known] >= 0, average[columns[~known]], average.mean())
        return scores

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, 2): probabilities of a negative and of a positive."""
        positive = np.asarray(self.model_.probabilities(self.decision_function(X)), np.float64)
        return np.column_stack([1 - positive, positive])

    def predict(self, X: Any) -> np.ndarray:
        """The more likely label, 0 or 1."""
        return (self.predict_proba(X)[:, 1] > 0.5).astype(int)


def _columns(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """(users, items) of a table of two columns."""
    if hasattr(X, "iloc"):
        if X.shape[1] != 2:
            raise InputError(f"X has {X.shape[1]} columns: pass two, the users' and the items' ids")
        return X.iloc[:, 0].to_numpy(), X.iloc[:, 1].to_numpy()
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] != 2:
        raise InputError(f"X of shape {X.shape}: pass (n, 2), the users' and the items' ids")
    return X[:, 0], X[:, 1]
