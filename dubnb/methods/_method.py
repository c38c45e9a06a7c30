"""What every method shares: parameters, fit, scores, recommendations, files."""

import inspect
import warnings
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

from dubnb import _check, losses, metrics
from dubnb._check import InputError, NotFittedError
from dubnb._jit import one_blas_thread
from dubnb.backbones import BACKBONES
from dubnb.backbones.ncf import ACTIVATIONS
from dubnb.data.partition import Partition
from dubnb.objective import terms as bound
from dubnb.train import MONITORS, Log, Validation, descend, train, train_jointly

S_T_BATCH = 128  # batch size where only S_t is trained
# Everything that training M_c on S_c or M_t on S_t reads, beside the data, lam and the batch size.
PRETRAINING_READS = ("backbone", "loss", "rank", "lr", "epochs", "patience", "monitor", "weighting")
PRETRAINING_READS += ("hidden", "activation", "seed", "device")
PAPER_RANKS, PAPER_STRENGTHS = (50, 100, 200), (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # the paper's lambda and gamma
WIDE_RANKS, WIDE_LAMS = (10, 20, 50, 100, 200), (1e-5, 4e-5, 1e-4, 4e-4, 1e-3)
WIDE_GAMMAS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 1.5, 2.0, 4.0)
RANK_AND_LAM = {
    "paper": {"rank": PAPER_RANKS, "lam": PAPER_STRENGTHS},
    "wide": {"rank": WIDE_RANKS, "lam": WIDE_LAMS},
}
RANK_LAM_AND_GAMMA = {
    "paper": RANK_AND_LAM["paper"] | {"gamma": PAPER_STRENGTHS},
    "wide": RANK_AND_LAM["wide"] | {"gamma": WIDE_GAMMAS},
}
COMMON_DEFAULTS = {"batch_size": 1024, "epochs": 200, "patience": 5}


