"""Figures, checked by their pixels and by the lines they are drawn from."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcom.algorithms import ALGORITHMS
from fedcom.reports.figures import blank, figures, frame, spaced, strokes_of
from fedcom.reports.looks import APART, COLOURS, SPARE, apart, distance, looks, palette
from fedcom.runs.curve import Curve


def curve(
    method: str,
    seed: int = 0,
    accuracies: Sequence[float | None] = (0.1, 0.6, 0.8),
    up: float = 1e6,
    losses: Sequence[float] = (2.0, 1.0, 0.5),
    status: str = "done",
) -> Curve:
    """A run evaluated every ten rounds that sends `up` bytes per round and client."""
    rows = [
        {"round": 10 * i, "train_loss": loss, "test_accuracy": accuracy, "uplink_bytes": 10 * i * up}
        for i, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
    ]
    return Curve(method, seed, rows, status)


CURVES = [
    curve("fedcomgate", 0, (0.1, 0.6, 0.8), losses=(2.0, 1.0, 0.5)),
    curve("fedcomgate", 1, (0.1, 0.5, 0.6), losses=(2.0, 1.0, 0.7)),
    curve("fedavg", 0, (0.1, 0.2, 0.6), up=4e6),
    curve("fedavg", 1, (0.1, 0.2, math.nan), up=4e6, losses=(2.0, 9.0, math.nan), status="diverged"),
    curve("scaffold", 0, (0.1, 0.2, 0.5), up=8e6),
]


def rgb(colour: str) -> np.ndarray[Any, Any]:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def has(image: np.ndarray[Any, Any], colour: str) -> bool:
    return bool((np.abs(image[..., :3] - rgb(colour)).max(-1) < 0.01).sum() > 50)


def test_figures_are_png_with_one_colour_per_method(tmp_path: Path) -> None:
    from matplotlib.image import imread

    paths = figures(CURVES, tmp_path / "new" / "folder", "made-up data, price $5 to $6")
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


def test_a_diverging_run_is_cut_off_just_above_the_others() -> None:
    sound = curve("fedavg", losses=(2.0, 1.0, 0.5))
    wild = curve("fedcom", losses=(2.0, 50.0, 1e9), status="diverged")
    mild = curve("fedgate", losses=(2.0, 3.0, 4.0), status="diverged")
    heights = [s.points[:, 1].tolist() for s in strokes_of([sound, wild, mild], "round", "train_loss")]
    assert heights == [[2.0, 1.0, 0.5], [2.0, 6.0], [2.0, 3.0, 4.0]]


def test_seeds_are_averaged_and_runs_cut_short_are_drawn_separately() -> None:
    runs = [curve("fedavg", 0, losses=(2.0, 1.0, 0.5)), curve("fedavg", 1, losses=(2.0, 3.0, 1.5))]
    early = Curve("fedavg", 2, runs[1].rows[:2], "done")  # as if it reached its target: keeps its loss of 3
    cut = curve("fedavg", 3, losses=(2.0, 1.0, math.nan), status="diverged")
    mean, other = strokes_of([*runs, early, cut], "round", "train_loss")
    expected = [[0, 2, 2, 2], [10, 7 / 3, 1, 3], [20, 5 / 3, 0.5, 3]]
    np.testing.assert_allclose(mean.points, expected)
    assert (other.status, other.points[:, :2].tolist()) == ("diverged", [[0, 2], [10, 1]])


def test_bytes_start_at_the_first_non_zero_point_only_on_a_logarithmic_axis() -> None:
    near, far = [curve("fedavg", up=1e6)], [curve("fedavg", up=1e6), curve("scaffold", up=8e6)]
    assert [s.points[0, 0] for s in strokes_of(near, "uplink_bytes", "train_loss")] == [0]
    assert [s.points[0, 0] for s in strokes_of(far, "uplink_bytes", "train_loss")] == [10, 80]


def test_every_method_has_its_own_colour() -> None:
    assert set(COLOURS) == set(ALGORITHMS)
    colours = [rgb(colour) for colour in COLOURS.values()]
    assert min(np.abs(a - b).sum() for i, a in enumerate(colours) for b in colours[:i]) > 0.3
    assert not set(COLOURS.values()) & set(SPARE)
    assert all(colour.max() < 0.95 and colour.min() < 0.5 for colour in colours)  # none is too pale


def test_a_methods_colour_does_not_depend_on_the_other_methods() -> None:
    alone, together = palette(["fedcomgate"]), palette(["scaffold", "FedCOMGATE", "fedcomgate"])
    assert alone["fedcomgate"] == together["fedcomgate"] == together["FedCOMGATE"] == COLOURS["fedcomgate"]
    labels = [f"mine {i}" for i in range(9)]
    assert len(set(palette(labels).values())) == 9
    assert palette(labels) == palette(reversed(labels))
    assert len(palette(f"mine {i}" for i in range(30))) == 30


def test_titles_of_any_length_end_within_their_part() -> None:
    sheet = blank(8, 3)
    for part in sheet.subfigures(1, 2):
        frame(part, "SCAFFOLD, FedGATE and FedCOMGATE lead at 10 %" * 2, "and so on, " * 12)
        assert all(text.get_window_extent().x1 <= part.bbox.x1 for text in part.texts)


def test_a_label_of_a_method_has_its_dashes_and_marker() -> None:
    found = looks({"fedcomgate": "fedcomgate", "fedcomgate 2-bit": "fedcomgate", "scaffold": "scaffold"})
    assert found["fedcomgate 2-bit"][1:] == found["fedcomgate"][1:] != found["scaffold"][1:]


def test_looks_of_any_fifteen_labels_can_be_told_apart_by_any_eye() -> None:
    methods = list(COLOURS)
    for start in range(len(methods)):
        names = [*(methods[start:] + methods[:start])[:9], *["fedcomgate"] * 4, "mine", "yours"]
        found = looks({f"{name} {i}" if i > 8 else name: name for i, name in enumerate(names)})
        assert len(found) == 15
        for one, other in itertools.combinations(found.values(), 2):
            assert one[1:] != other[1:] or distance(one.colour, other.colour) >= APART
        assert all(found[name].colour == COLOURS[name] for name in names[:9])
    assert [look[1:] for look in looks({"fedavg": "fedavg"}).values()] == [((), "circle")]


def test_a_colour_is_no_distance_from_itself_and_black_is_far_from_white() -> None:
    assert apart("#123456", "#123456") == 0
    assert apart("#000000", "#ffffff") == pytest.approx(100, abs=0.5)  # of lightness, to every eye
    assert apart("#d40000", "#6a6a00") < 30 < np.linalg.norm(rgb("#d40000") - rgb("#6a6a00")) * 100


def test_labels_are_moved_apart_in_order_and_stay_inside() -> None:
    heights = np.array([50.0, 52.0, 51.0, 99.0, 5.0])
    moved = spaced(heights, 10.0, 0.0, 100.0)
    assert np.diff(np.sort(moved)).min() > 9.9
    assert (np.argsort(moved) == np.argsort(heights)).all()
    assert moved.min() >= 0
    assert moved.max() <= 100
    assert moved[4] == 5
    assert moved[2] == pytest.approx(51, abs=0.1)
