"""Importing what may be missing: code that a user names, packages that few need. Errors are one line."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedcom.errors import ConfigError, DataError, FedcomError

_OURS, _THEIRS, _LIBRARY = "fedcom's", "the user's", "a library's"  # whose a line of code can be
_FEDCOM, _STANDARD = Path(__file__).parent, Path(os.__file__).parent
PART_PACKAGES: set[str] = set()  # packages that offer a method, a codec or another part that was asked for


class Place(NamedTuple):
    """A line of code."""

    file: str
    line: int
    function: str
    called_fedcom: bool  # whether the error came from fedcom's code, which that line called


def import_module(name: str) -> Any:
    """A module, or the error that says why it cannot be imported."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise ConfigError(
                f"there is no module {missing}, neither in the current folder nor installed; check the name"
            ) from None
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"importing {name} raises {told}{_place(error)}; mend it there") from None


def optional(module: str, install: str, error: type[FedcomError] = DataError) -> Any:
    """Import a module of a package that only some need, or raise an error that says how to install it.

    Args:
        install: what `pip install` is to be given.
        error: the kind of error.
    """
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise error(f"{module} cannot be imported ({missing}); pip install {install}") from missing


def place_in_own_code(error: BaseException) -> Place | None:
    """The innermost line of an error's traceback that is in code which fedcom called and does not own.

    That is a user's code, or that of a package which offers a part of a run; never a library's. None if
    there is no such line.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    owners = [_owner(frame.f_code.co_filename, frame.f_globals.get("__name__", "")) for frame, _ in frames]
    first = owners.index(_OURS) if _OURS in owners else len(owners)
    for i in range(len(owners) - 1, first, -1):
        if owners[i] == _THEIRS:
            frame, line = frames[i]
            called = _OURS in owners[i:]
            return Place(_short(frame.f_code.co_filename), line, frame.f_code.co_name, called)
    return None


def in_brackets(place: Place | None) -> str:
    """A place as the end of a sentence; empty if there is none."""
    return f" ({place.file}, line {place.line}, in {place.function})" if place else ""


def _owner(file: str, module: str) -> str:
    """Whose a line of code is."""
    path, package = Path(file), module.partition(".")[0]
    if path.is_relative_to(_FEDCOM):
        return _OURS
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return _THEIRS if package in PART_PACKAGES - {"torch"} else _LIBRARY
    return _LIBRARY if file.startswith("<") or path.is_relative_to(_STANDARD) else _THEIRS


def _short(file: str) -> str:
    """A file's path, from the current folder if it is in there."""
    path, here = Path(file).absolute(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _place(error: BaseException) -> str:
    """The line that raised an error, in the code being imported."""
    ours = (__file__, importlib.__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in ours]
    frames = [frame for frame in frames if not frame.filename.startswith("<")]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


@contextmanager
def current_folder() -> Iterator[None]:
    """Let imports find the modules of the current folder; sys.path is put back afterwards."""
    importlib.invalidate_caches()  # a file may be newer than the last look into its folder
    here = os.getcwd()
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)
