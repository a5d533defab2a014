import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcom.data import load
from fedcom.data.files import locate, read
from fedcom.data.sources import SOURCES, Source
from fedcom.errors import DataError
from fedcom.imports import optional
from tests.data.made import lay, mnist_like, source_of, zip_all, zipped


def test_an_explicit_root_comes_before_the_environment(small_mnist, tmp_path, monkeypatch):
    lay(tmp_path / "other" / "mnist", zip_all(mnist_like()))
    monkeypatch.setenv("FEDCOM_DATA", str(tmp_path / "other"))
    assert locate("mnist", small_mnist).folder == small_mnist / "mnist"
    assert locate("mnist").folder == tmp_path / "other" / "mnist"


def test_an_explicit_root_without_the_set_is_an_error_and_no_download(small_mnist, tmp_path):
    with pytest.raises(DataError) as caught:
        locate("mnist", tmp_path / "empty")
    for part in ("does not hold mnist", str(tmp_path / "empty" / "mnist"), "http://127.0.0.1:9/"):
        assert part in str(caught.value)


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_missing_file_is_named_with_its_place_and_its_address(small_mnist, monkeypatch, by_environment):
    (small_mnist / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    monkeypatch.setenv("FEDCOM_DATA", str(small_mnist))
    with pytest.raises(DataError) as caught:
        locate("mnist", None if by_environment else small_mnist)
    for part in (str(small_mnist / "mnist"), "lacks t10k-labels-idx1-ubyte.gz (get", "http://127.0.0.1:9/"):
        assert part in str(caught.value)


def test_an_environment_root_without_the_set_goes_on_to_the_cache(small_mnist, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCOM_DATA", str(tmp_path / "empty"))
    lay(cache / "mnist", zip_all(mnist_like()))
    assert locate("mnist").folder == cache / "mnist"


def test_the_system_package_comes_before_the_cache(tmp_path, cache, monkeypatch):
    contents = mnist_like()
    source = Source("fashion-mnist", source_of("", contents).files, packaged=str(tmp_path / "package"))
    monkeypatch.setitem(SOURCES, "fashion-mnist", (source,))
    lay(cache / "fashion-mnist", zip_all(contents))
    assert locate("fashion-mnist").folder == cache / "fashion-mnist"
    lay(tmp_path / "package", zip_all(contents))
    assert locate("fashion-mnist").folder == tmp_path / "package"


def test_a_complete_second_layout_serves_where_the_first_is_incomplete(tmp_path, monkeypatch):
    layouts = (Source("bin", {"a.bin": None, "b.bin": None}), Source("py", {"a": None}))
    monkeypatch.setitem(SOURCES, "two", layouts)
    lay(tmp_path / "bin", {"a.bin": b""})
    lay(tmp_path / "py", {"a": b""})
    assert locate("two", tmp_path).source is layouts[1]


def test_a_wrong_checksum_is_named_and_nothing_is_read(small_mnist):
    other = zip_all(mnist_like(shift=1))
    lay(small_mnist / "mnist", {"train-labels-idx1-ubyte.gz": other["train-labels-idx1-ubyte.gz"]})
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz has the wrong checksum.*delete it"):
        load("mnist", small_mnist)


def test_checksums_are_of_the_content_and_not_of_the_zipped_file(small_mnist):
    path = small_mnist / "mnist" / "train-labels-idx1-ubyte.gz"
    content = read(path)
    path.write_bytes(zipped(content[:5]) + zipped(content[5:]))
    assert len(load("mnist", small_mnist).y) == 12


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.data())
def test_a_truncated_gzip_is_named(tmp_path, data):
    whole = zipped(bytes(range(256)) * 9)
    cut = data.draw(st.integers(1, len(whole) - 1))
    lay(tmp_path, {"some.gz": whole[:cut]})
    with pytest.raises(DataError, match=r"some\.gz is (truncated|not a whole gzip)"):
        read(tmp_path / "some.gz")


def test_what_is_not_a_gzip_or_not_a_file_is_refused_by_name(tmp_path):
    lay(tmp_path, {"some.gz": b"<html>not found</html>"})
    with pytest.raises(DataError, match=r"some\.gz is not a whole gzip"):
        read(tmp_path / "some.gz")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path)


def test_a_package_that_is_not_installed_is_named_with_the_remedy():
    with pytest.raises(DataError, match=r"no_such_package cannot be imported.*pip install it"):
        optional("no_such_package", "it")


def test_a_gzip_file_that_holds_more_than_the_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(10**6)))
    assert len(path.read_bytes()) < 2000
    assert len(read(path)) == 10**6
    monkeypatch.setattr("os.sysconf", lambda name: 1000)  # a machine of a million bytes
    with pytest.raises(DataError, match=r"a\.gz holds 2,000,000 bytes once it is unpacked"):
        read(path)
