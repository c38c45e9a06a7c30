"""DUB: the debiased upper bound of the ideal loss, minimised."""

from dataclasses import dataclass

from dubnb.methods._method import Method
from dubnb.objective import terms as bound


@dataclass(kw_only=True, repr=False, eq=False)
class DUB(Method):
    """Pre-train M_c on S_c and M_t on S_t, then minimise the bound that the loss allows.

    Eq. 2 (bce; mse and squared as an objective without a proof): a + c + e.2 + gamma d over W_c, M_t frozen.
    Eq. 1 (mae): a + c + e.1 + gamma d over W_c and W_t.

    gamma: weight of term d; pretrain_lam, teacher_lam: regularisation of M_c's pre-training and of M_t. The paper's
    ablations are terms="acd" (without e) and terms="cd" (without a and e, which is bridge).
    """

    gamma: float | None = None
    pretrain_lam: float = 1e-4
    teacher_lam: float = 1e-2

    name = "dub"
    TERMS = "acde"
    DEFAULTS = {
        "mf": {"rank": 100, "gamma": 1.5, "lam": 4e-5},
        "ncf": {"rank": 50, "gamma": 0.1, "lam": 1e-5},
    }

    def recipe(self, run):
        data, gamma = run.data, run.params.gamma
        M_c, M_t = run.pretrain_c(), run.pretrain_t()
        a, c = bound.term_a(data), bound.term_c(data)
        if run.loss.equation == 1:
            e1 = bound.term_e1(data) if "e" in run.params.terms else None
            return run.refine_jointly(M_c, M_t, [a, c, bound.term_d(data, gamma)], e1)
        d, e2 = bound.term_d(data, gamma, M_t, run.loss), bound.term_e2(data, M_t, run.loss)
        return run.refine(M_c, [a, c, d, e2]), M_t
