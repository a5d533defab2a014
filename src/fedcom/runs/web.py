"""A small web server of a run's own, for a page or for figures; readers that leave do not disturb it."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """A server with a thread per reader."""

    daemon_threads = True  # a browser that keeps its connection open does not keep the server from ending

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a reader that closed its connection; tell other errors as usual."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers one reader."""

    timeout = 60  # seconds, for a reader that is silent or slow; others do not wait for it

    def answer(self, status: int, content: bytes, **headers: str) -> None:
        """Send an answer whole.

        Args:
            headers: with `_` in place of `-`.
        """
        self.send_response(status)
        for name, value in {**headers, "Content_Length": str(len(content))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests: there is one every few seconds."""
