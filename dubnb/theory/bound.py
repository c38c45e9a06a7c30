"""`dubnb.bound(model, data)`: the paper's bound on the ideal loss, term by term, for any fitted model; and its trace.

On simulated data everything is known: the report shows the ideal loss beside the bound and splits the gap by its
causes. On real logs term b, the bias and the ideal loss cannot be observed. Each gets a certain range (for any labels
on the unobserved pairs) and, where the randomized log allows one, a 95 % interval (see below). `python -m
bench.coverage_bound` measures how often the intervals hold.

`trace` evaluates the bound after every epoch of several methods, which shows the terms that a method neglects. All
methods are measured against one M_t, a `unif` fitted on S_t, so that their terms are the same functions of M_c.

**Intervals** are for sums over pairs whose labels are unknown (`dubnb.objective.bounds.Unknown`).

A sum has three parts.

1. Pairs whose label is known (S_t, S_va, S_te) enter as they are. S_t enters with its own share only: models trained on
   it, so its losses are not typical of other pairs.
2. Pairs in no log. The mean over a user's pairs of S_va and S_te that were not in S_c estimates the mean of hers.
   Assumption: the uniform policy chose those items at random among the user's items outside S_c.
   A user without such a pair gets the mean over all others. Assumption: users with and without are alike.
3. S_c. Pairs observed under both policies estimate P(y^t = 1 | y^c = k), with users as clusters. It stays open which
   pairs of S_c have y^t = 1: a model that trained on S_c scores its pairs unlike other pairs. So the interval takes the
   worst choice. Without pairs observed under both policies every label of S_c stays open.
   Assumption: the uniform policy shows each of a user's pairs of S_c equally often.

Parts 2 and 3 each get half of the error probability, so that together they hold with at least `level`. Users are the
clusters of every variance. The spread between users counts even where all users are in the log, so intervals are wider
than needed there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dubnb import _check, metrics, stats
from dubnb._check import InputError, option, setting
from dubnb.data.pattern import RANDOMIZED
from dubnb.losses import LOSSES
from dubnb.objective import bounds
from dubnb.objective.bounds import Measured, Predictions
from dubnb.report import tables

if TYPE_CHECKING:
    import pandas as pd

    from dubnb.backbones import Scorer, Weights
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method
    from dubnb.objective.bounds import Measured, Unknown


ETA = 0.05
NEVER_READ_S_T = ("base", "popularity", "random")  # methods that do not train on S_t
BITS = 32  # bits of a weight, to count the models of one shape
TRACED = ("base", "unif", "cause", "bridge", "dub")
NEGLECTABLE = ("a", "c", "d", "e")  # terms that a method may train on
MEANINGS = {  # by theorem, (triangle, separability)
    "a": ("S_t: its labels against M_c",) * 2,
    "b": ("S_c: R^t against R^c", "S_c: R^t - R^c against M_c"),
    "c": ("S_c: its labels against M_c",) * 2,
    "d": ("S_u: M_t against M_c",) * 2,
    "e": ("S_t: its labels against M_t", "S_t: the errors of M_t against M_c"),
    "bias": ("S_u's error minus the expectation of e",) * 2,
}
SLACKS = {  # formulas, by kind
    "paper": "Delta / |S_t| sqrt(|D| / 2 log(2 |H| / eta))",
    "hoeffding": "Delta W sqrt(log(2 |H| / eta) / 2n)",
    "design": "Delta sqrt(1/2 sum c_j^2 log(2 |H| / eta))",
    "bernstein": "empirical Bernstein: sqrt(2 V L / n) + 7 Delta W L / (3 (n - 1)), L = log(4 |H| / eta)",
    "freedman": "Freedman: b + sqrt(b^2 + 2 Delta^2 W L / n), b = Delta W L / 3n, L = log(2 |H| / eta)",
}


@dataclass(frozen=True)
class Quantity:
    """A number of the bound: `value` where it is known, and always a range low .. high that contains it.

    `low` and `high` hold for any labels on the pairs that were not observed. `estimate_low` to `estimate_high` is a
    95 % interval where the randomized log allows one. `estimate` is a value in it, or None where the data give an
    interval only. `how` names the data behind the interval.
    """

    meaning: str
    value: float | None
    low: float
    high: float
    estimate: float | None = None
    estimate_low: float | None = None
    estimate_high: float | None = None
    how: str = ""

    @classmethod
    def known(cls, meaning: str, value: float, how: str = "") -> Quantity:
        """A number that needs no estimate."""
        return cls(meaning, float(value), float(value), float(value), how=how)


@dataclass(frozen=True)
class Bound:
    """The bound of one model on one log.

    `terms` holds a, b, c, d, e, bias and slack; there is no slack where the loss has no Delta. `total` is their sum and
    `ideal` the ideal loss. `notes` are caveats to read before quoting a number. Known on simulated data only:
    `proposition`, the right-hand side of Proposition 4.1 or 4.4, and `gap`, total minus ideal loss by its causes.
    """

    method: str
    data: str
    loss: str
    theorem: str
    proven: bool  # whether the loss has the inequality that the theorem needs
    title: str  # name of the total: "bound" where the theorem holds for these models, else "sum"
    eta: float
    terms: Mapping[str, Quantity]
    total: Quantity
    ideal: Quantity
    proposition: float | None
    gap: Mapping[str, float]
    notes: tuple[str, ...]
    measured: Measured = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The bound as a dictionary of JSON types."""
        plain = {name: getattr(self, name) for name in ("method", "data", "loss", "theorem", "proven", "title", "eta")}
        plain["terms"] = {name: asdict(term) for name, term in self.terms.items()}
        plain |= {"total": asdict(self.total), "ideal": asdict(self.ideal), "proposition": self.proposition}
        return plain | {"gap": dict(self.gap), "notes": list(self.notes)}

    def text(self) -> str:
        """The report as text."""
        name = self.title
        rows = [[key, *_quantity_cells(term)] for key, term in self.terms.items()]
        rows += [[name, *_quantity_cells(self.total)], ["ideal", *_quantity_cells(self.ideal)]]
        header = ["", "value", "at least", "at most", "95 % interval", ""]
        filled = [k for k in range(len(header)) if any(row[k] is not None and row[k] == row[k] for row in rows)]
        cells = [[row[k] for k in filled] for row in [header, *rows]]
        lines = [f"{self.theorem}, loss {self.loss}: {self.method} on {self.data}", ""]
        lines += [tables.text(cells[0], cells[1:], "".join("<>>>><"[k] for k in filled))]
        if self.gap:
            lines += ["", f"why the {name} is {self.total.low - self.ideal.low:.4f} above the ideal loss:"]
            lines += [f"  {value:8.4f}  {cause}" for cause, value in self.gap.items()]
        return "\n".join([*lines, "", *self.notes])

    def __str__(self) -> str:
        return self.text()


