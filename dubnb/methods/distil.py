"""Three other uses of a randomized log: refined labels, confidence weights, transferred factors (Liu et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dubnb import _check
from dubnb.backbones import Weights
from dubnb.methods._method import TEACHER, TEACHER_CHECKS, Method, teacher_stage
from dubnb.methods._params import lam_of_S_c, of_lam, required
from dubnb.objective import terms as bound
from dubnb.train import Fit, Stage


@dataclass(kw_only=True, repr=False, eq=False)
class Distil(Method):
    """Base of methods that train M_t on S_t first.

    Parameters
    ----------
    teacher_lam : float
        Regularisation of M_t.
    teacher_batch_size : int
        Samples of S_t per mini-batch; the default gives about 42 steps per epoch and is at most 128.
    """

    teacher_lam: float | None = None
    teacher_batch_size: int | None = None

    TERMS = "c"
    by_default = False
    folds_in = False  # targets, weights or the start of a row depend on M_t
    COMMON = {**Method.COMMON, **TEACHER}
    SETTINGS = {(backbone, "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(1e-4)}) for backbone in ("mf", "ncf")}
    CHECKS = TEACHER_CHECKS

    def reads_S_t(self) -> bool:
        return True

    def pretraining(self) -> tuple[Stage, ...]:
        return (teacher_stage(self),)

    def predictions(self, fit: Fit, M_t: Weights | None) -> np.ndarray:
        """M_t's predictions t on S_c."""
        S_c = fit.data.triplets("S_c")
        teacher = bound.shrunk_teacher(fit.data, M_t, self.trained_loss(), 0.0, self.target_rule())
        return teacher.predict(S_c.users, S_c.items)

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        M_t = fit.pretrain(teacher_stage(self))
        return fit.train(self.stage("M_c"), self.kept(self.all_terms(fit, M_t))), M_t


@dataclass(kw_only=True, repr=False, eq=False)
class Refine(Distil):
    """The biased log with labels that a model of the randomized log has corrected.

    Label refinement (Liu et al., 2020). Use it as a rival that reads S_t through its labels alone.

    Parameters
    ----------
    alpha : float
        The share of M_t's prediction in a label.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.Refine(rank=8, epochs=2).fit(data)

    Notes
    -----
    The objective is term c with the target (1 - alpha) r + alpha t, t the prediction of M_t. The authors add alpha
    times a prediction scaled to [0, 1] instead, and do not divide.

    Liu, Cheng, Dong, He, Pan, Ming: A General Knowledge Distillation Framework for Counterfactual Recommendation via
    Uniform Data, SIGIR 2020.
    """

    alpha: float | None = None

    name = "refine"
    SETTINGS = {
        key: of_lam({**own.defaults, "alpha": 0.5}, wide={"alpha": (0.1, 0.3, 0.5, 0.7)})
        for key, own in Distil.SETTINGS.items()
    }
    CHECKS = {"alpha": _check.reals(high=1.0)}

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        S_c, alpha = self.target_rule().of(fit.data, "S_c"), np.float32(required(self.alpha))
        return [bound.Observed.of("c", S_c, (1 - alpha) * S_c.labels + alpha * self.predictions(fit, M_t))]


@dataclass(kw_only=True, repr=False, eq=False)
class Weigh(Distil):
    """Both logs, each biased pair weighted by the confidence of a model of the randomized log in its label.

    Weighting by confidence (after Liu et al., 2020). Use it as a rival if many labels of the biased log are accidental.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.Weigh(rank=8, epochs=2).fit(data)

    Notes
    -----
    The objective is a + c. A pair of S_c with label r weighs 1 - |r - t|, divided by the mean; t is the prediction of
    M_t. The authors learn one weight per sample together with the model.

    Liu et al.: see `refine`.
    """

    name = "weigh"
    TERMS = "ac"

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        labels, t = fit.data.triplets("S_c").labels, np.clip(self.predictions(fit, M_t), 0.0, 1.0)
        confidence = 1 - np.abs(labels - t)
        c = bound.term_c(fit.data, self.target_rule()).times(confidence / confidence.mean())
        return [bound.term_a(fit.data, self.target_rule()), c]


@dataclass(kw_only=True, repr=False, eq=False)
class Transfer(Distil):
    """The biased log, starting from the factors of a model of the randomized log.

    Factor transfer (Liu et al., 2020). Use it as a rival that reads S_t as a start alone.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.Transfer(rank=8, epochs=2).fit(data)

    Notes
    -----
    The objective is term c. M_c starts at the weights of M_t, which are also the result if no epoch is better on S_va.

    Liu et al.: see `refine`.
    """

    name = "transfer"

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        return [bound.term_c(fit.data, self.target_rule())]

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        M_t = fit.pretrain(teacher_stage(self))
        return fit.train(self.stage("M_c"), self.kept(self.all_terms(fit, M_t)), start=M_t), M_t
