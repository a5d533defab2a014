"""Comparisons: which setting applies to which method, what is written, and how they end."""

import csv
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from fedcom.codecs import Identity, Int, TopK
from fedcom.config import read
from fedcom.config.methods import variant
from fedcom.engines.local.eager import EagerEngine
from fedcom.errors import ConfigError, DataError, Stopped
from fedcom.runs.files import FILES
from fedcom.studies import compare as comparing
from fedcom.studies.compare import METHODS, Comparison, compare, variants

SMALL = ("model.hidden=16", "algorithm.tau=2", "run.rounds=3", "run.target_accuracy=0.3")
FIGURES = ("loss_rounds.png", "loss_bytes.png", "accuracy_bytes.png")


def table(*overrides: str) -> dict[str, Any]:
    return read(None, [*SMALL, *overrides])


def run(out: Path, methods: str, *overrides: str, seeds: int = 1) -> Comparison:
    return compare(table(*overrides), methods.split(","), out, seeds=seeds, device="cpu", quiet=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of FedAvg, a variant of FedPAQ and one that diverges, two seeds each; only read."""
    out = tmp_path_factory.mktemp("compare") / "a"
    mine = ("methods.mine.name=fedpaq", "methods.mine.uplink.bits=4", "methods.mine.eta=0.1")
    wild = ("methods.wild.name=fedavg", "methods.wild.eta=1e30")
    found = run(out, "fedavg,wild,mine", *mine, *wild, seeds=2)
    assert found.table == json.loads((out / "table.json").read_text())
    assert (found.target, found.stopped) == (0.3, None)
    return out


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    return {entry["method"]: entry for entry in json.loads((folder / "table.json").read_text())}


def test_one_table_three_figures_and_one_folder_per_run(folder: Path) -> None:
    tables = {"table.json", "table.csv", "table.md", "compare.json", "report.html"}
    assert {path.name for path in folder.iterdir()} == {*tables, *FIGURES, "fedavg", "mine", "wild"}
    for label in ("fedavg", "mine", "wild"):
        for seed in (0, 1):
            expected = set(FILES) - ({"accuracy.json"} if label == "wild" else set())  # it diverged
            assert {path.name for path in (folder / label / f"seed-{seed}").iterdir()} == expected
    assert "\nseed = 1\n" in (folder / "mine" / "seed-1" / "config.toml").read_text()


def test_a_diverged_method_is_marked_and_the_rest_go_on(folder: Path) -> None:
    found = entries(folder)
    assert list(found) == ["fedavg", "wild", "mine"]
    assert [entry["status"] for entry in found.values()] == ["done", "diverged", "done"]
    assert [entry["runs"] for entry in found.values()] == [2, 2, 2]
    assert (found["wild"]["diverged"], found["wild"]["final_loss"]) == (2, None)
    assert found["mine"]["final_accuracy_spread"] is not None
    assert "| wild | diverged first at round 0 |" in (folder / "table.md").read_text()


def test_the_table_has_the_numbers_of_the_runs(folder: Path) -> None:
    summaries = [json.loads((folder / "mine" / f"seed-{s}" / "summary.json").read_text()) for s in (0, 1)]
    mine = entries(folder)["mine"]
    assert mine["final_loss"] == pytest.approx(sum(s["train_loss"] for s in summaries) / 2)
    assert (
        mine["uplink_bytes"] == summaries[0]["uplink_bytes"] < entries(folder)["fedavg"]["uplink_bytes"] / 7
    )
    with (folder / "table.csv").open(newline="") as file:
        assert [row["method"] for row in csv.DictReader(file)] == ["fedavg", "wild", "mine"]


def test_the_papers_five_are_the_default() -> None:
    configs = variants(table(), METHODS, range(2))
    assert [(label, config.run.seed) for label, config in configs[:3]] == [
        ("fedavg", 0),
        ("fedavg", 1),
        ("fedpaq", 0),
    ]
    assert [config.algorithm.name for _, config in configs[::2]] == list(METHODS)


def test_shared_keys_apply_to_the_methods_that_have_them() -> None:
    shared = table("algorithm.damping=0.5", "algorithm.gamma=2", "algorithm.tau=5", "algorithm.name=fedavg")
    assert variant(shared, "fedcomgate").algorithm.damping == 0.5  # type: ignore[attr-defined]
    assert variant(shared, "fedavg").algorithm.gamma == 2
    assert variant(shared, "vrl-sgd").algorithm.gamma == 1  # fixed
    assert [variant(shared, name).algorithm.tau for name in ("fedavg", "diana")] == [5, 1]


def test_codecs_apply_to_the_methods_that_use_them() -> None:
    shared = table("uplink.bits=4", "downlink.name=topk", "data.clients=5", "run.participation=0.5")
    links = {name: variant(shared, name).links for name in ("fedavg", "fedpaq", "fedgate", "fedcomgate")}
    assert [link.uplink for link in links.values()] == [Identity(), Int(bits=4), Identity(), Int(bits=4)]
    assert [link.downlink for link in links.values()] == [Identity(), Identity(), TopK(), TopK()]
    assert variant(shared, "fedavg").data.clients == 5
    assert variant(shared, "fedavg").run.participation == 0.5


def test_a_methods_own_settings_override_the_shared_ones() -> None:
    shared = table(
        "algorithm.eta=0.1", "uplink.bits=4", "methods.fedpaq.eta=0.2", "methods.fedpaq.uplink.bits=2"
    )
    ours, others = variant(shared, "fedpaq"), variant(shared, "fedcom")
    assert (ours.algorithm.eta, ours.links.uplink) == (0.2, Int(bits=2))
    assert (others.algorithm.eta, others.links.uplink) == (0.1, Int(bits=4))
    coded = table("methods.s.name=scaffold", "methods.s.uplink.name=int")
    assert variant(coded, "s").links.uplink == Int()


REFUSED = [
    ("fedavg,fedcomgat", "", "unknown method 'fedcomgat'; did you mean 'fedcomgate'?"),
    ("", "", "a comparison needs at least one method and one seed"),
    (
        "fedavg,fedavg",
        "",
        "fedavg is among the methods twice; give one a label, as in methods.mine.name=fedavg",
    ),
    (
        "fedavg",
        "methods.fedavgg.eta=1",
        "unknown method 'fedavgg'; did you mean 'fedavg'?",
    ),
    ("fedavg", "methods.fedavg=5", "methods.fedavg is a section; write methods.fedavg.key=value"),
    ("fedavg", "methods.fedavg.uplink=5", "fedavg: uplink is a section"),
    ("mine", "methods.mine.name=fedcon", "unknown method 'fedcon'; did you mean 'fedcom'?"),
    ("mine", "methods.mine.name=1,2", "unknown method [1, 2]"),
    (
        "fedavg,fedgate",
        "algorithm.damping=1",
        "none of the methods has a key 'damping' in algorithm; known: ",
    ),
    ("fedavg,fedgate", "algorithm.etaa=1", "in algorithm; did you mean 'eta'?"),
    (
        "fedavg",
        "methods.fedavg.damping=1",
        "fedavg: algorithm fedavg has no key 'damping'; it is a key of fedcomgate",
    ),
    ("fedavg", "algoritm.eta=1", "unknown section 'algoritm'; did you mean 'algorithm'?"),
    ("fedavg", "run.round=1", "run has no key 'round'; did you mean 'rounds'?"),
    ("fedavg", "data.name=digit", "unknown data set 'digit'; did you mean 'digits'?"),
    ("fedavg,fedgate", "run.participation=0.05", "fedgate tracks differences between clients"),
    ("fedpaq,fedavg", "methods.fedavg.uplink.name=int", "its twin with a codec is fedpaq"),
]


@pytest.mark.parametrize(("methods", "override", "message"), REFUSED)
def test_everything_is_checked_before_anything_runs(
    tmp_path: Path, methods: str, override: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        compare(table(*override.split()), [m for m in methods.split(",") if m], tmp_path / "a", quiet=True)
    assert message in str(caught.value)
    assert not (tmp_path / "a").exists()


def test_a_missing_model_file_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model file"):
        run(tmp_path / "a", "fedavg", "run.init=none")
    assert not (tmp_path / "a").exists()


def test_an_interrupted_comparison_tabulates_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, steps = EagerEngine.step, []

    def stop(self: EagerEngine) -> None:
        steps.append(self)
        if len(steps) == 5:
            raise Stopped(signal.SIGINT)
        step(self)

    monkeypatch.setattr(EagerEngine, "step", stop)
    found = run(tmp_path, "fedavg,fedpaq,fedcom")
    assert found.stopped is not None
    assert [(entry["method"], entry["status"]) for entry in found.table] == [
        ("fedavg", "done"),
        ("fedpaq", "interrupted"),
    ]
    assert list(entries(tmp_path)) == ["fedavg", "fedpaq"]
    assert all((tmp_path / name).is_file() for name in ("table.csv", "table.md", *FIGURES))
    assert not (tmp_path / "fedcom").exists()


@pytest.mark.parametrize(("finished", "labels"), [(0, None), (1, ["fedavg"])])
def test_an_interrupt_between_two_runs_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: int, labels: list[str] | None
) -> None:
    execute, calls = comparing.execute, []

    def stop(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) > finished:
            raise Stopped(signal.SIGINT)
        return execute(*args, **options)

    monkeypatch.setattr(comparing, "execute", stop)
    if labels is None:  # nothing to tabulate
        with pytest.raises(Stopped):
            run(tmp_path, "fedavg,fedpaq")
        assert [path.name for path in tmp_path.iterdir()] == ["compare.json"]
    else:
        found = run(tmp_path, "fedavg,fedpaq")
        assert found.stopped is not None
        assert list(entries(tmp_path)) == labels


def test_files_of_an_earlier_comparison_are_deleted_and_others_stay(tmp_path: Path) -> None:
    for name in ("accuracy_bytes.png", "table.md", "mine.txt"):
        (tmp_path / name).write_text("old")
    compare(
        read(None, ["model.name=quadratic", "run.rounds=1"]),
        ["fedavg"],
        tmp_path,
        force=True,
        device="cpu",
        quiet=True,
    )
    assert not (tmp_path / "accuracy_bytes.png").exists()  # a quadratic has no accuracy
    assert (tmp_path / "mine.txt").read_text() == "old"
    assert (tmp_path / "table.md").read_text() != "old"


@pytest.mark.parametrize(
    ("overrides", "seeds", "subtitle"),
    [
        ((), 1, "digits · 20 clients · 2 classes per client · 1 seed"),
        (("data.clients=4", "data.partition=iid"), 2, "digits · 4 clients · iid · 2 seeds"),
    ],
)
def test_figures_have_the_task_as_subtitle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], seeds: int, subtitle: str
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(comparing, "figures", lambda *args: drawn.append(args))
    run(tmp_path, "fedavg", "run.rounds=0", *overrides, seeds=seeds)
    ((curves, out, text),) = drawn
    assert (out, text) == (tmp_path, subtitle)
    assert [curve.seed for curve in curves] == list(range(seeds))