def interval_text(quantity: Quantity) -> str | None:
    """The 95 % interval as text, after the estimate where there is one."""
    if quantity.estimate_low is None:
        return None
    interval = f"{quantity.estimate_low:.4f}..{quantity.estimate_high:.4f}"
    return interval if quantity.estimate is None else f"{quantity.estimate:.4f} ({interval})"


def _quantity_cells(quantity: Quantity) -> list[Any]:
    ends = (None, None) if quantity.value is not None else (quantity.low, quantity.high)
    meaning = f"{quantity.meaning}; {quantity.how}" if quantity.how else quantity.meaning
    return [quantity.value, *ends, interval_text(quantity), meaning]


def bound(
    model: Method,
    data: Partition,
    *,
    loss: str | None = None,
    teacher: Method | Weights | None = None,
    hypotheses: int = 1,
    eta: float = ETA,
    slack: str | None = None,
    largest_weight: float | None = None,
    quiet: bool = True,
) -> Bound:
    """Evaluate the paper's upper bound on a fitted model's loss under random exposure, for anyone checking the theory.

    The bound is Theorem 4.2 for the losses mae and zero_one, and Theorem 4.5 for bce. For mse and squared the same
    sum is an objective only. `print` shows every term and the caveats.

    Parameters
    ----------
    model : fitted method
        M_c; any method will do.
    data : Partition
        The logs that the model was trained on. On simulated logs every term is known.
    loss : {"bce", "mse", "squared", "mae", "zero_one"}, optional
        The loss of the theorem; by default the model's own.
    teacher : fitted method, optional
        M_t. By default the model's own teacher, or where it has none a `unif` fitted here with the model's backbone,
        loss and seed.
    hypotheses : int
        |H|: the number of models that M_t was chosen from before S_t was seen. 1 is right for an M_t that did not
        train on S_t; with any other M_t the total is then called a sum, not a bound.
    eta : float
        The theorem may fail with this probability.
    slack : {"paper", "hoeffding", "design", "bernstein", "freedman"}, optional
        The slack of the total; docs/theory.md says which holds when. By default "paper", and "hoeffding" where the
        propensities of S_t vary.
    largest_weight : float, optional
        W, an upper limit of the weights w = 1 / (propensity x items that a user could be shown). By default the largest
        in S_t. Pass the policy's own limit if it can show rarer pairs.
    quiet : bool
        Whether to hide the progress bar.

    Returns
    -------
    Bound
        Terms, total, ideal loss and notes; `.text()` and `.to_dict()`.

    Examples
    --------
    >>> data = dubnb.load_dataset("simulated")
    >>> found = dubnb.bound(dubnb.DUB().fit(data), data)
    >>> found.total.value > found.ideal.value
    True
    """
    weights = checked_model(model, data)
    name = checked_loss(model, loss)
    kind = _checked_slack(slack, data)
    W = float(bounds.draws_of(data).weights.max(initial=1.0))
    if largest_weight is not None:
        if kind in ("paper", "design"):
            remedy = f"leave it out, or take {setting('slack', 'hoeffding')}"
            raise InputError(f"{option('largest_weight', '')} has no use with slack {kind}: {remedy}")
        if not _check.real("largest_weight", largest_weight) >= W:
            raise InputError(
                f"largest_weight={largest_weight:g} is below the largest weight in S_t ({W:.5g}): pass a limit above it"
            )
        W = float(largest_weight)
    hypotheses = _check.whole("hypotheses", hypotheses, high=2**62)
    eta = _check.real("eta", eta, high=1.0, open_low=True)
    link = LOSSES[name].link
    M_c, M_t = Predictions(weights, own_link(model), link), Predictions(*teacher_of(model, data, teacher), link)
    measured = bounds.measure(M_c, M_t, data, name, quiet=quiet)
    fixed = getattr(teacher, "name", None) in NEVER_READ_S_T
    return _report(model, data, name, measured, hypotheses, eta, weights, fixed, kind, W)


