"""The README's figure says what the runs say, and only what is larger than the spread over seeds."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedcom.reports.looks import COLOURS, FAMILIES, contrast, line_style, looks, own_looks
from fedcom.reproduce.panels import shown

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def headline() -> Iterator[Any]:
    sys.path.insert(0, str(DOCS))
    import make_headline

    yield make_headline
    sys.path.remove(str(DOCS))


def texts(figure: Any) -> list[Any]:
    from matplotlib.text import Text

    return [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


def words(figure: Any) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in texts(figure))


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("paper", ["light", "dark"])
def test_it_says_what_was_measured_in_text_that_can_be_read(headline: Any, paper: str, narrow: bool) -> None:
    found = headline.points_in(DOCS / "results")
    drawn = headline.Headline(found, "mnist, few clients", paper, narrow)
    base, ours = (found["mnist"][label] for label in ("scaffold", "exact peaks 0.03, momentum"))
    said = words(drawn.figure)
    assert f"{base.up / ours.up:,.0f} times fewer bytes up" in said
    assert f"+{ours.accuracy - base.accuracy:.1f} points" in said
    assert "159 MB → 74.9 kB per client" in said
    losses = [own["exact peaks 0.03, momentum"].accuracy - own["scaffold"].accuracy for own in found.values()]
    assert len(losses) == 9
    assert min(losses) < 0
    for gap in losses:
        assert f"{gap:+.1f}".replace("-", headline.MINUS) in said
    pixels, width = drawn.figure.dpi / 72, 390 if narrow else 830
    scale = width / (drawn.figure.get_figwidth() * drawn.figure.dpi)
    papers = drawn.paper
    bounds = drawn.figure.bbox
    for text in texts(drawn.figure):
        assert text.get_size() * pixels * scale >= (11 if narrow else 13), text.get_text()
        assert contrast(text.get_color(), papers) >= 4.5, text.get_text()
        box = text.get_window_extent()
        assert box.x0 >= 0, text.get_text()
        assert box.x1 <= bounds.x1, text.get_text()


def test_a_gap_within_the_spread_is_not_claimed(headline: Any) -> None:
    point = headline.Point
    found = headline.points_in(DOCS / "results")
    mnist = found["mnist"]
    base = mnist["scaffold"]
    mnist["exact peaks 0.03, momentum"] = point(base.accuracy + 0.1, 0.2, 0.07)
    said = words(headline.Headline(found, "mnist", "light", False).figure)
    assert "+0.1 points" not in said
    assert "times fewer" in said  # it is no worse
    mnist["exact peaks 0.03, momentum"] = point(base.accuracy - 0.3, 0.2, 0.07)
    assert "times fewer" not in words(headline.Headline(found, "mnist", "light", False).figure)


def test_the_committed_pictures_are_large_and_of_one_shape() -> None:
    for paper in ("light", "dark"):
        with Image.open(DOCS / "figures" / f"headline-{paper}.png") as image:
            assert image.size == (1600, 944)
        with Image.open(DOCS / "figures" / f"headline-narrow-{paper}.png") as image:
            assert image.width == 800


def test_a_thing_has_one_name() -> None:
    assert shown("exact peaks 0.03, momentum") == "FedCOMGATE-exact peaks 0.03, momentum"
    assert shown("scaffold, momentum") == "SCAFFOLD, momentum"
    assert shown("vr-diana") == "VR-DIANA"
    assert shown("no memory") == "no memory"


def test_a_method_looks_the_same_in_every_picture() -> None:
    alone, among = looks({"fedcomgate": "fedcomgate"}), looks({"a": "fedgate", **{m: m for m in COLOURS}})
    assert alone["fedcomgate"] == among["fedcomgate"] == own_looks()["fedcomgate"]
    assert {m: look for m, look in among.items() if m != "a"} == own_looks()
    assert among["a"] not in own_looks().values()
    for kind, methods in FAMILIES.items():
        assert {own_looks()[method].marker for method in methods} == {kind}
    assert line_style("fedavg") == {}
    assert line_style("scaffold")["linestyle"] == (0, (1, 1.25))
