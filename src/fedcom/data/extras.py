"""Packages that only some data sets need, imported when they are needed."""

import importlib
from typing import Any

from fedcom.errors import DataError


def optional(module: str, install: str) -> Any:
    """Import a module, or raise a DataError that says how to install it.

    Args:
        install: what `pip install` is to be given.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"{module} cannot be imported ({error}); pip install {install}") from error
