"""What every method shares: its parameters, fit, scores, recommendations, files."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from dubnb import _check, _memory, losses, metrics
from dubnb._check import InputError, NotFittedError
from dubnb._jit import one_blas_thread
from dubnb.backbones import BACKBONES, Scorer, Weights
from dubnb.calibration import Calibration
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.device import checked_device, chosen_device, device_named
from dubnb.methods import _again as again
from dubnb.methods import _model_file, _other_log
from dubnb.methods._clicks import check_clicks
from dubnb.methods._fallback import cold_users, with_average
from dubnb.methods._fold_in import row_objective
from dubnb.methods._params import Parameters, required
from dubnb.methods._recommend import had
from dubnb.methods._serving import Serving
from dubnb.methods._settings import batch_of_S_c, negatives_of
from dubnb.objective.targets import KINDS, Targets
from dubnb.objective.terms import Term, term_n
from dubnb.train import MONITORS, Fit, Log, Stage, Store

if TYPE_CHECKING:
    from dubnb.data.ids import Ids
    from dubnb.data.pattern import Pattern

LARGEST_SEED = 2**53  # beyond it two seeds may be the same float, and so the same trial of a sweep
TABLES = 3  # of a model in training: weights and Adam's two moments
WEIGHTINGS = ("sample", "theory")


def _letters(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"{name}={_check.shown(value)} must be some of the letters of a method's terms, such as 'acd'")
    return value


@dataclass(kw_only=True, repr=False, eq=False)
class Method(Parameters, Serving):
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
    monitor : {"auc", "ndcg", "user_auc", "percentile"}
        The metric on S_va that stops training.
    weighting : {"sample", "theory"}
        Each sample of a, c and e weighs 1 and of d gamma, or all weigh as in the theorems.
    hidden : tuple of int
        Widths of ncf's hidden layers, (2 rank,) by default.
    activation : {"tanh", "relu", "sigmoid"}
        Between ncf's layers.
    targets : {"binary", "graded", "rates"}
        What an observed pair is trained on: its 0/1 label; 1 for a positive and its grade for a negative; or the share
        of its impressions that are positive.
    negative : float
        With targets "binary" and "rates": the target of an observed negative of S_c, 0 in the paper. dub-x also takes
        "unobserved" and "auto".
    target_slope : float
        A pair of S_c weighs 1 - slope/2 + slope x its target; at 0, as in the paper, all weigh 1.
    calibrate : bool
        Whether `predict` gives probabilities calibrated on S_va (see `dubnb.calibration`), or the loss's own.
    negatives : int
        Pairs of S_u drawn anew in every epoch for each positive of S_c, with target 0, where S_c is learned from in
        mini-batches and no term d says no already: 4 where S_c holds positives alone, else 0.
    seed : int
        Of everything random in training, never of the data.
    device : {"cpu", "cuda", "auto"}
        Where models are trained; "auto" takes a GPU where there is one. Never run on a GPU by us, see docs/cuda.md.
    """

    backbone: str = "mf"
    loss: str | None = None
    rank: int | None = None
    lam: float | None = None
    lr: float | None = None
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
    negatives: int | None = None
    seed: int = 0
    device: str = "cpu"

    TERMS: ClassVar[str]  # letters of the recipe's terms
    EXTRA_TERMS: ClassVar[str] = ""  # letters that `terms` may list besides
    is_baseline: ClassVar[bool] = False  # baselines are listed apart
    folds_in: ClassVar[bool] = True  # whether a new user's row has the objective of `_fold_in`, with mf
    COMMON = {
        "batch_size": batch_of_S_c,  # first: other rules read it
        "loss": "bce",
        "lr": 1e-3,
        "epochs": 200,
        "patience": 5,
        "targets": "binary",
        "negative": 0.0,
        "target_slope": 0.0,
        "negatives": negatives_of,
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
        "terms": _letters,  # see `check` for which
        "monitor": _check.choices(MONITORS),
        "weighting": _check.choices(WEIGHTINGS),
        "targets": _check.choices(KINDS),
        "negative": _check.reals(high=1.0),
        "target_slope": _check.reals(high=2.0),
        "calibrate": _check.flag,
        "negatives": _check.wholes(low=0),
        "seed": _check.wholes(low=0, high=LARGEST_SEED),
        "device": checked_device,
        **{name: check for backbone in BACKBONES.values() for name, check in backbone.OPTIONS.items()},
    }

    def defaults(self) -> dict[str, Any]:
        return {"terms": self.TERMS, **super().defaults()}

    def check(self) -> None:
        kept = self.terms
        known = "".join(sorted(self.TERMS + self.EXTRA_TERMS))
        if not kept or len(set(kept)) < len(kept) or not set(kept) <= set(known):
            letters = f"some of the letters {known!r}, the terms of {self.name}"
            raise InputError(f"terms={_check.shown(kept)} must be {letters}")
        declared = type(self).__dataclass_fields__
        for backbone, weights in BACKBONES.items():
            for name in weights.OPTIONS.keys() - BACKBONES[self.backbone].OPTIONS.keys():
                if getattr(self, name) != declared[name].default:
                    given = f"{name}={_check.shown(getattr(self, name))}"
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
        start: Method | None = None,
        refit: bool | str = False,
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
            With backbone "mf": 2 lets a background thread draw samples and judge epochs (not in joint training or
            AutoDebias); exact solvers share out row solves over all of them. The result does not change.
        watch : callable, optional
            Sees (stage, epoch, scorer) after every epoch: what is in training, to be scored but not kept.
        start : Method, optional
            For dub-x with mf: last week's dub-x, of the same rank. Row solves begin at its rows, matched by id. What it
            chose on S_va (gamma, exposure_power, grade_spread) is kept unless set. Other fits refuse it.
        refit : {False, True, "all"}
            Whether to train once more, at the settings and for the epochs that S_va chose: with True on S_t and S_va
            together; with "all" on the whole randomized log and on the rows of the biased log that a split by time
            held back, for the model to ship. Calibration and validation metrics are those of the first time. With "all"
            so are the metrics on S_te, which `evaluate` then repeats: see `judged_`.
        """
        refit = again.checked_refit(refit)
        method = self._ready(data, quiet)
        threads = _checked_threads(threads, method.backbone, method.device)
        fit = Fit(data, method.monitor, Log(quiet, callback), store, threads, watch, device_named(method.device, quiet))
        if start is not None:
            method.keep_choices(start)
            fit.start = again.Start(start, method, data)
        with one_blas_thread():  # same bytes on any number of cores, and small products are faster so
            weights, self.teacher_ = method.recipe(fit)
            cold = cold_users(data, method.learns_from())
            self.calibration_ = _calibration(with_average(weights, cold), data) if method.calibrate else None
            if not refit:
                method._check_personal(fit.validation.personal(weights))
            self._keep(method, fit, weights)
        self.lengths_: dict[str, int] | None = fit.lengths
        self.data_ = {"name": data.name, "fingerprint": data.fingerprint}
        self.refit_: dict[str, Any] | None = None
        self.judged_: dict[str, Any] | None = None
        earlier = None if start is None else start.trained_
        self.trained_: np.ndarray | None = _other_log.trained_pairs(data, ("S_t", "S_va"), earlier)
        if refit:
            self._refit(fit, refit)
        return self

    def refitted(
        self,
        data: Partition,
        refit: bool | str = again.ALL,
        *,
        quiet: bool = True,
        callback: Callable[[dict[str, Any]], None] | None = None,
        threads: int = 1,
    ) -> Self:
        """A copy of this model that is trained once more, as `fit(data, refit=...)` would, without the first fit.

        Parameters
        ----------
        data : Partition
            The log that the model was fitted on.
        refit : {True, "all"}
            What to train on, see `fit`.
        quiet, callback, threads
            As in `fit`.
        """
        self._fitted()
        refit = again.checked_refit(refit)
        _check_data(data)
        if not refit or self.refit_ is not None or self.lengths_ is None:
            why = "refit=False" if not refit else "refitted already" if self.refit_ else "from a file that lacks epochs"
            raise InputError(f"this {self.name} cannot be refitted ({why}): call fit(data, refit='all')")
        if data.fingerprint != self.data_["fingerprint"]:
            raise InputError(
                f"the model was fitted on other data ({self.data_['name']}) than {data.name}: fit it first"
            )
        model = copy.copy(self)
        device = self.params_["device"]
        threads = _checked_threads(threads, self.params_["backbone"], device)
        log = Log(quiet, callback)
        fit = Fit(data, self.params_["monitor"], log, None, threads, device=device_named(device, quiet))
        model._refit(fit, refit)
        return model

    def _refit(self, fit: Fit, refit: bool | str) -> None:
        """Train once more on more of the log of `fit`; what S_te says of the model is kept first."""
        data, rows = fit.data, self.history_rows_
        method = type(self)(**self.params_).resolve(data)
        if refit == again.ALL:
            self.judged_ = self.evaluate(data) if len(data.triplets("S_te").users) else {}
        with one_blas_thread():
            fit, weights, self.teacher_ = again.refit(method, fit, required(self.lengths_), refit == again.ALL)
            method._check_personal(fit.validation.personal(weights))
            self._keep(method, fit, weights)
        self.history_rows_ = rows + self.history_rows_
        pairs = {part: len(fit.data.triplets(part).users) for part in ("S_c", "S_t")}
        self.refit_ = {"on": again.ALL if refit == again.ALL else "S_va", "pairs": pairs}
        if refit == again.ALL:
            self.trained_ = _other_log.trained_pairs(data, RANDOMIZED, self.trained_)

    def _ready(self, data: Partition, quiet: bool) -> Self:
        """The resolved method, once it is known that it can learn from `data` here."""
        _check_data(data)
        method = self.resolve(data)
        check_clicks(method, data)
        _check_both_labels(method, data)
        method._plan_size(data)
        method.device = chosen_device(method.device, quiet)
        return method

    def _plan_size(self, data: Partition) -> None:
        """Refuse what cannot fit: weights and their two moments, at least."""
        options = {option: getattr(self, option) for option in BACKBONES[self.backbone].OPTIONS}
        size = BACKBONES[self.backbone].size((data.n_users, data.n_items), required(self.rank), **options)
        sizes = {"rank": self.rank, **({"hidden": self.hidden} if self.hidden else {})}
        given = ", ".join(f"{name}={_check.shown(value)}" for name, value in sizes.items())
        what = f"{given} on {data.n_users:,} users x {data.n_items:,} items"
        _memory.plan(what, TABLES * size, f"lower {' or '.join(sizes)}")

    def _keep(self, method: Self, fit: Fit, weights: Weights) -> None:
        """What a fit leaves behind, from the (resolved) method and what it ended with."""
        data = fit.data
        self.params_: dict[str, Any] = method.get_params()
        self.history_rows_: list[dict[str, Any]] = [dict(row) for row in fit.log.rows]
        self.cold_ = cold_users(data, method.learns_from())
        self.weights_ = with_average(weights, self.cold_)
        self.row_objective_ = row_objective(method, fit, weights, self.teacher_, self.cold_)
        self.user_ids_: Ids = data.user_ids
        self.item_ids_: Ids = data.item_ids
        self.seen_: Pattern = had(data)

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        """The method itself, with resolved parameters: returns (M_c's weights, M_t's weights or None)."""
        raise NotImplementedError(f"{type(self).__name__} has no recipe: write recipe(fit)")

    def keep_choices(self, model: Any) -> None:
        """Take over what an earlier model chose on S_va; refused where an earlier model saves no epochs."""
        raise InputError(
            f"start= is for dub-x with backbone='mf': {self.name} on {self.backbone} would save no epochs; leave it out"
        )

    def pretraining(self) -> tuple[Stage, ...]:
        """The stages, with resolved parameters, whose results a store may keep."""
        return ()

    def stage(self, name: str, **other: Any) -> Stage:
        """A stage of training with these (resolved) parameters; `other` replaces some of them, such as lam."""
        options = tuple((option, getattr(self, option)) for option in BACKBONES[self.backbone].OPTIONS)
        special = {"name": name, "options": options, "targets": self.target_rule(), "with_a": False}
        own = {f: getattr(self, f) for f in Stage.__dataclass_fields__ if f not in special}
        return Stage(**(own | special | other))

    def trained_loss(self) -> losses.Loss:
        """The loss of the `loss` parameter."""
        return losses.LOSSES[required(self.loss)]

    def target_rule(self) -> Targets:
        """What observed pairs are trained on."""
        return Targets(required(self.targets), required(self.negative), required(self.target_slope))

    def keeps(self, letter: str) -> bool:
        """Whether the `terms` parameter lists a term."""
        return letter in required(self.terms)

    def learns_from(self) -> tuple[str, ...]:
        """The sets whose pairs teach M_c about their users: of others it knows nothing."""
        return tuple(part for part, letters in (("S_c", "cd"), ("S_t", "ae")) if any(map(self.keeps, letters)))

    def reads_S_t(self) -> bool:
        """Whether the labels of S_t shape the model: by a term of its own, or by the teacher of term d."""
        return any(map(self.keeps, "abde"))

    def _all_terms(self, fit: Fit, M_t: Weights | None) -> list[Term]:
        """The terms that a row of the exact objective, or of a new user, has beside its own pairs."""
        return [term_n(fit.data, self.negatives)] if self.negatives and self.keeps("c") else []

    def kept(self, terms: Sequence[Term]) -> list[Term]:
        """Those of `terms` whose letter the `terms` parameter lists."""
        return [term for term in terms if self.keeps(term.name)]

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
        """What raw scores say: calibrated on S_va, or with calibrate=False `uncalibrated`."""
        return self.uncalibrated(scores) if self.calibration_ is None else self.calibration_(scores).astype(np.float32)

    def uncalibrated(self, scores: np.ndarray) -> np.ndarray:
        """What raw scores say by the loss's own link; for losses without a link, scores clipped to [0, 1]."""
        if losses.LOSSES[self.params_["loss"]].link:
            return losses.predict(np.array(scores, np.float32).ravel(), True).reshape(np.shape(scores))
        return np.clip(scores, 0.0, 1.0)

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


def _checked_threads(threads: int, backbone: str, device: str) -> int:
    threads = _check.whole("threads", threads)
    if device != "cpu":
        return 1  # a GPU has threads of its own
    if threads > 1 and backbone != "mf":
        warnings.warn(f"threads={threads} is for backbone='mf': {backbone} takes 1", stacklevel=3)
        return 1
    return threads


def _check_both_labels(method: Method, data: Partition) -> None:
    """Refuse a randomized log of one label for a method that learns from it."""
    if not method.reads_S_t() or not len(data.triplets("S_t").labels):
        return
    labels = np.concatenate([data.triplets(part).labels for part in ("S_t", "S_va")])
    if 0 < np.count_nonzero(labels) < len(labels):
        return
    missing = "positive" if not labels.any() else "negative"
    raise InputError(
        f"no {missing} among the {len(labels):,} randomized pairs of S_t and S_va, and {method.name} learns from them: "
        "give the random traffic with what was shown and not liked, give more of it, or take base"
    )


def _check_data(data: Any) -> None:
    if not isinstance(data, Partition):
        raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset returns")
