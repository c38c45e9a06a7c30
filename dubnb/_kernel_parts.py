"""Kernels that other kernels call: parts of those, without a life of their own.

Numba's `njit` compiles a function that a kernel calls as if Python called it: two wrappers that turn Python's objects
into arrays, machine code for all three, an entry in the cache. Nobody uses them, as its LLVM code is linked into the
caller; and for small functions they are most of the work. So a kernel has two faces: itself, which Python calls, and a
`Part`, which kernels see in its place and which ends as LLVM code. The same code goes to the caller, and the same bits
come out.

This is the one place that touches private parts of Numba's compiler; where a Numba has them elsewhere, kernels see
what Python sees, are slower to compile, and settle nothing. (The classes imported here must be there.)
"""

from __future__ import annotations

import functools
import importlib
import operator
import re
from collections.abc import Callable
from typing import Any

from llvmlite import binding
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult, Flags
from numba.core.registry import CPUDispatcher

_FREE_SUM = re.compile(r"\breassoc (?!.*vector\.reduce)")  # but for a vector's own sum, which is always taken in pairs


@functools.cache
def numba_has_the_parts() -> bool:
    """Whether the private parts that parts need are where they have been since Numba 0.61."""
    steps = "_finalize_final_module", "_finalize_dynamic_globals", "_verify_declare_only_symbols"
    flags = {"no_compile", "no_cpython_wrapper", "no_cfunc_wrapper"}
    return (
        all(hasattr(JITCodeLibrary, step) for step in steps)
        and flags <= set(getattr(Flags, "options", ()))
        and hasattr(Compiler, "compile_extra")
        and hasattr(CompileResult, "_find_referenced_environments")
    )


class _PartLibrary(JITCodeLibrary):
    """Optimised LLVM code to be linked into that of others; no machine code is made of it."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class _SettledLibrary(_PartLibrary):
    """The same, the order of its sums being settled, lest it be settled otherwise when its callers are optimised."""

    def _finalize_final_module(self) -> None:
        name, text = self._final_module.name, str(self._final_module)
        self._final_module = binding.parse_assembly(_FREE_SUM.sub("", text))
        self._final_module.name = name
        super()._finalize_final_module()


class _PartCompiler(Compiler):
    library = _PartLibrary

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        flags = self.state.flags
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.no_compile = True
        self.state.library = self.library(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class _SettledCompiler(_PartCompiler):
    library = _SettledLibrary


class _KernelCompiler(Compiler):
    def compile_extra(self, func: Callable[..., Any]) -> Any:
        if numba_has_the_parts():
            self.state.flags.no_cfunc_wrapper = True  # for C code that calls a kernel: there is none
        return super().compile_extra(func)


class Part(CPUDispatcher):
    """A kernel as other kernels see it."""

    def add_overload(self, compiled: Any) -> None:
        """Keep a compiled version under a name of its own, which stands for the entry point that it does not have."""
        compiled = compiled._replace(entry_point=object())
        self.targetctx.insert_user_function(compiled.entry_point, compiled.fndesc, [compiled.library])
        self.overloads[tuple(compiled.signature.args)] = compiled


class Kernel(CPUDispatcher):
    """A kernel as Python sees it."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], settled: bool = False):
        super().__init__(function, {}, options | {"nopython": True}, _KernelCompiler)
        self._part_compiler = _SettledCompiler if settled else _PartCompiler
        self._part: Part | None = None

    @property
    def part(self) -> Part:
        """What kernels call."""
        if self._part is None:
            self._part = Part(self.py_func, self.locals, self.targetoptions, self._part_compiler)
        return self._part

    @property
    def _numba_type_(self) -> Any:
        return types.Dispatcher(self.part if numba_has_the_parts() else self)

    def add_overload(self, compiled: Any) -> None:
        """Keep a compiled version; the surroundings of its parts (for errors that they raise) are known to it alone."""
        super().add_overload(compiled)
        if not numba_has_the_parts():
            return
        for environment in compiled._find_referenced_environments():
            compiled.library.codegen.set_env(environment.env_name, environment)

    def __reduce__(self) -> Any:
        """By name, as functions are: what it was made with does not travel."""
        return _named, (self.py_func.__module__, self.py_func.__qualname__)


def _named(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


class Choice(CPUDispatcher):
    """One name for several kernels: the type of the first argument, a NamedTuple, chooses."""

    def __init__(self, kernels: dict[type, Any]):
        def choose(first: Any, *rest: Any) -> None: ...

        super().__init__(choose)
        self.kernels = kernels

    def get_call_template(self, args: Any, kws: Any) -> Any:
        return self._chosen(args).get_call_template(args, kws)

    def get_overload(self, args: Any) -> Any:
        return self._chosen(args).get_overload(args)

    def _chosen(self, args: Any) -> Any:
        return self.kernels[args[0].instance_class]._numba_type_.dispatcher
