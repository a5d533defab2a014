"""Studies: valid plans, no run repeated, and verdicts that follow from the numbers."""

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedcom.cli import app
from fedcom.data.sources import SOURCES
from fedcom.errors import ConfigError, DataError
from fedcom.reproduce import STUDIES, Panel, Scale, Study, Verdict, command, reproduce, runner
from fedcom.reproduce.fig1 import MessageSums
from fedcom.reproduce.fig9 import _grown
from fedcom.reproduce.panels import StudyRun, shown
from fedcom.reproduce.results import FAILS, HOLDS, NOT_RUN, PARTLY, Stat, StudyResults, alike, better
from fedcom.reproduce.study import experiment_file
from fedcom.reproduce.study_page import read_verdicts, study_page, verdicts_page
from fedcom.studies.compare import METHODS
from fedcom.studies.trial_runs import run_stack
from tests.conftest import CHAOS, close
from tests.data.made import lay, mnist_like, source_of, zip_all
from tests.reproduce.made_up import TINY, made_up, outcomes

ROOT = Path(__file__).parents[2]
RUN = [name for name, one in STUDIES.items() if one.measure is None]
each_that_runs = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * (name not in ("fig2", "fig7", "frontier-mnist")))
        for name in RUN
    ],
)


@pytest.mark.covers(1)
@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
@pytest.mark.parametrize("name", STUDIES)
def test_plans_are_valid(name: str, quick: bool) -> None:
    panels = STUDIES[name].plan(Scale(quick, 2))
    runs = [run for panel in panels for run in panel.runs(2)]
    assert len({run.key for run in runs}) == len(runs)
    first = panels[0].config.run.seed
    assert {run.seed for run in runs} == {first, first + 1}
    if quick:
        assert all(run.config.run.rounds <= 30 for run in runs)
        assert all((run.config.data.clients or 0) <= 100 for run in runs)


def test_rates_come_from_their_file_and_the_configs_own_win() -> None:
    (panel, *_) = STUDIES["fig4"].plan(Scale(overrides=("methods.fedgate.eta=0.33",)))
    found = {run.method: run.config.algorithm for run in panel.runs(1)}
    kept = tomllib.loads(experiment_file("rates/mnist.toml").read_text())["methods"]
    assert found["fedavg"].eta == kept["fedavg"]["eta"]
    assert found["fedcomgate"].gamma == kept["fedcomgate"]["gamma"]
    assert found["fedgate"].eta == 0.33


def test_a_run_with_other_settings_has_another_key() -> None:
    one, two = (
        STUDIES["fig4"].plan(Scale(overrides=(text,)))[0].runs(1)[0]
        for text in ("run.rounds=3", "run.rounds=4")
    )
    assert one.key != two.key
    assert one.key == replace(one).key


def study(judge: Any = lambda results, panel: [], measure: Any = None) -> Study:
    table = {
        "data": {"name": "digits", "clients": 5},
        "model": {"name": "mlp", "hidden": [8]},
        "algorithm": {"tau": 2, "batch": 10},
        "run": {"rounds": 4, "eval_every": 2},
    }
    panels = [Panel("one", table, ("fedavg", "fedcomgate"))]
    return Study("s", "S", ("a claim",), lambda scale: panels, judge, measure=measure)


def test_finished_runs_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[StudyResults] = []
    one = study(lambda results, panel: seen.append(results) or [])  # type: ignore[func-returns-value]
    reproduce(one, Scale(seeds=1), tmp_path, "cpu", True)
    log = tmp_path / "results.jsonl"
    log.write_text(log.read_text() + '{"key": "[cut')
    ran: list[str] = []
    real = run_stack
    monkeypatch.setattr(runner, "run_stack", lambda t, *a: (ran.extend(r.seed for r in t), real(t, *a))[1])
    reproduce(one, Scale(seeds=2), tmp_path, "cpu", True)
    assert ran == [1, 1]
    reproduce(one, Scale(seeds=2), tmp_path, "cpu", True)
    assert ran == [1, 1]
    assert [row["round"] for row in seen[-1].records[0]["rows"]] == [0, 2, 4]
    assert seen[-1].records[0] == seen[0].records[0]
    assert len((tmp_path / "points.csv").read_text().splitlines()) == 1 + 4 * 3


