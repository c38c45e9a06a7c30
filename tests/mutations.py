"""Do the tests notice when the science is wrong? Deliberate defects, one at a time, each with tests that must fail.

    python -m tests.mutations --generated 40 --only objective/    # made from the syntax tree, see tests/generated.py
    python -m tests.mutations --generated 20 --each               # so many from each directory
    python -m tests.mutations --generated 20 --survivors 3        # as CI does: more survivors than that are an error
    python -m tests.mutations --notes                             # which tests reach which functions, for many mutants

A mutation is applied in a copy of the repository in the temp directory, never in the work tree. One that no test
notices is a survivor: it needs a test that kills it, or an entry in tests/generated.py that says why it changes
nothing. The exit code is 1 if too many survive (`--survivors`).

Mutants are tested without the JIT, in children of a process that has imported everything but dubnb: most take a second
or two. Few mutants meet whole files of tests, the nearest first (tests/generated.py), for about BUDGET seconds. Many
meet the tests of all files that reach the mutated function; which these are is noted once (tests/reached.py), and
`--notes` makes the notes alone. Files of WITH_JIT run with the JIT, in a process of their own. Tests that fail without
any mutation are left out, and named.
"""

from __future__ import annotations

import argparse
import compileall
import concurrent.futures
import fcntl
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import py_compile
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.reached import EVERYTHING, function_at

