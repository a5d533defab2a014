"""A new Flower app in a folder, from the files in template/; its task.py is for the user's model and data."""

import re
from pathlib import Path
from string import Template

from fedcom.errors import ConfigError
from fedcom.version import VERSION

FLWR = "1.41.0"  # the version of Flower that the app is written for
_FILES = ("pyproject.toml", "README.md", "LICENSE")
_PACKAGE = ("__init__.py", "app.py", "fedcom.toml", "task.py")


def new(folder: Path, clients: int = 4) -> list[Path]:
    """Write a new app into a folder that is empty or does not exist; returns the files.

    Args:
        clients: how many there will be.
    """
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not re.match(r"[a-z]", name):
        raise ConfigError(f"the app is named after its folder: begin it with a letter; got {folder.name!r}")
    if clients < 1:
        raise ConfigError(f"clients must be 1 or more; got {clients}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder; choose another")
    package = name.replace("-", "_")
    words = {"name": name, "package": package, "version": VERSION, "flwr": FLWR, "clients": clients}
    places = [*(folder / file for file in _FILES), *(folder / package / file for file in _PACKAGE)]
    try:
        (folder / package).mkdir(parents=True)
        for path in places:
            template = Path(__file__).with_name("template") / f"{path.name}.txt"
            text = Template(template.read_text(encoding="utf-8")).substitute(words)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}; choose another folder") from None
    return places