def test_a_run_of_another_study_in_a_folder_beside_it_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reproduce(study(), Scale(seeds=1), tmp_path / "one", "cpu", True)
    monkeypatch.setattr(runner, "run_stack", lambda *a: pytest.fail("run again"))
    seen: list[StudyResults] = []
    two = study(lambda results, panel: seen.append(results) or [])  # type: ignore[func-returns-value]
    reproduce(replace(two, name="t"), Scale(seeds=1), tmp_path / "two", "cpu", True)
    assert [r["rows"][-1]["round"] for r in seen[0].records] == [4, 4]


def test_a_refused_run_is_marked_and_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    def refuse(run: StudyRun, device: str, quiet: bool) -> Any:
        raise ConfigError("no such thing")

    def judge(results: StudyResults, panel: Panel) -> list[Verdict]:
        seen.extend(r["status"] for r in results.records)
        return [Verdict.of("c", [results.final("one", "fedavg").mean > 0], "", "")]

    (verdict,) = reproduce(study(judge, refuse), Scale(seeds=1), tmp_path, "cpu", True)
    assert seen == ["failed", "failed"]
    assert verdict.outcome == FAILS
    assert "no such thing" in capsys.readouterr().err
    assert not (tmp_path / "results.jsonl").read_text().strip()


def test_differences_count_beyond_the_spread() -> None:
    high, low = Stat((0.9, 0.91), "test_accuracy"), Stat((0.89, 0.895), "test_accuracy")
    wide, gone = Stat((0.85, 0.95), "test_accuracy"), Stat((0.9, None), "test_accuracy", "diverged")
    assert better(high, low)
    assert not better(low, high)
    assert alike(high, wide)
    assert better(low, gone)
    assert not better(gone, low)
    assert better(Stat((0.1,), "train_loss"), Stat((0.2,), "train_loss"))
    assert str(gone) == "diverged"
    assert str(high) == "90.50 ± 0.71%"


@each_that_runs
def test_runs_that_all_diverge_are_drawn_and_judged(name: str, tmp_path: Path) -> None:
    found = made_up(name, lambda run: 0)
    found = replace(found, records=[{**r, "rows": r["rows"][:1]} for r in found.records])
    images = STUDIES[name].draw(found, tmp_path)
    assert all((tmp_path / image).is_file() for image in images)
    assert HOLDS not in [v.outcome for v in STUDIES[name].judge(found) if "degrade" not in v.claim]


def test_figure_2_asks_whether_tracking_removes_an_error() -> None:
    tracks = {"fedcomgate": 0.95}
    assert outcomes("fig2", lambda r: tracks.get(r.method, 0.8) if r.panel[1] == "e" else 0.9) == [
        HOLDS,
        HOLDS,
    ]
    assert outcomes("fig2", lambda r: 0.9 if r.panel[1] == "e" else tracks.get(r.method, 0.8)) == [
        FAILS,
        FAILS,
    ]


def test_figure_4_asks_which_methods_are_alike_and_which_are_better() -> None:
    tracking = dict.fromkeys(METHODS[2:], 0.95)
    assert outcomes("fig4", lambda r: tracking.get(r.method, 0.8))[:4] == [HOLDS, HOLDS, HOLDS, HOLDS]
    assert outcomes("fig4", lambda r: 1 - tracking.get(r.method, 0.2))[2] == FAILS
    assert outcomes("fig4", lambda r: {"scaffold": 0.5}.get(r.method, 0.9))[0] == PARTLY
    assert outcomes("fig4", lambda r: {"fedcomgate": 0}.get(r.method, 0.9))[0] == FAILS


