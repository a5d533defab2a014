"""The command line: what it prints, where, and its exit codes."""

import json
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import fedcom
from fedcom import cli
from fedcom.algorithms.optimisers import OPTIMISERS
from fedcom.algorithms.schedules import SCHEDULES
from fedcom.cli import options
from fedcom.cli.shared import methods_in
from fedcom.config import DataConfig, RunConfig
from fedcom.runs.files import FILES
from tests.processes import Result, finished, started

COLOUR = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")  # these make rich treat a pipe as a terminal
REGISTRIES: dict[str, Any] = {
    registry.title: registry
    for registry in (
        fedcom.ALGORITHMS,
        OPTIMISERS,
        fedcom.LOCAL_OPTIMISERS,
        SCHEDULES,
        fedcom.CODECS,
        fedcom.DATASETS,
        fedcom.MODELS,
        fedcom.PARTITIONS,
    )
}
SMALL = ("model.hidden=16", "algorithm.tau=2", "run.rounds=2")


Command = Callable[..., Result]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `fedcom ...` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    monkeypatch.setenv("COLUMNS", "100")
    for name in COLOUR:
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["fedcom", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, *(re.sub(r"\x1b\[[\d;]*m", "", text) for text in capfd.readouterr()))

    return call


def interrupted(folder: Path, log: str, rows: int, *arguments: str, **options: Any) -> Result:
    """Sends SIGINT when a log has this many rows."""
    with started(folder, *arguments, **options) as running:
        path = folder / log
        assert running.until(lambda: path.exists() and path.read_text().count("\n") >= rows), running.result()
        running.send(signal.SIGINT)
        return running.result()


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# Real processes


def test_with_no_argument_it_is_fedcom_on_digits(tmp_path: Path) -> None:
    code, out, err = finished(tmp_path, "run", "run.rounds=2")
    folder = tmp_path / "runs" / "fedcom-digits-001"
    assert (code, out) == (0, "results in runs/fedcom-digits-001\n")
    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert [row["round"] for row in rows_of(folder)] == [0, 1, 2]
    told, lines = ([x for x in err.splitlines() if ("  round " in x) == row] for row in (False, True))
    assert "momentum takes the server 4.4 times as far" in told[-1]  # a slow machine says more before
    assert [line.split("  ")[1] for line in lines] == ["round 0/2", "round 1/2", "round 2/2"]
    assert "\x1b" not in err  # plain lines, as it is not a terminal


def test_a_diverged_run_exits_with_3_and_advice(tmp_path: Path) -> None:
    code, out, err = finished(tmp_path, "run", "paper", *SMALL, "algorithm.eta=1e30", "-q", "--out", "a")
    assert (code, out) == (3, "results in a\n")
    assert err.startswith(
        "fedcom: the model is no longer finite after round 1 (fedcomgate, eta=1e+30, gamma=4); try"
    )
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["status"] == "diverged"


def test_an_interrupted_run_exits_with_130_and_keeps_its_rows(tmp_path: Path) -> None:
    long = ("model.hidden=16", "algorithm.tau=1", "algorithm.decay=1", "run.rounds=1000000")
    code, out, err = interrupted(tmp_path, "a/metrics.jsonl", 2, "run", *long, "-q", "--out", "a")
    assert (code, out) == (130, "results in a\n")
    assert err == "fedcom: stopped by SIGINT; go on with: fedcom run --resume a\n"
    rows, summary = rows_of(tmp_path / "a"), json.loads((tmp_path / "a" / "summary.json").read_text())
    assert len(rows) >= 2
    assert summary["status"] == "interrupted"
    assert summary["round"] == rows[-1]["round"] <= summary["rounds_done"]


def test_an_interrupted_comparison_exits_with_130_and_shows_what_it_has(tmp_path: Path) -> None:
    long = ("methods.fedpaq.tau=1000000", "--methods", "fedavg,fedpaq,fedcom", "-q", "--out", "a")
    hasty = "from fedcom.runs import stops\nstops.PATIENCE = 0.1"  # the round would go on for 8 s more
    log = "a/fedpaq/seed-0/metrics.jsonl"
    code, out, err = interrupted(tmp_path, log, 1, "compare", *SMALL, *long, prelude=hasty)
    assert code == 130
    assert err.startswith("fedcom: stopped by SIGINT; go on with: fedcom compare model.hidden=16")
    assert "fedpaq: interrupted" in out
    table = json.loads((tmp_path / "a" / "table.json").read_text())
    assert [(entry["method"], entry["status"]) for entry in table] == [
        ("fedavg", "done"),
        ("fedpaq", "interrupted"),
    ]
    assert (tmp_path / "a" / "loss_rounds.png").is_file()
    assert not (tmp_path / "a" / "fedcom").exists()


