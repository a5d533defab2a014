"""Unpack pfl-research and what it imports into a folder, for a machine without access to a registry.

    python -m benchmarks.fetch_peers carried [--python-version 3.12]

It is all pure Python, some 3 MB. Carry the folder to that machine, which needs torch and numpy, and use
`--peers carried` there. What pfl needs only for privacy accounting (scipy, for example) is left out, since no
benchmark uses it.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEELS = ("pfl==0.6.0", "packaging==25.0", "multiprocess==0.70.19", "dill==0.4.1")


def fetch(folder: Path, version: str) -> None:
    """Download the wheels for a version of Python and unpack them."""
    with tempfile.TemporaryDirectory() as wheels:
        only = ["--no-deps", "--only-binary=:all:", "--python-version", version]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", *only, "--dest", wheels, *WHEELS], check=True
        )
        for wheel in sorted(Path(wheels).glob("*.whl")):
            if not wheel.name.endswith("-none-any.whl"):
                sys.exit(f"{wheel.name} is not pure Python")
            zipfile.ZipFile(wheel).extractall(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{len(WHEELS)} wheels in {folder}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m benchmarks.fetch_peers", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python-version", default="3.12")
    chosen = parser.parse_args()
    fetch(chosen.folder, chosen.python_version)
