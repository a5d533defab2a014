"""TOML tables and `section.key=value` overrides to frozen dataclasses, and back."""

from fedcom.config.config import Config, RunSettings, method_sections
from fedcom.config.sections import DataConfig, RunConfig
from fedcom.config.tables import Table, check_sections, drop_void, dumps, override, read, typed
from fedcom.config.trust import code_named, outside

__all__ = [
    "Config",
    "DataConfig",
    "RunConfig",
    "RunSettings",
    "Table",
    "check_sections",
    "code_named",
    "drop_void",
    "dumps",
    "method_sections",
    "outside",
    "override",
    "read",
    "typed",
]
