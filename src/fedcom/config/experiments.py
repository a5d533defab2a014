"""Configs by name: those of experiments/, wherever fedcom is installed."""

from pathlib import Path

from fedcom.errors import ConfigError, nearest

# Where experiments/ may be: in the current folder, in the installed package, or in the repository.
PLACES = (Path("experiments"), *(Path(__file__).parents[up] / "experiments" for up in (1, 3)))


def config_path(text: str | Path) -> Path:
    """The config file that a path or the name of an experiment, such as mnist or fig4/mnist, stands for."""
    path = Path(text)
    if str(text) and path.exists():
        return path
    found = next((f for place in PLACES if (f := place / f"{text}.toml").is_file()), None)
    if found is None:
        named = "" if path.suffix else f"; or, by name, {nearest(text, names())}"
        raise ConfigError(f"no config file {text or repr('')}; overrides are section.key=value{named}")
    return found


def names() -> list[str]:
    """The experiments that can be named."""
    files = (
        (place, path) for place in PLACES for path in place.rglob("*.toml") if path.parent.name != "rates"
    )
    return sorted({path.relative_to(place).with_suffix("").as_posix() for place, path in files})
