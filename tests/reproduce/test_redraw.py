"""Studies drawn and judged anew from their committed points, without a run; what the drawings must show."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedcom.errors import ConfigError
from fedcom.reports.figures import blank
from fedcom.reproduce import STUDIES
from fedcom.reproduce.drawing import CHART, PlotAxes, series
from fedcom.reproduce.panels import Scale
from fedcom.reproduce.redraw import redraw, redraw_tables, take_up
from fedcom.reproduce.results import FAILS, HOLDS
from fedcom.reproduce.runner import reproduce
from fedcom.reproduce.study_page import verdicts_page

KEPT = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize(
    "name",
    [
        *("fig1", "fig6", "tracking", "lora-smollm2"),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("fig3", "fig8", "fig9")),
    ],
)
def test_committed_points_give_the_committed_verdicts_and_page(name: str, tmp_path: Path) -> None:
    shutil.copytree(KEPT / name, tmp_path, dirs_exist_ok=True)
    for written in (*tmp_path.glob("*.png"), *tmp_path.glob("table.csv")):
        written.unlink()
    redraw(STUDIES[name], tmp_path)
    for file in {"verdicts.json", "README.md", "table.csv"} & {path.name for path in tmp_path.iterdir()}:
        assert (tmp_path / file).read_text() == (KEPT / name / file).read_text()
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in (KEPT / name).iterdir()}
    for path in tmp_path.glob("*.png"):
        with Image.open(path) as image:
            assert image.width >= 1200


def test_a_study_goes_on_from_the_points_that_the_docs_keep(tmp_path: Path) -> None:
    study, kept = STUDIES["language"], KEPT / "language"
    take_up(study, kept, tmp_path)
    verdicts = reproduce(study, Scale(seeds=3, only=("fedavg",)), tmp_path, device="cpu", quiet=True)
    assert [verdict.table() for verdict in verdicts] == json.loads((kept / "verdicts.json").read_text())
    for file in ("README.md", "table.csv"):  # nothing was run: the device is that of the points
        assert (tmp_path / file).read_text() == (kept / file).read_text()


@pytest.mark.thorough
def test_the_tables_too(tmp_path: Path) -> None:
    shutil.copytree(KEPT / "tables", tmp_path, dirs_exist_ok=True)
    redraw_tables(tmp_path)
    for file in ("verdicts.json", "README.md"):
        assert (tmp_path / file).read_text() == (KEPT / "tables" / file).read_text()


def test_points_that_lack_a_run_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    shutil.copytree(KEPT / "fig8", tmp_path, dirs_exist_ok=True)
    points = tmp_path / "points.csv"
    kept = [line for line in points.read_text().splitlines(keepends=True) if "no memory" not in line]
    points.write_text("".join(kept))
    (tmp_path / "fig8.png").unlink()
    with pytest.raises(ConfigError, match="no point of mnist · no memory"):
        redraw(STUDIES["fig8"], tmp_path)
    assert not (tmp_path / "fig8.png").exists()


def test_points_that_share_their_place_on_a_log_axis_are_drawn() -> None:
    points = {"first": [(0.1, 3.0, 0.2)], "second": [(0.1, 4.0, 0.0)]}
    part, axis = blank(*CHART, dpi=50).subfigures(), PlotAxes("x", "y", log=True, every=True)
    axes = series(part, points, "", "", axis)
    assert axes.get_xlim() == pytest.approx((0.01, 1.0))


def test_a_point_far_below_does_not_set_the_range_and_is_told_with_its_value() -> None:
    part = blank(*CHART, dpi=50).subfigures()
    points = {"near": [(1.0, 90.0, 1.0), (2.0, 92.0, 1.0)], "far": [(1.0, 30.0, 2.0), (2.0, 91.0, 1.0)]}
    axes = series(part, points, "", "", PlotAxes("x", "y", limits=(88.0, 94.0)))
    assert axes.get_ylim() == (88.0, 94.0)
    assert "30 ± 2" in [text.get_text() for text in axes.texts]
    marks = [line for line in axes.lines if line.get_marker() == "v"]
    assert [float(np.asarray(line.get_ydata())[0]) for line in marks] == [pytest.approx(88.18)]


def test_a_line_on_top_of_its_twin_is_dashed_so_that_both_are_seen() -> None:
    part = blank(*CHART, dpi=50).subfigures()
    same = [(1.0, 1.0, 0.0), (2.0, 2.0, 0.0)]
    axes = series(part, {"fedcomgate": same, "fedgate": same}, "", "", PlotAxes("x", "y"))
    dashed, whole = (line for line in axes.lines if line.get_linewidth() == 2)
    assert (dashed.get_linestyle(), whole.get_linestyle()) == ("--", "-")
    assert dashed.get_zorder() > whole.get_zorder()


def test_the_page_of_verdicts_begins_with_a_board() -> None:
    entry = {"claim": "A.", "numbers": "1.", "setting": "here"}
    good, bad = ({**entry, "outcome": outcome} for outcome in (HOLDS, FAILS))
    own = {"fig1": [good, bad], "fig2": [good]}
    page = verdicts_page(own)
    assert "| [fig1](#fig1) | ✅❌ | 1 |  | 1 |  |" in page
    assert "| all |  | 2 |  | 1 |  |" in page
    assert page.startswith("# Verdicts\n\n**3 claims: 2 hold, 0 hold in part, 1 do not hold here.**")
    assert page.index("| all |") < page.index("## fig1")
    committed = {path.parent.name: json.loads(path.read_text()) for path in KEPT.glob("*/verdicts.json")}
    board = (KEPT.parents[1] / "experiments" / "VERDICTS.md").read_text().split("\n## ")[0]
    assert board.count("✅") == 1 + sum(v["outcome"] == HOLDS for own in committed.values() for v in own)
