"""Training: stages, epochs over shuffled streams, early stopping on S_va, progress, history."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dubnb import _progress, metrics
from dubnb._check import DivergenceError
from dubnb.backbones import BACKBONES, Scorer, Weights
from dubnb.background import BackgroundThread, TrainingOver
from dubnb.device import Cpu, Device, Solver, TrainedScorer
from dubnb.evaluation import mean_user_auc, personal_share, some_pairs, validation_ndcg
from dubnb.losses import LOSSES
from dubnb.objective.targets import Targets
from dubnb.objective.terms import PrefetchedEpochs, Term, term_a, term_c, term_e1, term_n, theory_weighted

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.joint import Alignment

MONITORS = ("auc", "ndcg", "user_auc")
WORTH_SHARING = 1 << 15  # samples of an epoch: fewer are trained on before a second thread has begun
PRETRAINED = {"M_c": term_c, "M_t": term_e1}  # stage -> the term that it learns from


@dataclass(frozen=True)
class Stage:
    """Everything that a stage of training reads beside the data, its terms and where it starts.

    Pre-training starts at random and has the term of its name (and a, if `with_a`), so that this record and the data's
    fingerprint decide its result: they are the key under which a store keeps it.
    """

    name: str  # "M_c", "M_t" or "refine": names the random streams and the rows of the history
    backbone: str
    options: tuple[tuple[str, Any], ...]  # of the backbone
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
        """What names the result of pre-training on `data`."""
        return repr((data.fingerprint, self))

    def new(self, data: Partition) -> Weights:
        """Random initial weights."""
        shape = data.n_users, data.n_items
        return BACKBONES[self.backbone].new(shape, self.rank, self.seed, self.name[-1], **dict(self.options))


def with_negatives(terms: Sequence[Term], stage: Stage, data: Partition) -> list[Term]:
    """The terms, and term n where S_c is learned from without term d, which says no to unobserved pairs already."""
    names = {term.name for term in terms}
    if (
        not stage.negatives
        or "c" not in names
        or "d" in names
        or not len(data.seen.items) < data.n_users * data.n_items
    ):
        return list(terms)
    return [*terms, term_n(data, stage.negatives)]


class Store(Protocol):
    """Where pre-trained models are shared between fits."""

    def get(self, key: str) -> tuple[Weights, list[dict[str, Any]]] | None:
        """The weights kept under `key` and their rows of the history; None where there are none."""
        ...

    def put(self, key: str, weights: Weights, rows: list[dict[str, Any]]) -> Weights:
        """Keep what was trained; returns it as it is to be held, which may be in memory that fits share."""
        ...


class Begin(Protocol):
    """Where stages begin, if not at random."""

    def new(self, stage: Stage, data: Partition) -> Weights:
        """The weights that a stage begins with."""
        ...


class Validation:
    """The metric on S_va that early stopping watches; without a usable S_va there is none and every epoch runs."""

    def __init__(self, data: Partition, monitor: str):
        self.data, self.monitor = data, monitor
        S_va = data.unseen("S_va")
        positives, negatives = S_va.users[S_va.labels > 0], S_va.users[S_va.labels == 0]
        self.usable = bool(len(positives) and len(negatives))
        if monitor == "ndcg":  # full-ranking counts only users with a positive and a pair in S_c
            self.usable = self.usable and bool(np.isin(positives, data.triplets("S_c").users).any())
        if monitor == "user_auc":  # of users with both labels
            self.usable = self.usable and bool(np.isin(positives, negatives).any())
        if not self.usable:
            warnings.warn(
                f"S_va has {len(S_va.users)} pairs with {len(positives)} positives, too few for {monitor}: "
                "no early stopping, all epochs run",
                stacklevel=4,
            )
        self.grid = some_pairs(data)

    def personal(self, scorer: Scorer) -> float:
        """How much of a scorer's ranking is a user's own, see `metrics.personal`."""
        return personal_share(scorer, self.grid)

    def __call__(self, scorer: Scorer) -> float:
        """The metric of a scorer; -inf where S_va cannot tell."""
        if not self.usable:
            return -np.inf
        if self.monitor == "auc":
            S_va = self.data.unseen("S_va")
            return metrics.auc(scorer.score_pairs(S_va.users, S_va.items), S_va.labels)
        return (validation_ndcg if self.monitor == "ndcg" else mean_user_auc)(scorer, self.data)


class EarlyStopping:
    """Keeps the best weights; says stop after `patience` epochs without better ones.

    Training may meet a good value by chance before it has got anywhere. So epochs before `first` do not count, and
    patience begins with the first epoch whose ranking is a user's own by a share of `alive`; what was best before is
    then forgotten. `enough`: also stop when an epoch lowers the total loss by less than this share of it. Where
    training began (`begin`) is kept if no epoch is better, but does not try the patience: a fresh optimizer may have to
    go down before it goes up.
    """

    def __init__(self, patience: int, first: int = 1, alive: float = 0.0, enough: float | None = None):
        self.patience, self.first, self.alive, self.enough = patience, first, alive, enough
        self.awake, self.best, self.best_epoch = False, -np.inf, 0
        self.peak, self.peak_epoch = -np.inf, 0  # of the epochs alone
        self.weights: Any = None
        self.loss = np.inf

    def begin(self, value: float, weights: Any) -> None:
        """Where training begins."""
        self.best, self.weights = value, weights

    def stop_after(self, epoch: int, value: float, personal: float, weights: Callable[[], Any]) -> bool:
        """Judge an epoch; `weights` is called for a copy only when it is the best so far."""
        if epoch < self.first:
            return False
        if not self.awake and personal >= self.alive:
            self.awake, self.weights, self.peak = True, self.weights if self.alive == 0 else None, -np.inf
        if value > self.peak:
            self.peak, self.peak_epoch = value, epoch
        if self.weights is None or value > self.best:
            self.weights = None  # the old best goes before the new one comes: one copy in memory, not two
            self.best, self.best_epoch, self.weights = value, epoch, weights()
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
        """Keep and show one epoch's row."""
        self.rows.append(row)
        name = next(column for column in row if column.startswith("va_"))
        bar.set_postfix({name: f"{row[name]:.4f}"}, refresh=False)
        bar.update()
        if self.callback is not None:
            self.callback(dict(row))


