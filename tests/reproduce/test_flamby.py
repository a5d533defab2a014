"""FLamby's table: its settings as published, and verdicts that follow from the numbers."""

from typing import Any

import pytest

from fedcom.reproduce import STUDIES, Scale, command, flamby
from fedcom.reproduce.results import FAILS, HOLDS, PARTLY, StudyResults
from tests.data.made import lay
from tests.data.test_hospitals import BRCA, HEART, placed


def results(score: Any) -> StudyResults:
    """Made-up results in which `score(panel, label)` is the mean over hospitals' own test sets."""
    panels = flamby.STUDY.plan(Scale(seeds=2))
    records = []
    for panel in panels:
        for run in panel.runs(2):
            found = score(panel.name, run.method)
            bits = {"identity": 32, "int": 4, "sign": 1}[run.config.links.uplink.name]
            row = {
                "round": 1,
                "client_mean": found,
                "client_worst": found - 0.1,
                "pooled_test": found,
                "uplink_bytes": 10.0 * bits,
                "downlink_bytes": 7.0,
            }
            records.append({**run.facts, "status": "done", "rows": [row]})
    return StudyResults(panels, records, Scale(seeds=2))


def as_published(panel: str, label: str) -> float:
    return 0.81 if panel.endswith(flamby.FEW) else flamby.published(panel, label)[0]


def test_the_settings_are_the_published_ones() -> None:
    runs = {
        (panel.name, run.method): run.config
        for panel in flamby.STUDY.plan(Scale(seeds=5))
        for run in panel.runs(1)
        if not panel.name.endswith(flamby.FEW)
    }
    for name, rounds, batch in (("heart-disease", 15, 4), ("tcga-brca", 5, 8)):
        for label, config in ((label, c) for (panel, label), c in runs.items() if panel == name):
            method = config.algorithm
            assert (method.tau, method.batch, method.weights, method.decay) == (100, batch, "size", 1.0)
            assert (config.run.rounds, config.run.seed) == (rounds, 42)
            if label in ("FedAdam", "FedAdagrad", "FedYogi"):
                assert (method.server.tau, method.server.beta1) == (1e-8, 0.9)  # type: ignore[attr-defined]
                assert getattr(method.server, "beta2", 0.999) == 0.999
    rates = {key: config.algorithm.eta for key, config in runs.items()}
    assert rates["heart-disease", "FedAdam"] == 0.01
    assert rates["tcga-brca", "SCAFFOLD"] == 0.01
    assert runs["tcga-brca", "FedProx"].algorithm.local.mu == 0.1
    assert set(flamby.PUBLISHED["tcga-brca"]) == {label for name, label in runs if name.startswith("tcga")}


def test_within_two_deviations_or_two_hundredths_holds_and_beyond_fails() -> None:
    verdicts = flamby.STUDY.judge(results(as_published))
    assert {v.outcome for v in verdicts} == {HOLDS}
    off = flamby.STUDY.judge(results(lambda p, label: as_published(p, label) + 0.021))
    by = {v.claim.split()[1]: v.outcome for v in off if "each strategy" in v.claim}
    assert by["heart-disease"] == PARTLY  # 0.021 is within two of FedAvg's deviations, and not of FedProx's
    assert by["heart-disease-pooled"] == FAILS
    assert [v.outcome for v in off if "fewer" in v.claim] == [HOLDS, HOLDS]
    low = flamby.STUDY.judge(results(lambda p, label: 0.7))
    assert [v.outcome for v in low if "fewer" in v.claim] == [PARTLY, PARTLY]  # fewer bytes, but not as good
    few = flamby.table(results(as_published), "tcga-brca-few-bytes")
    assert [line["rounds"] for line in few[:3]] == ["1", "2", "5"]
    assert few[0]["published"] == ""
    lines = flamby.table(results(as_published), "heart-disease")
    assert lines[0]["published"] == "0.685 ± 0.025"
    assert lines[0]["here"] == "0.685 ± 0.000"


def test_a_run_is_scored_on_each_hospitals_own_test_samples_and_on_all(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, contents in (("heart-disease", HEART), ("tcga-brca", BRCA)):
        placed(monkeypatch, name, contents)
        lay(tmp_path / name, contents)
    monkeypatch.setenv("FEDCOM_DATA", str(tmp_path))
    flamby._tests.cache_clear()
    few = ("run.rounds=2", "algorithm.tau=3")
    panels = [p for p in flamby.STUDY.plan(Scale(overrides=few)) if p.name == "heart-disease"]
    status, (row,) = flamby.measure(panels[0].runs(1)[0], "cpu", True)
    flamby._tests.cache_clear()
    assert status == "done"
    assert row["round"] == 2
    assert row["client_worst"] <= row["client_mean"] <= 1
    assert {"pooled_test", "own_tests", "uplink_bytes"} < set(row)


def test_the_study_has_five_seeds_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    seen = []
    monkeypatch.setattr(command, "reproduce", lambda study, scale, *rest: seen.append(scale.seeds) or [])
    command.run(["flamby", "fig6"], False, None, tmp_path, "cpu", True)
    command.run(["flamby"], False, 2, tmp_path, "cpu", True)
    command.run(["flamby"], True, None, tmp_path, "cpu", True)
    assert seen == [5, 3, 2, 1] or seen == [3, 5, 2, 1]
    assert STUDIES["flamby"].seeds == 5
