"""Take the picture of the report in the README, with Chromium: make_screenshot.py runs/demo/report.html."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FIGURES = Path(__file__).parent / "figures"
NAMES = ("chromium", "chromium-browser", "google-chrome")
SIZE = (1180, 1735)


def take(page: Path) -> None:
    """Photograph the top of a page; a palette makes the file three times smaller."""
    from PIL import Image

    program = next(path for name in NAMES if (path := shutil.which(name)))
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += [f"--user-data-dir={folder}", f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={shot}"]
        command = [program, *flags, "--force-device-scale-factor=1.5", page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        Image.open(shot).convert("RGB").quantize(256).save(FIGURES / "report.png", optimize=True)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