def test_figure_7_compares_the_accuracy_lost() -> None:
    def lossy(method: str) -> Any:
        drop = {method: 0.5}
        return lambda r: 0.9 - drop.get(r.method, 0.1) * (1 - dict(r.point)["run.participation"])

    assert outcomes("fig7", lossy("scaffold"))[:3] == [HOLDS, HOLDS, FAILS]
    assert outcomes("fig7", lossy("fedpaq"))[:3] == [HOLDS, FAILS, HOLDS]
    assert outcomes("fig7", lambda r: 0.9)[:3] == [FAILS, FAILS, FAILS]


def test_figure_8_judges_each_memory_rule() -> None:
    found = outcomes("fig8", lambda r: 0.5 if r.method.startswith("memory") else 0.9)
    assert found[:4] == [FAILS, HOLDS, HOLDS, PARTLY]


def test_figure_9_asks_whether_noise_hurts_and_steps_help() -> None:
    def score(sign: float) -> Any:
        keys = {"tau": 0.015, "uplink.zero_point_noise": -0.005}
        return lambda r: 0.5 + sign * sum(keys[key] * value for key, value in r.point)

    assert outcomes("fig9", score(1)) == [HOLDS, HOLDS, HOLDS]
    assert outcomes("fig9", score(-1)) == [FAILS, FAILS, FAILS]


def test_figure_9_tells_by_how_much_the_loss_grows_and_what_diverges() -> None:
    assert _grown("noise", {0: 0.5, 64: 1.0}) == "loss at noise 64 is 2.0 times that at 0"
    assert _grown("tau", {1: math.inf, 2: 0.5, 20: 0.1}) == "loss at tau 20 is 0.20 times that at 2"
    assert _grown("tau", {1: 0.5, 20: math.inf}) == "tau 20 diverges"
    assert _grown("tau", {1: math.inf, 20: math.inf}) == "tau 20 diverges"


def test_labels_call_each_method_by_its_one_name() -> None:
    assert shown("exact peaks 0.03, momentum") == "FedCOMGATE-exact peaks 0.03, momentum"
    assert shown("fedcom, fedcomgate's rates") == "FedCOM, FedCOMGATE's rates"
    assert shown("fedprox 0.1") == "FedProx 0.1"
    assert shown("noise 64") == "noise 64"


def test_tracking_can_hold_and_fail() -> None:
    assert set(outcomes("tracking", lambda r: {"fedgate": 0.9}.get(r.method, 0.6))) == {HOLDS}
    assert set(outcomes("tracking", lambda r: {"fedavg": 0.9}.get(r.method, 0.6))) == {FAILS}


@pytest.mark.parametrize("name", ["fig1", "fig3", "fig9"])
def test_the_command_leaves_figure_points_page_and_verdicts(name: str, tmp_path: Path) -> None:
    options = ["--quick", "--out", str(tmp_path), "-q", "--device", "cpu"]
    done = CliRunner().invoke(app, ["reproduce", name, *TINY, *options])
    assert done.exit_code == 0, done.output
    folder = tmp_path / name
    assert 3000 < (folder / f"{name}.png").stat().st_size < 150_000
    verdicts = json.loads((folder / "verdicts.json").read_text())
    page = (folder / "README.md").read_text()
    assert all(v["outcome"] in (HOLDS, PARTLY, FAILS) and v["setting"].startswith("quick") for v in verdicts)
    assert all(v["claim"] in page for v in verdicts)
    assert "data.name=digits" in page
    assert len((folder / "points.csv").read_text().splitlines()) > 4


