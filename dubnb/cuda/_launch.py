"""CUDA kernels: their declaration with types, their launch on grids of any shape, and memory on the device.

Every kernel loops with the grid's stride, so any number of blocks and threads covers the work. Each number that it
writes is computed by one thread, in an order that does not depend on the grid. The grid changes the speed only.

CPU and GPU share scalar functions: a kernel here calls the same losses, Adam step, hash and activations as the CPU's
kernels. They are `njit` functions, which numba-cuda compiles for the device from the same Python code. Such a function
takes and returns numbers only, because `_jit.span` and `prefetch` are for CPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numba import config, cuda, types

from dubnb._check import InputError
from dubnb.backbones.mf import Stream

SIMULATED = bool(config.ENABLE_CUDASIM)  # type: ignore[attr-defined]
LANES = 4096  # partial sums per total, the same number for every grid
I8, F4, F8, U8 = types.int64, types.float32, types.float64, types.uint64
INTS, LONGS, FLOATS, DOUBLES, BYTES = (
    types.Array(dtype, 1, "C") for dtype in (types.int32, types.int64, F4, F8, types.uint8)
)
MATRIX, WIDE_MATRIX, TABLE = types.Array(F4, 2, "C"), types.Array(F8, 2, "C"), types.Array(F4, 3, "C")
WIDE_TABLE = types.Array(F8, 3, "C")
# For each declared type: the host types that are accepted, and the conversion that makes Numba infer that type.
HOST_NUMBERS: dict[Any, tuple[type, ...]] = {
    I8: (int, np.integer),
    U8: (int, np.integer),
    F4: (float, np.floating),
    F8: (float, np.floating),
}
DEVICE_NUMBERS: dict[Any, Callable[[Any], Any]] = {I8: int, U8: np.uint64, F4: np.float32, F8: float}
STREAM = types.NamedTuple((INTS, INTS, FLOATS, FLOATS, BYTES), Stream)


class Shape(NamedTuple):
    """The shape of a launch."""

    threads: int  # threads per block
    blocks: int  # the largest number of blocks


# A simulated thread is a Python thread: more of them would take too long.
shape = Shape(2, 2) if SIMULATED else Shape(128, 1 << 16)
ROW_THREADS = 2 if SIMULATED else 32  # threads of a block that works on one row: a warp


class CudaKernel:
    """A kernel and the types of its parameters: tests compile it for these, and every launch converts to these."""

    def __init__(self, function: Callable[..., None], parameters: tuple[Any, ...]):
        self.function, self.parameters, self.jitted = function, parameters, cuda.jit(function)

    def __call__(self, n: int, *args: Any) -> None:
        """Run with one thread for each of n numbers; on a smaller grid each thread takes several."""
        if n > 0:
            self._launch((min(-(-n // shape.threads), shape.blocks), shape.threads), args)

    def by_row(self, n: int, *args: Any, threads: int | tuple[int, int] | None = None, shared: int = 0) -> None:
        """Run with one block for each of n rows, or fewer; `shared`: bytes of shared memory per block."""
        if n > 0:
            self._launch((min(n, shape.blocks), ROW_THREADS if threads is None else threads, 0, shared), args)

    def _launch(self, grid: tuple[Any, ...], args: tuple[Any, ...]) -> None:
        if len(args) != len(self.parameters):
            raise TypeError(f"{self.function.__name__} takes {len(self.parameters)} arguments, not {len(args)}")
        self.jitted[grid](*map(self._of_declared_type, range(len(args)), self.parameters, args))

    def _of_declared_type(self, number: int, kind: Any, value: Any) -> Any:
        """Convert an argument's numbers to the declared types; refuse what does not fit exactly, and other arrays.

        A jitted function returns Python numbers to the host: a float32 as float, a uint64 as int. The device would
        compile another program for these.
        """
        if isinstance(kind, types.BaseTuple):
            kinds: Any = kind  # mypy takes it for not iterable
            if isinstance(value, tuple) and len(value) == len(kinds):
                parts = [self._of_declared_type(number, own, part) for own, part in zip(kinds, value, strict=True)]
                return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        elif isinstance(kind, types.Array):
            same = getattr(value, "ndim", None) == kind.ndim and str(value.dtype) == str(kind.dtype)
            if same and value.is_c_contiguous():
                return value
        elif isinstance(value, HOST_NUMBERS[kind]) and not isinstance(value, bool):
            converted = DEVICE_NUMBERS[kind](value)
            plain: Any = float if kind in (F4, F8) else int  # NumPy compares a float32 with a float as float32
            if plain(converted) == plain(value) or value != value:
                return converted
        raise TypeError(f"{self.function.__name__}, argument {number}: {kind} is declared, {value!r} given")


KERNELS: dict[str, CudaKernel] = {}


def kernel(*parameters: Any) -> Callable[[Callable[..., None]], CudaKernel]:
    """Declare a kernel with the types of its parameters."""

    def declare(function: Callable[..., None]) -> CudaKernel:
        made = CudaKernel(function, parameters)
        KERNELS[f"{function.__module__.rpartition('.')[2]}.{function.__name__}"] = made
        return made

    return declare


# Memory


def to_device(array: Any, dtype: Any = None) -> Any:
    """A copy in the device's memory."""
    return cuda.to_device(np.ascontiguousarray(array, dtype))


def zeros(size: int | tuple[int, ...], dtype: Any = np.float32) -> Any:
    """An array of zeros in the device's memory."""
    return cuda.to_device(np.zeros(size, dtype))


def device_array(size: int | tuple[int, ...], dtype: Any = np.float32) -> Any:
    """An uninitialised array in the device's memory."""
    return cuda.device_array(size, dtype)


def stream_to_device(stream: Stream) -> Stream:
    """A copy of a stream in the device's memory."""
    return Stream(*map(to_device, stream))


def check_memory(plan: Mapping[str, int], quiet: bool = True) -> None:
    """Refuse a plan {what: bytes} that exceeds the device's free memory; unless quiet, print it."""
    needed, free = sum(plan.values()), cuda.current_context().get_memory_info()[0]
    parts = ", ".join(f"{what} {size / 1e9:.3g}" for what, size in plan.items())
    if needed > free:
        raise InputError(
            f"device='cuda' needs {needed / 1e9:.3g} GB of device memory ({parts}) and {free / 1e9:.3g} are free: "
            "lower rank, use fewer pairs, or use device='cpu'"
        )
    if not quiet:
        print(f"device memory: {needed / 1e9:.3g} GB ({parts})", file=sys.stderr)


# Sums


@kernel(DOUBLES, BYTES, WIDE_MATRIX)
def lane_sums(values, labels, sums):
    """sums[label, lane] = sum of that label's values at lane, lane + LANES, ...; without labels all are 0."""
    n_labels, lanes = sums.shape
    for lane in range(cuda.grid(1), lanes, cuda.gridsize(1)):
        for label in range(n_labels):
            sums[label, lane] = 0.0
        for j in range(lane, len(values), lanes):
            label = labels[j] if len(labels) > 0 else 0
            sums[label, lane] += values[j]


class Totals:
    """Sums of numbers on the device, by label."""

    def __init__(self, n_labels: int = 1):
        self.sums = zeros((n_labels, 8 if SIMULATED else LANES), np.float64)
        self.no_labels = zeros(0, np.uint8)

    def of(self, values: Any, labels: Any = None) -> np.ndarray:
        """Each label's sum, on the host."""
        lane_sums(self.sums.shape[1], values, self.no_labels if labels is None else labels, self.sums)
        return self.sums.copy_to_host().sum(axis=1)
