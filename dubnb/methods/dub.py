"""DUB and Bridge: a student learns from the biased log, and from a teacher on pairs that neither log has.

`TeacherMethod` trains both models: its `recipe` is a whole fit. `DUB` (Liu et al., 2023) and `Bridge` (Liu et al.,
2020) say which terms they minimise.
"""

from __future__ import annotations

from dataclasses import dataclass

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import Weights
from dubnb.methods._exact import EXACT, PRETRAINING, ExactMethod
from dubnb.methods._method import TEACHER, TEACHER_CHECKS, Method, check_joint, teacher_stage
from dubnb.methods._params import lam_of_S_c, letters_of_pretraining, of_gamma, rank_of, required
from dubnb.objective import terms as bound
from dubnb.objective.terms import Term, shrunk_teacher
from dubnb.train import Fit, Stage, train_jointly


@dataclass(kw_only=True, repr=False, eq=False)
class TeacherMethod(ExactMethod):
    """A method with a student M_c, a teacher M_t, and term d between them.

    Both models are pre-trained, then M_c (or both) minimise the method's terms; or the exact objective is solved.

    Parameters
    ----------
    gamma : float
        Weight of term d.
    solver : {"sampled", "exact"}
        "sampled": term d in mini-batches of a sample. "exact": over all of S_u by alternating row solves; needs
        backbone "mf" and loss "squared".
    shrink : float
        How far the predictions of a frozen teacher move towards S_t's mean label: 0 not at all, 1 entirely.
    exposure_power : float or (float, float)
        The power p of term d's weights by activity and popularity, one number or (for users, for items), see `DubX`.
    pretrain_lam, teacher_lam : float
        Regularisation of M_c's pre-training, and of M_t.
    pretrain_terms : {"c", "ac"}
        Whether M_c is pre-trained on S_c or on both logs. Refinement never ends below its start on S_va, so with "ac"
        the result is at least as good as `combine` there. "ac" is the default of dub with mf if S_t is at least 3 % of
        S_c; otherwise the default is "c", as in the paper.
    teacher_batch_size : int
        Samples of S_t per mini-batch of M_t; the default gives about 42 steps per epoch and is at most 128.
    """

    gamma: float | None = None
    solver: str = "sampled"
    shrink: float | None = None
    exposure_power: float | tuple[float, float] = 0.0
    pretrain_lam: float | None = None
    pretrain_terms: str | None = None
    teacher_lam: float | None = None
    teacher_batch_size: int | None = None

    COMMON = {
        **Method.COMMON,
        "shrink": 0.0,
        "pretrain_lam": lam_of_S_c(1e-4),
        "pretrain_terms": letters_of_pretraining,
        **TEACHER,
    }
    SETTINGS = {
        ("mf", "sampled"): of_gamma({"rank": rank_of(100, 50), "gamma": 1.5, "lam": lam_of_S_c(4e-5)}),
        ("ncf", "sampled"): of_gamma({"rank": 50, "gamma": 0.1, "lam": lam_of_S_c(1e-5)}),
        ("mf", "exact"): EXACT,
    }
    CHECKS = {
        "gamma": _check.reals(),
        "solver": _check.choices(("sampled", "exact")),
        "shrink": _check.reals(high=1.0),
        "exposure_power": _check.powers,
        "pretrain_lam": _check.reals(),
        "pretrain_terms": _check.choices(("c", "ac")),
        **TEACHER_CHECKS,
    }

    def check(self) -> None:
        super().check()
        if self.solver == "exact" and self.loss != "squared":
            raise InputError(f"solver='exact' needs loss='squared', not {self.loss!r}: set it, or solver='sampled'")

    def idle(self) -> set[str]:
        return set() if self.keeps("d") else {"gamma"}

    def pretraining(self) -> tuple[Stage, ...]:
        if self.solver == "exact":  # a constant teacher needs no M_t
            return () if self.shrink == 1 else (teacher_stage(self, **PRETRAINING),)
        with_a = "a" in required(self.pretrain_terms)
        return teacher_stage(self), self.stage("M_c", lam=self.pretrain_lam, with_a=with_a)

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[Term]:
        """a, c, d and e.2, with a frozen teacher."""
        data, targets = fit.data, self.target_rule()
        teacher = shrunk_teacher(data, M_t, self.trained_loss(), required(self.shrink), targets)
        d = bound.term_d(data, required(self.gamma), teacher, exposure_power=self.exposure_power)
        return [bound.term_a(data, targets), bound.term_c(data, targets), d, bound.term_e2(data, teacher, targets)]

    def joint_terms(self, fit: Fit) -> tuple[list[Term], Term | None] | None:
        """(M_c's terms, M_t's term e.1 or None) if both models train jointly; None if the teacher is frozen."""
        raise NotImplementedError

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        if self.solver == "exact":
            M_t = next(map(fit.pretrain, self.pretraining()), None)
            return self.minimise(fit, self.all_terms(fit, M_t), self.random_rows(fit))[0], M_t
        M_t_stage, M_c_stage = self.pretraining()
        M_t = fit.pretrain(M_t_stage)
        joint = self.joint_terms(fit)
        if joint is not None:
            terms, e1 = joint
            models = fit.pretrain(M_c_stage), M_t
            return train_jointly(fit, (self.stage("refine"), M_t_stage), models, self.kept(terms), e1)
        terms = self.kept(self.all_terms(fit, M_t))
        return fit.train(self.stage("refine"), terms, fit.pretrain(M_c_stage)), M_t


