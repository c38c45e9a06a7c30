"""Compile every CUDA kernel for one compute capability, without a GPU, and print what each takes as JSON.

    python -m tests.cuda_compile 9.0

By NVIDIA's compiler to PTX, and from there by ptxas to machine code where pip's packages bring it. One process per
capability, as numba-cuda keeps the device versions of the functions that kernels call.
"""

import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from numba import types

import dubnb.cuda


def kernels():
    """Every kernel of the package by name."""
    for module in pkgutil.iter_modules(dubnb.cuda.__path__):
        importlib.import_module(f"dubnb.cuda.{module.name}")
    from dubnb.cuda._launch import KERNELS

    return KERNELS


def lowest_capability():
    """The lowest compute capability that the installed compiler knows, such as (7, 5)."""
    from numba.cuda.cudadrv.nvrtc import get_supported_ccs

    return tuple(min(get_supported_ccs()))


def ptxas():
    """Where ptxas is, or None."""
    try:
        import nvidia
    except ImportError:
        return None
    found = [path for root in nvidia.__path__ for path in Path(root).rglob("bin/ptxas")]
    return found[0] if found else None


def ptx_of(kernel, capability):
    """A kernel as PTX."""
    from numba import cuda

    ptx, _ = cuda.compile_ptx(kernel.function, types.void(*kernel.parameters), cc=capability)
    return ptx


def resources(ptx, capability, program):
    """{"registers", "spilled", "shared", "stack"} in ptxas' own words: numbers of registers and of bytes."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "kernel.ptx"
        source.write_text(ptx)
        arch = "sm_{}{}".format(*capability)
        command = [program, "-v", "-arch", arch, source, "-o", source.with_suffix(".cubin")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = {"registers": r"Used (\d+) registers", "shared": r"(\d+) bytes smem", "stack": r"(\d+) bytes stack frame"}
    numbers = {name: max(map(int, re.findall(pattern, done.stderr)), default=0) for name, pattern in found.items()}
    numbers["spilled"] = sum(map(int, re.findall(r"(\d+) bytes spill", done.stderr)))
    return numbers


def main(words):
    if words == ["--lowest"]:
        print(json.dumps(lowest_capability()))
        return
    capability = tuple(map(int, words[0].split(".")))
    from numba.cuda import dispatcher

    # The device version of an njit callee is made for "the current device", and there is none.
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    program, table = ptxas(), {}
    for name, kernel in kernels().items():
        ptx = ptx_of(kernel, capability)
        table[name] = {"ptx": len(ptx)} | ({} if program is None else resources(ptx, capability, program))
    print(json.dumps(table))


if __name__ == "__main__":
    main(sys.argv[1:])
