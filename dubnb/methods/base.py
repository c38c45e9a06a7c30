"""Base: one model on the biased log."""

from dataclasses import dataclass

from dubnb.backbones import Weights
from dubnb.methods._method import Method
from dubnb.methods._settings import lam_of_S_c, of_lam
from dubnb.train import Fit, Stage


@dataclass(kw_only=True, repr=False, eq=False)
class Base(Method):
    """c: one model on S_c."""

    name = "base"
    TERMS = "c"
    SETTINGS = {(backbone, "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(1e-4)}) for backbone in ("mf", "ncf")}

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        return fit.pretrain(*self.pretraining()), None

    def pretraining(self) -> tuple[Stage, ...]:
        return (self.stage("M_c"),)
