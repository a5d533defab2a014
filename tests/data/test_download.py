import io
import re
import sys
import tarfile

import pytest
import torch

from fedcom.data import download, load
from fedcom.data.sources import SOURCES, Source
from fedcom.errors import DataError
from tests.data.made import lay, mnist_like, sha256, source_of, zip_all

DEAD = "http://127.0.0.1:9/"


def names(folder):
    """Every file under a folder."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def served(server, monkeypatch):
    """A small MNIST on the second of two mirrors; the first is dead."""
    contents = mnist_like()
    monkeypatch.setitem(SOURCES, "mnist", (source_of("mnist", contents, (DEAD, server.url)),))
    lay(server.folder, zip_all(contents))
    return server


def test_a_download_is_cached_and_the_second_call_needs_no_server(served, cache):
    first = load("mnist")
    assert names(cache) == sorted(mnist_like())
    for name in mnist_like():
        (served.folder / name).unlink()
    assert torch.equal(load("mnist").x, first.x)


def test_only_what_is_missing_is_fetched(served, cache):
    load("mnist")
    lost = "t10k-images-idx3-ubyte.gz"
    (cache / "mnist" / lost).unlink()
    for name in set(mnist_like()) - {lost}:
        (served.folder / name).unlink()
    assert load("mnist").test_x.shape == (5, 1, 28, 28)


def test_a_wrong_checksum_is_refused_and_leaves_nothing(served, cache):
    lay(served.folder, {"train-images-idx3-ubyte.gz": b"something else"})
    with pytest.raises(DataError, match="does not match"):
        load("mnist")
    assert names(cache) == []


def test_a_failed_download_names_addresses_folder_and_remedy(cache, monkeypatch):
    monkeypatch.setitem(SOURCES, "mnist", (source_of("mnist", mnist_like(), (DEAD, DEAD + "two/")),))
    with pytest.raises(DataError) as caught:
        load("mnist")
    first = "train-images-idx3-ubyte.gz"
    for part in (DEAD + first, DEAD + "two/" + first, str(cache / "mnist"), "by hand", "FEDCOM_DATA"):
        assert part in str(caught.value)


def test_a_cache_that_cannot_be_written_is_an_error(served, cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(DataError, match="could not be downloaded to"):
        load("mnist")


def tarred(members):
    """A tar.gz with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def serve_tar(server, members):
    """A source of two files that come in a tar."""
    archive = tarred(members)
    lay(server.folder, {"set.tar.gz": archive})
    return Source("set", {"one.bin": None, "two.bin": None}, {"set.tar.gz": sha256(archive)}, (server.url,))


def test_a_tar_is_unpacked_and_only_its_known_files_are_taken(server, tmp_path):
    members = {"set/one.bin": b"1", "set/two.bin": b"2", "../evil.bin": b"!", "/tmp/evil.bin": b"!", "x": b""}
    source = serve_tar(server, members)
    download.fetch("some set", source, tmp_path / "a" / "b")
    assert names(tmp_path / "a") == ["one.bin", "two.bin"]
    assert (tmp_path / "a" / "b" / "two.bin").read_bytes() == b"2"


def test_a_tar_without_a_file_is_an_error(server, tmp_path):
    source = serve_tar(server, {"set/two.bin": b"2"})
    with pytest.raises(DataError, match=r"set\.tar\.gz does not contain one\.bin"):
        download.fetch("some set", source, tmp_path / "a")
    assert names(tmp_path / "a") == []


def test_the_bar_is_drawn_on_a_terminal_only(served, cache, monkeypatch, capsys):
    assert download._bar("some file") is False
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    load("mnist")
    assert "train-images-idx3-ubyte.gz" in capsys.readouterr().err


def test_every_official_checksum_is_well_formed():
    for source in (source for layouts in SOURCES.values() for source in layouts):
        for checksum in [*source.files.values(), *source.archives.values()]:
            assert checksum is None or re.fullmatch(r"[0-9a-f]{64}|md5:[0-9a-f]{32}", checksum)
        assert all(mirror.startswith("http") for mirror in source.mirrors)
        assert source.mirrors