def checked_model(model: Any, data: Any) -> Weights:
    """The weights of a fitted model, which must have the users and items of `data`."""
    from dubnb.data.partition import Partition

    if not isinstance(data, Partition):
        raise InputError(f"data is a {type(data).__name__}: pass a Partition, such as dubnb.load_dataset returns")
    if not hasattr(model, "_fitted"):
        raise InputError(
            f"model is a {type(model).__name__}: pass a fitted method of dubnb, such as dubnb.load returns"
        )
    weights: Weights = model._fitted()
    ids = ((model.user_ids_, data.user_ids), (model.item_ids_, data.item_ids))
    if not all(np.array_equal(own.values, other.values) for own, other in ids):
        raise InputError(
            f"the model knows {len(ids[0][0])} users x {len(ids[1][0])} items but {data.name} has {data.n_users} x "
            f"{data.n_items}, or other ids: pass the data that it was trained on"
        )
    return weights


def own_link(model: Method) -> bool:
    """Whether a fitted model predicts sigmoid(score)."""
    return LOSSES[model.params_["loss"]].link


def checked_loss(model: Method, loss: str | None) -> str:
    """The loss to evaluate."""
    name = _check.choice("loss", model.params_["loss"] if loss is None else loss, tuple(LOSSES))
    if name == "bce" and not own_link(model):
        raise InputError(
            f"loss='bce' needs predictions inside (0, 1), and a model trained with {model.params_['loss']} has none: "
            "pass loss='mae' or 'zero_one'"
        )
    return name


