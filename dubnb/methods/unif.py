"""Unif: one model on the randomized log."""

from dataclasses import dataclass

from dubnb.methods._method import S_T_BATCH, Method
from dubnb.methods._settings import of_lam

LAMS = {"lam": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)}


@dataclass(kw_only=True, repr=False, eq=False)
class Unif(Method):
    """e.1 alone: one model on S_t."""

    name = "unif"
    TERMS = "e"
    SETTINGS = {
        ("mf", "sampled"): of_lam({"rank": 50, "lam": 1e-2, "batch_size": S_T_BATCH}, wide=LAMS),
        ("ncf", "sampled"): of_lam({"rank": 50, "lam": 1e-3, "batch_size": S_T_BATCH}, wide=LAMS),
    }

    def recipe(self, fit):
        return fit.pretrain(*self.pretraining()), None

    def pretraining(self):
        return (self.stage("M_t", self.lam),)
