"""A disk that fails at a chosen moment, and one that forgets what was not flushed when the power goes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedcom.saving import whole

Watch = Callable[[str, Path], None]  # is told each write, flush and rename, before it is done


class PowerCut(BaseException):
    """The machine is off: nobody can handle this."""


@contextmanager
def watched(root: Path, watch: Watch) -> Iterator[None]:
    """Tell of every write, flush and rename below a folder that fedcom asks the system for."""
    import safetensors.torch

    with pytest.MonkeyPatch.context() as patch:

        def wrap(owner: Any, name: str, kind: str, path_of: Callable[..., Path]) -> None:
            plain = getattr(owner, name)

            def call(*args: Any, **named: Any) -> Any:
                path = path_of(*args)
                if path.is_relative_to(root):
                    watch(kind, path)
                return plain(*args, **named)

            patch.setattr(owner, name, call)

        wrap(os, "fsync", "flush", lambda descriptor: Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        wrap(os, "replace", "rename", lambda source, target: Path(target))
        wrap(Path, "write_bytes", "write", lambda path, *_: path)
        wrap(Path, "write_text", "write", lambda path, *_: path)
        wrap(safetensors.torch, "save_file", "write", lambda _, path, *rest: Path(path))
        wrap(Path, "mkdir", "make", lambda path, *_: path)
        wrap(whole, "_write", "write", lambda path, *_: path)
        record = __import__("fedcom.runs.record", fromlist=["append"])
        wrap(record, "append", "write", lambda log, _: Path(log.name))
        yield


class Platter:
    """What a disk would hold if the power went now: flushed contents under flushed names.

    Args:
        root: the folder that is watched.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._content: dict[int, bytes] = {}  # by inode
        self._names: dict[Path, dict[str, int]] = {}  # by folder
        self._kept: list[int] = []  # descriptors that keep inodes from being used again

    def flush(self, path: Path) -> None:
        """A file's content, or a folder's list of names, is on the platter now."""
        if path.is_dir():
            self._names[path] = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
            return
        self._kept.append(os.open(path, os.O_RDONLY))
        self._content[path.stat().st_ino] = path.read_bytes()

    def restore(self, out: Path) -> None:
        """Write what is on the platter into a folder; where only the name was flushed, a file is empty."""
        for folder, names in sorted(self._names.items()):
            place = out / folder.relative_to(self.root)
            place.mkdir(parents=True, exist_ok=True)
            for name, inode in names.items():
                if (folder / name) in self._names or (folder / name).is_dir():
                    (place / name).mkdir(exist_ok=True)
                else:
                    (place / name).write_bytes(self._content.get(inode, b""))

    def close(self) -> None:
        for descriptor in self._kept:
            os.close(descriptor)