def teacher_of(model: Method, data: Partition, teacher: Any = None) -> tuple[Weights, bool]:
    """M_t and whether it has a link: the one given, the model's own, or a `unif` fitted on S_t."""
    if teacher is None and model.teacher_ is not None:
        return model.teacher_, own_link(model)
    if teacher is None:
        from dubnb.methods.base import Unif

        params = {name: model.params_[name] for name in ("backbone", "loss", "seed")}
        teacher = Unif(**params).fit(data)
    return checked_model(teacher, data), own_link(teacher)


# ---- the report ----------------------------------------------------------------------------------------------------


def _report(
    model: Method,
    data: Partition,
    loss: str,
    measured: Measured,
    hypotheses: int,
    eta: float,
    weights: Weights,
    fixed: bool = False,
    kind: str = "paper",
    W: float = 1.0,
) -> Bound:
    """The Bound of a model; `fixed`: whether M_t was not trained on S_t; `kind` of slack; `W`: the largest weight."""
    triangle, delta = LOSSES[loss].triangle, bounds.DELTAS.get(loss)
    proven, known = triangle or LOSSES[loss].separable, data.truth is not None
    n_t = len(data.triplets("S_t").users)
    terms = {}
    for key in ("a", "b", "c", "d", "e", "bias"):
        meaning = MEANINGS[key][0 if triangle else 1]
        if known or key not in ("b", "bias"):
            terms[key] = Quantity.known(meaning, getattr(measured, key))
        else:
            terms[key] = _estimated(key, meaning, measured, data)
    notes = []
    if not proven:
        notes.append(
            f"{loss} gives an objective, not a bound: it is not separable if the middle label is a prediction."
        )
    elif delta is None:
        notes.append(f"{loss} is unbounded, so no Delta exists: Theorem 4.5 has no slack and makes no statement.")
    else:
        # log |H| if H is every setting of the weights, which is finite on a computer
        log_models = sum(array.size for array in weights.arrays().values()) * BITS * math.log(2)
        value, widest = (
            slack_of(kind, delta, measured, data, eta, log_h, W) for log_h in (math.log(hypotheses), log_models)
        )
        how = f"Delta = {delta:g}, |H| = {hypotheses:,}, eta = {eta:g}"
        how += f", W = {W:.3g}" if W > 1 and kind not in ("paper", "design") else ""
        terms["slack"] = Quantity.known(SLACKS[kind], value, how)
        sampling = bounds.sampling_slack(delta, n_t, eta)
        notes += _notes_on_slack(kind, data, W)
        if not fixed and hypotheses == 1:
            notes.append(
                "The total is not a bound. The slack with |H| = 1 needs an M_t that was fixed before S_t was seen, and "
                "this one was trained on S_t. Pass hypotheses= (--hypotheses), the number of models that M_t was "
                "chosen from, or a teacher= that did not train on S_t."
            )
        notes.append(
            "The slack assumes that M_c and M_t were chosen before S_t was seen. If any model of this shape could have "
            f"been chosen ({BITS}-bit weights), it is {widest:.3g}."
            + ("" if kind != "paper" else f" For |S_t| draws without replacement {sampling:.4f} suffices.")
        )
        if slack_of(kind, delta, measured, data, eta, 0.0, W) >= delta:
            notes.append("The slack alone is at least Delta: the theorem makes no statement about this log.")
    if known and proven:
        holds = "holds" if measured.proposition >= measured.ideal - 1e-12 else "FAILS"
        number = "4.1" if triangle else "4.4"
        notes.append(f"Proposition {number} {holds}: {measured.ideal:.4f} (ideal loss) <= {measured.proposition:.4f}.")
    meaning = "the ideal loss, over all of D"
    return Bound(
        method=model.name,
        data=data.name,
        loss=loss,
        theorem=f"Theorem {'4.2' if triangle else '4.5'}",
        proven=proven,
        title="bound" if "slack" in terms and (fixed or hypotheses > 1) else "sum",
        eta=eta,
        terms=terms,
        total=_total(terms, measured, data),
        ideal=Quantity.known(meaning, measured.ideal) if known else _estimated("ideal", meaning, measured, data),
        proposition=measured.proposition if known else None,
        gap=_gap(measured, terms) if known else {},
        notes=tuple(notes),
        measured=measured,
    )


