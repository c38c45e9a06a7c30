"""`njit`, which makes every kernel of dubnb, and the compiler hints that kernels use.

All of Numba's flags are set here. `_kernel_parts` compiles kernels, `_kernel_cache` stores them on disk.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from dubnb import _kernel_cache, _kernel_parts

# `contract` gives fused multiply-adds, `reassoc` vectorised sums; NaN and inf keep their meaning, so divergence shows.
FASTMATH = {"contract", "reassoc", "nsz"}
FLAGS: Any = {"error_model": "numpy", "fastmath": FASTMATH, "nogil": True}
Function = TypeVar("Function", bound=Callable[..., Any])
JIT_ENABLED = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]


@typing.overload
def njit(function: Function) -> Function: ...


@typing.overload
def njit(*, inline: bool = False, fixed_order: bool = False) -> Callable[[Function], Function]: ...


def njit(function: Callable[..., Any] | None = None, *, inline: bool = False, fixed_order: bool = False) -> Any:
    """Compile a kernel with dubnb's flags: no division checks, no GIL, cached on disk.

    A kernel allocates no array: its caller passes scratch space in.

    inline: optimise the function on its own, then let LLVM inline it into its callers. (Numba's own inlining would
    change the order of sums.)
    fixed_order: sums have the same order, and so the same bits, whether Python or another kernel calls the function.
    """
    if function is None:
        return functools.partial(njit, inline=inline, fixed_order=fixed_order)
    if not JIT_ENABLED:
        return function
    kernel = _kernel_parts.Kernel(function, FLAGS | {"forceinline": inline}, fixed_order)
    _kernel_cache.install(kernel, function)
    return kernel


def by_type(function: Callable[..., Any]) -> Any:
    """Declare one name for several kernels; the type of the first argument, a NamedTuple, selects one.

    `function` gives the name (also used for pickling), the parameters and the docstring; its body never runs.
    `@name.of(kind)` registers a function as the kernel for that type; it takes the options of `njit`.
    """
    kernels: dict[type, Any] = {}

    @functools.wraps(function)
    def call(first: Any, *rest: Any) -> Any:
        return kernels[type(first)](first, *rest)

    name: Any = call
    name.of = lambda kind, **flags: lambda function: kernels.setdefault(kind, njit(**flags)(function))
    if JIT_ENABLED:
        name.choice = _kernel_parts.KernelChoice(kernels)
        name._numba_type_ = types.Dispatcher(name.choice)
    return name


class _BlasLimit:
    """Blocks that run BLAS on one thread; any number of threads may be in such a block at once.

    Most BLAS libraries have one limit for the whole process. The first block sets it and the last one restores it. With
    `threadpool_limits` in each, a block that ends would lift the limit of the others, or leave it set for good.
    Libraries that use OpenMP have a limit for each thread. Finding the libraries takes a millisecond. It is done again
    only after modules were imported, which may have loaded another BLAS.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks = 0  # blocks that are running, over all threads
        self.limited: list[Any] = []  # the libraries that the first of them limited
        self.before: list[int] = []  # their numbers of threads before
        self.of_thread = threading.local()
        self.found: tuple[int, tuple[list[Any], list[Any]]] | None = None  # (number of modules, libraries)

    def libraries(self) -> tuple[list[Any], list[Any]]:
        """Libraries with a limit for the process, and those with a limit for each thread."""
        from threadpoolctl import ThreadpoolController

        if self.found is None or self.found[0] != len(sys.modules):
            found = ThreadpoolController().select(user_api="blas").lib_controllers
            by_thread = [library for library in found if getattr(library, "threading_layer", "") in OPENMP]
            self.found = len(sys.modules), ([library for library in found if library not in by_thread], by_thread)
        return self.found[1]

    def enter(self) -> None:
        """Begin a block in this thread."""
        shared, by_thread = self.libraries()
        depth = getattr(self.of_thread, "depth", 0)
        if not depth:
            self.of_thread.limited, self.of_thread.before = by_thread, _limit(by_thread, [1] * len(by_thread))
        self.of_thread.depth = depth + 1
        with self.lock:
            if not self.blocks:
                self.limited, self.before = shared, _limit(shared, [1] * len(shared))
            self.blocks += 1

    def leave(self) -> None:
        """End a block of this thread."""
        with self.lock:
            self.blocks -= 1
            if not self.blocks:
                _limit(self.limited, self.before)
        self.of_thread.depth = getattr(self.of_thread, "depth", 0) - 1
        if not self.of_thread.depth:
            _limit(self.of_thread.limited, self.of_thread.before)

    def keep_own_blocks(self) -> None:
        """Drop the blocks and the lock of other threads, which do not exist in a forked child."""
        self.lock = threading.Lock()
        self.blocks = getattr(self.of_thread, "depth", 0)


OPENMP = ("openmp", "intel", "gnu")  # threading layers, by threadpoolctl's names


