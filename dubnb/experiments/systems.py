"""What is compared: the paper's eight systems, ours beyond the paper, and the baselines that everyone asks for."""

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

PAPER, BEYOND, BASELINES = "paper", "beyond", "baselines"
HEADINGS = {PAPER: "the paper's systems", BEYOND: "beyond the paper", BASELINES: "baselines"}
# group -> system -> (method, parameters that are not searched)
GROUPS: dict[str, Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    PAPER: {name: (name, {}) for name in ("base", "unif", "combine", "ips", "cause", "bridge", "autodebias", "dub")},
    BEYOND: {
        "bridge exact": ("bridge", {"solver": "exact"}),
        "dub exact": ("dub", {"solver": "exact"}),
        "dub-x binary": ("dub-x", {"targets": "binary"}),
        "dub-x graded": ("dub-x", {"targets": "graded"}),
        "dub-x rates": ("dub-x", {"targets": "rates"}),
    },
    BASELINES: {name: (name, {}) for name, method in METHODS.items() if getattr(method, "is_baseline", False)},
}
POPULARITY = "popularity"  # the baseline that a result is held against


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
        """Whether it knows no backbone, and so stands in the tables of all."""
        return self.group == BASELINES

    @property
    def on(self) -> str:
        """The backbone, in words."""
        return "any" if self.is_baseline else self.backbone

    def method_class(self) -> type[Method]:
        """The class of its method."""
        return METHODS[self.method]

    def model(self) -> Method:
        """Its method with the fixed parameters."""
        return self.method_class()().set_params(backbone=self.backbone, **dict(self.fixed))

    def reads_grades(self, data: Partition) -> bool:
        """Whether it trains on grades rather than on 0/1 labels."""
        return data.graded and bool(self.model().resolve(data).targets == "graded")

    def changed(self, name: str, **fixed: Any) -> System:
        """The same under another name, with more parameters fixed."""
        return System(name, self.method, self.backbone, (*self.fixed, *fixed.items()), self.group)


@dataclass(frozen=True)
class Choice:
    """Which systems on which backbones an experiment runs.

    Parameters
    ----------
    names : sequence of str
        Systems, or groups of them: "paper", "beyond", "baselines".
    backbones : sequence of str, optional
        By default those of the experiment in the paper.
    """

    names: Sequence[str] = tuple(GROUPS)
    backbones: Sequence[str] | None = None

    def checked(self) -> Choice:
        """The same, or an InputError that names what is unknown."""
        known = [*GROUPS, *(name for group in GROUPS.values() for name in group)]
        names = tuple(_check.choice("system", name, known) for name in self.names)
        if not names:
            raise InputError(f"no system is named: choose some of {', '.join(known)}")
        backbones = self.backbones and tuple(_check.choice("backbone", b, tuple(BACKBONES)) for b in self.backbones)
        return Choice(names, backbones or None)

    def systems(self, data: Partition, backbones: Iterable[str] = tuple(BACKBONES)) -> list[System]:
        """The chosen systems, backbone by backbone, that run on `data`; `backbones` where none were chosen."""
        wanted = tuple(self.backbones or backbones)
        every = [
            System(name, method, backbone, tuple(fixed.items()), group)
            for backbone in wanted
            for group in (PAPER, BEYOND)
            for name, (method, fixed) in GROUPS[group].items()
            if self._names(name, group)
        ]
        every += [
            System(name, method, METHODS[method].backbones()[0], tuple(fixed.items()), BASELINES)
            for name, (method, fixed) in GROUPS[BASELINES].items()
            if self._names(name, BASELINES)
        ]
        return [system for system in every if _runs(system, data)]

    def _names(self, name: str, group: str) -> bool:
        return name in self.names or group in self.names


def _runs(system: System, data: Partition) -> bool:
    """Whether the method has this solver on this backbone, and the data the grades or rates it asks for."""
    model = system.model()
    has_solver = (system.backbone, model.chosen_solver()) in system.method_class().SETTINGS
    has_targets = {"graded": data.graded, "rates": data.has_rates}.get(str(model.targets), True)
    return has_solver and has_targets
