"""What commands share: settings as they are typed, the folder of results, how to go on, tables."""

import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedcom.cli import crash
from fedcom.errors import OutOfMemory, RankLost, Stopped, StorageError
from fedcom.runs.folder import given_or_fresh

if TYPE_CHECKING:  # all that needs torch is imported by the commands: help and completion do not wait for it
    from rich.console import RenderableType

    from fedcom.config import Table

_FOLDER = "folder"  # the word for the next attempt that names the folder of results


def settings_of(arguments: list[str] | None, trust: bool) -> "Table":
    """The settings of an optional config file, the first argument, with the overrides after it applied."""
    from fedcom.config import read

    return read(*path_and_overrides(arguments), trust)


def path_and_overrides(arguments: list[str] | None) -> tuple[str | None, list[str]]:
    """The config file among the arguments, if there is one, and the overrides."""
    arguments = list(arguments or [])
    path = arguments.pop(0) if arguments and not is_override(arguments[0]) else None
    return path, arguments


def is_override(argument: str) -> bool:
    """Whether an argument is section.key=value, and no config."""
    return re.match(r"[\w-]+(\.[\w-]+)*=", argument) is not None


def names_in(methods: str, labels: Collection[str] = ()) -> list[str]:
    """The names in a text, which has commas between them.

    Args:
        labels: names that may have commas in them.
    """
    words, found = methods.split(","), list[str]()
    while words:
        several = range(len(words), 1, -1)
        count = next((n for n in several if ",".join(words[:n]).strip() in labels), 1)
        found.append(",".join(words[:count]).strip())
        words = words[count:]
    return [name for name in found if name]


def methods_in(methods: str | None, table: "Table") -> list[str]:
    """The methods that are asked for; where none is, the config's own."""
    from fedcom.config.config import DEFAULT

    if methods is None:
        return [table.get("algorithm", {}).get("name", DEFAULT)]
    return names_in(methods, table.get("methods", {}))


def data_in(table: "Table") -> str:
    """The name of the data set that settings are about, for a folder."""
    from fedcom.config import Config
    from fedcom.runs.prepare import data_label

    return data_label(Config.of({key: table[key] for key in ("data", "model") if key in table}))


def earlier(out: Path | None) -> Path | None:
    """The folder of the same command before torchrun started it again; None if it did not."""
    from fedcom.engines.ranks.ranks import recall, restarted

    kept = recall(_FOLDER)
    found = out or (None if kept is None else Path(kept))
    return found if restarted() else None


def same_command(out: Path) -> str:
    """The command as it was given, with its folder."""
    words = ["fedcom", *(word for word in sys.argv[1:] if word != "--force")]  # which would begin anew
    return shlex.join(words if "--out" in words else [*words, "--out", str(out)])


@contextmanager
def results_folder(
    out: Path | None, name: str, again: Callable[[Path], str] = same_command
) -> Iterator[Path]:
    """The folder that is given, that torchrun's first attempt made, or a fresh one.

    Args:
        again: the command that goes on in the folder, if this one is stopped.
    """
    from fedcom.engines.ranks.ranks import remember

    with given_or_fresh(out or earlier(out), name) as folder:
        remember(_FOLDER, str(folder))
        crash.results_go_to(folder)
        with with_how_to_go_on(again(folder)):
            yield folder


@contextmanager
def with_how_to_go_on(again: str) -> Iterator[None]:
    """Say how to go on with a command that was stopped, or that the machine could not carry on."""
    try:
        yield
    except Stopped as stopped:
        stopped.remedy = f"; go on with: {again}"
        raise
    except (StorageError, OutOfMemory, RankLost) as error:
        raise type(error)(f"{error}; then go on with: {again}") from error


def suggest(command: str) -> None:
    """On a terminal, name the command that comes next."""
    if sys.stdout.isatty():
        print(f"next: {command}")


def show(*what: "RenderableType") -> None:
    """Print tables on standard output; 160 characters wide if it is not a terminal, so that they fit."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 160).print(*what)