def test_an_interrupted_tuning_says_how_it_goes_on(tmp_path: Path) -> None:
    long = (
        *SMALL,
        "algorithm.name=fedavg",
        "server.name=sgd",
        "grid.eta=0.1",
        "grid.gamma=1",
        "run.rounds=10000000",
    )
    code, _, err = interrupted(tmp_path, "a/trials.json", 1, "tune", *long, "-q", "--out", "a")
    assert code == 130
    assert err.startswith("fedcom: stopped by SIGINT; go on with: fedcom tune model.hidden=16")


# In this process


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "no such command 'nosuch'; see fedcom -h"),
        (["rum"], "no such command 'rum'; did you mean 'run'?"),
        (["run", "--nosuch"], "no such option: --nosuch"),
        (["evaluate"], "missing argument 'DIR'; see fedcom evaluate -h"),
        (["compare", "--seeds", "0"], "invalid value for '--seeds'"),
        (["run", "--device", "tpu"], "invalid value for '--device'"),
    ],
)
def test_wrong_usage_is_one_line_and_exits_with_2(
    command: Command, arguments: list[str], message: str
) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"fedcom: {message}")
    assert err.count("\n") == 1


def test_without_arguments_it_prints_its_help(command: Command) -> None:
    code, out, err = command()
    assert code == 2
    assert "compare" in out + err


def test_version(command: Command) -> None:
    assert command("--version") == (0, f"fedcom {fedcom.__version__}\n", "")


def words(text: str) -> set[str]:
    return set(re.findall(r"[\w.-]+", text))


def test_every_command_has_help_and_every_key_is_in_it(command: Command) -> None:
    top = command("--help")
    assert top.code == 0
    for name in ("run", "compare", "evaluate", "list"):
        assert name in words(top.out)
        assert command(name, "--help")[::2] == (0, "")
    for name in ("run", "compare"):
        shown = words(command(name, "--help").out)
        assert {field.name for config in (RunConfig, DataConfig) for field in fields(config)} <= shown
        assert {"data", "model", "algorithm", "uplink", "downlink", "run"} <= {
            word.strip(".:") for word in shown
        }
        assert {"--out", "--force", "--device", "--quiet"} <= shown


def test_every_key_of_the_methods_in_common_is_in_the_help(command: Command) -> None:
    assert {field.name for field in fields(fedcom.Algorithm)} <= words(command("run", "--help").out)


