"""Memory is checked before large allocations; parameters of any numeric type become plain Python numbers."""

import os
import resource
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import dubnb
from dubnb import _memory, train
from dubnb.data.partition import Partition, Triplets
from dubnb.sweeps.worker import Pretrained
from tests.sweep_tools import FIXED, ROOT, tiny_log


@pytest.fixture
def small_machine(monkeypatch):
    """A machine with 100 kB of free memory."""
    monkeypatch.setattr(_memory, "available", lambda: 100_000)


@pytest.fixture(scope="module")
def model():
    return dubnb.make("base", **FIXED).fit(tiny_log())


# ---- what there is


def test_the_tightest_limit_counts(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 10\ninactive_file 700\n")
    monkeypatch.setattr(_memory, "CGROUP", str(tmp_path))
    assert _memory.available() == 2700
    (tmp_path / "memory.max").write_text("max\n")
    assert _memory.available() > 2700

    (tmp_path / "memory.max").write_text("2000\n")  # lowered below what is in use
    assert _memory.available() == 0


def limits(monkeypatch, tables, address_space=resource.RLIM_INFINITY):
    """The result of `_limits` on a machine without containers and with this /proc."""
    monkeypatch.setattr(_memory, "CGROUP", "/nowhere")
    monkeypatch.setattr(resource, "getrlimit", lambda what: (address_space, resource.RLIM_INFINITY))

    def text(path):
        if path not in tables:
            raise FileNotFoundError(path)
        return tables[path]

    monkeypatch.setattr(_memory, "_text", text)
    return list(_memory._limits())


def test_a_machines_free_memory_is_read_from_proc(monkeypatch):
    meminfo = "MemTotal:  900 kB\nMemAvailable:  300 kB\nHugePages_Total:  0\nSwapFree:  20 kB\n"
    assert limits(monkeypatch, {"/proc/meminfo": meminfo}) == [320 * 1024]
    assert limits(monkeypatch, {"/proc/meminfo": meminfo.replace("SwapFree", "SwapTotal")}) == [300 * 1024]


def test_without_proc_the_machines_pages_are_counted(monkeypatch):
    pages = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    assert limits(monkeypatch, {}) == [1000 * 4096]
    monkeypatch.setattr(os, "sysconf_names", {})
    assert limits(monkeypatch, {}) == []
    monkeypatch.delattr(os, "sysconf")
    monkeypatch.setattr(os, "sysconf_names", pages)
    assert limits(monkeypatch, {}) == [] and _memory.available() is None


def test_a_limit_of_the_address_space_counts_what_is_taken(monkeypatch):
    monkeypatch.setattr(resource, "getpagesize", lambda: 10)
    proc = {"/proc/meminfo": "MemAvailable: 1 kB\n", "/proc/self/statm": "70 30 20 1 0 9 0\n"}
    assert limits(monkeypatch, proc, 1000) == [1024, 300] and limits(monkeypatch, proc, 600) == [1024, 0]


def test_plan_allows_up_to_the_available_memory(monkeypatch):
    monkeypatch.setattr(_memory, "available", lambda: 1500)
    _memory.require("a list", 1500, "lower k")
    with pytest.raises(dubnb.InputError, match=r"^a list needs 2\.5 kB of memory, 1\.5 kB are available: lower k$"):
        _memory.require("a list", 2500, "lower k")
    with pytest.raises(dubnb.InputError, match="a list needs"):
        _memory.require("a list", 1501, "lower k")
    monkeypatch.setattr(_memory, "available", lambda: None)  # the system reports no limit
    _memory.require("a list", 10**18, "lower k")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's here")
def test_the_limit_of_the_process_counts():
    script = (
        "import resource; from dubnb import _memory; before = _memory.available();"
        "resource.setrlimit(resource.RLIMIT_AS, (3 << 30, resource.RLIM_INFINITY));"
        "print(_memory.available() < min(before, 3 << 30))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert found.stdout.strip() == "True", found.stderr
    assert resource.getrlimit(resource.RLIMIT_AS)


@pytest.mark.parametrize(
    "number, text",
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (1500, "1.5 kB"),
        (999_000, "999 kB"),
        (12_345_678, "12.3 MB"),
        (4 * 10**9, "4 GB"),
        (25 * 10**14, "2.5 PB"),
        (5 * 10**18, "5e+03 PB"),
        (10**400, "inf PB"),
    ],
)
def test_format_bytes(number, text):
    assert _memory.format_bytes(number) == text


# ---- what is refused


@pytest.mark.parametrize("params", [{"rank": 10**9}, {"backbone": "ncf", "hidden": (2**30, 2**30)}])
def test_a_model_that_cannot_fit_is_refused_with_both_sizes(params):
    with pytest.raises(dubnb.InputError, match=r"needs [\d.e+]+ [TP]B of memory, [\d.]+ [GM]B are available") as caught:
        dubnb.make("base", **params).fit(tiny_log())
    assert "\n" not in str(caught.value)


def test_fit_plans_weights_and_moments(small_machine):
    fits = 100_000 // (3 * 4 * 100)  # floats per row of 100 rows and three tables
    dubnb.make("base", epochs=1, rank=fits // 16 * 16 - 2).fit(tiny_log())
    with pytest.raises(dubnb.InputError, match="rank="):
        dubnb.make("base", epochs=1, rank=fits // 16 * 16 - 1).fit(tiny_log())


def test_load_plans_its_content(model, tmp_path, monkeypatch):
    model.save(tmp_path / "m.npz")
    dubnb.load(tmp_path / "m.npz")
    monkeypatch.setattr(_memory, "available", lambda: 1000)
    with pytest.raises(dubnb.InputError, match="kB of memory, 1 kB are available"):
        dubnb.load(tmp_path / "m.npz")


def test_recommend_plans_its_lists(model, small_machine):
    n_items = len(model.item_ids_)
    fits = 100_000 // (12 * n_items)  # an id and a score for each item
    assert model.recommend(np.zeros(fits, int), k=10**9)[0].shape == (fits, n_items)  # no list is longer
    with pytest.raises(dubnb.InputError, match=f"k={n_items} for {fits + 1} users.*fewer users"):
        model.recommend(np.zeros(fits + 1, int), k=10**9)


# ---- what a fit holds


def wide_log():
    """Many users, few pairs: the log is small compared with a model's tables."""
    rng = np.random.default_rng(0)
    shape, parts = (20_000, 50), {}
    pairs = rng.choice(shape[0] * shape[1], 4_000, replace=False).reshape(4, -1)
    for part, own in zip(("S_c", "S_t", "S_va", "S_te"), pairs, strict=True):
        labels = (rng.random(len(own)) < 0.5).astype(float)
        parts[part] = Triplets(own // shape[1], own % shape[1], labels, np.ones(len(own)))
    return Partition(parts, shape)


@pytest.mark.needs_jit
@pytest.mark.parametrize(
    "method, threads, in_a_sweep, tables",
    [
        ("base", 1, False, 4),  # weights and two moments in training, the best copy
        ("dub", 1, False, 5),  # and M_t
        ("dub", 2, False, 6),  # and a copy that the background thread judges
        ("dub", 1, True, 4),  # M_t is mapped from a file that all workers share
    ],
)
def test_tables_that_a_fit_holds_at_its_peak(method, threads, in_a_sweep, tables, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "WORTH_SHARING", 1)
    data = wide_log()
    model = dubnb.make(method, rank=62, epochs=3, patience=3, batch_size=500)
    model.fit(data, threads=threads)  # compiled and cached objects are not counted
    tracemalloc.start()
    model.fit(data, threads=threads, store=Pretrained(str(tmp_path)) if in_a_sweep else None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert tables - 0.5 < peak / (4 * 64 * (data.n_users + data.n_items)) < tables + 0.35


# ---- numbers
