"""Training: the stages of a fit, their epochs, early stopping on S_va, progress bars and the history."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dubnb import _progress, metrics
from dubnb._check import DivergenceError
from dubnb.backbones import BACKBONES, Scorer, Weights
from dubnb.background import BackgroundThread
from dubnb.device import Cpu, Device, TrainedScorer
from dubnb.evaluation import mean_percentile, mean_user_auc, validation_ndcg
from dubnb.losses import LOSSES
from dubnb.objective.terms import PrefetchedEpochs, Targets, Term, term_a, term_c, term_e1, term_n, theory_weighted

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.head import Head
    from dubnb.objective.coupled import Alignment

MONITORS = ("auc", "ndcg", "user_auc", "percentile")
SMOOTHED = 5  # epochs of mini-batches over whose metrics early stopping takes the mean
WORTH_SHARING = 1 << 15  # samples of an epoch: smaller epochs gain nothing from a background thread
PRETRAINED = {"M_c": term_c, "M_t": term_e1}  # stage -> the term that it learns from


@dataclass(frozen=True)
class Stage:
    """The settings of one stage of training, apart from its data, its terms and its initial weights.

    Pre-training starts at random weights and uses the term of its name (and a, if `with_a`). This record and the data's
    fingerprint therefore determine its result, and are the key under which a store keeps it.
    """

    name: str  # "M_c", "M_t" or "refine": names the random streams and the rows of the history
    backbone: str
    options: tuple[tuple[str, Any], ...]  # the backbone's own parameters
    rank: int
    loss: str
    lam: float
    lr: float
    batch_size: int
    epochs: int
    patience: int
    monitor: str
    weighting: str
    targets: Targets
    seed: int
    device: str
    negatives: int = 0  # drawn for each positive of S_c, where S_c is learned from and no term d is
    with_a: bool = False  # whether M_c's pre-training learns from S_t too

    def key(self, data: Partition) -> str:
        """The key of the result of pre-training on `data`."""
        return repr((data.fingerprint, self))

    def new(self, data: Partition) -> Weights:
        """Random initial weights."""
        shape = data.n_users, data.n_items
        return BACKBONES[self.backbone].new(shape, self.rank, self.seed, self.name[-1], **dict(self.options))


def with_negatives(terms: Sequence[Term], stage: Stage, data: Partition) -> list[Term]:
    """The terms, plus term n if S_c is among them without term d, which already has targets for unobserved pairs."""
    names = {term.name for term in terms}
    if not stage.negatives or "c" not in names or "d" in names or not data.S_u.size:
        return list(terms)
    return [*terms, term_n(data, stage.negatives)]


class Store(Protocol):
    """Where pre-trained models are shared between fits."""

    def get(self, key: str) -> tuple[Weights, list[dict[str, Any]]] | None:
        """(weights stored under `key`, their rows of the history), or None."""

    def put(self, key: str, weights: Weights, rows: list[dict[str, Any]]) -> Weights:
        """Store weights and rows; returns the weights to use, which may be in memory shared by several fits."""


class Begin(Protocol):
    """The initial weights of stages, if not random."""

    def new(self, stage: Stage, data: Partition) -> Weights:
        """The initial weights of a stage."""


class Validation:
    """The metric on S_va that early stopping uses; without a usable S_va all epochs run."""

    def __init__(self, data: Partition, monitor: str):
        self.data, self.monitor = data, monitor
        S_va, self.weights = data.unseen("S_va"), data.judging_weights("S_va")
        positives, negatives = S_va.users[S_va.labels > 0], S_va.users[S_va.labels == 0]
        self.usable = bool(len(positives) and len(negatives))
        if monitor == "ndcg":  # full-ranking counts only users with a positive and a pair in S_c
            self.usable = self.usable and bool(data.biased_counts.users[positives].any())
        if monitor == "user_auc":  # defined for users with both labels
            self.usable = self.usable and bool(np.isin(positives, negatives).any())
        if not self.usable:
            warnings.warn(
                f"S_va has {len(S_va.users)} pairs with {len(positives)} positives, too few for {monitor}: "
                "no early stopping, all epochs run",
                stacklevel=4,
            )

    def __call__(self, scorer: Scorer) -> float:
        """The metric of a scorer; -inf without a usable S_va."""
        if not self.usable:
            return -np.inf
        if self.monitor == "auc":
            S_va = self.data.unseen("S_va")
            return metrics.auc(scorer.score_pairs(S_va.users, S_va.items), S_va.labels, self.weights)
        by_user = {"ndcg": validation_ndcg, "user_auc": mean_user_auc, "percentile": mean_percentile}
        return by_user[self.monitor](scorer, self.data)


def recent_mean(values: Collection[float]) -> float:
    """The mean of some epochs' metrics; means that differ by rounding errors alone are equal."""
    return next(iter(values)) if len(values) == 1 else round(sum(values) / len(values), 12)


