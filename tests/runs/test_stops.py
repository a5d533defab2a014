"""Signals that ask a process to stop, at the moments at which Python cannot raise."""

import ctypes
import os
import signal
import sys
import time

import pytest

from fedcom.errors import Stopped
from fedcom.runs import stops


def test_a_signal_while_c_code_calls_back_still_stops(capfd: pytest.CaptureFixture[str]) -> None:
    """ctypes drops what is raised in a callback and prints it; here it is raised again, and not printed."""

    @ctypes.CFUNCTYPE(None)
    def called() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)  # where the signal is heard

    with stops.listening():
        called()
        with pytest.raises(Stopped) as stopped:
            time.sleep(60)
    assert stopped.value.signal == signal.SIGTERM
    assert capfd.readouterr().err == ""


def test_a_first_signal_waits_for_the_round_and_a_second_one_does_not() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with stops.listening(), stops.deferred():
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(Stopped) as stopped:
                signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped.value.signal == signal.SIGINT


def test_other_errors_there_are_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: told.append(dropped.exc_type))

    @ctypes.CFUNCTYPE(None)
    def called() -> None:
        raise ValueError

    with stops.listening():
        called()
    assert told == [ValueError]