def test_sums_of_messages_are_the_same_in_any_order() -> None:
    draw, measure = torch.Generator().manual_seed(0), MessageSums()
    groups = [torch.randn(2, 3, 2000, generator=draw, dtype=torch.float64).unbind() for _ in range(9)]
    ends = []
    for order in (range(9), range(8, -1, -1), (4, 0, 8, 2, 6, 1, 7, 3, 5)):
        for i in order:
            measure(*groups[i])
        ends.append(torch.stack(measure.means()))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[0], ends[2])
    assert close(ends[0][1], torch.cat([meant for _, meant in groups]).mean(0), 1e-15)


def test_missing_data_is_reported_and_the_other_studies_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(STUDIES, "fig2", study())
    monkeypatch.setenv("FEDCOM_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"does not hold mnist"):
        command.run(["fig1", "fig2", f"data.root={tmp_path}"], True, None, tmp_path, "cpu", True)
    assert "fedcom: fig1 needs data for mnist: data.root" in capsys.readouterr().err
    assert not (tmp_path / "fig1" / "verdicts.json").exists()
    assert (tmp_path / "fig2" / "verdicts.json").is_file()
    assert "## fig2" in (tmp_path / "VERDICTS.md").read_text()
    assert command.chosen(["frontier"]) == [f"frontier-{d}" for d in ("mnist", "fashion-mnist", "cifar-10")]
    with pytest.raises(ConfigError, match="did you mean 'fig1'"):
        command.chosen(["fig11"])


@pytest.fixture
def only_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with a few images for MNIST and nothing else."""
    contents = mnist_like(n=200, tests=20)
    monkeypatch.setitem(SOURCES, "mnist", (source_of("mnist", contents),))
    lay(tmp_path / "root" / "mnist", zip_all(contents))
    return tmp_path / "root"


@pytest.mark.thorough
def test_a_panel_without_data_leaves_the_others(only_mnist: Path, tmp_path: Path) -> None:
    small = ("data.clients=4", "model.hidden=8", "run.rounds=2", "algorithm.tau=1", "algorithm.batch=5")
    options = ["--quick", "--out", str(tmp_path), "-q", "--device", "cpu"]
    runner = CliRunner()
    done = runner.invoke(app, ["reproduce", "fig4", "frontier", f"data.root={only_mnist}", *small, *options])
    assert isinstance(done.exception, DataError)  # which `main` makes into exit code 4
    assert str(done.exception).startswith("fig4: It is missing for want of data: data.root")
    for name, panel in (("fig4", "cifar-10"), ("frontier-fashion-mnist", "fashion-mnist-sampled")):
        assert f"fedcom: {name} needs data for {panel}: data.root" in done.stderr
    assert done.stderr.count("fig4 needs data") == 1
    verdicts = json.loads((tmp_path / "fig4" / "verdicts.json").read_text())
    assert [v["outcome"] == NOT_RUN for v in verdicts] == [False] * 4 + [True]
    assert verdicts[-1]["claim"] == "What is claimed of the panel cifar-10."
    assert "fig4: not run: What is claimed of the panel cifar-10." in done.stdout
    assert "**not run**" in (tmp_path / "fig4" / "README.md").read_text()
    points = (tmp_path / "fig4" / "points.csv").read_text()
    assert "mnist,fedavg" in points
    assert "cifar" not in points
    assert {path.name for path in tmp_path.glob("frontier-*/*.png")} == {
        "frontier.png",
        "frontier-1-class.png",
        "frontier-half.png",
        "frontier-sampled.png",
    }
    assert [path.parent.name for path in tmp_path.glob("frontier-*/verdicts.json")] == ["frontier-mnist"]
    assert "## fig4" in (tmp_path / "VERDICTS.md").read_text()


@pytest.mark.parametrize(
    "name", ["fig2", *(pytest.param(x, marks=pytest.mark.thorough) for x in RUN if x != "fig2")]
)
def test_any_panel_may_be_missing(name: str, tmp_path: Path) -> None:
    whole = made_up(name, lambda run: 0.9)
    if len(whole.panels) == 1:
        pytest.skip("it has one panel")
    before = {v.claim for v in STUDIES[name].judge(whole)}
    for lost in whole.panels:
        kept = [p for p in whole.panels if p is not lost]
        records = [r for r in whole.records if r["panel"] != lost.name]
        found = replace(whole, panels=kept, records=records, missing=[lost])
        images = STUDIES[name].draw(found, tmp_path)
        assert all((tmp_path / image).is_file() for image in images)
        claims = {v.claim for v in STUDIES[name].judge(found)}
        assert claims < before


def test_committed_verdicts_are_those_of_the_studies() -> None:
    kept = read_verdicts(ROOT / "docs" / "results", command.NAMES)
    assert kept
    assert (ROOT / "experiments" / "VERDICTS.md").read_text() == verdicts_page(kept)


def test_figure_6_counts_highly_correlated_clients() -> None:
    panels = STUDIES["fig6"].plan(Scale(seeds=1))

    def results(near: float, apart: float) -> StudyResults:
        cosine = {"authors": near, "classes": apart}
        records = [
            {
                **run.facts,
                "status": "done",
                "rows": [
                    {"client": i, **{f"with {j}": 1.0 if i == j else cosine[run.panel] for j in range(6)}}
                    for i in range(6)
                ],
            }
            for panel in panels
            for run in panel.runs(1)
        ]
        return StudyResults(panels, records, Scale(seeds=1))

    assert [v.outcome for v in STUDIES["fig6"].judge(results(0.4, 0.0))] == [HOLDS, HOLDS]
    assert [v.outcome for v in STUDIES["fig6"].judge(results(-0.1, 0.6))] == [FAILS, FAILS]


def test_points_that_are_asked_for_run_alone_and_are_drawn_with_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[StudyResults] = []
    whole = study(lambda results, panel: seen.append(results) or [])  # type: ignore[func-returns-value]
    one = replace(whole, in_part=True)
    reproduce(one, Scale(seeds=1, only=("fedcomgate",)), tmp_path, "cpu", True)
    assert [r["method"] for r in seen[-1].records] == ["fedcomgate"]
    assert "Not run yet in panel one: FedAvg." in (tmp_path / "README.md").read_text()
    assert reproduce(whole, Scale(seeds=1, only=("fedavg",)), tmp_path, "cpu", True) == []
    assert len(seen) == 1  # a study that needs all its points is not judged
    monkeypatch.setattr(runner, "run_stack", lambda *a: pytest.fail("a run was repeated"))
    reproduce(one, Scale(seeds=1, only=("one", "fedcomgate")), tmp_path, "cpu", True)
    reproduce(whole, Scale(seeds=1), tmp_path, "cpu", True)
    for results in seen[1:]:
        assert [r["method"] for r in results.records] == ["fedavg", "fedcomgate"]
    with pytest.raises(ConfigError, match="panel or point of s"):
        reproduce(one, Scale(seeds=1, only=("fedavq",)), tmp_path, "cpu", True)


@pytest.mark.parametrize("name", [name for name, one in STUDIES.items() if one.in_part])
def test_studies_are_judged_and_drawn_in_part(name: str, tmp_path: Path) -> None:
    results = made_up(name, lambda run: 0.5)
    labels = dict.fromkeys(label for p in results.panels for label in p.methods)
    for i, label in enumerate(labels):
        some, drawn = [label], CHAOS or i % 3 == 0
        panels = [part for p in results.panels if (part := p.part(some)).methods]
        records = [r for r in results.records if r["method"] in some]
        part = replace(results, panels=panels, records=records)
        verdicts = STUDIES[name].judge(part)
        images = STUDIES[name].draw(part, tmp_path) if drawn else []
        page = study_page(STUDIES[name], part, verdicts, images)
        assert all(verdict.outcome == HOLDS for verdict in verdicts), page
        assert "Not run yet" in page
