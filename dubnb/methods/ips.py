"""IPS: the biased log, each pair weighted by the inverse of its propensity (Schnabel et al., 2016)."""

from dataclasses import dataclass

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.data.partition import Partition, checked_propensities
from dubnb.methods._method import Method
from dubnb.methods._settings import lam_of_S_c, of_lam
from dubnb.objective import terms as bound
from dubnb.objective.teachers import randomized
from dubnb.train import Fit


@dataclass(kw_only=True, repr=False, eq=False)
class IPS(Method):
    """c, each sample weighted 1 / propensity.

    Parameters
    ----------
    propensity : array, optional
        P(observed) per pair of S_c, in the order of `data.triplets("S_c")`; by default the log's own column where it
        has one, else naive Bayes from S_c and S_t.
    clip : float, optional
        The largest weight 1 / propensity; None for no limit.
    normalise : bool
        Whether to divide the weights by their mean (self-normalised).
    """

    propensity: np.ndarray | None = None
    clip: float | None = None
    normalise: bool = True

    name = "ips"
    TERMS = "c"
    SETTINGS = {
        ("mf", "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(3e-5)}),
        ("ncf", "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(1e-4)}),
    }
    CHECKS = {
        "propensity": lambda name, value: value,  # checked beside the data
        "clip": _check.optional(_check.reals(open_low=True)),
        "normalise": _check.flag,
    }

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        c = bound.term_c(fit.data, self.target_rule()).times(self._inverse_propensities(fit.data))
        return fit.train(self.stage("M_c"), [c]), None

    def _inverse_propensities(self, data: Partition) -> np.ndarray:
        if self.propensity is not None:
            propensities = checked_propensities(self.propensity, len(data.triplets("S_c").users))
        elif data.propensities is not None:
            propensities = data.propensities
        else:
            _refuse_clicks(data)
            propensities = naive_bayes_propensities(data)
        weights = 1.0 / propensities
        if self.clip is not None:
            weights = np.minimum(weights, self.clip)
        return (weights / weights.mean() if self.normalise else weights).astype(np.float32)


def _refuse_clicks(data: Partition) -> None:
    if data.click_only:
        raise InputError(
            "S_c holds positives alone (a log of clicks), so that naive Bayes gives every pair the same propensity and "
            "ips would be base: pass propensity=, give the log such a column, or take base or dub-x"
        )


def naive_bayes_propensities(data: Partition) -> np.ndarray:
    """P(O | Y = y) = P(Y = y | O) P(O) / P(Y = y) for each pair of S_c: P(Y | O) and P(O) from S_c, P(Y) from S_t.

    P(Y | O) and P(Y) are shares by the logs' own weights, where they have such a column.
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
