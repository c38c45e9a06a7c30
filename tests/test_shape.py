"""A kernel with many arguments is hard to call: at most 12."""

import ast
from pathlib import Path

import pytest

from tests.test_types import is_kernel

PACKAGE = Path(__file__).resolve().parents[1] / "dubnb"
MOST = 12


def wide_kernels(source):
    """Names of the kernels of a file that take more than MOST arguments."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return [each.name for each in functions if is_kernel(each) and len(each.args.args) > MOST]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_kernels_take_few_arguments(path):
    assert wide_kernels(path.read_text()) == []


def test_wide_kernels_are_found():
    arguments = ", ".join(f"x{k}" for k in range(MOST + 1))
    assert wide_kernels(f"@njit\ndef g({arguments}): pass\ndef h({arguments}): pass\n") == ["g"]
