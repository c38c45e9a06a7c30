"""dubnb: debiased recommenders from a biased log and a sliver of randomized traffic.

Everything here is imported on first use: `import dubnb` itself loads no heavy package and compiles nothing. Type
checkers see the real classes and functions.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dubnb._version import VERSION as __version__

if TYPE_CHECKING:
    from dubnb._check import DivergenceError, InputError, NotFittedError
    from dubnb.data.datasets import load_dataset
    from dubnb.data.log import read_log
    from dubnb.data.partition import Partition
    from dubnb.evaluation import evaluate
    from dubnb.experiments.compare import compare
    from dubnb.methods import (
        DUB,
        IPS,
        AutoDebias,
        Base,
        Bridge,
        CausE,
        Combine,
        DubX,
        Popularity,
        PopularityT,
        Random,
        Unif,
        load,
        make,
    )
    from dubnb.sweeps import sweep
    from dubnb.theory.audit import audit
    from dubnb.theory.bound import bound
    from dubnb.theory.plan import plan

_HOMES = {
    "dubnb._check": ("DivergenceError", "InputError", "NotFittedError"),
    "dubnb.theory.audit": ("audit",),
    "dubnb.theory.bound": ("bound",),
    "dubnb.theory.plan": ("plan",),
    "dubnb.data.datasets": ("load_dataset",),
    "dubnb.data.log": ("read_log",),
    "dubnb.data.partition": ("Partition",),
    "dubnb.evaluation": ("evaluate",),
    "dubnb.methods": (
        "DUB",
        "IPS",
        "AutoDebias",
        "Base",
        "Bridge",
        "CausE",
        "Combine",
        "DubX",
        "Popularity",
        "PopularityT",
        "Random",
        "Unif",
        "load",
        "make",
    ),
    "dubnb.experiments.compare": ("compare",),
    "dubnb.sweeps": ("sweep",),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "DUB",
    "IPS",
    "AutoDebias",
    "Base",
    "Bridge",
    "CausE",
    "Combine",
    "DivergenceError",
    "DubX",
    "InputError",
    "NotFittedError",
    "Partition",
    "Popularity",
    "PopularityT",
    "Random",
    "Unif",
    "__version__",
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
]


if not TYPE_CHECKING:  # or every name would pass as Any

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'dubnb' has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
