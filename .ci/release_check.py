"""A release's dry run: build, check, install the wheel into a fresh environment, and use it there.

    python .ci/release_check.py [--tag v0.2.0] [--borrow]

--borrow: dependencies are those of this environment instead of fresh ones, where there is no package index.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tag", help="the tag of the release, which must be the version")
    parser.add_argument("--borrow", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="a folder for sdist and wheel")
    options = parser.parse_args()
    version = re.search(r'VERSION = "(.+)"', (ROOT / "src/fedcom/version.py").read_text())[1]
    if options.tag not in (None, f"v{version}"):
        sys.exit(f"the tag is {options.tag}, the version {version}; they must agree")
    if not re.search(rf"^## {re.escape(version)} \(\d", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        sys.exit(f"CHANGELOG.md has no dated section for {version}")
    wheel = build(options.out, version)
    with tempfile.TemporaryDirectory() as folder:
        use(install(wheel, Path(folder) / "venv", options.borrow), Path(folder), version)
    print(f"fedcom {version} can be released: {options.out}")


def build(out: Path, version: str) -> Path:
    """Both distributions, with metadata that an index takes; the wheel."""
    out.mkdir(exist_ok=True)
    for old in out.glob("fedcom-*"):
        old.unlink()
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)])
    wheel, source = out / f"fedcom-{version}-py3-none-any.whl", out / f"fedcom-{version}.tar.gz"
    with zipfile.ZipFile(wheel) as archive:
        texts = [archive.read(f"fedcom-{version}.dist-info/METADATA")]
    with tarfile.open(source) as archive:
        texts.append(archive.extractfile(f"fedcom-{version}/PKG-INFO").read())  # type: ignore[union-attr]
    for text in texts:
        found = Metadata.from_email(text, validate=True)
        assert (found.name, str(found.version)) == ("fedcom", version)
        assert found.description
        assert found.license_expression == "Apache-2.0"
    return wheel


def install(wheel: Path, folder: Path, borrow: bool) -> Path:
    """The programs of a fresh environment that has the wheel."""
    venv.create(folder, with_pip=not borrow, symlinks=True)
    if borrow:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(folder / "bin" / "python"),
            "install",
            "--no-deps",
        ]
        run([*pip, "--quiet", str(wheel)])
        (site,) = folder.glob("lib/python*/site-packages")
        here = [path for path in sys.path if path.endswith("-packages")]
        (site / "borrowed.pth").write_text("".join(f"{path}\n" for path in here))
    else:
        run(
            [
                str(folder / "bin" / "pip"),
                "install",
                "--quiet",
                "--constraint",
                str(ROOT / "constraints.txt"),
                str(wheel),
            ]
        )
    return folder / "bin"


def use(programs: Path, folder: Path, version: str) -> None:
    """A comparison and its report, outside the repository."""
    fedcom = str(programs / "fedcom")
    assert run([fedcom, "--version"], folder) == f"fedcom {version}\n"
    where = run([str(programs / "python"), "-c", "import fedcom; print(fedcom.__file__)"], folder)
    assert Path(where.strip()).is_relative_to(programs.parent), where
    short = ["model.hidden=8", "run.rounds=3", "--device", "cpu", "--quiet"]
    table = run(
        [fedcom, "compare", "digits", *short, "--methods", "fedavg,fedcomgate", "--out", "runs"], folder
    )
    assert "fedcomgate" in table
    run([fedcom, "report", "runs", "--out", "page.html"], folder)
    assert "fedcomgate" in (folder / "page.html").read_text(encoding="utf-8")


def run(command: list[str], folder: Path = ROOT) -> str:
    """What a command prints; it must succeed. Nothing of Python's environment is handed on."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
