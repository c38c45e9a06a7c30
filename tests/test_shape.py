"""The house's measures: a function fits on a screen and takes few parameters, a file has one subject."""

import ast
from pathlib import Path

import pytest

from tests.test_types import is_kernel

PACKAGE = Path(__file__).resolve().parents[1] / "dubnb"
LINES, PARAMETERS, KERNEL_PARAMETERS, FILE_LINES = 50, 8, 10, 600
ABOVE = {  # (file, function): why it may
    ("sweeps/run.py", "sweep"): "one option for each question that a user asks",
    ("backbones/product.py", "_tile"): "the kernel's own parameters, without the JIT",
    ("backbones/mf.py", "train_batch"): "the innermost kernel: its spans must be made where its loops are",
}


def too_large(function):
    """What is above measure: [words]; the docstring counts, self and cls do not."""
    given = function.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    n = sum(each is not None and each.arg not in ("self", "cls") for each in parameters)
    lines = function.end_lineno - function.lineno + 1
    most = KERNEL_PARAMETERS if is_kernel(function) else PARAMETERS
    return [f"{lines} lines"] * (lines > LINES) + [f"{n} parameters"] * (n > most)


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_functions_and_files_are_small(path):
    name, text = path.relative_to(PACKAGE).as_posix(), path.read_text()
    large = {each.name: words for each in functions(ast.parse(text)) if (words := too_large(each))}
    large = {each: words for each, words in large.items() if (name, each) not in ABOVE}
    assert not large, (
        f"{name}: {large}: at most {LINES} lines and {PARAMETERS} parameters (kernels {KERNEL_PARAMETERS})"
    )
    assert len(text.splitlines()) <= FILE_LINES


def test_large_functions_are_found():
    long = "def f(a, b, c, d, e, f, g, h, i):\n" + "    x = 1\n" * 50
    kernel = "@njit\ndef g(a, b, c, d, e, f, g, h, i, j): pass\n"
    assert [too_large(each) for each in functions(ast.parse(long + kernel))] == [["51 lines", "9 parameters"], []]
