"""DIB: the debiased information bottleneck (Liu et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.methods._method import Method
from dubnb.methods._params import lam_of_S_c, of_lam, required
from dubnb.objective import terms as bound
from dubnb.objective.coupled import Bottleneck, CoupledModels
from dubnb.train import Fit, with_negatives


@dataclass(kw_only=True, repr=False, eq=False)
class DIB(Method):
    """Two parts of the score, an unbiased and a biased one; lists use the unbiased one alone.

    The debiased information bottleneck (Liu et al., 2021). It reads S_t nowhere. Use it as a rival without randomized
    traffic.

    Parameters
    ----------
    alpha : float
        Weight of the loss of both parts together; the unbiased part alone has 1 - alpha.
    gamma : float
        How strongly the biased part is kept from predicting the label alone.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.DIB(rank=8, epochs=2).fit(data)

    Notes
    -----
    With the unbiased score s of M_c and the biased score b of M_t, the objective is the mean over S_c of

        (1 - alpha) l(s, r)  -  gamma l(b, r)  +  alpha l(s + b, r).

    gamma must be below alpha: otherwise the objective has no lower limit.

    Liu, Cheng, Zhu, Dong, He, Pan, Ming: Mitigating Confounding Bias in Recommendation via Information Bottleneck,
    RecSys 2021.
    """

    alpha: float = 0.15
    gamma: float | None = None

    name = "dib"
    TERMS = "c"
    folds_in = False  # the row of the biased part is unknown
    by_default = False
    trains_on_gpu = False
    SETTINGS = {
        (backbone, "sampled"): of_lam(
            {"rank": 50, "lam": lam_of_S_c(1e-4), "gamma": 0.05}, wide={"gamma": (0.01, 0.05, 0.1)}
        )
        for backbone in ("mf", "ncf")
    }
    CHECKS = {"alpha": _check.reals(high=1.0), "gamma": _check.reals()}

    def check(self) -> None:
        super().check()
        if required(self.gamma) > self.alpha:
            raise InputError(f"gamma={self.gamma:g} must be at most alpha={self.alpha:g}: lower gamma or raise alpha")
        if self.loss != "bce" or self.weighting != "sample":
            raise InputError(
                f"dib needs loss='bce' and weighting='sample', not {self.loss!r} and {self.weighting!r}: leave both out"
            )

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        return [bound.term_c(fit.data, self.target_rule())]

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        stages = self.stage("M_c"), self.stage("M_t")
        terms = with_negatives(self.all_terms(fit, None), stages[0], fit.data)
        rule = Bottleneck(np.float32(self.alpha), np.float32(required(self.gamma)))
        both = CoupledModels(stages, (fit.new(stages[0]), fit.new(stages[1])), terms, rule)
        return fit.run_epochs(stages[0], both.epoch, both, both.weights)