class Fit:
    """One fit in progress: the data, how epochs are judged, what is told and kept, and how stages are trained."""

    def __init__(
        self,
        data: Partition,
        monitor: str,
        log: Log | None = None,
        store: Store | None = None,
        threads: int = 1,
        watch: Callable[[str, int, Scorer], None] | None = None,
        device: Device | None = None,
    ):
        self.data, self.validation, self.device = data, Validation(data, monitor), device or Cpu()
        self.log, self.store, self.threads = Log() if log is None else log, store, threads
        self.watch = watch  # sees (stage, epoch, the scorer in training) after every epoch
        self.kept = -np.inf  # the validation metric of the weights that the last stage returned
        self.lengths: dict[str, int] = {}  # epochs that each stage took to its best; known beforehand, they are kept to
        self.start: Begin | None = None  # where stages begin, unless at random

    def new(self, stage: Stage) -> Weights:
        """The weights that a stage begins with: random, or an earlier model's."""
        return stage.new(self.data) if self.start is None else self.start.new(stage, self.data)

    def pretrain(self, stage: Stage) -> Weights:
        """M_c on S_c (`with_a`: and S_t), or M_t on S_t alone; from the store where an equal one is kept. The history
        is the same either way."""
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

    def train(self, stage: Stage, terms: Sequence[Term], start: Callable[[], Weights] | None = None) -> Weights:
        """Train on `terms` with a fresh optimizer; returns the best weights on S_va.

        start: makes the weights to begin with (default: at random), which are also what is returned if no epoch is
        better. They are made here, so that nobody else holds them when the trainer has its own copy.
        """
        terms, loss = self._weighted(with_negatives(terms, stage, self.data), stage), LOSSES[stage.loss]
        batch_size = min(stage.batch_size, sum(term.size for term in terms))
        in_background = self.threads > 1 and sum(term.size for term in terms) >= WORTH_SHARING
        with BackgroundThread() if in_background else contextlib.nullcontext() as background:
            weights = start() if start is not None else self.new(stage)
            trainer, drawn = self.device.training(weights, terms, stage, batch_size)
            epochs = drawn if background is None else PrefetchedEpochs(drawn, background, self._length(stage))
            stopping = EarlyStopping(stage.patience)
            if start is not None and self.validation.usable:
                stopping.begin(self.validation(weights), weights)
            del weights

            def one_epoch(epoch: int) -> dict[str, float]:
                totals = trainer.epoch(epochs.draw(epoch), len(terms), loss, stage.lr, stage.lam)
                return epochs.mean_losses(totals)

            return self.run_epochs(stage, one_epoch, trainer, trainer.weights, stopping, background)

    def _length(self, stage: Stage) -> int:
        """At most so many epochs."""
        return self.lengths.get(stage.name, stage.epochs)

    def descend(self, stage: Stage, solver: Solver, stopping: EarlyStopping | None = None) -> Weights:
        """Full-batch epochs of an exact objective; returns the best weights on S_va."""
        return self.run_epochs(stage, lambda epoch: {"total": solver.step(epoch)}, solver, solver.weights, stopping)

    def _weighted(self, terms: Sequence[Term], stage: Stage) -> Sequence[Term]:
        return theory_weighted(terms, self.data) if stage.weighting == "theory" else terms

    def run_epochs(
        self,
        stage: Stage,
        one_epoch: Callable[[int], dict[str, float]],
        scorer: TrainedScorer,
        weights: Callable[[], Any],
        stopping: EarlyStopping | None = None,
        background: BackgroundThread | None = None,
    ) -> Any:
        """Epochs until early stopping or `stage.epochs`; returns the best weights on S_va, without S_va the last.

        `one_epoch(epoch)` trains and returns each term's loss; `scorer` scores under the current weights; `weights()`
        copies them. With `background`, an epoch is judged while the next one is trained.
        Training that diverged is an error, not a model.
        """
        stopping = EarlyStopping(stage.patience) if stopping is None else stopping
        epoch, n_epochs = 0, self._length(stage)
        with self.log.bar(stage.name, n_epochs) as bar, contextlib.suppress(TrainingOver):
            judge = Judge(self, stage, stopping, bar)
            judged = judge if background is None else DeferredJudge(judge, background)
            for epoch in range(1, n_epochs + 1):
                start = time.perf_counter()
                term_losses = one_epoch(epoch)
                judged(Trained(epoch, term_losses, time.perf_counter() - start), scorer, weights)
            judged.finish()
        self.kept = stopping.best
        self.lengths.setdefault(stage.name, epoch if stopping.weights is None else stopping.best_epoch)
        return weights() if stopping.weights is None else stopping.weights


