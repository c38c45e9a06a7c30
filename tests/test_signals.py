"""Ctrl-C and SIGTERM stop a block once, wherever they arrive."""

import os
import signal
import sys
import threading
import time

import pytest

from dubnb import _signals
from dubnb._check import Terminated
from dubnb._signals import stoppable

SIGNALS = (signal.SIGINT, signal.SIGTERM)
both = pytest.mark.parametrize("number, error", [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])


@pytest.fixture(autouse=True)
def handlers():
    """Python's own handlers; the test must leave those that it found."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    found = [signal.getsignal(number) for number in SIGNALS]
    for number, handler in before.items():
        signal.signal(number, handler)
    assert found == [signal.default_int_handler, signal.SIG_DFL]


def send(number):
    os.kill(os.getpid(), number)


@both
def test_a_second_signal_does_not_interrupt_the_cleaning_up(number, error):
    cleaned = False
    with pytest.raises(error) as raised, stoppable(), stoppable():
        try:
            send(number)
            time.sleep(5)
        finally:
            for each in SIGNALS:
                send(each)
            cleaned = True
    assert cleaned and raised.type is error


@both
def test_a_signal_long_after_another_interrupts_the_cleaning_up(number, error, monkeypatch):
    """So that a cleaning up that hangs can be stopped."""
    monkeypatch.setattr(_signals, "CLEANING", 0.0)
    cleaned = False
    with pytest.raises(error), stoppable():
        try:
            send(number)
            time.sleep(5)
        finally:
            time.sleep(0.01)
            send(number)
            time.sleep(5)
            cleaned = True
    assert not cleaned


@both
def test_a_signal_inside_a_destructor_is_not_lost(number, error, capsys):
    class Doomed:
        def __del__(self):
            send(number)
            time.sleep(1)

    with pytest.raises(error), stoppable():
        Doomed()
        time.sleep(10)
    assert capsys.readouterr().err == ""


@both
def test_a_signal_that_python_turns_into_another_error_is_still_one(number, error):
    class Named:
        def __set_name__(self, owner, name):
            send(number)
            time.sleep(1)

    with pytest.raises(error), stoppable():
        type("Owner", (), {"name": Named()})  # Python 3.11 makes a RuntimeError of it


def test_a_later_error_is_not_taken_for_an_earlier_signal():
    with pytest.raises(KeyboardInterrupt), stoppable():
        send(signal.SIGINT)
        time.sleep(5)
    with pytest.raises(LookupError), stoppable():
        raise LookupError
    with pytest.raises(KeyboardInterrupt), stoppable():
        send(signal.SIGINT)
        time.sleep(5)


def test_without_a_signal_errors_and_those_in_destructors_go_where_they_went(monkeypatch):
    class Broken:
        def __del__(self):
            raise ValueError("in a destructor")

    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: found.append(lost.exc_type))
    with pytest.raises(LookupError), stoppable():
        Broken()
        raise LookupError
    assert found == [ValueError]


def test_ignored_signals_stay_ignored_and_threads_install_nothing():
    with stoppable():
        inside = signal.getsignal(signal.SIGINT)
    assert inside is not signal.default_int_handler
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    with stoppable():
        for number in SIGNALS:
            send(number)
    assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_IGN] * 2
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    found = []

    def block():
        with stoppable():
            found.extend(signal.getsignal(number) for number in SIGNALS)

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler, signal.SIG_DFL]
