"""The base class of every method: parameters, checks of the data, `fit` and its second training, scores, files."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from dubnb import _check, _memory, distributed, losses, metrics
from dubnb._check import InputError, NotFittedError
from dubnb._jit import one_blas_thread
from dubnb.backbones import BACKBONES, Scorer, Weights
from dubnb.calibration import Calibration
from dubnb.data.ids import id_array
from dubnb.data.partition import RANDOMIZED, Partition
from dubnb.data.pattern import joined
from dubnb.device import checked_device, chosen_device, device_named
from dubnb.methods import _head, _model_file, _other_log
from dubnb.methods._fold_in import cold_users, row_objective, with_average, with_random_items
from dubnb.methods._params import Parameters, ShortHelp, batch_of_S_c, batch_of_S_t, lam_of_S_t, negatives_of, required
from dubnb.methods._serving import LoadedFile, Serving
from dubnb.objective.terms import TARGET_KINDS, Targets, Term
from dubnb.train import MONITORS, Fit, Log, Stage, Store

if TYPE_CHECKING:
    from dubnb.data.ids import Ids
    from dubnb.data.pattern import Pattern
    from dubnb.head import Head


ALL = "all"
REFIT = "refit"  # the prefix of stage names in the second training
ALIKE = ("backbone", "rank")  # must be equal for one model to start from the rows of another


def all_randomized(data: Partition, everything: bool = False) -> Partition:
    """The log to refit on: S_t also has the pairs of S_va, and S_va is empty; S_te stays unseen.

    everything: S_t also has the pairs of S_te, and S_c the rows of the biased log that were held back. If both logs
    have a pair, the randomized label is kept, as it is the more credible.
    """
    S_t, S_va, S_te = (data.triplets(part) for part in RANDOMIZED)
    none = S_va.take(slice(0))
    if not everything:
        return data.replace(S_t=joined(S_t, S_va), S_va=none)
    new: dict[str, Any] = {"S_t": joined(S_t, S_va, S_te), "S_va": none, "S_te": none}
    if data.held_back is not None:
        new |= {"S_c": joined(data.triplets("S_c"), data.held_back), "held_back": None, "held_back_propensities": None}
        if data.propensities is not None and data.held_back_propensities is not None:
            new["propensities"] = np.concatenate([data.propensities, data.held_back_propensities])
    return data.replace(**new)


def second_training(
    resolved: Method, fit: Fit, lengths: Mapping[str, int], head: Head | None, everything: bool
) -> tuple[Fit, Weights, Weights | None]:
    """Train the (resolved) method on `all_randomized`, each stage for `lengths` epochs; returns (fit, M_c, M_t).

    fit: the first fit; its log, threads and device are used. Row solves end when they have converged, as in the first
    training. The settings that S_va chose (dub-x's gamma, power and spread) and the first training's `head` are kept.
    """
    if not fit.validation.usable:
        asked = repr(ALL) if everything else True
        raise InputError(f"refit={asked} needs an S_va that can stop training early, to choose the number of epochs")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="S_va has 0 pairs")
        second = Fit(
            all_randomized(fit.data, everything),
            resolved.monitor,
            Log(fit.log.quiet, fit.log.callback),
            None,
            fit.threads,
            device=fit.device,
            start=fit.start,
            lengths=lengths,
            head=head,
        )
    M_c, M_t = resolved.recipe(second)
    M_c = resolved.apply_head(second, M_c)
    second.log.rows = [row | {"stage": f"{REFIT} {row['stage']}"} for row in second.log.rows]
    return second, M_c, M_t


class Start:
    """Initial weights from an earlier model, matched by id; new users and items start at random."""

    def __init__(self, model: Any, resolved: Method, data: Partition):
        self.weights = model._fitted()
        for name in ALIKE:
            if model.params_[name] != getattr(resolved, name):
                own = getattr(resolved, name)
                raise InputError(f"start= has {name}={model.params_[name]!r}, this model {own!r}: make them agree")
        self.sides = {
            "user_": _matched(model.user_ids_, data.user_ids, "users"),
            "item_": _matched(model.item_ids_, data.item_ids, "items"),
        }

    def new(self, stage: Stage, data: Partition) -> Weights:
        """The initial weights of a stage: the earlier model's rows for M_c, random ones for other stages."""
        fresh = stage.new(data)
        if stage.name != "M_c":
            return fresh
        arrays, old = fresh.arrays(), self.weights.arrays()
        for name, array in arrays.items():
            side = self.sides.get(name[:5])
            if side is None:
                array[...] = old[name]
            else:
                here, there = side
                array[here] = old[name][there]
        return BACKBONES[stage.backbone].from_arrays(arrays)


def _matched(old: Any, new: Any, what: str) -> tuple[np.ndarray, np.ndarray]:
    """(rows of the new log, rows of the old one) of the ids that both logs have."""
    if old.kind != new.kind:
        raise InputError(f"start= has {what} whose ids are {old.kind}, the log's are {new.kind}: use the same type")
    there = old.find(new.values)
    here = np.flatnonzero(there >= 0)
    if not len(here):
        raise InputError(f"start= knows none of the log's {len(new):,} {what}: leave it out, or check the ids")
    return here, there[here]


# ---- methods ---------------------------------------------------------------------------------------------------------


LARGEST_SEED = 2**53  # beyond it two seeds can be the same float, and therefore the same trial of a sweep
TABLES = 3  # a model in training has weights and Adam's two moments
WEIGHTINGS = ("sample", "theory")


@dataclass(kw_only=True, repr=False, eq=False)
class Method(Parameters, Serving, metaclass=ShortHelp):
    """Base class of all methods: what you can set, and what you can do with a fitted model.

    A parameter that is None takes the method's default for its backbone and solver. Many defaults follow from the log.

    Parameters
    ----------
    backbone : {"mf", "ncf"}
        The model: matrix factorisation or neural collaborative filtering.
    loss : {"bce", "mse", "squared", "mae"}
        The loss between a raw score and its target.
    rank : int
        The number of factors per user and per item.
    lam : float
        L2 regularisation: lam/2 |row|^2 is added to the objective for each row that a mini-batch touches. With
        solver="exact" the objective is a sum over pairs instead of a mean over a batch, so lam is larger.
    lr : float
        Adam's learning rate.
    batch_size : int
        Samples per mini-batch; the default gives about 300 steps per epoch and is at most 1,024.
    epochs, patience : int
        The largest number of epochs; and after how many epochs without a better metric on S_va training stops. With
        mini-batches an epoch counts by the mean metric of the last five epochs, which is less noisy.
    terms : str
        The letters of the bound terms to keep.
    monitor : {"auc", "ndcg", "user_auc", "percentile"}
        The metric on S_va that early stopping uses.
    weighting : {"sample", "theory"}
        "sample": each sample of a, c and e weighs 1, of d gamma. "theory": the weights of the theorems.
    hidden : tuple of int
        Widths of ncf's hidden layers, (2 rank,) by default.
    activation : {"tanh", "relu", "sigmoid"}
        The activation between ncf's layers.
    targets : {"binary", "graded", "rates"}
        The target of an observed pair: its 0/1 label; 1 for a positive and its grade for a negative; or the share of
        its impressions that are positive.
    negative : float
        With targets "binary" and "rates": the target of an observed negative of S_c, 0 in the paper. dub-x also takes
        "unobserved" and "auto".
    target_slope : float
        A pair of S_c weighs 1 - slope/2 + slope x its target; at 0, as in the paper, every pair weighs 1.
    calibrate : bool
        Whether `predict` returns probabilities calibrated on S_va (see `dubnb.calibration`) or those of the loss.
    head : {None, "auto"}
        Whether to fit a logistic head on held-out randomized pairs: offsets of users and items that are added to the
        scores if held-out pairs show that they help (see `dubnb.head`). Most methods fit it on S_va alone. None, no
        head, is the default. That of dub-x and dub-xi is "default": "auto" with mf, None with ncf, which refuses "auto"
        because it has no biases that could hold offsets.
    negatives : int
        The number of pairs drawn from S_u with target 0 for each positive of S_c, anew in every epoch. The default is 4
        if S_c holds positives alone, else 0. It applies to mini-batches of S_c without term d.
    seed : int
        Seed of all randomness in training; it never changes the data.
    device : {"cpu", "cuda", "auto"}
        Where to train; "auto" takes a GPU if there is one. The GPU path is tested in a simulator only, see
        docs/cuda.md.
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
    head: str | None = None
    negatives: int | None = None
    seed: int = 0
    device: str = "cpu"

    EXTRA_TERMS: ClassVar[str] = ""  # further letters that `terms` may list
    by_default: ClassVar[bool] = True  # whether compare and reproduce run it unless --systems names others
    is_baseline: ClassVar[bool] = False  # tables list baselines separately
    trains_on_gpu: ClassVar[bool] = True  # whether device="cuda" is supported; device="auto" takes the CPU if not
    solves_rows: ClassVar[bool] = False  # whether solver="exact" solves rows, which can be done in parts
    folds_in: ClassVar[bool] = True  # whether `_fold_in` can solve a new user's row, with mf
    COMMON = {
        "batch_size": batch_of_S_c,  # first, because other rules read it
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
        "terms": _check.string,  # `check` checks the letters
        "monitor": _check.choices(MONITORS),
        "weighting": _check.choices(WEIGHTINGS),
        "targets": _check.choices(TARGET_KINDS),
        "negative": _check.reals(high=1.0),
        "target_slope": _check.reals(high=2.0),
        "calibrate": _check.flag,
        "head": _check.optional(_check.choices((_head.AUTO,))),
        "negatives": _check.wholes(low=0),
        "seed": _check.wholes(low=0, high=LARGEST_SEED),
        "device": checked_device,
        **{name: check for backbone in BACKBONES.values() for name, check in backbone.OPTIONS.items()},
    }

    def check(self) -> None:
        kept = self.terms
        known = "".join(sorted(self.TERMS + self.EXTRA_TERMS))
        if not kept or len(set(kept)) < len(kept) or not set(kept) <= set(known):
            letters = f"some of the letters {known!r}, the terms of {self.name}"
            raise InputError(f"terms={_check.short_repr(kept)} must be {letters}")
        declared = type(self).__dataclass_fields__
        for backbone, weights in BACKBONES.items():
            for name in weights.OPTIONS.keys() - BACKBONES[self.backbone].OPTIONS.keys():
                if getattr(self, name) != declared[name].default:
                    given = f"{name}={_check.short_repr(getattr(self, name))}"
                    raise InputError(f"{given} is for backbone={backbone!r}: leave it out for {self.backbone!r}")
        if self.head is not None and self.backbone == "ncf":
            raise InputError("head='auto' needs backbone='mf': ncf has no biases that could hold offsets; leave it out")
        if self.weighting == "theory" and self.chosen_solver() != "sampled":
            raise InputError("weighting='theory' is for sampled terms, not for this solver: use weighting='sample'")
        if self.device == "cuda" and not self.trains_on_gpu:
            raise InputError(f"device='cuda' does not support {self.name}: use device='cpu'")

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
        parts: int | None = None,
        scheduler: Any = None,
        parts_dir: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Train on a Partition.

        Parameters
        ----------
        data : Partition
            The logs.
        quiet : bool
            Whether to hide progress bars.
        callback : callable, optional
            Called with each epoch's row of `history_`.
        store : Store, optional
            Shares pre-trained models between fits.
        threads : int
            With backbone "mf": a background thread draws samples and judges epochs (not in joint training or
            AutoDebias), and exact solvers solve rows in parallel. The result does not change.
        watch : callable, optional
            Called with (stage, epoch, scorer) after every epoch. The scorer changes with the next epoch.
        start : Method, optional
            An earlier dub-x of the same rank, such as last week's, for dub-x with mf. Row solves start from its rows,
            matched by id, and keep what it chose on S_va (gamma, exposure_power, teacher, ...) unless you set it.
        refit : {False, True, "all"}
            Whether to train a second time with the settings and epochs that S_va chose. True: on S_t and S_va
            together. "all": on the whole randomized log, and on the rows of the biased log that a split by time held
            back; this is the model to ship. Calibration and validation metrics are those of the first training. With
            "all", `evaluate` repeats the metrics that the first model had on S_te: see `judged_`.
        parts : int, optional
            For methods with row solves (dub-x, ials, exact dub and bridge): cut the users into so many parts. With
            `scheduler` the default is one part for every 5 M observed pairs. Scores agree with those of one part to
            1e-4. The same parts give the same model, on any number of workers.
        scheduler : str or distributed.Client, optional
            The address of a Dask scheduler. Its workers hold the parts and solve their users. See docs/cluster.md.
        parts_dir : path, optional
            A directory for the parts, made if it does not exist. One part at a time is in memory. After every sweep
            the state of the fit is stored there; the same call continues from it after a kill, and gives the same
            model. Remove the directory when you have the model.
        """
        refit = _checked_refit(refit)
        _check_data(data)
        method = self.resolve(data)
        if method.device != "cpu":
            method.device = chosen_device(method.device, quiet) if method.trains_on_gpu else "cpu"
        threads = _checked_threads(threads, method.backbone, method.device)
        if parts_dir is None and method.solves_rows and method.chosen_solver() == "exact":
            parts_dir = data.stored_in
        method._check_log(data)
        method._check_memory(0 if parts_dir is not None else data.n_users, data.n_items)
        with distributed.device_for(method, parts, scheduler, quiet, parts_dir) as device:
            begin = None
            if start is not None:
                method.keep_choices(start)
                begin = Start(start, method, data)
            fit = Fit(data, method.monitor, Log(quiet, callback), store, threads, watch, device, start=begin)
            with one_blas_thread():  # the same bytes on any number of cores, and small products are faster
                weights, self.teacher_ = method.recipe(fit)
                weights = method.apply_head(fit, weights)
                if data.bucket and method.loss is not None and not method.reads_S_t():
                    weights = with_random_items(weights, data, losses.LOSSES[method.loss].link)
                if not refit:
                    method._check_personal(metrics.personal_share(weights, data))
                self._set_fitted(method, fit, weights)
                self.calibration_ = Calibration.on_S_va(self.weights_, data) if method.calibrate else None
            self.lengths_: dict[str, int] | None = fit.lengths
            self.data_ = {"name": data.name, "fingerprint": data.fingerprint}
            self.refit_: dict[str, Any] | None = None
            self.judged_: dict[str, Any] | None = None
            earlier = _other_log.NONE if start is None or start.trained_ is None else start.trained_
            # the pairs that evaluation on a later log leaves out
            self.trained_: np.ndarray | None = np.union1d(data.pair_hashes("S_t", "S_va"), earlier)
            if refit:
                self._train_again(fit, refit)
        return self

    def refitted(
        self,
        data: Partition,
        refit: bool | str = ALL,
        *,
        quiet: bool = True,
        callback: Callable[[dict[str, Any]], None] | None = None,
        threads: int = 1,
    ) -> Self:
        """A copy of this model, trained a second time as `fit(data, refit=...)` would, without the first training.

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
        refit = _checked_refit(refit)
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
        model._train_again(fit, refit)
        return model

    def _train_again(self, fit: Fit, refit: bool | str) -> None:
        """Train a second time on more of the log of `fit`, after keeping the metrics that the model has on S_te."""
        data, rows, everything = fit.data, self.history_rows_, refit == ALL
        method = type(self)(**self.params_).resolve(data)
        if everything:
            self.judged_ = self.evaluate(data) if len(data.triplets("S_te").users) else {}
        with one_blas_thread():
            lengths = required(self.lengths_)
            fit, weights, self.teacher_ = second_training(method, fit, lengths, self.head_, everything)
            method._check_personal(metrics.personal_share(weights, fit.data))
            self._set_fitted(method, fit, weights)
        self.history_rows_ = rows + self.history_rows_
        pairs = {part: fit.data.size(part) for part in ("S_c", "S_t")}
        self.refit_ = {"on": ALL if everything else "S_va", "pairs": pairs}
        if everything:
            earlier = _other_log.NONE if self.trained_ is None else self.trained_
            self.trained_ = np.union1d(data.pair_hashes(*RANDOMIZED), earlier)

    def _check_log(self, data: Partition) -> None:
        """Refuse a log that the (resolved) method cannot learn from."""
        self._check_clicks(data)
        labels = np.concatenate([data.triplets(part).labels for part in ("S_t", "S_va")])
        one_label = not 0 < np.count_nonzero(labels) < len(labels)
        if one_label and len(data.triplets("S_t").labels) and self.reads_S_t():
            missing = "positive" if not labels.any() else "negative"
            raise InputError(
                f"no {missing} among the {len(labels):,} randomized pairs of S_t and S_va, and {self.name} learns from "
                "them: include what was shown and not liked, give more random traffic, or use base"
            )

    def _check_memory(self, n_users: int, n_items: int) -> None:
        """Refuse tables of so many users and items that do not fit into memory."""
        sizes = {"rank": self.rank, **({"hidden": self.hidden} if self.hidden else {})}
        what = ", ".join(f"{name}={value}" for name, value in sizes.items())
        what += f" on {n_users:,} users x {n_items:,} items"
        options = {option: getattr(self, option) for option in BACKBONES[self.backbone].OPTIONS}
        size = BACKBONES[self.backbone].size((n_users, n_items), required(self.rank), **options)
        _memory.require(what, TABLES * size, f"lower {' or '.join(sizes)}")

    def _check_clicks(self, data: Partition) -> None:
        """Warn that S_c holds positives alone (a log of clicks); refuse a method that would predict 1 for all pairs."""
        terms = set(self.terms or "")
        if self.is_baseline or "c" not in terms or not data.click_only:
            return
        only_with_d = self.keeps("d") and not self.pretraining()  # no stage without term d: no negatives are drawn
        if self.chosen_solver() == "exact" or only_with_d:
            warnings.warn(
                "S_c holds positives alone (a log of clicks): unobserved pairs are weighted zeros", stacklevel=4
            )
            return
        if not self.negatives and terms <= {"c"}:
            raise InputError(
                f"S_c holds positives alone and negatives=0: {self.name} would predict 1 for every pair; set "
                "negatives= (4 by default), or use dub-x"
            )
        warnings.warn(
            f"S_c holds positives alone (a log of clicks): {self.negatives} unobserved pairs for each are drawn as "
            "negatives; randomized pairs that were not clicked keep their label 0",
            stacklevel=4,
        )

    def _set_fitted(self, method: Self, fit: Fit, weights: Weights) -> None:
        """Set the attributes of a fitted model, from the resolved method and the weights of its fit."""
        data = fit.data
        self.params_: dict[str, Any] = method.get_params()
        self.history_rows_: list[dict[str, Any]] = [dict(row) for row in fit.log.rows]
        self.cold_ = cold_users(data, method.learns_from())
        self.weights_ = with_average(weights, self.cold_)
        self.head_ = fit.head
        self.row_objective_ = row_objective(method, fit, weights, self.teacher_, self.cold_)
        self.user_ids_: Ids = data.user_ids
        self.item_ids_: Ids = data.item_ids
        self.seen_: Pattern = data.not_recommended
        self.file_: LoadedFile | None = None

    # -- what a method declares; all of it is called on a resolved method

    def weights_class(self) -> type[Weights]:
        """The class of M_c's weights, which reads them from a model file."""
        return BACKBONES[self.backbone]

    def all_terms(self, fit: Fit, M_t: Weights | None) -> list[Term]:
        """Every term that the objective of M_c can have; the parameter `terms` selects among them by `kept`."""
        raise NotImplementedError(f"{type(self).__name__} has no terms: write all_terms(fit, M_t)")

    def recipe(self, fit: Fit) -> tuple[Weights, Weights | None]:
        """Train; returns (weights of M_c, weights of M_t or None). By default one model on the kept terms."""
        return fit.train(self.stage("M_c"), self.kept(self.all_terms(fit, None))), None

    def apply_head(self, fit: Fit, weights: Any) -> Any:
        """The weights of a recipe with a head, if `head` asks for one and S_va, unseen in training, shows a gain."""
        if self.head is None:
            return weights
        return _head.headed(self, fit, weights, _head.validation_folds(fit.data, weights, self.seed))

    def pretraining(self) -> tuple[Stage, ...]:
        """The stages whose results a store may keep."""
        return ()

    def learns_from(self) -> tuple[str, ...]:
        """The parts that M_c learns its users from; a user without a pair in them is cold."""
        return tuple(part for part, letters in (("S_c", "cd"), ("S_t", "ae")) if any(map(self.keeps, letters)))

    def reads_S_t(self) -> bool:
        """Whether training reads the labels of S_t: in a term, or in the teacher of term d.

        Choices between settings, and the head, are not counted: they read held-out labels, which can be S_t's.
        """
        return any(map(self.keeps, "abde"))

    def inner_candidates(self, data: Partition) -> int:
        """How many candidates one fit on `data` chooses among on S_va; 1 if it only stops early there."""
        return 1

    def keep_choices(self, model: Any) -> None:
        """Take over what an earlier model chose on S_va. Refused by methods that cannot start from a model."""
        raise InputError(
            f"start= is for dub-x with backbone='mf': {self.name} on {self.backbone} would save no epochs; leave it out"
        )

    def regularisation(self) -> str:
        """The parameter that keeps factors small, and its value, for messages."""
        return f"lam (now {self.lam:g})"

    # -- helpers for recipes

    def stage(self, name: str, **other: Any) -> Stage:
        """A stage of training with these parameters; `other` replaces some of them, such as lam."""
        options = tuple((option, getattr(self, option)) for option in BACKBONES[self.backbone].OPTIONS)
        special = {"name": name, "options": options, "targets": self.target_rule(), "with_a": False}
        own = {f: getattr(self, f) for f in Stage.__dataclass_fields__ if f not in special}
        return Stage(**(own | special | other))

    def trained_loss(self) -> losses.Loss:
        """The loss that the parameter `loss` names."""
        return losses.LOSSES[required(self.loss)]

    def target_rule(self) -> Targets:
        """The rule that makes targets of labels and grades."""
        return Targets(required(self.targets), required(self.negative), required(self.target_slope))

    def keeps(self, letter: str) -> bool:
        """Whether the parameter `terms` lists a term."""
        return letter in required(self.terms)

    def kept(self, terms: Sequence[Term]) -> list[Term]:
        """Those of `terms` that the parameter `terms` lists."""
        return [term for term in terms if self.keeps(term.name)]

    def _check_personal(self, personal: float) -> None:
        """Warn about a model that ranks by biases alone, the same for every user, because its factors have vanished."""
        if personal < metrics.SAME_FOR_ALL:
            instead = ", or use backbone='mf'" if self.backbone != "mf" else ""
            warnings.warn(
                f"{self.name} ranks items alike for every user: only {100 * personal:.2g} % of the scores' variance "
                f"differs between users; lower {self.regularisation()}{instead}",
                stacklevel=3,
            )

    # -- a fitted model

    def _fitted(self) -> Weights:
        if not hasattr(self, "weights_"):
            raise NotFittedError(f"this {type(self).__name__} is not fitted: call fit(data) first")
        return self.weights_

    @one_blas_thread()
    def decision_function(self, users: Any, items: Any) -> np.ndarray:
        """Raw scores of pairs of original ids, which broadcast: ranking and AUC use them."""
        weights = self._fitted()
        users, items = id_array(users), id_array(items)
        try:
            users, items = np.broadcast_arrays(users, items)
        except ValueError:
            shapes = f"{users.shape} and items of shape {items.shape}"
            raise InputError(f"users of shape {shapes} do not pair up: pass arrays that broadcast") from None
        rows = self.user_ids_.rows(users.ravel(), "user"), self.item_ids_.rows(items.ravel(), "item")
        return weights.score_pairs(*rows).reshape(users.shape)

    def predict(self, users: Any, items: Any) -> np.ndarray:
        """Probabilities of a positive label under the uniform policy; see `probabilities`."""
        return self.probabilities(self.decision_function(users, items))

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities from raw scores: calibrated on S_va, or `uncalibrated` with calibrate=False."""
        return self.uncalibrated(scores) if self.calibration_ is None else self.calibration_(scores).astype(np.float32)

    def uncalibrated(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities from raw scores by the loss's link; for losses without a link, scores clipped to [0, 1]."""
        if losses.LOSSES[self.params_["loss"]].link:
            return losses.predict(np.array(scores, np.float32).ravel(), True).reshape(np.shape(scores))
        return np.clip(scores, 0.0, 1.0)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write the model to an .npz file without pickled objects; `dubnb.load` reads it."""
        self._fitted()
        _model_file.save(self, path, overwrite)


def _checked_threads(threads: int, backbone: str, device: str) -> int:
    threads = _check.whole("threads", threads)
    if device != "cpu":
        return 1  # a GPU has threads of its own
    if threads > 1 and backbone != "mf":
        warnings.warn(f"threads={threads} is for backbone='mf': {backbone} uses 1", stacklevel=3)
        return 1
    return threads


def _checked_refit(refit: Any) -> bool | str:
    """Check the parameter `refit`: False, True or "all"."""
    if isinstance(refit, bool):
        return refit
    if refit != ALL or not isinstance(refit, str):
        raise InputError(f"refit={_check.short_repr(refit)} must be False, True (S_t and S_va) or 'all' (everything)")
    return ALL


def _check_data(data: Any) -> None:
    if not isinstance(data, Partition):
        raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset returns")


# -- methods with a second model, the teacher M_t

TEACHER = {"teacher_batch_size": batch_of_S_t, "teacher_lam": lam_of_S_t(1e-2)}  # the second reads the first
TEACHER_CHECKS = {"teacher_lam": _check.reals(), "teacher_batch_size": _check.wholes()}


class WithTeacher(Protocol):
    """A method with the parameters of a teacher."""

    teacher_lam: float | None
    teacher_batch_size: int | None

    def stage(self, name: str, **other: Any) -> Stage: ...


def teacher_stage(method: WithTeacher, **other: Any) -> Stage:
    """The stage that trains M_t on S_t; `other` replaces some of the method's parameters."""
    return method.stage("M_t", lam=method.teacher_lam, batch_size=method.teacher_batch_size, **other)


def check_joint(method: Method) -> None:
    """Refuse parameters that joint training of two models does not support."""
    if not any(map(method.keeps, "acd")):
        raise InputError(f"terms={method.terms!r} leaves nothing to train M_c on: keep one of a, c, d")
    if method.weighting == "theory":
        raise InputError("weighting='theory' is for training one model (Eq. 2): use weighting='sample' here")
