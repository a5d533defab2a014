"""Take what `fedcom reproduce` left into the docs: python docs/make_results.py runs/reproduce."""

import shutil
import sys
from pathlib import Path

from fedcom.reproduce.command import NAMES
from fedcom.reproduce.study_page import read_verdicts, verdicts_page

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs" / "results"


def publish(runs: Path) -> None:
    """Keep every study's page, images, points and verdicts; write experiments' pages from them."""
    for name in NAMES:
        if (runs / name / "verdicts.json").is_file():
            (KEPT / name).mkdir(parents=True, exist_ok=True)
            for file in (runs / name).iterdir():
                if file.name != "results.jsonl":
                    shutil.copy(file, KEPT / name / file.name)
            (ROOT / "experiments" / name).mkdir(exist_ok=True)
            text = (KEPT / name / "README.md").read_text(encoding="utf-8")
            linked = text.replace("](", f"](../../docs/results/{name}/")
            (ROOT / "experiments" / name / "README.md").write_text(linked, encoding="utf-8")
    page = verdicts_page(read_verdicts(KEPT, list(NAMES)))
    (ROOT / "experiments" / "VERDICTS.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    publish(Path(sys.argv[1]))
