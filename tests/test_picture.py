"""The picture of the architecture: drawn from the imports, complete, with arrows that go down."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "docs" / "make_architecture.py"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_architecture", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_architecture"] = module  # where a dataclass looks for its annotations
    spec.loader.exec_module(module)
    return module


def arrows(picture: str) -> list[tuple[float, float]]:
    """The heights at which each arrow begins and ends."""
    found = []
    for path in ET.fromstring(picture).iter(f"{SVG}path"):
        if path.get("class") == "arrow":
            numbers = re.findall(r"[\d.]+", path.get("d") or "")
            found.append((float(numbers[1]), float(numbers[-1])))
    return found


def texts(picture: str, style: str) -> list[str]:
    return [
        text.text or "" for text in ET.fromstring(picture).iter(f"{SVG}text") if text.get("class") == style
    ]


def test_the_committed_picture_is_that_of_the_code(script: ModuleType) -> None:
    drawn = script.draw(script.rooms(), script.imports())
    assert drawn == (ROOT / "docs" / "figures" / "architecture.svg").read_text(), "run `make docs`"


def test_every_room_is_drawn_with_its_purpose_and_explained_on_the_page(script: ModuleType) -> None:
    rooms = script.rooms()
    picture = script.draw(rooms, script.imports())
    assert sorted(texts(picture, "name")) == [room.name for room in rooms]
    assert all(room.purpose for room in rooms)
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert [room.name for room in rooms if f"**{room.name}**" not in page] == []


def test_arrows_go_down(script: ModuleType) -> None:
    found = arrows(script.draw(script.rooms(), script.imports()))
    assert len(found) >= len([room for room in script.rooms() if room.is_folder])
    assert all(start < end for start, end in found)


GRAPH: dict[str, set[str]] = {
    "top": {"left", "right", "low"},
    "left": {"low"},
    "right": {"far"},
    "low": {"far"},
    "far": set(),
}


def test_implied_arrows_are_left_out_and_rooms_stand_above_what_they_need(script: ModuleType) -> None:
    less = script.without_implied(GRAPH)
    assert less == {**GRAPH, "top": {"left", "right"}}
    assert script.floors(less) == [["top"], ["left"], ["low", "right"], ["far"]]


def test_an_arrow_over_several_floors_has_a_lane_of_its_own(script: ModuleType) -> None:
    rooms = [script.Room(name, "What it is for.", (), True) for name in GRAPH]
    picture = script.draw([*rooms, script.Room("ground", "For all.", (), False)], GRAPH)
    found = arrows(picture)
    assert len(found) == 6  # five in the tower, one from far to the ground
    assert all(start < end for start, end in found)
    assert picture.count(f"H{script.WIDTH - script.MARGIN + script.LANE} ") == 1  # from top to right


def test_the_imports_of_a_made_up_package_by_hand(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "upper" / "inner").mkdir(parents=True)
    (tmp_path / "upper" / "__init__.py").write_text('"""Above."""\n')
    (tmp_path / "upper" / "inner" / "__init__.py").write_text(
        "from fedcom.upper import x\nimport fedcom.lower.a\n"
    )
    (tmp_path / "lower").mkdir()
    (tmp_path / "lower" / "__init__.py").write_text(
        '"""Below.\n\nMore."""\nfrom fedcom import ground\nimport os\n'
    )
    (tmp_path / "ground.py").write_text('"""The `ground`."""\n')
    (tmp_path / "__init__.py").write_text("from fedcom.upper import *\n")
    assert script.imports(tmp_path) == {"upper": {"lower"}, "lower": {"ground"}, "ground": set()}
    assert [(room.name, room.purpose, room.folders) for room in script.rooms(tmp_path)] == [
        ("ground", "The ground.", ()),
        ("lower", "Below.", ()),
        ("upper", "Above.", ("inner",)),
    ]
