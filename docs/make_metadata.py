"""What hatchling asks when it builds a package: the README for a package index, and where the project is.

On an index a README's links must be absolute. They are made so if the repository's address is known, from
FEDCOM_URL or from git's remote `origin`.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class CustomMetadataHook(MetadataHookInterface):
    """Fills in `readme` and `urls` of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called with the table [project], which it completes."""
        root, url = Path(self.root), repository(Path(self.root))
        text = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, url) if url else text}
        metadata["urls"] = addresses(url) if url else {}


def repository(root: Path) -> str | None:
    """The web address of the repository, if it is known."""
    found = os.environ.get("FEDCOM_URL") or _origin(root)
    web = re.fullmatch(r"(?:https://|ssh://)?(?:git@)?([\w.-]+)[:/](.+?)(?:\.git)?/?", found or "")
    return f"https://{web[1]}/{web[2]}" if web else None


def _origin(root: Path) -> str | None:
    if not (root / ".git").exists():  # a source distribution, which may lie inside another repository
        return None
    command = ["git", "-C", str(root), "remote", "get-url", "origin"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def absolute(text: str, url: str) -> str:
    """A README whose images and links work anywhere."""
    text = re.sub(r"!\[([^\]]*)\]\((?!https?://)([^)\s]+)\)", rf"![\1]({url}/raw/main/\2)", text)
    text = re.sub(r'(src|srcset)="(?!https?://)([^"]+)"', rf'\1="{url}/raw/main/\2"', text)
    return re.sub(r"\]\((?!https?://|#)([^)\s]+)\)", rf"]({url}/blob/main/\1)", text)


def addresses(url: str) -> dict[str, str]:
    """The project's addresses, by name."""
    return {
        "Repository": url,
        "Documentation": f"{url}/blob/main/docs/README.md",
        "Changelog": f"{url}/blob/main/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }
