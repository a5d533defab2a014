"""Code that a config names is imported only if the config lies in the current folder, or is trusted."""

from pathlib import Path

import pytest

from tests.cli.test_cli import Command, command
from tests.processes import finished

__all__ = ["command"]
MODULE = """
from pathlib import Path
from torch import nn
Path("imported").touch()
def net(classes: int):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""
QUICK = ("algorithm.tau=1", "algorithm.eta=0.1", "algorithm.gamma=1", "run.rounds=1", "--device", "cpu")


@pytest.fixture
def far(tmp_path: Path) -> Path:
    """A config that names code, outside the current folder, which is `here` and has the code."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.py").write_text(MODULE)
    path = tmp_path / "far.toml"
    path.write_text('[model]\nname = "mine:net"\n')
    return path


@pytest.mark.parametrize(
    ("words", "text", "key"),
    [
        ("run FILE", '[model]\nname = "mine:net"', "model.name"),
        ("run FILE --dry-run", '[data]\npartition = "mine:net"', "data.partition"),
        (
            "run FILE model.name=mlp",
            '[model]\nname = "mine:net"\n[downlink]\nname = "mine:net"',
            "downlink.name",
        ),
        ("run FILE algorithm.name=a", '[methods.a]\nname = "mine:net"', "methods.a.name"),
        ("compare FILE", '[methods."mine:net"]\neta = 1', "methods"),
        ("sweep FILE --dry-run", '[grid]\n"uplink.name" = ["int", "mine:net"]', "grid.uplink.name"),
        ("probe FILE", '[data]\nname = "mine:net"', "data.name"),
        ("tune FILE", '[uplink]\nname = "mine:net"', "uplink.name"),
        ("plan FILE --loss 1", '[algorithm]\nname = "mine:net"', "algorithm.name"),
        ("evaluate FOLDER", '[model]\nname = "mine:net"', "model.name"),
        ("run --resume FOLDER", '[model]\nname = "mine:net"', "model.name"),
    ],
)
def test_code_of_a_config_from_elsewhere_is_refused(
    words: str, text: str, key: str, far: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(far.parent / "here")
    path = far.rename(far.with_name("config.toml"))
    path.write_text(text)
    code, out, err = command(*words.replace("FILE", str(path)).replace("FOLDER", str(path.parent)).split())
    assert (code, out) == (2, "")
    assert err == (
        f"fedcom: {path} lies outside the current folder, and its {key} names code that would be imported "
        "and run: mine:net; read both first, unless they are your own, and then add --trust\n"
    )
    assert not Path("imported").exists()


def test_a_link_to_a_config_lies_where_it_leads(far: Path) -> None:
    here = far.parent / "here"
    (here / "near.toml").symlink_to(far)
    assert finished(here, "run", "near.toml", "--dry-run").code == 2
    assert not (here / "imported").exists()


@pytest.mark.parametrize("how", ["flag", "variable", "inside", "typed"])
def test_trusted_code_is_imported(how: str, far: Path) -> None:
    here = far.parent / "here"
    given = [str(far), "--dry-run", *QUICK]
    if how == "inside":
        given[0] = str(far.rename(here / "near.toml"))
    elif how == "typed":
        given.append("model.name=mine:net")
    elif how == "flag":
        given.append("--trust")
    done = finished(here, "run", *given, environment={"FEDCOM_TRUST": "1"} if how == "variable" else {})
    assert done.code == 0, done.err
    assert 'name = "mine:net"' in done.out
    assert (here / "imported").exists()


def test_a_run_of_ones_own_in_a_folder_elsewhere_takes_trust_to_go_on(far: Path) -> None:
    here, out = far.parent / "here", str(far.parent / "run")
    assert finished(here, "run", "model.name=mine:net", *QUICK, "-q", "--out", out).code == 0
    refused = finished(here, "evaluate", out)
    assert (refused.code, refused.out) == (2, "")
    assert "unless they are your own, and then add --trust" in refused.err
    assert finished(here, "evaluate", out, "--device", "cpu", "--trust").code == 0
