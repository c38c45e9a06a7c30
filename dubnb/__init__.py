"""dubnb: debiased recommenders from a biased log and a little randomized traffic.

Every name is imported on first use: `import dubnb` itself loads no heavy package and compiles nothing. Type checkers
see the real classes and functions.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dubnb._version import VERSION as __version__

if TYPE_CHECKING:
    from dubnb._check import DivergenceError, InputError, NotFittedError
    from dubnb.data.datasets import load_dataset
    from dubnb.data.partition import Partition
    from dubnb.data.read import read_log
    from dubnb.evaluation import evaluate
    from dubnb.experiments.arena import arena
    from dubnb.experiments.compare import compare
    from dubnb.methods import (
        BPR,
        DIB,
        DR,
        DUB,
        EASE,
        IALS,
        IPS,
        MRDR,
        PDA,
        AutoDebias,
        Base,
        Bridge,
        CausE,
        Combine,
        DubI,
        DubX,
        DubXI,
        Popularity,
        PopularityT,
        Random,
        Refine,
        RelMF,
        StableDR,
        Transfer,
        Unif,
        Weigh,
        load,
        make,
    )
    from dubnb.sweeps import sweep
    from dubnb.theory.audit import audit
    from dubnb.theory.bound import bound
    from dubnb.theory.plan import plan
    from dubnb.theory.value import value

_HOMES = {
    "dubnb._check": ("DivergenceError", "InputError", "NotFittedError"),
    "dubnb.theory.audit": ("audit",),
    "dubnb.theory.bound": ("bound",),
    "dubnb.theory.plan": ("plan",),
    "dubnb.theory.value": ("value",),
    "dubnb.data.datasets": ("load_dataset",),
    "dubnb.data.partition": ("Partition",),
    "dubnb.data.read": ("read_log",),
    "dubnb.evaluation": ("evaluate",),
    "dubnb.methods": ("load", "make"),
    "dubnb.experiments.arena": ("arena",),
    "dubnb.experiments.compare": ("compare",),
    "dubnb.sweeps": ("sweep",),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BPR",
    "DIB",
    "DR",
    "DUB",
    "EASE",
    "IALS",
    "IPS",
    "MRDR",
    "PDA",
    "AutoDebias",
    "Base",
    "Bridge",
    "CausE",
    "Combine",
    "DivergenceError",
    "DubI",
    "DubX",
    "DubXI",
    "InputError",
    "NotFittedError",
    "Partition",
    "Popularity",
    "PopularityT",
    "Random",
    "Refine",
    "RelMF",
    "StableDR",
    "Transfer",
    "Unif",
    "Weigh",
    "__version__",
    "arena",
    "audit",
    "bound",
    "compare",
    "evaluate",
    "load",
    "load_dataset",
    "make",
    "plan",
    "read_log",
    "sweep",
    "value",
]


if not TYPE_CHECKING:  # type checkers would take every unknown name as Any

    def __getattr__(name: str) -> Any:
        if name in _MODULE_OF:
            value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        else:  # a method's class; only a capital letter is worth the import
            value = _method_classes().get(name) if name[:1].isupper() else None
        if value is None:
            raise AttributeError(f"module 'dubnb' has no attribute {name!r}")
        globals()[name] = value
        return value


def _method_classes() -> dict[str, Any]:
    """The classes of all registered methods, by their names."""
    from dubnb.methods import METHODS

    return {method.__name__: method for method in METHODS.values()}


def __dir__() -> list[str]:
    return sorted({*__all__, *_method_classes()})
