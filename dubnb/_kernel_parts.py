"""How dubnb compiles its kernels: a small subset of Numba's pipeline, and a lean form for kernels that kernels call.

Numba's `njit` compiles a function that a kernel calls as if Python called it too. It adds two wrappers that convert
Python objects to arrays, makes machine code for all three, and writes a cache entry. None of that is used: only the
LLVM code is linked into the caller. For small functions it is most of the compile time. Here each kernel therefore has
two forms. `Kernel` is what Python calls. `Part` is what other kernels call; it ends as LLVM code. Both come from the
same source, so both compute the same bits.

A part is optimised once, together with the kernel that it is linked into. Two kinds are optimised on their own before
that: parts that are inlined, and parts whose sums must have a fixed order wherever they are used.

Kernels are plain loops over arrays that the caller keeps alive. This allows two simplifications:

- Numba's passes for closures, array expressions and Python objects are left out. `_UNTYPED_STEPS` and `_TYPED_STEPS`
  list the passes that remain.
- References are not counted. Numba rejects a kernel that allocates an array, or that returns to Python an array that is
  not an argument. Parts may return views, but only to kernels.

This module is the only one that uses private parts of Numba's compiler. If a Numba version has moved them, kernels are
compiled by Numba's own pipeline: this takes longer, and `fixed_order` has no effect. The classes imported below must
exist in any case.
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

_FREE_SUM = re.compile(r"\breassoc (?!.*vector\.reduce)")  # except the sum of one vector, which is always pairwise
_UNTYPED_STEPS = "TranslateByteCode", "FixupArgs", "IRProcessing", "GenericRewrites", "ReconstructSSA"
_TYPED_STEPS = "NopythonTypeInference", "PreLowerStripPhis", "InlineOverloads", "IRLegalization", "AnnotateTypes"


@functools.cache
def has_compiler_internals() -> bool:
    """Whether Numba has the private attributes that this module uses; they have existed since Numba 0.61."""
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
    """LLVM code that is optimised once, after all parts have been linked in.

    Numba also optimises every function beforehand, and optimises the whole module twice to remove reference counts in
    between. A kernel has no reference counts.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        passes = self._codegen._module_pass_manager()
        if isinstance(passes, tuple):
            passes[0].run(self._final_module, passes[1])
        else:  # Numba 0.61 returns LLVM's older pass manager
            super()._optimize_final_module()


class _PartLibrary(_KernelLibrary):
    """LLVM code that is only linked into callers: not optimised, no machine code."""

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalized = True


class _OptimisedLibrary(_PartLibrary):
    """LLVM code that is optimised before it is linked into callers; no machine code."""

    def _optimize_final_module(self) -> None:
        _KernelLibrary._optimize_final_module(self)


class _FixedOrderLibrary(_OptimisedLibrary):
    """Optimised LLVM code that may not reorder its sums again when a caller is optimised.

    LLVM chooses the order of a sum where the flag `reassoc` permits it. The flag is removed after the first
    optimisation, so every caller keeps the order chosen there.
    """

    def _finalize_final_module(self) -> None:
        name, text = self._final_module.name, str(self._final_module)
        self._final_module = binding.parse_assembly(_FREE_SUM.sub("", text))
        self._final_module.name = name
        super()._finalize_final_module()


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):
    """Numba's lowering to LLVM code, without reference counts."""

    _name = "dubnb_lowering"

    def run_pass(self, state: Any) -> bool:
        state.targetctx.enable_nrt = False
        within = getattr(state.return_type, "types", ())  # the members of a tuple
        if not state.flags.no_cpython_wrapper and any(isinstance(kind, types.Array) for kind in within):
            raise UnsupportedError("a kernel returns arrays in a tuple: Python would get whole arrays, not views")
        return bool(super().run_pass(state))


class _KernelCompiler(Compiler):
    """Compiles the form that Python calls."""

    library: type[JITCodeLibrary] = _KernelLibrary
    returns_views = False  # Numba rejects it: Python would receive the whole array

    def __init__(self, *about: Any):
        _tables_without_blas()
        super().__init__(*about)

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        if has_compiler_internals():
            self.state.flags.no_cfunc_wrapper = True  # no C code calls a kernel
            self.state.flags.nrt = False  # Numba's own functions that a kernel calls may not allocate
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
    """Compiles the form that kernels call: LLVM code alone."""

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
    """Switch off garbage collection inside the block: it would repeatedly scan all objects that Numba has made."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@functools.cache
def _tables_without_blas() -> None:
    """Load Numba's compilation tables without importing SciPy's linear algebra, which takes 0.3 s.

    Numba imports it only to check that it is installed. It is, because dubnb depends on SciPy, and no kernel calls it.
    Functions of other programs that call it still import it when they are compiled.
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
    """The form of a kernel that other kernels call."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The version for these types; a literal number in the caller counts as its plain type."""
        return super().get_call_template([types.unliteral(each) for each in args], kws)

    def add_overload(self, compiled: Any) -> None:
        """Register a compiled version; a unique object stands in for the entry point, which a part does not have."""
        compiled = compiled._replace(entry_point=object())
        self.targetctx.insert_user_function(compiled.entry_point, compiled.fndesc, [compiled.library])
        self.overloads[tuple(compiled.signature.args)] = compiled


class Kernel(CPUDispatcher):
    """The form of a kernel that Python calls."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], fixed_order: bool = False):
        super().__init__(function, {}, options | {"nopython": True}, _KernelCompiler)
        own = _OptimisedCompiler if options["forceinline"] else _PartCompiler
        self._part_compiler = _FixedOrderCompiler if fixed_order else own
        self._part: Part | None = None

    @property
    def part(self) -> Part:
        """The form that other kernels call."""
        if self._part is None:
            self._part = Part(self.py_func, self.locals, self.targetoptions, self._part_compiler)
        return self._part

    @property
    def _numba_type_(self) -> Any:
        return types.Dispatcher(self.part if has_compiler_internals() else self)

    def compile(self, sig: Any) -> Any:
        """Compile for a signature, or load the compiled version from the cache."""
        with _no_collection():
            return super().compile(sig)

    def add_overload(self, compiled: Any) -> None:
        """Register a compiled version, and the environments of its parts, which the exceptions they raise need."""
        super().add_overload(compiled)
        if not has_compiler_internals():
            return
        for environment in compiled._find_referenced_environments():
            compiled.library.codegen.set_env(environment.env_name, environment)

    def __reduce__(self) -> Any:
        """Pickled by name, as functions are; the closure is not stored."""
        return _named, (self.py_func.__module__, self.py_func.__qualname__)


def _named(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


class KernelChoice(CPUDispatcher):
    """One name for several kernels; the type of the first argument, a NamedTuple, selects one. See `_jit.by_type`."""

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
