"""The report in a real browser: it draws, reacts, saves, and loads nothing from the network."""

import csv
import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcom.reports import page
from fedcom.reports.figures import palette
from tests.reports.page.chromium import Page, find
from tests.reports.page.test_page import EVIL, ROW, make

PROGRAM = find()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")
LABEL = EVIL.replace("/", "")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of FedPAQ, one run whose label is HTML, and one that diverged."""
    out = tmp_path_factory.mktemp("report")

    def rows(loss: float) -> list[dict[str, float]]:
        return [
            {
                **ROW,
                "round": i,
                "train_loss": loss / (i + 1),
                "test_accuracy": 0.1 * i,
                "uplink_bytes": 1e5 * i * (i + 1),
            }
            for i in range(6)
        ]

    make(out / "fedpaq" / "seed-0", rows(2.0), 0)
    make(out / "fedpaq" / "seed-1", rows(4.0), 1)
    make(out / LABEL / "seed-0", rows(3.0))
    wild = [ROW, {**ROW, "round": 1, "train_loss": 1e200, "uplink_bytes": 1e6}]
    make(out / "wild" / "seed-0", wild, summary={"status": "diverged"})
    return page.write([out], out / "report.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert PROGRAM
    try:
        tab = Page(PROGRAM, tmp_path_factory.mktemp("profile"))
    except (RuntimeError, OSError) as error:
        pytest.skip(f"{PROGRAM} does not start: {error}")
    yield tab
    tab.close()


@pytest.fixture
def tab(browser: Page, report: Path) -> Iterator[Page]:
    """The page, loaded; after the test it has logged no error and fetched nothing but its file."""
    browser.size(1200, 900)
    browser.events.clear()
    browser.open(report)
    yield browser
    browser.run("localStorage.clear()")
    methods = [event.get("method") for event in browser.events]
    assert not {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"} & set(methods)
    fetched = {
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    }
    assert {url for url in fetched if not url.startswith(("data:", "blob:"))} == {report.resolve().as_uri()}


def drawn(tab: Page) -> list[str]:
    """The methods of the lines in the plot."""
    lines = "[...document.querySelectorAll('#plot .line')].filter(l => l.querySelector('path[fill=none]'))"
    return list(tab.run(f"{lines}.map(l => l.dataset.method)"))


def paths(tab: Page) -> list[str]:
    return list(tab.run("[...document.querySelectorAll('#plot .line path')].map(p => p.getAttribute('d'))"))


def press(tab: Page, label: str) -> None:
    button = (
        f"[...document.querySelectorAll('#legend button')].find(b => b.dataset.label === {json.dumps(label)})"
    )
    tab.run(f"{button}.click()")


def choose(tab: Page, way: str, key: str) -> None:
    tab.run(f"document.querySelector('#pick-{way} input[value={key}]').click()")


def test_every_method_has_a_line_in_its_colour_and_its_name_beside_it(tab: Page) -> None:
    assert sorted(drawn(tab)) == sorted(["fedpaq", LABEL, "wild"])
    mine = "[...document.querySelectorAll('#plot .line')].find(l => l.dataset.method === 'fedpaq')"
    assert (
        tab.run(f"{mine}.querySelector('path[fill=none]').getAttribute('stroke')")
        == palette(["fedpaq"])["fedpaq"]
    )
    names = tab.run("[...document.querySelectorAll('#plot .line text')].map(t => t.textContent)")
    assert "fedpaq" in names
    assert tab.run("document.querySelector('#results tbody').textContent.includes('onerror=alert')")
    assert tab.run("document.images.length") == 0  # the label stayed text


def test_a_button_takes_a_method_out_and_brings_it_back(tab: Page) -> None:
    press(tab, "fedpaq")
    assert sorted(drawn(tab)) == sorted([LABEL, "wild"])
    pressed = "document.querySelector('#legend [data-label=fedpaq]').getAttribute('aria-pressed')"
    assert tab.run(pressed) == "false"
    press(tab, "fedpaq")
    assert "fedpaq" in drawn(tab)
    assert tab.run(pressed) == "true"


def test_axes_and_scales_change_the_plot(tab: Page) -> None:
    seen = [paths(tab)]
    assert tab.run("document.querySelector('#log-y').checked")
    tab.run("document.querySelector('#log-y').click()")
    seen.append(paths(tab))
    choose(tab, "y", "test_accuracy")
    seen.append(paths(tab))
    choose(tab, "x", "uplink_bytes")
    seen.append(paths(tab))
    assert "test accuracy (%) against uplink per client (MB)" in tab.run(
        "document.querySelector('#plot svg').getAttribute('aria-label')"
    )
    tab.run("document.querySelector('#log-x').click()")
    seen.append(paths(tab))
    assert len({json.dumps(path) for path in seen}) == len(seen)
    assert not any("NaN" in d or "Infinity" in d for path in seen for d in path)


def test_a_diverged_run_does_not_stretch_the_scale(tab: Page) -> None:
    ticks = tab.run("[...document.querySelectorAll('#plot svg text')].map(t => t.textContent)")
    assert not [tick for tick in ticks if "e+" in tick]


def test_keys_and_the_pointer_read_values(tab: Page) -> None:
    tab.run("document.querySelector('#chart').focus()")
    tab.send("Input.dispatchKeyEvent", type="keyDown", key="End", code="End")
    tab.until("document.querySelector('#readout').textContent !== ''")
    said = tab.run("document.querySelector('#readout').textContent")
    assert "communication round: 5" in said
    assert "fedpaq 0.5" in said  # the mean of 2/6 and 4/6
    tab.run("document.querySelector('#chart').scrollIntoView()")
    box = tab.run(
        "(b => [b.x, b.y, b.width, b.height])(document.querySelector('#plot').getBoundingClientRect())"
    )
    tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + 65, y=box[1] + 100)
    tab.until("document.querySelector('#tip').textContent.includes('round: 0')")
    assert not tab.run("document.querySelector('#tip').hidden")
    tip = tab.run("document.querySelector('#tip').textContent")
    assert "fedpaq3 (2–4)" in tip  # noqa: RUF001
    assert "wild (seed 0, diverged)2" in tip


def test_the_chart_can_be_saved(tab: Page, tmp_path: Path) -> None:
    tab.send("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for kind in ("csv", "svg", "png"):
        tab.run(f"document.querySelector('#save-{kind}').click()")
        path = tmp_path / f"train_loss-by-round.{kind}"
        tab.until(path.exists)
    rows = list(csv.reader((tmp_path / "train_loss-by-round.csv").read_text().splitlines()))
    assert rows[0][:2] == ["method", "status"]
    assert ["fedpaq", "done", "all", "2", "1", "1.5", "1", "2"] in rows
    assert {row[0] for row in rows[1:]} == {"fedpaq", LABEL, "wild"}
    assert ET.parse(tmp_path / "train_loss-by-round.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert (tmp_path / "train_loss-by-round.png").read_bytes().startswith(b"\x89PNG")


def test_the_theme_follows_the_system_until_the_button_is_used(tab: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = tab.run(background)
    tab.size(1200, 900, dark=True)
    dark = tab.run(background)
    assert dark != light
    tab.run("document.querySelector('#theme').click()")
    assert tab.run(background) == light
    tab.send("Page.reload")
    tab.wait("Page.loadEventFired")
    assert tab.run(background) == light  # remembered


def test_every_chart_is_also_a_table(tab: Page) -> None:
    tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    tab.until("document.querySelectorAll('#chart-table tbody tr').length > 0")  # filled once it is open
    tab.until("document.querySelectorAll('#clients tbody').length === 2")
    rows = tab.run("document.querySelectorAll('#chart-table tbody tr').length")
    assert rows == 2 * 6 + 2
    cells = tab.run(
        "[...document.querySelectorAll('#clients tbody')].map(t => t.innerText.split(/\\s+/).join(' '))"
    )
    assert cells == ["0 3 0 1 0 4", "0 1.00 -0.50 1 -0.50 1.00"]
    assert tab.run("document.querySelectorAll('.heat rect').length") == 8


@pytest.mark.parametrize("width", [320, 390, 1200])
def test_the_page_is_no_wider_than_the_screen(tab: Page, width: int) -> None:
    tab.size(width, 800)
    tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run("document.querySelector('#plot svg').getBoundingClientRect().width") <= width
    tab.run("document.querySelector('#chart').focus()")
    tab.send("Input.dispatchKeyEvent", type="keyDown", key="Home", code="Home")
    assert tab.run("document.querySelector('#tip').textContent") != ""
    assert tab.run("document.documentElement.scrollWidth") <= width
