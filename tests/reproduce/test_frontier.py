"""The frontier and the explorations: labels, bytes, names beside their dots, and verdicts that can fail."""

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcom.codecs import TopK
from fedcom.reports.figures import blank
from fedcom.reproduce import STUDIES, drawing, frontier, optimisers, outer
from fedcom.reproduce.panels import StudyRun, settings
from fedcom.reproduce.results import FAILS, HOLDS, PARTLY
from fedcom.reproduce.study_page import study_page
from tests.reproduce.made_up import made_up, outcomes


def by_label(scores: dict[str, float], other: float = 0.97) -> Any:
    return lambda run: scores.get(run.method, other)


def test_a_label_says_method_and_codecs() -> None:
    assert settings("fedavg") == {"name": "fedavg"}
    assert settings("scafcom topk 1%") == {"name": "scafcom", "uplink": {"name": "topk", "ratio": 0.01}}
    both = settings("exact peaks 0.03, down rotated 0.35")
    assert both["name"] == "fedcomgate-exact"
    assert both["uplink"] == {"name": "peaks", "bits": 0.03}
    assert both["downlink"] == {"name": "rotated", "bits": 0.35}


def test_the_front_holds_what_nothing_beats() -> None:
    points = {
        "dear": (9.0, 0.9),
        "cheap": (1.0, 0.5),
        "beaten": (2.0, 0.4),
        "same": (1.0, 0.3),
        "mid": (3.0, 0.8),
    }
    assert frontier.front(points) == ["cheap", "mid", "dear"]
    assert frontier.front({}) == []
    assert frontier.winner(points) == "dear"  # nothing sends a hundredth of SCAFFOLD's bytes
    assert frontier.winner({**points, "scaffold": (150.0, 0.95)}) == "cheap"


def test_bytes_are_counted_up_and_in_total_beside_scaffold() -> None:
    lines = {line["point"]: line for line in frontier.table(made_up("frontier-mnist", by_label({})), "mnist")}
    assert lines["scaffold"]["up_times_fewer"] == lines["scaffold"]["total_times_fewer"] == 1
    assert lines["exact peaks 0.03"]["up_times_fewer"] == pytest.approx(64 / 0.03)
    assert lines["exact peaks 0.03, down rotated 0.35"]["total_times_fewer"] == pytest.approx(128 / 0.38)
    assert lines["fedcomgate"]["accuracy"] == pytest.approx(97)
    gone = frontier.table(made_up("frontier-mnist", by_label({"fedpaq": 0})), "mnist")
    assert next(line for line in gone if line["point"] == "fedpaq")["accuracy"] == "diverged"


@pytest.mark.parametrize("name", [study.name for study in frontier.STUDIES])
def test_each_claim_of_the_frontier_can_hold_and_fail(name: str) -> None:
    def momentum_helps(run: StudyRun) -> float:
        return 0.97 if run.method.endswith(", momentum") or run.method == frontier.BOTH_WAYS else 0.9

    helped = outcomes(name, momentum_helps)
    panels = len(helped) // 2 - 1
    assert set(helped) == {HOLDS}
    assert outcomes(name, by_label({})) == [PARTLY, PARTLY, *[FAILS, HOLDS] * panels]
    low = outcomes(name, lambda run: 0.9 if run.method == frontier.OURS else momentum_helps(run))
    assert low == [PARTLY, HOLDS, *[PARTLY, PARTLY] * panels]  # SCAFFOLD's pair is still level
    assert outcomes(name, by_label({"scaffold": 0}))[0] == PARTLY  # better than a diverged run, by no bytes


def test_the_page_says_what_was_not_tuned_and_how_many_seeds(tmp_path: Path) -> None:
    study, results = STUDIES["frontier-mnist"], made_up("frontier-mnist", by_label({}))
    page = study_page(study, results, study.judge(results), study.draw(results, tmp_path))
    for panel in results.panels:
        assert f"panel {panel.name}, so" in page or not panel.untuned
    assert "frontier-mnist --seeds 2`" in page
    assert "| FedCOMGATE-exact peaks 0.03, down rotated 0.35 |" in page
    assert not re.search(r"(?<!-)exact peaks", page)  # one name for each thing
    title = "The frontier on mnist: accuracy and bytes of methods, codecs and momentum"
    assert f"![{title}](frontier-sampled.png)" in page


def test_names_cover_neither_one_another_nor_dots() -> None:
    dots = [
        drawing.Dot(f"some name {i}", 10.0 ** (i % 5 / 20), 90 + i / 20, 0.02, "#000000", ring=i == 3)
        for i in range(16)
    ]
    part = blank(*drawing.CHART).subfigures()
    drawing.scatter(part, dots, [dots[0].name, dots[5].name], ("", "", ""))
    (axes,) = part.axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == len(dots)
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    places = axes.transData.transform([(dot.x, dot.y) for dot in dots])
    assert not [box for box in boxes for place in places if box.contains(*place)]
    nearest = [np.clip(place, box.min, box.max) for box, place in zip(boxes, places, strict=True)]
    assert np.hypot(*(np.array(nearest) - places).T).max() < 40  # pixels: near its dot


def test_dots_far_below_the_best_are_cut_off_and_others_are_not() -> None:
    assert drawing.lowest([97.0, 96.9, 96.8, 91.0]) == pytest.approx(95.5)
    assert drawing.lowest([90.0, 80.0, 70.0]) == pytest.approx(50)


