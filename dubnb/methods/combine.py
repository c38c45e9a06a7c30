"""Combine: one model on both logs."""

from dataclasses import dataclass

from dubnb.backbones import Weights
from dubnb.methods._method import Method
from dubnb.methods._settings import lam_of_S_c, of_lam
from dubnb.objective import terms as bound
from dubnb.train import Fit


@dataclass(kw_only=True, repr=False, eq=False)
class Combine(Method):
    """a + c: one model on S_c and S_t together."""

    name = "combine"
    TERMS = "ac"
    SETTINGS = {(backbone, "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(1e-4)}) for backbone in ("mf", "ncf")}

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        data, targets = fit.data, self.target_rule()
        terms = self.kept([bound.term_a(data, targets), bound.term_c(data, targets)])
        return fit.train(self.stage("M_c"), terms), None