def _limit(libraries: list[Any], threads: list[int]) -> list[int]:
    """Set the number of threads of each library; returns the numbers before."""
    before = [library.num_threads for library in libraries]
    for library, number in zip(libraries, threads, strict=True):
        # Newer versions of threadpoolctl ignore every thread but the one that set a limit first.
        take_control = getattr(library, "clear_controlling_thread", lambda force: None)
        take_control(force=True)
        library.set_num_threads(number)
        take_control(force=True)
    return before


_blas = _BlasLimit()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_blas.keep_own_blocks)


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run BLAS on one thread inside the block: sums have one order on any number of cores.

    This limits NumPy's BLAS, the only one that is loaded: kernels call no BLAS function.
    """
    _blas.enter()
    try:
        yield
    finally:
        _blas.leave()


@functools.cache
def _llvm_reads(emit: Callable[[Any, Any], Any]) -> bool:
    """Whether the installed LLVM parses the code that `emit(builder, pointer)` writes.

    Some of that code relies on undocumented behaviour of llvmlite. Where LLVM does not accept it, the optimisation is
    skipped: kernels are slower, and their results are the same.
    """
    from llvmlite import binding, ir

    try:
        module = ir.Module()
        pointer = ir.FloatType().as_pointer()
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer]), name="probe")
        builder = ir.IRBuilder(function.append_basic_block())
        emit(builder, function.args[0])
        builder.ret_void()
        binding.parse_assembly(str(module)).verify()
    except Exception:
        return False
    return True


def _emit_prefetch(builder: Any, pointer: Any) -> None:
    """Ask for the cache line at `pointer`: to read, with high locality, in the data cache."""
    from llvmlite import ir

    pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, ir.IntType(32), ir.IntType(32), ir.IntType(32)])
    name = "llvm.prefetch.p0"
    declared = builder.module.globals.get(name) or ir.Function(builder.module, kind, name=name)
    builder.call(declared, [pointer, *(ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))])


def _emit_promise(builder: Any, pointer: Any) -> Any:
    """Return `pointer`, marked as the only way to reach its memory (C's `restrict`).

    Two empty assembler statements do this. The first is declared to return memory of its own (`noalias`). The second is
    declared to keep the pointer, so that LLVM does not discard writes as unread. Both are declared to touch all memory,
    so LLVM moves no read or write across them.
    """
    from llvmlite import ir

    same = ir.FunctionType(pointer.type, [pointer.type])
    nothing = ir.InlineAsm(same, "", "=r,0,~{memory}", side_effect=True)
    pointer = builder.call(nothing, [pointer], cconv="noalias")  # printed where LLVM expects return attributes
    keep = ir.FunctionType(ir.VoidType(), [pointer.type])
    builder.call(ir.InlineAsm(keep, "", "r,~{memory}", side_effect=True), [pointer])
    return pointer


if JIT_ENABLED:

    @intrinsic
    def prefetch(typingctx, array, index):
        """Ask the CPU to bring array.flat[index] (C order) into its cache; no value changes."""
        signature = types.void(array, index)

        def codegen(context, builder, sig, args):
            if _llvm_reads(_emit_prefetch):
                data = context.make_array(sig.args[0])(context, builder, args[0]).data
                _emit_prefetch(builder, builder.gep(data, [args[1]]))
            return context.get_dummy_value()

        return signature, codegen

    @intrinsic
    def span(typingctx, array, start, length):
        """array.flat[start : start + length] of a C-contiguous array, declared to overlap no other (C's `restrict`).

        Otherwise a compiled loop first tests every pair of arrays for overlap, which costs more than the few vector
        iterations of a row. While a span is in use, access its elements only through it. Later spans, and the code
        after the kernel, see what was written. A span does not keep its array alive.
        """
        if not isinstance(array, types.Array) or array.layout != "C":
            raise TypingError(f"span takes a C-contiguous array, not {array}")
        signature = types.Array(array.dtype, 1, "C", readonly=not array.mutable)(array, start, length)

        def codegen(context, builder, sig, args):
            from numba.np import arrayobj

            first, size = (context.cast(builder, args[k], sig.args[k], types.intp) for k in (1, 2))
            pointer = builder.gep(context.make_array(sig.args[0])(context, builder, args[0]).data, [first])
            pointer = _emit_promise(builder, pointer) if _llvm_reads(_emit_promise) else pointer
            result = context.make_array(sig.return_type)(context, builder)
            itemsize = context.get_constant(types.intp, sig.return_type.dtype.bitwidth // 8)
            arrayobj.populate_array(
                result, data=pointer, shape=[size], strides=[itemsize], itemsize=itemsize, meminfo=None
            )
            return result._getvalue()

        return signature, codegen

else:

    def prefetch(array: np.ndarray, index: int) -> None:  # type: ignore[misc]
        """Do nothing: there is no JIT."""

    def span(array: np.ndarray, start: int, length: int) -> np.ndarray:  # type: ignore[misc]
        """array.flat[start : start + length], a view."""
        return array.reshape(-1)[start : start + length]
