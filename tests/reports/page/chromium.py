"""Chromium without a window, controlled over a pipe by its DevTools protocol."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
)


def find() -> str | None:
    """The path of a browser on this machine, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab; every event it sends is kept."""

    def __init__(self, program: str, folder: Path) -> None:
        (theirs_in, self._to), (self._from, theirs_out) = os.pipe(), os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4; a shell connects ours to them.
        command = [program, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        move = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(
            ["bash", "-c", move, "chromium", *command], pass_fds=(theirs_in, theirs_out), **quiet
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.events: list[dict[str, Any]] = []
        self._buffer, self._count, self._session = b"", 0, ""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.until("document.readyState === 'complete'")  # or its event would be taken for another page's
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        """Send a command and wait for its answer."""
        self._count += 1
        order: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._to, json.dumps(order).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == self._count:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.events.append(message)

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0]
            data = os.read(self._from, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("Chromium does not answer")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        return dict(json.loads(message))

    def wait(self, event: str) -> dict[str, Any]:
        """The next event of a kind."""
        while True:
            message = self._read()
            self.events.append(message)
            if message.get("method") == event:
                return message

    def open(self, place: Path | str) -> None:
        """Go to a file or an address and wait until it is loaded."""
        self.send("Page.navigate", url=place if isinstance(place, str) else place.resolve().as_uri())
        self.wait("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition: Callable[[], bool] | str) -> None:
        """Wait until a condition holds: a function, or an expression in the page."""
        deadline = time.monotonic() + PATIENCE
        while not (self.run(condition) if isinstance(condition, str) else condition()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{condition} did not become true")
            self.run("new Promise(done => setTimeout(done, 20))")

    def size(self, width: int, height: int, dark: bool = False, paper: bool = False) -> None:
        """Set the window's size, whether the system's theme is dark, and whether the page is printed."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="print" if paper else "", features=[theme])

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move or press the mouse: mouseMoved, mousePressed or mouseReleased."""
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def touch(self, kind: str, *fingers: tuple[float, float]) -> None:
        """Touch the screen: touchStart, touchMove or touchEnd."""
        points = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(fingers)]
        self.send("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    def picture(self, path: Path) -> None:
        """A screenshot of the whole page."""
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        """End the browser."""
        os.close(self._to)  # it ends when its commands end
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
