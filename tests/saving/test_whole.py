"""Files are whole or not there."""

import errno
import math
from pathlib import Path

import pytest

from fedcom.errors import StorageError
from fedcom.saving.whole import check_room, read_sealed, write_json, write_sealed, write_whole


def test_json_holds_no_nan_and_the_old_file_stays(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"loss": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": math.nan})
    assert (tmp_path / "a.json").read_text() == '{\n  "loss": 1\n}\n'


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    def half(path: Path) -> None:
        path.write_text("ne")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match="the disk is full; free some space") as caught:
        write_whole(tmp_path / "a", half)
    assert caught.value.exit_code == 5
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old"}


def test_too_little_room_is_told_before_anything_is_written(tmp_path: Path) -> None:
    check_room(tmp_path, 1)
    with pytest.raises(StorageError, match=r"has room for .* bytes, and "):
        check_room(tmp_path, 2**60)


def test_a_sealed_file_tells_of_any_byte_that_changed_or_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_sealed(path, b"what was written", private=True)
    assert read_sealed(path) == b"what was written"
    assert path.stat().st_mode & 0o777 == 0o600
    whole = path.read_bytes()
    for i in range(len(whole)):
        for wrong in (whole[:i], whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :]):
            path.write_bytes(wrong)
            with pytest.raises(StorageError, match="it is damaged"):
                read_sealed(path)
