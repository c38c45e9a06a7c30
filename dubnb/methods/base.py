"""Base: one model on the biased log."""

from dataclasses import dataclass

from dubnb.methods._method import Method
from dubnb.methods._settings import lam_of_S_c, of_lam


@dataclass(kw_only=True, repr=False, eq=False)
class Base(Method):
    """c: one model on S_c."""

    name = "base"
    TERMS = "c"
    SETTINGS = {(backbone, "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(1e-4)}) for backbone in ("mf", "ncf")}

    def recipe(self, fit):
        return fit.pretrain(*self.pretraining()), None

    def pretraining(self):
        return (self.stage("M_c", self.lam),)
