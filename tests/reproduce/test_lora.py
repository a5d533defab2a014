"""The study of adapters: the rates of its labels, where its text comes from, and its verdicts."""

from pathlib import Path
from typing import Any

import pytest

from fedcom.reproduce import STUDIES, Scale, rates
from fedcom.reproduce.lora import label_of, text_of
from fedcom.reproduce.panels import StudyRun
from fedcom.reproduce.results import FAILS, HOLDS, PARTLY, StudyResults
from tests.reproduce.made_up import made_up

NAME = "lora-stories15m"


def fallen(score: Any, first: float = 20.0) -> StudyResults:
    """Made-up results in which every model begins at a perplexity."""
    results = made_up(NAME, score)
    for record in results.records:
        record["rows"][0]["test_perplexity"] = first
    return results


def outcomes(score: Any, first: float = 20.0) -> list[str]:
    return [verdict.outcome for verdict in STUDIES[NAME].judge(fallen(score, first))]


def test_adapters_are_judged_beside_the_base_and_themselves_uncompressed(tmp_path: Path) -> None:
    def coarse(run: StudyRun) -> float:
        low = {"0.25, adapter lora": 0.964, "0.25, adapter ffa": 0.966, "fedavg, adapter flora": 0.5}
        return next((value for end, value in low.items() if run.method.endswith(end)), 0.97)

    assert outcomes(lambda run: 0.97) == [HOLDS] * 4
    assert outcomes(lambda run: 0.97, 13.0) == [FAILS, *[HOLDS] * 3]  # 10.3 of 13 is less than a quarter off
    found = fallen(coarse)
    verdicts = STUDIES[NAME].judge(found)
    assert [v.outcome for v in verdicts] == [HOLDS, FAILS, HOLDS, PARTLY]
    assert "+0.62%, with 1/128 of its bytes up" in verdicts[1].numbers
    assert "ffa +0.41%" in verdicts[2].numbers
    table: Any = STUDIES[NAME].table
    lines = {line["point"]: line for line in table(found, "stories15M")}
    assert lines["fedavg, adapter lora"]["before"] == 20.0
    assert lines[label_of("flora")]["perplexity"] == 20.0
    assert STUDIES[NAME].draw(found, tmp_path) == [f"{NAME}.png"]
    lost = [v.outcome for v in STUDIES[NAME].judge(fallen(lambda run: 0.0 if "0.25" in run.method else 0.97))]
    assert lost == [HOLDS, FAILS, FAILS, HOLDS]


def test_codecs_run_at_the_rate_of_their_adapter_and_text_that_is_cut_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "experiments" / "rates"
    folder.mkdir(parents=True)
    (folder / f"{NAME}.toml").write_text('[methods."fedavg, adapter ffa"]\neta = 0.5\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDCOM_DATA", str(tmp_path / "data"))
    (panel,) = STUDIES[NAME].plan(Scale(seeds=1))
    found = {run.method: run.config for run in panel.runs(1)}
    assert {m: c.algorithm.eta for m, c in found.items() if "ffa" in m} == {
        label_of("ffa", bits): 0.5 for bits in ("32", "0.25", "0.1")
    }
    assert found[label_of("rolora", "0.1")].model.adapter.name == "rolora"  # type: ignore[union-attr]
    assert found[label_of("het", "0.1")].model.adapter.ranks == (2, 4, 8)  # type: ignore[union-attr]
    assert panel.config.data.tokenizer == "stories15M/tokenizer.bin"
    assert label_of("lora") in panel.untuned
    assert {label_of("lora", "0.1"), label_of("ffa", "0.1")} <= set(panel.followers)
    assert label_of("lora", "0.1") in panel.untuned  # as the label whose rate it has
    assert not set(panel.untuned) & {label_of("ffa"), label_of("ffa", "0.1")}
    tried = dict[str, Any]()

    def tune(table: Any, label: str, grid: Any, seeds: int, run: Any) -> dict[str, Any]:
        tried[label] = (grid, seeds)
        return {"eta": 0.1, "accuracy": 1, "edges": [], "note": ""}

    monkeypatch.setattr(rates, "tune_one", tune)
    rates.tune_panel(panel, tmp_path, "cpu", True)
    assert tried[label_of("lora")] == ({"eta": [0.001, 0.002, 0.004]}, 1)
    assert set(tried) == {label for label in panel.methods if label.startswith("fedavg")}
    rates.tune_panel(panel, tmp_path, "cpu", True, seeds=3)
    assert {seeds for _, seeds in tried.values()} == {3}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "shakespeare-stories15M.npz").touch()
    assert text_of("stories15M") == {"tokens": "shakespeare-stories15M.npz"}
