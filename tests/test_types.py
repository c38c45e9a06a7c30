"""mypy on the package, as setup.cfg says, and what it must refuse of a user's program; kernels alone have no types."""

import ast
import inspect
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """import dubnb

dubnb.DUB(rank=50, gamma=None).fit(dubnb.load_dataset("simulated"))
dubnb.DUB(rank="fifty")
dubnb.DUB(gama=3)
dubnb.no_such_name
reveal_type(dubnb.DUB().fit)
dubnb.Partition.from_frames("a.csv", "b.csv", threshold=3, split="time")
dubnb.Partition.from_frames("a.csv", "b.csv", threshold="3")
dubnb.Partition.from_table("a.csv", is_random="r", thresold=3)
"""


def mypy(*arguments, config=ROOT / "setup.cfg"):
    """mypy's lines; the cache is that of earlier runs in this tree."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--no-error-summary", *arguments]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode in (0, 1), process.stdout + process.stderr
    return process.stdout.splitlines()


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    pytest.importorskip("mypy")
    program = tmp_path_factory.mktemp("user") / "program.py"
    program.write_text(PROGRAM)
    return mypy("dubnb", str(program))


def said(lines, number):
    return [
        line for line in lines if f"program.py:{number}: error" in line or f"program.py:{number}: note: Reve" in line
    ]


def test_the_package_passes(lines):
    wrong = [line for line in lines if "program.py" not in line]
    assert not wrong, "\n".join(wrong)


def test_wrong_programs_are_refused(lines):
    """Each mistake in its own line, what is right not at all."""
    assert not said(lines, 3)
    assert any('"rank" to "DUB" has incompatible type "str"' in line for line in said(lines, 4))
    assert any('Unexpected keyword argument "gama" for "DUB"' in line for line in said(lines, 5))
    assert any("no_such_name" in line for line in said(lines, 6))
    assert not said(lines, 8)
    assert any('"threshold" to "from_frames"' in line and '"str"' in line for line in said(lines, 9)), said(lines, 9)
    assert any('Unexpected keyword argument "thresold"' in line for line in said(lines, 10)), said(lines, 10)


def test_options_of_reading_are_listed_alike():
    """For type checkers, with their defaults, and in what help() shows."""
    from dubnb import Partition
    from dubnb.data.log import LogOptions, ReadOptions

    assert typing.get_type_hints(ReadOptions) == typing.get_type_hints(LogOptions)
    for function, own in (
        (Partition.from_frames, ["biased", "random", "parts_dir", "scheduler"]),
        (Partition.from_table, ["table", "is_random"]),
    ):
        assert list(inspect.signature(function).parameters) == own + list(typing.get_type_hints(ReadOptions))
    described = re.findall(r"^        (\S.*) : ", Partition.from_frames.__doc__, re.MULTILINE)
    assert set(", ".join(described).split(", ")) >= set(typing.get_type_hints(ReadOptions))


KERNELS = ("njit", "by_type", "kernel", "cuda.jit", "intrinsic", "overload")  # decorators


def is_kernel(function):
    """Whether Numba compiles it: its types are those of the arrays that it gets."""
    names = [ast.unparse(decorator).partition("(")[0] for decorator in function.decorator_list]
    return any(name in KERNELS or name.endswith(".of") for name in names)


def has_types(function):
    """Whether every parameter and the result are annotated; the result of __init__ is known."""
    given = function.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    own = [each for each in parameters if each is not None and each.arg not in ("self", "cls")]
    told = function.returns is not None or (function.name == "__init__" and own)
    return bool(told) and all(each.annotation is not None for each in own)


def without_types(node):
    """Functions that are neither annotated nor kernels, nor inside of one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            if is_kernel(child):
                continue
            if not has_types(child):
                yield child
        yield from without_types(child)


def test_every_function_except_kernels_is_annotated():
    """mypy skips functions without annotations, because kernels have none (see setup.cfg)."""
    bare = [
        f"{path.name}:{function.lineno} {function.name}"
        for path in sorted((ROOT / "dubnb").rglob("*.py"))
        for function in without_types(ast.parse(path.read_text()))
    ]
    assert not bare, f"annotate parameters and result of {', '.join(bare)}"


# ---- rules for kernels, from their source --------------------------------------------------------------------------


def kernels():
    """("file: name", syntax tree) of every kernel of the package."""
    for path in sorted((ROOT / "dubnb").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and is_kernel(node):
                yield f"{path.name}: {node.name}", node


def test_kernels_take_at_most_12_arguments():
    found = {name: len(node.args.args) for name, node in kernels()}
    assert len(found) > 100 and not [name for name, count in found.items() if count > 12]


OF_A_BLAS = {f"np.{name}" for name in ("dot", "vdot", "matmul", "inner", "linalg")}


def calls_a_blas(function):
    """Whether a function's source calls a library for matrix products or solves."""
    return any(
        isinstance(node, ast.MatMult) or (isinstance(node, ast.Attribute) and ast.unparse(node) in OF_A_BLAS)
        for node in ast.walk(function)
    )


def test_no_kernel_calls_a_blas():  # SciPy's threads are not limited: sums would depend on the number of cores
    assert not [name for name, node in kernels() if calls_a_blas(node)]
    assert all(calls_a_blas(ast.parse(text)) for text in ("a @ b", "np.dot(a, b)", "np.linalg.solve(a, b)"))
