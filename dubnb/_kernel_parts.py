"""Kernels that other kernels call: parts of those, without a life of their own; and how little a kernel needs.

Numba's `njit` compiles a function that a kernel calls as if Python called it: two wrappers that turn Python's objects
into arrays, machine code for all three, an entry in the cache. Nobody uses them, as its LLVM code is linked into the
caller; and for small functions they are most of the work. So a kernel has two faces: itself, which Python calls, and a
`Part`, which kernels see in its place and which ends as LLVM code. The same code goes to the caller, and the same bits
come out.

A part is optimised within the kernel, once, with all that surrounds it; only one that is inlined or settled is
optimised by itself before, so that its loops come out the same wherever it goes.

Kernels are plain loops over arrays that the caller keeps alive. They take none of Numba's steps for functions within
functions, array expressions or objects (`_UNTYPED_STEPS` and `_TYPED_STEPS` are what is left), and no references are
counted in them: a kernel that makes an array is refused, and so is one that returns to Python what is not an argument;
parts may return views, to kernels alone (Numba's own functions would give back a reference that was never counted).
Python's collector of cycles rests meanwhile.

This is the one place that touches private parts of Numba's compiler; where a Numba has them elsewhere, kernels see
what Python sees, are slower to compile, and settle nothing. (The classes imported here must be there.)
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import operator
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import binding
from numba.core import typed_passes, types, untyped_passes
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler import Compiler, CompileResult, Flags
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.errors import UnsupportedError
from numba.core.registry import CPUDispatcher, cpu_target

_FREE_SUM = re.compile(r"\breassoc (?!.*vector\.reduce)")  # but for a vector's own sum, which is always taken in pairs
_UNTYPED_STEPS = "TranslateByteCode", "FixupArgs", "IRProcessing", "GenericRewrites", "ReconstructSSA"
_TYPED_STEPS = "NopythonTypeInference", "PreLowerStripPhis", "InlineOverloads", "IRLegalization", "AnnotateTypes"


@functools.cache
def has_compiler_internals() -> bool:
    """Whether the private parts that parts need are where they have been since Numba 0.61."""
    steps = "_optimize_functions", "_optimize_final_module", "_finalize_final_module", "enable_object_caching"
    flags = {"no_compile", "no_cpython_wrapper", "no_cfunc_wrapper"}
    return (
        all(hasattr(JITCodeLibrary, step) for step in steps)
        and hasattr(JITCPUCodegen, "_module_pass_manager")
        and flags <= set(getattr(Flags, "options", ()))
        and hasattr(Compiler, "compile_extra")
        and hasattr(CompileResult, "_find_referenced_environments")
        and all(hasattr(untyped_passes, step) for step in _UNTYPED_STEPS)
        and all(hasattr(typed_passes, step) for step in (*_TYPED_STEPS, "NoPythonBackend"))
    )


class _KernelLibrary(JITCodeLibrary):
    """LLVM code that is optimised once, when all of it is there.

    Numba optimises every function before that as well, and then the whole twice, in between to take out references,
    of which a kernel has none.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        passes = self._codegen._module_pass_manager()
        if isinstance(passes, tuple):
            passes[0].run(self._final_module, passes[1])
        else:  # LLVM's older way, of Numba 0.61
            super()._optimize_final_module()


class _PartLibrary(_KernelLibrary):
    """LLVM code to be linked into that of others, as it is; no machine code is made of it."""

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalized = True


class _OptimisedLibrary(_PartLibrary):
    """The same, but optimised."""

    def _optimize_final_module(self) -> None:
        _KernelLibrary._optimize_final_module(self)


class _FixedOrderLibrary(_OptimisedLibrary):
    """The same, the order of its sums being settled, lest it be settled otherwise when its callers are optimised."""

    def _finalize_final_module(self) -> None:
        name, text = self._final_module.name, str(self._final_module)
        self._final_module = binding.parse_assembly(_FREE_SUM.sub("", text))
        self._final_module.name = name
        super()._finalize_final_module()


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):
    """To LLVM code that counts no references."""

    _name = "dubnb_lowering"

    def run_pass(self, state: Any) -> bool:
        state.targetctx.enable_nrt = False
        within = getattr(state.return_type, "types", ())  # a tuple's
        if not state.flags.no_cpython_wrapper and any(isinstance(kind, types.Array) for kind in within):
            raise UnsupportedError("a kernel returns arrays in a tuple: Python would be given the wholes of views")
        return bool(super().run_pass(state))


