"""What the coordinator keeps on disk beside checkpoints: ends of rounds that clients are yet to be told."""

import json
import os
import secrets
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple

from fedcom.codecs.wire import Data
from fedcom.engines.remote import messages
from fedcom.engines.remote.messages import Told
from fedcom.errors import StorageError
from fedcom.saving.whole import disk_errors, read_sealed, write_json, write_sealed
from fedcom.traffic.ledger import Ledger

_ENDING = ".told"


class End(NamedTuple):
    """The end of a round: what clients are told, and what telling one of them costs."""

    told: Told
    bill: Ledger

    @property
    def nbytes(self) -> int:
        """The bytes of its messages."""
        return sum(map(len, self.told.messages))


class Archive:
    """A folder of a coordinator.

    Args:
        folder: made when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin_session(self, job: bytes | None) -> tuple[bytes, int]:
        """The job's number, drawn if there is none yet, and how often it has been started.

        Args:
            job: the number that a checkpoint has; None: there is none.
        """
        path = self.folder / "session.json"
        try:
            before = json.loads(path.read_text())
        except FileNotFoundError:
            before = {}
        except (OSError, ValueError) as error:
            raise StorageError(f"{path} cannot be read: {error}") from None
        job = job or bytes.fromhex(before.get("job", "")) or secrets.token_bytes(8)
        session = before.get("session", 0) + 1
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {"job": job.hex(), "session": session})
        return job, session

    def save(self, end: End) -> None:
        """Write the end of a round."""
        head = json.dumps({"share": end.told.share, "bill": end.bill.as_dict()}).encode()
        content = len(head).to_bytes(4, "little") + head + messages.joined(end.told.messages)
        write_sealed(self._path(end.told.round), content)

    def load(self, round_index: int) -> End:
        """The end of a round."""
        path = self._path(round_index)
        try:
            content = memoryview(read_sealed(path))
            size = int.from_bytes(content[:4], "little")
            head: dict[str, Any] = json.loads(bytes(content[4 : 4 + size]))
        except (StorageError, OSError, ValueError) as error:
            raise StorageError(f"{path} cannot be read, but clients are yet to be told it: {error}") from None
        bill = Ledger(head["bill"]["clients"])
        bill.load(head["bill"])
        return End(Told(round_index, head["share"], messages.split(content[4 + size :])), bill)

    def keep_only(self, rounds: Container[int]) -> None:
        """Delete the ends of all other rounds."""
        for path in self.folder.glob(f"*{_ENDING}"):
            if int(path.stem) not in rounds:
                path.unlink(missing_ok=True)

    def put_aside(self, client: int, data: Data) -> None:
        """Keep a reply that came before its turn."""
        with disk_errors(self.folder), self._aside(client).open("wb") as file:
            file.write(data)

    def take_back(self, client: int) -> bytes:
        """A reply that was put aside, which is deleted."""
        data = self._aside(client).read_bytes()
        os.unlink(self._aside(client))
        return data

    def _aside(self, client: int) -> Path:
        return self.folder / f"client-{client}.reply"

    def _path(self, round_index: int) -> Path:
        return self.folder / f"{round_index:08d}{_ENDING}"
