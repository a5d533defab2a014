"""Importing what may be missing: code that a user names, packages that few need. Errors are one line."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedcom.errors import ConfigError, DataError, FedcomError


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