def test_brackets_in_help_are_not_read_as_markup(command: Command) -> None:
    assert "methods.fedavg.eta=0.1" in command("compare", "--help").out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["algorithm.name=fedcomgat"], 2, "unknown algorithm 'fedcomgat'; did you mean 'fedcomgate'?"),
        (["algorithm.eta=fast"], 2, "algorithm.eta must be a number or 'auto'; got 'fast'"),
        (["eta=0.05"], 2, "'eta=0.05' is not an override; write section.key=value, as in algorithm.eta=0.05"),
        (["algorithm.eta"], 2, "no config file algorithm.eta; overrides are section.key=value"),
        (["none.toml", "run.rounds=1"], 2, "no config file none.toml; overrides are section.key=value"),
        (["run.rounds=1", "none.toml"], 2, "'none.toml' is not an override; write section.key=value, as in"),
        (["."], 2, "cannot read .: Is a directory"),
        (["run.init=none.safetensors"], 4, "no model file none.safetensors; `fedcom run` leaves one as"),
        (["data.name=mnist", "data.root=none"], 4, "data.root 'none' does not hold mnist"),
    ],
)
def test_what_a_user_can_fix_is_one_line(
    command: Command, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    got = command("run", *arguments)
    assert (got.code, got.out) == (code, "")
    assert got.err.startswith(f"fedcom: {message}")
    assert got.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_config_file_comes_first_and_overrides_after_it(command: Command, tmp_path: Path) -> None:
    Path("my.toml").write_text("[run]\nrounds = 5\n[model]\nhidden = [8]\n[algorithm]\nname = 'fedavg'\n")
    got = command("run", "my.toml", "run.rounds=1", "algorithm.tau=1", "-q")
    assert got == (0, "results in runs/fedavg-digits-001\n", "")
    assert rows_of(tmp_path / "runs" / "fedavg-digits-001")[-1]["round"] == 1
    again = command("run", "my.toml", "run.rounds=0", "-q")
    assert again.out == "results in runs/fedavg-digits-002\n"


def test_a_folder_is_never_overwritten_unless_forced(command: Command, tmp_path: Path) -> None:
    command("run", *SMALL, "-q", "--out", "a")
    Path("a/mine.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in Path("a").iterdir()}
    for arguments in (["run"], ["compare", "--methods", "fedavg"], ["run", "data.name=digit", "--force"]):
        got = command(*arguments, *SMALL, "-q", "--out", "a")
        assert got.code == 2
        assert {path.name: path.read_bytes() for path in Path("a").iterdir()} == before
    assert command("run", *SMALL, "run.rounds=1", "-q", "--out", "a", "--force").code == 0
    assert Path("a/mine.txt").read_text() == "mine"
    assert [row["round"] for row in rows_of(tmp_path / "a")] == [0, 1]


def test_evaluate_gives_the_scores_of_the_last_row(command: Command, tmp_path: Path) -> None:
    command("run", *SMALL, "-q", "--out", "a")
    last = rows_of(tmp_path / "a")[-1]
    code, out, err = command("evaluate", "a")
    assert (code, err) == (0, "")
    scores = json.loads(out)
    assert scores.pop("data") == "digits"
    keys = ("train_loss", "test_loss", "test_accuracy", "worst_client_accuracy")
    assert scores == {key: last[key] for key in keys}
    other = json.loads(command("evaluate", "a", "data.partition=iid", "data.clients=5").out)
    assert other["test_accuracy"] == last["test_accuracy"]
    assert other["worst_client_accuracy"] > last["worst_client_accuracy"]


def test_evaluate_names_the_missing_file(command: Command) -> None:
    got = command("evaluate", "none")
    assert (got.code, got.out) == (2, "")
    assert got.err == "fedcom: none holds no run: it has no config.toml\n"
    command("run", *SMALL, "run.rounds=0", "-q", "--out", "a")
    Path("a/model.safetensors").unlink()
    got = command("evaluate", "a")
    assert got.code == 4
    assert "no model file a/model.safetensors" in got.err


def test_compare_prints_its_table_and_goes_on_past_a_diverged_method(command: Command) -> None:
    wild = ("--methods", "fedavg, wild", "methods.wild.name=fedavg", "methods.wild.eta=1e30")
    code, out, err = command("compare", *SMALL, *wild, "-q", "--seeds", "2")
    assert code == 0
    assert "round" not in err
    assert re.search(r"wild\s+diverged first at round 0", out)
    assert re.search(r"fedavg\s+\d", out)
    places = "table and figures in runs/compare-digits-001\nreport in runs/compare-digits-001/report.html\n"
    assert out.endswith(places)
    assert {
        "table.json",
        "table.csv",
        "table.md",
        "loss_rounds.png",
        "loss_bytes.png",
        "accuracy_bytes.png",
    } <= {path.name for path in Path("runs/compare-digits-001").iterdir()}


def test_compare_names_each_run_in_its_progress(command: Command) -> None:
    got = command("compare", *SMALL, "run.rounds=0", "--methods", "fedavg,fedpaq", "--seeds", "2")
    labels = [line.split("  ")[0] for line in got.err.splitlines()]
    assert labels == ["fedavg seed 0", "fedavg seed 1", "fedpaq seed 0", "fedpaq seed 1"]


def test_labels_with_commas_are_names_of_methods() -> None:
    table: dict[str, Any] = {"methods": {"a, b": {}, "a, b, c": {}, "d": {}}}
    assert methods_in("a, b,d , a, b, c,fedavg", table) == ["a, b", "d", "a, b, c", "fedavg"]
    assert methods_in("fedavg, ,fedpaq", {}) == ["fedavg", "fedpaq"]


@pytest.mark.parametrize(
    "arguments", [["--methods", "fedavg,fedcomgat"], ["data.name=5"], ["--methods", ","]]
)
def test_compare_refuses_before_anything_runs(command: Command, tmp_path: Path, arguments: list[str]) -> None:
    got = command("compare", *arguments)
    assert (got.code, got.out) == (2, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", options.LISTS)
def test_list_prints_one_line_per_choice(command: Command, what: str) -> None:
    code, out, err = command("list", what)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(REGISTRIES[what])
    described = json.loads(command("list", what, "--json").out)
    assert list(described) == list(REGISTRIES[what])
    assert all(entry["description"] and entry["source"] == "fedcom" for entry in described.values())
    assert {line.split()[-1] for line in out.splitlines()} == {"fedcom"}


def test_list_suggests_the_nearest_name(command: Command) -> None:
    got = command("list", "codec")
    assert (got.code, got.err) == (2, "fedcom: unknown list 'codec'; did you mean 'codecs'?\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["compare", "three.toml"], "methods is a section; write methods.key=value, not methods=3"),
        (["sweep", "three.toml", "grid.eta=1"], "methods is a section; write methods.key=value"),
        (["run", ""], "no config file ''; overrides are section.key=value"),
        (["run", "data.name=", "--dry-run"], "unknown data set ''; known: "),
        (["compare", "--methods", "a/b"], "as in methods.ab.name=a/b and --methods ab"),
        (["tune", "--methods", ","], "name at least one method to tune"),
        (["tune", "grid.etaa=1"], "none of the methods has a key 'etaa' to tune; did you mean 'eta'?"),
        (
            ["tune", "--budget", "1"],
            "a budget of 1 whole runs is too small: to search 29 points and to confirm",
        ),
    ],
)
def test_odd_words_are_refused_in_one_line(
    command: Command, tmp_path: Path, arguments: list[str], told: str
) -> None:
    (tmp_path / "three.toml").write_text("methods = 3\n")
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("fedcom: ")
    assert told in err
    assert err.count("\n") == 1
    if "--budget" not in arguments:  # which is known to be too small once there is a grid
        assert [path.name for path in tmp_path.iterdir()] == ["three.toml"]
