"""Bridge: the biased log, and a teacher's predictions on unseen pairs (Liu et al., 2020)."""

from dataclasses import dataclass

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.methods._params import required
from dubnb.methods._taught import Taught
from dubnb.methods._teacher import check_joint
from dubnb.objective import terms as bound
from dubnb.train import Fit, Stage, train_jointly


@dataclass(kw_only=True, repr=False, eq=False)
class Bridge(Taught):
    """c + gamma d.

    Parameters
    ----------
    teacher : {"frozen", "joint"}
        "frozen": M_t is pre-trained, S_a drawn from S_u; "joint": M_t learns along from e.1, S_a drawn from all of D.
    """

    teacher: str = "frozen"

    name = "bridge"
    TERMS = "cd"
    CHECKS = {"teacher": _check.choices(("frozen", "joint"))}

    def check(self) -> None:
        super().check()
        if self.teacher == "joint" and (self.solver == "exact" or self.shrink):
            raise InputError("teacher='joint' goes with solver='sampled' and shrink=0: set them, or teacher='frozen'")
        if self.teacher == "joint":
            check_joint(self)

    def refine(self, fit: Fit, M_t: Weights, M_c_stage: Stage) -> tuple[Weights, Weights]:
        if self.teacher == "frozen":
            return self.refine_with(fit, M_t, M_c_stage)
        data, targets = fit.data, self.target_rule()
        d = bound.term_d(data, required(self.gamma), everywhere=True, exposure_power=self.exposure_power)
        terms = self.kept([bound.term_c(data, targets), d])
        return train_jointly(
            fit, self.joint_stages(), (fit.pretrain(M_c_stage), M_t), terms, bound.term_e1(data, targets)
        )
