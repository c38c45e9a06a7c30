"""dubnb: debiased recommenders from a biased log and a sliver of randomized traffic.

Everything here is imported on first use: `import dubnb` itself loads no heavy package and compiles nothing.
"""

import importlib

from dubnb._version import VERSION as __version__

_HOMES = {
    "Partition": "dubnb.data.partition",
    "load_dataset": "dubnb.data.datasets",
    "Base": "dubnb.methods.base",
    "Unif": "dubnb.methods.unif",
    "Combine": "dubnb.methods.combine",
    "IPS": "dubnb.methods.ips",
    "CausE": "dubnb.methods.cause",
    "Bridge": "dubnb.methods.bridge",
    "AutoDebias": "dubnb.methods.autodebias",
    "DUB": "dubnb.methods.dub",
    "DubX": "dubnb.methods.dub_x",
    "make": "dubnb.methods",
    "load": "dubnb.methods._files",
    "evaluate": "dubnb.evaluation",
    "sweep": "dubnb.sweeps",
    "InputError": "dubnb._check",
    "NotFittedError": "dubnb._check",
    "DivergenceError": "dubnb._check",
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'dubnb' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
