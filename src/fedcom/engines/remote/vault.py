"""What a participant keeps on its disk: one file per job and client, whole or not there, private."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedcom.errors import StorageError
from fedcom.rounds.round import Work
from fedcom.saving.whole import check_room, disk_errors, read_sealed, write_sealed
from fedcom.vectors import Vectors, apart

log = logging.getLogger("fedcom")
FORMAT = 1
_SLACK = 2**16  # bytes of a file beside its tensors, about


class Pending(NamedTuple):
    """What a reply leads to if it is counted."""

    round: int
    work: Work


class Kept(NamedTuple):
    """What a client keeps; tensors of state and memory have one row."""

    committed: int  # the last counted round that state and memory know of
    generation: int
    latest: tuple[int, int]  # session and round of the newest call that was answered
    state: Any
    memory: Vectors
    replica: tuple[int, Vectors] | None  # of the server, at the beginning of a round; None: not needed
    pending: Pending | None


class Vault:
    """Files with what one client keeps, one per job.

    Args:
        folder: made when it is needed.
    """

    def __init__(self, folder: Path, client: int) -> None:
        self.folder, self.client = folder, client

    def path(self, job: bytes) -> Path:
        """The file of a job."""
        return self.folder / job.hex() / f"client-{self.client}.state"

    @contextmanager
    def locked(self, job: bytes) -> Iterator[None]:
        """Hold the file of a job: a call that comes while another is being answered waits."""
        from filelock import lock_descriptor

        path = self.path(job)
        with disk_errors(self.folder):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            lock_descriptor(descriptor)
            yield
        finally:
            os.close(descriptor)

    def save(self, job: bytes, kept: Kept) -> None:
        """Write the file; what was there stays until it is whole."""
        from safetensors.torch import save

        tensors, pending = _named("committed", kept.state, kept.memory), kept.pending
        facts: dict[str, Any] = {
            "format": FORMAT,
            "committed": kept.committed,
            "generation": kept.generation,
            "latest": kept.latest,
            "pending": None if pending is None else pending.round,
            "replica": None if kept.replica is None else kept.replica[0],
        }
        if pending is not None:
            new = _named("pending", pending.work.state, pending.work.memory)
            old = {f"pending{name.removeprefix('committed')}": x for name, x in tensors.items()}
            tensors |= {name: x for name, x in new.items() if x is not old[name]}  # the others are equal
            tensors |= {f"pending.meant.{name}": x for name, x in pending.work.meant.items()}
            tensors |= {f"pending.sent.{name}": x for name, x in pending.work.sent.items()}
            tensors["pending.q"] = pending.work.q
        if kept.replica is not None:
            tensors |= {f"replica.{name}": x for name, x in kept.replica[1].items()}
        path = self.path(job)
        check_room(path.parent, sum(x.nbytes for x in tensors.values()) + _SLACK)
        own = apart([x.contiguous() for x in tensors.values()])  # a file cannot hold views of one another
        content = save(dict(zip(tensors, own, strict=True)), {"facts": json.dumps(facts)})
        write_sealed(path, content, private=True)

    def load(self, job: bytes, initial: tuple[Any, Vectors]) -> Kept | None:
        """What was saved; None if there is no file, or none that is whole.

        Args:
            initial: a client's first state and memory, whose shapes must be those in the file.
        """
        path = self.path(job)
        try:
            return _kept(read_sealed(path), initial)
        except FileNotFoundError:
            return None
        except (StorageError, OSError, LookupError, ValueError) as error:
            log.warning(
                "the state in %s cannot be used and counts as lost: %s",
                path,
                error,
                extra={"client": self.client},
            )
            return None

    def forget(self, job: bytes) -> None:
        """Delete the file."""
        with disk_errors(self.folder):
            self.path(job).unlink(missing_ok=True)


def _named(version: str, state: Any, memory: Vectors) -> Vectors:
    found = {f"{version}.state.{name}": x for name, x in state._asdict().items()}
    return found | {f"{version}.memory.{name}": x for name, x in memory.items()}


def _kept(content: bytes, initial: tuple[Any, Vectors]) -> Kept:
    from safetensors.torch import load

    size = int.from_bytes(content[:8], "little")
    facts = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["facts"])
    if facts["format"] != FORMAT:
        raise StorageError(f"it is of format {facts['format']}, not {FORMAT}")
    tensors, (first, memory) = load(content), initial

    def row(name: str, field: str) -> Tensor:
        found = tensors.get(f"{name}.{field}")
        return tensors[f"committed.{field}"] if found is None else found

    def version(name: str) -> tuple[Any, Vectors]:
        rows = {field: row(name, f"state.{field}") for field in first._fields}
        for field, x in rows.items():
            _check(x, getattr(first, field))
        return type(first)(**rows), {vector: row(name, f"memory.{vector}") for vector in memory}

    state, kept_memory = version("committed")
    pending, replica = facts["pending"], facts["replica"]
    told = _below("pending.meant.", tensors), _below("pending.sent.", tensors)
    return Kept(
        facts["committed"],
        facts["generation"],
        tuple(facts["latest"]),
        state,
        kept_memory,
        None if replica is None else (replica, _below("replica.", tensors)),
        None if pending is None else Pending(pending, Work(*version("pending"), *told, tensors["pending.q"])),
    )


def _below(prefix: str, tensors: Vectors) -> Vectors:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def _check(row: Tensor, like: Tensor) -> None:
    if row.shape[1:] != like.shape or row.dtype != like.dtype:
        raise StorageError("it is of another model")
