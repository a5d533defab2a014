"""Where the files of each data set come from, and the checksums they must have."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Source:
    """One folder of files: what it must hold, and where to download that.

    Args:
        folder: its name under the data root.
        files: each file and the checksum of its content (after gunzip), or None if none is published.
        archives: each file to download and its checksum as served, or None if none is published; a tar is
            unpacked into `files`. Checksums are sha256, or begin with 'md5:'.
        mirrors: base addresses, tried in order.
        packaged: the folder where the operating system's package puts the same files, if there is one.
    """

    folder: str
    files: dict[str, str | None]
    archives: dict[str, str | None] = field(default_factory=dict)
    mirrors: tuple[str, ...] = ()
    packaged: str | None = None

    def remedy(self) -> str:
        """What a person can do to get the files, for errors."""
        what, where = ", ".join(self.archives or self.files), " or ".join(self.mirrors)
        packed = any(archive not in self.files for archive in self.archives)
        return f"get {what} from {where}{' and unpack it' if packed else ''}"


def _read(table: dict[str, Any]) -> Source:
    """One table of sources.toml, in which a checksum that is not published is empty."""
    sums = {
        key: {name: checksum or None for name, checksum in table.get(key, {}).items()}
        for key in ("files", "archives")
    }
    return Source(**{**table, **sums, "mirrors": tuple(table["mirrors"])})


_TABLES = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))
# Every layout of a data set's files; the first one with archives is the one that is downloaded.
SOURCES = {name: tuple(map(_read, layouts)) for name, layouts in _TABLES.items()}
