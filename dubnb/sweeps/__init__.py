"""Many fits with one ledger: grids, trials, two engines, and results that survive a crash.

Names are imported on first use, so that the command line can list its options without loading Numba.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dubnb.sweeps.errors import SweepError
    from dubnb.sweeps.run import Sweep, sweep
    from dubnb.sweeps.standing import status

_HOMES = {
    "sweep": "dubnb.sweeps.run",
    "status": "dubnb.sweeps.standing",
    "Sweep": "dubnb.sweeps.run",
    "SweepError": "dubnb.sweeps.errors",
}
__all__ = ["Sweep", "SweepError", "status", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dubnb.sweeps' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
