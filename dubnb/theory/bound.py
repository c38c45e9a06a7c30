"""`dubnb.bound(model, data)`: the paper's bound on the ideal loss, term by term, for any fitted model.

On simulated data everything is known: the ideal loss stands beside the bound, and the gap is told by its parts. On real
logs term b, the bias and the ideal loss cannot be observed. Each gets a certain range (any labels on the unobserved
pairs) and, where the randomized log allows one, a 95 % interval (`dubnb.theory.estimates` says what it assumes).
`python -m bench.coverage_bound` measures how often the intervals hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dubnb import _check
from dubnb._check import InputError
from dubnb.losses import LOSSES
from dubnb.objective import bounds
from dubnb.objective.bounds import Measured, Predictions, Unknown
from dubnb.report import tables
from dubnb.theory import estimates

if TYPE_CHECKING:
    from dubnb.backbones import Weights
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method

ETA = 0.05
NEVER_READ_S_T = ("base", "popularity", "random")  # methods that train on S_c alone, if at all
BITS = 32  # of a weight: so many models of one shape there are
NO_DELTA = "no Delta bounds this loss, which grows without end: Theorem 4.5 has no slack and says nothing"
NOT_FIXED = (
    "The total is no bound: the slack with |H| = 1 is for an M_t that was fixed before S_t was seen, and this one was "
    "trained on S_t. Pass hypotheses= (--hypotheses), the number of models that were at choice, or a teacher= that did "
    "not train on S_t"
)
NO_PROOF = "an objective, not a bound: this loss is not separable where the middle label is a prediction"
MEANINGS = {  # by theorem, (triangle, separability)
    "a": ("S_t: its labels against M_c",) * 2,
    "b": ("S_c: R^t against R^c", "S_c: R^t - R^c against M_c"),
    "c": ("S_c: its labels against M_c",) * 2,
    "d": ("S_u: M_t against M_c",) * 2,
    "e": ("S_t: its labels against M_t", "S_t: the errors of M_t against M_c"),
    "bias": ("S_u's error minus the expectation of e",) * 2,
    "slack": ("Delta / |S_t| sqrt(|D| / 2 log(2 |H| / eta))",) * 2,
}


@dataclass(frozen=True)
class Quantity:
    """A number of the bound: `value` where it is known, and always the range low..high in which it lies.

    `low` and `high` hold for any labels on the pairs that were not observed. `estimate_low` to `estimate_high` is a
    95 % interval where the randomized log allows one. `estimate` is a value in it, or None where the interval only says
    what is possible.
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
        """A number that is no estimate."""
        return cls(meaning, float(value), float(value), float(value), how=how)


@dataclass(frozen=True)
class Bound:
    """The bound of one model on one log.

    `terms`: a, b, c, d, e, bias, slack (without slack where the loss has no Delta); `total`: their sum; `ideal`: the
    ideal loss; `proposition`: the right-hand side of Proposition 4.1 or 4.4, simulated data only; `gap`: total minus
    ideal loss by its causes, simulated data only; `notes`: what to know before any of this is quoted.
    """

    method: str
    data: str
    loss: str
    theorem: str
    proven: bool  # whether the loss has the inequality that the theorem needs
    title: str  # of the total: "bound" where the theorem holds for these models, else "sum"
    eta: float
    terms: Mapping[str, Quantity]
    total: Quantity
    ideal: Quantity
    proposition: float | None
    gap: Mapping[str, float]
    notes: tuple[str, ...]
    measured: Measured = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Everything, in JSON's own types."""
        plain = {name: getattr(self, name) for name in ("method", "data", "loss", "theorem", "proven", "title", "eta")}
        plain["terms"] = {name: asdict(term) for name, term in self.terms.items()}
        plain |= {"total": asdict(self.total), "ideal": asdict(self.ideal), "proposition": self.proposition}
        return plain | {"gap": dict(self.gap), "notes": list(self.notes)}

    def text(self) -> str:
        """The report as text."""
        name = self.title
        rows = [[key, *_cells(term)] for key, term in self.terms.items()]
        rows += [[name, *_cells(self.total)], ["ideal", *_cells(self.ideal)]]
        header = ["", "value", "at least", "at most", "95 % interval", ""]
        shown = [k for k in range(len(header)) if any(_told(row[k]) for row in rows)]
        cells = [[row[k] for k in shown] for row in [header, *rows]]
        lines = [f"{self.theorem}, loss {self.loss}: {self.method} on {self.data}", ""]
        lines += [tables.text(cells[0], cells[1:], "".join("<>>>><"[k] for k in shown))]
        if self.gap:
            lines += ["", f"why the {name} is {self.total.low - self.ideal.low:.4f} above the ideal loss:"]
            lines += [f"  {value:8.4f}  {cause}" for cause, value in self.gap.items()]
        return "\n".join([*lines, "", *self.notes])

    def __str__(self) -> str:
        return self.text()


