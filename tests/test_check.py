"""Checks of single values: valid ones are returned as Python types, others raise one line with the rule."""

import math
from fractions import Fraction

import numpy as np
import pytest

from dubnb import _check
from dubnb._check import DivergenceError, InputError, NotFittedError


def refusal(check, *arguments, **options):
    with pytest.raises(InputError) as caught:
        check(*arguments, **options)
    return str(caught.value)


def test_messages_name_parameters_as_the_reader_writes_them():
    assert _check.option("user_type") == "user_type=" and _check.option("user_type", "") == "user_type"
    assert _check.setting("user_type", "str") == "user_type='str'"
    with _check.cli_option_names({"S_c": "LOG"}):
        assert _check.option("user_type") == "--user-type" and _check.option("S_c") == "LOG"
        assert _check.setting("user_type", "str") == "--user-type str"
    assert _check.option("user_type") == "user_type="


def test_a_value_is_shown_on_one_line_of_at_most_60_characters():
    assert _check.short_repr("a" * 58) == repr("a" * 58) and len(_check.short_repr("a" * 58)) == 60
    assert _check.short_repr("a" * 59) == "'" + "a" * 56 + "..." and len(_check.short_repr("a" * 59)) == 60
    assert _check.short_repr(np.zeros((2, 1))) == "array([[0.], [0.]])"

    class Silent:
        def __repr__(self):
            raise RuntimeError

    assert _check.short_repr(Silent()) == "a Silent"


def test_choice_accepts_allowed_words_and_suggests_the_closest():
    allowed = ("full-ranking", "test-items")
    found = _check.choice("protocol", np.str_("test-items"), allowed)
    assert found == "test-items" and type(found) is str
    assert _check.choices(allowed)("protocol", "full-ranking") == "full-ranking"
    rule = "protocol='full-rank' is unknown: choose one of full-ranking, test-items; did you mean 'full-ranking'?"
    assert refusal(_check.choice, "protocol", "full-rank", allowed) == rule
    assert refusal(_check.choices(allowed), "protocol", "full-rank") == rule
    assert refusal(_check.choice, "x", "?", allowed) == "x='?' is unknown: choose one of full-ranking, test-items"
    assert refusal(_check.choice, "x", 3, ("3", "4")) == "x=3 is unknown: choose one of 3, 4"
    assert refusal(_check.choice, "x", ("3",), ("3", "4")).endswith("choose one of 3, 4")


@pytest.mark.parametrize("value", [1, 7, np.int8(7), np.uint64(7), 2**31 - 1])
def test_whole_numbers(value):
    for found in (_check.whole("k", value), _check.wholes()("k", value)):
        assert found == value and type(found) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None, Fraction(3, 2), np.float64(2), np.array([1, 2])])
def test_whole_refuses_what_is_not_a_whole_number_of_at_least_1(value):
    for check in (_check.whole, _check.wholes()):
        assert refusal(check, "k", value) == f"k={_check.short_repr(value)} must be a whole number of at least 1"


def test_limits_of_whole_numbers_are_inclusive():
    assert _check.whole("k", 0, low=0) == 0 and _check.wholes(low=3, high=5)("k", 5) == 5
    assert refusal(_check.wholes(low=3, high=5), "k", 2) == "k=2 must be a whole number of at least 3"
    assert refusal(_check.wholes(low=3, high=5), "k", 6) == "k=6 must be at most 5: take a smaller number"
    assert refusal(_check.whole, "k", 2**31).endswith("must be at most 2,147,483,647: take a smaller number")


@pytest.mark.parametrize("value", [0, 0.5, 1, np.float32(0.5), Fraction(1, 4), np.int64(3), 1e300])
def test_real_numbers(value):
    for found in (_check.real("x", value), _check.reals()("x", value)):
        assert found == value and type(found) is float


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "1", None, 1j, 10**400, np.array([1.0])])
def test_real_refuses_what_is_not_finite(value):
    for check in (_check.real, _check.reals(low=-math.inf)):
        assert refusal(check, "x", value) == f"x={_check.short_repr(value)} must be a finite number"


def test_limits_of_real_numbers_are_inclusive_unless_open():
    assert _check.real("x", -2.0, low=-2.0) == -2.0 and _check.reals(high=1.0)("x", 1.0) == 1.0
    assert _check.reals(open_low=True)("x", 1e-9) == 1e-9
    assert refusal(_check.real, "x", -0.1) == "x=-0.1 must be at least 0"
    assert refusal(_check.reals(high=1.0), "x", 1.1) == "x=1.1 must be at least 0 and at most 1"
    assert refusal(_check.reals(open_low=True), "x", 0.0) == "x=0.0 must be above 0"
    assert refusal(_check.reals(low=1.0, high=2.0, open_low=True), "x", 1) == "x=1 must be above 1 and at most 2"
    assert _check.reals(low=1.0, high=2.0, open_low=True)("x", 1.5) == 1.5


@pytest.mark.parametrize("value", [True, False, np.True_, np.array(False)])
def test_flags(value):
    assert _check.flag("x", value) is bool(value)


@pytest.mark.parametrize("value", [1, 0, None, "True", np.array([True]), np.int64(1), np.array(1.0)])
def test_flag_refuses_what_is_not_a_bool(value):
    assert refusal(_check.flag, "x", value) == f"x={_check.short_repr(value)} must be True or False"


def test_optional_checks_accept_none():
    check = _check.optional(_check.wholes())
    assert check("k", None) is None and check("k", 3) == 3
    assert refusal(check, "k", 0).startswith("k=0 must be")


def test_error_classes_fit_what_callers_catch():
    assert issubclass(InputError, ValueError)
    assert issubclass(NotFittedError, InputError) and issubclass(NotFittedError, AttributeError)
    assert issubclass(DivergenceError, ArithmeticError) and not issubclass(DivergenceError, InputError)