def _checked_slack(slack: str | None, data: Partition) -> str:
    """A kind of slack that the design of S_t allows."""
    weighted = data.importance("S_t") is not None
    if slack is None:
        return "hoeffding" if weighted else "paper"
    _check.choice("slack", slack, tuple(SLACKS))
    if slack == "paper" and weighted:
        raise InputError("slack='paper' needs uniform traffic, and the propensities of S_t vary: use hoeffding")
    return slack


def slack_of(
    kind: str, delta: float, measured: Measured, data: Partition, eta: float, log_hypotheses: float, W: float
) -> float:
    """The slack of one kind."""
    draws, common = bounds.draws_of(data), (eta, log_hypotheses)
    if kind == "paper":
        return bounds.slack(delta, len(draws.counts), data.n_users * data.n_items, *common)
    if kind == "design":
        return bounds.design_slack(delta, draws.shares, *common)
    if kind == "bernstein":
        return bounds.bernstein_slack(draws.weights * measured.S_t_error, delta * W, *common, counts=draws.counts)
    of = bounds.propensity_slack if kind == "hoeffding" else bounds.freedman_slack
    return of(delta, W, draws.n, *common)  # type: ignore[arg-type]


def _notes_on_slack(kind: str, data: Partition, W: float) -> list[str]:
    """What a slack with weights assumes."""
    notes = []
    if data.importance("S_t") is not None and kind != "design":
        notes.append(
            f"Term e weighs the draws of S_t by 1 / propensity, without clipping. W = {W:.3g} must limit all weights "
            "that the policy can give: pass largest_weight= (--largest-weight) if rarer pairs are possible."
        )
    if kind in ("hoeffding", "bernstein") and data.importance("S_t") is not None:
        notes.append("The draws must be independent. If the policy learned from earlier rows, use slack freedman.")
    if kind == "design":
        notes.append("The pairs of S_t are taken as fixed; only their labels are random, and independent.")
    return notes


def _estimated(key: str, meaning: str, measured: Measured, data: Partition) -> Quantity:
    """A number that is unknown on real logs: its certain range, its interval, and the data behind the interval."""
    unknown = measured.unknown[key]
    explored = any(data.importance(part) is not None for part in ("S_va", "S_te"))
    found = None if explored else estimate(unknown, measured, data)
    n_both, on_S_c, on_rest = len(data.overlap.users), unknown.S_c_if is not None, unknown.rest_weights.any()
    low, high = float(unknown.low), float(unknown.high)
    if found is None:
        why = "S_va and S_te hold pairs of fewer than two users"
        if explored:
            why = "S_va and S_te are not uniform traffic"
        elif on_S_c and not on_rest:
            why = "no pair was observed under both policies"
        return Quantity(meaning, None, low, high, how=f"cannot be told from these data, because {why}")
    sources = []
    if on_rest:
        sources.append(f"S_u from {len(measured.sample_users):,} pairs of S_va and S_te")
    if on_S_c:
        sources.append(f"S_c from {n_both:,} pairs observed under both policies" if n_both else "S_c with any labels")
    how = f"{', '.join(sources)}, if the log is uniform (see dubnb audit)"
    return Quantity(meaning, None, low, high, found.value, found.low, found.high, how)