class _KernelCompiler(Compiler):
    """For what Python calls."""

    library: type[JITCodeLibrary] = _KernelLibrary
    returns_views = False  # Python would be given the whole of a view: Numba refuses

    def __init__(self, *about: Any):
        _tables_without_blas()
        super().__init__(*about)

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        if has_compiler_internals():
            self.state.flags.no_cfunc_wrapper = True  # for C code that calls a kernel: there is none
            self.state.flags.nrt = False  # for Numba's own functions that a kernel calls, lest they make arrays
            self.state.targetctx.enable_nrt = self.returns_views
            self.state.library = self.library(self.state.targetctx.codegen(), func.__qualname__)
            self.state.library.enable_object_caching()
        return super().compile_extra(func)

    def define_pipelines(self) -> list[PassManager]:
        if not has_compiler_internals():
            return list(super().define_pipelines())
        steps = [getattr(untyped_passes, step) for step in _UNTYPED_STEPS]
        steps += [getattr(typed_passes, step) for step in _TYPED_STEPS]
        manager = PassManager("dubnb")
        for step in (*steps, _Lowering, typed_passes.NoPythonBackend):
            manager.add_pass(step, step.__name__)
        manager.finalize()
        return [manager]


class _PartCompiler(_KernelCompiler):
    library = _PartLibrary
    returns_views = True

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        self.state.flags.no_cpython_wrapper = self.state.flags.no_compile = True
        return super().compile_extra(func)


class _OptimisedCompiler(_PartCompiler):
    library = _OptimisedLibrary


class _FixedOrderCompiler(_PartCompiler):
    library = _FixedOrderLibrary


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Within: no search for cycles, which would walk through all that Numba has made so far, over and over."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@functools.cache
def _tables_without_blas() -> None:
    """Load Numba's tables for compiling, as every compilation does, but not SciPy's linear algebra with them.

    Numba imports it to see whether it is there, for .3 s; no kernel calls it. It is there, as SciPy is one of dubnb's
    own needs, and functions that do call it, of other programs, load it when they are compiled.
    """
    try:
        from numba.np import linalg
    except ImportError:
        return
    ensure_blas: Any = getattr(linalg, "ensure_blas", None)
    if "numba.np.arraymath" in sys.modules or ensure_blas is None:
        return
    linalg.ensure_blas = lambda: None
    try:
        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
    finally:
        linalg.ensure_blas = ensure_blas


class Part(CPUDispatcher):
    """A kernel as other kernels see it."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The version for these types; numbers that a caller writes out are no types of their own."""
        return super().get_call_template([types.unliteral(each) for each in args], kws)

    def add_overload(self, compiled: Any) -> None:
        """Keep a compiled version under a name of its own, which stands for the entry point that it does not have."""
        compiled = compiled._replace(entry_point=object())
        self.targetctx.insert_user_function(compiled.entry_point, compiled.fndesc, [compiled.library])
        self.overloads[tuple(compiled.signature.args)] = compiled


class Kernel(CPUDispatcher):
    """A kernel as Python sees it."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], fixed_order: bool = False):
        super().__init__(function, {}, options | {"nopython": True}, _KernelCompiler)
        own = _OptimisedCompiler if options["forceinline"] else _PartCompiler
        self._part_compiler = _FixedOrderCompiler if fixed_order else own
        self._part: Part | None = None

    @property
    def part(self) -> Part:
        """What kernels call."""
        if self._part is None:
            self._part = Part(self.py_func, self.locals, self.targetoptions, self._part_compiler)
        return self._part

    @property
    def _numba_type_(self) -> Any:
        return types.Dispatcher(self.part if has_compiler_internals() else self)

    def compile(self, sig: Any) -> Any:
        """Compile for a signature, or find what was compiled."""
        with _no_collection():
            return super().compile(sig)

    def add_overload(self, compiled: Any) -> None:
        """Keep a compiled version; the surroundings of its parts (for errors that they raise) are known to it alone."""
        super().add_overload(compiled)
        if not has_compiler_internals():
            return
        for environment in compiled._find_referenced_environments():
            compiled.library.codegen.set_env(environment.env_name, environment)

    def __reduce__(self) -> Any:
        """By name, as functions are: what it was made with does not travel."""
        return _named, (self.py_func.__module__, self.py_func.__qualname__)


def _named(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


class KernelChoice(CPUDispatcher):
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
