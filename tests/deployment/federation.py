"""A real SuperLink and SuperNodes on loopback, in the environment that has Flower."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import fedcom
from tests.deployment import zygote
from tests.processes import free_ports

ROOT = Path(fedcom.__file__).parents[2]
BIN = ROOT / ".venv-flower" / "bin"
MISSING = None if (BIN / "flwr").exists() else "needs Flower in .venv-flower (make flower)"
PATIENCE = 600.0


class Federation:
    """Processes of one federation, which end with it.

    Args:
        superlink: options of the SuperLink and of `flwr`'s connection to it.
        apps: whether apps will be started.
    """

    def __init__(
        self, folder: Path, nodes: int, superlink: Sequence[str] = ("--insecure",), apps: bool = True
    ) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen[bytes]]()
        self.port, *self.node_ports = free_ports(nodes + 1, lasting=True)
        self.pids = folder / "pids"
        self.pids.mkdir(parents=True)
        place = folder / "z"  # names of sockets must be short
        zygote.shims(folder / "bin", place)
        home = folder / "home"
        home.mkdir()
        self.environment = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
            "OMP_NUM_THREADS": "1",
        }
        trust = "insecure = true" if superlink[0] == "--insecure" else f'root-certificates = "{superlink[1]}"'
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )
        if apps:
            self._start("zygote", [str(BIN / "python"), zygote.__file__, str(place), str(self.pids)])
        options = ["--host", "127.0.0.1", "--port", str(self.port)]
        options.append("--disable-runtime-dependency-installation")  # there is no network
        self._start("superlink", ["flower-superlink", *superlink, *options])

    def _start(self, name: str, command: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
            )

    def node(self, client: int, options: Sequence[str] = ("--insecure",)) -> None:
        """Start the SuperNode of a client."""
        config = f'client={client} state="{self.folder / "state" / str(client)}"'
        command = ["flower-supernode", *options, "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--port", str(self.node_ports[client]), "--node-config", config]
        self._start(f"node-{client}", command)

    def kill(self, name: str) -> None:
        """SIGKILL a process."""
        self.processes[name].kill()
        self.processes[name].wait()

    def flwr(self, *arguments: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """`flwr ...` to its end."""
        return subprocess.run(
            [str(BIN / "flwr"), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=self.folder,
        )

    def run(self, app: Path, out: Path, settings: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Start a run of an app."""
        config = f'out="{out}" settings="{settings}" wait=120'
        return self.flwr("run", str(app), "here", "--run-config", config, *more)

    def wait_for(self, path: Path, text: str = "", patience: float = PATIENCE) -> None:
        """Wait until a file holds a text."""
        self.wait_until(lambda: path.exists() and text in path.read_text(errors="replace"), patience)

    def wait_until(self, true: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Wait until something is true."""
        end = time.monotonic() + patience
        while not true():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)

    def up(self) -> None:
        """Wait until the SuperLink listens and apps can be started."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                assert time.monotonic() < end, self.logs()
                time.sleep(0.05)
        while "zygote" in self.processes and not (self.folder / "z").exists():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)

    def apps(self, name: str) -> list[int]:
        """The processes of apps of a name that are alive."""
        found = [int(path.name.rpartition("-")[2]) for path in self.pids.glob(f"{name}-*")]
        return [pid for pid in found if Path(f"/proc/{pid}").exists()]

    def logs(self) -> str:
        return "\n".join(f"== {p.name}\n{p.read_text()[-3000:]}" for p in self.folder.glob("*.log"))

    def end(self) -> None:
        for name in reversed(list(self.processes)):
            self.processes[name].terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for name in zygote.APPS:
            for pid in self.apps(name):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def federation(
    folder: Path, nodes: int, superlink: Sequence[str] = ("--insecure",), apps: bool = True
) -> Iterator[Federation]:
    """A SuperLink that listens; its processes end with the block."""
    made = Federation(folder, nodes, superlink, apps)
    try:
        made.up()
        yield made
    finally:
        made.end()
