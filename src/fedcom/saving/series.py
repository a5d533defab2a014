"""Checkpoints in a folder: each is whole or not there, and the last two are kept.

A checkpoint is a manifest, such as 00000050.json, and the safetensors files that it names with their sizes
and checksums: one with tensors, and others with rows, one per client. Rows that have not changed since the
checkpoint before are not written again: the manifest names the older files too, and the newest row counts.
"""

import json
import logging
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedcom.errors import StorageError
from fedcom.saving.whole import ASIDE, check_room, disk_errors, write_json, write_whole
from fedcom.vectors import Vectors

log = logging.getLogger("fedcom")
FORMAT = 1
_PART = 2**24  # bytes of rows per file; the system would give larger blocks of memory anew every time
_AHEAD = 16  # files of rows that wait in memory to be written
_OURS = re.compile(rf"\d{{8}}(\.json|(-rows-\d+)?\.safetensors)({re.escape(ASIDE)})?")

T = TypeVar("T")
Facts = Mapping[str, Any]  # what JSON can hold
FileEntry = dict[str, Any]  # a file in a manifest


@dataclass(frozen=True)
class ClientRows:
    """What clients keep, as a checkpoint needs it.

    Args:
        known: the numbers of all clients that have a row.
        changed: the numbers of those whose row may have changed since the last checkpoint.
        take: returns the rows of some clients, one tensor per field, on the host, as copies.
        width: bytes of one client's row.
    """

    known: Tensor
    changed: Tensor
    take: Callable[[Tensor], list[Tensor]]
    width: int


class Saved(NamedTuple):
    """A checkpoint that was read back."""

    facts: dict[str, Any]
    tensors: Vectors
    rows: Callable[[], Iterator[tuple[Tensor, list[Tensor]]]]  # clients and their rows, each client once


