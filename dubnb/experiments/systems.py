"""The systems that experiments compare: methods under a name, with parameters that are not searched.

A system belongs to one of four groups: the paper's eight, those beyond the paper, further rivals and the baselines.
Each method that is registered in `METHODS` is a system. It is a baseline if its class is one, a rival if its
`by_default` is false, and beyond the paper if no group names it. Rivals run only if they are named: all of them would
double the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dubnb import _check
from dubnb._check import InputError
from dubnb.backbones import BACKBONES
from dubnb.methods import METHODS

if TYPE_CHECKING:
    from dubnb.data.partition import Partition
    from dubnb.methods._method import Method

PAPER, BEYOND, RIVALS, BASELINES, ELSEWHERE = "paper", "beyond", "rivals", "baselines", "elsewhere"
HEADINGS = {
    PAPER: "the paper's systems",
    BEYOND: "beyond the paper",
    RIVALS: "rivals",
    BASELINES: "baselines",
    ELSEWHERE: "models from elsewhere",
}
_PAPER = ("base", "unif", "combine", "ips", "cause", "bridge", "autodebias", "dub")
_VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bridge exact": ("bridge", {"solver": "exact"}),
    "dub exact": ("dub", {"solver": "exact"}),
    "dub-x binary": ("dub-x", {"targets": "binary"}),
    "dub-x graded": ("dub-x", {"targets": "graded"}),
    "dub-x rates": ("dub-x", {"targets": "rates"}),
}
_BOTH_LOGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # rivals that read positives alone, with S_t's too
    "ease with S_t": ("ease", {"terms": "ac"}),
    "ials with S_t": ("ials", {"terms": "acd"}),
    "bpr with S_t": ("bpr", {"terms": "ac"}),
}
_LEARNED: Mapping[str, tuple[str, Mapping[str, Any]]] = {"ips learned": ("ips", {"propensity": "learned"})}
_OTHERS = [name for name in METHODS if name not in (*_PAPER, *(method for method, _ in _VARIANTS.values()))]
_BASELINES = [name for name in _OTHERS if METHODS[name].is_baseline]
# group -> system -> (method, parameters that are not searched)
GROUPS: dict[str, Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    PAPER: {name: (name, {}) for name in _PAPER},
    BEYOND: {
        **_VARIANTS,
        **{name: (name, {}) for name in _OTHERS if METHODS[name].by_default and name not in _BASELINES},
    },
    RIVALS: {**{name: (name, {}) for name in _OTHERS if not METHODS[name].by_default}, **_BOTH_LOGS, **_LEARNED},
    BASELINES: {name: (name, {}) for name in _BASELINES},
}
POPULARITY = "popularity"  # the baseline that reports compare every system with


@dataclass(frozen=True)
class System:
    """A method on a backbone, under a name, with parameters that are not searched."""

    name: str
    method: str
    backbone: str
    fixed: tuple[tuple[str, Any], ...] = ()
    group: str = PAPER

    @property
    def is_baseline(self) -> bool:
        """Whether it has no backbone of its own; the tables of every backbone list it."""
        return self.group == BASELINES

    @property
    def on(self) -> str:
        """The backbone as text: "any" for a baseline."""
        return "any" if self.is_baseline else self.backbone

    def method_class(self) -> type[Method]:
        """The class of the method."""
        return METHODS[self.method]

    def model(self) -> Method:
        """A new model with the fixed parameters."""
        return self.method_class()().set_params(backbone=self.backbone, **dict(self.fixed))

    def reads_grades(self, data: Partition) -> bool:
        """Whether it trains on grades rather than on 0/1 labels."""
        return data.graded and bool(self.model().resolve(data).targets == "graded")

    def runs_on(self, data: Partition) -> bool:
        """Whether the method has this solver on this backbone, and the data have the grades or rates it needs."""
        model = self.model()
        has_solver = (self.backbone, model.chosen_solver()) in self.method_class().SETTINGS
        return has_solver and {"graded": data.graded, "rates": data.has_rates}.get(str(model.targets), True)

    def changed(self, name: str, **fixed: Any) -> System:
        """A copy under another name, with more parameters fixed."""
        return System(name, self.method, self.backbone, (*self.fixed, *fixed.items()), self.group)


@dataclass(frozen=True)
class OutsideSystem(System):
    """A model from elsewhere: only its scores are known, so nothing of it is searched."""

    method: str = ""
    backbone: str = ""
    group: str = ELSEWHERE

    @property
    def on(self) -> str:
        """Where its model comes from, in place of a backbone."""
        return ELSEWHERE

    def reads_grades(self, data: Partition) -> bool:
        """Not known."""
        return False


@dataclass(frozen=True)
class Choice:
    """Which systems on which backbones an experiment runs.

    Parameters
    ----------
    names : sequence of str
        Systems, or groups of them: "paper", "beyond", "rivals", "baselines". By default all but the rivals.
    backbones : sequence of str, optional
        By default those of the experiment in the paper.
    """

    names: Sequence[str] = (PAPER, BEYOND, BASELINES)
    backbones: Sequence[str] | None = None

    @classmethod
    def everything(cls) -> Choice:
        """All systems, with the rivals."""
        return cls(tuple(GROUPS))

    def checked(self) -> Choice:
        """A checked copy; an unknown name raises InputError."""
        known = [*GROUPS, *(name for group in GROUPS.values() for name in group)]
        names = tuple(_check.choice("system", name, known) for name in self.names)
        if not names:
            raise InputError(f"no system is named: choose some of {', '.join(known)}")
        backbones = self.backbones and tuple(_check.choice("backbone", b, tuple(BACKBONES)) for b in self.backbones)
        return Choice(names, backbones or None)

    def systems(self, data: Partition, backbones: Iterable[str] = tuple(BACKBONES)) -> list[System]:
        """The chosen systems that run on `data`, backbone by backbone, then the baselines.

        `backbones` are those of the experiment, for a choice that names none.
        """
        every = [
            System(name, method, backbone, tuple(fixed.items()), group)
            for backbone in self.backbones or backbones
            for group in (PAPER, BEYOND, RIVALS)
            for name, (method, fixed) in self._chosen(group)
        ]
        for name, (method, fixed) in self._chosen(BASELINES):
            every.append(System(name, method, METHODS[method].backbones()[0], tuple(fixed.items()), BASELINES))
        return [system for system in every if system.runs_on(data)]

    def _chosen(self, group: str) -> list[tuple[str, tuple[str, Mapping[str, Any]]]]:
        return [item for item in GROUPS[group].items() if item[0] in self.names or group in self.names]

    def options(self) -> list[str]:
        """The options of the command line that make this choice."""
        words = ["--systems", ",".join(self.names)] if self.names != Choice().names else []
        return words + (["--backbone", ",".join(self.backbones)] if self.backbones else [])