ROOT = Path(__file__).resolve().parents[1]
MANY = 100  # mutants for which it pays to note which tests reach which functions
LIMIT = 150  # seconds that a mutant's tests may take: one that never ends is noticed too
BUDGET = 120  # seconds of tests that a mutant meets
# These take minutes without the JIT, or can hang where loky and Dask are used in a fork of a process with threads.
WITH_JIT = ("test_arena.py", "test_cli.py", "test_distributed.py", "test_head.py")
WITH_JIT += ("test_sweep_cluster.py", "test_sweep_faults.py")
ALONE = {"NUMBA_DISABLE_JIT": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # children share the cores
IMPORTED = ("numba", "numpy", "pandas", "scipy.sparse", "scipy.special", "scipy.stats")
IMPORTED += ("sklearn.base", "joblib", "tqdm", "threadpoolctl", "pytest")


@dataclass(frozen=True)
class Mutation:
    """A change of one file's text, and the files of tests that may notice it, the nearest first."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    at: int | None = None  # the place of `old` in the file, where it stands more than once

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        line = "" if self.at is None else f":{(ROOT / self.file).read_text().count(chr(10), 0, self.at) + 1}"
        return f"{self.file}{line}: {old!r} -> {new!r}"

    def applied(self, text: str) -> str:
        """The file's text with the change."""
        at = text.index(self.old) if self.at is None else self.at
        assert text.startswith(self.old, at)
        return text[:at] + self.new + text[at + len(self.old) :]


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    mutation: Mutation
    kind: str  # "killed", "survived", "timeout" (noticed as well) or "broken": no test ran
    by: str  # the test that failed
    seconds: float


class Copy:
    """A copy of the repository, in which one mutant at a time is tested."""

    def __init__(self, directory: Path, notes: bool):
        self.directory, self.notes = directory, notes
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.lock = open(directory / "lock", "w")  # noqa: SIM115 - held until the process ends
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.tree = directory / "tree"
        shutil.rmtree(self.tree, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, self.tree / name)
        # Children find all but the mutated file compiled: they compare the text itself, not its time.
        compileall.compile_dir(self.tree, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        self.failing: set[str] = set()  # tests that fail without any mutation
        self.sound: set[str] = set()  # tests that do not
        self.maps: dict[str, dict[str, list[str]]] = {}

    def run(
        self, tests: Sequence[str], *more: str, record: Path | None = None, limit: float = LIMIT
    ) -> tuple[int, str]:
        """(pytest's exit code, its output); the code is -1 where it took too long. `record`: see `_reached`."""
        arguments = ["-o", "addopts=-m 'not slow'"]  # without setup.cfg's parallel run: xdist is not loaded here
        arguments += ["-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "--assert=plain", "-rfE", *more]
        arguments += [f"tests/{test.removeprefix('tests/')}" for test in tests]
        environment = os.environ | {"PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1"}
        path = self.directory / "output"
        with open(path, "w") as output:
            if all(file_of(test) in WITH_JIT for test in tests):
                environment = {name: value for name, value in environment.items() if name not in ALONE}
                command = [sys.executable, "-m", "pytest", *arguments]
                child = subprocess.Popen(command, cwd=self.tree, env=environment, stdout=output, stderr=output).pid
            else:
                child = os.fork()
                if not child:
                    self._test_in_child(arguments, environment, output.fileno(), record)
        return _code_of(child, limit), path.read_text(errors="replace")

    def _test_in_child(
        self, arguments: list[str], environment: dict[str, str], output: int, record: Path | None
    ) -> None:
        """pytest on the copy, in a process that has everything but dubnb in memory; never returns."""
        code = 3
        try:
            os.setsid()
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self.tree)
            os.environ.update(environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
            sys.dont_write_bytecode = True
            sys.path[:] = [str(self.tree), *(entry for entry in sys.path if entry and Path(entry) != ROOT)]
            for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "dubnb")]:
                del sys.modules[name]
            importlib.import_module("joblib.externals.loky.backend.context").set_start_method("fork", force=True)
            made = [importlib.import_module("tests.reached").Recorder(self.tree / "dubnb", record)] if record else []
            code = importlib.import_module("pytest").main(arguments, made)
            sys.stdout.flush()
        finally:
            os._exit(int(code))

    def reached(self, file: str) -> dict[str, dict[str, float]]:
        """{function: {test of the file that reaches it: its seconds}}; kept for the next run on the same code."""
        if file not in self.maps:
            own = [*(self.tree / "dubnb").rglob("*.py"), self.tree / "tests" / file]
            texts = b"".join(path.read_bytes() for path in sorted(own))
            path = self.directory.parent / f"{hashlib.sha256(file.encode() + texts).hexdigest()[:20]}.json"
            if not path.is_file():
                self.run([file], record=path, limit=10 * LIMIT)
            self.maps[file] = json.loads(path.read_text()) if path.is_file() else {}
        return self.maps[file]

    def asked(self, mutation: Mutation) -> list[list[str]]:
        """What a mutant meets, in turn: files of tests, or the tests that are noted to reach it, one file first."""
        with_jit = [[file] for file in mutation.tests[:3] if file in WITH_JIT]
        text = (self.tree / mutation.file).read_text()
        at = text.index(mutation.old) if mutation.at is None else mutation.at
        begins = function_at(text, text.count("\n", 0, at) + 1)
        if not self.notes or begins is None:
            return with_jit + [[test] for test in mutation.tests if test not in WITH_JIT]
        chosen: dict[str, float] = {}
        for name in (f"{mutation.file.removeprefix('dubnb/')}:{begins}", EVERYTHING):
            for file in mutation.tests:
                for test, seconds in ({} if file in WITH_JIT else self.reached(file)).get(name, {}).items():
                    if sum(chosen.values()) + seconds <= BUDGET:
                        chosen[test] = seconds
        nearest = [test for test in chosen if file_of(test) == file_of(next(iter(chosen)))]
        others = [test for test in chosen if test not in nearest]
        return [tests for tests in (nearest, others) if tests] + with_jit

    def outcome(self, mutation: Mutation) -> Outcome:
        """Test one mutant until a test notices or the time is up."""
        start, kind, by = time.perf_counter(), "survived", ""
        for tests in self.asked(mutation):
            kind, by = self._noticed(mutation, tests)
            if kind != "survived" or time.perf_counter() - start > BUDGET:
                break
        return Outcome(mutation, kind, by, time.perf_counter() - start)

    def _noticed(self, mutation: Mutation, tests: list[str]) -> tuple[str, str]:
        """("killed", the failing test), or another kind; what fails without the mutation too does not count."""
        path = self.tree / mutation.file
        text = path.read_text()
        while True:
            tests = [test for test in tests if test not in self.failing]
            if not tests:
                return "survived", ""
            path.write_text(mutation.applied(text))
            try:
                code, output = self.run(tests, "-x", *(f"--deselect={name}" for name in sorted(self.failing)))
            finally:
                path.write_text(text)
            by = next(iter(failures(output)), " ".join(output.split())[-300:])
            if code == -1:  # without the mutation too?
                code, _ = self.run(tests)
                return ("timeout" if code != -1 else "broken"), f"{tests[0]} and others take more than {LIMIT} s"
            if code == 5:  # all are slow, or need the JIT
                return "survived", ""
            if code != 1:
                return ("broken", by) if code else ("survived", "")
            if by not in self.sound:
                code, _ = self.run([by])
                if code:
                    print(f"  left out, fails by itself: {by}", flush=True)
                    self.failing.add(by)
                    continue
                self.sound.add(by)
            return "killed", by


def file_of(test: str) -> str:
    """The file of a test: test_x.py of tests/test_x.py::test_y."""
    return test.removeprefix("tests/").partition("::")[0]


def _code_of(child: int, limit: float) -> int:
    """A child's exit code, or -1 once it took too long and was ended."""
    end, pause = time.monotonic() + limit, 0.01
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(2 * pause, 0.2)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


def failures(output: str) -> list[str]:
    """The names in pytest's short summary."""
    return re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)


