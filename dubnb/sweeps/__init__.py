"""Many fits with one ledger: grids of parameters, workers on one machine or a cluster, results that survive a crash.

Names are imported on first use, so that the command line can list its options without loading Numba.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dubnb.sweeps.run import Sweep, status, sweep
    from dubnb.sweeps.trial import SweepError

__all__ = ["Sweep", "SweepError", "status", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'dubnb.sweeps' has no attribute {name!r}")
    home = "dubnb.sweeps.trial" if name == "SweepError" else "dubnb.sweeps.run"
    return getattr(importlib.import_module(home), name)
