"""Many fits with one ledger: grids, trials, two engines, and results that survive a crash.

Names are imported on first use, so that the command line can list its options without loading Numba.
"""

import importlib

_HOMES = {
    "sweep": "dubnb.sweeps.run",
    "status": "dubnb.sweeps.run",
    "Sweep": "dubnb.sweeps.run",
    "SweepError": "dubnb.sweeps.errors",
}
__all__ = list(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'dubnb.sweeps' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
