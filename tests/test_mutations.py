"""The mutation runner itself: which mutants are made, and what becomes of one. See tests/mutations.py."""

import ast
import subprocess
import sys

import pytest

from tests import generated
from tests.mutations import ROOT, Mutation, drawn, group_of
from tests.reached import EVERYTHING, Recorder, function_at

STATS = "test_stats.py -k 'holm or summary'"


def test_stale_mutations_are_told():
    gone = Mutation("dubnb/stats.py", "no such text", "", (STATS,))
    many = Mutation("dubnb/stats.py", "return", "yield", (STATS,))
    nowhere = Mutation("dubnb/nowhere.py", "a", "b", (STATS,))
    untested = Mutation("dubnb/stats.py", "def holm(", "def mloh(", ("test_nothing.py",))
    assert "stands 0 times" in gone.stale() and "times" in many.stale()
    assert nowhere.stale() == "the file is gone" and "test_nothing.py" in untested.stale()


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
    for mutation in listed[::50]:
        ast.parse(mutation.applied((ROOT / mutation.file).read_text()))


CHOSEN = """
BLOCK = 1 << 12
PARTS = ("S_c", 3)
def f(x, y, seed=7, level=2):
    h = x * 31
    if x + 4 < y:
        emb.prefetch_row(x, y)
    best = max(x, y) if x < BLOCK else x
    best = x if abs(x) > 1e-9 else best
    if JIT_ENABLED:
        best += 5
    for part in zip(len(x.triplets("va").users), len(y.log.items), strict=True):
        best = len(x.tables.users)
    return settings(best, wide={"lam": (5, 6)}, copy=False)
def score_pairs(users, items):
    return len(users) + g(items)
def prefetch_row(table, row):
    return table + 3 * row
def width(x):
    return x.users.shape[1], x.users.shape[0]
"""


def test_what_changes_nothing_or_is_a_choice_is_no_mutant(monkeypatch):
    monkeypatch.setitem(generated.SAME_RESULT, ("f.py", "h"), "a hash")
    found = {(m.old, m.new) for m in generated.of_source("f.py", CHOSEN, ("test_x.py",))}
    assert found == {('"S_c"', "'S_t'"), ("3", "4"), ("2", "3"), ("1e-9", "1.000000001")} | {
        ("x.tables.users", "x.tables.items"),
        (
            'zip(len(x.triplets("va").users), len(y.log.items), strict=True)',
            "zip(len(y.log.items), len(x.triplets('va').users), strict=True)",
        ),
        ("len(users) + g(items)", "(len(users) - (g(items)))"),
        ("len(users) + g(items)", "(len(users))"),
        ("items", "users"),
        ("x.users", "x.items"),
        *(("1", "2"), ("0", "1")),
    }


def test_a_draw_takes_so_many_of_each_directory():
    listed = [Mutation(f"dubnb/{file}", "a", str(k), ()) for file in ("x/a.py", "x/b.py", "c.py") for k in range(9)]
    found = drawn(listed, 4, 0, each=True)
    assert [group_of(mutation) for mutation in found] == ["modules", "x/"] * 4
    assert len(set(found)) == 8 and found == drawn(listed, 4, 0, each=True) != drawn(listed, 4, 1, each=True)
    assert len(drawn(listed, 4, 0, each=False)) == 4 and drawn(listed, None, 0, each=False) == listed
    assert len(drawn(listed, 100, 0, each=True)) == len(listed)


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
    """Of the package alone, fixtures apart from the test around them; who starts a process reaches everything."""
    monkeypatch.setattr(sys, "addaudithook", lambda hook: None)
    recorder, names = Recorder(tmp_path, tmp_path / "map.json"), {"njit": lambda function: function}
    exec(compile(FUNCTIONS, str(tmp_path / "m.py"), "exec"), names)
    test, fixture, other, before = set(), set(), set(), sys.gettrace()
    with recorder._noted(test):
        with recorder._noted(fixture):
            names["outer"](1)
        str(ROOT)
    assert {"m.py:3", "m.py:5"} <= fixture and not test
    with recorder._noted(other):
        recorder._heard("os.fork", ())
    assert other == {EVERYTHING} and sys.gettrace() is before


@pytest.mark.slow
def test_mutants_are_killed_and_survivors_told():
    """Holm's correction dropped is noticed by its test, but not by that of another function."""
    program = """
from tests.mutations import Mutation, report, run
old = "np.arange(len(p), 0, -1)"
caught, missed = ("test_stats.py -k holm",), ("test_stats.py -k student",)
outcomes = run([Mutation("dubnb/stats.py", old, "1", caught), Mutation("dubnb/stats.py", old, "1", missed)])
assert [each.kind for each in outcomes] == ["killed", "survived"], outcomes
assert report(outcomes, False) == 1
"""
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "test_stats.py::test_holm" in process.stdout
    assert "2 mutants, 1 survive (50.0 %), 1 without a reason" in process.stdout
