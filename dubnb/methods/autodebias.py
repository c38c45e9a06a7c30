"""AutoDebias: learned weights and imputed labels, tuned on the randomized log (Chen et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import MF, Weights
from dubnb.backbones.mf import Stream, rows_of
from dubnb.data.partition import Triplets
from dubnb.data.pattern import UnobservedPairs
from dubnb.losses import LOSSES
from dubnb.methods._exact import NO_DECAY, ExactMethod, unless_lam
from dubnb.methods._params import PAPER_RANKS, PAPER_STRENGTHS, WIDE_RANKS, Settings, Times, lam_of_S_c, required
from dubnb.objective import autodebias as meta
from dubnb.objective.autodebias import SampledProblem
from dubnb.objective.coupled import Cycle
from dubnb.objective.terms import exposure_weights, randomized, term_e1
from dubnb.train import EarlyStopping, EpochLoop, Fit

# Early stopping starts at this share of scores that differ between users. Until the learned weights have grown, for 20
# to 190 epochs, the decay keeps the factors small and biases determine the ranking, which can be better by chance in
# epoch 2 or 3.
ALIVE = 0.01
# Adam's (lr, wd) on phi, for a step before every batch. There are many more steps than with full batches, so they are
# smaller; the gradients of a batch's mean are so small that a coupled decay would dominate them.
RATES = {name: (1e-2, 0.0) if name == "mu" else (1e-3, 0.0) for name in meta.Phi._fields}
CUTOFFS = (0.045, 0.09, 0.185, 0.37)
EXACT = Settings(  # cutoff replaces lam, so the paper's range of lambda does not apply
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
class AutoDebias(ExactMethod):
    """Learned weights and imputed labels, tuned on the randomized log.

    Each pair of the biased log gets a learned weight, and every pair an imputed label. Both are adjusted until the
    model predicts the randomized log well (Chen et al., 2021). Use it to reproduce the paper. It is the slowest method.

    Parameters
    ----------
    alpha : float
        Weight of the imputed pairs.
    solver : {"exact", "sampled"}
        "exact": all pairs in closed form (mf, squared), the default where it applies. "sampled": mini-batches. With
        "exact", a given lam must grow with alpha.
    imputation : {"tanh", "sigmoid"}
        With solver="exact": labels are -1 and 1, or 0 and 1 (then halve lam).
    weights_from : int
        The epoch from which w1 and w2 change.
    meta_every : int
        With solver="sampled": batches between two look-aheads. The steps of phi grow by the same factor.
    exposure_power : float or (float, float)
        Power p with which w2 starts from weights by activity and popularity: 5 log A_u is added to a'_u and 5 log C_i
        to b'_i, see `DubX`.

    Examples
    --------
    >>> import dubnb
    >>> data = dubnb.load_dataset("simulated", seed=0)
    >>> model = dubnb.AutoDebias(rank=8, epochs=30).fit(data)
    >>> auc = model.evaluate(data)["auc"]

    Notes
    -----
    The objective is c with learned weights w1, plus alpha times the loss against imputed labels m on all pairs with
    learned weights w2. phi, the parameters of w1, w2 and m, is learned by a look-ahead: a step of theta under phi is
    judged on S_t. The loss is "squared" by default for mf, "bce" for ncf.
    """

    alpha: float | None = None
    solver: str | None = None
    imputation: str = "tanh"
    weights_from: int | None = None
    meta_every: int = 4
    exposure_power: float | tuple[float, float] = 0.0

    name = "autodebias"
    solves_rows = False
    folds_in = False  # the weights of a user's pairs are learned
    TERMS = "c"
    SETTINGS = {("mf", "exact"): EXACT, ("mf", "sampled"): SAMPLED, ("ncf", "sampled"): SAMPLED}
    CHECKS = {
        "alpha": _check.reals(),
        "solver": _check.choices(("exact", "sampled")),
        "imputation": _check.choices(meta.ACTIVATIONS),
        "weights_from": _check.wholes(low=0),
        "meta_every": _check.wholes(),
        "exposure_power": _check.powers,
    }

    def chosen_solver(self) -> str:
        return self.solver or ("exact" if self.backbone == "mf" and self.loss in (None, "squared") else "sampled")

    def check(self) -> None:
        super().check()
        if self.weighting == "theory":
            raise InputError("weighting='theory' does not apply to learned weights: use weighting='sample'")
        if self.solver == "exact" and self.loss != "squared":
            raise InputError("solver='exact' needs backbone='mf' and loss='squared': set them, or solver='sampled'")
        if not self.trained_loss().affine:
            able = ", ".join(name for name, loss in LOSSES.items() if loss.affine)
            raise InputError(
                f"loss={self.loss!r}: autodebias merges targets, which needs a loss that is affine in them: {able}"
            )

    def reads_S_t(self) -> bool:
        return True  # through its look-ahead

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        return (self._exact(fit) if self.solver == "exact" else self._sampled(fit)), None

    def _sampled(self, fit: Fit) -> Weights:
        """Train in mini-batches; returns the best weights on S_va.

        A look-ahead costs more than twice as much as a batch. Before every fourth batch, with steps four times as
        long, it moves phi as far in an epoch.
        """
        solver = fit.device.sampled_solver(self.sampled_problem(fit))
        return fit.run_epochs(self.stage("refine"), solver.epoch, solver, solver.weights)

    def sampled_problem(self, fit: Fit) -> SampledProblem:
        """What a fit in mini-batches trains on."""
        data, stage, targets = fit.data, self.stage("refine"), self.target_rule()
        S_c, classes = targets.of(data, "S_c"), data.triplets("S_c").labels.astype(np.uint8)
        return SampledProblem(
            fit.new(self.stage("M_c")),
            stage,
            self.trained_loss(),
            Stream(S_c.users, S_c.items, S_c.labels, S_c.weights, classes),
            UnobservedPairs(data.n_users, data.n_items, data.pattern("S_c")),
            Cycle(term_e1(data, targets), stage.batch_size, self.seed, "refine-t"),
            meta.init_phi(data.n_users, data.n_items, self.seed, exposure_weights(data, self.exposure_power)),
            {name: (lr * self.meta_every, wd) for name, (lr, wd) in RATES.items()},
            required(self.alpha),
            self.meta_every,
            required(self.weights_from),
        )

    def _exact(self, fit: Fit) -> Weights:
        data, shape = fit.data, (fit.data.n_users, fit.data.n_items)
        alpha, first = required(self.alpha), required(self.weights_from)
        targets, negative = self.target_rule(), -1.0 if self.imputation == "tanh" else 0.0
        S_c, S_t = (_labelled(pairs, negative) for pairs in (targets.of(data, "S_c"), randomized(data, targets)))
        weight = S_c[3].sum(dtype=np.float64) + alpha * shape[0] * shape[1]
        lam, positive = self.exact_lam(weight, shape, 1 - negative), data.triplets("S_c").labels > 0
        base = meta.make_base(shape, S_c, alpha, lam, self.imputation, positive)
        phi = meta.init_phi(*shape, self.seed, exposure_weights(data, self.exposure_power))
        solver = fit.device.meta_solver(base, phi, self.random_rows(fit), S_t, first)
        stopping = EarlyStopping(required(self.patience), first=first + 1, alive=ALIVE)
        with EpochLoop(fit, self.stage("refine", **NO_DECAY), solver, solver.weights, stopping) as loop:
            for epoch in loop:
                loop.judge({"total": solver.step(epoch)})
        M_c: Weights = loop.best()
        return M_c if negative == 0.0 else MF.from_extended(rows_of(M_c).affine(0.5, 0.0), b0=0.5)


def _labelled(triplets: Triplets, negative: float) -> tuple[np.ndarray, ...]:
    """(users, items, labels, weights) with targets in [0, 1] spread over [negative, 1]."""
    labels = np.float32(1.0 - negative) * triplets.labels + np.float32(negative)
    return triplets.users, triplets.items, labels, triplets.weights
