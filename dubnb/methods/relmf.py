"""RelMF: positives weighted by the inverse of how often their item is seen (Saito et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.data.pattern import Pattern, UnobservedPairs
from dubnb.losses import LOSSES
from dubnb.methods._method import Method
from dubnb.methods._params import lam_of_S_c, of_gamma, required
from dubnb.methods.ials import positives
from dubnb.objective.terms import ConstantTeacher, Observed, Term, Unobserved
from dubnb.train import Fit


@dataclass(kw_only=True, repr=False, eq=False)
class RelMF(Method):
    """Positives weighted by the inverse of how often their item is seen, zeros elsewhere.

    Relevance matrix factorisation (Saito et al., 2020), for logs of clicks: a click is exposure times relevance, and
    popular items have more exposure. Use it as a rival that corrects popularity without randomized traffic.

    Parameters
    ----------
    gamma : float
        Weight of a pair that is drawn as a zero.
    power : float
        How exposure grows with popularity: theta_i = (n_i / max n)^power, n_i the positives of item i in S_c.
    clip : float, optional
        The largest 1 / theta; None for no limit.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.RelMF(rank=8, epochs=2).fit(data)
    >>> items, scores = model.recommend([3], k=5)

    Notes
    -----
    With Y = 1 for a positive of S_c and Y = 0 for every other pair, the objective is the mean over all pairs of

        Y / theta l(s, 1)  +  (1 - Y / theta) l(s, 0),

    which is unbiased for the loss against relevance if theta is the probability of exposure. For a loss that is affine
    in its target this is l(s, Y / theta) up to a constant: term c has the positives with the target 1 / theta. Term d
    draws as many other pairs as S_c has, with target 0. The mean over all pairs has gamma = |other pairs| / |S_c|.
    The default is smaller: on S_va of yahoo-like, 12 has nDCG .057 and 48 has .051 (AUC .766 and .778).

    Saito, Yaginuma, Nishino, Sakata, Nakata: Unbiased Recommender Learning from Missing-Not-At-Random Implicit
    Feedback, WSDM 2020.
    """

    gamma: float | None = None
    power: float = 0.5
    clip: float | None = 5.0

    name = "relmf"
    TERMS = "cd"
    folds_in = False  # the targets of a history depend on popularity
    SETTINGS = {
        (backbone, "sampled"): of_gamma(
            {"rank": 50, "lam": lam_of_S_c(1e-4), "gamma": 10.0}, wide={"gamma": (1.0, 3.0, 10.0, 30.0)}
        )
        for backbone in ("mf", "ncf")
    }
    CHECKS = {
        "gamma": _check.reals(),
        "power": _check.reals(),
        "clip": _check.optional(_check.reals(low=1.0)),
    }

    def check(self) -> None:
        super().check()
        if not self.trained_loss().affine:
            able = ", ".join(name for name, loss in LOSSES.items() if loss.affine)
            raise InputError(f"loss={self.loss!r}: relmf has targets above 1, which needs one of the losses {able}")

    def reads_S_t(self) -> bool:
        return False

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[Term]:
        data = fit.data
        liked = positives(data, "S_c")
        counts = np.bincount(liked.items, minlength=data.n_items)
        targets = (counts.max() / counts[liked.items]) ** self.power
        if self.clip is not None:
            targets = np.minimum(targets, self.clip)
        others = UnobservedPairs(data.n_users, data.n_items, Pattern.of(liked.users, liked.items, data.n_users))
        d = Unobserved(others, len(data.triplets("S_c").users), required(self.gamma), ConstantTeacher(0.0))
        return [Observed.of("c", liked, targets.astype(np.float32)), d]
