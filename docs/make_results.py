"""Take what `fedcom reproduce` left into the docs: python docs/make_results.py runs/reproduce.

Without a folder, everything is drawn and judged anew from the points that the docs keep, without a run. With
--into runs/reproduce these points are written there, and `fedcom reproduce` runs only what is missing.
"""

import csv
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from fedcom.errors import ConfigError
from fedcom.formats import NOTHING, significant
from fedcom.reports.markdown import markdown_table
from fedcom.reproduce import STUDIES
from fedcom.reproduce.bounds.theory_runner import redraw_theory
from fedcom.reproduce.command import NAMES
from fedcom.reproduce.frontier import POINTS
from fedcom.reproduce.redraw import redraw, redraw_tables, take_up
from fedcom.reproduce.study import Study
from fedcom.reproduce.study_page import read_verdicts, verdicts_page

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs" / "results"
ROWS = {  # points of the frontier on MNIST that the README shows, and their names there
    "scaffold": "SCAFFOLD",
    "scaffold, momentum": "SCAFFOLD, momentum",
    "fedavg": "FedAvg",
    "fedcomgate": "FedCOMGATE, 8 bits (the paper)",
    "exact peaks 0.03, momentum": "FedCOMGATE-exact, 0.03 bit, momentum",
}
BOTH_WAYS = "fedcom peaks 0.03, down rotated 0.35"


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


def each_study(act: Callable[[Study, Path], object]) -> None:
    """Do something with every study whose points the docs keep; those that have changed since are named."""
    for name in NAMES:
        if name in STUDIES and (KEPT / name / "points.csv").is_file():
            try:
                act(STUDIES[name], KEPT / name)
            except ConfigError as error:
                print(f"{name} stays as it is: {error}", file=sys.stderr)


def take_up_all(runs: Path) -> None:
    """Write the points and rates that the docs keep to a folder of `fedcom reproduce`, where it has none."""

    def unless_there(study: Study, kept: Path) -> None:
        if not (runs / study.name / "results.jsonl").exists():
            take_up(study, kept, runs / study.name)

    each_study(unless_there)
    for file in (ROOT / "experiments" / "rates").glob("*.toml"):
        if not (path := runs / "rates" / file.stem / file.name).exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, path)


def redraw_all() -> None:
    """Draw and judge every study that the docs keep from its points."""
    each_study(redraw)
    redraw_tables(KEPT / "tables")
    redraw_theory(KEPT / "theory")


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
    if all((KEPT / f"frontier-{data}" / "table.csv").is_file() for data in POINTS):
        from make_headline import draw

        draw(KEPT, ROOT / "docs" / "figures")
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
    heads = ["method", "test accuracy %", "up MB per client", "times fewer"]
    table = markdown_table(heads, [_cells(name, found[name]) for name in ROWS if name in found], "lrrr")
    words = (
        'Every point runs at rates tuned for it, on held-out samples and other seeds. "0.03 bit" is the '
        "codec [peaks](docs/codecs.md) at 0.03 bit per number, and momentum is at the server; SCAFFOLD "
        "without it is as published. Grey points in the figure are other methods and codecs, which "
        "[a page of their own](docs/results/frontier-mnist/README.md) lists; a triangle lies below the "
        "range. In the lower part, a grey number is a difference within the spread over seeds."
    )
    part = rf"\g<1>{setting.replace('mnist', 'MNIST')}. {words}\n\n{table}\n{_both_ways(found)}"
    return re.sub(r"(<!-- frontier:.*?-->\n).*?(?=<!-- end -->)", part, text, flags=re.DOTALL)


def _both_ways(found: Mapping[str, Mapping[str, str]]) -> str:
    """What is saved if the way down counts too."""
    if BOTH_WAYS not in found:
        return ""
    line = found[BOTH_WAYS]
    fewer, score = significant(float(line["total_times_fewer"]), 3), _accuracy(line)
    return (
        f"\nUp and down together: FedCOM with 0.03 bit up and 0.35 bit down sends {fewer} times fewer bytes "
        f"than SCAFFOLD, at {score} %.\n"
    )


def _cells(name: str, line: Mapping[str, str]) -> list[str]:
    """The accuracy of a point, and its bytes up beside SCAFFOLD's."""
    up, fewer = (float(line[key]) if line[key] else None for key in ("up_MB", "up_times_fewer"))
    return [ROWS[name], _accuracy(line), significant(up, 3), NOTHING if fewer is None else f"{fewer:,.0f}"]


def _accuracy(line: Mapping[str, str]) -> str:
    """A point's accuracy and its spread; or the word for a run without one."""
    known = bool(line["spread"])
    return f"{float(line['accuracy']):.2f} ± {float(line['spread']):.2f}" if known else line["accuracy"]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--into", runs]:
            take_up_all(Path(runs))
        case [runs]:
            keep(Path(runs))
            publish()
        case _:
            redraw_all()
            publish()
