"""The one home of Numba's flags: every kernel of dubnb is made by `njit` below; `_kernel_cache` keeps it on disk."""

from __future__ import annotations

import contextlib
import functools
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

    It makes no array: what it needs comes from the caller. The few whose loops matter are optimised by themselves:
    inline: LLVM puts the optimised function into its callers. (Numba's own inlining changes the order of sums.)
    settled: its sums have one order, whether Python or another kernel calls it, so that both get the same bits.
    """
    if function is None:
        return functools.partial(njit, inline=inline, fixed_order=fixed_order)
    if not JIT_ENABLED:
        return function
    kernel = _kernel_parts.Kernel(function, FLAGS | {"forceinline": inline}, fixed_order)
    _kernel_cache.install(kernel, function)
    return kernel


def by_type(function: Callable[..., Any]) -> Any:
    """One name for the kernels of several kinds of models: the type of the first argument, a NamedTuple, chooses.

    `function` gives the name, under which it is pickled too, the parameters and what they are for; its body is never
    run. `name.of(kind)` registers a function as the kernel for that kind, with what `njit` takes.
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


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within: every BLAS runs on one thread, so that a sum has one order on any number of cores.

    A limit reaches only what is loaded: NumPy's BLAS. (Kernels call none; np.dot in one would bring SciPy's.)
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        yield


@functools.cache
def _llvm_reads(emit: Callable[[Any, Any], Any]) -> bool:
    """Whether this LLVM understands what `emit(builder, pointer)` writes with llvmlite, some of it by ways that its
    makers do not promise to keep: where it does not, kernels do without, and are slower, not wrong."""
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
    """`pointer`, promised to reach memory that nothing else does.

    It goes through an empty assembler statement that is said to return memory of its own and then, lest the compiler
    think that nobody will read it, through one that may have kept it. Both are said to touch all memory, so that no
    read or write crosses them.
    """
    from llvmlite import ir

    same = ir.FunctionType(pointer.type, [pointer.type])
    nothing = ir.InlineAsm(same, "", "=r,0,~{memory}", side_effect=True)
    pointer = builder.call(nothing, [pointer], cconv="noalias")  # printed where LLVM reads return attributes
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
        """array.flat[start : start + length] of a C-contiguous array, promised to overlap nothing else: C's `restrict`.

        Without the promise a compiled loop tests every pair of arrays for overlap before it starts, which costs more
        than the few vector iterations of a row. While a span is in use, its part of the array is reached through it
        alone; a later span, and whoever comes after the kernel, sees what was written. A span counts no references:
        the array behind it must outlive it.
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
        """Without the JIT there is nothing to bring closer."""

    def span(array: np.ndarray, start: int, length: int) -> np.ndarray:  # type: ignore[misc]
        """array.flat[start : start + length], a view."""
        return array.reshape(-1)[start : start + length]
