"""Finding the files of a data set; their content is checked against its checksum before it is used."""

import gzip
import hashlib
import io
import os
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedcom.data.download import fetch
from fedcom.data.sources import SOURCES, Source
from fedcom.errors import DataError
from fedcom.imports import optional


def verify(path: Path, content: bytes, checksum: str | None) -> None:
    """Refuse content with another checksum.

    Args:
        path: of the file, for errors.
        checksum: sha256, or 'md5:...'; None: anything is accepted.
    """
    if checksum is None:
        return
    algorithm, _, want = checksum.rpartition(":")
    got = hashlib.new(algorithm or "sha256", content, usedforsecurity=False).hexdigest()
    if got != want:
        raise DataError(
            f"{path} has the wrong checksum: its {len(content)} bytes give {got}, not {want}; "
            f"it is damaged or not the official file; delete it and fetch it again"
        )


def read(path: Path) -> bytes:
    """The content of a file, unzipped if its name ends in .gz."""
    try:
        data = path.read_bytes()
        return _unzipped(path, data) if path.suffix == ".gz" else data
    except EOFError as error:
        raise DataError(
            f"{path} is truncated after {len(data)} bytes; delete it and fetch it again"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); delete it and fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and dtype of an array in numpy's format; ValueError if none."""
    plain = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if plain else np.lib.format.read_array_header_2_0
    return read(file)


def memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def refuse_too_large(path: Path, nbytes: int) -> None:
    """Raise DataError if what a file holds, once it is unpacked, is more than the memory of this machine."""
    if nbytes > memory():
        raise DataError(
            f"{path} holds {nbytes:,} bytes once it is unpacked, and this machine has {memory():,}; it may "
            "not be what it claims to be"
        )


def _unzipped(path: Path, data: bytes) -> bytes:
    """The content of a gzip file, unpacked piece by piece: one that is too large is refused in time."""
    pieces, size = list[bytes](), 0
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        while piece := file.read(2**24):
            pieces.append(piece)
            size += len(piece)
            refuse_too_large(path, 2 * size)
    return b"".join(pieces)


@dataclass(frozen=True)
class Found:
    """A folder and the source whose files it is meant to hold."""

    folder: Path
    source: Source

    def missing(self) -> list[str]:
        """The files of the source that are not there."""
        return [name for name in self.source.files if not (self.folder / name).exists()]

    def content(self, name: str) -> bytes:
        """One file, unzipped and verified."""
        content = read(self.folder / name)
        verify(self.folder / name, content, self.source.files[name])
        return content


def cache_folder() -> Path:
    """Where downloads are kept."""
    return Path(optional("pooch", "pooch").os_cache("fedcom"))


def locate(name: str, root: str | Path | None = None) -> Found:
    """The files of a data set: under root, FEDCOM_DATA, the system's package or the cache, else downloaded.

    Args:
        root: a folder that must hold them; None: the other places are searched.
    """
    if root is not None:
        return _under(Path(root).expanduser(), name) or _absent(Path(root).expanduser(), name)
    return _in_environment(name) or _packaged(name) or _cached(name)


def at_path(path: str | Path) -> Path:
    """A file or folder that the user names: as it is, or under FEDCOM_DATA if it is only there."""
    given, root = Path(path).expanduser(), os.environ.get("FEDCOM_DATA")
    below = Path(root or "").expanduser() / given
    return below if root and not given.exists() and below.exists() else given


def at_hand(name: str) -> bool:
    """Whether a data set can be read without downloading it."""
    if _in_environment(name) or _packaged(name):
        return True
    if find_spec("pooch") is None:  # then nothing can have been downloaded
        return False
    return any(not Found(cache_folder() / s.folder, s).missing() for s in SOURCES[name])


def _absent(root: Path, name: str) -> Found:
    """Raise the error for a root, given by the user, that does not hold the data set."""
    first, folders = SOURCES[name][0], dict.fromkeys(str(root / source.folder) for source in SOURCES[name])
    raise DataError(
        f"data.root {str(root)!r} does not hold {name}: there is no folder {' or '.join(folders)}; "
        f"{first.remedy()}, so that {root / first.folder} holds {', '.join(first.files)}; "
        f"or leave data.root out to have it downloaded"
    )


def _under(root: Path, name: str) -> Found | None:
    """The data set under a root; None if its folder is not there, an error if the folder is incomplete."""
    layouts = [Found(root / source.folder, source) for source in SOURCES[name]]
    present = [found for found in layouts if found.folder.is_dir()]
    for found in present:
        if not found.missing():
            return found
    if not present:
        return None
    gaps = " or ".join(f"{', '.join(found.missing())} ({found.source.remedy()})" for found in present)
    raise DataError(f"{name} is incomplete: {present[0].folder} lacks {gaps}")


def _in_environment(name: str) -> Found | None:
    """The data set under the folder that FEDCOM_DATA names, if it is there."""
    root = os.environ.get("FEDCOM_DATA")
    return _under(Path(root).expanduser(), name) if root else None


def _packaged(name: str) -> Found | None:
    """The data set in the folder of the operating system's package, if that is installed."""
    for source in SOURCES[name]:
        if source.packaged is not None and not (found := Found(Path(source.packaged), source)).missing():
            return found
    return None


def _cached(name: str) -> Found:
    """The data set in the cache; downloaded first if it is not there."""
    layouts = [Found(cache_folder() / source.folder, source) for source in SOURCES[name]]
    for found in layouts:
        if not found.missing():
            return found
    found = next(found for found in layouts if found.source.archives)
    fetch(name, found.source, found.folder)
    return found
