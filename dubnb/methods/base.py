"""Base, unif and combine: one model on the biased log, on the randomized log, and on both.

Beside them the baselines popularity, popularity-t and random, which need no training but have the form of every other
model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dubnb.backbones import MF, Weights
from dubnb.backbones.mf import Extended, rows_of
from dubnb.data.partition import Partition
from dubnb.evaluation import popularity
from dubnb.methods._method import Method
from dubnb.methods._params import Settings, batch_of_S_t, lam_of_S_c, lam_of_S_t, of_lam, required
from dubnb.objective import terms as bound
from dubnb.objective.terms import item_rates, randomized
from dubnb.train import Fit, Stage


@dataclass(kw_only=True, repr=False, eq=False)
class Base(Method):
    """One model on the biased log alone.

    This is an ordinary recommender, without any correction. Use it to see what debiasing gains.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.Base(rank=8, epochs=2).fit(data)
    >>> items, scores = model.recommend([3], k=5)

    Notes
    -----
    The objective is term c: the mean loss over S_c.
    """

    name = "base"
    TERMS = "c"
    SETTINGS = {(backbone, "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(1e-4)}) for backbone in ("mf", "ncf")}

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        return [bound.term_c(fit.data, self.target_rule())]

    def pretraining(self) -> tuple[Stage, ...]:
        return (self.stage("M_c"),)

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        return fit.pretrain(*self.pretraining()), None


@dataclass(kw_only=True, repr=False, eq=False)
class Unif(Method):
    """One model on the randomized log alone.

    It is unbiased, but randomized logs are usually too small for a good model.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.Unif(rank=8, epochs=2).fit(data)
    >>> auc = model.evaluate(data)["auc"]

    Notes
    -----
    The objective is term e.1: the mean loss over S_t.
    """

    name = "unif"
    TERMS = "e"
    COMMON = Method.COMMON | {"batch_size": batch_of_S_t}
    SETTINGS = {
        ("mf", "sampled"): of_lam({"rank": 50, "lam": lam_of_S_t(1e-2, "batch_size")}),
        ("ncf", "sampled"): of_lam({"rank": 50, "lam": lam_of_S_t(1e-3, "batch_size")}),
    }

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        return [bound.term_e1(fit.data, self.target_rule())]

    def pretraining(self) -> tuple[Stage, ...]:
        return (self.stage("M_t"),)

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        return fit.pretrain(*self.pretraining()), None


@dataclass(kw_only=True, repr=False, eq=False)
class Combine(Method):
    """One model on both logs together.

    The simplest way to use randomized traffic: its pairs are added to the biased log.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.Combine(rank=8, epochs=2).fit(data)
    >>> auc = model.evaluate(data)["auc"]

    Notes
    -----
    The objective is a + c: the loss over S_t and S_c.
    """

    name = "combine"
    TERMS = "ac"
    SETTINGS = {(backbone, "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(1e-4)}) for backbone in ("mf", "ncf")}

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        targets = self.target_rule()
        return [bound.term_a(fit.data, targets), bound.term_c(fit.data, targets)]


# ---- baselines -------------------------------------------------------------------------------------------------------


DEFAULTS = {"rank": 1, "lam": 0.0, "loss": "squared", "epochs": 1}


@dataclass(kw_only=True, repr=False, eq=False)
class Baseline(Method):
    """A method without training, stored as mf: its factors are 0 or random, its biases are the scores.

    It is saved, loaded and evaluated like any other method; parameters of training have no effect.
    """

    TERMS = "c"
    SETTINGS = {("mf", "sampled"): Settings(DEFAULTS, paper={}, wide={}, even={}, near={})}
    is_baseline = True
    folds_in = False

    def rows(self, data: Partition) -> Extended:
        """The rows whose inner products are the scores."""
        raise NotImplementedError

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        rows = self.rows(fit.data)
        stage = self.stage("M_c", epochs=1)
        return fit.run_epochs(stage, lambda epoch: {}, rows, lambda: MF.from_extended(rows)), None

    def same_for_all(self, values: np.ndarray, n_users: int) -> Extended:
        """Rows that give every user the score values[i] for item i; the `rank` factors are 0."""
        rows = Extended.of_items(n_users, values.astype(np.float32))
        P, Q = (np.hstack([np.zeros((len(side), required(self.rank)), np.float32), side]) for side in rows)
        return Extended(P, Q)

    def learns_from(self) -> tuple[str, ...]:
        return ()

    def _check_personal(self, personal: float) -> None:
        """Do not warn: a baseline gives every user the same ranking on purpose."""


@dataclass(kw_only=True, repr=False, eq=False)
class Popularity(Baseline):
    """Items by their positives in the biased log, the same list for everyone (a baseline).

    Compare a model with it to see what personal recommendations gain.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> items, scores = dubnb.Popularity().fit(data).recommend([3], k=5)

    Notes
    -----
    The score is the share of all users with a positive of the item in S_c.
    """

    name = "popularity"

    def rows(self, data: Partition) -> Extended:
        return self.same_for_all(popularity(data) / data.n_users, data.n_users)


@dataclass(kw_only=True, repr=False, eq=False)
class PopularityT(Baseline):
    """Items by their rate of positives in the randomized log, the same list for everyone (a baseline).

    Unlike `Popularity` it is not biased by what the logging system showed.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> auc = dubnb.PopularityT().fit(data).evaluate(data)["auc"]

    Notes
    -----
    The score is the item's rate of positives in S_t, shrunk towards the mean rate by empirical Bayes, see
    `dubnb.objective.terms.item_rates`.
    """

    name = "popularity-t"
    TERMS = "e"

    def rows(self, data: Partition) -> Extended:
        return self.same_for_all(item_rates(randomized(data), data.n_items)[0], data.n_users)


@dataclass(kw_only=True, repr=False, eq=False)
class Random(Baseline):
    """Items in a random order, drawn for every user (a baseline).

    It shows what ranking without any knowledge gives.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> items, scores = dubnb.Random(seed=1).fit(data).recommend([3], k=5)

    Notes
    -----
    The score is p_u . q_i with factors drawn by the seed.
    """

    name = "random"
    SETTINGS = {
        ("mf", "sampled"): Settings(DEFAULTS | {"rank": 32, "loss": "bce"}, paper={}, wide={}, even={}, near={})
    }

    def rows(self, data: Partition) -> Extended:
        return rows_of(self.stage("M_c").new(data))
