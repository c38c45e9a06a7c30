"""A few cases of every fuzzer; see tests/fuzz.py for the long run."""

import pytest

from tests import fuzz

CASES = 150


@pytest.mark.needs_jit
@pytest.mark.parametrize("name", fuzz.load_all())
def test_hostile_input_is_refused_in_one_line(name):
    assert 0 < fuzz.run(name, CASES) < CASES  # a fuzzer whose cases are all alike looks at little


def test_a_fuzzer_that_finds_something_names_the_seed_that_repeats_it(monkeypatch):
    class Fragile:
        def __init__(self, directory):
            pass

        def case(self, chance):
            if chance.random() > 0.9:
                raise KeyError("x")
            return False

    monkeypatch.setitem(fuzz.FUZZERS, "fragile", Fragile)
    with pytest.raises(AssertionError, match=r"fuzzer fragile, seed \d+: KeyError"):
        fuzz.run("fragile", 1000)
