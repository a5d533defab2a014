"""Signals that ask a process to stop: obeyed at once, or at the end of the round that is being played."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fedcom.errors import Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_deferring = False
_asked: int | None = None


def listen() -> None:
    """Raise Stopped at a signal to stop; signals that are ignored, as SIGHUP is under nohup, stay ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _obey)


@contextmanager
def deferred() -> Iterator[None]:
    """Within this block, a first signal only makes `check` raise Stopped; a second one raises it at once."""
    global _deferring
    before, _deferring = _deferring, True
    try:
        yield
    finally:
        _deferring = before


def check() -> None:
    """Raise Stopped if a signal has asked for it; to be called between rounds."""
    if _asked is not None:
        raise Stopped(_asked, between_rounds=True)


def name(number: int) -> str:
    """The name of a signal, for messages."""
    return "a closed pipe" if number == signal.SIGPIPE else signal.Signals(number).name


def _obey(number: int, frame: FrameType | None) -> None:
    global _asked
    first, _asked = _asked is None, number
    if not (_deferring and first):
        raise Stopped(number)
    if os.isatty(2):  # not by print, which may be in the middle of a line
        os.write(
            2, f"\nfedcom: {name(number)}: stopping after this round; once more to stop at once\n".encode()
        )
