"""AutoDebias: learned weights and imputations, by a look-ahead on the randomized log (Chen et al., 2021)."""

from dataclasses import dataclass

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.methods._autodebias_sampled import SampledAutoDebias
from dubnb.methods._method import PAPER_RANKS, RANK_AND_LAM, Method, check_sample_weighting
from dubnb.objective import autodebias as meta
from dubnb.objective import exposure
from dubnb.objective.terms import randomized
from dubnb.train import EarlyStopping

# The share of the ranking that is a user's own from which the model counts as trained. Until the learned weights have
# grown, the decay holds the factors down: for 20 to 190 epochs the ranking is that of the biases, which passes a better
# one by chance in epoch 2 or 3.
ALIVE = 0.01


@dataclass(kw_only=True, repr=False, eq=False)
class AutoDebias(Method):
    """c with learned weights w1 + alpha x imputed labels m on all pairs with learned weights w2; phi learned on S_t.

    loss: "squared" by default for mf, "bce" for ncf; alpha: weight of the imputed pairs, .1 or (sampled) .01; solver:
    "exact" (all pairs in closed form: mf, squared) or "sampled", each the default where it applies; imputation
    (exact): "tanh" with labels -1 and 1, or "sigmoid" with labels 0 and 1 (then halve lam); lam: exact, the absolute
    decay per row, which must rise with alpha; sampled, as in other methods; weights_from: the epoch from which w1 and
    w2 move; exposure_power: p with which w2 starts from weights by activity and popularity, 5 log A_u added to a'_u and
    5 log C_i to b'_i, see `DubX`.
    """

    loss: str | None = None
    alpha: float | None = None
    solver: str | None = None
    imputation: str = "tanh"
    weights_from: int | None = None
    exposure_power: float | tuple = 0.0

    name = "autodebias"
    TERMS = "c"
    DEFAULTS = {
        "exact": {
            "rank": 50,
            "alpha": 0.1,
            "lam": 40.0,
            "epochs": 500,
            "patience": 70,
            "weights_from": 20,
            "loss": "squared",
        },
        "sampled": {"rank": 50, "alpha": 0.01, "lam": 1e-5, "weights_from": 1, "loss": "bce"},
    }
    GRIDS = {  # of the exact solver: lam is an absolute decay per row, so the paper's range of lambda means nothing
        "paper": {"rank": PAPER_RANKS, "lam": (10.0, 20.0, 40.0, 80.0)},
        "wide": {"rank": (10, 20, 50, 100), "lam": (10.0, 20.0, 40.0, 80.0), "alpha": (0.05, 0.1, 0.2)},
    }
    SAMPLED_GRIDS = {"paper": RANK_AND_LAM["paper"], "wide": RANK_AND_LAM["wide"] | {"alpha": (1e-3, 1e-2, 1e-1)}}

    def grid(self, name):
        return (self.GRIDS if self.resolved_params()["solver"] == "exact" else self.SAMPLED_GRIDS)[name]

    def _own_defaults(self):
        exact = self.backbone == "mf" and self.loss in (None, "squared")
        solver = self.solver or ("exact" if exact else "sampled")
        return self.DEFAULTS[_check.choice("solver", solver, tuple(self.DEFAULTS))] | {"solver": solver}

    def _check_params(self, params):
        super()._check_params(params)
        check_sample_weighting(params)
        _check.choice("imputation", params["imputation"], meta.ACTIVATIONS)
        _check.whole("weights_from", params["weights_from"], low=0)
        exposure.powers(params["exposure_power"])
        if params["solver"] == "exact" and (params["backbone"], params["loss"]) != ("mf", "squared"):
            raise InputError("solver='exact' needs backbone='mf' and loss='squared': set them, or solver='sampled'")
        if params["loss"] == "mae":
            raise InputError(
                "loss='mae': autodebias merges targets, which needs a loss affine in them; use bce, mse, squared"
            )

    def recipe(self, run):
        return (self._exact(run) if run.params.solver == "exact" else SampledAutoDebias(run).train()), None

    def _exact(self, run):
        p, data = run.params, run.data
        negative = -1.0 if p.imputation == "tanh" else 0.0
        S_c, S_t = (_labelled(pairs, negative) for pairs in (data.triplets("S_c"), randomized(data)))
        base = meta.make_base((data.n_users, data.n_items), S_c, p.alpha, p.lam, p.imputation)
        phi = meta.init_phi(data.n_users, data.n_items, p.seed, exposure.row_weights(data, p.exposure_power))
        adam = meta.init_adam(phi)

        def epoch(P, Q, number):
            return meta.epoch(base, phi, adam, P, Q, S_t, number, weights_from=p.weights_from)[0]

        stopping = EarlyStopping(p.patience, first=p.weights_from + 1, alive=ALIVE)
        return _to_zero_one(run.descend(epoch, stopping=stopping), negative)


def _labelled(triplets, negative):
    """(users, items, labels, weights) with labels `negative` and 1."""
    labels = np.where(triplets.labels > 0, 1.0, negative).astype(np.float32)
    return triplets.users, triplets.items, labels, triplets.weights


def _to_zero_one(M_c, negative):
    """The same ranking with scores on the scale of labels 0 and 1."""
    if negative == 0.0:
        return M_c
    P, Q = M_c.extended()
    P[:, :-1] *= np.float32(0.5)
    Q[:, -1] *= np.float32(0.5)
    return type(M_c).from_extended(P, Q, b0=0.5)
