"""Which tests reach which functions: tests/mutations.py asks these alone, the shortest first.

A pytest plugin notes the functions that every test calls, itself or through its fixtures. What child processes call is
not seen: a test that starts any counts as one that reaches everything. A function that is called while the test file is
imported counts as reached by all of its tests. Some fixtures of a module or session return a function, which may keep
what it made: what it calls in one test counts as reached by all tests that use it. A test that takes longer than LIMIT
is ended and not noted: mutants would not wait for it.
"""

from __future__ import annotations

import ast
import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn")
EVERYTHING = "*"
LIMIT = 120  # seconds


class Recorder:
    """The plugin; it writes {function: {test that reaches it and passes: its seconds}}, the shortest first."""

    def __init__(self, package: Path, path: Path):
        self.package, self.path = f"{package}/", path
        self.codes: dict[Any, Any] = {}  # by id: hashing code objects takes longer than calling them
        self.fixtures: dict[str, set[str]] = {}
        self.reached: dict[str, set[str]] = {}
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.shared: dict[str, set[str]] = {}  # fixture that returns a function -> what its tests reach
        self.used: dict[str, list[str]] = {}  # test -> its fixtures
        self.imported: set[str] = set()  # functions that imports call
        sys.addaudithook(self._heard)
        self.importing = contextlib.ExitStack()
        self.importing.enter_context(self._noted(self.imported))

    def pytest_collection_finish(self) -> None:
        self.importing.close()

    def _heard(self, event: str, _: Any) -> None:
        if event in STARTS:
            self.codes[EVERYTHING] = None

    def _called(self, frame: Any, event: str, _: Any) -> None:
        self.codes[id(frame.f_code)] = frame.f_code

    @contextlib.contextmanager
    def _noted(self, found: set[str]) -> Iterator[None]:
        """Within: the package's functions that are called are added to `found`; may be nested."""
        outer, self.codes = self.codes, {}
        before = sys.gettrace()
        sys.settrace(self._called)
        threading.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)  # type: ignore[arg-type]
            codes, self.codes = self.codes, outer
            found |= {EVERYTHING} & codes.keys()
            own = [code for code in codes.values() if code and code.co_filename.startswith(self.package)]
            found |= {f"{code.co_filename.removeprefix(self.package)}:{code.co_firstlineno}" for code in own}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        with self._noted(self.fixtures.setdefault(fixturedef.argname, set())):
            made = yield
        if fixturedef.scope != "function" and callable(made):
            self.shared.setdefault(fixturedef.argname, set())
        return made

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[Any]:
        found = self.reached.setdefault(item.nodeid, set())
        with limited(), self._noted(found):
            result = yield
        found |= set().union(*(self.fixtures.get(name, ()) for name in item.fixturenames))
        self.used[item.nodeid] = [name for name in item.fixturenames if name in self.shared]
        for name in self.used[item.nodeid]:
            self.shared[name] |= found - {EVERYTHING}
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:  # skipped ones notice nothing
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        tests: dict[str, dict[str, float]] = {}
        for test in sorted(self.reached.keys() - self.failed, key=lambda each: self.seconds[each]):
            shared = (self.shared[name] for name in self.used.get(test, ()))
            for function in self.reached[test].union(self.imported - {EVERYTHING}, *shared):
                tests.setdefault(function, {})[test] = round(self.seconds[test], 3)
        self.path.write_text(json.dumps(tests))


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Within: what takes longer than LIMIT fails."""

    def too_long(*_: Any) -> None:
        pytest.fail(f"takes more than {LIMIT} s", pytrace=False)

    before = signal.signal(signal.SIGALRM, too_long)
    try:
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def function_at(source: str, line: int) -> int | None:
    """Where the innermost function begins that holds a line, decorators included; None outside of all."""
    starts = None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first <= line <= (node.end_lineno or 0) and (starts is None or first > starts):
                starts = first
    return starts
