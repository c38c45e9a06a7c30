"""Shared fixtures. The suite also runs with NUMBA_DISABLE_JIT=1; tests too slow for that are marked `needs_jit`."""

import signal
from pathlib import Path

import numba
import pytest

from tests import naive

COAT = Path(__file__).resolve().parents[2] / "shared" / "data" / "coat"


# Without the JIT the hashes of dubnb._random run on NumPy's scalars, which warn where whole numbers wrap around.
WRAPS_AROUND = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")


# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that: tests send it to theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Tests and files that take longest are begun first, so that no process of a parallel run works alone at the end.
LONGEST = (
    "test_compare_keeps_its_promise_on_two_worlds",
    "test_bands_of_gains_hold_what_four_times_the_log_brings",
    "test_smoke_runs_of_all_five",
)
LONG = ("test_sweep_faults.py", "test_sweep_cluster.py", "test_distributed.py", "test_fits.py", "test_experiments.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: (item.name not in LONGEST, item.path.name not in LONG))
    if numba.config.DISABLE_JIT:
        for item in items:
            item.add_marker(WRAPS_AROUND)
            if "needs_jit" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="too slow with the JIT off"))


@pytest.fixture(scope="session")
def small_log():
    """A log of 9 users x 8 items, small enough for the JIT to be off."""
    return naive.small_partition(9, 8, n_c=30, n_t=12, n_va=10, n_te=12)


@pytest.fixture(scope="session")
def base(small_log):
    """A quickly fitted base of the small log."""
    import dubnb
    from tests.method_tools import QUICK

    return dubnb.Base(**QUICK).fit(small_log)


@pytest.fixture(scope="session")
def coat_dir():
    """The Coat files, which are never committed (CC BY-NC)."""
    if not COAT.is_dir():
        pytest.skip("the Coat dataset is not on this machine")
    return COAT


@pytest.fixture(scope="session")
def data():
    """A tiny log with 0/1 labels; files with other needs define their own `data`."""
    from tests.studies import tiny_log

    return tiny_log()


@pytest.fixture(scope="session")
def graded():
    """The tiny log with grades."""
    from tests.studies import tiny_log

    return tiny_log(graded=True)


@pytest.fixture(scope="module")
def client():
    """A Dask cluster of two workers, which no test kills or freezes: those that do have a cluster of their own."""
    pytest.importorskip("distributed")
    from tests.dask_tools import cluster_of_processes

    with cluster_of_processes() as client:
        yield client


@pytest.fixture
def patience(monkeypatch):
    """Limits are for clusters that are lost, not for busy machines; tests of a limit set it themselves."""
    from dubnb import _dask, distributed

    for name in ("AGAIN_WITHIN", "ANSWERS_WITHIN", "CONNECT_WITHIN", "WORKERS_WITHIN", "WORKER_SILENT"):
        monkeypatch.setattr(_dask, name, 900.0)
    monkeypatch.setattr(distributed, "BROADCAST_WITHIN", 900.0)


@pytest.fixture
def plain_figures(monkeypatch):
    """Empty drawings, which take no time, for tests of a report's words and numbers."""
    from dubnb.report import figures

    def drawing(figure, name, description):
        return figures.Drawing(name, '<svg viewBox="0 0 1 1" role="img"></svg>', 1.0, 1.0)

    monkeypatch.setattr(figures, "drawing", drawing)
