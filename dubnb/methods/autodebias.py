"""AutoDebias: learned weights and imputations, by a look-ahead on the randomized log (Chen et al., 2021)."""

from dataclasses import dataclass

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import MF, Weights
from dubnb.backbones.mf import rows_of
from dubnb.data.partition import Triplets
from dubnb.losses import LOSSES
from dubnb.methods._autodebias_sampled import SampledAutoDebias
from dubnb.methods._exact import NO_DECAY, ExactlySolved, unless_lam
from dubnb.methods._params import required
from dubnb.methods._settings import PAPER_RANKS, PAPER_STRENGTHS, WIDE_RANKS, Settings, Times, lam_of_S_c
from dubnb.objective import autodebias as meta
from dubnb.objective import exposure
from dubnb.objective.teachers import randomized
from dubnb.train import EarlyStopping, Fit

# The share of the ranking that is a user's own from which the model counts as trained. Until the learned weights have
# grown, the decay holds the factors down: for 20 to 190 epochs the ranking is that of the biases, which passes a better
# one by chance in epoch 2 or 3.
ALIVE = 0.01
CUTOFFS = (0.045, 0.09, 0.185, 0.37)
EXACT = Settings(  # cutoff takes lam's place, so the paper's range of lambda means nothing
    defaults={
        "rank": 50,
        "alpha": 0.1,
        "cutoff": unless_lam(0.185),  # lam 40 at Yahoo! R3's size
        "epochs": 500,
        "patience": 70,
        "weights_from": 20,
        "loss": "squared",
    },
    paper={"rank": PAPER_RANKS, "cutoff": CUTOFFS},
    wide={"rank": (10, 20, 50, 100), "cutoff": CUTOFFS, "alpha": (0.05, 0.1, 0.2)},
    even={"rank": PAPER_RANKS, "cutoff": (*CUTOFFS, 0.74), "alpha": (0.025, 0.05, 0.1, 0.2, 0.4)},
    near={"cutoff": 1.4, "alpha": 2.0, "rank": 2.0},
)
SAMPLED = Settings(
    defaults={"rank": 50, "alpha": 0.01, "lam": lam_of_S_c(1e-5), "weights_from": 1},
    paper={"rank": PAPER_RANKS, "lam": PAPER_STRENGTHS},
    wide={"rank": WIDE_RANKS, "lam": Times((1.0, 10.0, 100.0)), "alpha": (1e-3, 1e-2, 1e-1)},
    even={"rank": PAPER_RANKS, "lam": PAPER_STRENGTHS, "alpha": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)},
    near={"lam": 3.0, "alpha": 3.0, "rank": 2.0},
)


@dataclass(kw_only=True, repr=False, eq=False)
class AutoDebias(ExactlySolved):
    """c with learned weights w1 + alpha x imputed labels m on all pairs with learned weights w2; phi learned on S_t.

    The loss is "squared" by default for mf, "bce" for ncf.

    Parameters
    ----------
    alpha : float
        Weight of the imputed pairs.
    solver : {"exact", "sampled"}
        All pairs in closed form (mf, squared), or mini-batches; each the default where it applies. With "exact", a
        given lam must rise with alpha.
    imputation : {"tanh", "sigmoid"}
        With solver="exact": labels -1 and 1, or 0 and 1 (then halve lam).
    weights_from : int
        The epoch from which w1 and w2 move.
    meta_every : int
        With solver="sampled": batches from one look-ahead to the next; the steps of phi are so many times as long.
    exposure_power : float or (float, float)
        p with which w2 starts from weights by activity and popularity, 5 log A_u added to a'_u and 5 log C_i to b'_i,
        see `DubX`.
    """

    alpha: float | None = None
    solver: str | None = None
    imputation: str = "tanh"
    weights_from: int | None = None
    meta_every: int = 4
    exposure_power: float | tuple[float, float] = 0.0

    name = "autodebias"
    folds_in = False  # the weights of a user's pairs are learned
    TERMS = "c"
    SETTINGS = {("mf", "exact"): EXACT, ("mf", "sampled"): SAMPLED, ("ncf", "sampled"): SAMPLED}
    CHECKS = {
        "alpha": _check.reals(),
        "solver": _check.choices(("exact", "sampled")),
        "imputation": _check.choices(meta.ACTIVATIONS),
        "weights_from": _check.wholes(low=0),
        "meta_every": _check.wholes(),
        "exposure_power": exposure.checked_powers,
    }

    def chosen_solver(self) -> str:
        return self.solver or ("exact" if self.backbone == "mf" and self.loss in (None, "squared") else "sampled")

    def check(self) -> None:
        super().check()
        if self.weighting == "theory":
            raise InputError("weighting='theory' means nothing for learned weights: use weighting='sample'")
        if self.solver == "exact" and self.loss != "squared":
            raise InputError("solver='exact' needs backbone='mf' and loss='squared': set them, or solver='sampled'")
        if not self.trained_loss().affine:
            able = ", ".join(name for name, loss in LOSSES.items() if loss.affine)
            raise InputError(
                f"loss={self.loss!r}: autodebias merges targets, which needs a loss affine in them: {able}"
            )

    def reads_S_t(self) -> bool:
        return True  # by its look-ahead

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        return (self._exact(fit) if self.solver == "exact" else SampledAutoDebias(fit, self).train()), None

    def _exact(self, fit: Fit) -> Weights:
        data, shape = fit.data, (fit.data.n_users, fit.data.n_items)
        alpha, first = required(self.alpha), required(self.weights_from)
        targets, negative = self.target_rule(), -1.0 if self.imputation == "tanh" else 0.0
        S_c, S_t = (_labelled(pairs, negative) for pairs in (targets.of(data, "S_c"), randomized(data, targets)))
        weight = S_c[3].sum(dtype=np.float64) + alpha * shape[0] * shape[1]
        lam, positive = self.exact_lam(weight, shape, 1 - negative), data.triplets("S_c").labels > 0
        base = meta.make_base(shape, S_c, alpha, lam, self.imputation, positive)
        phi = meta.init_phi(*shape, self.seed, exposure.row_weights(data, self.exposure_power))
        solver = fit.device.meta_solver(base, phi, self.random_rows(fit), S_t, first)
        stopping = EarlyStopping(required(self.patience), first=first + 1, alive=ALIVE)
        M_c = fit.descend(self.stage("refine", **NO_DECAY), solver, stopping)
        return M_c if negative == 0.0 else MF.from_extended(rows_of(M_c).affine(0.5, 0.0), b0=0.5)


def _labelled(triplets: Triplets, negative: float) -> tuple[np.ndarray, ...]:
    """(users, items, labels, weights) with targets in [0, 1] spread over [negative, 1]."""
    labels = np.float32(1.0 - negative) * triplets.labels + np.float32(negative)
    return triplets.users, triplets.items, labels, triplets.weights
