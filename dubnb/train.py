"""Training: epochs over shuffled streams, early stopping on S_va, progress, history."""

import time
import warnings

import numpy as np

from dubnb import losses, metrics
from dubnb import stream as streams
from dubnb._check import DivergenceError
from dubnb._jit import threads_for_kernels
from dubnb.backbones import embedding as emb
from dubnb.evaluation import evaluate, personal_share, some_pairs
from dubnb.objective.terms import EpochStreams

MONITORS = ("auc", "ndcg")
SIDES = {"items": ("items",), "users": ("users",), "both": ("users", "items")}
NORMS = {"l1": emb.L1, "frobenius": emb.FROBENIUS}


class Validation:
    """The metric on S_va that early stopping watches; without a usable S_va there is none and every epoch runs."""

    def __init__(self, data, monitor):
        self.data, self.monitor = data, monitor
        S_va = data.triplets("S_va")
        positives = S_va.users[S_va.labels > 0]
        self.usable = 0 < len(positives) < len(S_va.users)
        if monitor == "ndcg":  # full-ranking counts only users with a positive and a pair in S_c
            self.usable = self.usable and bool(np.isin(positives, data.triplets("S_c").users).any())
        if not self.usable:
            warnings.warn(
                f"S_va has {len(S_va.users)} pairs with {len(positives)} positives, too few for {monitor}: "
                "no early stopping, all epochs run",
                stacklevel=4,
            )
        self.grid = some_pairs(data)

    def personal(self, scorer):
        """How much of a scorer's ranking is a user's own, see `metrics.personal`."""
        return personal_share(scorer, self.grid)

    def __call__(self, scorer):
        """The metric of a scorer; -inf where S_va cannot tell."""
        if not self.usable:
            return -np.inf
        if self.monitor == "auc":
            S_va = self.data.triplets("S_va")
            return metrics.auc(scorer.score_pairs(S_va.users, S_va.items), S_va.labels)
        return evaluate(scorer, self.data, part="S_va", truth=False)["ndcg"]


class EarlyStopping:
    """Keeps the best weights; says stop after `patience` epochs without better ones.

    Training may meet a good value by chance before it has got anywhere. So epochs before `first` do not count, and
    patience begins with the first epoch whose ranking is a user's own by a share of `alive`; what was best before is
    then forgotten.
    """

    def __init__(self, patience, first=1, alive=0.0):
        self.patience, self.first, self.alive = patience, first, alive
        self.awake, self.best, self.best_epoch, self.weights = False, -np.inf, 0, None

    def stop_after(self, epoch, value, personal, weights):
        """Judge an epoch; `weights` is called for a copy only when it is the best so far."""
        if epoch < self.first:
            return False
        if not self.awake and personal >= self.alive:
            self.awake, self.weights = True, None
        if self.weights is None or value > self.best:
            self.weights = None  # the old best goes before the new one comes: one copy in memory, not two
            self.best, self.best_epoch, self.weights = value, epoch, weights()
        return self.awake and epoch - self.best_epoch >= self.patience


class Log:
    """The rows of `history_`, a progress bar after two seconds, and an optional callback per epoch."""

    def __init__(self, quiet=True, callback=None):
        self.rows, self.quiet, self.callback = [], quiet, callback

    def bar(self, stage, epochs):
        from tqdm import tqdm

        return tqdm(total=epochs, desc=stage, unit="epoch", leave=False, delay=2, disable=self.quiet)

    def add(self, bar, stage, epoch, term_losses, monitor, value, personal, seconds):
        """One epoch's row: every term's mean loss (by weight), the validation metric, how much of the ranking is a
        user's own, the seconds of training alone."""
        row = {"stage": stage, "epoch": epoch}
        row |= {f"loss_{name}": float(loss) for name, loss in term_losses.items()}
        row |= {f"va_{monitor}": float(value) if np.isfinite(value) else float("nan")}
        row |= {"personal": personal, "seconds": seconds}
        self.rows.append(row)
        bar.set_postfix({monitor: f"{value:.4f}"}, refresh=False)
        bar.update()
        if self.callback is not None:
            self.callback(dict(row))

    def frame(self):
        import pandas as pd

        return pd.DataFrame(self.rows)