class EarlyStopping:
    """Keeps the best weights, and stops training after `patience` epochs without better ones.

    One epoch's metric on S_va is noisy. An epoch is therefore judged by the mean over itself and the epochs before it,
    `window` in total, or fewer at the beginning. With a window of 1 it is judged by its own metric.

    Early in training a good value can occur by chance. Epochs before `first` therefore do not count, and patience
    begins with the first epoch whose personal share (see `metrics.personal`) reaches `alive`. The best weights before
    it are discarded. `enough`: also stop when an epoch lowers the total loss by less than this share of it.

    The initial weights (`begin`) are kept unless both an epoch's mean and its own metric are better, so that training
    never ends below its start on S_va. The start does not count towards patience: with a fresh optimizer the metric may
    fall before it rises.
    """

    def __init__(self, patience: int, first: int = 1, alive: float = 0.0, enough: float | None = None, window: int = 1):
        self.patience, self.first, self.alive, self.enough = patience, first, alive, enough
        self.awake, self.best, self.best_epoch = False, -np.inf, 0
        self.peak, self.peak_epoch = -np.inf, 0  # the best of the epochs, without the initial weights
        self.start = -np.inf  # the metric of the initial weights
        self.recent: deque[float] = deque(maxlen=window)
        self.weights: Any = None
        self.loss = np.inf

    def begin(self, value: float, weights: Any) -> None:
        """Set the initial weights and their metric."""
        self.best, self.start, self.weights = value, value, weights

    def stop_after(self, epoch: int, value: float, personal: float, weights: Callable[[], Any]) -> bool:
        """Whether to stop after an epoch with these values; `weights` is called for a copy only if it is the best."""
        if epoch < self.first:
            return False
        if not self.awake and personal >= self.alive:
            self.awake = True
            if self.alive > 0:
                self.weights, self.peak = None, -np.inf
                self.recent.clear()
        self.recent.append(value)
        mean = recent_mean(self.recent)
        if mean > self.peak:
            self.peak, self.peak_epoch = mean, epoch
        if self.weights is None or (mean > self.best and value > self.start):
            self.weights = None  # free the old best first, so that only one copy is in memory
            self.best, self.best_epoch, self.weights = mean, epoch, weights()
        return self.awake and epoch - self.peak_epoch >= self.patience

    def converged(self, loss: float) -> bool:
        """Whether the total loss has stopped falling."""
        before, self.loss = self.loss, loss
        return self.enough is not None and before - loss < self.enough * abs(loss)


class Log:
    """The rows of `history_`, a progress bar after two seconds, and an optional callback per epoch."""

    def __init__(self, quiet: bool = True, callback: Callable[[dict[str, Any]], None] | None = None):
        self.quiet, self.callback = quiet, callback
        self.rows: list[dict[str, Any]] = []

    def bar(self, stage: str, epochs: int) -> Any:
        """A progress bar for a stage."""
        return _progress.bar(total=epochs, desc=stage, unit="epoch", quiet=self.quiet)

    def add(self, bar: Any, row: dict[str, Any]) -> None:
        """Add one epoch's row to the history, the bar and the callback."""
        self.rows.append(row)
        name = next(column for column in row if column.startswith("va_"))
        bar.set_postfix({name: f"{row[name]:.4f}"}, refresh=False)
        bar.update()
        if self.callback is not None:
            self.callback(dict(row))


