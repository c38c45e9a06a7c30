"""IPS, and the propensities that it shares with the doubly robust methods: P(a pair is in the biased log)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.calibration import logistic, minimise_by_newton
from dubnb.data.partition import Partition, checked_propensities
from dubnb.methods._method import Method
from dubnb.methods._params import LOW_LAMS, lam_of_S_c, of_lam
from dubnb.objective import terms as bound
from dubnb.objective.terms import randomized
from dubnb.train import Fit

KINDS = ("naive-bayes", "logistic", "learned")
LIMITS = 50, 30, 1e-10  # of the logistic fit, see `calibration.minimise_by_newton`
COLUMNS = ("users", "items", "labels", "weights")


def checked_kind(name: str, value: Any) -> Any:
    """Check the parameter `propensity`: a name here, an array with the data."""
    return _check.choice(name, value, KINDS) if isinstance(value, str) else value


@dataclass(kw_only=True, repr=False, eq=False)
class WithPropensities(Method):
    """Base of methods that weigh a pair of S_c by 1 / propensity.

    Parameters
    ----------
    propensity : {"naive-bayes", "logistic", "learned"} or array, optional
        P(observed) per pair of S_c. "naive-bayes": by label, from S_c and S_t. "logistic": by the number of pairs that
        the user and the item have in S_c. "learned": by label and these numbers, from how S_c differs from S_t. An
        array is in the order of `data.triplets("S_c")`. The default is the log's own column if it has one, else naive
        Bayes.
    clip : float, optional
        The largest weight 1 / propensity; None for no limit.
    """

    propensity: np.ndarray | str | None = None
    clip: float | None = None

    CHECKS = {"propensity": checked_kind, "clip": _check.optional(_check.reals(open_low=True))}

    def inverse_propensities(self, data: Partition) -> np.ndarray:
        """min(1 / propensity, clip) of each pair of S_c."""
        weights = 1.0 / self._propensities(data)
        return weights if self.clip is None else np.minimum(weights, self.clip)

    def _propensities(self, data: Partition) -> np.ndarray:
        if self.propensity is not None and not isinstance(self.propensity, str):
            return checked_propensities(self.propensity, len(data.triplets("S_c").users))
        if self.propensity is None and data.propensities is not None:
            return data.propensities
        if self.propensity == "logistic":
            return logistic_propensities(data)
        if data.click_only and self.propensity == "learned":
            raise InputError(
                "S_c holds positives alone (a log of clicks), and propensity='learned' compares its labels with those "
                "of S_t: set propensity='logistic' or an array"
            )
        if data.click_only:
            raise InputError(
                "S_c holds positives alone (a log of clicks), so naive Bayes gives every pair the same propensity: "
                "set propensity='logistic' or an array, add such a column to the log, or use base or dub-x"
            )
        return learned_propensities(data) if self.propensity == "learned" else naive_bayes_propensities(data)


@dataclass(kw_only=True, repr=False, eq=False)
class IPS(WithPropensities):
    """The biased log, each pair weighted by the inverse of its propensity.

    The propensity is the probability that a pair was observed. Use it if your log records that probability (Schnabel
    et al., 2016); without such a column it is estimated from the labels alone.

    Parameters
    ----------
    normalise : bool
        Whether to divide the weights by their mean (self-normalised).

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.IPS(rank=8, epochs=2, clip=20.0).fit(data)
    >>> auc = model.evaluate(data)["auc"]

    Notes
    -----
    The objective is term c with each sample weighted 1 / propensity.
    """

    normalise: bool = True

    name = "ips"
    TERMS = "c"
    SETTINGS = {
        ("mf", "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(3e-5)}, wide={"lam": LOW_LAMS}),
        ("ncf", "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(1e-4)}, wide={"lam": LOW_LAMS}),
    }
    CHECKS = {"normalise": _check.flag}

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        weights = self.inverse_propensities(fit.data)
        weights = (weights / weights.mean() if self.normalise else weights).astype(np.float32)
        return [bound.term_c(fit.data, self.target_rule()).times(weights)]


# ---- ways to estimate propensities ----------------------------------------------------------------------------------


def naive_bayes_propensities(data: Partition) -> np.ndarray:
    """P(O | Y = y) = P(Y = y | O) P(O) / P(Y = y) for each pair of S_c: P(Y | O) and P(O) from S_c, P(Y) from S_t.

    P(Y | O) and P(Y) are weighted shares if the logs have a column of weights.
    """
    S_c, S_t = data.triplets("S_c"), randomized(data)
    p_observed = len(S_c.labels) / (data.n_users * data.n_items)
    propensities = np.empty(len(S_c.labels))
    for y in (0.0, 1.0):
        own = S_c.labels == y
        if own.any():
            p_label = np.average(S_t.labels == y, weights=S_t.weights)
            if p_label == 0:
                raise InputError(
                    f"S_t has no label {y:g} but S_c has: propensities need both; pass propensity= or more S_t"
                )
            propensities[own] = np.average(own, weights=S_c.weights) * p_observed / p_label
    return propensities


def logistic_propensities(data: Partition) -> np.ndarray:
    """P(O) = sigmoid(a + b log(1 + n_u) + c log(1 + n_i)) for each pair of S_c; n counts pairs in S_c.

    a, b and c maximise the likelihood of which of all pairs are in S_c. Pairs with equal (n_u, n_i) are one cell of a
    table, so the cost does not grow with users x items.
    """
    S_c = data.triplets("S_c")
    n_u, n_i = np.bincount(S_c.users, minlength=data.n_users), np.bincount(S_c.items, minlength=data.n_items)
    (counts_u, users), (counts_i, items) = (np.unique(n, return_counts=True) for n in (n_u, n_i))
    X = np.stack([np.broadcast_to(x, (len(users), len(items))).ravel() for x in _features(counts_u[:, None], counts_i)])
    cells = np.outer(users, items).ravel().astype(np.float64)
    sums = np.array([n_u.sum(), n_u @ np.log1p(n_u), n_i @ np.log1p(n_i)])  # of the features, over the pairs of S_c

    theta = _fit_logistic(X, cells, sums, np.zeros(3))
    return logistic(sum(t * x for t, x in zip(theta, _features(n_u[S_c.users], n_i[S_c.items]), strict=True)))


def learned_propensities(data: Partition) -> np.ndarray:
    """P(O | x) = P(O) P(x | O) / P(x) for each pair of S_c; x is the label, log(1 + n_u) and log(1 + n_i).

    P(x | O) is the density of x in S_c. P(x) is that in S_t, whose pairs are drawn at random. Their ratio comes from a
    logistic regression that tells pairs of S_c from pairs of S_t by x. With the sums of weights W_c and W_t, its logit
    is z(x) = log [W_c P(x | O) / (W_t P(x))]. So P(O | x) = P(O) exp(z) W_t / W_c, at most 1. Slopes have a normal
    prior with variance 1. With the label alone and without the prior this is naive Bayes.

    After Wang, Zhang, Sun, Qi: Combating Selection Biases in Recommender Systems with a Few Unbiased Ratings, WSDM
    2021. They learn propensities together with the model, by its loss on the unbiased ratings; this is one convex fit
    before it.
    """
    S_c, S_t = data.triplets("S_c"), randomized(data)
    n_u, n_i = np.bincount(S_c.users, minlength=data.n_users), np.bincount(S_c.items, minlength=data.n_items)
    users, items, labels, weights = (np.concatenate([getattr(log, name) for log in (S_c, S_t)]) for name in COLUMNS)
    X = np.stack([np.ones(len(users)), labels, np.log1p(n_u[users]), np.log1p(n_i[items])])
    counts = weights.astype(np.float64)
    own = np.arange(len(counts)) < len(S_c.users)
    theta = _fit_logistic(X, counts, X[:, own] @ counts[own], np.array([0.0, 1.0, 1.0, 1.0]))
    p_observed = len(S_c.users) / (data.n_users * data.n_items)
    return np.minimum(p_observed * np.exp(theta @ X[:, own]) * counts[~own].sum() / counts[own].sum(), 1.0)


def _fit_logistic(X: np.ndarray, counts: np.ndarray, sums: np.ndarray, ridge: np.ndarray) -> np.ndarray:
    """The coefficients theta that minimise sum counts log(1 + exp(theta X)) - theta sums + sum ridge theta^2 / 2.

    Columns of X are groups of samples and `sums` is the sum of X over the positive samples; by Newton's steps.
    """

    def objective(theta: np.ndarray) -> float:
        return float(counts @ np.logaddexp(0.0, theta @ X) - theta @ sums + ridge @ theta**2 / 2)

    def derivatives(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = logistic(theta @ X)
        gradient = X @ (counts * p) - sums + ridge * theta
        return gradient, (X * (counts * p * (1 - p))) @ X.T + np.diag(ridge)

    theta = np.zeros(len(sums))
    theta[0] = np.log(max(sums[0], 1.0) / max(counts.sum() - sums[0], 1.0))
    return minimise_by_newton(objective, derivatives, theta, 1e-9, LIMITS)


def _features(n_u: np.ndarray, n_i: np.ndarray) -> tuple[Any, ...]:
    return np.ones(1), np.log1p(n_u), np.log1p(n_i)
