"""DUB: the debiased upper bound of the ideal loss, minimised (Liu et al., 2023)."""

from dataclasses import dataclass

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.methods._params import required
from dubnb.methods._taught import Taught
from dubnb.methods._teacher import check_joint
from dubnb.objective import teachers
from dubnb.objective import terms as bound
from dubnb.train import Fit, Stage, train_jointly


@dataclass(kw_only=True, repr=False, eq=False)
class DUB(Taught):
    """Pre-train M_c on S_c (see `pretrain_terms`) and M_t on S_t, then minimise the bound that the loss allows.

    Eq. 2 (bce; mse and squared as an objective without a proof): a + c + e.2 + gamma d over W_c, M_t frozen.
    Eq. 1 (mae): a + c + e.1 + gamma d over W_c and W_t. Without e, term d alone still trains M_t there, because the
    loss is symmetric.

    The paper's ablations are terms="acd" (without e) and terms="cd" (without a and e: bridge). Its future work, term b
    with M_t standing in for R^t on S_c, is terms="abcde" (Eq. 2 alone: in Eq. 1 no model is in b).

    Parameters
    ----------
    b_weight : float
        Weight of a sample of term b; at 1 it cancels the labels of S_c, see `dubnb.objective.terms.term_b`.
    """

    b_weight: float = 0.1

    name = "dub"
    TERMS = "acde"
    EXTRA_TERMS = "b"
    CHECKS = {"b_weight": _check.reals()}

    def check(self) -> None:
        super().check()
        if self.trained_loss().equation == 1:
            check_joint(self)
            if self.keeps("b"):
                raise InputError(f"terms={self.terms!r}: with {self.loss} (Eq. 1) no model is in term b; leave b out")
            if self.shrink:
                raise InputError(
                    f"shrink={self.shrink!r} is for a frozen teacher (Eq. 2): leave it out with {self.loss} (Eq. 1)"
                )

    def idle(self) -> set[str]:
        return super().idle() | (set() if self.keeps("b") else {"b_weight"})

    def _all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        terms = super()._all_terms(fit, M_t)
        if self.keeps("b"):
            targets = self.target_rule()
            teacher = teachers.shrunk(fit.data, M_t, self.trained_loss(), required(self.shrink), targets)
            terms.append(bound.term_b(fit.data, teacher, self.b_weight, targets))
        return terms

    def refine(self, fit: Fit, M_t: Weights, M_c_stage: Stage) -> tuple[Weights, Weights]:
        if self.trained_loss().equation == 2:
            return self.refine_with(fit, M_t, M_c_stage)
        data, targets = fit.data, self.target_rule()
        d = bound.term_d(data, required(self.gamma), exposure_power=self.exposure_power)
        terms = self.kept([bound.term_a(data, targets), bound.term_c(data, targets), d])
        e1 = bound.term_e1(data, targets) if self.keeps("e") else None
        return train_jointly(fit, self.joint_stages(), (fit.pretrain(M_c_stage), M_t), terms, e1)