@dataclass(kw_only=True, repr=False, eq=False)
class DUB(TeacherMethod):
    """The debiased upper bound of the ideal loss, minimised: the paper's method.

    It learns from both logs, and corrects the bias of the larger one with a teacher that is trained on randomized
    traffic (Liu et al., 2023). Use it to reproduce the paper. `DubX` usually ranks better and needs no tuning.

    Parameters
    ----------
    b_weight : float
        Weight of a sample of term b; at 1 it cancels the labels of S_c, see `dubnb.objective.terms.term_b`.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.DUB(rank=8, epochs=2).fit(data)
    >>> auc = model.evaluate(data)["auc"]

    Notes
    -----
    M_c is pre-trained on S_c (see `pretrain_terms`) and M_t on S_t; then the bound that the loss allows is minimised.

    - Eq. 2 (bce; mse and squared as an objective without a proof): a + c + e.2 + gamma d over W_c, M_t frozen.
    - Eq. 1 (mae): a + c + e.1 + gamma d over W_c and W_t. Without e, term d alone still trains M_t, because the loss
      is symmetric.

    The paper's ablations are terms="acd" (without e) and terms="cd" (without a and e: bridge). Its future work, term b
    with M_t in place of R^t on S_c, is terms="abcde" (Eq. 2 only: in Eq. 1 term b contains no model).
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
                raise InputError(f"terms={self.terms!r}: with {self.loss} (Eq. 1) term b has no model; leave b out")
            if self.shrink:
                raise InputError(
                    f"shrink={self.shrink!r} is for a frozen teacher (Eq. 2): leave it out with {self.loss} (Eq. 1)"
                )

    def idle(self) -> set[str]:
        return super().idle() | (set() if self.keeps("b") else {"b_weight"})

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[Term]:
        terms = super().all_terms(fit, M_t)
        if self.keeps("b"):
            targets = self.target_rule()
            teacher = shrunk_teacher(fit.data, M_t, self.trained_loss(), required(self.shrink), targets)
            terms.append(bound.term_b(fit.data, teacher, self.b_weight, targets))
        return terms

    def joint_terms(self, fit: Fit) -> tuple[list[Term], Term | None] | None:
        if self.trained_loss().equation == 2:
            return None
        data, targets = fit.data, self.target_rule()
        d = bound.term_d(data, required(self.gamma), exposure_power=self.exposure_power)
        e1 = bound.term_e1(data, targets) if self.keeps("e") else None
        return [bound.term_a(data, targets), bound.term_c(data, targets), d], e1


@dataclass(kw_only=True, repr=False, eq=False)
class Bridge(TeacherMethod):
    """The biased log, and a teacher's predictions on unseen pairs.

    A small teacher model learns from the randomized log. The student learns from the biased log, and imitates the
    teacher on pairs that neither log has (Liu et al., 2020). `DUB` adds the randomized labels themselves; use `Bridge`
    to reproduce the paper.

    Parameters
    ----------
    teacher : {"frozen", "joint"}
        "frozen": M_t is pre-trained, and pairs are drawn from S_u. "joint": M_t also learns, from e.1, and pairs are
        drawn from all users and items.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.Bridge(rank=8, epochs=2).fit(data)
    >>> items, scores = model.recommend([3], k=5)

    Notes
    -----
    The objective is c + gamma d.
    """

    teacher: str = "frozen"

    name = "bridge"
    TERMS = "cd"
    CHECKS = {"teacher": _check.choices(("frozen", "joint"))}

    def check(self) -> None:
        super().check()
        if self.teacher == "joint" and (self.solver == "exact" or self.shrink):
            raise InputError("teacher='joint' needs solver='sampled' and shrink=0: set them, or teacher='frozen'")
        if self.teacher == "joint":
            check_joint(self)

    def joint_terms(self, fit: Fit) -> tuple[list[Term], Term | None] | None:
        if self.teacher == "frozen":
            return None
        data, targets = fit.data, self.target_rule()
        d = bound.term_d(data, required(self.gamma), everywhere=True, exposure_power=self.exposure_power)
        return [bound.term_c(data, targets), d], bound.term_e1(data, targets)
