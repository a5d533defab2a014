"""Packages that only some data sets need, imported when they are."""

import importlib
from typing import Any

from fedcom.errors import DataError


def optional(module: str, install: str) -> Any:
    """The module, or the error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"{module} cannot be imported ({error}); pip install {install}") from error
