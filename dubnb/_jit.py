"""The one home of Numba's flags: every kernel of dubnb is made by `njit` below.

Kernels are cached on disk in a directory named by a hash of all sources that define kernels, so that an edit of a
jitted callee in another file never meets a stale cache. `DUBNB_CACHE_DIR` moves that directory. Every file there begins
with a checksum: a damaged one is removed with a warning and its kernel compiled again.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import sys
import tempfile
import warnings
from pathlib import Path

import numba
from numba.core import serialize, types
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload

# `contract` gives fused multiply-adds, `reassoc` vectorised sums; NaN and inf keep their meaning, so divergence shows.
FASTMATH = {"contract", "reassoc", "nsz"}
FLAGS = {"error_model": "numpy", "fastmath": FASTMATH, "nogil": True}
JIT_ENABLED = not numba.config.DISABLE_JIT
_CHECKSUM = 16  # bytes


@functools.cache
def cache_dir():
    """Where compiled kernels live: the first writable of the chosen, the user's cache and the temp directory."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source = path.read_bytes()
        if b"njit" in source:
            digest.update(source)
    home_cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    roots = [os.environ.get("DUBNB_CACHE_DIR"), os.environ.get("NUMBA_CACHE_DIR"), home_cache, tempfile.gettempdir()]
    for root in filter(None, roots):
        directory = Path(root) / "dubnb" / digest.hexdigest()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                return str(directory)
        except OSError:
            continue
    return None


def njit(function=None, *, parallel=False, inline=False, early=False):
    """Compile a kernel with dubnb's flags: no division checks, no GIL, cached on disk.

    inline: LLVM puts the compiled function into its callers, which keeps the order of its sums. early: Numba puts its
    source there before anything is compiled, for small helpers without sums: a first fit then has fewer to compile.
    """
    if function is None:
        return functools.partial(njit, parallel=parallel, inline=inline, early=early)
    directory = cache_dir() if JIT_ENABLED else None
    previous = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = directory or previous  # read by Numba only here, while the kernel is decorated
    try:
        kernel = numba.njit(
            cache=directory is not None,
            parallel=parallel,
            forceinline=inline,
            inline="always" if early else "never",
            **FLAGS,
        )(function)
    finally:
        numba.config.CACHE_DIR = previous
    cache = getattr(kernel, "_cache", None)
    if hasattr(cache, "_cache_file"):  # where a future Numba keeps it elsewhere, its own files serve, unchecked
        name, source = f"{function.__module__}.{function.__qualname__}", _source_checksum(function.__code__.co_filename)
        cache._cache_file = _CheckedFiles(cache.cache_path, name, source)
    return kernel


def by_type():
    """One name for the code of several kinds of models: the type of the first argument, a NamedTuple, chooses.

    `name.of(kind)` registers a plain function, which is compiled with the kernel that calls the name. Such a kernel is
    cached on disk like others, which it would not be if it were given the function.
    """
    functions = {}

    def call(first, *rest):
        return functions[type(first)](first, *rest)

    if JIT_ENABLED:

        @overload(call, strict=False, jit_options=FLAGS)
        def choose(first, *rest):
            return functions[first.instance_class]

    call.of = lambda kind: lambda function: functions.setdefault(kind, function)
    return call


@contextlib.contextmanager
def one_blas_thread():
    """Within: every BLAS runs on one thread, so that a sum has one order on any number of cores.

    Numba's np.dot calls SciPy's BLAS, which Numba loads with the first kernel that needs it: it is loaded here, because
    a limit reaches only what is there.
    """
    import scipy.linalg.cython_blas  # noqa: F401
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        yield


@contextlib.contextmanager
def threads_for_kernels(wanted):
    """Within: parallel kernels run on the number of threads that is given, at most `wanted`.

    They are launched hundreds of times per epoch, which takes OpenMP (or TBB) some microseconds and Numba's own work
    queue 100: without one of the two, or with fewer cores, there are fewer threads, and a note says why.
    """
    usable, why = min(wanted, numba.config.NUMBA_NUM_THREADS), f"Numba has {numba.config.NUMBA_NUM_THREADS}"
    if wanted > 1 and not _quick_to_launch():
        usable, why = 1, "Numba's threads are neither OpenMP's nor TBB's here"
    if usable < wanted:
        warnings.warn(f"threads={wanted}: {why}, so training takes {usable}; the result is the same", stacklevel=3)
    if usable == 1:
        yield 1
        return
    before = numba.get_num_threads()
    numba.set_num_threads(usable)
    try:
        yield usable
    finally:
        numba.set_num_threads(before)


def _quick_to_launch():
    """Whether Numba's threads are those of OpenMP or TBB; asking starts them, as its own settings say."""
    if not JIT_ENABLED:
        return False
    numba.get_num_threads()
    return numba.threading_layer() in ("omp", "tbb")


