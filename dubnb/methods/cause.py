"""CausE: two models whose factors are pulled together (Bonner and Vasile, 2018)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dubnb import _check
from dubnb.backbones import Weights
from dubnb.methods._method import TEACHER, TEACHER_CHECKS, Method, check_joint, teacher_stage
from dubnb.methods._params import LOW_LAMS, LogFacts, lam_of_S_c, negatives_of, of_gamma, required
from dubnb.objective import terms as bound
from dubnb.objective.coupled import NORMS, SIDES, Alignment
from dubnb.train import Fit, train_jointly


def _gamma(log: LogFacts, known: Mapping[str, Any]) -> float:
    """.01, and less if negatives are drawn: they fill M_c's batches but do not take part in the alignment."""
    return 1e-2 / (1 + negatives_of(log, known))


@dataclass(kw_only=True, repr=False, eq=False)
class CausE(Method):
    """Two models, one per log, whose factors are pulled together.

    One model learns from the biased log and one from the randomized log (Bonner and Vasile, 2018). Use it to reproduce
    the paper.

    Parameters
    ----------
    gamma : float
        Strength of the alignment, as a term of each batch's mean objective.
    side : {"items", "users", "both"}
        The factors that are aligned.
    norm : {"l1", "frobenius"}
        The norm of the difference, over the rows that a batch touches: "l1" as in its authors' code, "frobenius" as in
        their paper.
    teacher_lam : float
        Regularisation of M_t.
    teacher_batch_size : int
        Samples of S_t per mini-batch; the default gives about 42 steps per epoch and is at most 128.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.CausE(rank=8, epochs=2).fit(data)
    >>> auc = model.evaluate(data)["auc"]

    Notes
    -----
    The objective is c + e.1 + gamma |W_c - W_t|, over W_c and W_t together.
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
            wide={"lam": LOW_LAMS, "gamma": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)},
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
        return ("S_c",)  # e.1 trains M_t

    def check(self) -> None:
        super().check()
        check_joint(self)

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        return [bound.term_c(fit.data, self.target_rule())]

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        stages = self.stage("refine"), teacher_stage(self)
        models = fit.new(self.stage("M_c")), fit.new(stages[1])
        e1 = bound.term_e1(fit.data, self.target_rule()) if self.keeps("e") else None
        pull = Alignment(required(self.gamma), self.side, self.norm)
        return train_jointly(fit, stages, models, self.kept(self.all_terms(fit, None)), e1, pull)
