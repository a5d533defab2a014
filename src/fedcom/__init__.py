"""Communication-efficient federated learning: the FedCOM family of methods, with exact byte counts.

__init__.pyi says which names there are and where they come from. Each is imported when it is first used, so
that `fedcom --help` does not wait for torch.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

from fedcom.version import VERSION as __version__

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: node.module
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
del _HOMES["VERSION"]
__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = found
        return found
    if (
        Path(__file__).parent / name / "__init__.py"
    ).is_file():  # fedcom.data, as if it were imported already
        return importlib.import_module(f"fedcom.{name}")
    raise AttributeError(f"module 'fedcom' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
