"""Parameters of a method: scikit-learn's conventions, defaults that follow from the log, checks, grids, docstrings.

Default settings suit logs of any size without tuning. At the size of Yahoo! R3 they are the paper's numbers, or the
prototype's where the paper gives none:

- Batch sizes are powers of two: about 300 steps per epoch on S_c (sizes 16 to 1,024), about 42 on S_t (8 to 128). Adam
  moves a weight by about lr per step for any gradient, so the number of steps measures an epoch's length.
- lam x batch size is constant. A row that a batch touches once is decayed by lam, but gets only 1 / batch size of
  its sample's gradient.
- bridge and dub have 100 factors, or 50 if S_c has fewer than 100,000 pairs.
- dub's M_c is pre-trained on S_c, and also on S_t if S_t has at least 3 % as many pairs as S_c; it then starts as
  `combine`.
- A pair of S_t weighs more in dub-x the rarer these pairs are: 5 if S_t is at most 1.7 % of S_c, as in Yahoo! R3.
  Above that the weight falls with the root of |S_c| / |S_t|, down to 2.
- The exact solvers' lam is `cutoff` times the scale of noise in the log, see `terms.noise_scale`.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from dubnb import _check
from dubnb._check import Check, InputError
from dubnb.data.rows import RANKS

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

PAPER_RANKS, PAPER_STRENGTHS = (50, 100, 200), (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # the paper's lambda and gamma
WIDE_RANKS = (10, 20, 50, 100, 200)
WIDE_GAMMAS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 1.5, 2.0, 4.0)
FINE_LAMS = tuple(float(f"{10 ** (-5 + k / 6):.3g}") for k in range(25))  # the paper's, and five between each two
S_C_STEPS, S_C_BATCHES = 304, (16, 1024)  # the number of steps per epoch to aim at, and the range of batch sizes
S_T_STEPS, S_T_BATCHES = 42, (8, 128)
FEW_PAIRS = 100_000  # a smaller S_c is a small log
S_T_SHARE = 0.03  # |S_t| / |S_c| from which M_c's pre-training also reads S_t
S_T_WEIGHTS = (2.0, 5.0)  # the smallest and the largest weight of a pair of S_t in dub-x
NEGATIVES = 4  # drawn for each positive of a log without negatives

# -- settings: defaults that follow from the log, and grids


@dataclass(frozen=True)
class LogFacts:
    """The facts about a log that defaults may depend on."""

    n_users: int
    n_items: int
    n_c: int  # pairs of S_c
    n_t: int  # pairs of S_t
    graded: bool
    click_only: bool = False  # S_c holds positives alone
    has_rates: bool = False  # grades are the shares of a pair's impressions that are positive
    ranked: bool = False  # grades are ranks of labels such as seconds

    @classmethod
    def of(cls, data: Partition) -> LogFacts:
        """The facts about a Partition."""
        return cls(
            n_users=data.n_users,
            n_items=data.n_items,
            n_c=data.size("S_c"),
            n_t=len(data.triplets("S_t").users),
            graded=data.graded,
            click_only=data.click_only,
            has_rates=data.has_rates,
            ranked=data.grading == RANKS,
        )


YAHOO_R3 = LogFacts(15_400, 1_000, 311_704, 5_400, graded=False)  # assumed when a default is asked for without data

Rule = Callable[[LogFacts, Mapping[str, Any]], Any]  # (facts about the log, parameters known so far) -> default
Grid = Mapping[str, tuple[Any, ...]]


class Times(tuple[float, ...]):
    """Values of a grid, as multiples of the parameter's default on this log."""


LOW_LAMS = Times((0.03, 0.1, 0.3, 1.0, 3.0, 10.0))  # for ips and cause, whose best lam can be far below the default


@dataclass(frozen=True)
class Settings:
    """Defaults and grids of a method on one backbone with one solver.

    defaults: values, or rules that compute them from the log. paper: the paper's grid, or the nearest to it where the
    paper's numbers do not apply. wide: for quality. even: as many points as the paper's grid of a method with gamma, so
    that a search costs the same for every method. near: the parameters of a small search around the defaults, the most
    influential first, each with the factor between neighbours.
    """

    defaults: Mapping[str, Any]
    paper: Grid
    wide: Grid
    even: Grid
    near: Mapping[str, float] = field(default_factory=lambda: {"lam": 3.0, "rank": 2.0})

    def grid(self, name: str) -> Grid:
        """The grid "paper", "wide" or "even"."""
        return {"paper": self.paper, "wide": self.wide, "even": self.even}[name]


def _batch_size(n: int, steps: int, sizes: tuple[int, int]) -> int:
    low, high = sizes
    return min(high, max(low, 2 ** round(math.log2(n / steps)))) if n else low


def batch_of_S_c(log: LogFacts, known: Mapping[str, Any]) -> int:
    """The power of two that gives about 304 steps per epoch."""
    return _batch_size(log.n_c, S_C_STEPS, S_C_BATCHES)