@dataclass(kw_only=True, repr=False, eq=False)
class Method:
    """A recipe of bound terms. Parameters that are None take the method's own default for its backbone.

    backbone: "mf" or "ncf"; loss: "bce", "mse", "squared" or "mae"; rank: factors per user and item; lam: L2
    regularisation of each row a batch touches; lr: Adam's learning rate; batch_size: 1,024, or 128 where only S_t is
    trained; epochs, patience: at most so many epochs (200), and stop after so many (5) without a better metric; terms:
    the letters of the bound terms to keep; monitor: "auc" or "ndcg" on S_va; weighting: "sample" (each sample of a, c,
    e weighs 1, of d gamma) or "theory" (the theorems' weights); hidden, activation: ncf's hidden layer widths, (2
    rank,) by default, and "tanh", "relu" or "sigmoid"; seed: of everything random in training, never of the data;
    device: "cpu".
    """

    backbone: str = "mf"
    loss: str = "bce"
    rank: int | None = None
    lam: float | None = None
    lr: float = 1e-3
    batch_size: int | None = None
    epochs: int | None = None
    patience: int | None = None
    terms: str | None = None
    monitor: str = "auc"
    weighting: str = "sample"
    hidden: tuple | None = None
    activation: str = "tanh"
    seed: int = 0
    device: str = "cpu"

    name: ClassVar[str]
    TERMS: ClassVar[str]  # letters of the recipe's terms
    DEFAULTS: ClassVar[dict]  # backbone -> {parameter: value}
    BACKBONES: ClassVar[tuple] = tuple(BACKBONES)  # those that it runs on
    GRIDS: ClassVar[dict]  # "paper" or "wide" -> {parameter: values}
    PRETRAINING: ClassVar[tuple] = ()  # what else than PRETRAINING_READS its pre-training reads, if sweeps share it

    # -- scikit-learn's conventions

    def get_params(self, deep=True):
        """The constructor's arguments."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def set_params(self, **params):
        """Change some of the constructor's arguments."""
        for parameter, value in params.items():
            _check.choice("parameter", parameter, tuple(self.get_params()))
            setattr(self, parameter, value)
        return self

    def __repr__(self):
        signature = inspect.signature(type(self)).parameters
        changed = [f"{k}={v!r}" for k, v in self.get_params().items() if not _same(v, signature[k].default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def resolved_params(self):
        """All parameters, checked, with the method's defaults for this backbone in place of None."""
        _check.choice("backbone", self.backbone, tuple(BACKBONES))
        params = self.get_params()
        for parameter, value in (COMMON_DEFAULTS | {"terms": self.TERMS} | self._own_defaults()).items():
            if params[parameter] is None:
                params[parameter] = value
        self._check_params(params)
        return params

    def _own_defaults(self):
        return self.DEFAULTS[self.backbone]

    def grid(self, name):
        """The method's own grid "paper" or "wide": {parameter: values}."""
        return self.GRIDS[name]

    def _check_params(self, params):
        _check.choice("loss", params["loss"], losses.TRAINABLE)
        _check.choice("monitor", params["monitor"], MONITORS)
        _check.choice("weighting", params["weighting"], ("sample", "theory"))
        _check.choice("activation", params["activation"], tuple(ACTIVATIONS))
        if params["device"] != "cpu":
            raise InputError(f"device={params['device']!r} is not there yet: use device='cpu'")
        for parameter in ("rank", "batch_size", "epochs", "patience"):
            _check.whole(parameter, params[parameter])
        _check.whole("seed", params["seed"], low=0)
        for parameter in ("lam", "gamma", "alpha", "pretrain_lam", "teacher_lam"):
            if parameter in params:
                _check.real(parameter, params[parameter])
        _check.real("lr", params["lr"], open_low=True)
        if params["hidden"] is not None:
            if params["backbone"] != "ncf":
                raise InputError(
                    f"hidden={params['hidden']!r} is for backbone='ncf': leave it out for {params['backbone']!r}"
                )
            if not isinstance(params["hidden"], tuple | list):
                raise InputError(
                    f"hidden={params['hidden']!r} must list the widths of the hidden layers, such as (64,)"
                )
            for width in params["hidden"]:
                _check.whole("hidden", width)
        kept = params["terms"]
        if not isinstance(kept, str) or not kept or len(set(kept)) < len(kept) or not set(kept) <= set(self.TERMS):
            raise InputError(f"terms={kept!r} must be some of the letters {self.TERMS!r}, the terms of {self.name}")

    # -- fit and what a fitted model can do

    def fit(self, data, *, quiet=True, callback=None, store=None, threads=1):
        """Train on `data` (a Partition). `quiet=False` shows progress; `callback` gets each epoch's row of `history_`.

        `threads`: for the mini-batch training of one model with backbone "mf" (not joint, exact or full-batch); more
        than one, up to 16, pay at large rank or batch_size only, and do not change the result.
        `store`, an object with get(key) -> (weights, history rows) or None and put(key, weights, rows), lets many fits
        share their pre-trained models.
        """
        params = self.resolved_params()
        _check_data(data)
        _check.whole("threads", threads)
        if threads > 1 and params["backbone"] != "mf":
            warnings.warn(f"threads={threads} is for backbone='mf': {params['backbone']} takes 1", stacklevel=2)
            threads = 1
        run = Run(data, params, Log(quiet, callback), store, threads)
        with one_blas_thread():  # same bytes on any number of cores, and small products are faster so
            self.weights_, self.teacher_ = self.recipe(run)
            _check_personal(run.validation.personal(self.weights_), params)
        self.params_ = params
        self.history_ = run.log.frame()
        self.user_ids_, self.item_ids_ = data.user_ids, data.item_ids
        self.seen_ = data.S_c.indptr.astype(np.int64), data.S_c.indices
        self.data_ = {"name": data.name, "fingerprint": data.fingerprint}
        return self

    def recipe(self, run):
        """The method itself: returns (M_c's weights, M_t's weights or None)."""
        raise NotImplementedError

    def _fitted(self):
        if not hasattr(self, "weights_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit(data) first")
        return self.weights_

    def decision_function(self, users, items):
        """Raw scores of pairs of original ids: what ranking and AUC use."""
        weights = self._fitted()
        try:
            users, items = np.broadcast_arrays(users, items)
        except ValueError:
            shapes = f"{np.shape(users)} and items of shape {np.shape(items)}"
            raise InputError(f"users of shape {shapes} do not pair up: pass arrays that broadcast") from None
        rows = self.user_ids_.rows(users.ravel(), "user"), self.item_ids_.rows(items.ravel(), "item")
        return weights.score_pairs(*rows).reshape(users.shape)

    def predict(self, users, items):
        """Probabilities of a positive label; for losses without a link, scores clipped to [0, 1]."""
        scores = self.decision_function(users, items)
        if losses.LOSSES[self.params_["loss"]].link:
            return losses.predict(np.ravel(scores), True).reshape(scores.shape)
        return np.clip(scores, 0.0, 1.0)

    def recommend(self, users, k=10, exclude=None):
        """The k best items for each user and their raw scores: two arrays of shape (users, k), best first.

        `exclude`: pairs not to recommend, as a sparse matrix; by default what the users have in S_c; False for none.
        Equal scores go to the item that comes first in id order. Where a user is unknown or has fewer than k items
        left, the rest of the row is padded: score nan and item -1 (or "" where ids are strings); unknown users are
        warned of.
        """
        from dubnb.methods._recommend import recommend

        return recommend(
            self._fitted(), self.user_ids_, self.item_ids_, self.seen_, users, _check.whole("k", k), exclude
        )

    def evaluate(self, data, protocol="full-ranking", ks=(5, 10), **options):
        """Metrics on S_te under one protocol; see `dubnb.evaluate`."""
        from dubnb.evaluation import evaluate

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

    def save(self, path, overwrite=False):
        """Write the model to an .npz file (no pickle inside)."""
        from dubnb.methods._files import save

        self._fitted()
        save(self, path, overwrite)


def check_sample_weighting(params):
    """For objectives that are sums over pairs, not means over drawn samples: the theorems' weights are not offered."""
    if params["weighting"] == "theory":
        raise InputError("weighting='theory' is for sampled terms, not for this solver: use weighting='sample'")


def _check_data(data):
    if not isinstance(data, Partition):
        raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset returns")


def _check_personal(personal, params):
    """A model whose factors have vanished ranks by biases alone: the same list for every user. That must be said."""
    if personal < metrics.SAME_FOR_ALL:
        instead = ", or take backbone='mf'" if params["backbone"] != "mf" else ""
        warnings.warn(
            f"the model ranks items alike for every user: {100 * personal:.2g} % of the scores' variance is a user's "
            f"own; lower lam (now {params['lam']:g}){instead}",
            stacklevel=3,
        )


def _same(value, default):
    """Whether a parameter has its default; arrays never do."""
    return value is default or (np.ndim(value) == np.ndim(default) == 0 and value == default)


class Run:
    """One fit in progress: data, checked parameters, and the few verbs that recipes are written in."""

    def __init__(self, data, params, log, store=None, threads=1):
        self.data, self.log, self.store, self.threads = data, log, store, threads
        self.params = SimpleNamespace(**params)
        self.loss = losses.LOSSES[params["loss"]]
        self.validation = Validation(data, params["monitor"])

    def new(self, model):
        """Random initial weights; `model` is "c" or "t"."""
        p = self.params
        options = {"hidden": p.hidden, "activation": p.activation} if p.backbone == "ncf" else {}
        return BACKBONES[p.backbone].new(self.data.n_users, self.data.n_items, p.rank, p.seed, model, **options)

    def train(self, start, terms, stage, lam, batch_size=None, **other_settings):
        """Train from `start` on all of `terms`."""
        settings = SimpleNamespace(**(vars(self.params) | other_settings))
        only_reference = [start]
        del start
        return train(
            only_reference.pop(),
            self._weighted(terms),
            stage=stage,
            loss=self.loss,
            settings=settings,
            lam=lam,
            batch_size=batch_size or self.params.batch_size,
            validation=self.validation,
            log=self.log,
            threads=self.threads,
        )

    def fit_c(self, lam):
        """M_c on S_c alone: base, and the pre-training of others."""
        return self._once("M_c", [bound.term_c(self.data)], lam, self.params.batch_size)

    def fit_t(self, lam, batch_size=None, **other_settings):
        """M_t on S_t alone: unif, and the pre-training of others."""
        batch_size = batch_size or min(S_T_BATCH, self.params.batch_size)
        return self._once("M_t", [bound.term_e1(self.data)], lam, batch_size, **other_settings)

    def _once(self, stage, terms, lam, batch_size, **other_settings):
        """Train `stage`, or take it from the store where an equal one was kept; the history is the same either way."""
        read = {name: getattr(self.params, name) for name in PRETRAINING_READS} | other_settings
        key = repr((self.data.fingerprint, stage, lam, batch_size, sorted(read.items())))
        found = self.store.get(key) if self.store is not None else None
        if found is not None:
            weights, rows = found
            self.log.rows.extend(rows)
            return weights
        before = len(self.log.rows)
        weights = self.train(self.new(stage[-1]), terms, stage, lam, batch_size, **other_settings)
        if self.store is not None:
            self.store.put(key, weights, self.log.rows[before:])
        return weights

    def keep(self, terms):
        """Those of `terms` whose letter the `terms` parameter lists."""
        return [term for term in terms if term.name in self.params.terms]

    def descend(self, epoch_step, stage="refine", **options):
        """Full-batch epochs of an exact objective, from random rows."""
        return descend(
            self.new("c"),
            epoch_step,
            stage=stage,
            settings=self.params,
            validation=self.validation,
            log=self.log,
            **options,
        )

    def refine(self, M_c, terms):
        """M_c on all kept terms together, with a fresh optimizer."""
        return self.train(M_c, self.keep(terms), "refine", self.params.lam)

    def refine_jointly(self, M_c, M_t, terms, term_e1, alignment=None):
        """M_c on the kept terms and M_t on e.1 (None: not at all), side by side."""
        p = self.params
        terms = self.keep(terms)
        if not terms:
            raise InputError(f"terms={p.terms!r} leaves nothing to train M_c on: keep one of a, c, d")
        if p.weighting == "theory":
            raise InputError("weighting='theory' goes with one model in training (Eq. 2): use weighting='sample' here")
        return train_jointly(
            M_c,
            M_t,
            terms,
            term_e1,
            stage="refine",
            loss=self.loss,
            settings=p,
            lams=(p.lam, p.teacher_lam),
            batch_sizes=(p.batch_size, min(S_T_BATCH, p.batch_size)),
            validation=self.validation,
            log=self.log,
            alignment=alignment,
        )

    def _weighted(self, terms):
        if self.params.weighting == "theory":
            bound.use_theory_weights(terms, self.data)
        return terms
