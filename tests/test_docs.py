"""The docs are true: examples run, the command-line reference is what --help prints, links work."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fedcom.reports.comparison import write_csv

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = ["README.md", "docs/library.md", "docs/new-algorithm.md", "docs/new-codec.md", "docs/data.md"]
LIMITS = {"docs/new-algorithm.md": 30, "docs/new-codec.md": 40}
USE = {
    "docs/new-algorithm.md": "algorithm.name=fedprox algorithm.mu=0.1",
    "docs/new-codec.md": "uplink.name=my-sign",
    "docs/data.md": "data.name=blobs",
}


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", EXAMPLES)
def test_examples_run_as_printed(page: str, tmp_path: Path) -> None:
    program = "\n".join(blocks(page))
    if page in USE:  # what the page adds can be used from a config
        program += f"""
from fedcom.config import Config, read
from fedcom.runs.prepare import prepare
table = read(None, {USE[page].split()!r} + ["run.rounds=2", "model.hidden=8"])
*_, row = prepare(Config.of(table), "cpu")[0].run()
assert row["round"] == 2
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, cwd=tmp_path)


@pytest.mark.parametrize(("page", "limit"), LIMITS.items())
def test_examples_are_as_short_as_promised(page: str, limit: int) -> None:
    assert len(blocks(page)[0].splitlines()) < limit


def test_the_first_screen_of_the_readme_names_both_commands() -> None:
    first = (ROOT / "README.md").read_text().splitlines()[:20]
    assert any("make demo" in line for line in first)
    assert any("make test" in line for line in first)


def test_the_readme_shows_the_frontier_as_it_was_measured(tmp_path: Path) -> None:
    readme = runpy.run_path(str(ROOT / "docs" / "make_results.py"))["readme"]
    line = {"panel": "mnist", "point": "scaffold", "accuracy": "97.054", "spread": "0.031", "up_MB": "159.37"}
    line |= {"up_times_fewer": "1", "total_MB": "319.5", "total_times_fewer": ""}
    write_csv([line, {**line, "panel": "mnist-1-class", "accuracy": "1"}], tmp_path / "table.csv")
    (tmp_path / "verdicts.json").write_text('[{"setting": "two clients"}]')
    text = (ROOT / "README.md").read_text()
    made = readme(text, tmp_path)
    assert "Here: two clients." in made
    assert "| SCAFFOLD | 97.05 ± 0.03 | 159 | 1.00 | 320 | — |\n<!-- end -->" in made
    assert made.startswith(text.split("<!-- frontier")[0])
    assert made.endswith(text.split("<!-- end -->")[1])
    if (ROOT / "docs" / "results" / "frontier-mnist" / "table.csv").is_file():
        assert readme(text, ROOT / "docs" / "results" / "frontier-mnist") == text


def test_the_command_line_reference_is_what_help_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    out = subprocess.run(
        [sys.executable, "-c", "import make_cli_reference as m; print(m.reference(), end='')"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT / "docs",
    ).stdout
    assert out == (ROOT / "docs" / "cli.md").read_text(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_work(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