def run_epochs(one_epoch, scorer, weights, *, stage, settings, validation, log, stopping=None):
    """Epochs until early stopping or `settings.epochs`; returns the best weights on S_va, without S_va the last.

    `one_epoch(epoch)` trains and returns each term's loss; `scorer` scores under the current weights and knows whether
    they are `finite()`; `weights()` copies them. Training that diverged is an error, not a model.
    """
    stopping = EarlyStopping(settings.patience) if stopping is None else stopping
    with log.bar(stage, settings.epochs) as bar:
        for epoch in range(1, settings.epochs + 1):
            start = time.perf_counter()
            term_losses = one_epoch(epoch)
            seconds = time.perf_counter() - start
            if not (np.isfinite(list(term_losses.values())).all() and scorer.finite()):
                raise DivergenceError(
                    f"{stage} diverged in epoch {epoch}: a parameter is not finite; "
                    f"lower lr (now {settings.lr:g}) or raise the regularisation"
                )
            value, personal = validation(scorer), validation.personal(scorer)
            log.add(bar, stage, epoch, term_losses, validation.monitor, value, personal, seconds)
            if validation.usable and stopping.stop_after(epoch, value, personal, weights):
                break
    return weights() if stopping.weights is None else stopping.weights


def train(weights, terms, *, stage, loss, settings, lam, batch_size, validation, log, threads=1):
    """Train a copy of `weights` on `terms` with a fresh optimizer; returns the best weights on S_va.

    `settings` has lr, epochs, patience and seed.
    """
    with threads_for_kernels(threads) as threads:
        trainer = weights.trainer(min(batch_size, sum(term.size for term in terms)), threads)
        del weights  # where the caller has let go too, a third of the memory is free again
        epochs = EpochStreams(terms, settings.seed, stage)

        def one_epoch(epoch):
            totals = trainer.epoch(epochs.draw(epoch), len(terms), loss, settings.lr, lam)
            return epochs.mean_losses(totals)

        return run_epochs(
            one_epoch, trainer, trainer.weights, stage=stage, settings=settings, validation=validation, log=log
        )


def descend(M_c, epoch_step, *, stage, settings, validation, log, stopping=None):
    """Full-batch epochs of an exact objective from M_c (mf); returns the best weights on S_va.

    `epoch_step(P, Q, number)` changes the extended rows in place and returns the objective.
    """
    P, Q = M_c.extended()
    return run_epochs(
        lambda epoch: {"total": epoch_step(P, Q, epoch - 1)},
        ExtendedRows(P, Q),
        lambda: type(M_c).from_extended(P, Q),
        stage=stage,
        settings=settings,
        validation=validation,
        log=log,
        stopping=stopping,
    )


class ExtendedRows:
    """Scores of P and Q while they are being trained."""

    def __init__(self, P, Q):
        self.P, self.Q = P, Q

    def score_pairs(self, users, items):
        return np.einsum("jk,jk->j", self.P[users], self.Q[items])

    def score_rows(self, users):
        return self.P[users] @ self.Q.T

    def finite(self):
        return emb.all_finite(self.P, self.Q)


class Alignment:
    """CausE's pull between the factors of M_c and M_t: of "items" (default), "users" or "both", l1 or Frobenius.

    A term of the batch's mean objective like every other: strength x |W - W'| / samples of the batch.
    """

    def __init__(self, strength, side="items", norm="l1"):
        self.strength, self.sides, self.kind = np.float32(strength), SIDES[side], NORMS[norm]

    def anchors(self, other, batch):
        """The other model's current factors for the rows that `batch` touches."""
        none = emb.no_anchors(other.rank)
        rows = {side: np.ascontiguousarray(other.factors(side, getattr(batch, side))) for side in self.sides}
        return none._replace(strength=self.strength / np.float32(len(batch.users)), kind=self.kind, **rows)