def _told(value: Any) -> bool:
    return value is not None and value == value


def interval_text(quantity: Quantity) -> str | None:
    """The 95 % interval as printed, with the estimate before it where there is one."""
    if quantity.estimate_low is None:
        return None
    interval = f"{quantity.estimate_low:.4f}..{quantity.estimate_high:.4f}"
    return interval if quantity.estimate is None else f"{quantity.estimate:.4f} ({interval})"


def _cells(quantity: Quantity) -> list[Any]:
    known = quantity.value is not None
    estimate = interval_text(quantity)
    meaning = f"{quantity.meaning}; {quantity.how}" if quantity.how else quantity.meaning
    return [
        quantity.value,
        None if known else quantity.low,
        None if known else quantity.high,
        estimate,
        meaning,
    ]


def bound(
    model: Method,
    data: Partition,
    *,
    loss: str | None = None,
    teacher: Method | Weights | None = None,
    hypotheses: int = 1,
    eta: float = ETA,
    quiet: bool = True,
) -> Bound:
    """Evaluate Theorem 4.2 (mae, zero_one) or 4.5 (bce; mse and squared as an objective only) for a fitted model.

    Parameters
    ----------
    model : fitted method
        M_c, whatever it was trained with.
    data : Partition
        The logs; simulated ones know everything.
    loss : {"bce", "mse", "squared", "mae", "zero_one"}, optional
        The loss of the theorem; the model's own by default.
    teacher : fitted method, optional
        M_t; by default the model's own, or where it has none a `unif` fitted here with the model's backbone, loss and
        seed.
    hypotheses : int
        |H|: how many models M_t was chosen from before S_t was seen. 1 is right for an M_t that did not train on S_t;
        for any other the total is then called a sum, not a bound.
    eta : float
        The theorem may fail with this probability.
    quiet : bool
        Whether to show no progress.
    """
    weights = checked_model(model, data)
    name = checked_loss(model, loss)
    hypotheses = _check.whole("hypotheses", hypotheses, high=2**62)
    eta = _check.real("eta", eta, high=1.0, open_low=True)
    link = LOSSES[name].link
    M_c, M_t = Predictions(weights, own_link(model), link), Predictions(*teacher_of(model, data, teacher), link)
    measured = bounds.measure(M_c, M_t, data, name, quiet=quiet)
    fixed = getattr(teacher, "name", None) in NEVER_READ_S_T
    return _report(model, data, name, measured, hypotheses, eta, weights, fixed)


def checked_model(model: Any, data: Any) -> Weights:
    """The weights of a fitted model that knows the users and items of `data`."""
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
            f"{data.n_items}, or other ids: take the data that it was trained on"
        )
    return weights


def own_link(model: Method) -> bool:
    """Whether a fitted model predicts sigmoid(s)."""
    return LOSSES[model.params_["loss"]].link


