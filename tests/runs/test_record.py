"""Simulations made in Python leave the folders that the commands read, and go on in them."""

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
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
from fedcom.runs.files import LONGER
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


class Cut(Exception):
    """Ends a run in the middle, as a kill would."""


def cut_in(round_index: int) -> Callable[[Row], None]:
    def callback(row: Row) -> None:
        if row["round"] == round_index:
            raise Cut

    return callback


@pytest.mark.parametrize("checkpoints", [None, 3])
@pytest.mark.parametrize("cut", [2, 10])
def test_a_finished_run_stays_whole_until_a_longer_one_is(
    tmp_path: Path, checkpoints: int | None, cut: int
) -> None:
    """Without a checkpoint the longer run is played from the start, elsewhere."""
    record(tmp_path / "a", log=["csv"])
    before = contents(tmp_path / "a")
    for _ in range(2):  # the second time it goes on from the checkpoint of the longer run, if it has one
        with pytest.raises(Cut):
            fedcom.record(
                simulation(12),
                tmp_path / "a",
                start="resume",
                quiet=True,
                rounds=checkpoints,
                callbacks=cut_in(cut),
                log=["csv"],
            )
        assert contents(tmp_path / "a") == before
        assert statuses([tmp_path / "a"])[0].done == 8
        assert [run.status for run in collect([tmp_path / "a"]).runs] == ["done"]
    longer = record(tmp_path / "a", rounds=12, start="resume", log=["csv"])
    straight = record(tmp_path / "b", rounds=12, log=["csv"])
    assert without_time(longer.curve.rows) == without_time(straight.curve.rows)
    found, wanted = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert found.keys() == wanted.keys()
    assert {found[name] == wanted[name] for name in ("model.safetensors", "ledger.json", "config.toml")} == {
        True
    }
    assert found["metrics.csv"].count(b"\n") == wanted["metrics.csv"].count(b"\n") == 14
    assert not (tmp_path / "a" / LONGER).exists()


@pytest.mark.parametrize("moved", [0, 1, 4, 100])
def test_a_kill_while_the_longer_run_takes_its_place_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    record(tmp_path / "a")
    left, move = [moved], os.replace

    def until_killed(source: Path, target: Path) -> None:
        if Path(source).parent.name == LONGER and Path(target).parent == tmp_path / "a":
            if left[0] == 0:
                raise Cut
            left[0] -= 1
        move(source, target)

    monkeypatch.setattr(os, "replace", until_killed)
    with pytest.raises(Cut) if moved < 100 else nullcontext():
        record(tmp_path / "a", rounds=12, start="resume")
    monkeypatch.undo()
    seen: list[Row] = []
    record(tmp_path / "a", rounds=12, start="resume", callbacks=seen.append)
    assert seen == []  # it was done before
    record(tmp_path / "b", rounds=12)
    found, wanted = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert found.keys() == wanted.keys()
    assert found["model.safetensors"] == wanted["model.safetensors"]


def test_over_replaces_a_longer_run_that_was_cut_too(tmp_path: Path) -> None:
    record(tmp_path)
    with pytest.raises(Cut):
        record(tmp_path, rounds=12, start="resume", callbacks=cut_in(9))
    record(tmp_path, rounds=9, start="over")
    assert not (tmp_path / LONGER).exists()
    assert len(record(tmp_path, rounds=9, start="resume").curve.rows) == 10


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


def mangled(lines: list[str], how: str) -> list[str]:
    """Rows as a bad disk or a careless hand leaves them."""
    if how == "doubled":
        return [*lines[:2], lines[1], *lines[2:]]
    if how == "damaged":
        return [*lines[:2], lines[2].replace('"round"', '"rou\x00d"'), *lines[3:]]
    if how == "misnumbered":
        return [*lines[:2], lines[2].replace('"round": 2', '"round": "2"'), *lines[3:]]
    if how == "changed":
        return [*lines[:2], lines[2].replace('"train_loss": ', '"train_loss": 1'), *lines[3:]]
    return [*lines[:2], *lines[3:]] if how == "lost" else lines


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("whole", None),
        ("doubled", None),
        ("lost", "the rows of rounds [2] are lost"),
        ("damaged", "the rows of rounds [2] are lost"),
        ("misnumbered", "the rows of rounds [2] are lost"),
        ("changed", "rows differ from those that were measured"),
    ],
)
def test_rows_are_checked_against_the_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, told: str | None
) -> None:
    whole = record(tmp_path / "whole").curve.rows
    with pytest.raises(Cut):
        fedcom.record(simulation(), tmp_path / "a", quiet=True, rounds=3, callbacks=cut_in(7))
    path = tmp_path / "a" / "metrics.jsonl"
    path.write_text("".join(mangled(path.read_text().splitlines(keepends=True), how)))
    rows = record(tmp_path / "a", start="resume").curve.rows
    warned = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert [line.split(": ", 1)[1] for line in warned] == ([] if told is None else [told])
    resumed = json.loads((tmp_path / "a" / "environment.json").read_text())["resumed"]
    assert resumed[0].get("lost_rows", []) == ([2] if told and "lost" in told else [])
    if told is None:
        assert without_time(rows) == without_time(whole)
    assert [row["round"] for row in rows] == [n for n in range(9) if n not in resumed[0].get("lost_rows", [])]
