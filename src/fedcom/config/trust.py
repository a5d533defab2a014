"""Whether code that a config names may be imported: a config of somebody else's is not to be trusted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedcom.errors import ConfigError
from fedcom.registry import names_code

Named = tuple[str, str]  # the key, and the module:name it has


def refuse_code(path: Path, table: dict[str, Any], said: dict[str, Any]) -> None:
    """Raise ConfigError if a config outside the current folder names code.

    Args:
        table: the config with the user's overrides laid over it.
        said: the overrides alone; what they name is trusted.
    """
    typed = set(_named(said))
    foreign = next((named for named in _named(table) if named not in typed), None)
    if foreign is not None and outside(path):
        key, name = foreign
        raise ConfigError(
            f"{path} lies outside the current folder, and its {key} names code that would be imported "
            f"and run: {name}; read both first, unless they are your own, and then add --trust"
        )


def outside(path: Path) -> bool:
    """Whether a file lies outside the current folder; of a link, whether the file does that it leads to."""
    return not path.resolve().is_relative_to(Path.cwd().resolve())


def code_named(table: dict[str, Any]) -> bool:
    """Whether a config names code to import."""
    return next(_named(table), None) is not None


def _named(value: Any, key: str = "") -> Iterator[Named]:
    """All texts and keys in a table that name code, wherever they stand: also lists of a grid, and labels."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _named(name, key)
            yield from _named(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _named(inner, key)
    elif isinstance(value, str) and names_code(value):
        yield key, value