class Cycle:
    """Batches of S_t (term e.1) without end: reshuffled whenever all of them were seen."""

    def __init__(self, term, batch_size, seed, stage):
        self.epochs, self.batch_size = EpochStreams([term], seed, stage), batch_size
        self.round, self.samples, self.position = 0, None, 0

    def next(self):
        """The next batch, as a view."""
        if self.samples is None or self.position >= len(self.samples.users):
            self.round += 1
            self.samples, self.position = self.epochs.draw(self.round), 0
        batch = streams.part(self.samples, self.position, self.position + self.batch_size)
        self.position += self.batch_size
        return batch


def train_jointly(
    M_c, M_t, terms, term_e1, *, stage, loss, settings, lams, batch_sizes, validation, log, alignment=None
):
    """Train copies of M_c on `terms` and of M_t on e.1, batch by batch side by side; returns the best pair on S_va.

    Within a batch each model sees the other's weights as they were before the batch: M_t's predictions are term d's
    targets, M_c's are those of the same pairs for M_t where the loss is symmetric, and an alignment pulls both ways.
    """
    batch_sizes = [min(size, sum(term.size for term in terms)) for size in batch_sizes]
    student, teacher = M_c.trainer(batch_sizes[0]), M_t.trainer(sum(batch_sizes))
    epochs = EpochStreams(terms, settings.seed, stage)
    cycle = Cycle(term_e1, batch_sizes[1], settings.seed, stage + "-t") if term_e1 is not None else None

    def one_batch(batch):
        for_t, weight_e1 = _teacher_batch(student, teacher, batch, epochs.names, cycle, loss)
        pull_c = pull_t = None
        if alignment is not None:
            pull_c, pull_t = alignment.anchors(teacher, batch), alignment.anchors(student, for_t)
        totals = student.epoch(batch, len(terms), loss, settings.lr, lams[0], pull_c)
        total_e1 = teacher.epoch(for_t, 2, loss, settings.lr, lams[1], pull_t)[0] if len(for_t.users) else 0.0
        return totals, np.array([total_e1, weight_e1])

    def one_epoch(epoch):
        samples = epochs.draw(epoch)
        starts = range(0, len(samples.users), batch_sizes[0])
        results = [one_batch(streams.part(samples, start, start + batch_sizes[0])) for start in starts]
        term_losses = epochs.mean_losses(sum(totals for totals, _ in results))
        total_e1, weight_e1 = sum(e1 for _, e1 in results)
        return term_losses | ({"e": total_e1 / weight_e1} if weight_e1 else {})

    both = Both(student, teacher)
    return run_epochs(one_epoch, both, both.weights, stage=stage, settings=settings, validation=validation, log=log)


class Both:
    """Two models in training: the student is judged, both are kept."""

    def __init__(self, student, teacher):
        self.student, self.teacher = student, teacher
        self.score_pairs, self.score_rows = student.score_pairs, student.score_rows

    def finite(self):
        return self.student.finite() and self.teacher.finite()

    def weights(self):
        return self.student.weights(), self.teacher.weights()


def _teacher_batch(student, teacher, batch, names, cycle, loss):
    """Fill in term d's targets in `batch`, and make M_t's batch: some of S_t, and term d's pairs the other way round.

    Returns M_t's batch (its terms: 0 for e.1, 1 for d) and the weight of its e.1 samples.
    """
    e1 = cycle.next() if cycle is not None else streams.empty(0)
    if "d" not in names:
        return e1, float(e1.weights.sum())
    of_d = np.flatnonzero(batch.terms == names.index("d"))
    users, items = batch.users[of_d], batch.items[of_d]
    batch.targets[of_d] = losses.predict(teacher.score_pairs(users, items), loss.link)
    if not loss.symmetric:
        return e1, float(e1.weights.sum())
    targets = losses.predict(student.score_pairs(users, items), loss.link)
    d = streams.Stream(users, items, targets, batch.weights[of_d], np.ones(len(users), np.uint8))
    together = streams.Stream(*(np.concatenate(columns) for columns in zip(e1, d, strict=True)))
    return together, float(e1.weights.sum())
