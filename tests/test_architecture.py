"""The architecture: imports go down only, and the core needs only torch and numpy."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import fedcom
from fedcom.algorithms import ALGORITHMS

SRC = Path(fedcom.__file__).parent
FLOORS = [  # from the ground up; a room imports from floors below its own
    {"errors", "formats", "redaction", "version"},
    {"settings", "draws", "imports"},
    {"vectors", "registry"},
    {"plain"},
    {"algorithms", "codecs", "data", "saving"},
    {"tasks", "traffic", "outer"},
    {"rounds"},
    {"theory"},
    {"engines"},
    {"config"},
    {"runs"},
    {"reports", "deployment"},
    {"studies"},
    {"reproduce"},
    {"cli"},
]
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
ENTRANCES = {"__init__", "__main__"}
MODULES = sorted(SRC.rglob("*.py"))
NAMES = {".".join(("fedcom", *path.relative_to(SRC).with_suffix("").parts)): path for path in MODULES}
BENCHMARKS = sorted((SRC.parents[1] / "benchmarks").glob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room(path: Path) -> str:
    return path.relative_to(SRC).with_suffix("").parts[0]


def imports(code: ast.AST) -> set[str]:
    names = {alias.name for node in ast.walk(code) if isinstance(node, ast.Import) for alias in node.names}
    froms = (node for node in ast.walk(code) if isinstance(node, ast.ImportFrom))
    for node in froms:
        assert node.level == 0, "imports are absolute"
        names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def modules(path: Path) -> set[Path]:
    """The modules of fedcom that a module imports anywhere, also inside functions and for types."""
    found = set()
    for name in imports(tree(path)):
        parts = name.split(".")
        for end in (len(parts), len(parts) - 1):  # a module, or something in one
            for candidate in (".".join(parts[:end]), ".".join((*parts[:end], "__init__"))):
                if candidate in NAMES:
                    found.add(NAMES[candidate])
                    break
            else:
                continue
            break
    return found - {path}


def test_every_room_has_a_floor() -> None:
    assert {room(path) for path in MODULES} == set(FLOOR) | ENTRANCES


def test_few_modules_lie_at_the_root() -> None:
    assert len([path for path in SRC.glob("*.py") if path.stem not in ENTRANCES]) <= 10


def test_imports_go_down_only() -> None:
    def below(there: str, here: str) -> bool:
        return there == here or FLOOR.get(there, len(FLOORS)) < FLOOR[here]

    wrong = [
        f"{path.relative_to(SRC)} imports {other.relative_to(SRC)}"
        for path in MODULES
        if room(path) not in ENTRANCES
        for other in modules(path)
        if not below(room(other), room(path))
    ]
    assert wrong == []


def test_no_imports_are_circular() -> None:
    """Not within a room either, nor for types only; a package's __init__ only collects and is left out."""
    reach = {path: modules(path) for path in MODULES if path.name != "__init__.py"}
    done: set[Path] = set()

    def visit(path: Path, above: tuple[Path, ...]) -> None:
        assert path not in above, " -> ".join(str(p.relative_to(SRC)) for p in (*above, path))
        if path not in done:
            for other in reach.get(path, set()):
                visit(other, (*above, path))
            done.add(path)

    for path in reach:
        visit(path, ())


def test_the_core_needs_only_torch_and_numpy() -> None:
    # modules in Triton and the apps for Flower are imported on use
    own = {"cli": {"typer", "rich"}, "triton_kernels.py": {"triton"}, "triton_draws.py": {"triton"}}
    own["triton_windows.py"] = {"triton"}
    own |= {"apps.py": {"flwr"}, "plug.py": {"flwr"}}
    wrong = []
    for path in MODULES:
        allowed = {"torch", "numpy", "fedcom"} | own.get(room(path), set()) | own.get(path.name, set())
        top = [node for node in tree(path).body if isinstance(node, ast.Import | ast.ImportFrom)]
        packages = {name.split(".")[0] for name in imports(ast.Module(top, []))}
        wrong += [(str(path), package) for package in packages - allowed - sys.stdlib_module_names]
    assert wrong == []


def test_no_code_compares_an_algorithms_name() -> None:
    wrong = []
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Compare):
                constants = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant)}
                if constants & set(ALGORITHMS):
                    wrong.append(f"{path}: {ast.unparse(node)}")
    assert wrong == []


PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_exit", "_version"}  # public in spite of their names
FOREIGN = {"torch", "nn", "part", "tensorboard"}  # whose private names are told at the place


def test_private_names_stay_in_their_module() -> None:
    wrong = [
        f"{path}: {ast.unparse(node)}"
        for path in [*MODULES, *BENCHMARKS]
        for node in foreign_and_private(tree(path))
    ]
    assert wrong == []


def foreign_and_private(code: ast.AST) -> Iterator[ast.AST]:
    """Where a module uses a private name that is not its own."""
    own = {node.attr for node in ast.walk(code) if isinstance(node, ast.Attribute) and _is_self(node.value)}
    own |= {n.name for n in ast.walk(code) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    own |= {n.id for n in ast.walk(code) if isinstance(n, ast.Name)}
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedcom"):
            if any(alias.name.startswith("_") for alias in node.names):
                yield node
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            root = ast.unparse(node.value).split(".")[0]
            if not (node.attr in own | PUBLIC or root in FOREIGN or _is_self(node.value)):
                yield node


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
