"""The cache of compiled kernels, in separate processes: hits, repair after damage, unusable directories, safety."""

import errno
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dubnb import _jit, _kernel_cache

pytestmark = pytest.mark.needs_jit
ROOT = Path(__file__).resolve().parents[1]
KERNEL = """
import warnings
import numpy as np
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from dubnb import _kernel_cache, losses
    scores = losses.predict(np.zeros(3, np.float32), True)
assert scores.tolist() == [0.5, 0.5, 0.5]
hits = sum(losses.predict.stats.cache_hits.values())
place = next(reversed(_kernel_cache.directories()), None)
print(hits, sum("damaged" in str(warning.message) for warning in caught), place)
"""


PLAIN = "from dubnb import losses"


def run_kernel(cache, script=KERNEL, **environment):
    """A fresh process that calls one small kernel."""
    environment = os.environ | {"DUBNB_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)} | environment
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, cwd=cache)
    assert process.returncode == 0, process.stderr
    return process


def use_kernel(cache, **environment):
    """(cache hits, warnings of damage, cache directory) of such a process."""
    process = run_kernel(cache, **environment)
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


HEAVY = "[name for name in ('pandas', 'scipy.linalg', 'matplotlib') if name in sys.modules]"
FIRST_FIT = f"""
import sys
import numba
import numpy as np
import dubnb
pairs = np.divmod(np.random.default_rng(0).permutation(12 * 10), 10)
parts = dict(S_c=slice(0, 40), S_t=slice(40, 60), S_va=slice(60, 80), S_te=slice(80, 120))
parts = {{name: (pairs[0][own], pairs[1][own], (pairs[0] + pairs[1])[own] % 2) for name, own in parts.items()}}
model = dubnb.Base(rank=2, epochs=2).fit(dubnb.Partition(parts, (12, 10)))
assert len(model.history_rows_) == 2 and not {HEAVY}, {HEAVY}
assert numba.njit(lambda a: np.dot(a, a))(np.ones(3)) == 3.0  # a function of another program, which needs BLAS
assert model.history_["stage"].tolist() == ["M_c"] * 2
model.save("m.npz")
"""
SERVED = f"""
import sys
import dubnb
assert len(dubnb.load("m.npz").recommend([0, 1], k=3)[0]) == 2 and not {HEAVY}, {HEAVY}
"""


@pytest.mark.needs_jit
def test_a_fit_and_a_server_load_little(tmp_path):
    """Modules that a fit or a server does not need are not imported: that takes longer than a small fit."""
    run_kernel(tmp_path, FIRST_FIT)
    run_kernel(tmp_path, SERVED)


def test_a_second_process_finds_the_kernel_where_cache_dir_says(warm_cache):
    hits, damaged, directory = use_kernel(warm_cache)
    assert (hits, damaged) == (1, 0)
    assert directory.is_relative_to(warm_cache) and list(directory.rglob("*.kernel"))


@pytest.mark.parametrize("damage", [truncate, empty, flip])
def test_damage_is_reported_once_and_repaired(warm_cache, damage):
    for path in warm_cache.rglob("*.kernel"):
        damage(path)
    assert use_kernel(warm_cache)[:2] == (0, 1)
    assert use_kernel(warm_cache)[:2] == (1, 0)


def test_an_unwritable_cache_is_followed_by_the_next(tmp_path):
    locked, home = tmp_path / "locked", tmp_path / "home"
    locked.write_text("a file where a directory should be")
    home.mkdir()
    _, _, directory = use_kernel(home, DUBNB_CACHE_DIR=str(locked), NUMBA_CACHE_DIR="", XDG_CACHE_HOME=str(home))
    assert directory.is_relative_to(home)


def wrong_content(path):
    """A correct checksum over other content."""
    payload = pickle.dumps((("no", "key"), ["nothing"]))
    path.write_bytes(_kernel_cache._checksum(payload) + payload)


def wrong_kernel(path):
    """A correct checksum and key over content that is not a kernel."""
    key, _ = pickle.loads(path.read_bytes()[_kernel_cache.CHECKSUM :])
    payload = pickle.dumps((key, ("not", "a", "kernel")))
    path.write_bytes(_kernel_cache._checksum(payload) + payload)


@pytest.mark.parametrize("damage, told", [(wrong_content, 0), (wrong_kernel, 1)])
def test_wrong_content_with_a_correct_checksum_is_repaired(warm_cache, damage, told):
    for path in warm_cache.rglob("*.kernel"):
        damage(path)
    assert use_kernel(warm_cache)[:2] == (0, told)
    assert use_kernel(warm_cache)[:2] == (1, 0)


