"""Figures of a job for a monitor: Prometheus' text format at http://127.0.0.1:PORT/metrics."""

import threading

from fedcom.engines.results import Row
from fedcom.errors import ConfigError
from fedcom.formats import is_number
from fedcom.runs.web import Handler, Server

_FIGURES = {  # what a row calls it: its name, its kind and what it is
    "round": ("round", "gauge", "Rounds done."),
    "counted": ("clients_counted", "gauge", "Clients counted in the last round."),
    "refused": ("replies_refused_total", "counter", "Replies refused so far."),
    "void": ("rounds_void_total", "counter", "Rounds with too few replies so far."),
    "uplink_bytes": ("uplink_bytes", "counter", "Bytes sent by clients so far, per client."),
    "downlink_bytes": ("downlink_bytes", "counter", "Bytes sent to clients so far, per client."),
    "seconds": ("seconds_total", "counter", "Seconds of work so far."),
    "test_accuracy": ("test_accuracy", "gauge", "Accuracy on the server's test set, from 0 to 1."),
    "test_perplexity": ("test_perplexity", "gauge", "Perplexity of the server's test text."),
    "test_loss": ("test_loss", "gauge", "Loss on the server's test set."),
}


class Endpoint:
    """A callback that shows the last row to a monitor on this machine.

    Args:
        port: 0: any that is free; see `port`.
    """

    def __init__(self, port: int) -> None:
        page = self

        class Figures(Handler):
            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
                body = page.text.encode() if found else b"see /metrics\n"
                kind = "text/plain; version=0.0.4; charset=utf-8"
                self.answer(200 if found else 404, body, Content_Type=kind)

        try:
            self._server = Server(("127.0.0.1", port), Figures)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"round.metrics_port={port} cannot be opened: {error}") from None
        self.port, self.text = int(self._server.server_address[1]), text({})
        threading.Thread(target=self._server.serve_forever, name="fedcom-metrics", daemon=True).start()

    def __call__(self, row: Row) -> None:
        self.text = text(row)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def text(row: Row) -> str:
    """A row in Prometheus' text format."""
    lines = []
    for key, (name, kind, meaning) in _FIGURES.items():
        if is_number(value := row.get(key)):
            head = f"# HELP fedcom_{name} {meaning}\n# TYPE fedcom_{name} {kind}\n"
            lines.append(f"{head}fedcom_{name} {value!r}\n")
    return "".join(lines)
