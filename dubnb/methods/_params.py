"""Parameters of a method: scikit-learn's conventions, one table of defaults, checks that convert, one description."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from dubnb import _check
from dubnb._check import Check, InputError
from dubnb.methods._settings import YAHOO_R3, LogFacts, Settings, Times

if TYPE_CHECKING:
    from dubnb.data.partition import Partition

Value = TypeVar("Value")
HEADING = "Parameters\n----------\n"


class Parameters:
    """A dataclass of parameters, of which None means: the default for this backbone and solver.

    Subclasses say what they add: fields, CHECKS of these fields, and SETTINGS. A class documents the fields it declares
    under "Parameters"; those of its bases are added to its docstring.
    """

    name: ClassVar[str]
    backbone: str
    SETTINGS: ClassVar[Mapping[tuple[str, str], Settings]]  # (backbone, solver) -> defaults and grids
    CHECKS: ClassVar[Mapping[str, Check]] = {}  # parameter -> check and conversion, of the class's own fields
    COMMON: ClassVar[Mapping[str, Any]] = {}  # defaults of every backbone and solver
    _own_doc: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._own_doc = inspect.cleandoc(vars(cls).get("__doc__") or "")
        sections = [vars(base).get("_own_doc", "").partition(HEADING)[2] for base in cls.__mro__]
        about = cls._own_doc.partition(HEADING)[0].rstrip()
        cls.__doc__ = f"{about}\n\n{HEADING}" + "\n".join(filter(None, sections))

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

    # -- what None stands for, and what is allowed

    def chosen_solver(self) -> str:
        """The solver that the parameters ask for."""
        given = getattr(self, "solver", None)
        known = tuple(dict.fromkeys(solver for _, solver in self.SETTINGS))
        return "sampled" if given is None else _check.choice("solver", given, known)

    @classmethod
    def backbones(cls) -> tuple[str, ...]:
        """Those that the method runs on."""
        return tuple(dict.fromkeys(backbone for backbone, _ in cls.SETTINGS))

    def settings(self) -> Settings:
        """Defaults and grids for this backbone and solver."""
        backbone = _check.choice("backbone", self.backbone, self.backbones())
        solvers = tuple(s for b, s in self.SETTINGS if b == backbone)
        solver = self.chosen_solver()
        if solver not in solvers and solver in {s for _, s in self.SETTINGS}:
            raise InputError(f"solver={solver!r} is not there for backbone={backbone!r}: use solver={solvers[0]!r}")
        return self.SETTINGS[backbone, _check.choice("solver", solver, solvers)]

    def defaults(self) -> dict[str, Any]:
        """What None stands for, by parameter: a value, or a rule by which it follows from the log."""
        return {**self.COMMON, "solver": self.chosen_solver(), **self.settings().defaults}

    def resolve(self, data: Partition | None = None) -> Self:
        """A copy with every parameter checked, converted to plain Python, and with its default in place of None.

        Defaults follow from the log; without `data` they are those at Yahoo! R3's size.
        """
        log = YAHOO_R3 if data is None else LogFacts.of(data)
        checks = self._all_checks()
        values = {k: v if v is None else checks[k](k, v) for k, v in self.get_params().items()}
        for parameter, default in self.defaults().items():
            if parameter in values and values[parameter] is None:
                values[parameter] = default(log, values) if callable(default) else default
        resolved = type(self)(**{k: checks[k](k, v) for k, v in values.items()})
        resolved.check()
        return resolved

    def _all_checks(self) -> dict[str, Check]:
        checks: dict[str, Check] = {}
        for base in reversed(type(self).__mro__):
            checks |= vars(base).get("CHECKS", {})
        for parameter in self.get_params().keys() - checks.keys():
            raise TypeError(f"{type(self).__name__}.CHECKS has no entry for its parameter {parameter!r}: add one")
        return checks

    def check(self) -> None:
        """Refuse combinations of (resolved) parameters that mean nothing."""

    def resolved_params(self, data: Partition | None = None) -> dict[str, Any]:
        """All parameters, checked, with the method's defaults in place of None; see `resolve`."""
        return self.resolve(data).get_params()

    def grid(self, name: str, data: Partition | None = None) -> dict[str, tuple[Any, ...]]:
        """The method's own grid "paper", "wide" or "even": {parameter: values}; see `resolve` for `data`."""
        axes, defaults = self.settings().grid(name), self.resolve(data).get_params()
        return {
            parameter: tuple(_digits(factor * defaults[parameter]) for factor in values)
            if isinstance(values, Times)
            else tuple(values)
            for parameter, values in axes.items()
        }

    def idle(self) -> set[str]:
        """Parameters that change nothing under the others: searching them would be no search."""
        return set()


def required(value: Value | None) -> Value:
    """A parameter of a resolved method, where a default has taken the place of None."""
    if value is None:
        raise TypeError("a parameter is None: resolve() the method first, or give SETTINGS or COMMON a default for it")
    return value


def _digits(value: float) -> float:
    """Three significant digits."""
    return float(f"{value:.3g}")


def _same_value(value: Any, default: Any) -> bool:
    """Whether a parameter has its default; arrays never do."""
    return value is default or (np.ndim(value) == np.ndim(default) == 0 and value == default)
