"""What a release says of itself agrees: version, changelog, citation, classifiers, workflows, recipes."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedcom

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def text(path: str) -> str:
    return (ROOT / path).read_text()


def test_version_changelog_and_citation_agree() -> None:
    version = re.escape(fedcom.__version__)
    (date,) = re.findall(rf"^## {version} \((\d{{4}}-\d\d-\d\d)\)$", text("CHANGELOG.md"), re.MULTILINE)
    assert re.search(rf"^version: {version}$", text("CITATION.cff"), re.MULTILINE)
    assert f"date-released: {date}\n" in text("CITATION.cff")


def test_the_pythons_that_are_named_are_those_that_are_tested() -> None:
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"]
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert jobs["test"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_every_target_that_a_workflow_makes_is_there() -> None:
    yaml = pytest.importorskip("yaml")
    made = set[str]()
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            for step in job["steps"]:
                made |= set(re.findall(r"^make ([\w-]+)", step.get("run", ""), re.MULTILINE))
    assert made == {"coverage", "docs", "images", "pytest", "release-check"}
    assert made <= set(re.findall(r"^([\w-]+):.*##", text("Makefile"), re.MULTILINE))


def test_the_oldest_packages_and_the_recipe_are_those_of_the_project() -> None:
    oldest = dict(re.findall(r"^([\w-]+)==(.*)$", text("constraints-oldest.txt"), re.MULTILINE))
    recipe = dict(re.findall(r"^    - ([\w-]+) >=(.*)$", text("conda/meta.yaml"), re.MULTILINE))
    names = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    for one in PROJECT["dependencies"]:
        name, _, least = one.partition(">=")
        assert f"{oldest[name]}.".startswith(f"{least}."), name
        assert not oldest[name].removeprefix(least).strip(".0"), name
        assert recipe[names.get(name, name)] == least
    assert f"TORCH={oldest['torch']}" in text(".github/workflows/ci.yml")


def test_a_release_under_another_tag_is_refused() -> None:
    check = [sys.executable, str(ROOT / ".ci" / "release_check.py"), "--tag", "v9.9.9"]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        f"the tag is v9.9.9, the version {fedcom.__version__}; they must agree\n",
    )
