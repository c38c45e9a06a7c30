"""CUDA: the same training on a GPU, one file per family of kernels.

Simulated and compiled, never run on a GPU by us: every kernel runs under Numba's simulator against the CPU's results,
and is compiled by NVIDIA's compiler, on machines without a GPU. `dubnb selftest --device cuda` compares on yours.
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
    except Exception as error:  # whatever a broken driver raises
        return f"the GPU cannot be used: {' '.join(str(error).split())}"
