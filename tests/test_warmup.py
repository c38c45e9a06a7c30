"""`dubnb warmup`: what it fits, what it says, where it refuses."""

import json

import pytest

from dubnb import _jit, _kernel_cache
from dubnb.cli import main, warmup
from dubnb.methods import METHODS


def test_every_method_is_fitted_with_every_backbone_and_solver():
    fits = list(warmup._fits())
    assert len(fits) == sum(len(method.SETTINGS) for method in METHODS.values())
    assert len({json.dumps(fit) for fit in fits}) == len(fits)
    assert ("base", {"backbone": "ncf"}) in fits and ("dub", {"backbone": "mf", "solver": "exact"}) in fits
    for method, params in fits:
        assert METHODS[method](**warmup.TINY, **params)


@pytest.mark.needs_jit
def test_kernels_are_counted_where_they_are(monkeypatch, capsys):
    monkeypatch.setattr(warmup, "_fits", lambda: [("base", {"backbone": "mf"}), ("popularity", {"backbone": "mf"})])
    assert main(["warmup", "--json"]) == 0
    written = capsys.readouterr()
    about = json.loads(written.out)
    assert about["directory"] == _kernel_cache.directories()[-1] and about["kernels"] > 5 and about["bytes"] > 50_000
    assert written.err.splitlines() == ["1/2 base, mf", "2/2 popularity, mf"]
    assert main(["warmup", "--quiet"]) == 0
    written = capsys.readouterr()
    assert written.out.startswith(f"{about['kernels']} kernels, ") and _kernel_cache.directories()[-1] in written.out
    assert written.err == ""


@pytest.mark.parametrize("enabled, why", [(True, "no directory is safe"), (False, "NUMBA_DISABLE_JIT is set")])
def test_warmup_without_a_cache_directory_is_refused(enabled, why, monkeypatch, capsys):
    monkeypatch.setattr(_jit, "JIT_ENABLED", enabled)
    monkeypatch.setattr(_kernel_cache, "directories", lambda: ())
    assert main(["warmup"]) == 2
    assert f"compiled kernels cannot be kept ({why}): set DUBNB_CACHE_DIR" in capsys.readouterr().err
