"""device=: behaviour without a GPU; barriers; compilation; the simulator, in a separate process."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dubnb import cuda
from dubnb._check import InputError
from dubnb.methods import make
from tests import cuda_barriers, naive

HERE = Path(__file__).resolve().parent
SOURCES = sorted((HERE.parent / "dubnb" / "cuda").glob("*.py"))
HAS_COMPILER = importlib.util.find_spec("numba_cuda") is not None
KERNEL = re.compile(r"^@kernel\(.*?\)\ndef (\w+)", re.MULTILINE | re.DOTALL)
CAPABILITIES = ("lowest", "8.0", "9.0")


def run_alone(*words, **environment):
    """Run a separate process and return its output."""
    command, settings = [sys.executable, "-W", "ignore", *words], os.environ | environment
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent, env=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def data():
    return naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12)


# -- choosing a device


@pytest.mark.parametrize("value", ["gpu", "CUDA", None, 0])
def test_unknown_devices_are_refused(value, data):
    with pytest.raises(InputError, match="device="):
        make("base", device=value).fit(data)


def test_cuda_without_a_gpu_names_what_is_missing(monkeypatch, data):
    monkeypatch.setattr(cuda, "why_not", lambda: "numba-cuda is not installed: pip install 'dubnb[cuda]'")
    with pytest.raises(InputError) as caught:
        make("base", device="cuda").fit(data)
    message = str(caught.value)
    assert "\n" not in message and "dubnb[cuda]" in message and "device='cpu'" in message


def test_without_numba_cuda_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("numba.config.ENABLE_CUDASIM", 0)
    assert "pip install 'dubnb[cuda]'" in cuda.why_not()


def test_auto_takes_the_cpu_without_a_gpu_and_says_so_unless_quiet(monkeypatch, data, capsys):
    monkeypatch.setattr(cuda, "why_not", lambda: "no GPU was found")
    quick = {"rank": 2, "epochs": 1}
    model = make("base", device="auto", **quick).fit(data)
    assert model.params_["device"] == "cpu" and capsys.readouterr().err == ""
    make("base", device="auto", **quick).fit(data, quiet=False)
    assert "device='auto' takes the CPU: no GPU was found" in capsys.readouterr().err
    assert model.weights_.users.tobytes() == make("base", **quick).fit(data).weights_.users.tobytes()


def test_importing_dubnb_imports_nothing_of_cuda():
    """A fit on the CPU does not import it either."""
    lines = run_alone("-c", "import sys, dubnb; print([name for name in sys.modules if 'cuda' in name.lower()])")
    with_numba = run_alone("-c", "import sys, numba; print([name for name in sys.modules if 'cuda' in name.lower()])")
    assert set(eval(lines)) - {"dubnb.cuda"} == set(eval(with_numba)) - {"dubnb.cuda"}


# -- selftest


@pytest.mark.needs_jit
def test_selftest_checks_the_cpu_and_reports_what_was_skipped(monkeypatch, capsys):
    from dubnb import selftest
    from dubnb.cli import main

    monkeypatch.setattr(cuda, "why_not", lambda: "no GPU was found")
    monkeypatch.setattr(selftest, "CASES", {"dub, mf": ("dub", {"rank": 2})})
    monkeypatch.setattr(selftest, "SIZES", {"tiny": (20, 10, 60), "small": (25, 12, 80)})
    assert main(["selftest", "--largest", "small", "--quiet", "--device", "cuda"]) == 0
    out = capsys.readouterr().out
    assert "skipped: everything on a GPU: no GPU was found" in out and out.count("the same bits twice") == 2
    assert "numba-cuda" in out and "FAIL" not in out


def test_a_failed_selftest_exits_with_an_error(monkeypatch, capsys):
    from dubnb import selftest
    from dubnb.cli import main

    checks = [selftest.DeviceCheck("dub", "tiny", "cuda", False, "scores 3.0e+00 std apart", 2.0, (1.5, 1.2, 1.9))]
    monkeypatch.setattr(selftest, "run", lambda *args: selftest.SelftestResult({"dubnb": "0"}, checks, []))
    with pytest.raises(SystemExit) as caught:
        main(["selftest"])
    printed = capsys.readouterr()
    assert caught.value.code == 1 and "1 of 1 checks failed" in printed.err
    assert "FAIL" in printed.out and "1.50" in printed.out and "1.20-1.90" in printed.out and "never run" in printed.out


# -- barriers


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_barrier_is_reached_by_all_threads_of_a_block(path):
    assert cuda_barriers.faults(path.read_text()) == []


def test_there_are_barriers_to_check_and_no_atomics():
    text = "".join(path.read_text() for path in SOURCES)
    assert text.count("cuda.syncthreads()") >= 8 and "cuda.atomic" not in text


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("if cuda.threadIdx.x < 3:\n        cuda.syncthreads()", "some threads wait"),
        ("for j in range(cuda.grid(1), n):\n        cuda.syncthreads()", "some threads wait"),
        ("t = cuda.threadIdx.x + 1\n    s = t * 2\n    while s < n:\n        cuda.syncthreads()", "some threads wait"),
        ("t = mine(n)\n    if t:\n        return\n    cuda.syncthreads()", "some threads leave"),
        ("t = 0\n    if cuda.threadIdx.x:\n        t = 1\n    if t:\n        meet()", "some threads wait"),
    ],
)
def test_the_check_of_barriers_finds_planted_faults(body, what):
    helpers = "def mine(n):\n    return cuda.threadIdx.x\n\ndef meet():\n    cuda.syncthreads()\n\n"
    (fault,) = cuda_barriers.faults(f"{helpers}def kernel(n):\n    {body}\n")
    assert fault[0] == "kernel" and fault[2] == what


def test_the_check_of_barriers_allows_uniform_ones():
    source = """