class Fit:
    """One fit: its data, validation, log, device and store of pre-trained models, and the training of its stages."""

    def __init__(
        self,
        data: Partition,
        monitor: str,
        log: Log | None = None,
        store: Store | None = None,
        threads: int = 1,
        watch: Callable[[str, int, Scorer], None] | None = None,
        device: Device | None = None,
        *,
        start: Begin | None = None,
        lengths: Mapping[str, int] | None = None,
        head: Head | None = None,
    ):
        self.data, self.validation, self.device = data, Validation(data, monitor), device or Cpu()
        self.log, self.store, self.threads = Log() if log is None else log, store, threads
        weighed = data.importance("S_t") is not None
        self.effective = data.effective_sample_size("S_t") if weighed else None
        self.watch = watch  # called with (stage, epoch, scorer) after every epoch
        self.start = start  # initial weights of stages, unless random
        self.lengths = dict(lengths or {})  # number of epochs of each stage; a stage that has none adds its best epoch
        self.head = head  # the head to apply; if there is none, a method may fit one and keep it here

    def on(self, data: Partition, log: Log) -> Fit:
        """A fit on another log with the same users and items; it has no store and no watcher."""
        return Fit(data, self.validation.monitor, log, None, self.threads, device=self.device, start=self.start)

    def new(self, stage: Stage) -> Weights:
        """The initial weights of a stage: random, or those of an earlier model."""
        return stage.new(self.data) if self.start is None else self.start.new(stage, self.data)

    def pretrain(self, stage: Stage) -> Weights:
        """Pre-train M_c on S_c (`with_a`: and S_t), or M_t on S_t alone.

        An equal model is taken from the store if it has one; the history is the same in both cases.
        """
        kept = self.store.get(stage.key(self.data)) if self.store is not None else None
        if kept is not None:
            weights, rows = kept
            self.log.rows.extend(rows)
            self.lengths.setdefault(stage.name, _best_epoch(rows, stage.monitor))
            return weights
        before = len(self.log.rows)
        terms = (PRETRAINED[stage.name], *((term_a,) if stage.with_a else ()))
        weights = self.train(stage, [term(self.data, stage.targets) for term in terms])
        if self.store is not None:
            weights = self.store.put(stage.key(self.data), weights, self.log.rows[before:])
        return weights

    def train(self, stage: Stage, terms: Sequence[Term], start: Weights | None = None) -> Weights:
        """Train on `terms` with a fresh optimizer; returns the best weights on S_va.

        start: the initial weights (default: random), which are also the result if no epoch is better. Pass them
        without keeping a reference, so that their memory is freed while the trainer has its own copy.
        """
        terms = with_negatives(terms, stage, self.data)
        terms, loss = theory_weighted(terms, self.data) if stage.weighting == "theory" else terms, LOSSES[stage.loss]
        weights = self.new(stage) if start is None else start
        trainer, drawn = self.device.training(weights, terms, stage)
        in_background = self.threads > 1 and drawn.size >= WORTH_SHARING
        with BackgroundThread() if in_background else contextlib.nullcontext() as background:
            epochs = drawn if background is None else PrefetchedEpochs(drawn, background, self.length(stage))
            stopping = EarlyStopping(stage.patience, window=SMOOTHED)
            if start is not None and self.validation.usable:
                stopping.begin(self.validation(weights), weights)
            del weights, start
            with EpochLoop(self, stage, trainer, trainer.weights, stopping, background) as loop:
                for epoch in loop:
                    totals = trainer.epoch(epochs.draw(epoch), len(terms), loss, stage.lr, stage.lam)
                    loop.judge(epochs.mean_losses(totals))
            return loop.best()

    def length(self, stage: Stage) -> int:
        """The largest number of epochs of a stage."""
        return self.lengths.get(stage.name, stage.epochs)

    def run_epochs(
        self,
        stage: Stage,
        one_epoch: Callable[[int], dict[str, float]],
        scorer: TrainedScorer,
        weights: Callable[[], Any],
    ) -> Any:
        """Run epochs until early stopping or the stage's length; returns the best weights on S_va.

        `one_epoch(epoch)` trains and returns each term's loss. `scorer` and `weights` are those of `EpochLoop`.
        """
        with EpochLoop(self, stage, scorer, weights) as loop:
            for epoch in loop:
                loop.judge(one_epoch(epoch))
        return loop.best()


def _best_epoch(rows: Sequence[dict[str, Any]], monitor: str) -> int:
    """The epoch that early stopping kept of a stage that began at random; without a usable S_va the last."""
    values = [float(row[f"va_{monitor}"]) for row in rows]
    means = [recent_mean(values[max(0, n - SMOOTHED) : n]) for n in range(1, len(values) + 1)]
    return int(rows[-1 if np.isnan(means).all() else int(np.nanargmax(means))]["epoch"])


class Trained(NamedTuple):
    """An epoch that was trained."""

    epoch: int
    term_losses: dict[str, float]
    seconds: float


