"""Downloads into the cache, from the first mirror that serves a file whose checksum is right."""

import hashlib
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from fedcom.data.sources import Source
from fedcom.errors import DataError
from fedcom.imports import optional


def fetch(name: str, source: Source, folder: Path) -> None:
    """Download the files of a data set that are missing in a folder.

    Args:
        name: of the data set, for errors.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for archive, checksum in source.archives.items():
            if archive not in source.files:
                with tempfile.TemporaryDirectory(dir=folder, prefix="partial-") as scratch:
                    _retrieve(source, archive, checksum, Path(scratch))
                    _unpack(Path(scratch) / archive, source, folder)
            elif not (folder / archive).exists():
                _retrieve(source, archive, checksum, folder)
    except (OSError, ValueError, tarfile.TarError) as error:  # requests' errors are OSErrors
        raise DataError(
            f"{name} could not be downloaded to {folder}: {error}; {source.remedy()} by hand, so "
            f"that this folder holds {', '.join(source.files)}; or point data.root or FEDCOM_DATA at a "
            f"folder that has {source.folder}/"
        ) from error


def _retrieve(source: Source, archive: str, checksum: str | None, folder: Path) -> None:
    """Fetch one file from the first mirror that serves it with the right checksum."""
    pooch = optional("pooch", "pooch")
    failures = []
    for mirror in source.mirrors:
        bar = _bar(archive)
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=2**18)
        try:
            pooch.retrieve(mirror + archive, checksum, fname=archive, path=folder, downloader=downloader)
            return
        except (OSError, ValueError) as error:
            failures.append(f"{mirror}{archive}: {error}")
        finally:
            if bar:
                bar.close()
    raise OSError("; ".join(failures))


def _unpack(archive: Path, source: Source, folder: Path) -> None:
    """Take the source's files, and nothing else, out of a tar; paths inside the tar are ignored.

    Files are known by their checksums, whatever they are called there, or else by their names.
    """
    known = {checksum: name for name, checksum in source.files.items() if checksum}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            content = tar.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            with content:
                sure = known.get(hashlib.sha256(content.read()).hexdigest())
                name = sure or name
                if name in source.files and (sure or not (archive.parent / name).exists()):
                    content.seek(0)
                    with open(archive.parent / name, "wb") as out:
                        shutil.copyfileobj(content, out)
    for name in source.files:
        if not (archive.parent / name).exists():
            raise ValueError(f"{archive.name} does not contain {name}")
        os.replace(archive.parent / name, folder / name)


def _bar(label: str) -> Any:
    """A progress bar, or False if stderr is not a terminal."""
    return _Bar(label) if sys.stderr.isatty() else False


class _Bar:
    """A progress bar as pooch uses it (total, update, reset, close), drawn by rich."""

    def __init__(self, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task(label, total=None)
        self.total = 0

    def update(self, done: int) -> None:
        """Count `done` more bytes."""
        self._progress.start()
        self._progress.update(self._task, advance=done, total=self.total or None)

    def reset(self) -> None:
        """Start counting from zero."""
        self._progress.reset(self._task)

    def close(self) -> None:
        """Leave the finished bar on the terminal."""
        self._progress.stop()
