"""Tests of data do not see the machine's data: the cache is a temporary folder and FEDCOM_DATA is unset."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedcom.data import files
from fedcom.data.sources import SOURCES
from tests.data.made import lay, mnist_like, source_of, zip_all


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder, the only place where data is searched for."""
    monkeypatch.delenv("FEDCOM_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves a folder and logs nothing."""

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    """A running web server, its folder and its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    web = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    web.folder, web.url = folder, f"http://127.0.0.1:{web.server_port}/"
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield web
    web.shutdown()
    thread.join()
    web.server_close()


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """A data root with a small MNIST whose checksums the table of sources has."""
    contents = mnist_like()
    monkeypatch.setitem(SOURCES, "mnist", (source_of("mnist", contents),))
    lay(tmp_path / "root" / "mnist", zip_all(contents))
    return tmp_path / "root"