def test_explorations_can_hold_and_fail() -> None:
    def usual(run: StudyRun) -> float:
        biased = run.panel == "biased" and "peaks" not in run.method
        return 0.8 if biased or run.method in ("local-sgd", "qsparse", "vr-diana") else 0.97

    assert outcomes("explorations", usual) == [HOLDS] * 5
    plain = dict.fromkeys(("fedcomgate", "scaffold", "fedgate", "local-sgd", "qsparse", "vr-diana"), 0.97)
    assert outcomes("explorations", by_label(plain, 0.9)) == [FAILS, FAILS, PARTLY, FAILS, FAILS]


def test_optimisers_are_named_after_commas_and_their_claims_can_hold_and_fail() -> None:
    both = settings("exact peaks 0.03, local adamw, adam")
    assert both["local"] == {"name": "adamw", "correction": "outside"}
    assert both["server"] == {"name": "adam"}
    assert settings("fedavg, local adamw")["local"] == {"name": "adamw"}
    assert len(set(optimisers.POINTS)) == 4 * 3 * 3

    def helps(run: StudyRun) -> float:
        tracked = run.method.startswith(("fedgate", "exact"))
        return 0.9 + 0.02 * tracked + 0.02 * run.method.endswith(", momentum")

    assert outcomes("optimisers", helps) == [HOLDS] * 3
    worse = outcomes("optimisers", lambda run: 0.9 - 0.02 * ("0.03" in run.method))
    assert worse == [FAILS] * 3
    (line, *_) = optimisers.table(made_up("optimisers", helps), "fashion-mnist")
    assert set(line) == {"method", "sgd", "momentum", "adam"}


def test_language_is_judged_by_perplexity_and_bytes_beside_itself_uncompressed(tmp_path: Path) -> None:
    def coarse(run: StudyRun) -> float:
        return 0.985 if "0.1" in run.method else 0.97  # made up perplexities are 10 over this

    assert outcomes("language", by_label({})) == [HOLDS] * 3
    assert outcomes("language", coarse) == [HOLDS] * 3
    worse = by_label({"fedcom peaks 0.1": 0.96, "exact peaks 0.1": 0.961, "fedcom peaks 0.1, adam": 0.0})
    assert outcomes("language", worse) == [FAILS, HOLDS, FAILS]  # 1.04% and 0.94% above, and diverged
    study, results = STUDIES["language"], made_up("language", worse)
    lines = {line["point"]: line for line in study.table(results, "shakespeare")}  # type: ignore[misc]
    assert len(lines) == 20
    assert lines["fedavg"]["perplexity"] == pytest.approx(10 / 0.97)
    assert lines["fedavg"]["bits_per_character"] == pytest.approx(np.log2(10 / 0.97))
    assert lines["fedcom peaks 0.1, adam"]["perplexity"] == "diverged"
    assert study.draw(results, tmp_path) == ["language.png"]
    for label, ratio in (
        ("8 bits", 8.0),
        ("1 bit", 1.0),
        ("¼ bit", 0.25),
        ("0.1 bit", 0.1),
        ("0.03 bit", 0.03),
    ):
        assert settings(f"fedcom topk {label}")["uplink"]["ratio"] == TopK().at(ratio).ratio  # type: ignore[union-attr]


def test_outer_is_judged_beside_32_bits_and_by_who_is_first_on_which_link(tmp_path: Path) -> None:
    sparse = {"SparseLoCo": 0.9, "SparseLoCo tuned": 0.95}
    assert outcomes("outer", by_label(sparse)) == [HOLDS] * 8  # four more for other K and H
    slow = {**sparse, "DiLoCo ¼ bit": 0.966, "DiLoCo 0.1 bit": 0.955, "MuLoCo ¼ bit": 0.0}
    found = outcomes("outer", by_label({**slow, "SparseLoCo tuned": 0.96}))
    # 0.41% and 1.57% above; below one of two; level in time with more bits.
    assert found == [FAILS, FAILS, PARTLY, FAILS] + [HOLDS] * 4
    results = made_up("outer", by_label({**slow, "DiLoCo ¼ bit": 0.95}))
    assert [v.outcome for v in STUDIES["outer"].judge(results)][3:] == [FAILS] * 5  # 2% above
    main, *others = results.panels
    assert {len(p.runs(3)) for p in others} == {2}  # one seed
    base, run = (next(r for r in main.runs(1) if r.method == f"DiLoCo {of}") for of in ("32 bits", "¼ bit"))
    eta = base.config.algorithm.eta
    assert run.config.algorithm == replace(run.config.algorithm, eta=eta, gamma=7.0, tau=50)
    # 30 rounds of 50 steps of 0.1 s; then 1 MB to each of 7 others, or twice 7/8 of it, at 8 Mbit/s.
    assert outer.hours(main, "DiLoCo ¼ bit", 30, 1e6, 8) == pytest.approx((150 + 7) / 3600)
    assert outer.hours(main, "DiLoCo 8 bits", 30, 1e6, 8) == pytest.approx((150 + 1.75) / 3600)
    (line, *_) = outer.table(results, "shakespeare")
    assert line["perplexity"] == pytest.approx(10 / 0.97)
    assert STUDIES["outer"].draw(results, tmp_path) == ["outer.png"]


def test_outer_s_time_to_a_perplexity_lies_between_evaluations() -> None:
    results = made_up("outer", by_label({}))
    for record in results.records:
        for row in record["rows"]:
            row["test_perplexity"] = 20.0 - row["round"]  # 20, 15 and 10 after rounds 0, 5 and 10
    main = results.panels[0]
    found = outer.reached(results, main, "DiLoCo 32 bits", 12.0, 1e9)
    assert found == pytest.approx(8 * 50 * 0.1 / 3600)
    assert outer.reached(results, main, "DiLoCo 32 bits", 9.0, 1e9) == np.inf
