"""The bound while methods train: every term after every epoch, so that what a method neglects can be seen.

All methods are measured against one M_t, a `unif` fitted on S_t, so that their terms are the same functions of M_c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dubnb import _check, metrics
from dubnb._check import InputError
from dubnb.losses import LOSSES
from dubnb.objective import bounds
from dubnb.objective.bounds import Measured, Predictions
from dubnb.report import tables
from dubnb.theory.estimates import estimate

if TYPE_CHECKING:
    import pandas as pd

    from dubnb.backbones import Scorer
    from dubnb.data.partition import Partition

METHODS = ("base", "unif", "cause", "bridge", "dub")
STAGES_OF_M_C = ("M_c", "refine")
NEGLECTABLE = ("a", "c", "d", "e")  # what a method may or may not train on
SUMMED = ("a", "b", "c", "d", "e", "bias")


class Trace(NamedTuple):
    """`rows`: method, stage, epoch (counted through all stages of M_c), a .. e, bias, sum, ideal, auc."""

    loss: str
    data: str
    rows: pd.DataFrame

    def last(self) -> pd.DataFrame:
        """Every method's last epoch."""
        return self.rows.groupby("method", sort=False).tail(1)

    def answer(self) -> list[str]:
        """What the numbers say, in sentences."""
        last = self.last().set_index("method")
        sentences = []
        for term in NEGLECTABLE:
            order = last[term].sort_values()
            sentences.append(
                f"Term {term} ends lowest with {order.index[0]} ({order.iloc[0]:.4f}) and highest with "
                f"{order.index[-1]} ({order.iloc[-1]:.4f})."
            )
        tightest, best = last["sum"].idxmin(), last["auc"].idxmax()
        same = "which also has" if tightest == best else f"but {best} has"
        sentences.append(
            f"{tightest} ends with the lowest sum ({last['sum'].min():.4f}), {same} the best AUC "
            f"({last['auc'].max():.4f})."
        )
        return sentences

    def text(self) -> str:
        """Every method's last epoch as a table, and what the numbers say."""
        last = self.last()
        columns = [name for name in last if name not in ("stage",)]
        rows = [[row[name] for name in columns] for _, row in last.iterrows()]
        table = tables.text(columns, rows, "<" + ">" * (len(columns) - 1))
        return "\n".join([f"after the last epoch (loss {self.loss}, {self.data})", "", table, "", *self.answer()])


def trace(
    data: Partition, methods: Sequence[str] = METHODS, *, loss: str = "bce", seed: int = 0, quiet: bool = True
) -> Trace:
    """Fit `methods` with their defaults, and evaluate the bound of M_c after every epoch.

    Parameters
    ----------
    data : Partition
        The logs. Where b and the bias are unknown they are estimated as `dubnb.bound` does; nan where they cannot be.
    methods : sequence of str
        Trained by mini-batches on "bce", whatever `loss` the bound is evaluated with.
    loss : str
        That of the theorem.
    seed : int
        Of the models.
    quiet : bool
        Whether to show no progress.
    """
    import pandas as pd

    from dubnb.methods import METHODS as KNOWN
    from dubnb.methods import make

    for name in methods:
        _check.choice("method", name, tuple(KNOWN))
    link = LOSSES[_check.choice("loss", loss, tuple(LOSSES))].link
    if not len(data.triplets("S_te").users):
        raise InputError("S_te is empty: the trace shows the test AUC; load data with a test set")
    M_t = Predictions(make("unif", seed=seed).fit(data, quiet=quiet).weights_, True, link)
    rows: list[dict[str, Any]] = []
    for name in methods:
        watch = _Watch(name, data, loss, M_t, rows)
        make(name, seed=seed).fit(data, quiet=quiet, watch=watch)
    return Trace(loss, data.name, pd.DataFrame(rows))


class _Watch:
    """Adds a row for every epoch of M_c (of `unif`: of its only model)."""

    def __init__(self, name: str, data: Partition, loss: str, M_t: Scorer, rows: list[dict[str, Any]]):
        self.name, self.data, self.loss, self.M_t, self.rows = name, data, loss, M_t, rows
        self.stages = ("M_t",) if name == "unif" else STAGES_OF_M_C
        self.epochs = 0

    def __call__(self, stage: str, epoch: int, scorer: Scorer) -> None:
        if stage not in self.stages:
            return
        self.epochs += 1
        M_c = Predictions(scorer, True, LOSSES[self.loss].link)
        measured = bounds.measure(M_c, self.M_t, self.data, self.loss)
        S_te = self.data.unseen("S_te")
        auc = metrics.auc(scorer.score_pairs(S_te.users, S_te.items), S_te.labels)
        terms = terms_of(measured, self.data)
        row = {"method": self.name, "stage": stage, "epoch": self.epochs, **terms, "sum": sum(terms.values())}
        self.rows.append(row | {"ideal": ideal_of(measured, self.data), "auc": float(auc)})


def terms_of(measured: Measured, data: Partition) -> dict[str, float]:
    """a, b, c, d, e and the bias; where the truth is unknown, the last two are estimates or nan."""
    terms = {name: float(getattr(measured, name)) for name in SUMMED}
    if data.truth is None:
        terms |= {name: _middle(name, measured, data) for name in ("b", "bias")}
    return terms


def ideal_of(measured: Measured, data: Partition) -> float:
    """The ideal loss, or the middle of its interval."""
    return measured.ideal if data.truth is not None else _middle("ideal", measured, data)


def _middle(name: str, measured: Measured, data: Partition) -> float:
    """An estimate, the middle of its interval where that is all there is, nan without one."""
    found = estimate(measured.unknown[name], measured, data)
    if found is None:
        return float("nan")
    return (found.low + found.high) / 2 if found.value is None else found.value
