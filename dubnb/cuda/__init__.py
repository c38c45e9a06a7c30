"""CUDA: the same training on a GPU, one file per family of kernels.

We have not run this code on a GPU. Tests run every kernel in Numba's simulator, compare the results with the CPU's, and
compile it with NVIDIA's compiler, which needs no GPU. `dubnb selftest --device cuda` compares on your GPU.
"""

from __future__ import annotations

import importlib.util


def why_not() -> str | None:
    """Why CUDA cannot be used here, or None where it can."""
    from numba import config

    simulated: bool = config.ENABLE_CUDASIM  # type: ignore[attr-defined]
    if not simulated and importlib.util.find_spec("numba_cuda") is None:
        return "numba-cuda is not installed: pip install 'dubnb[cuda]'"
    from numba import cuda

    try:
        return None if cuda.is_available() else "no GPU was found: check NVIDIA's driver (nvidia-smi)"
    except Exception as error:  # a broken driver can raise any exception
        return f"the GPU cannot be used: {' '.join(str(error).split())}"
