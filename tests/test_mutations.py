"""The mutation runner itself: which mutants are made, and what becomes of one. See tests/mutations.py."""

import ast
import json
import subprocess
import sys

import pytest

from tests import generated, reached
from tests.mutations import ROOT
from tests.reached import EVERYTHING, Recorder, function_at

SOURCE = '''"""A docstring stays."""
def f(data, rate: int = 3):
    """So does this one, -1."""
    S_c = data.triplets("S_c")
    if len(S_c.users) > 0 and rate is not None:
        raise ValueError("messages too, 1 + 1")
    return g(S_c, rate) - 2 * rate
'''


def test_mutants_from_the_syntax_tree():
    found = {(m.old, m.new) for m in generated.of_source("f.py", SOURCE, ("test_x.py",))}
    assert found == {
        ("3", "4"),
        ('"S_c"', "'S_t'"),
        ("S_c", "S_t"),
        ("len(S_c.users) > 0", "(len(S_c.users) >= 0)"),
        ("len(S_c.users) > 0 and rate is not None", "((len(S_c.users) > 0) or (rate is not None))"),
        ("rate is not None", "(rate is None)"),
        ("0", "1"),
        ("g(S_c, rate) - 2 * rate", "(g(S_c, rate) + (2 * rate))"),
        ("g(S_c, rate) - 2 * rate", "(g(S_c, rate))"),
        ("g(S_c, rate)", "g(rate, S_c)"),
        ("2 * rate", "(2 / (rate))"),
        ("2 * rate", "(2)"),
        ("2", "3"),
    }


def test_mutants_from_the_syntax_tree_of_every_module_are_python():
    listed = generated.mutations()
    assert len(listed) > 2000
    for mutation in listed[::500]:
        ast.parse(mutation.applied((ROOT / mutation.file).read_text()))


FUNCTIONS = """
level = 1
@njit
def outer(x):
    def inner(y):
        return y
    return inner(x) + [level for _ in range(2)][0]
"""


def test_the_innermost_function_of_a_line():
    """It begins with its decorators, as its code says; lines outside of all have none."""
    found = [function_at(FUNCTIONS, line) for line in range(1, 9)]
    assert found == [None, None, 3, 3, 5, 5, 3, None]


def test_functions_that_tests_call_are_noted(tmp_path, monkeypatch):
    """Of the package alone, fixtures apart from the test around them; who starts a process reaches everything.

    What an import calls is reached by every test.
    """
    monkeypatch.setattr(sys, "addaudithook", lambda hook: None)
    recorder, names = Recorder(tmp_path, tmp_path / "map.json"), {"njit": lambda function: function}
    exec(compile(FUNCTIONS, str(tmp_path / "m.py"), "exec"), names)
    names["outer"](1)
    recorder.pytest_collection_finish()
    recorder.reached, recorder.seconds = {"a test": {"m.py:5"}, "another": set()}, {"a test": 2, "another": 1}
    recorder.pytest_sessionfinish()
    assert json.loads((tmp_path / "map.json").read_text())["m.py:3"] == {"another": 1, "a test": 2}
    test, fixture, other, before = set(), set(), set(), sys.gettrace()
    with recorder._noted(test):
        with recorder._noted(fixture):
            names["outer"](1)
        str(ROOT)
    assert {"m.py:3", "m.py:5"} <= fixture and not test
    with recorder._noted(other):
        recorder._heard("os.fork", ())
    assert other == {EVERYTHING} and sys.gettrace() is before


def test_what_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(reached, "LIMIT", 0.01)
    with pytest.raises(pytest.fail.Exception, match="takes more than"), reached.limited():
        for _ in range(10**9):
            pass


@pytest.mark.slow
def test_mutants_are_killed_and_survivors_reported():
    """Holm's correction dropped is noticed by its test, but not by that of another function."""
    program = """
from tests.mutations import Mutation, report, run
old = "np.arange(len(p), 0, -1)"
caught, missed = ("test_stats.py",), ("test_losses.py",)
outcomes = run([Mutation("dubnb/stats.py", old, "1", caught), Mutation("dubnb/stats.py", old, "1", missed)])
assert [each.kind for each in outcomes] == ["killed", "survived"], outcomes
assert report(outcomes, False) == 1
"""
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "test_stats.py::test_holm" in process.stdout
    assert "2 mutants, 1 survive (50.0 %)" in process.stdout
