"""What every method shares: its parameters, fit, scores, recommendations, files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from dubnb import _check, losses, metrics
from dubnb._check import InputError, NotFittedError
from dubnb._jit import one_blas_thread
from dubnb.backbones import BACKBONES, Scorer, Weights
from dubnb.calibration import Calibration
from dubnb.data.partition import Partition
from dubnb.engine import checked_device, chosen_device, engine_of
from dubnb.evaluation import evaluate
from dubnb.methods import _model_file
from dubnb.methods._params import Parameters
from dubnb.methods._recommend import recommend
from dubnb.methods._settings import batch_of_S_c
from dubnb.objective.targets import KINDS, Targets
from dubnb.objective.terms import Term
from dubnb.train import MONITORS, Fit, Log, Stage, Store

if TYPE_CHECKING:
    import pandas as pd

    from dubnb.data.ids import Ids
    from dubnb.data.pattern import Pattern

LARGEST_SEED = 2**53  # beyond it two seeds may be the same float, and so the same trial of a sweep
WEIGHTINGS = ("sample", "theory")


@dataclass(kw_only=True, repr=False, eq=False)
class Method(Parameters):
    """A recipe of bound terms. Parameters that are None take the method's own default for its backbone and solver.

    Parameters
    ----------
    backbone : {"mf", "ncf"}
        The model: matrix factorisation or neural collaborative filtering.
    loss : {"bce", "mse", "squared", "mae"}
        The loss of a raw score against a target.
    rank : int
        Factors per user and item.
    lam : float
        L2 regularisation: lam/2 |row|^2 is added to the objective, once for each row that a mini-batch touches. (With
        solver="exact" the objective is a sum over pairs, not a mean over a batch, so that lam is larger.)
    lr : float
        Adam's learning rate.
    batch_size : int
        Samples per mini-batch: as many as give some 300 steps an epoch, at most 1,024.
    epochs, patience : int
        At most so many epochs, and stop after so many without a better metric on S_va.
    terms : str
        The letters of the bound terms to keep.
    monitor : {"auc", "ndcg"}
        The metric on S_va that stops training.
    weighting : {"sample", "theory"}
        Each sample of a, c and e weighs 1 and of d gamma, or all weigh as in the theorems.
    hidden : tuple of int
        Widths of ncf's hidden layers, (2 rank,) by default.
    activation : {"tanh", "relu", "sigmoid"}
        Between ncf's layers.
    targets : {"binary", "graded"}
        What an observed pair is trained on: its 0/1 label, or 1 for a positive and its grade for a negative.
    negative : float
        With binary targets: the target of an observed negative of S_c, 0 in the paper.
    target_slope : float
        A pair of S_c weighs 1 - slope/2 + slope x its target; at 0, as in the paper, all weigh 1.
    calibrate : bool
        Whether `predict` gives probabilities calibrated on S_va (see `dubnb.calibration`), or the loss's own.
    seed : int
        Of everything random in training, never of the data.
    device : {"cpu", "cuda", "auto"}
        Where models are trained; "auto" takes a GPU where there is one. Never run on a GPU by us, see docs/cuda.md.
    """

    backbone: str = "mf"
    loss: str | None = None
    rank: int | None = None
    lam: float | None = None
    lr: float = 1e-3
    batch_size: int | None = None
    epochs: int | None = None
    patience: int | None = None
    terms: str | None = None
    monitor: str = "auc"
    weighting: str = "sample"
    hidden: tuple[int, ...] | None = None
    activation: str = "tanh"
    targets: str | None = None
    negative: float | None = None
    target_slope: float | None = None
    calibrate: bool = True
    seed: int = 0
    device: str = "cpu"

    TERMS: ClassVar[str]  # letters of the recipe's terms
    COMMON = {
        "batch_size": batch_of_S_c,  # first: other rules read it
        "loss": "bce",
        "epochs": 200,
        "patience": 5,
        "targets": "binary",
        "negative": 0.0,
        "target_slope": 0.0,
    }
    CHECKS = {
        "backbone": _check.choices(tuple(BACKBONES)),
        "loss": _check.choices(losses.TRAINABLE),
        "rank": _check.wholes(),
        "lam": _check.reals(),
        "lr": _check.reals(open_low=True),
        "batch_size": _check.wholes(),
        "epochs": _check.wholes(),
        "patience": _check.wholes(),
        "terms": lambda name, value: value,  # see `check`
        "monitor": _check.choices(MONITORS),
        "weighting": _check.choices(WEIGHTINGS),
        "targets": _check.choices(KINDS),
        "negative": _check.reals(high=1.0),
        "target_slope": _check.reals(high=2.0),
        "calibrate": _check.flag,
        "seed": _check.wholes(low=0, high=LARGEST_SEED),
        "device": checked_device,
        **{name: check for backbone in BACKBONES.values() for name, check in backbone.OPTIONS.items()},
    }

    def defaults(self) -> dict[str, Any]:
        return {"terms": self.TERMS, **super().defaults()}

    def check(self) -> None:
        kept = self.terms
        if not isinstance(kept, str) or not kept or len(set(kept)) < len(kept) or not set(kept) <= set(self.TERMS):
            raise InputError(f"terms={kept!r} must be some of the letters {self.TERMS!r}, the terms of {self.name}")
        declared = type(self).__dataclass_fields__
        for backbone, weights in BACKBONES.items():
            for name in weights.OPTIONS.keys() - BACKBONES[self.backbone].OPTIONS.keys():
                if getattr(self, name) != declared[name].default:
                    given = f"{name}={getattr(self, name)!r}"
                    raise InputError(f"{given} is for backbone={backbone!r}: leave it out for {self.backbone!r}")
        if self.weighting == "theory" and self.chosen_solver() != "sampled":
            raise InputError("weighting='theory' is for sampled terms, not for this solver: use weighting='sample'")

    # -- fit

    def fit(
        self,
        data: Partition,
        *,
        quiet: bool = True,
        callback: Callable[[dict[str, Any]], None] | None = None,
        store: Store | None = None,
        threads: int = 1,
        watch: Callable[[str, int, Scorer], None] | None = None,
    ) -> Self:
        """Train on a Partition.

        Parameters
        ----------
        data : Partition
            The logs.
        quiet : bool
            Whether to show no progress.
        callback : callable, optional
            Gets each epoch's row of `history_`.
        store : Store, optional
            Lets many fits share their pre-trained models.
        threads : int
            For the mini-batch training of one model with backbone "mf" (not joint, exact or full-batch): more than
            one, up to 16, pay at large rank or batch_size only, and do not change the result.
        watch : callable, optional
            Sees (stage, epoch, scorer) after every epoch: what is in training, to be scored but not kept.
        """
        _check_data(data)
        settled = self.resolve(data)
        threads = _check.whole("threads", threads)
        if threads > 1 and settled.backbone != "mf":
            warnings.warn(f"threads={threads} is for backbone='mf': {settled.backbone} takes 1", stacklevel=2)
            threads = 1
        settled.device = chosen_device(settled.device, quiet)
        engine = engine_of(settled.device, quiet)
        fit = Fit(data, settled.monitor, Log(quiet, callback), store, threads, watch, engine)
        with one_blas_thread():  # same bytes on any number of cores, and small products are faster so
            self.weights_, self.teacher_ = settled.recipe(fit)
            settled._check_personal(fit.validation.personal(self.weights_))
            self.calibration_ = _calibration(self.weights_, data) if settled.calibrate else None
        self.params_: dict[str, Any] = settled.get_params()
        self.history_: pd.DataFrame = fit.log.frame()
        self.user_ids_: Ids = data.user_ids
        self.item_ids_: Ids = data.item_ids
        self.seen_: Pattern = data.pattern("S_c")
        self.data_ = {"name": data.name, "fingerprint": data.fingerprint}
        return self

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        """The method itself, with resolved parameters: returns (M_c's weights, M_t's weights or None)."""
        raise NotImplementedError

    def pretraining(self) -> tuple[Stage, ...]:
        """The stages, with resolved parameters, whose results a store may keep."""
        return ()

    def stage(self, name: str, lam: float, **other: Any) -> Stage:
        """A stage of training with these (resolved) parameters; `other` replaces some of them."""
        options = tuple((option, getattr(self, option)) for option in BACKBONES[self.backbone].OPTIONS)
        special = {"name": name, "options": options, "lam": lam, "targets": self.target_rule()}
        own = {f: getattr(self, f) for f in Stage.__dataclass_fields__ if f not in special}
        return Stage(**(own | special | other))

    def target_rule(self) -> Targets:
        """What observed pairs are trained on."""
        return Targets(self.targets, self.negative, self.target_slope)

    def kept(self, terms: Sequence[Term]) -> list[Term]:
        """Those of `terms` whose letter the `terms` parameter lists."""
        return [term for term in terms if term.name in self.terms]

    def regularisation(self) -> str:
        """The parameter that holds the factors down, and its value, for messages."""
        return f"lam (now {self.lam:g})"

    def _check_personal(self, personal: float) -> None:
        """A model whose factors have vanished ranks by biases alone, the same for every user: that must be said."""
        if personal < metrics.SAME_FOR_ALL:
            instead = ", or take backbone='mf'" if self.backbone != "mf" else ""
            warnings.warn(
                f"the model ranks items alike for every user: {100 * personal:.2g} % of the scores' variance is a "
                f"user's own; lower {self.regularisation()}{instead}",
                stacklevel=3,
            )

    # -- what a fitted model can do

    def _fitted(self) -> Weights:
        if not hasattr(self, "weights_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit(data) first")
        return self.weights_

    def decision_function(self, users: Any, items: Any) -> np.ndarray:
        """Raw scores of pairs of original ids, which broadcast: what ranking and AUC use."""
        weights = self._fitted()
        try:
            users, items = np.broadcast_arrays(users, items)
        except ValueError:
            shapes = f"{np.shape(users)} and items of shape {np.shape(items)}"
            raise InputError(f"users of shape {shapes} do not pair up: pass arrays that broadcast") from None
        rows = self.user_ids_.rows(users.ravel(), "user"), self.item_ids_.rows(items.ravel(), "item")
        return weights.score_pairs(*rows).reshape(users.shape)

    def predict(self, users: Any, items: Any) -> np.ndarray:
        """Probabilities of a positive label under the uniform policy; see `probabilities`."""
        return self.probabilities(self.decision_function(users, items))

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """What raw scores say: calibrated on S_va, or with calibrate=False the loss's own link; for losses without a
        link, scores clipped to [0, 1]."""
        if self.calibration_ is not None:
            return self.calibration_(scores).astype(np.float32)
        if losses.LOSSES[self.params_["loss"]].link:
            return losses.predict(np.array(scores, np.float32).ravel(), True).reshape(np.shape(scores))
        return np.clip(scores, 0.0, 1.0)

    def recommend(self, users: Any, k: int = 10, exclude: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """The k best items for each user and their raw scores: two arrays of shape (users, k), best first.

        Equal scores go to the item that comes first in id order. Where a user is unknown or has fewer than k items
        left, the rest of the row is padded: score nan and item -1 (or "" where ids are strings); unknown users are
        warned of.

        Parameters
        ----------
        users : id or list of ids
            For whom.
        k : int
            Items per user.
        exclude : sparse matrix or False, optional
            Pairs not to recommend; by default what the users have in S_c; False for none.
        """
        weights = self._fitted()
        return recommend(weights, self.user_ids_, self.item_ids_, self.seen_, users, _check.whole("k", k), exclude)

    def evaluate(
        self, data: Partition, protocol: str = "full-ranking", ks: Sequence[int] = (5, 10), **options: Any
    ) -> dict[str, Any]:
        """Metrics on S_te under one protocol; see `dubnb.evaluate`."""
        weights = self._fitted()
        _check_data(data)
        own, other = (self.user_ids_, self.item_ids_), (data.user_ids, data.item_ids)
        if not all(np.array_equal(mine.values, theirs.values) for mine, theirs in zip(own, other, strict=True)):
            raise InputError(
                f"the model knows {len(own[0])} users x {len(own[1])} items but {data.name} has {data.n_users} x "
                f"{data.n_items}, or other ids: evaluate on data with the same users and items"
            )
        if data.fingerprint != self.data_["fingerprint"]:
            warnings.warn(
                f"the model was trained on other data ({self.data_['name']}) than {data.name}: another seed or split?",
                stacklevel=2,
            )
        return evaluate(weights, data, protocol, ks, **options)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the model to an .npz file (no pickle inside)."""
        self._fitted()
        _model_file.save(self, path, overwrite)


def _calibration(weights: Weights, data: Partition) -> Calibration | None:
    """Fitted on S_va, which no model learns from: on S_t, which most have seen, probabilities come out too sure (off by
    .03 to .13 on average over yahoo-like's pairs, against .005 to .02). Without both labels in S_va there is none."""
    S_va = data.triplets("S_va")
    if not 0 < S_va.labels.sum() < len(S_va.labels):
        return None
    return Calibration.fit(weights.score_pairs(S_va.users, S_va.items), S_va.labels, S_va.weights)


def _check_data(data: Any) -> None:
    if not isinstance(data, Partition):
        raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset returns")
