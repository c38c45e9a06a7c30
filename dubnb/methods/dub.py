"""DUB: the debiased upper bound of the ideal loss, minimised (Liu et al., 2023)."""

from dataclasses import dataclass

from dubnb._check import InputError
from dubnb.losses import LOSSES
from dubnb.methods._taught import Taught
from dubnb.objective import terms as bound


@dataclass(kw_only=True, repr=False, eq=False)
class DUB(Taught):
    """Pre-train M_c on S_c and M_t on S_t, then minimise the bound that the loss allows.

    Eq. 2 (bce; mse and squared as an objective without a proof): a + c + e.2 + gamma d over W_c, M_t frozen.
    Eq. 1 (mae): a + c + e.1 + gamma d over W_c and W_t.

    gamma: weight of term d; shrink: how far the teacher is drawn towards S_t's mean label (Eq. 2); solver: "sampled",
    or "exact" (mf, squared; lam is then the absolute decay per row); exposure_power: p of term d's weights by activity
    and popularity, one number or (for users, for items), see `DubX`; pretrain_lam, teacher_lam: regularisation of
    M_c's pre-training and of M_t. The paper's ablations are terms="acd" (without e) and terms="cd" (without a and e:
    bridge).
    """

    name = "dub"
    TERMS = "acde"

    def _check_params(self, params):
        super()._check_params(params)
        if params["shrink"] and LOSSES[params["loss"]].equation == 1:
            raise InputError(
                f"shrink={params['shrink']!r} is for a frozen teacher (Eq. 2): leave it out with mae (Eq. 1)"
            )

    def refine(self, run, M_c, M_t):
        data, gamma, power = run.data, run.params.gamma, run.params.exposure_power
        a, c = bound.term_a(data), bound.term_c(data)
        if run.loss.equation == 1:
            e1 = bound.term_e1(data) if "e" in run.params.terms else None
            return run.refine_jointly(M_c, M_t, [a, c, bound.term_d(data, gamma, exposure_power=power)], e1)
        teacher = bound.Teacher(data, M_t, run.loss, run.params.shrink)
        d, e2 = bound.term_d(data, gamma, teacher, exposure_power=power), bound.term_e2(data, teacher)
        return run.refine(M_c, [a, c, d, e2]), M_t
