"""Standard output and standard error: opened, watched while a command prints, and flushed at its end."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, TypeVar

from fedcom.errors import Stopped, StorageError

T = TypeVar("T")


class Watched:
    """Standard output that raises Stopped once its reader has gone, as with `| head -1`.

    Libraries that print make other things of a broken pipe, each its own.

    Attributes:
        gone: whether the reader has gone.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.gone = stream, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, as any stream does."""
        return self._do(lambda: self._stream.write(text))

    def flush(self) -> None:
        """Flush what was written."""
        self._do(self._stream.flush)

    def _do(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except BrokenPipeError:
            self.gone = True
            discard(self._stream)
            raise Stopped(signal.SIGPIPE) from None
        except OSError as error:
            discard(self._stream)
            raise StorageError(f"standard output cannot be written to: {error.strerror}") from None


@contextmanager
def watched() -> Iterator[Watched]:
    """Watch standard output."""
    before: TextIO = sys.stdout
    watch: Any = Watched(before)
    sys.stdout = watch
    try:
        yield watch
    finally:
        sys.stdout = before


def complain(what: object) -> None:
    """Print one line on standard error; ignore it if the reader has gone."""
    with suppress(OSError):
        print(f"fedcom: {what}", file=sys.stderr)


@contextmanager
def meanwhile(what: str, quiet: bool | None = False) -> Iterator[None]:
    """On a terminal, say what is being done while it is, in a line that goes away."""
    shown = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    with suppress(OSError):
        print(f"{what} ..." * shown, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        with suppress(OSError):
            print("\r\x1b[2K" * shown, end="", file=sys.stderr, flush=True)


def end() -> None:
    """Flush what was printed; what cannot be written any more is dropped, else Python would complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, Stopped, StorageError):
            discard(stream)


def discard(stream: TextIO) -> None:
    """Let all that a stream is given from now on, or still holds, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_all() -> None:
    """Open the standard streams that were closed from the start, as by 2>&-, onto nothing.

    Else a file of results may get their number, and what a library prints would end up in it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