def _total(terms: Mapping[str, Quantity], measured: Measured, data: Partition) -> Quantity:
    """The sum of the terms. The intervals of b and of the bias have 97.5 % each, so that their sum has 95 %."""
    low, high = sum(term.low for term in terms.values()), sum(term.high for term in terms.values())
    meaning = "a + b + c + d + e + bias" + (" + slack" if "slack" in terms else "")
    unknown = [name for name, term in terms.items() if term.value is None]
    if not unknown:
        return Quantity.known(meaning, low)
    if any(data.importance(part) is not None for part in ("S_va", "S_te")):
        return Quantity(meaning, None, low, high)
    level = 1 - (1 - LEVEL) / len(unknown)
    parts = []
    for name in unknown:
        part = estimate(measured.unknown[name], measured, data, level)
        if part is None:
            return Quantity(meaning, None, low, high)
        parts.append(part)
    known = sum(term.value for term in terms.values() if term.value is not None)
    value = None if any(part.value is None for part in parts) else known + sum(part.value or 0.0 for part in parts)
    ends = (known + sum(part.low for part in parts), known + sum(part.high for part in parts))
    return Quantity(meaning, None, low, high, value, *ends)


def _gap(measured: Measured, terms: Mapping[str, Quantity]) -> dict[str, float]:
    """Total minus ideal loss: the loss in each inequality of the proof."""
    on_S_u = measured.d + measured.S_u_error - measured.S_u_ideal
    gap = {
        "the inequality on S_c: b + c instead of M_c's ideal loss there": measured.b + measured.c - measured.S_c_ideal,
        "the inequality on S_u: d and M_t's errors instead of M_c's ideal loss there": on_S_u,
        "e on this S_t instead of its expectation": measured.e - measured.expected_e,
    }
    return gap | ({"slack": terms["slack"].low} if "slack" in terms else {})


# ---- the bound while methods train ---------------------------------------------------------------------------------


class Trace(NamedTuple):
    """The bound after every epoch of several methods."""

    loss: str
    data: str
    rows: pd.DataFrame  # method, stage, epoch (counted through all stages of M_c), a .. e, bias, sum, ideal, auc

    def last(self) -> pd.DataFrame:
        """Every method's last epoch."""
        return self.rows.groupby("method", sort=False).tail(1)

    def answer(self) -> list[str]:
        """The conclusions in sentences."""
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
        """A table of every method's last epoch, and the conclusions."""
        last = self.last().drop(columns="stage")
        rows = [list(row) for row in last.itertuples(index=False)]
        table = tables.text(list(last), rows, "<" + ">" * (len(list(last)) - 1))
        return "\n".join([f"after the last epoch (loss {self.loss}, {self.data})", "", table, "", *self.answer()])


def trace(
    data: Partition, methods: Sequence[str] = TRACED, *, loss: str = "bce", seed: int = 0, quiet: bool = True
) -> Trace:
    """Fit `methods` with their defaults, and evaluate the bound of M_c after every epoch.

    Parameters
    ----------
    data : Partition
        The logs. Where b and the bias are unknown, they are estimated as in `dubnb.bound`, or nan.
    methods : sequence of str
        They are trained by mini-batches on "bce" for every `loss`.
    loss : str
        The loss of the theorem.
    seed : int
        Seed of the models.
    quiet : bool
        Whether to hide the progress bar.
    """
    import pandas as pd

    from dubnb.methods import METHODS, make

    for name in methods:
        _check.choice("method", name, tuple(METHODS))
    link = LOSSES[_check.choice("loss", loss, tuple(LOSSES))].link
    if not len(data.triplets("S_te").users):
        raise InputError("S_te is empty: the trace shows the test AUC; load data with a test set")
    M_t = Predictions(make("unif", seed=seed).fit(data, quiet=quiet).weights_, True, link)
    S_te = data.unseen("S_te")
    rows: list[dict[str, Any]] = []
    for name in methods:
        start, stages = len(rows), ("M_t",) if name == "unif" else ("M_c", "refine")

        def watch(stage: str, epoch: int, scorer: Scorer) -> None:
            if stage not in stages:  # noqa: B023 (the loop waits for the fit)
                return
            measured = bounds.measure(Predictions(scorer, True, link), M_t, data, loss)
            terms = terms_of(measured, data)
            row = {"method": name, "stage": stage, "epoch": len(rows) - start + 1, **terms}  # noqa: B023
            ideal = measured.ideal if data.truth is not None else _middle("ideal", measured, data)
            auc = metrics.auc(scorer.score_pairs(S_te.users, S_te.items), S_te.labels, data.judging_weights("S_te"))
            rows.append(row | {"sum": sum(terms.values()), "ideal": ideal, "auc": float(auc)})

        make(name, seed=seed).fit(data, quiet=quiet, watch=watch)
    return Trace(loss, data.name, pd.DataFrame(rows))