def batch_of_S_t(log: LogFacts, known: Mapping[str, Any]) -> int:
    """The power of two that gives about 42 steps per epoch, at most `batch_size`."""
    own = _batch_size(log.n_t, S_T_STEPS, S_T_BATCHES)
    return min(own, known.get("batch_size") or own)


def negatives_of(log: LogFacts, known: Mapping[str, Any]) -> int:
    """The number of negatives drawn for each positive: 0 if the log has negatives."""
    return NEGATIVES if log.click_only else 0


def rank_of(many: int, few: int) -> Rule:
    """A rule: `many` factors, or `few` on a small log."""
    return lambda log, known: few if log.n_c < FEW_PAIRS else many


def letters_of_pretraining(log: LogFacts, known: Mapping[str, Any]) -> str:
    """The terms of M_c's pre-training: c, with mf also a if it is kept and S_t is large enough."""
    enough = log.n_t >= S_T_SHARE * log.n_c
    return "ac" if enough and "a" in known["terms"] and known["backbone"] == "mf" else "c"


def weight_of_S_t(log: LogFacts, known: Mapping[str, Any]) -> float:
    """The weight of a pair of S_t if a pair of S_c weighs 1: it grows with the root of |S_c| / |S_t|."""
    low, high = S_T_WEIGHTS
    rarity = (log.n_c / max(log.n_t, 1)) / (YAHOO_R3.n_c / YAHOO_R3.n_t)
    return min(high, max(low, high * math.sqrt(rarity)))


def lam_of_S_c(lam: float) -> Rule:
    """A rule: `lam` with batches of 1,024, and more with smaller ones."""
    return lambda log, known: lam * S_C_BATCHES[1] / known["batch_size"]


def lam_of_S_t(lam: float, batch_size: str = "teacher_batch_size") -> Rule:
    """A rule: `lam` with batches of 128, and more with smaller ones."""
    return lambda log, known: lam * S_T_BATCHES[1] / known[batch_size]


def of_lam(defaults: Mapping[str, Any], wide: Grid | None = None) -> Settings:
    """The settings of methods that tune rank and lam."""
    return Settings(
        defaults,
        paper={"rank": PAPER_RANKS, "lam": PAPER_STRENGTHS},
        wide={"rank": WIDE_RANKS, "lam": Times((0.1, 0.3, 1.0, 3.0, 10.0))} | dict(wide or {}),
        even={"rank": PAPER_RANKS, "lam": FINE_LAMS},
    )


def of_gamma(defaults: Mapping[str, Any], wide: Grid | None = None) -> Settings:
    """The settings of methods that tune rank, lam and gamma."""
    paper = {"rank": PAPER_RANKS, "lam": PAPER_STRENGTHS, "gamma": PAPER_STRENGTHS}
    return Settings(
        defaults,
        paper=paper,
        wide={"rank": WIDE_RANKS, "lam": Times((0.25, 1.0, 2.5, 10.0, 25.0)), "gamma": WIDE_GAMMAS} | dict(wide or {}),
        even=paper,
        near={"lam": 3.0, "gamma": 3.0, "rank": 2.0},
    )


# -- parameters

Parameter = TypeVar("Parameter")
OTHERS = "backbone, loss, rank, ...\n    Every method has these and more: see `help(dubnb.methods.Method)`."
SECTION = re.compile(r"^(\w+)\n-{3,}\n", re.MULTILINE)  # the heading of a numpydoc section


class ShortHelp(type):
    """The class of method classes: `help(dubnb.DubX)` shows its docstring without what all methods share.

    Every method has fit, recommend, evaluate and many more. `help(dubnb.methods.Method)` documents them once; `dir` of
    an instance lists them all.
    """

    def __dir__(cls) -> list[str]:
        return list(super().__dir__()) if Parameters in cls.__bases__ else ["__doc__", "name"]


