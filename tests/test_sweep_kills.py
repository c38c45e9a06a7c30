"""Kill sweeps at random moments, again and again."""

import sys

import pytest

from tests import kill_sweeps

MINUTES = 120  # only so that it ends at all: on two idle cores the kills take three minutes or so
AT_LEAST = 50


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are found with ps")
def test_killed_sweeps_lose_and_repeat_nothing():
    kills, sweeps = kill_sweeps.run(times=AT_LEAST, seconds=60 * MINUTES, say=lambda line: None)
    assert kills >= AT_LEAST and sweeps >= 1