def terms_of(measured: Measured, data: Partition) -> dict[str, float]:
    """a, b, c, d, e and the bias; on real logs b and the bias are estimates or nan."""
    terms = {name: float(getattr(measured, name)) for name in ("a", "b", "c", "d", "e", "bias")}
    if data.truth is None:
        terms |= {name: _middle(name, measured, data) for name in ("b", "bias")}
    return terms


def _middle(name: str, measured: Measured, data: Partition) -> float:
    """An estimate; the middle of its interval where there is no point estimate; nan without an interval."""
    found = estimate(measured.unknown[name], measured, data)
    if found is None:
        return float("nan")
    return (found.low + found.high) / 2 if found.value is None else found.value


# ---- intervals for sums over pairs whose labels are unknown ----------------------------------------------------------


LEVEL = 0.95


class EstimatedSum(NamedTuple):
    """An interval, and a value in it where the data suggest one."""

    value: float | None
    low: float
    high: float


def estimate(unknown: Unknown, measured: Measured, data: Partition, level: float = LEVEL) -> EstimatedSum | None:
    """The interval of an unknown sum; None where no observation narrows its certain range."""
    needs_rest = bool(unknown.rest_weights.any())
    needs_S_c = unknown.S_c_if is not None and unknown.S_c_if.shape[1] > 0
    counts_both = bool(len(data.overlap.users))
    part_level = 1 - (1 - level) / 2 if needs_rest and needs_S_c and counts_both else level
    value: float | None = unknown.known
    low = high = unknown.known
    if needs_rest:
        rest = rest_interval(
            unknown.sample, measured.sample_users, unknown.rest_weights, measured.rest_sizes, part_level
        )
        if rest is None:
            return None
        value, low, high = unknown.known + rest.rate, low + rest.low, high + rest.high
    if needs_S_c:
        assert unknown.S_c_if is not None
        if not needs_rest and not counts_both:
            return None
        rates = positives_of_both(data, part_level)
        on_S_c = S_c_interval(unknown.S_c_if, data.triplets("S_c").labels, rates)
        value = None if value is None or on_S_c.value is None else value + on_S_c.value
        low, high = low + on_S_c.low, high + on_S_c.high
    return EstimatedSum(value, max(low, unknown.low), min(high, unknown.high))


def rest_interval(
    sample: np.ndarray, users: np.ndarray, weights: np.ndarray, sizes: np.ndarray, level: float = LEVEL
) -> stats.Rate | None:
    """Estimate sum_u weights_u m_u, where m_u is the mean of user u's `sizes_u` pairs in no log.

    The mean of a user's sample estimates m_u. For a user without a sample, the estimate is the mean over the sampled
    users, R = sum sizes_u m_u / sum sizes_u. With v_u the resulting weight of m_u, the variance is
    G / (G - 1) sum of v_u^2 (m_u - R)^2 over the G sampled users. The users without a sample add a variance as draws of
    the same spread. Student's interval with G - 1 degrees of freedom; None where G < 2.
    """
    from scipy.special import stdtrit

    counts = np.bincount(users, minlength=len(sizes))
    there = counts > 0
    n_users = int(there.sum())
    if n_users < 2:
        return None
    means = np.bincount(users, weights=sample, minlength=len(sizes))[there] / counts[there]
    shares = np.maximum(sizes[there], 1e-12) / np.maximum(sizes[there], 1e-12).sum()
    typical = float(shares @ means)
    missing = weights[~there]
    coefficients = weights[there] + missing.sum() * shares
    spread = n_users / (n_users - 1) * (means - typical) ** 2
    variance = coefficients**2 @ spread + (missing**2).sum() * spread.mean()
    value = float(coefficients @ means)
    half = float(stdtrit(n_users - 1, 1 - (1 - level) / 2) * np.sqrt(variance))
    return stats.Rate(value, value - half, value + half, len(sample))


