"""Signals that ask a process to stop: obeyed at once, or at the end of the round that is being played."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedcom.errors import Stopped

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 8.0  # seconds a round may go on after a signal; some systems kill after ten
AGAIN = 0.05  # seconds after which Stopped is raised once more, if C code has dropped it
_deferring = False
_asked: int | None = None
_left: dict[int, Any] = {}  # the handlers that `leave_to_others` took away


@contextmanager
def listening() -> Iterator[None]:
    """Let signals to stop raise Stopped; ignored ones, as SIGHUP is under nohup, stay ignored."""
    global _asked
    before = {number: signal.getsignal(number) for number in SIGNALS}
    before[signal.SIGALRM] = signal.getsignal(signal.SIGALRM)  # when a round has gone on for too long
    heard = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    for number in heard:
        signal.signal(number, _obey)
    hook = sys.unraisablehook

    def raise_later(dropped: "UnraisableHookArgs") -> None:
        if isinstance(dropped.exc_value, Stopped):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            hook(dropped)

    sys.unraisablehook = raise_later  # a signal may come while C code, a compiler say, is calling back
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.setitimer(signal.ITIMER_REAL, 0)
        _asked = None
        for number in heard:
            signal.signal(number, before[number])


def leave_to_others() -> None:
    """Ignore signals to stop: another process that gets them too decides what to do."""
    for number in SIGNALS:
        _left[number] = signal.signal(number, signal.SIG_IGN)


@contextmanager
def heeded() -> Iterator[None]:
    """Within this block, heed the signals that are left to others."""
    for number, handler in _left.items():
        signal.signal(number, handler)
    yield
    leave_to_others()


@contextmanager
def deferred() -> Iterator[None]:
    """Within this block, a first signal makes only `check` raise Stopped, for a few seconds.

    A second signal raises it at once, and so does the end of these seconds.
    """
    global _deferring
    before, _deferring = _deferring, True
    try:
        yield
    finally:
        _deferring = before


def check() -> None:
    """Raise Stopped if a signal has asked for it; to be called between rounds."""
    if _asked is not None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Stopped(_asked, between_rounds=True)


def name(number: int) -> str:
    """The name of a signal, for messages."""
    return "a closed pipe" if number == signal.SIGPIPE else signal.Signals(number).name


def _obey(number: int, frame: FrameType | None) -> None:
    global _asked
    first, _asked = _asked is None, _asked or number
    if not (_deferring and first):
        raise Stopped(_asked)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    if os.isatty(2):  # not by print, which may be in the middle of a line
        os.write(
            2, f"\nfedcom: {name(number)}: stopping after this round; once more to stop at once\n".encode()
        )
