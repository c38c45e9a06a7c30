"""The cache of compiled kernels: used, healed when damaged, never in the way; in processes of their own."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs_jit
ROOT = Path(__file__).resolve().parents[1]
KERNEL = """
import warnings
import numpy as np
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from dubnb import _jit, losses
    scores = losses.predict(np.zeros(3, np.float32), True)
assert scores.tolist() == [0.5, 0.5, 0.5]
hits = sum(losses.predict.stats.cache_hits.values())
print(hits, sum("damaged" in str(warning.message) for warning in caught), _jit.cache_dir())
"""


def use_kernel(cache, **environment):
    """(cache hits, warnings of damage, cache directory) of a fresh process that calls one small kernel."""
    environment = os.environ | {"DUBNB_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-c", KERNEL]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cache)
    assert process.returncode == 0, process.stderr
    hits, damaged, directory = process.stdout.split(maxsplit=2)
    return int(hits), int(damaged), Path(directory.strip())


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    """One bit in the middle, where the machine code is."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def warm_cache(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    assert use_kernel(cache)[:2] == (0, 0)
    return cache


def test_a_second_process_finds_the_kernel_where_cache_dir_says(warm_cache):
    hits, damaged, directory = use_kernel(warm_cache)
    assert (hits, damaged) == (1, 0)
    assert directory.is_relative_to(warm_cache) and list(directory.rglob("*.kernel"))


@pytest.mark.parametrize("damage", [truncate, empty, flip])
def test_damage_is_told_once_and_heals(warm_cache, damage):
    for path in warm_cache.rglob("*.kernel"):
        damage(path)
    assert use_kernel(warm_cache)[:2] == (0, 1)
    assert use_kernel(warm_cache)[:2] == (1, 0)


def test_a_cache_that_cannot_be_written_gives_way_to_the_next(tmp_path):
    locked, home = tmp_path / "locked", tmp_path / "home"
    locked.write_text("a file where a directory should be")
    home.mkdir()
    _, _, directory = use_kernel(home, DUBNB_CACHE_DIR=str(locked), NUMBA_CACHE_DIR="", XDG_CACHE_HOME=str(home))
    assert directory.is_relative_to(home)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs permissions that bind")
def test_a_read_only_cache_raises_no_alarm(warm_cache):
    directory = use_kernel(warm_cache)[2]
    for path in (directory, *directory.rglob("*")):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    assert use_kernel(warm_cache)[1] == 0
