"""The table of `fedcom compare`, against numbers worked out by hand."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedcom.formats import significant, size
from fedcom.reports.comparison import compare_table, markdown, render, write_csv
from fedcom.runs.curve import Curve, milestones

LOSSES = (2.0, 1.0, 0.5)


def curve(
    method: str,
    seed: int = 0,
    accuracies: Sequence[float | None] = (0.1, 0.6, 0.8),
    up: float = 1e6,
    losses: Sequence[float] = LOSSES,
    status: str = "done",
) -> Curve:
    """A run evaluated every ten rounds that sends `up` bytes per client and round, and gets half as many."""
    rows = [
        {
            "round": 10 * i,
            "train_loss": loss,
            "test_accuracy": accuracy,
            "worst_client_accuracy": None if accuracy is None else accuracy / 2,
            "uplink_bytes": 10 * i * up,
            "downlink_bytes": 5 * i * up,
        }
        for i, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
    ]
    return Curve(method, seed, rows, status)


CURVES = [
    curve("fedcomgate", 0, (0.1, 0.6, 0.8), up=1e6, losses=(2.0, 1.0, 0.5)),
    curve("fedcomgate", 1, (0.1, 0.5, 0.6), up=1e6, losses=(2.0, 1.0, 0.7)),
    curve("fedavg", 0, (0.1, 0.2, 0.6), up=4e6),
    curve("fedavg", 1, (0.1, 0.2, math.nan), up=4e6, losses=(2.0, 9.0, math.nan), status="diverged"),
    curve("scaffold", 0, (0.1, 0.2, 0.5), up=8e6),
    curve("diana", 0, (0.1, 0.1, None), losses=(2.0, 50.0, math.inf), status="diverged"),
]


def test_milestones_are_those_of_the_first_row_that_reaches_the_target() -> None:
    run = curve("fedavg", 0, (0.1, 0.9, 0.8), up=2e6)
    assert milestones(run.rows, 0.8) == {
        "best_accuracy": 0.9,
        "rounds_to_target": 10,
        "uplink_bytes_to_target": 20e6,
        "downlink_bytes_to_target": 10e6,
    }


@pytest.mark.parametrize(
    ("accuracies", "target", "best"), [((0.1, math.nan, 0.7), 0.8, 0.7), ((None,) * 3, 0.8, None)]
)
def test_a_target_not_reached_leaves_nothing(
    accuracies: tuple[float | None, ...], target: float, best: float | None
) -> None:
    found = milestones(curve("fedavg", 0, accuracies).rows, target)
    assert found.pop("best_accuracy") == best
    assert set(found.values()) == {None}


def entries(target: float | None = 0.6) -> dict[str, dict[str, Any]]:
    return {entry["method"]: entry for entry in compare_table(CURVES, target)}


def test_two_seeds_by_hand() -> None:
    entry = entries()["fedcomgate"]
    assert (entry["runs"], entry["diverged"], entry["reached_target"]) == (2, 0, 2)
    assert entry["final_loss"] == pytest.approx(0.6)
    assert entry["final_loss_spread"] == pytest.approx(0.1 * math.sqrt(2))
    assert entry["final_accuracy"] == pytest.approx(0.7)
    assert entry["final_accuracy_spread"] == pytest.approx(0.1 * math.sqrt(2))
    assert entry["worst_client_accuracy"] == pytest.approx(0.35)
    assert (entry["uplink_bytes"], entry["downlink_bytes"]) == (20e6, 10e6)
    assert (entry["rounds_to_target"], entry["uplink_bytes_to_target"]) == (15, 15e6)  # rounds 10 and 20


def test_a_diverged_run_gives_no_final_scores() -> None:
    entry = entries()["fedavg"]
    assert (entry["status"], entry["runs"], entry["diverged"]) == ("mixed", 2, 1)
    assert (entry["final_loss"], entry["final_loss_spread"]) == (0.5, None)
    assert (entry["uplink_bytes"], entry["reached_target"]) == (80e6, 1)
    dead = entries()["diana"]
    assert (dead["status"], dead["diverged_round"]) == ("diverged", 20)
    assert dead["final_loss"] is dead["final_accuracy"] is dead["uplink_bytes"] is None


def test_ratios_are_of_bytes_to_the_target() -> None:
    table = entries(0.6)
    assert table["fedcomgate"]["times_fewer_than_fedavg"] == pytest.approx(80 / 15)
    assert table["fedavg"]["times_fewer_than_fedavg"] == 1
    assert table["scaffold"]["times_fewer_than_fedavg"] is None  # it never reaches the target
    assert table["fedcomgate"]["times_fewer_than_scaffold"] is None
    assert entries(0.5)["fedcomgate"]["times_fewer_than_scaffold"] == pytest.approx(160 / 10)


def test_order_is_that_of_first_appearance_and_the_table_is_json() -> None:
    table = compare_table(CURVES, 0.6)
    assert [entry["method"] for entry in table] == ["fedcomgate", "fedavg", "scaffold", "diana"]
    assert json.loads(json.dumps(table, allow_nan=False)) == table


def test_markdown_by_hand() -> None:
    lines = markdown(compare_table(CURVES, 0.6), 0.6).splitlines()
    assert lines[0].startswith(
        "| method | loss | accuracy % | worst tenth % | up MB | down MB | rounds to 60% |"
    )
    ours = "| fedcomgate | 0.6000 ±0.14 | 70.00 ±14.14 | 35.00 | 20.0 | 10.0 | 15 | 15.0 | 5.3× |"  # noqa: RUF001
    theirs = "| fedavg | 0.5000 | 60.00 | 30.00 | 80.0 | 40.0 | 20 | 80.0 (1/2) | 1.0× |"  # noqa: RUF001
    assert lines[2:4] == [ours, theirs]
    assert lines[5].startswith("| diana | diverged at round 20 | — |")
    assert lines[-1] == "- fedavg: 1 of 2 diverged at round 20"


def test_columns_without_a_number_are_left_out() -> None:
    text = markdown(compare_table([curve("a|b", 0, (None,) * 3)], None), None)
    assert text.splitlines()[0] == "| method | loss | up MB | down MB |"
    assert "a\\|b" in text


def printed(what: Any, width: int) -> str:
    """What a terminal of some width shows: nothing cut, nothing wider."""
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO())
    console.print(what)
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    return text


@pytest.mark.parametrize("width", [40, 80])
def test_no_number_is_cut_in_a_narrow_terminal(width: int) -> None:
    runs = [
        dataclasses.replace(
            one, rows=[{**row, "modelled_seconds": 12345.0 * row["round"]} for row in one.rows]
        )
        for one in CURVES
    ]
    table = compare_table([*runs, *(dataclasses.replace(run, method="scaffold") for run in runs[:2])], 0.6)
    shown = printed(render(table, 0.6), width).split()
    for line in markdown(table, 0.6).splitlines()[2:5]:
        for word in line.replace("|", " ").split():
            assert word in shown


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (12, "12 B"), (999, "999 B"), (2030, "2.03 kB"), (999_900, "1.00 MB"), (7.97e7, "79.7 MB")],
)
def test_sizes_have_the_unit_that_suits_them(nbytes: float, text: str) -> None:
    assert size(nbytes) == text


def test_a_table_of_small_sizes_is_in_kilobytes() -> None:
    small = [dataclasses.replace(c, rows=[{**r, "uplink_bytes": 2030.0} for r in c.rows]) for c in CURVES]
    head, _, first, *_ = markdown(compare_table(small, 0.6), 0.6).splitlines()
    assert "| up kB |" in head
    assert "| 2.03 |" in first


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_table_fits_and_is_whole(width: int) -> None:
    text = printed(render(compare_table([*CURVES, curve("x [red]y")], 0.6), 0.6), width)
    for piece in ("fedcomgate", "scaffold", "diverged", "±14.14", "x [red]y", "1 of 2 diverged at round 20"):
        assert piece in text


def test_csv_keeps_every_digit_and_leaves_the_unknown_empty(tmp_path: Path) -> None:
    table = compare_table(CURVES, 0.6)
    write_csv(table, tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(table[0])
    assert float(rows[0]["final_loss_spread"]) == table[0]["final_loss_spread"]
    assert rows[3]["final_loss"] == ""


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.067481, 4, "0.06748"),
        (999.9, 3, "1000"),
        (1234567, 3, "1234567"),
        (160.0, 3, "160"),
        (20.0, 3, "20.0"),
        (0.0, 3, "0"),
        (1e30, 4, "1.000e+30"),
        (math.nan, 4, "—"),
        (None, 4, "—"),
    ],
)
def test_significant_digits(value: float | None, digits: int, text: str) -> None:
    assert significant(value, digits) == text


def test_a_note_says_what_the_clients_scores_of_a_regression_are() -> None:
    row = {"round": 1, "train_loss": 1.0, "uplink_bytes": 1.0, "downlink_bytes": 1.0, "client_mean": 0.5}

    def told(**more: float) -> str:
        return markdown(compare_table([Curve("fedavg", 0, [{**row, **more}], "done")], None), None)

    assert "own test samples, their r2\n" in told()
    assert "own test samples\n" in told(test_accuracy=0.4)
    assert "own test samples\n" in told(test_c_index=0.4)