class Series:
    """The checkpoints of one run in a folder, which is made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: list[dict[str, Any]] = []  # manifests, the newest last
        self._thread: ThreadPoolExecutor | None = None
        self._writing: deque[Future[Any]] = deque()

    @property
    def last(self) -> int | None:
        """The number of the last checkpoint that was written or read; None before the first."""
        return self._kept[-1]["number"] if self._kept else None

    def save(
        self, number: int, facts: Facts, tensors: Vectors, rows: Callable[[int | None], ClientRows]
    ) -> None:
        """Begin a checkpoint: return once everything is copied, while a thread writes it; see `wait`.

        Args:
            number: how many rounds are done, say; nothing is done if the last checkpoint has this number.
            facts: copied at once, as the tensors are.
            rows: returns the clients' rows, given the number of the last checkpoint; None: this is the first.
        """
        self.wait()
        if number == self.last:
            return
        try:
            self._begin(number, facts, tensors, rows(self.last))
        except BaseException:
            self._give_up()
            raise

    def wait(self) -> None:
        """Wait until the checkpoint that was begun is on the disk; raises what went wrong with it."""
        try:
            while self._writing:
                self._writing[0].result()
                self._writing.popleft()
        except BaseException:
            self._give_up()
            raise

    def latest(self) -> Saved | None:
        """The newest checkpoint that is whole; damaged ones are logged and left out. None: there is none."""
        for path in sorted(self.folder.glob("????????.json"), reverse=True):
            try:
                manifest = _read_manifest(path)
                for entry in (manifest["tensors"], *manifest["rows"]):
                    _check(self.folder / entry["file"], entry)
            except StorageError as error:
                log.warning("checkpoint %s cannot be used: %s", path, error)
                continue
            self._kept = [manifest]
            tensors = _load(self.folder / manifest["tensors"]["file"])
            return Saved(manifest["facts"], tensors, partial(self._rows, manifest["rows"]))
        return None

    def _begin(self, number: int, facts: Facts, tensors: Vectors, rows: ClientRows) -> None:
        older, clients = self._kept[-1]["rows"] if self._kept else [], rows.changed
        if not self._kept or sum(part["rows"] for part in older) + len(clients) > 2 * len(rows.known):
            clients, older = rows.known, []  # most rows in the older files are out of date
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        check_room(self.folder, len(clients) * rows.width + sum(x.nbytes for x in tensors.values()))
        parts: list[Future[FileEntry]] = []
        for some in torch.split(clients, max(1, _PART // max(1, rows.width))) if len(clients) else ():
            fields = {f"field-{k}": field for k, field in enumerate(rows.take(some))}
            path = self.folder / f"{number:08d}-rows-{len(parts)}.safetensors"
            parts.append(self._submit(partial(_write, path, {**fields, "clients": some})))
            while len(self._writing) > _AHEAD:
                self._writing.popleft().result()
        said = json.loads(json.dumps(facts))  # the caller may go on to change them while the thread writes
        copies = {name: x.detach().to("cpu", copy=True).contiguous() for name, x in tensors.items()}
        self._submit(partial(self._finish, number, said, copies, older, parts))

    def _submit(self, job: Callable[[], T]) -> Future[T]:
        self._thread = self._thread or ThreadPoolExecutor(1, "fedcom-checkpoint")
        self._writing.append(future := self._thread.submit(job))
        return future

    def _finish(
        self,
        number: int,
        facts: dict[str, Any],
        tensors: Vectors,
        older: list[FileEntry],
        parts: list[Future[FileEntry]],
    ) -> None:
        """Write the tensors and the manifest after the rows; then delete what only older checkpoints need."""
        rows = older + [part.result() for part in parts]
        file = _write(self.folder / f"{number:08d}.safetensors", tensors)
        manifest = {"format": FORMAT, "number": number, "facts": facts, "tensors": file, "rows": rows}
        write_json(
            _manifest_path(self.folder, number), {"checksum": _digest(manifest), "checkpoint": manifest}
        )
        self._kept = [*self._kept, manifest][-2:]
        self._prune()

    def _give_up(self) -> None:
        """Let the thread come to rest and delete what it wrote of a checkpoint that failed."""
        for job in self._writing:
            job.cancel()
        futures.wait(self._writing)
        self._writing.clear()
        with suppress(OSError):
            self._prune()

    def _prune(self) -> None:
        """Delete the files of checkpoints that are not kept."""
        needed = {_manifest_path(self.folder, m["number"]).name for m in self._kept}
        needed |= {entry["file"] for m in self._kept for entry in (m["tensors"], *m["rows"])}
        for path in self.folder.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in needed:
                path.unlink(missing_ok=True)

    def _rows(self, parts: list[FileEntry]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        seen = torch.empty(0, dtype=torch.int64)
        for part in reversed(parts):
            found = _load(self.folder / part["file"])
            clients = found.pop("clients")
            fresh = ~torch.isin(clients, seen)
            yield clients[fresh], [found[f"field-{k}"][fresh] for k in range(len(found))]
            seen = torch.cat([seen, clients[fresh]])


def write_tensors(path: Path, tensors: Vectors, told: dict[str, str] | None = None) -> None:
    """Write a safetensors file, with some words beside the tensors."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    def save(aside: Path) -> None:
        try:
            save_file(tensors, aside, told)
        except SafetensorError as error:  # the library's own error for a full disk
            raise OSError(None, str(error)) from None

    with disk_errors(path.parent):
        write_whole(path, save)


def _write(path: Path, tensors: Vectors) -> FileEntry:
    """Write a safetensors file; returns its entry in the manifest."""
    write_tensors(path, tensors)
    with disk_errors(path.parent):
        checksum, size = _crc(path)
    entry = {"file": path.name, "size": size, "crc32": checksum}
    return entry | ({"rows": len(tensors["clients"])} if "clients" in tensors else {})


def _load(path: Path) -> Vectors:
    from safetensors.torch import load

    return load(path.read_bytes())


def _manifest_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.json"


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        manifest = content["checkpoint"]
        whole = content["checksum"] == _digest(manifest)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StorageError(f"it is not a manifest: {error!r}") from None
    if not whole:
        raise StorageError("its checksum is wrong")
    if manifest["format"] != FORMAT:
        raise StorageError(f"it is of format {manifest['format']}, not {FORMAT}")
    return dict(manifest)


def _check(path: Path, entry: Mapping[str, Any]) -> None:
    try:
        found = _crc(path)
    except OSError as error:
        raise StorageError(f"{path.name}: {error.strerror}") from None
    if found != (entry["crc32"], entry["size"]):
        raise StorageError(f"{path.name} is damaged")


def _crc(path: Path) -> tuple[int, int]:
    """The checksum and the size of a file."""
    checksum = size = 0
    with path.open("rb") as file:
        while block := file.read(2**20):
            checksum, size = zlib.crc32(block, checksum), size + len(block)
    return checksum, size


def _digest(manifest: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
