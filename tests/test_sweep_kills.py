"""Kill sweeps at random moments, again and again."""

import subprocess
import sys

import pytest

from tests.sweep_tools import ROOT

SECONDS = 2400  # only so that it ends at all: on two idle cores the kills take three minutes or so
AT_LEAST = 50


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are found with ps")
def test_killed_sweeps_lose_and_repeat_nothing():
    """In a process of its own: its forks must not copy the locks of this one's threads."""
    command = [sys.executable, "-m", "tests.kill_sweeps", "--times", str(AT_LEAST), "--seconds", str(SECONDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS + 600)
    assert done.returncode == 0 and "nothing lost" in done.stdout, done.stderr
