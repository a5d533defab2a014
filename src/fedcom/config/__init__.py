"""TOML tables and `section.key=value` overrides to frozen dataclasses, and back."""

from fedcom.config.config import Config
from fedcom.config.sections import DataConfig, RunConfig
from fedcom.config.tables import Table, check_sections, drop_void, dumps, override, read, renamed

__all__ = [
    "Config",
    "DataConfig",
    "RunConfig",
    "Table",
    "check_sections",
    "drop_void",
    "dumps",
    "override",
    "read",
    "renamed",
]
