"""Checkpoints: the last two are kept, only changed rows are written, and damage is always noticed."""

import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedcom.errors import StorageError
from fedcom.saving import series as under_test
from fedcom.saving.series import ClientRows, Series

CLIENTS = 12


class Clients:
    """A population whose rows say who they are and when they changed."""

    def __init__(self) -> None:
        self.rows = torch.zeros(CLIENTS, 3)
        self.taken: list[int] = []
        self.changed: list[int] = []

    def change(self, at: int, *clients: int) -> None:
        for client in clients:
            self.rows[client] = torch.tensor([client, at, -1.0])
        self.changed += clients

    def __call__(self, since: int | None) -> ClientRows:
        known = (self.rows[:, 2] != 0).nonzero()[:, 0]
        changed, self.changed = torch.tensor(sorted(set(self.changed)), dtype=torch.int64), []
        return ClientRows(known, changed, self._take, 12)

    def _take(self, clients: Tensor) -> list[Tensor]:
        self.taken += clients.tolist()
        return [self.rows[clients, :2].clone(), self.rows[clients, 2:].clone()]


def read(folder: Path) -> tuple[int, Tensor, Tensor] | None:
    """The number, tensor and rows of the newest whole checkpoint."""
    saved = Series(folder).latest()
    if saved is None:
        return None
    rows, seen = torch.zeros(CLIENTS, 3), list[int]()
    for clients, fields in saved.rows():
        rows[clients] = torch.cat(fields, 1)
        seen += clients.tolist()
    assert len(seen) == len(set(seen))
    return saved.facts["turn"], saved.tensors["w"], rows


def save(series: Series, clients: Clients, turn: int) -> None:
    series.save(turn, {"turn": turn}, {"w": torch.full((4,), float(turn))}, clients)
    series.wait()


def test_only_rows_that_changed_are_written_and_all_are_read_back(tmp_path: Path) -> None:
    series, clients = Series(tmp_path), Clients()
    clients.change(1, *range(8))
    save(series, clients, 1)
    clients.taken.clear()
    clients.change(2, 3, 9)
    save(series, clients, 2)
    assert sorted(clients.taken) == [3, 9]
    found = read(tmp_path)
    assert found is not None
    assert found[0] == 2
    assert torch.equal(found[1], torch.full((4,), 2.0))
    assert torch.equal(found[2], clients.rows)


def test_a_series_goes_on_after_it_was_read(tmp_path: Path) -> None:
    series, clients = Series(tmp_path), Clients()
    clients.change(1, *range(8))
    save(series, clients, 1)
    again = Series(tmp_path)
    assert again.last is None
    again.latest()
    assert again.last == 1
    clients.taken.clear()
    clients.change(2, 5)
    save(again, clients, 2)
    assert clients.taken == [5]
    found = read(tmp_path)
    assert found is not None
    assert torch.equal(found[2], clients.rows)


def test_the_last_two_are_kept_and_the_files_stay_few(tmp_path: Path) -> None:
    """Rows are written anew when most of those on the disk are out of date."""
    series, clients, draw = Series(tmp_path), Clients(), random.Random(0)
    for turn in range(1, 60):
        clients.change(turn, *draw.sample(range(CLIENTS), 3))
        before = clients.rows.clone() if turn == 58 else None
        save(series, clients, turn)
        if before is not None:
            shutil.copytree(tmp_path, tmp_path.with_name("copy"))
        assert len(list(tmp_path.glob("*.json"))) == min(turn, 2)
        rows = [len(under_test._load(path)["clients"]) for path in tmp_path.glob("*-rows-*")]
        assert sum(rows) <= 4 * CLIENTS
    (tmp_path / "00000059.json").unlink()
    found = read(tmp_path)
    assert found is not None
    assert found[0] == 58
    expected = read(tmp_path.with_name("copy"))
    assert expected is not None
    assert torch.equal(found[2], expected[2])


def test_rows_are_cut_into_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "_PART", 24)
    series, clients = Series(tmp_path), Clients()
    clients.change(1, *range(CLIENTS))
    save(series, clients, 1)
    assert len(list(tmp_path.glob("*-rows-*"))) == CLIENTS // 2
    found = read(tmp_path)
    assert found is not None
    assert torch.equal(found[2], clients.rows)


def test_clients_without_rows_need_no_files(tmp_path: Path) -> None:
    save(Series(tmp_path), Clients(), 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001.json", "00000001.safetensors"]


def _flip(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def _cut(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


def _lose(path: Path, draw: random.Random) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [_flip, _cut, _lose])
def test_damage_is_noticed_and_the_checkpoint_before_is_used(
    tmp_path: Path, harm: Callable[[Path, random.Random], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever file is harmed, what is read is one of the two that were written, or nothing."""
    series, clients, states, draw = Series(tmp_path / "whole"), Clients(), {}, random.Random(1)
    for turn in (1, 2):
        clients.change(turn, *draw.sample(range(CLIENTS), 5))
        save(series, clients, turn)
        states[turn] = clients.rows.clone()
    for trial in range(70):
        shutil.copytree(tmp_path / "whole", folder := tmp_path / str(trial))
        hurt = draw.choice(sorted(folder.iterdir()))
        harm(hurt, draw)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = read(folder)
        if (found is None or found[0] == 1) and hurt.exists():
            assert "cannot be used" in caplog.text
        if found is not None:
            assert torch.equal(found[1], torch.full((4,), float(found[0])))
            assert torch.equal(found[2], states[found[0]])
        if hurt.name.startswith("00000002"):
            assert found is not None
            assert found[0] == 1


def test_a_full_disk_leaves_the_checkpoints_before_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series, clients = Series(tmp_path), Clients()
    clients.change(1, 1, 2)
    save(series, clients, 1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(under_test, "write_json", full)  # everything else is written by then
        clients.change(2, 2, 3)
        with pytest.raises((StorageError, OSError)):
            save(series, clients, 2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    clients.change(2, 2, 3)
    save(series, clients, 3)
    found = read(tmp_path)
    assert found is not None
    assert torch.equal(found[2], clients.rows)


def test_too_little_room_is_told_first(tmp_path: Path) -> None:
    clients = Clients()
    clients.change(1, 1)
    rows = clients(None)
    with pytest.raises(StorageError, match="has room for"):
        Series(tmp_path).save(1, {}, {}, lambda since: ClientRows(rows.known, rows.changed, rows.take, 2**60))
    assert not list(tmp_path.iterdir())


def test_what_the_caller_changes_after_a_save_is_not_saved(tmp_path: Path) -> None:
    series, clients, rows = Series(tmp_path), Clients(), ["first"]
    w = torch.ones(4)
    clients.change(1, *range(CLIENTS))
    series.save(1, {"turn": 1, "rows": rows}, {"w": w}, clients)
    rows.append("second")
    w.zero_()
    series.wait()
    saved = Series(tmp_path).latest()
    assert saved is not None
    assert saved.facts["rows"] == ["first"]
    assert torch.equal(saved.tensors["w"], torch.ones(4))


def test_a_second_save_with_one_number_changes_nothing(tmp_path: Path) -> None:
    """It would write other rows into files whose checksums the first one has noted."""
    series, clients = Series(tmp_path), Clients()
    clients.change(1, *range(8))
    save(series, clients, 1)
    clients.change(2, 8, 9)
    save(series, clients, 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    clients.change(2, *range(10))
    save(series, clients, 2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
