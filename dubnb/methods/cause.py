"""CausE: two models whose factors are pulled together (Bonner and Vasile, 2018)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dubnb import _check
from dubnb.backbones import Weights
from dubnb.joint import NORMS, SIDES, Alignment
from dubnb.methods._method import Method
from dubnb.methods._params import required
from dubnb.methods._settings import LogFacts, lam_of_S_c, negatives_of, of_gamma
from dubnb.methods._teacher import TEACHER, TEACHER_CHECKS, check_joint, teacher_stage
from dubnb.objective import terms as bound
from dubnb.train import Fit, train_jointly


def _gamma(log: LogFacts, known: Mapping[str, Any]) -> float:
    """.01, less where negatives are drawn: they are samples of M_c's batches without a say in the pull."""
    return 1e-2 / (1 + negatives_of(log, known))


@dataclass(kw_only=True, repr=False, eq=False)
class CausE(Method):
    """c + e.1 + gamma x |W_c - W_t|, over W_c and W_t together.

    Parameters
    ----------
    gamma : float
        Strength of the alignment, as a term of each batch's mean objective.
    side : {"items", "users", "both"}
        The factors that align.
    norm : {"l1", "frobenius"}
        As its authors' code, or as the paper writes; over the rows that a batch touches.
    teacher_lam : float
        Regularisation of M_t.
    teacher_batch_size : int
        Samples of S_t per mini-batch: as many as give some 42 steps an epoch, at most 128.
    """

    gamma: float | None = None
    side: str = "items"
    norm: str = "l1"
    teacher_lam: float | None = None
    teacher_batch_size: int | None = None

    name = "cause"
    TERMS = "ce"
    COMMON = {**Method.COMMON, **TEACHER}
    SETTINGS = {
        (backbone, "sampled"): of_gamma(
            {"rank": 50, "lam": lam_of_S_c(1e-4), "gamma": _gamma},
            wide={"gamma": (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)},
        )
        for backbone in ("mf", "ncf")
    }
    CHECKS = {
        "gamma": _check.reals(),
        "side": _check.choices(tuple(SIDES)),
        "norm": _check.choices(tuple(NORMS)),
        **TEACHER_CHECKS,
    }

    def learns_from(self) -> tuple[str, ...]:
        return ("S_c",)  # e.1 teaches M_t

    def check(self) -> None:
        super().check()
        check_joint(self)

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        data, targets = fit.data, self.target_rule()
        stages = self.stage("refine"), teacher_stage(self)
        models = fit.new(self.stage("M_c")), fit.new(stages[1])
        e1 = bound.term_e1(data, targets) if self.keeps("e") else None
        pull = Alignment(required(self.gamma), self.side, self.norm)
        return train_jointly(fit, stages, models, self.kept([bound.term_c(data, targets)]), e1, pull)
