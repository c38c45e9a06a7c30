"""BPR and PDA: a user's positives ranked above other items (Rendle et al., 2009; Zhang et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.data.partition import Partition
from dubnb.data.pattern import Pattern, union
from dubnb.methods._method import Method
from dubnb.methods._params import lam_of_S_c, of_lam
from dubnb.methods.ials import positives
from dubnb.objective.coupled import Pairwise
from dubnb.objective.terms import Observed, Term
from dubnb.train import Fit


@dataclass(kw_only=True, repr=False, eq=False)
class BPR(Method):
    """Rank a user's positives above other items, pair by pair.

    Bayesian personalised ranking (Rendle et al., 2009): a rival that every comparison should have. It reads positives
    alone and corrects no bias.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.BPR(rank=8, epochs=2).fit(data)
    >>> items, scores = model.recommend([3], k=5)

    Notes
    -----
    The objective is the mean over positives (u, i) of S_c of -log sigmoid(s_ui - s_uj), where j is drawn uniformly from
    the items that are not positives of u, anew in every epoch. terms="ac" adds the positives of S_t. Observed negatives
    count as other items. lam and patience were chosen on S_va of simulated logs and Coat; the metric on S_va is noisy
    while factors are small, so patience is 20.

    Rendle, Freudenthaler, Gantner, Schmidt-Thieme: BPR: Bayesian Personalized Ranking from Implicit Feedback, UAI 2009.
    """

    name = "bpr"
    TERMS = "ac"
    folds_in = False  # no row solve
    trains_on_gpu = False
    SETTINGS = {
        (backbone, "sampled"): of_lam({"terms": "c", "rank": 50, "lam": lam_of_S_c(3e-5), "patience": 20})
        for backbone in ("mf", "ncf")
    }

    def check(self) -> None:
        super().check()
        if self.loss != "bce" or self.weighting != "sample":
            raise InputError(
                f"{self.name} has a loss of pairs, not loss={self.loss!r}, weighting={self.weighting!r}: leave both out"
            )

    def _check_clicks(self, data: Partition) -> None:
        pass  # positives alone are all that it reads

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[Term]:
        """Positives of users who have another item to compare with."""
        data = fit.data
        parts = {"a": positives(data, "S_t")} if self.keeps("a") else {}
        parts |= {"c": positives(data, "S_c")} if self.keeps("c") else {}
        able = self._liked(data).sizes() < data.n_items
        return [Observed.of(letter, pairs.take(able[pairs.users])) for letter, pairs in parts.items()]

    def _liked(self, data: Partition) -> Pattern:
        parts = [positives(data, part) for letter, part in (("a", "S_t"), ("c", "S_c")) if self.keeps(letter)]
        return union([Pattern.of(pairs.users, pairs.items, data.n_users) for pairs in parts], data.n_items)

    def item_factors(self, data: Partition) -> np.ndarray:
        """The factor of each item's preference; empty: scores are compared as they are."""
        return np.zeros(0)

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        stage, terms = self.stage("M_c"), [term for term in self.all_terms(fit, None) if isinstance(term, Observed)]
        if not sum(term.size for term in terms):
            raise InputError(
                f"{self.name} compares a user's positives with other items, and no user has both: give more items or "
                "positives, or use base"
            )
        pairs = Pairwise(fit.new(stage), terms, self._liked(fit.data), stage, self.item_factors(fit.data))
        return fit.run_epochs(stage, pairs.epoch, pairs, pairs.weights), None


@dataclass(kw_only=True, repr=False, eq=False)
class PDA(BPR):
    """BPR that explains popular positives by their popularity, and ranks without it.

    Popularity deconfounding (Zhang et al., 2021). Use it as a rival that corrects popularity without randomized
    traffic.

    Parameters
    ----------
    power : float
        How much popularity explains: the preference for item i is multiplied by m_i^power; 0 ignores popularity.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.PDA(rank=8, epochs=2).fit(data)
    >>> items, scores = model.recommend([3], k=5)

    Notes
    -----
    As `bpr`, with (ELU(s_ui) + 1) m_i^power in place of s_ui in training. m_i = (n_i + 1) / (max n + 1), where n_i
    counts the positives of i in S_c. Lists are ranked by s alone: the authors' PD. Their PDA multiplies by a forecast
    of popularity, which this library does not have.

    Zhang, Feng, He, Wei, Song, Ling, Zhang: Causal Intervention for Leveraging Popularity Bias in Recommendation, SIGIR
    2021.
    """

    power: float = 0.05

    name = "pda"
    by_default = False
    SETTINGS = {
        key: of_lam(dict(own.defaults), wide={"power": (0.02, 0.05, 0.1, 0.2, 0.4)})
        for key, own in BPR.SETTINGS.items()
    }
    CHECKS = {"power": _check.reals()}

    def item_factors(self, data: Partition) -> np.ndarray:
        counts = np.bincount(positives(data, "S_c").items, minlength=data.n_items)
        return ((counts + 1) / (counts.max() + 1)) ** self.power
