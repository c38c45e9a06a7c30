"""Unif: one model on the randomized log."""

from dataclasses import dataclass

from dubnb.backbones import Weights
from dubnb.methods._method import Method
from dubnb.methods._settings import batch_of_S_t, lam_of_S_t, of_lam
from dubnb.train import Fit, Stage


@dataclass(kw_only=True, repr=False, eq=False)
class Unif(Method):
    """e.1 alone: one model on S_t."""

    name = "unif"
    TERMS = "e"
    COMMON = Method.COMMON | {"batch_size": batch_of_S_t}
    SETTINGS = {
        ("mf", "sampled"): of_lam({"rank": 50, "lam": lam_of_S_t(1e-2, "batch_size")}),
        ("ncf", "sampled"): of_lam({"rank": 50, "lam": lam_of_S_t(1e-3, "batch_size")}),
    }

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        return fit.pretrain(*self.pretraining()), None

    def pretraining(self) -> tuple[Stage, ...]:
        return (self.stage("M_t"),)
