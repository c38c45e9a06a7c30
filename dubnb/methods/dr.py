"""DR, MRDR and stable DR: propensities and imputed errors together (Wang et al., 2019, and after)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.data.partition import Partition
from dubnb.data.pattern import Pattern, UnobservedPairs
from dubnb.losses import BCE, LINEAR
from dubnb.methods._method import Method, check_joint
from dubnb.methods._params import Grid, LogFacts, Settings, lam_of_S_c, of_lam, required
from dubnb.methods.ips import WithPropensities
from dubnb.objective import coupled
from dubnb.objective import terms as bound
from dubnb.train import Fit

GAMMAS: Grid = {"gamma": (1.0, 2.0, 4.0)}  # of a wide grid


def _clip(log: LogFacts, known: Mapping[str, Any]) -> float:
    """Ten times 1 / propensity of a log in which every pair is equally likely."""
    return 10.0 * log.n_users * log.n_items / max(log.n_c, 1)


def _settings(mf: float, ncf: float, wide: Grid | None = None) -> dict[tuple[str, str], Settings]:
    """Defaults and grids, with the default of lam for batches of 1,024. Those of mf were chosen on S_va."""
    return {
        (backbone, "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(lam), "gamma": 1.0}, wide=wide)
        for backbone, lam in (("mf", mf), ("ncf", ncf))
    }


@dataclass(kw_only=True, repr=False, eq=False)
class DR(WithPropensities):
    """Doubly robust: errors imputed for all pairs, corrected by propensities on the biased log.

    The estimate of the loss is right if the propensities or the imputed errors are (DR-JL, Wang et al., 2019). S_c
    needs negatives. Use it as a rival, or if your log records propensities.

    Parameters
    ----------
    gamma : float
        Weight of a drawn pair outside of S_c. 1 is the doubly robust mean over all pairs.
    teacher_lam : float
        Regularisation of M_t, the imputation model.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.DR(rank=8, epochs=2).fit(data)
    >>> auc = model.evaluate(data)["auc"]

    Notes
    -----
    With e = l(s, r), the imputed error e' = l(s, t), M_t's prediction t, and W = 1 / propensity, M_c minimises

        mean over all pairs of  e' + [observed] W (e - e'),

    and M_t minimises the mean over S_c of W (e - e')^2, both batch by batch. The cross-entropy is affine in its target,
    so a pair of S_c is one sample with the target t + W (r - t). Term d draws as many other pairs as S_c has, with the
    target t. W is at most `clip`, by default 10 |D| / |S_c|: ten times what it is if all pairs are equally likely.

    Wang, Zhang, Sun, Qi: Doubly Robust Joint Learning for Recommendation on Data Missing Not at Random, ICML 2019.
    """

    gamma: float | None = None
    teacher_lam: float | None = None

    name = "dr"
    TERMS = "cd"
    KIND: ClassVar[int] = coupled.DR_KIND
    LOSS: ClassVar[int] = BCE
    folds_in = False  # targets depend on M_t
    by_default = False
    trains_on_gpu = False
    COMMON = {**Method.COMMON, "clip": _clip, "teacher_lam": lam_of_S_c(1e-4)}
    SETTINGS = _settings(mf=1e-5, ncf=1e-4, wide=GAMMAS)
    CHECKS = {"gamma": _check.reals(open_low=True), "teacher_lam": _check.reals()}

    def check(self) -> None:
        super().check()
        check_joint(self)
        if set(required(self.terms)) != set(self.TERMS):
            raise InputError(f"terms={self.terms!r}: {self.name} needs both of c and d: leave terms out")
        if self.loss != "bce":
            raise InputError(f"{self.name} needs loss='bce', not {self.loss!r}: leave it out")

    def reads_S_t(self) -> bool:
        return False  # apart from the mean label, for naive Bayes

    def _check_clicks(self, data: Partition) -> None:
        if data.click_only:
            raise InputError(
                f"S_c holds positives alone (a log of clicks): {self.name} would impute 1 for every pair; use relmf, "
                "bpr or dub-x"
            )

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        data = fit.data
        c = bound.term_c(data, self.target_rule()).whole().times(np.maximum(self.inverse_propensities(data), 1.0))
        outside = UnobservedPairs(data.n_users, data.n_items, Pattern.of(c.users, c.items, data.n_users))
        return [c, bound.Unobserved(outside, len(c.users), required(self.gamma))]

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        terms = self.all_terms(fit, None)
        stages = self.stage("M_c"), self.stage("M_t", lam=self.teacher_lam)
        rule = coupled.DoublyRobust(self.KIND, np.float32(1 / terms[1].stands_for), self.LOSS)
        both = coupled.CoupledModels(stages, (fit.new(stages[0]), fit.new(stages[1])), terms, rule)
        return fit.run_epochs(stages[0], both.epoch, both, both.weights)


@dataclass(kw_only=True, repr=False, eq=False)
class MRDR(DR):
    """Doubly robust, with an imputation model that minimises the variance.

    More robust doubly robust learning (Guo et al., 2021). Use it as `dr`, if propensities vary a lot.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.MRDR(rank=8, epochs=2).fit(data)

    Notes
    -----
    As `dr`, except that M_t minimises the mean over S_c of W (W - 1) (e - e')^2, that is (1 - p) / p^2 (e - e')^2 with
    the propensity p. This is the variance of the estimate.

    Guo, Zou, Liu, Ye, Cheng, Wang, Chen, Yin, Chang: Enhanced Doubly Robust Learning for Debiasing Post-Click
    Conversion Rate Estimation, SIGIR 2021.
    """

    name = "mrdr"
    KIND = coupled.MRDR_KIND


@dataclass(kw_only=True, repr=False, eq=False)
class StableDR(DR):
    """Self-normalised inverse propensities, tilted until they balance the imputed errors.

    Stabilised doubly robust learning (Li et al., 2023). Use it as `dr`, if some propensities are very small.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.StableDR(rank=8, epochs=2).fit(data)

    Notes
    -----
    M_c minimises the mean of e over S_c with weights W' that sum to 1. W' is proportional to W exp(tau e'), where tau
    makes the weighted mean of the imputed errors e' over S_c equal to their mean over all pairs, which S_c and the
    drawn pairs estimate. With that constraint the estimate is doubly robust. It is never an extrapolation: M_c learns
    from S_c alone. Li et al. meet the constraint by gradient steps of a parameter of the propensities; here tau is
    solved for in every batch, within [-4, 4]. M_t learns as in `dr`. gamma has no effect.

    Li, Zheng, Wu: StableDR: Stabilized Doubly Robust Learning for Recommendation on Data Missing Not at Random, ICLR
    2023.
    """

    name = "stable-dr"
    KIND = coupled.STABLE_KIND
    LOSS = LINEAR
    SETTINGS = _settings(mf=3e-4, ncf=3e-4)

    def idle(self) -> set[str]:
        return {"gamma"}