def checked_loss(model: Method, loss: str | None) -> str:
    """The loss to evaluate."""
    name = _check.choice("loss", model.params_["loss"] if loss is None else loss, tuple(LOSSES))
    if name == "bce" and not own_link(model):
        raise InputError(
            f"loss='bce' needs predictions inside (0, 1), and a model trained with {model.params_['loss']} has none: "
            "take loss='mae' or 'zero_one'"
        )
    return name


def teacher_of(model: Method, data: Partition, teacher: Any = None) -> tuple[Weights, bool]:
    """M_t and whether it has a link: the one given, the model's own, or a `unif` fitted on S_t."""
    if teacher is None and model.teacher_ is not None:
        return model.teacher_, own_link(model)
    if teacher is None:
        from dubnb.methods.unif import Unif

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
) -> Bound:
    """`fixed`: whether M_t did not train on S_t."""
    triangle, delta = LOSSES[loss].triangle, bounds.DELTAS.get(loss)
    proven, known = triangle or LOSSES[loss].separable, data.truth is not None
    terms = {key: Quantity.known(_meaning(key, triangle), getattr(measured, key)) for key in "acde"}
    terms |= {key: _unknown(key, measured, data, triangle) for key in ("b", "bias")}
    terms = {key: terms[key] for key in ("a", "b", "c", "d", "e", "bias")}
    n_t, n_pairs = len(data.triplets("S_t").users), data.n_users * data.n_items
    if delta is not None:
        value = bounds.slack(delta, n_t, n_pairs, eta, math.log(hypotheses))
        how = f"Delta = {delta:g}, |H| = {hypotheses:,}, eta = {eta:g}"
        terms["slack"] = Quantity.known(_meaning("slack", triangle), value, how)
    holds = proven and "slack" in terms and (fixed or hypotheses > 1)
    notes = _notes(loss, measured, data, weights, eta, known)
    if proven and "slack" in terms and not holds:
        notes = (f"{NOT_FIXED}.", *notes)
    return Bound(
        method=model.name,
        data=data.name,
        loss=loss,
        theorem=f"Theorem {'4.2' if triangle else '4.5'}",
        proven=proven,
        title="bound" if holds else "sum",
        eta=eta,
        terms=terms,
        total=_total(terms, measured, data),
        ideal=_ideal(measured, data),
        proposition=measured.proposition if known else None,
        gap=_gap(measured, terms) if known else {},
        notes=notes,
        measured=measured,
    )


def _meaning(key: str, triangle: bool) -> str:
    return MEANINGS[key][0 if triangle else 1]


def _unknown(key: str, measured: Measured, data: Partition, triangle: bool) -> Quantity:
    """Term b or the bias: known on simulated data, else its certain range and its interval."""
    meaning = _meaning(key, triangle)
    if data.truth is not None:
        return Quantity.known(meaning, getattr(measured, key))
    return _bracketed(key, meaning, measured, data)


def _ideal(measured: Measured, data: Partition) -> Quantity:
    meaning = "the ideal loss, over all of D"
    if data.truth is not None:
        return Quantity.known(meaning, measured.ideal)
    return _bracketed("ideal", meaning, measured, data)


def _bracketed(key: str, meaning: str, measured: Measured, data: Partition) -> Quantity:
    unknown = measured.unknown[key]
    found = estimates.estimate(unknown, measured, data)
    how = _how(unknown, found, measured, data)
    low, high = float(unknown.low), float(unknown.high)
    if found is None:
        return Quantity(meaning, None, low, high, how=how)
    return Quantity(meaning, None, low, high, found.value, found.low, found.high, how)


def _how(unknown: Unknown, found: estimates.Estimate | None, measured: Measured, data: Partition) -> str:
    """What an interval rests on."""
    n_both, on_S_c = len(data.overlap.users), unknown.S_c_if is not None
    if found is None:
        if on_S_c and not unknown.rest_weights.any():
            return "cannot be told from these data, because no pair was observed under both policies"
        return "cannot be told from these data, because S_va and S_te hold pairs of fewer than two users"
    sources = []
    if unknown.rest_weights.any():
        sources.append(f"S_u from {len(measured.sample_users):,} pairs of S_va and S_te")
    if on_S_c:
        sources.append(f"S_c from {n_both:,} pairs observed under both policies" if n_both else "S_c with any labels")
    return f"{', '.join(sources)}, if the log is uniform (see dubnb audit)"


