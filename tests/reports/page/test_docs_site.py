"""The docs as a site: it builds, links work, and it can be read at two widths, in light and dark."""

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import fedcom
from tests.reports.page.chromium import Page

ROOT = Path(__file__).parents[3]
SCREENS = [(width, scheme) for width in (390, 1280) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "SITE_SEARCH": "false"}
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return out


def test_every_public_name_and_study_has_its_place(site: Path) -> None:
    page = (site / "reference" / "index.html").read_text()
    for name in fedcom.__all__:
        assert re.search(rf'id="fedcom[\w.]*\.{name}"', page) or name == "__version__", name
    home = (site / "index.html").read_text()
    for study in (path.parent.name for path in ROOT.glob("docs/results/*/README.md")):
        assert f'href="results/{study}/"' in home, study
    for place in ("verdicts/", "gallery/", "theory/", "threats/", "deployment/"):
        assert f'href="{place}"' in home, place
    verdicts = (site / "verdicts" / "index.html").read_text()
    assert re.search(r"<strong>\d+ claims: \d+ hold, \d+ hold in part, \d+ do not hold here", verdicts)
    for tutorial in ROOT.glob("docs/tutorials/*.ipynb"):
        told = (site / "tutorials" / tutorial.stem / "index.html").read_text()
        assert len(re.findall(r'<img alt="plot" class="output"', told)) >= 2, tutorial.stem


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {path: path.read_text() for path in site.rglob("*.html") if path.name != "404.html"}
    anchors = {path: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for path, text in pages.items()}
    broken = []
    for path, text in pages.items():
        body = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
        for link in set(re.findall(r'\b(?:href|src)="([^"]*)"', body)):
            place, anchor = urldefrag(link)
            if re.match(r"[a-z][\w+.-]*:", link):
                continue
            target = (path.parent / unquote(place)).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            known = target.is_file() and (not anchor or unquote(anchor) in anchors.get(target, {anchor}))
            broken += [] if known else [f"{path.relative_to(site)}: {link}"]
    assert len(pages) > 60
    assert broken == []


def see(tab: Page, site: Path, place: str, width: int, scheme: str) -> None:
    """Open a page of the site on a screen, as a first visitor."""
    tab.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    wish = [{"name": "prefers-color-scheme", "value": scheme}]
    tab.send("Emulation.setEmulatedMedia", media="", features=wish)
    tab.events.clear()
    tab.send("Page.navigate", url=(site / place / "index.html").as_uri())
    tab.wait("Page.loadEventFired")
    tables = "[...document.querySelectorAll('.md-content table:not([class])')]"
    # The theme's script has laid the page out.
    tab.until(f"{tables}.every(t => t.closest('.md-typeset__scrollwrap'))")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_the_home_shows_the_figure_of_its_scheme_and_width(
    site: Path, browser: Page, width: int, scheme: str
) -> None:
    see(browser, site, "", width, scheme)
    shown = "[...document.querySelectorAll('img.headline')].filter(i => i.offsetWidth).map(i => i.src)"
    (source,) = browser.run(shown)
    assert source.endswith(f"headline{'-narrow' * (width < 600)}-{scheme}.png")
    assert browser.run("document.documentElement.scrollWidth") <= width
    for word in ("Try", "Compare", "Reproduce", "Extend"):
        assert browser.run(
            f"[...document.querySelectorAll('li strong')].some(s => s.textContent === '{word}')"
        )
    if width > 600:  # the toggle: as the system, light, dark
        for wanted in ("light", "dark"):
            browser.run("[...document.querySelectorAll('label.md-header__button[for^=__palette]')]"
                        ".find(l => !l.hidden).click()")  # fmt: skip
            (source,) = browser.run(shown)
            assert source.endswith(f"-{wanted}.png")
        browser.run("localStorage.clear()")
    asked = [
        e["params"]["request"]["url"]
        for e in browser.events
        if e.get("method") == "Network.requestWillBeSent"
    ]
    assert asked
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_pages_fit_and_do_not_glare(site: Path, browser: Page, width: int, scheme: str) -> None:
    dark = scheme == "dark"
    see(browser, site, "gallery", width, scheme)
    assert browser.run("document.querySelectorAll('.gallery img').length") > 12
    turned = browser.run("getComputedStyle(document.querySelector('.gallery img')).filter")
    assert ("invert" in turned) == dark
    assert browser.run("document.documentElement.scrollWidth") <= width
    see(browser, site, "theory", width, scheme)
    sizes = browser.run(
        "[...document.querySelectorAll('svg.formula')].map(s => [s.clientWidth, s.clientHeight])"
    )
    assert len(sizes) > 6
    floats = "[...document.querySelectorAll('svg.formula')].map(s => getComputedStyle(s).float)"
    assert set(browser.run(floats)) == {"none"}  # a formula stands where its sentence has it
    assert all(w > 4 and 4 < h < 90 for w, h in sizes)
    assert "$" not in browser.run("document.querySelector('article').innerText.replace(/\\$OUT/g, '')")
    assert browser.run("document.documentElement.scrollWidth") <= width
    see(browser, site, "cli", width, scheme)
    wide = (
        "[...document.querySelectorAll('.help code')].filter(c => c.scrollWidth > c.clientWidth + 1).length"
    )
    if width > 600:
        assert browser.run(wide) == 0
    see(browser, site, "results/frontier-mnist", width, scheme)
    assert (
        browser.run("document.querySelectorAll('a.whole > img').length") >= 4
    )  # the whole figure, for phones
    hint = browser.run("""[...document.querySelectorAll('.md-typeset__scrollwrap')]
        .filter(w => w.scrollWidth > w.clientWidth).map(w => getComputedStyle(w).backgroundImage)""")
    assert hint  # the table is wider than its column
    assert all(image.count("linear-gradient") == 4 for image in hint)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_white_with_light_figures(site: Path, browser: Page, scheme: str) -> None:
    wish = [{"name": "prefers-color-scheme", "value": scheme}]
    for place in ("", "theory"):
        see(browser, site, place, 800, scheme)
        browser.send("Emulation.setEmulatedMedia", media="print", features=wish)
        assert browser.run("getComputedStyle(document.body).colorScheme") == "light"
        shown = "[...document.querySelectorAll('.md-content img')].filter(i => i.offsetWidth)"
        assert set(browser.run(f"{shown}.map(i => getComputedStyle(i).filter)")) == {"none"}
        heads = browser.run(f"{shown}.filter(i => i.matches('.headline')).map(i => i.src.split('/').pop())")
        assert heads == ["headline-light.png"] * (place == "")
