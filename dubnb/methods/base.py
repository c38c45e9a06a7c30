"""Base, unif and combine: one model on the biased log, on the randomized log, and on both."""

from dataclasses import dataclass

from dubnb.backbones import Weights
from dubnb.methods._method import Method
from dubnb.methods._params import batch_of_S_t, lam_of_S_c, lam_of_S_t, of_lam
from dubnb.objective import terms as bound
from dubnb.train import Fit, Stage


@dataclass(kw_only=True, repr=False, eq=False)
class Base(Method):
    """One model on the biased log alone.

    This is an ordinary recommender, without any correction. Use it to see what debiasing gains.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.Base(rank=8, epochs=2).fit(data)
    >>> items, scores = model.recommend([3], k=5)

    Notes
    -----
    The objective is term c: the mean loss over S_c.
    """

    name = "base"
    TERMS = "c"
    SETTINGS = {(backbone, "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(1e-4)}) for backbone in ("mf", "ncf")}

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        return [bound.term_c(fit.data, self.target_rule())]

    def pretraining(self) -> tuple[Stage, ...]:
        return (self.stage("M_c"),)

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        return fit.pretrain(*self.pretraining()), None


@dataclass(kw_only=True, repr=False, eq=False)
class Unif(Method):
    """One model on the randomized log alone.

    It is unbiased, but randomized logs are usually too small for a good model.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.Unif(rank=8, epochs=2).fit(data)
    >>> auc = model.evaluate(data)["auc"]

    Notes
    -----
    The objective is term e.1: the mean loss over S_t.
    """

    name = "unif"
    TERMS = "e"
    COMMON = Method.COMMON | {"batch_size": batch_of_S_t}
    SETTINGS = {
        ("mf", "sampled"): of_lam({"rank": 50, "lam": lam_of_S_t(1e-2, "batch_size")}),
        ("ncf", "sampled"): of_lam({"rank": 50, "lam": lam_of_S_t(1e-3, "batch_size")}),
    }

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        return [bound.term_e1(fit.data, self.target_rule())]

    def pretraining(self) -> tuple[Stage, ...]:
        return (self.stage("M_t"),)

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        return fit.pretrain(*self.pretraining()), None


@dataclass(kw_only=True, repr=False, eq=False)
class Combine(Method):
    """One model on both logs together.

    The simplest way to use randomized traffic: its pairs are added to the biased log.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.Combine(rank=8, epochs=2).fit(data)
    >>> auc = model.evaluate(data)["auc"]

    Notes
    -----
    The objective is a + c: the loss over S_t and S_c.
    """

    name = "combine"
    TERMS = "ac"
    SETTINGS = {(backbone, "sampled"): of_lam({"rank": 50, "lam": lam_of_S_c(1e-4)}) for backbone in ("mf", "ncf")}

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[bound.Term]:
        targets = self.target_rule()
        return [bound.term_a(fit.data, targets), bound.term_c(fit.data, targets)]