def _total(terms: Mapping[str, Quantity], measured: Measured | None = None, data: Partition | None = None) -> Quantity:
    """The sum of the terms; the intervals of b and of the bias at 97.5 % each, so that their sum has 95 %."""
    low, high = sum(term.low for term in terms.values()), sum(term.high for term in terms.values())
    meaning = "a + b + c + d + e + bias" + (" + slack" if "slack" in terms else "")
    unknown = [name for name, term in terms.items() if term.value is None]
    if not unknown:
        return Quantity.known(meaning, low)
    assert measured is not None and data is not None
    level = 1 - (1 - estimates.LEVEL) / len(unknown)
    found = [estimates.estimate(measured.unknown[name], measured, data, level) for name in unknown]
    if any(each is None for each in found):
        return Quantity(meaning, None, low, high)
    parts = [each for each in found if each is not None]
    known = sum(term.value for term in terms.values() if term.value is not None)
    value = None if any(part.value is None for part in parts) else known + sum(part.value or 0.0 for part in parts)
    ends = (known + sum(part.low for part in parts), known + sum(part.high for part in parts))
    return Quantity(meaning, None, low, high, value, *ends)


def _gap(measured: Measured, terms: Mapping[str, Quantity]) -> dict[str, float]:
    """Total minus ideal loss: what each inequality of the proof gives away."""
    gap = {
        "the inequality on S_c: b + c instead of M_c's ideal loss there": measured.b + measured.c - measured.S_c_ideal,
        "the inequality on S_u: d and M_t's errors instead of M_c's ideal loss there": measured.d
        + measured.S_u_error
        - measured.S_u_ideal,
        "e on this S_t instead of its expectation": measured.e - measured.expected_e,
    }
    return gap | ({"slack": terms["slack"].low} if "slack" in terms else {})


def _notes(
    loss: str, measured: Measured, data: Partition, weights: Weights, eta: float, known: bool
) -> tuple[str, ...]:
    notes = []
    delta, n_t, n_pairs = bounds.DELTAS.get(loss), len(data.triplets("S_t").users), data.n_users * data.n_items
    if not (LOSSES[loss].triangle or LOSSES[loss].separable):
        notes.append(f"{loss} is {NO_PROOF}.")
    elif delta is None:
        notes.append(f"{loss}: {NO_DELTA}.")
    else:
        sampling = bounds.sampling_slack(delta, n_t, eta)
        every = bounds.slack(delta, n_t, n_pairs, eta, _log_models(weights))
        notes.append(
            "The slack takes M_c and M_t for chosen before S_t was seen; with every model of this shape at choice "
            f"({BITS}-bit weights) it is {every:.3g}. For |S_t| draws without replacement {sampling:.4f} suffices."
        )
        if bounds.slack(delta, n_t, n_pairs, eta) >= delta:
            notes.append("The printed slack alone is at least Delta: the theorem as printed says nothing here.")
    if known and LOSSES[loss].separable | LOSSES[loss].triangle:
        holds = "holds" if measured.proposition >= measured.ideal - 1e-12 else "FAILS"
        number = "4.1" if LOSSES[loss].triangle else "4.4"
        notes.append(f"Proposition {number} {holds}: {measured.ideal:.4f} (ideal loss) <= {measured.proposition:.4f}.")
    return tuple(notes)


def _log_models(weights: Weights) -> float:
    """log |H| if H is every setting of the weights: finite, because numbers on a computer are."""
    return sum(array.size for array in weights.arrays().values()) * BITS * math.log(2)
