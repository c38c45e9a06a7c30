"""Shared fixtures. The suite also runs with NUMBA_DISABLE_JIT=1; tests too slow for that are marked `needs_jit`."""

import signal
from pathlib import Path

import numba
import pytest

COAT = Path(__file__).resolve().parents[2] / "shared" / "data" / "coat"


# Without the JIT the hashes of dubnb._random run on NumPy's scalars, which warn where whole numbers wrap around.
WRAPS_AROUND = pytest.mark.filterwarnings("ignore:overflow encountered in scalar:RuntimeWarning")


# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that: tests send it to theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    if numba.config.DISABLE_JIT:
        for item in items:
            item.add_marker(WRAPS_AROUND)
            if "needs_jit" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="too slow with the JIT off"))


@pytest.fixture(scope="session")
def coat_dir():
    """The Coat files, which are never committed (CC BY-NC)."""
    if not COAT.is_dir():
        pytest.skip("the Coat dataset is not on this machine")
    return COAT