def _free_copy(notes: bool) -> None:
    """A copy for this process, at a path that no other run uses."""
    global COPY
    base = Path(tempfile.gettempdir()) / f"dubnb-mutations-{os.getuid()}"
    for number in range(100):
        try:
            COPY = Copy(base / str(number), notes)
            return
        except BlockingIOError:
            continue


def _outcome(mutation: Mutation) -> Outcome:
    outcome = COPY.outcome(mutation)
    by = f"  [{outcome.by}]" if outcome.by else ""
    print(f"{outcome.kind:9} {outcome.seconds:5.1f} s  {mutation}{by}", flush=True)
    return outcome


def _prepare() -> None:
    """Import what forks then have in memory."""
    os.environ.update(ALONE)
    for name in IMPORTED:
        importlib.import_module(name)


def run(mutations: list[Mutation], jobs: int = 1) -> list[Outcome]:
    """Test every mutant and say what became of it, as it comes."""
    _prepare()
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(jobs, context, _free_copy, (len(mutations) >= MANY,)) as pool:
        return list(pool.map(_outcome, mutations))


def note() -> int:
    """Note which tests reach which functions, file by file; what is noted already is not run again."""
    from tests.generated import OF_THE_REPOSITORY

    _prepare()
    _free_copy(True)
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        if path.name not in (*WITH_JIT, *OF_THE_REPOSITORY):
            start = time.perf_counter()
            found = COPY.reached(path.name)
            print(f"{path.name}: {len(found)} functions, {time.perf_counter() - start:.0f} s", flush=True)
    return 0


def group_of(mutation: Mutation) -> str:
    """The directory of the package that it is in, or "modules" beside them."""
    _, *directories, _ = mutation.file.split("/")
    return directories[0] + "/" if directories else "modules"


def drawn(mutations: list[Mutation], count: int | None, seed: int, each: bool) -> list[Mutation]:
    """`count` of them at random; with `each`, of every group, the groups in turn."""
    if count is None:
        return mutations
    groups: dict[str, list[Mutation]] = {}
    for mutation in mutations:
        groups.setdefault(group_of(mutation) if each else "", []).append(mutation)
    samples = [random.Random(seed).sample(own, min(count, len(own))) for _, own in sorted(groups.items())]
    return [mutation for turn in itertools.zip_longest(*samples) for mutation in turn if mutation is not None]


def report(outcomes: list[Outcome], broken_is_noticed: bool, allowed: int = 0) -> int:
    """The survivors, a line per module, and the exit code."""
    noticed = ("killed", "timeout", "broken") if broken_is_noticed else ("killed", "timeout")
    survivors = [each for each in outcomes if each.kind not in noticed]
    for each in survivors:
        print(f"SURVIVOR  {each.mutation}  ({each.kind})")
    modules: dict[str, list[bool]] = {}
    for each in outcomes:
        modules.setdefault(group_of(each.mutation), []).append(each in survivors)
    for module, survived in sorted(modules.items()):
        print(f"{module:14} {len(survived):4} mutants, {sum(survived):3} survive")
    share = 100 * len(survivors) / max(len(outcomes), 1)
    print(f"{len(outcomes)} mutants, {len(survivors)} survive ({share:.1f} %)")
    return int(len(survivors) > allowed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generated", type=int, metavar="N", default=20, help="how many are drawn (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", default="", help="a word that the file, the old or the new text must contain")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("--each", action="store_true", help="so many of each directory, not in all")
    parser.add_argument("--survivors", type=int, default=0, metavar="N", help="how many may survive (default 0)")
    parser.add_argument("--notes", action="store_true", help="only note which tests reach which functions")
    args = parser.parse_args()
    from tests.generated import mutations

    if args.notes:
        return note()
    chosen = [m for m in mutations() if any(args.only in text for text in (m.file, m.old, m.new))]
    chosen = drawn(chosen, args.generated, args.seed, args.each)
    return report(run(chosen, args.jobs), broken_is_noticed=True, allowed=args.survivors)


if __name__ == "__main__":
    sys.exit(main())
