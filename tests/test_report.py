"""Comparisons worked by hand, and figures looked at as pixels."""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcom.display import COLOURS, palette, significant
from fedcom.report import (
    Curve,
    _apart,
    _strokes,
    compare_table,
    figures,
    markdown,
    milestones,
    render,
    write_csv,
)

LOSSES = (2.0, 1.0, 0.5)


def curve(
    method: str,
    seed: int = 0,
    accuracies: Sequence[float | None] = (0.1, 0.6, 0.8),
    up: float = 1e6,
    losses: Sequence[float] = LOSSES,
    status: str = "done",
) -> Curve:
    """A run evaluated every ten rounds that sends `up` bytes a round per client, half of it down."""
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


def test_a_diverged_run_gives_no_final_figures() -> None:
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
    assert table["scaffold"]["times_fewer_than_fedavg"] is None  # it never gets there
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


def test_columns_without_a_figure_are_left_out() -> None:
    text = markdown(compare_table([curve("a|b", 0, (None,) * 3)], None), None)
    assert text.splitlines()[0] == "| method | loss | up MB | down MB |"
    assert "a\\|b" in text


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_table_fits_and_is_whole(width: int) -> None:
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render(compare_table([*CURVES, curve("x [red]y")], 0.6), 0.6))
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
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


def rgb(colour: str) -> np.ndarray[Any, Any]:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def has(image: np.ndarray[Any, Any], colour: str) -> bool:
    return bool((np.abs(image[..., :3] - rgb(colour)).max(-1) < 0.01).sum() > 50)


def test_figures_are_png_with_one_colour_a_method(tmp_path: Path) -> None:
    from matplotlib.image import imread

    paths = figures(CURVES[:5], tmp_path / "new" / "folder", "made-up data, price $5 to $6")
    assert [path.name for path in paths] == ["loss_rounds.png", "loss_bytes.png", "accuracy_bytes.png"]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
        image = imread(path)
        assert all(has(image, COLOURS[method]) for method in ("fedcomgate", "fedavg", "scaffold"))
        assert not has(image, COLOURS["diana"])


def test_a_figure_with_nothing_to_draw_is_left_out(tmp_path: Path) -> None:
    classless = figures([curve("fedavg", 0, (None,) * 3)], tmp_path / "a")
    assert [path.name for path in classless] == ["loss_rounds.png", "loss_bytes.png"]
    empty = [Curve("fedavg", 0, [], "interrupted"), curve("fedcom", 0, (None,) * 3, losses=(math.nan,) * 3)]
    assert figures(empty, tmp_path / "b") == []


def test_non_finite_and_huge_values_and_many_methods_do_not_break_a_figure(tmp_path: Path) -> None:
    odd = [
        curve("fedgate", 0, losses=(math.inf, 1e300, math.nan), status="diverged"),
        curve("fedgate", 1, losses=(2.0, 1e30, math.nan), status="diverged"),
        curve("fedcom", 0, losses=(2.0, 0.0, -1.0), accuracies=(0.0, 0.0, 0.0), status="interrupted"),
    ]
    many = [
        curve(f"method {i} $ of many, with a long label", losses=(2.0, 1.0, 0.5 + i / 1e3)) for i in range(12)
    ]
    assert len(figures([*odd, *many], tmp_path / "a")) == 3
    assert len(figures(odd[1:2], tmp_path / "b")) == 3
    assert len(figures([Curve("fedavg", 0, CURVES[0].rows[:1], "done")], tmp_path / "c")) == 3


def test_a_run_on_its_way_to_infinity_ends_just_above_the_others() -> None:
    sound = curve("fedavg", losses=(2.0, 1.0, 0.5))
    wild = curve("fedcom", losses=(2.0, 50.0, 1e9), status="diverged")
    mild = curve("fedgate", losses=(2.0, 3.0, 4.0), status="diverged")
    heights = [s.points[:, 1].tolist() for s in _strokes([sound, wild, mild], "round", "train_loss")]
    assert heights == [[2.0, 1.0, 0.5], [2.0, 6.0], [2.0, 3.0, 4.0]]


def test_seeds_are_averaged_and_those_cut_short_are_drawn_apart() -> None:
    runs = [curve("fedavg", 0, losses=(2.0, 1.0, 0.5)), curve("fedavg", 1, losses=(2.0, 3.0, 1.5))]
    early = Curve("fedavg", 2, runs[1].rows[:2], "done")  # reached its target, say: keeps its loss of 3
    cut = curve("fedavg", 3, losses=(2.0, 1.0, math.nan), status="diverged")
    mean, other = _strokes([*runs, early, cut], "round", "train_loss")
    expected = [[0, 2, 2, 2], [10, 7 / 3, 1, 3], [20, 5 / 3, 0.5, 3]]
    np.testing.assert_allclose(mean.points, expected)
    assert (other.status, other.points[:, :2].tolist()) == ("diverged", [[0, 2], [10, 1]])


def test_bytes_start_at_the_first_non_zero_point_only_on_a_logarithmic_axis() -> None:
    near, far = [curve("fedavg", up=1e6)], [curve("fedavg", up=1e6), curve("scaffold", up=8e6)]
    assert [s.points[0, 0] for s in _strokes(near, "uplink_bytes", "train_loss")] == [0]
    assert [s.points[0, 0] for s in _strokes(far, "uplink_bytes", "train_loss")] == [10, 80]


def test_colours_do_not_depend_on_the_company_a_method_keeps() -> None:
    alone, together = palette(["fedcomgate"]), palette(["scaffold", "FedCOMGATE", "fedcomgate"])
    assert alone["fedcomgate"] == together["fedcomgate"] == together["FedCOMGATE"] == COLOURS["fedcomgate"]
    labels = [f"mine {i}" for i in range(9)]
    assert len(set(palette(labels).values())) == 9
    assert palette(labels) == palette(reversed(labels))
    assert len(palette(f"mine {i}" for i in range(30))) == 30


def test_labels_are_moved_apart_in_order_and_stay_inside() -> None:
    heights = np.array([50.0, 52.0, 51.0, 99.0, 5.0])
    moved = _apart(heights, 10.0, 0.0, 100.0)
    assert np.diff(np.sort(moved)).min() > 9.9
    assert (np.argsort(moved) == np.argsort(heights)).all()
    assert moved.min() >= 0
    assert moved.max() <= 100
    assert moved[4] == 5
    assert moved[2] == pytest.approx(51, abs=0.1)