def test_old_temporary_files_are_removed_and_new_ones_stay(warm_cache):
    directory = use_kernel(warm_cache)[2]
    old, new = (directory / f".dubnb-{name}.tmp" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    use_kernel(warm_cache)
    assert not old.exists() and new.exists()
    new.unlink()


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    files = _kernel_cache.KernelFiles((str(tmp_path),), "kernel", b"")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    files.save("key", b"payload")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="other systems have other rights")
class TestSafety:
    def test_what_is_made_is_closed_to_others(self, tmp_path):
        _, _, directory = use_kernel(tmp_path, DUBNB_CACHE_DIR=str(tmp_path / "new" / "place"))
        for path in (directory, directory.parent, tmp_path / "new"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700

    @pytest.mark.parametrize("mode, is_safe", [(0o700, True), (0o755, True), (0o777, False), (0o1777, True)])
    def test_a_component_that_others_can_swap_is_refused(self, tmp_path, mode, is_safe):
        directory = tmp_path / "shared" / "mine"
        directory.mkdir(parents=True)
        directory.chmod(0o700)
        (tmp_path / "shared").chmod(mode)
        why = _kernel_cache.unsafe(str(directory))
        assert (why is None) == is_safe and (is_safe or "others may write" in why)

    def test_the_directory_itself_may_not_be_shared_even_if_sticky(self, tmp_path):
        (tmp_path / "c").mkdir()
        (tmp_path / "c").chmod(0o1777)
        assert "others may write" in _kernel_cache.unsafe(str(tmp_path / "c"))

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs the right to give files away")
    def test_a_component_of_another_user_is_refused(self, tmp_path):
        directory = tmp_path / "theirs" / "mine"
        directory.mkdir(parents=True)
        os.chown(tmp_path / "theirs", 12345, 12345)
        assert "another user" in _kernel_cache.unsafe(str(directory))

    def test_a_planted_cache_runs_nothing_and_gives_one_warning(self, tmp_path):
        """The home is not writable, and another user owns the directory in /tmp."""
        planted = tmp_path / f"dubnb-{os.geteuid()}" / "dubnb"
        planted.mkdir(parents=True)
        (tmp_path / f"dubnb-{os.geteuid()}").chmod(0o777)
        nowhere = {"XDG_CACHE_HOME": "/dev/null", "NUMBA_CACHE_DIR": "", "DUBNB_CACHE_DIR": ""}
        hits, _, directory = use_kernel(tmp_path, TMPDIR=str(tmp_path), **nowhere)
        assert hits == 0 and str(directory) == "None" and not list(planted.rglob("*.kernel"))
        process = run_kernel(tmp_path, TMPDIR=str(tmp_path), **nowhere, script=PLAIN)
        assert process.stderr.count("UserWarning: compiled kernels are not kept in") == 1

    def test_a_read_only_cache_is_used_and_what_it_lacks_goes_to_the_next(self, tmp_path, monkeypatch):
        image, home = tmp_path / "image", tmp_path / "home"
        for place, own in ((image, "DUBNB_CACHE_DIR"), (home, "XDG_CACHE_HOME")):
            place.mkdir()
            monkeypatch.setenv(own, str(place))
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        read_only = image / "dubnb" / _kernel_cache.sources_digest()
        read_only.mkdir(parents=True, mode=0o700)
        _kernel_cache.KernelFiles((str(read_only),), "k", b"").save("old", pickle.dumps(("old", 1)))
        monkeypatch.setattr(_kernel_cache, "_writable", lambda directory: not directory.startswith(str(image)))
        places = _kernel_cache.directories.__wrapped__()
        assert [Path(place).parents[1] for place in places] == [image, home]
        files = _kernel_cache.KernelFiles(places, "k", b"")
        files.save("new", pickle.dumps(("new", 2)))
        assert files.load("old", lambda kept: kept) == 1 and files.load("new", lambda kept: kept) == 2
        assert len(list(image.rglob("*.kernel"))) == len(list(home.rglob("*.kernel"))) == 1


def test_without_numbas_private_parts_kernels_still_run(monkeypatch):
    monkeypatch.setattr(_kernel_cache, "has_cache_internals", lambda: False)
    _kernel_cache._warn.cache_clear()
    with pytest.warns(UserWarning, match="every process compiles its own"):
        kernel = _jit.njit(_twice)
    assert kernel(21) == 42 and not isinstance(kernel._cache, _kernel_cache.KernelCache)


def _twice(x):
    return 2 * x