class EpochLoop:
    """The epochs of a stage until early stopping or the stage's length.

        with EpochLoop(fit, stage, scorer, weights) as loop:
            for epoch in loop:
                loop.judge(losses of the terms in this epoch)
        best = loop.best()

    scorer: scores with the current weights. weights: returns a copy of them. With a background thread an epoch is
    judged on a copy of its weights while the next one is trained. If the judged epoch ends the training, the next one
    is dropped. Rows of the history are recorded in the order of the epochs.
    """

    def __init__(
        self,
        fit: Fit,
        stage: Stage,
        scorer: TrainedScorer,
        weights: Callable[[], Any],
        stopping: EarlyStopping | None = None,
        background: BackgroundThread | None = None,
    ):
        self.fit, self.stage, self.scorer, self.weights, self.background = fit, stage, scorer, weights, background
        self.stopping = EarlyStopping(stage.patience, window=SMOOTHED) if stopping is None else stopping
        self.epoch, self.is_over, self.started = 0, False, 0.0
        self.pending: tuple[Trained, Any, Future[tuple[bool, float, float]]] | None = None

    def __enter__(self) -> EpochLoop:
        self.bar = self.fit.log.bar(self.stage.name, self.fit.length(self.stage))
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.close()

    def __iter__(self) -> Iterator[int]:
        """The numbers of the epochs to train: 1, 2, ..."""
        while not self.is_over and self.epoch < self.fit.length(self.stage):
            self.epoch += 1
            self.started = time.perf_counter()
            yield self.epoch
        self._record_pending()

    def judge(self, term_losses: dict[str, float]) -> None:
        """Judge the epoch that was just trained, or let the background thread do so."""
        trained = Trained(self.epoch, term_losses, time.perf_counter() - self.started)
        if self.background is None:
            self._record(trained, self.scorer, self.weights, *self.values(term_losses, self.scorer))
            return
        self._record_pending()
        if not self.is_over:
            copy = self.weights()
            self.pending = trained, copy, self.background.submit(self.values, term_losses, copy)

    def values(self, term_losses: dict[str, float], scorer: TrainedScorer) -> tuple[bool, float, float]:
        """(whether losses and weights are finite, the metric on S_va, the personal share of the ranking)."""
        if not (np.isfinite(list(term_losses.values())).all() and scorer.finite()):
            return False, np.nan, np.nan
        return True, self.fit.validation(scorer), metrics.personal_share(scorer, self.fit.data)

    def _record_pending(self) -> None:
        """Record the epoch that the background thread judges, if there is one."""
        if self.pending is not None:
            (trained, copy, values), self.pending = self.pending, None
            self._record(trained, copy, lambda: copy, *values.result())

    def _record(
        self,
        trained: Trained,
        scorer: Scorer,
        weights: Callable[[], Any],
        finite: bool,
        value: float,
        personal: float,
    ) -> None:
        """Add an epoch to the history, keep its weights if they are the best, and decide whether to stop.

        Training that diverged is an error, not a model.
        """
        fit, stage, (epoch, term_losses, seconds) = self.fit, self.stage, trained
        if not finite:
            raise DivergenceError(
                f"{stage.name} diverged in epoch {epoch}: a parameter is not finite; "
                f"lower lr (now {stage.lr:g}) or raise the regularisation"
            )
        losses = {f"loss_{name}": float(loss) for name, loss in term_losses.items()}
        metric = {f"va_{fit.validation.monitor}": float(value) if np.isfinite(value) else float("nan")}
        row = {"stage": stage.name, "epoch": epoch, **losses, **metric, "personal": personal, "seconds": seconds}
        row |= {} if fit.effective is None else {"effective_S_t": fit.effective}
        fit.log.add(self.bar, row)
        if fit.watch is not None:
            fit.watch(stage.name, epoch, scorer)
        out_of_patience = fit.validation.usable and self.stopping.stop_after(epoch, value, personal, weights)
        self.is_over = out_of_patience or self.stopping.converged(sum(term_losses.values()))

    def best(self) -> Any:
        """The best weights on S_va; without a usable S_va, the last ones."""
        fit, stopping = self.fit, self.stopping
        fit.lengths.setdefault(self.stage.name, self.epoch if stopping.weights is None else stopping.best_epoch)
        return self.weights() if stopping.weights is None else stopping.weights


def train_jointly(
    fit: Fit,
    stages: tuple[Stage, Stage],
    models: tuple[Weights, Weights],
    terms: Sequence[Term],
    term_e1: Term | None,
    alignment: Alignment | None = None,
) -> tuple[Weights, Weights]:
    """Train copies of M_c on `terms` and of M_t on e.1 jointly, batch by batch; returns the best pair on S_va.

    `stages` and `models` are those of M_c and of M_t. Within a batch each model sees the other's weights from before
    the batch. M_t's predictions are the targets of term d for M_c. If the loss is symmetric, M_c's predictions are the
    targets of the same pairs for M_t. An alignment pulls both models.
    """
    terms = with_negatives(terms, stages[0], fit.data)
    both = fit.device.both_models(stages, models, terms, term_e1, alignment)
    return fit.run_epochs(stages[0], both.epoch, both, both.weights)
