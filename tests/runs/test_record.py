"""Simulations made in Python leave the folders that the commands read, and go on in them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch import Tensor

import fedcom
from fedcom import FedCOM, FedCOMGATE, Int, Links, Row, Simulation
from fedcom.codecs.wire import Data
from fedcom.draws import Draw
from fedcom.errors import NotFinite, WireError
from fedcom.reports import page
from fedcom.reports.comparison import compare_table
from fedcom.reports.page.collect import collect
from fedcom.runs.status import statuses
from fedcom.vectors import Layout
from tests.conftest import mlp_task


def simulation(rounds: int = 8) -> Simulation:
    method = FedCOMGATE(eta=0.05, gamma=1.0, tau=2, batch=5)
    return Simulation(mlp_task(), method, rounds=rounds, participation=0.5, seed=3, device="cpu")


def record(out: Path, rounds: int = 8, **options: Any) -> fedcom.Outcome:
    return fedcom.record(simulation(rounds), out, quiet=True, **options)


def without_time(rows: Any) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_reports_tables_and_status_read_a_recorded_folder(tmp_path: Path) -> None:
    outcome = record(tmp_path / "mine", target=0.1)
    assert outcome.error is None
    found = collect([tmp_path])
    assert found.notices == []
    (entry,) = compare_table([run.curve for run in found.runs], 0.1)
    assert (entry["method"], entry["status"], entry["runs"]) == ("fedcomgate, int 8-bit", "done", 1)
    assert entry["final_loss"] == outcome.curve.rows[-1]["train_loss"]
    assert "fedcomgate, int 8-bit on" in page.write([tmp_path]).read_text(encoding="utf-8")
    (status,) = statuses([tmp_path])
    assert (status.state, status.done, status.total) == ("done", 8, 8)


def test_a_recorded_run_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    whole = record(tmp_path / "whole").curve.rows

    def interrupt(row: Row) -> None:
        if row["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedcom.record(simulation(), tmp_path / "cut", rounds=2, quiet=True, callbacks=[interrupt])
    assert statuses([tmp_path / "cut"])[0].state == "interrupted"
    seen: list[int] = []
    again = record(tmp_path / "cut", start="resume", callbacks=[lambda row: seen.append(row["round"])])
    assert seen[0] == 4  # from the checkpoint after round 4, and not from the start
    assert without_time(again.curve.rows) == without_time(whole)
    longer = record(tmp_path / "cut", rounds=10, start="resume").curve.rows
    assert without_time(longer) == without_time(record(tmp_path / "ten", rounds=10).curve.rows)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("start", ["Resume", "force", "", None])
def test_an_unknown_start_touches_nothing(tmp_path: Path, start: Any) -> None:
    record(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(fedcom.ConfigError, match=f"start must be new, over, resume; got {start!r}"):
        record(tmp_path, start=start)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("checkpoints", [None, 3])
def test_a_finished_run_is_not_cut_by_fewer_rounds(tmp_path: Path, checkpoints: int | None) -> None:
    fedcom.record(simulation(), tmp_path, quiet=True, rounds=checkpoints)
    before = contents(tmp_path)
    with pytest.raises(fedcom.ConfigError, match=r"holds 8 rounds; 3 \(run.rounds\) are fewer"):
        record(tmp_path, rounds=3, start="resume")
    assert contents(tmp_path) == before


@dataclass(frozen=True)
class Unreadable(Int):
    """A codec whose messages no receiver can read after the second."""

    name: ClassVar[str] = "unreadable"
    id: ClassVar[int] = 199
    read: ClassVar[list[int]] = []

    def decode(self, data: Data, layout: Layout, draw: Draw) -> Tensor:
        self.read.append(len(data))
        if len(self.read) > 2:
            raise WireError("its table is not that of the sender")
        return super().decode(data, layout, draw)


def test_a_message_that_cannot_be_read_is_not_told_as_divergence(tmp_path: Path) -> None:
    links = Links(Unreadable(8), encode=True)
    with pytest.raises(WireError, match="its table is not that of the sender") as caught:
        fedcom.record(
            Simulation(mlp_task(), FedCOM(), links, rounds=3, device="cpu"), tmp_path / "a", quiet=True
        )
    assert not isinstance(caught.value, NotFinite)
    assert Path(caught.traceback[-1].path).name == Path(__file__).name  # where it was raised
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "eta" not in summary["reason"]
