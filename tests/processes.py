"""Commands in processes of their own; they are forked from one that has imported all, and start at once."""

import multiprocessing
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

PATIENCE = 600  # seconds to wait for what would never happen
PRELOADED = [
    *("pytest", "numba", "safetensors.torch", "fedcom.cli", "fedcom.reports.figures"),
    *("fedcom.reports.page", "fedcom.studies.compare", "fedcom.studies.sweep", "fedcom.engines.ranks.engine"),
    "tests.warm",
]
_COLOUR = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")  # these make rich treat a pipe as a terminal
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_ports = count()


def free_ports(many: int, lasting: bool = False) -> list[int]:
    """Ports of this machine that nobody listens on.

    They lie below those that the system gives to connections, and other processes choose from other ones.

    Args:
        lasting: for processes that are killed and started again on the same ports; no others get those.
    """
    found: list[int] = []
    first, some = (35, 15) if lasting else (0, 35)
    while len(found) < many:
        port = 10_000 + os.getpid() % 400 * 50 + first + next(_ports) % some
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    return found


class Result(NamedTuple):
    """The exit code of a command, and what it printed on standard output and standard error."""

    code: int
    out: str
    err: str


@dataclass
class Command:
    """`fedcom ...` in a process of its own.

    Args:
        folder: the current folder of the process.
        stderr: where it is written: a file, a pipe with a name, or None if it is closed from the start.
        ignored: signals that the process ignores, as SIGHUP is under nohup.
        memory: bytes of address space that it may take beyond what it begins with; None: no limit.
        environment: variables that it has besides those of this process.
        prelude: Python code to run before the command, such as one that breaks a part.
    """

    folder: Path
    arguments: Sequence[str]
    stdout: Path
    stderr: Path | None
    ignored: Sequence[int] = ()
    memory: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    prelude: str = ""
    process: Any = field(init=False)

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        streams, limits = (self.stdout, self.stderr), (self.ignored, self.memory)
        job = (self.folder, self.arguments, *streams, *limits, dict(self.environment), self.prelude)
        self.process = context.Process(target=_play, args=job)
        self.process.start()

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def send(self, number: int) -> None:
        """Send a signal; the process must not be waited for before."""
        os.kill(self.pid, number)

    def alive(self) -> bool:
        return bool(self.process.is_alive())

    def until(self, true: Callable[[], bool]) -> bool:
        """Wait until something is true; False if the process ends before."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            if not self.alive():
                return False
            assert time.monotonic() < deadline
            time.sleep(0.003)
        return True

    def result(self) -> Result:
        """Wait for the end; the code is that of a shell if a signal ended it."""
        self.process.join(PATIENCE)
        code = self.process.exitcode
        assert code is not None, "it hangs"
        err = self.stderr.read_text() if self.stderr is not None and self.stderr.is_file() else ""
        return Result(128 - code if code < 0 else code, self.stdout.read_text(), err)


@contextmanager
def started(folder: Path, *arguments: str, stderr: Path | None = Path(), **options: Any) -> Iterator[Command]:
    """Start `fedcom ...` in a folder; what it prints is kept elsewhere. It is killed if the test fails."""
    with TemporaryDirectory(prefix="fedcom-") as streams:
        out, error = Path(streams, "out"), Path(streams, "err") if stderr == Path() else stderr
        out.touch()
        command = Command(folder, arguments, out, error, **options)
        try:
            yield command
        finally:
            if command.alive():
                command.process.kill()
            command.process.join()


def finished(folder: Path, *arguments: str, **options: Any) -> Result:
    """Run `fedcom ...` to its end."""
    with started(folder, *arguments, **options) as command:
        return command.result()


def program(folder: Path, code: str, **options: Any) -> Result:
    """Run Python code to its end, instead of a command."""
    return finished(folder, prelude=f"{code}\nraise SystemExit", **options)


def _play(
    folder: Path,
    arguments: Sequence[str],
    out: Path,
    err: Path | None,
    ignored: Sequence[int],
    memory: int | None,
    environment: Mapping[str, str],
    prelude: str,
) -> None:
    """What a shell and Python do before `main`, and then `main`."""
    import torch

    from fedcom import cli

    for number in _SIGNALS:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else usual)
    for name in _COLOUR:
        os.environ.pop(name, None)
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    sys.stdout = _redirected(1, out)
    sys.stderr = _redirected(2, err)
    sys.argv = ["fedcom", *arguments]
    if memory is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory,) * 2)
    exec(prelude, vars(sys.modules["__main__"]))
    cli.main()


def _redirected(descriptor: int, path: Path | None) -> Any:
    if path is None:
        os.close(descriptor)
        return None
    opened = os.open(path, os.O_WRONLY | os.O_CREAT)  # waits for a reader if it is a pipe
    os.dup2(opened, descriptor)
    os.close(opened)
    return open(descriptor, "w", buffering=1 if descriptor == 2 else -1, closefd=False)
