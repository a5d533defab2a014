"""Secrets stay out of results and pages."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

import fedcom
from fedcom.formats import printable
from fedcom.redaction import own_command, redacted, redacted_command
from fedcom.reports import page
from tests.conftest import mlp_task

SECRET = "hunter2xyz"


@pytest.mark.parametrize(
    "text",
    [
        f"token={SECRET}",
        f"--token={SECRET}",
        f"API_KEY: {SECRET} rest",
        f"my-password = '{SECRET} {SECRET}'",
        f"https://me:{SECRET}@example.org/data.npz",
        f"https://{SECRET}@example.org/data.npz",
        f"https://example.org/a?X-Amz-Signature={SECRET}&x=1",
        f"Authorization: Bearer {SECRET}",
        f"aws_secret_access_key={SECRET}",
    ],
)
def test_what_looks_like_a_secret_is_left_out(text: str) -> None:
    assert SECRET not in redacted(text)
    assert "***" in redacted(text)


@pytest.mark.parametrize(
    "text",
    ["data.path=/home/me/data", "uplink.bits=4", "https://example.org/a@b?x=1", "tokens per second", "a: b"],
)
def test_other_words_stay(text: str) -> None:
    assert redacted(text) == text


def test_commands_of_others_are_not_told() -> None:
    command = ["/usr/bin/flwr-serverapp", "--token", SECRET]
    assert redacted_command(command) is None
    ours = ["/usr/bin/fedcom", "run", "--token", SECRET, f"data.password={SECRET}", "run.seed=0"]
    assert redacted_command(ours) == ["fedcom", "run", "--token", "***", "data.password=***", "run.seed=0"]
    assert redacted_command(["/x/fedcom/__main__.py", "run"]) == ["fedcom", "run"]


def test_no_secret_of_another_program_is_in_a_run_or_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["flwr-serverapp", "--token", SECRET, "--run-id", "7"])
    assert own_command() is None
    run = fedcom.Simulation(mlp_task(), fedcom.FedAvg(), rounds=2, device="cpu")
    fedcom.record(run, tmp_path / "a", quiet=True)
    page.write([tmp_path / "a"], tmp_path / "report.html")
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path
    environment = tmp_path / "a" / "environment.json"
    assert "command" not in json.loads(environment.read_text())
    assert stat.S_IMODE(os.stat(environment).st_mode) == 0o600


def test_a_page_hides_what_an_older_run_recorded(tmp_path: Path) -> None:
    run = fedcom.Simulation(mlp_task(), fedcom.FedAvg(), rounds=2, device="cpu")
    fedcom.record(run, tmp_path / "a", quiet=True)
    file = tmp_path / "a" / "environment.json"
    told = json.loads(file.read_text()) | {"command": ["/bin/flwr-serverapp", "--token", SECRET]}
    file.write_text(json.dumps(told))
    page.write([tmp_path / "a"], tmp_path / "report.html")
    assert SECRET not in (tmp_path / "report.html").read_text()


def test_text_of_strangers_is_one_line() -> None:
    assert (
        printable("a\x1b[31mb\nround 7: all is well\r\u202e")
        == "a\\x1b[31mb\\nround 7: all is well\\r\\u202e"
    )
    assert len(printable("x" * 10**6)) == 301