def _best_epoch(rows: Sequence[dict[str, Any]], monitor: str) -> int:
    """The epoch that early stopping kept of a stage that began at random; without a usable S_va the last."""
    values = np.array([row[f"va_{monitor}"] for row in rows], np.float64)
    return int(rows[-1 if np.isnan(values).all() else int(np.nanargmax(values))]["epoch"])


class Trained(NamedTuple):
    """An epoch that was trained."""

    epoch: int
    term_losses: dict[str, float]
    seconds: float


class Judge:
    """What comes of an epoch: an error where it diverged, a row of the history, and `TrainingOver` at the end."""

    def __init__(self, fit: Fit, stage: Stage, stopping: EarlyStopping, bar: Any):
        self.fit, self.stage, self.stopping, self.bar = fit, stage, stopping, bar

    def __call__(self, trained: Trained, scorer: TrainedScorer, weights: Callable[[], Any]) -> None:
        """Judge an epoch now."""
        self.record(trained, scorer, weights, *self.values(trained, scorer))

    def finish(self) -> None:
        """Nothing is left to judge."""

    def values(self, trained: Trained, scorer: TrainedScorer) -> tuple[bool, float, float]:
        """(Whether it is finite, the metric on S_va, how much of its ranking is a user's own)."""
        if not (np.isfinite(list(trained.term_losses.values())).all() and scorer.finite()):
            return False, np.nan, np.nan
        return True, self.fit.validation(scorer), self.fit.validation.personal(scorer)

    def record(
        self,
        trained: Trained,
        scorer: Scorer,
        weights: Callable[[], Any],
        finite: bool,
        value: float,
        personal: float,
    ) -> None:
        """Tell and keep an epoch of these values."""
        fit, stage, epoch = self.fit, self.stage, trained.epoch
        if not finite:
            raise DivergenceError(
                f"{stage.name} diverged in epoch {epoch}: a parameter is not finite; "
                f"lower lr (now {stage.lr:g}) or raise the regularisation"
            )
        fit.log.add(self.bar, self._row(trained, value) | {"personal": personal, "seconds": trained.seconds})
        if fit.watch is not None:
            fit.watch(stage.name, epoch, scorer)
        if fit.validation.usable and self.stopping.stop_after(epoch, value, personal, weights):
            raise TrainingOver
        if self.stopping.converged(sum(trained.term_losses.values())):
            raise TrainingOver

    def _row(self, trained: Trained, value: float) -> dict[str, Any]:
        """An epoch in the history: every term's mean loss (by weight) and the validation metric."""
        losses = {f"loss_{name}": float(loss) for name, loss in trained.term_losses.items()}
        value = float(value) if np.isfinite(value) else float("nan")
        metric = f"va_{self.fit.validation.monitor}"
        return {"stage": self.stage.name, "epoch": trained.epoch, **losses, metric: value}


class DeferredJudge:
    """Judges epochs on copies of their weights while the next ones are trained."""

    def __init__(self, judge: Judge, background: BackgroundThread):
        self.judge, self.background = judge, background
        self.waiting: tuple[Trained, Any, Future[Any]] | None = None

    def __call__(self, trained: Trained, scorer: TrainedScorer, weights: Callable[[], Any]) -> None:
        """Have an epoch judged, after those before it."""
        self.finish()
        copy = weights()
        self.waiting = trained, copy, self.background.submit(self.judge.values, trained, copy)

    def finish(self) -> None:
        """Settle the epoch that waits, if one does."""
        if self.waiting is not None:
            (trained, copy, values), self.waiting = self.waiting, None
            self.judge.record(trained, copy, lambda: copy, *values.result())


def train_jointly(
    fit: Fit,
    stages: tuple[Stage, Stage],
    models: tuple[Weights, Weights],
    terms: Sequence[Term],
    term_e1: Term | None,
    alignment: Alignment | None = None,
) -> tuple[Weights, Weights]:
    """Train copies of M_c on `terms` and of M_t on e.1, batch by batch side by side; returns the best pair on S_va.

    `stages` and `models` are those of M_c and of M_t. Within a batch each model sees the other's weights as they were
    before the batch: M_t's predictions are term d's targets, M_c's are those of the same pairs for M_t where the loss
    is symmetric, and an alignment pulls both ways.
    """
    terms = with_negatives(terms, stages[0], fit.data)
    both = fit.device.both_models(stages, models, terms, term_e1, alignment)
    return fit.run_epochs(stages[0], both.epoch, both, both.weights)
