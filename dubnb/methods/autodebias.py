"""AutoDebias: learned weights and imputations, by a look-ahead on the randomized log (Chen et al., 2021)."""

from dataclasses import dataclass

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.methods._method import Method
from dubnb.objective import autodebias as meta


@dataclass(kw_only=True, repr=False, eq=False)
class AutoDebias(Method):
    """c with learned weights w1 + alpha x imputed labels m on all pairs with learned weights w2; phi learned on S_t.

    alpha: weight of the imputed pairs; imputation: "tanh" (labels -1 and 1) or "sigmoid" (labels 0 and 1; halve lam);
    lam: absolute decay per row, which must rise with alpha; weights_from: the epoch from which w1 and w2 move.
    """

    loss: str = "squared"
    alpha: float = 0.1
    imputation: str = "tanh"
    weights_from: int = 20

    name = "autodebias"
    TERMS = "c"
    DEFAULTS = {"mf": {"rank": 50, "lam": 40.0, "epochs": 500, "patience": 70}}

    def _own_defaults(self):
        if self.backbone not in self.DEFAULTS or self.loss != "squared":
            raise InputError("autodebias needs backbone='mf' and loss='squared'")
        return super()._own_defaults()

    def _check_params(self, params):
        super()._check_params(params)
        _check.choice("imputation", params["imputation"], meta.ACTIVATIONS)
        _check.whole("weights_from", params["weights_from"], low=0)

    def recipe(self, run):
        p, data = run.params, run.data
        negative = -1.0 if p.imputation == "tanh" else 0.0
        S_c, S_t = (_labelled(data.triplets(part), negative) for part in ("S_c", "S_t"))
        base = meta.make_base((data.n_users, data.n_items), S_c, p.alpha, p.lam, p.imputation)
        phi = meta.init_phi(data.n_users, data.n_items, p.seed)
        adam = meta.init_adam(phi)

        def epoch(P, Q, number):
            return meta.epoch(base, phi, adam, P, Q, S_t, number, weights_from=p.weights_from)[0]

        M_c = run.descend(epoch)
        return _to_zero_one(M_c, negative), None


def _labelled(triplets, negative):
    """(users, items, labels) with labels `negative` and 1."""
    return triplets.users, triplets.items, np.where(triplets.labels > 0, 1.0, negative).astype(np.float32)


def _to_zero_one(M_c, negative):
    """The same ranking with scores on the scale of labels 0 and 1."""
    if negative == 0.0:
        return M_c
    P, Q = M_c.extended()
    P[:, :-1] *= np.float32(0.5)
    Q[:, -1] *= np.float32(0.5)
    return type(M_c).from_extended(P, Q, b0=0.5)
