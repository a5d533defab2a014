"""What old jobs left on a client's disk: listed, and deleted only if that is asked for."""

import os
import time
from pathlib import Path

import torch

from fedcom.engines.remote.stored import stored
from tests.cli.test_cli import Command, command
from tests.engines.remote.clients import deployed
from tests.engines.remote.test_faults import settings
from tests.engines.test_checkpoints import small_task

__all__ = ["command"]  # a fixture


def test_old_jobs_are_listed_and_deleted_only_with_yes(tmp_path: Path, command: Command) -> None:
    task, clients = small_task(torch.float64), tmp_path / "state"
    jobs = []
    for name in ("old", "new"):
        played, transport = deployed(task, settings(), tmp_path / name)
        for participant in transport.clients.values():
            participant._vault.folder = clients  # one machine for all
        played.step()
        jobs.append(played.engine.coordinator.job.hex())  # type: ignore[attr-defined]
    old, new = jobs
    (clients / "notes").mkdir()
    (clients / old / "mine.txt").write_text("not fedcom's")
    for path in (clients / old).glob("client-*"):
        os.utime(path, (time.time() - 40 * 86400,) * 2)

    listed = command("flower", "forget", str(clients))
    assert listed.code == 0
    lines = listed.out.splitlines()
    assert lines[0].startswith(f"{new}  client 0, 1, 2,")
    assert lines[0].endswith("stays")
    assert lines[1].startswith(old)
    assert lines[1].endswith("used 40.0 days ago  would be deleted")
    assert "nothing was deleted" in lines[2]
    assert len(stored(clients)) == 2
    assert "deleted" not in command("flower", "forget", str(clients), "--days", "60", "--yes").out
    assert len(stored(clients)) == 2

    assert command("flower", "forget", str(clients), "--yes").code == 0
    assert [one.job for one in stored(clients)] == [new]
    assert [path.name for path in (clients / old).iterdir()] == ["mine.txt"]  # what is not ours stays
    with transport.clients[0]._vault.locked(bytes.fromhex(new)):
        assert "in use" in command("flower", "forget", str(clients), "--job", new, "--yes").out
    played.step()  # nothing is missing
    assert played.row()["refused"] == 0
    assert command("flower", "forget", str(clients), "--job", new, "--yes").code == 0
    assert not (clients / new).exists()
    assert (clients / "notes").exists()

    unknown = command("flower", "forget", str(clients), "--job", new, "--yes")
    assert (unknown.code, unknown.out) == (2, "")
    assert f"has no state of job {new}" in unknown.err
    assert "is not a folder" in command("flower", "forget", str(tmp_path / "nowhere")).err