class Parameters:
    """Base of dataclasses whose fields are a method's parameters; None stands for the default.

    Subclasses declare fields, CHECKS of these fields and SETTINGS, and document the fields under "Parameters". The
    entries of their bases are added to that section, except those that all methods share.
    """

    name: ClassVar[str]
    backbone: str
    TERMS: ClassVar[str]  # letters of the method's terms
    SETTINGS: ClassVar[Mapping[tuple[str, str], Settings]]  # (backbone, solver) -> defaults and grids
    CHECKS: ClassVar[Mapping[str, Check]] = {}  # parameter -> check and conversion, of the class's own fields
    COMMON: ClassVar[Mapping[str, Any]] = {}  # defaults for every backbone and solver
    _own_doc: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._own_doc = inspect.cleandoc(vars(cls).get("__doc__") or "")
        if Parameters in cls.__bases__:  # the base of all methods, whose parameters all share
            return
        bases = (base for base in cls.__mro__ if Parameters not in base.__bases__)
        docs = [SECTION.split(vars(base).get("_own_doc", "")) for base in bases]
        head, own = docs[0][0].strip(), dict(zip(docs[0][1::2], docs[0][2::2], strict=True))
        entries = [doc[doc.index("Parameters") + 1].strip("\n") for doc in docs if "Parameters" in doc]
        own = {"Parameters": "\n".join([*entries, OTHERS]), **{k: v for k, v in own.items() if k != "Parameters"}}
        sections = (f"{title}\n{'-' * len(title)}\n{text.strip()}" for title, text in own.items())
        cls.__doc__ = "\n\n".join([head, *sections])

    # -- scikit-learn's conventions

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def set_params(self, **params: Any) -> Self:
        """Change some of the constructor's arguments."""
        known = tuple(self.get_params())
        for parameter, value in params.items():
            _check.choice("parameter", parameter, known)
            setattr(self, parameter, value)
        return self

    def __repr__(self) -> str:
        signature = inspect.signature(type(self)).parameters
        changed = [f"{k}={v!r}" for k, v in self.get_params().items() if not _same_value(v, signature[k].default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    # -- defaults and checks

    def chosen_solver(self) -> str:
        """The solver that the parameters select."""
        given = getattr(self, "solver", None)
        known = tuple(dict.fromkeys(solver for _, solver in self.SETTINGS))
        return "sampled" if given is None else _check.choice("solver", given, known)

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring, for lists of methods."""
        return (cls.__doc__ or "").partition("\n")[0].rstrip(".")

    @classmethod
    def backbones(cls) -> tuple[str, ...]:
        """The backbones that the method supports."""
        return tuple(dict.fromkeys(backbone for backbone, _ in cls.SETTINGS))

    def settings(self) -> Settings:
        """Defaults and grids for this backbone and solver."""
        backbone = _check.choice("backbone", self.backbone, self.backbones())
        solvers = tuple(s for b, s in self.SETTINGS if b == backbone)
        solver = self.chosen_solver()
        if solver not in solvers and solver in {s for _, s in self.SETTINGS}:
            raise InputError(f"solver={solver!r} does not support backbone={backbone!r}: use solver={solvers[0]!r}")
        return self.SETTINGS[backbone, _check.choice("solver", solver, solvers)]

    def defaults(self) -> dict[str, Any]:
        """The default of each parameter that may be None: a value, or a rule that computes it from the log."""
        return {"terms": self.TERMS, **self.COMMON, "solver": self.chosen_solver(), **self.settings().defaults}

    def resolve(self, data: Partition | None = None) -> Self:
        """A copy with every parameter checked, converted to plain Python, and with its default in place of None.

        Defaults follow from the log; without `data` they are those at the size of Yahoo! R3.
        """
        checks: dict[str, Check] = {}
        for base in reversed(type(self).__mro__):
            checks |= vars(base).get("CHECKS", {})
        values = self.get_params()
        log = YAHOO_R3 if data is None else LogFacts.of(data)
        for parameter, value in values.items():
            if parameter not in checks:
                raise TypeError(f"{type(self).__name__}.CHECKS has no entry for its parameter {parameter!r}: add one")
            if value is not None:
                values[parameter] = checks[parameter](parameter, value)
        for parameter, default in self.defaults().items():
            if parameter in values and values[parameter] is None:
                values[parameter] = default(log, values) if callable(default) else default
        resolved = type(self)(**{k: checks[k](k, v) for k, v in values.items()})
        resolved.check()
        return resolved

    def check(self) -> None:
        """Refuse combinations of (resolved) parameters that have no meaning."""

    def resolved_params(self, data: Partition | None = None) -> dict[str, Any]:
        """All parameters, checked, with the method's defaults in place of None; see `resolve`."""
        return self.resolve(data).get_params()

    def grid(self, name: str, data: Partition | None = None) -> dict[str, tuple[Any, ...]]:
        """The method's own grid "paper", "wide" or "even": {parameter: values}; see `resolve` for `data`."""
        axes, defaults = self.settings().grid(name), self.resolve(data).get_params()
        return {
            parameter: tuple(float(f"{factor * defaults[parameter]:.3g}") for factor in values)
            if isinstance(values, Times)
            else tuple(values)
            for parameter, values in axes.items()
        }

    def centre(self, parameter: str) -> Any:
        """The value of a (resolved) parameter that a search around the defaults starts from."""
        return getattr(self, parameter)

    def idle(self) -> set[str]:
        """Parameters that have no effect given the others; there is no use in searching them."""
        return set()


def required(value: Parameter | None) -> Parameter:
    """`value` of a resolved method, which is not None."""
    if value is None:
        raise TypeError("a parameter is None: resolve() the method first, or give SETTINGS or COMMON a default for it")
    return value


def _same_value(value: Any, default: Any) -> bool:
    """Whether a parameter has its default; arrays never do."""
    return value is default or (np.ndim(value) == np.ndim(default) == 0 and value == default)