def kernel(n, v):
    for u in range(cuda.blockIdx.x, n, cuda.gridDim.x):
        for j in range(cuda.threadIdx.x, n, cuda.blockDim.x):
            v[j] = 0
        cuda.syncthreads()
        if v[0] > 1:
            break
"""
    assert cuda_barriers.faults(source) == []


def test_docs_say_why_every_kernel_is_free_of_races():
    """docs/cuda.md lists for each kernel what a thread may write and read between two launches."""
    text = (HERE.parent / "docs" / "cuda.md").read_text()
    names = [f"{path.stem}.{name}" for path in SOURCES for name in KERNEL.findall(path.read_text())]
    assert len(names) >= 50 and [name for name in names if f"`{name}`" not in text] == []


# -- the compiler


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="numba-cuda with its compiler is not installed: the extra cuda")
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_kernel_compiles_and_stays_within_bounds(capability):
    """Check registers, spills and shared memory of every kernel with ptxas; no kernel may spill."""
    if capability == "lowest":
        capability = ".".join(map(str, json.loads(run_alone("-m", "tests.cuda_compile", "--lowest"))))
    table = json.loads(run_alone("-m", "tests.cuda_compile", capability, NUMBA_DISABLE_JIT="0"))
    declared = sum(path.read_text().count("\n@kernel(") for path in SOURCES)
    assert len(table) == declared >= 50
    print(f"\n{'compute capability ' + capability:30}registers  spilled  shared  stack")
    for name, taken in table.items():
        assert taken["ptx"] > 1000
        if "registers" in taken:
            print("{:30}{registers:9}{spilled:9}{shared:8}{stack:7}".format(name, **taken))
            assert taken["registers"] <= (168 if name == "als.solve_row_blocks" else 80), (name, taken)
            assert taken["spilled"] == taken["shared"] == taken["stack"] == 0, (name, taken)  # shared: all dynamic


# -- the simulator


LONG = "whole_fits or bits_depend"  # nine tenths of the time


@pytest.mark.needs_jit  # once is enough: the process below chooses the JIT itself
@pytest.mark.parametrize(
    "disable_jit,chosen",
    [
        ("1", f"not ({LONG})"),
        pytest.param("1", LONG, marks=pytest.mark.slow),
        pytest.param("0", "", marks=pytest.mark.slow),
    ],
)
def test_the_simulated_kernels_pass_with_and_without_the_host_s_jit(disable_jit, chosen):
    """tests/test_cuda_simulated.py: Numba reads its settings once per process."""
    words = ("-m", "pytest", "-n0", "-q", "-x", "tests/test_cuda_simulated.py", "-p", "no:cacheprovider", "-k", chosen)
    print(run_alone(*words, NUMBA_ENABLE_CUDASIM="1", NUMBA_DISABLE_JIT=disable_jit))
