"""Files that are whole or not there, and one kind of error for disks that cannot take them."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedcom.errors import StorageError

ASIDE = ".part"  # ends the name of a file that is being written
_CHECKSUM = 32  # bytes
_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file aside, flush it to the disk and rename it; what was there before stays until then.

    Args:
        write: writes the file at the path that it is given.
    """
    aside = path.with_name(path.name + ASIDE)
    with disk_errors(path.parent):
        try:
            write(aside)
            flush(aside)
            os.replace(aside, path)
            flush(path.parent)
        except BaseException:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """Write a text, whole; what UTF-8 cannot hold is replaced."""
    write_whole(path, lambda aside: aside.write_bytes(text.encode("utf-8", "replace")))


def write_json(path: Path, content: Any, private: bool = False) -> None:
    """Write indented JSON, whole; NaN and infinity, which JSON does not have, raise ValueError.

    Args:
        private: nobody but the owner may read it.
    """
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_whole(path, lambda aside: _write(aside, text.encode(), private=private))


def write_sealed(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file, whole, that begins with a checksum of the rest.

    Args:
        private: nobody but the owner may read it.
    """
    write_whole(path, lambda aside: _write(aside, _checksum(content), content, private=private))


def read_sealed(path: Path) -> bytes:
    """What `write_sealed` wrote; raises StorageError if it has changed since."""
    found = path.read_bytes()
    checksum, content = found[:_CHECKSUM], found[_CHECKSUM:]
    if _checksum(content) != checksum:
        raise StorageError("it is damaged")
    return content


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECKSUM).digest()


def _write(path: Path, *parts: bytes, private: bool) -> None:
    if private:
        path.touch(0o600)
        path.chmod(0o600)
    with path.open("wb") as file:
        for part in parts:
            file.write(part)


def flush(path: Path) -> None:
    """Wait until the system has written a file, or a folder's list of files, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot flush a folder
            raise
    finally:
        os.close(descriptor)


def check_room(folder: Path, needed: int) -> None:
    """Raise StorageError if a disk has less room than is needed."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StorageError(
            f"{folder} has room for {free:,} bytes, and {needed:,} are to be written; {REMEDY}"
        )


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raise StorageError for errors of the disk that holds a folder."""
    try:
        yield
    except OSError as error:
        what = "the disk is full" if error.errno in _FULL else error.strerror or str(error)
        raise StorageError(f"cannot write to {folder}: {what}; {REMEDY}") from error


REMEDY = "free some space or choose another place"
