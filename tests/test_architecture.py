"""The shape of the house: imports go down only, the core needs torch and numpy alone, names stay home."""

import ast
from pathlib import Path

import pytest

import fedcom
from fedcom.algorithms import ALGORITHMS

SRC = Path(fedcom.__file__).parent
FLOORS = [
    {"errors", "formats"},
    {"settings"},
    {"draws", "ledger"},
    {"vectors", "pages", "network"},
    {"wire", "dense", "convolve"},
    {"algorithms", "codecs", "data"},
    {"links", "objective"},
    {"task", "models"},
    {"round", "clients", "similarity"},
    {"engines"},
    {"callbacks", "config", "report"},
    {"prepare", "display", "figures"},
    {"run", "card_vectors", "page"},
    {"compare", "card"},
    {"sweep", "sweep_report"},
    {"reproduce"},
    {"cli"},
]
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
ENTRANCES = {"__init__", "__main__"}
MODULES = sorted(SRC.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(SRC).with_suffix("").parts[0]


def imports(tree: ast.AST) -> set[str]:
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    froms = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    for node in froms:
        assert node.level == 0, "imports are absolute"
        names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_room_has_a_floor() -> None:
    assert {room(path) for path in MODULES} == set(FLOOR) | ENTRANCES


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_go_down_only(path: Path) -> None:
    here = room(path)
    if here in ENTRANCES:
        return
    for name in imports(ast.parse(path.read_text())):
        if name.startswith("fedcom."):
            there = name.split(".")[1]
            assert there == here or FLOOR.get(there, -1) < FLOOR[here], f"{here} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_the_core_needs_torch_and_numpy_alone(path: Path) -> None:
    import sys

    own = {"cli": {"typer", "rich"}, "triton_kernels.py": {"triton"}}  # the latter is imported on use
    allowed = {"torch", "numpy", "fedcom"} | own.get(room(path), set()) | own.get(path.name, set())
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    for name in imports(ast.Module(top, [])):
        package = name.split(".")[0]
        assert package in allowed or package in sys.stdlib_module_names, name


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_no_function_asks_for_an_algorithms_name(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            constants = {
                c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)
            }
            assert not constants & set(ALGORITHMS), ast.unparse(node)


def test_files_stay_short() -> None:
    limits = {path: 145 if room(path) == "algorithms" else 300 for path in MODULES}
    assert [p for p, limit in limits.items() if len(p.read_text().splitlines()) > limit] == []