def positives_of_both(data: Partition, level: float = LEVEL) -> list[stats.Rate | None]:
    """P(y^t = 1 | y^c = k) over S_c for k = 0, 1, from the pairs observed under both policies; jointly at `level`.

    The randomized log repeats a pair of S_c with a probability proportional to n_u, the randomized pairs of its user.
    So a shared pair has weight 1 / n_u. None for a class without such a pair.
    """
    overlap = data.overlap
    n_random = np.sum([data.pattern(part).sizes() for part in RANDOMIZED], axis=0)
    labels_c = data.triplets("S_c").labels
    rates: list[stats.Rate | None] = []
    for k in (0.0, 1.0):
        own = overlap.policy_labels == k
        users = overlap.users[own]
        weights = 1 / np.maximum(n_random[users], 1)
        n_left = int((labels_c == k).sum())
        rates.append(clustered_share(overlap.labels[own], users, weights, n_left, 1 - (1 - level) / 2))
    return rates


def clustered_share(
    labels: np.ndarray, users: np.ndarray, weights: np.ndarray, n_left: int, level: float
) -> stats.Rate | None:
    """The weighted share of positives, with an interval for the share among `n_left` pairs that were not sampled.

    Clopper and Pearson's interval at an effective sample size (Korn and Graubard, 1998): n = r (1 - r) / variance, with
    the variance clustered by user. n is at most Kish's size of the weights. Where all labels agree, n is Kish's size of
    the users. 1 / n + 1 / n_left replaces 1 / n, because the pairs that are left vary around the sample.
    """
    from scipy.special import betaincinv, stdtrit

    if not len(labels):
        return None
    _, rows = np.unique(users, return_inverse=True)
    by_user = np.bincount(rows, weights=weights)
    total = float(weights.sum())
    rate = float(weights @ labels / total)
    residuals = np.bincount(rows, weights=weights * (labels - rate))
    n_users, tail = len(by_user), (1 - level) / 2
    if 0 < rate < 1 and n_users > 1:
        variance = n_users / (n_users - 1) * float(residuals @ residuals) / total**2
        size = rate * (1 - rate) / max(variance, 1e-300)
        size *= float(stdtrit(1e9, 1 - tail) / stdtrit(n_users - 1, 1 - tail)) ** 2
        size = min(size, total**2 / float(weights @ weights))
    else:
        size = total**2 / float(by_user @ by_user)
    size = 1 / (1 / size + 1 / max(n_left, 1))
    x = rate * size
    low = float(betaincinv(x, size - x + 1, tail)) if x > 0 else 0.0
    high = float(betaincinv(x + 1, size - x, 1 - tail)) if x < size else 1.0
    return stats.Rate(rate, low, high, len(labels))


def S_c_interval(if_y: np.ndarray, y_c: np.ndarray, rates: list[stats.Rate | None]) -> EstimatedSum:
    """A sum over S_c from the shares of y^t = 1 in its two classes.

    `if_y` (2, pairs) holds the summands for y^t = 0 and 1. The value treats all pairs of a class as equally likely to
    be positive. The ends assign the positives to the pairs that change the sum least and most.
    """
    value: float | None = 0.0
    low = high = 0.0
    for k, rate in zip((0.0, 1.0), rates, strict=True):
        own = if_y[:, y_c == k]
        n, base, moves = own.shape[1], float(own[0].sum()), np.sort(own[1] - own[0])
        if not n:
            continue
        if rate is None:
            value, ends = None, (0, n)
        else:
            value = None if value is None else value + base + rate.rate * float(moves.sum())
            ends = (int(np.floor(rate.low * n)), int(np.ceil(rate.high * n)))
        low += base + _least(moves, *ends)
        high += base - _least(-moves[::-1], *ends)
    return EstimatedSum(value, low, high)


def _least(moves: np.ndarray, fewest: int, most: int) -> float:
    """The smallest sum of `fewest` to `most` of the moves, which are sorted."""
    n = int(np.clip((moves < 0).sum(), fewest, most))
    return float(moves[:n].sum())
