"""Take what `fedcom reproduce` left into the docs: python docs/make_results.py runs/reproduce.

Without a folder, everything is drawn and judged anew from the points that the docs keep, without a run.
"""

import csv
import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from fedcom.errors import ConfigError
from fedcom.formats import NOTHING, significant
from fedcom.reports.markdown import markdown_table
from fedcom.reproduce import STUDIES
from fedcom.reproduce.command import NAMES
from fedcom.reproduce.redraw import redraw, redraw_tables
from fedcom.reproduce.study_page import read_verdicts, verdicts_page

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs" / "results"
ROWS = {  # points of the frontier on MNIST that the README shows, and their names there
    "scaffold": "SCAFFOLD as published",
    "scaffold, momentum": "SCAFFOLD, momentum at the server",
    "fedavg": "FedAvg",
    "fedavg, momentum": "FedAvg, momentum at the server",
    "fedpaq": "FedPAQ, 8 bits",
    "fedcomgate": "FedCOMGATE, 8 bits: the paper's codec, damped",
    "scallion rotated ¼": "SCALLION, ¼ bit (rotated)",
    "exact rotated ¼, momentum": "exact tracking, ¼ bit (rotated), momentum",
    "exact peaks 0.03": "exact tracking, 0.03 bit (peaks)",
    "exact peaks 0.03, momentum": "the same, momentum",
    "fedcom peaks 0.03, momentum": "FedCOM, 0.03 bit (peaks), momentum",
    "fedcom peaks 0.03, down rotated 0.35": "FedCOM, 0.03 bit up (peaks), 0.35 down (rotated)",
}


def keep(runs: Path) -> None:
    """Copy every study's page, images, points and verdicts, and the tuned rates, into the docs."""
    for name in NAMES:
        if (runs / name / "verdicts.json").is_file():
            (KEPT / name).mkdir(parents=True, exist_ok=True)
            for file in (runs / name).iterdir():
                if file.name not in ("results.jsonl", "trials.json"):
                    shutil.copy(file, KEPT / name / file.name)
    for file in (runs / "rates").glob("*/*.toml"):
        shutil.copy(file, ROOT / "experiments" / "rates" / file.name)


def redraw_all() -> None:
    """Draw and judge every study that the docs keep from its points."""
    for name in NAMES:
        if name in STUDIES and (KEPT / name / "points.csv").is_file():
            try:
                redraw(STUDIES[name], KEPT / name)
            except ConfigError as error:
                print(f"{name} stays as it is: {error}", file=sys.stderr)
    redraw_tables(KEPT / "tables")


def publish() -> None:
    """Write the experiments' pages, the verdicts and the README's part from what the docs keep."""
    for name in NAMES:
        if (KEPT / name / "README.md").is_file():
            (ROOT / "experiments" / name).mkdir(exist_ok=True)
            text = (KEPT / name / "README.md").read_text(encoding="utf-8")
            linked = text.replace("](", f"](../../docs/results/{name}/")
            (ROOT / "experiments" / name / "README.md").write_text(linked, encoding="utf-8")
    path, study = ROOT / "README.md", KEPT / "frontier-mnist"
    if (study / "table.csv").is_file():
        path.write_text(readme(path.read_text(encoding="utf-8"), study), encoding="utf-8")
    page = verdicts_page(read_verdicts(KEPT, list(NAMES)))
    (ROOT / "experiments" / "VERDICTS.md").write_text(page, encoding="utf-8")


def readme(text: str, study: Path) -> str:
    """The README with its part on the frontier written anew.

    Args:
        study: the folder with the study's table.csv and verdicts.json.
    """
    with (study / "table.csv").open(encoding="utf-8", newline="") as lines:
        found = {line["point"]: line for line in csv.DictReader(lines) if line["panel"] == "mnist"}
    setting = json.loads((study / "verdicts.json").read_text(encoding="utf-8"))[0]["setting"]
    heads = ["method", "test accuracy %", "up MB", "times fewer", "up and down MB", "times fewer"]
    table = markdown_table(heads, [_cells(name, found[name]) for name in ROWS if name in found], "lrrrrr")
    words = (
        "Every point runs at rates of its own, chosen on held-out samples and other seeds; tracking is "
        'damped (`damping = "auto"`; the paper\'s rule is 1); times fewer are against SCAFFOLD as published:'
    )
    part = rf"\g<1>Here: {setting}. {words}\n\n{table}\n"
    return re.sub(r"(<!-- frontier:.*?-->\n).*?(?=<!-- end -->)", part, text, flags=re.DOTALL)


def _cells(name: str, line: Mapping[str, str]) -> list[str]:
    """The accuracy of a point, and its bytes up and in total beside SCAFFOLD's."""
    keys = ("up_MB", "up_times_fewer", "total_MB", "total_times_fewer")
    sent = [significant(float(line[key]), 3) if line[key] else NOTHING for key in keys]
    accuracy = (
        f"{float(line['accuracy']):.2f} ± {float(line['spread']):.2f}" if line["spread"] else line["accuracy"]
    )
    return [ROWS[name], accuracy, *sent]


if __name__ == "__main__":
    if sys.argv[1:]:
        keep(Path(sys.argv[1]))
    else:
        redraw_all()
    publish()