class _CheckedFiles:
    """One kernel's compiled versions, a file each: a checksum, then the pickled (key, what Numba asked to keep).

    Takes the place of Numba's own cache files, which have no checksums: a truncated one raises, and a flipped bit in
    the machine code runs.
    """

    def __init__(self, directory, kernel, source):
        self.directory, self.kernel, self.source = Path(directory), kernel, source

    def load(self, key):
        """What was kept under `key`, or None."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        checksum, payload = content[:_CHECKSUM], content[_CHECKSUM:]
        if checksum != _checksum(payload):
            _warn_of_damage(str(self.directory))
            path.unlink(missing_ok=True)
            return None
        kept_key, kept = pickle.loads(payload)
        return kept if kept_key == key else None

    def save(self, key, data):
        """Keep `data`, all of it or nothing; a disk that refuses only costs the next process a compilation."""
        payload = serialize.dumps((key, data))
        try:
            handle, temporary = tempfile.mkstemp(dir=self.directory)
            with os.fdopen(handle, "wb") as file:
                file.write(_checksum(payload) + payload)
            os.replace(temporary, self._path(key))
        except OSError:
            pass

    def flush(self):
        """Forget everything of this kernel."""
        for path in self.directory.glob(f"{self.kernel}-*.kernel"):
            path.unlink(missing_ok=True)

    def _path(self, key):
        about = repr((key, self.source, numba.__version__, sys.version_info[:2]))
        return self.directory / f"{self.kernel}-{_checksum(about.encode()).hex()}.kernel"


@functools.cache
def _source_checksum(path):
    """Of the file a kernel is written in: what covers kernels outside the package, whose sources name no directory."""
    return _checksum(Path(path).read_bytes() if os.path.isfile(path) else b"")


def _checksum(content):
    return hashlib.blake2b(content, digest_size=_CHECKSUM).digest()


@functools.cache
def _warn_of_damage(directory):
    """Once per directory and process."""
    warnings.warn(f"damaged files in the cache of compiled kernels, {directory}: compiling them again", stacklevel=2)


if JIT_ENABLED:

    @intrinsic
    def prefetch(typingctx, array, index):
        """Ask the CPU to bring array.flat[index] (C order) into its cache; changes nothing else."""
        signature = types.void(array, index)

        def codegen(context, builder, sig, args):
            from llvmlite import ir

            data = context.make_array(sig.args[0])(context, builder, args[0]).data
            pointer = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
            kind = ir.FunctionType(ir.VoidType(), [pointer.type, ir.IntType(32), ir.IntType(32), ir.IntType(32)])
            module = builder.module
            name = "llvm.prefetch.p0"
            declared = module.globals.get(name) or ir.Function(module, kind, name=name)
            read, keep_close, data_cache = (ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))
            builder.call(declared, [pointer, read, keep_close, data_cache])
            return context.get_dummy_value()

        return signature, codegen

    @intrinsic
    def span(typingctx, array, start, length):
        """array.flat[start : start + length] of a C-contiguous array, promised to overlap nothing else: C's `restrict`.

        Without the promise a compiled loop tests every pair of arrays for overlap before it starts, which costs more
        than the few vector iterations of a row. While a span is in use, its part of the array is reached through it
        alone; a later span, and whoever comes after the kernel, sees what was written. A span counts no references:
        the array behind it must outlive it.

        How: the pointer goes through an empty assembler statement that is said to return memory of its own and then,
        lest the compiler think that nobody will read it, through one that may have kept it. Both are said to touch all
        memory, so that no read or write crosses them.
        """
        if not isinstance(array, types.Array) or array.layout != "C":
            raise TypingError(f"span takes a C-contiguous array, not {array}")
        signature = types.Array(array.dtype, 1, "C", readonly=not array.mutable)(array, start, length)

        def codegen(context, builder, sig, args):
            from llvmlite import ir
            from numba.np import arrayobj

            first, size = (context.cast(builder, args[k], sig.args[k], types.intp) for k in (1, 2))
            pointer = builder.gep(context.make_array(sig.args[0])(context, builder, args[0]).data, [first])
            same = ir.FunctionType(pointer.type, [pointer.type])
            nothing = ir.InlineAsm(same, "", "=r,0,~{memory}", side_effect=True)
            pointer = builder.call(nothing, [pointer], cconv="noalias")  # printed where LLVM reads return attributes
            keep = ir.FunctionType(ir.VoidType(), [pointer.type])
            builder.call(ir.InlineAsm(keep, "", "r,~{memory}", side_effect=True), [pointer])
            result = context.make_array(sig.return_type)(context, builder)
            itemsize = context.get_constant(types.intp, sig.return_type.dtype.bitwidth // 8)
            arrayobj.populate_array(
                result, data=pointer, shape=[size], strides=[itemsize], itemsize=itemsize, meminfo=None
            )
            return result._getvalue()

        return signature, codegen

else:

    def prefetch(array, index):
        """Without the JIT there is nothing to bring closer."""

    def span(array, start, length):
        """array.flat[start : start + length], a view."""
        return array.reshape(-1)[start : start + length]
