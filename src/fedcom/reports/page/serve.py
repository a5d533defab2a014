"""Serve the page to this machine's browsers while runs go on: what `fedcom report --live` does."""

import threading
import time
import zlib
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

from fedcom.errors import ConfigError, FedcomError, Stopped, flag
from fedcom.reports.page.build import build
from fedcom.reports.page.collect import find
from fedcom.runs.web import Handler, Server

HOST = "127.0.0.1"  # nobody else on the network can read the page


class _Pages:
    """The newest page of some folders, made anew after a second or three times as long as it took to make."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders, self._lock = folders, threading.Lock()
        self._text, self._until = b"", 0.0

    def newest(self) -> bytes:
        with self._lock:
            started = time.monotonic()
            if started >= self._until:
                self._text = build(find(self._folders), live=True).encode("utf-8", "replace")
                took = time.monotonic() - started
                self._until = started + max(1.0, 3 * took)
            return self._text


class _Server(Server):
    def __init__(self, port: int, pages: _Pages) -> None:
        self.pages = pages
        super().__init__((HOST, port), _Handler)


class _Handler(Handler):
    server: _Server

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            # a page of another site that had its name resolved to this machine
            self._answer(HTTPStatus.FORBIDDEN, b"open the address that fedcom has printed\n")
        elif self.path.split("?")[0] != "/":
            self._answer(HTTPStatus.NOT_FOUND, b"there is only one page here: /\n")
        else:
            self._send_page()

    do_HEAD = do_GET

    def _send_page(self) -> None:
        try:
            page = self.server.pages.newest()
        except (FedcomError, OSError) as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode("utf-8", "replace"))
            return
        tag = f'"{zlib.crc32(page):08x}-{len(page)}"'
        if self.headers.get("If-None-Match") == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, b"", tag)
        else:
            self._answer(HTTPStatus.OK, page, tag)

    def _answer(self, status: HTTPStatus, content: bytes, tag: str | None = None) -> None:
        kind = "text/html" if status == HTTPStatus.OK else "text/plain"
        headers = {} if tag is None else {"ETag": tag}
        self.answer(
            status, content, Content_Type=f"{kind}; charset=utf-8", Cache_Control="no-store", **headers
        )


def serve(folders: Sequence[Path], port: int, tell: Callable[[str], object] = print) -> None:
    """Serve the page of some folders until a signal or Ctrl-C asks to stop.

    Args:
        port: 0 for any that is free.
        tell: is given the page's address once it can be opened.
    """
    pages = _Pages(folders)
    pages.newest()  # a folder that does not exist is told now
    try:
        server = _Server(port, pages)
    except OverflowError:
        raise ConfigError(f"{flag('port')} must be from 0 to 65535; got {port}") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"cannot serve on port {port}: {why}; choose another {flag('port')}, or 0 for any that is free"
        ) from None
    with server:
        try:
            tell(f"http://{HOST}:{server.server_address[1]}/")
            server.serve_forever()
        except (Stopped, KeyboardInterrupt):
            return
