"""`fedcom report --live` as a process of its own: over HTTP, and in a real browser while a run goes on."""

import http.client
import json
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedcom.cli import app
from fedcom.config import Config, read
from fedcom.runs.folder import claim
from fedcom.runs.run import execute
from tests.processes import PATIENCE, Command, finished, started
from tests.reports.page.chromium import Page
from tests.reports.page.test_page import ROW, make, make_sweep


@contextmanager
def served(folder: Path) -> Iterator[tuple[Command, int]]:
    """The server's process, and its port."""
    with started(folder, "report", "--live", str(folder), "--port", "0") as command:
        assert command.until(lambda: "\n" in command.stdout.read_text()), command.result()
        said = command.stdout.read_text()
        address = re.search(r"report on http://127\.0\.0\.1:(\d+)/", said)
        assert address, said
        yield command, int(address.group(1))


def ask(port: int, path: str = "/", **headers: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", path, headers={key.replace("_", "-"): value for key, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.getheader("ETag") or "", answer.read().decode()
    connection.close()
    return found


def test_the_page_is_renewed_when_runs_go_on_and_ctrl_c_ends_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as (command, port):
        status, _, text = ask(port)
        assert status == 200
        assert "No runs yet" in text
        make(tmp_path / "mine" / "seed-0")
        make_sweep(tmp_path / "grid")
        until = time.monotonic() + PATIENCE
        while "mine" not in text:  # a page is up to some seconds old
            assert time.monotonic() < until
            status, tag, text = ask(port)
        assert ask(port, If_None_Match=tag)[0] == 304
        assert ask(port, "/?x=round")[0] == 200
        assert ask(port, "/etc/passwd")[0] == 404
        assert ask(port, Host="evil.example")[0] == 403
        command.send(signal.SIGINT)
        code, out, err = command.result()
        assert (code, out.count("\n"), err) == (0, 1, "")


def test_readers_that_leave_or_are_slow_disturb_nobody(tmp_path: Path) -> None:
    question = b"GET / HTTP/1.0\r\nHost: 127.0.0.1:%d\r\n\r\n"
    make(tmp_path / "mine" / "seed-0")
    with served(tmp_path) as (command, port), socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(question[:20])  # and no more
        for asked in (question % port, question[:20], b"") * 5:
            with socket.create_connection(("127.0.0.1", port)) as leaving:
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                leaving.sendall(asked)
            assert ask(port)[0] == 200
        command.send(signal.SIGINT)
        code, _, err = command.result()
    assert (code, err) == (0, "")


def test_a_folder_that_goes_away_is_told_and_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    make(folder / "seed-0")
    with served(folder) as (_, port):
        os.rename(folder, tmp_path / "away")
        until = time.monotonic() + PATIENCE
        while (found := ask(port))[0] == 200:
            assert time.monotonic() < until
        assert found[0] == 503
        assert "no folder" in found[2]
        os.rename(tmp_path / "away", folder)
        assert ask(port)[0] == 200


def test_a_taken_port_and_options_that_do_not_go_together_say_so(tmp_path: Path) -> None:
    make(tmp_path / "a")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = finished(tmp_path, "report", "--live", str(tmp_path), "--port", str(port))
    assert ended.code == 2
    assert f"cannot serve on port {port}: address already in use; choose another --port" in ended.err
    for options, words in (
        (["--live", "--out", "x"], "leave --out out"),
        (["--port", "1"], "add --live"),
        (["--live", "--port", "70000"], "0 to 65535"),
    ):
        assert words in str(CliRunner().invoke(app, ["report", str(tmp_path), *options]).exception)
    assert "no folder" in str(CliRunner().invoke(app, ["report", "--live", str(tmp_path / "b")]).exception)


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_runs_that_go_on_are_told_first_and_nothing_warns_of_them(
    browser: Page, tmp_path: Path, width: int, dark: bool
) -> None:
    runs, held = tmp_path / "runs", []
    for name, eta in (("a", 0.1), ("b", 0.2)):
        rows = [{**ROW, "round": i, "seconds": 10.0 * i} for i in range(6)]
        folder = make(runs / name, rows, more=f"rounds = 25\n[extra]\neta = {eta}\n")
        for late in ("summary", "ledger", "accuracy", "similarity"):
            (folder / f"{late}.json").unlink()
        held.append(folder)
    with claim(held[0], used=True), claim(held[1], used=True), served(runs) as (_, port):
        browser.size(width, 900, dark)
        browser.open(f"http://127.0.0.1:{port}/")
        lines = browser.run(
            "[...document.querySelectorAll('.going')].map(e => e.innerText.split(/\\s+/).join(' '))"
        )
        assert [line.split(" fedpaq")[0] for line in lines] == ["round 5/25 left 3:20"] * 2
        assert ["eta 0.1" in lines[0], "eta 0.2" in lines[1]] == [True, True]  # called by what differs
        top = browser.run("document.querySelector('.going').getBoundingClientRect().bottom")
        assert top < browser.run("document.querySelector('nav').getBoundingClientRect().top") < 900
        assert browser.run("document.querySelector('.notice') === null")
        assert browser.run("document.querySelector('h1').textContent").startswith("2 runs on")
        assert browser.run("document.querySelector('.finding').textContent") == ""
        assert browser.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        pytest.param(1280, False, marks=pytest.mark.thorough),
        (390, True),
        pytest.param(1280, True, marks=pytest.mark.thorough),
        pytest.param(390, False, marks=pytest.mark.thorough),
    ],
)
def test_a_browser_follows_a_run_and_keeps_what_was_chosen(
    browser: Page, tmp_path: Path, width: int, dark: bool
) -> None:
    tab, runs = browser, tmp_path / "runs"
    tab.events.clear()
    first = make(runs / "first" / "seed-0")
    with served(runs) as (command, port):
        tab.size(width, 900, dark)
        tab.open(f"http://127.0.0.1:{port}/")
        tab.until("document.querySelector('#live').textContent.startsWith('live, as of')")
        tab.run("document.querySelector('#pick-x input[value=round]').click()")
        tab.run("document.querySelector('#bytes details').open = true")
        tab.run("document.querySelector('#legend [data-label=first]').click()")
        # a row is added; then a real run comes, from its beginning to its end
        with (first / "metrics.jsonl").open("a") as log:
            log.write(json.dumps({**ROW, "round": 2, "test_accuracy": 0.875, "train_loss": 0.5}) + "\n")
        tab.until("document.querySelector('#results').textContent.includes('87.50')")
        settings = ["run.rounds=2", "algorithm.tau=1", "model.hidden=8", "data.clients=4"]
        execute(Config.of(read(None, settings)), runs / "second" / "seed-0", quiet=True, device="cpu")
        tab.until("document.querySelectorAll('#results tbody tr').length === 2")
        tab.until("[...document.querySelectorAll('#results .status')].every(s => s.textContent === 'done')")
        lines = "[...document.querySelectorAll('#plot .curve')].map(c => c.parentElement.dataset.method)"
        assert tab.run(lines) == ["second"]  # the first is still hidden
        assert tab.run("document.querySelector('#plot svg').getAttribute('aria-label')").endswith(
            "against communication round, 1 method"
        )
        assert tab.run("document.querySelector('#bytes details').open")
        assert tab.run("document.querySelector('h1').textContent") == "2 methods on unknown data, digits"
        command.send(signal.SIGTERM)
        tab.until("document.querySelector('#live').textContent.includes('the server has ended')")
    wrong = [event for event in tab.events if event.get("method") == "Runtime.exceptionThrown"]
    assert not wrong
