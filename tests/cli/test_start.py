"""The command line before it computes: start, help, completion, dry runs, keys of a method, reports."""

import json
import os
import re
import select
import subprocess
import sys
import termios
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import fedcom
from fedcom.algorithms.optimisers import Optimiser
from fedcom.cli import options
from fedcom.reproduce import command as reproducing
from fedcom.studies import card_vectors, codec_card, compare, tune
from fedcom.theory import probes
from tests.cli.test_cli import SMALL, Command, command, rows_of
from tests.processes import PATIENCE, finished, started

__all__ = ["command"]  # a fixture
QUICK = ("--device", "cpu", "-q")


def imported(*arguments: str, **environment: str) -> tuple[set[str], str]:
    """The packages that a command imports, and what it prints."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "fedcom", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **environment},
    )
    names = re.findall(r"^import time:.*\|\s*([\w.]+)$", done.stderr, re.MULTILINE)
    return {name.split(".")[0] for name in names}, done.stdout


@pytest.mark.parametrize(
    "arguments", [["--help"], ["-h"], ["--version"], ["run", "--help"], ["compare", "-h"], ["list", "-h"], []]
)
def test_words_do_not_wait_for_torch(arguments: list[str]) -> None:
    packages, out = imported(*arguments)
    assert "fedcom" in packages
    assert not packages & {"torch", "numpy", "numba", "matplotlib", "sklearn"}
    assert "fedcom" in out


@pytest.mark.parametrize(
    "arguments", [["rum"], ["--hepl"], ["run", "--hepl"], ["run", "--device", "gpu"], ["list", "codex"]]
)
def test_near_misses_do_not_wait_for_torch(arguments: list[str]) -> None:
    packages, out = imported(*arguments)
    assert "typer" in packages
    assert not packages & {"torch", "numpy", "numba", "matplotlib", "sklearn"}
    assert out == ""


def test_completion_does_not_wait_for_torch() -> None:
    packages, out = imported(_FEDCOM_COMPLETE="complete_bash", COMP_WORDS="fedcom re", COMP_CWORD="1")
    assert set(out.split()) == {"report", "reproduce"}
    assert "torch" not in packages
    _, out = imported(_FEDCOM_COMPLETE="complete_bash", COMP_WORDS="fedcom list ", COMP_CWORD="2")
    assert out.split() == list(options.LISTS)


def test_the_script_for_a_shell_is_printed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # whoever starts the tests
    assert "_FEDCOM_COMPLETE" in command("--show-completion", "bash").out


def test_what_the_help_says_without_torch_is_true() -> None:
    assert options.METHODS.split(", ") == list(compare.METHODS)
    assert options.studies("") == [*reproducing.NAMES, "all", "rates"]
    assert options.studies("front") == [name for name in reproducing.NAMES if name.startswith("frontier")]
    assert (codec_card.RATES, str(codec_card.REPEAT)) == (options.RATES, options.REPEAT)
    assert options.DIM == card_vectors.DIM
    assert (options.CLIENTS, options.SAMPLES, options.SEEDS) == (probes.CLIENTS, probes.SAMPLES, tune.SEEDS)


def test_short_help_is_help(command: Command) -> None:
    for words in ([], ["run"], ["report"]):
        assert command(*words, "-h") == command(*words, "--help")


def test_a_dry_run_prints_the_settings_and_leaves_nothing(command: Command, tmp_path: Path) -> None:
    code, out, err = command("run", *SMALL, "--dry-run")
    assert (code, err) == (0, "")
    table = tomllib.loads(out)
    assert table["data"] == {**table["data"], "name": "digits", "clients": 20, "partition": "classes"}
    assert table["run"]["rounds"] == 2
    assert list(tmp_path.iterdir()) == []
    command("run", *SMALL, "-q", "--out", "a")
    assert (tmp_path / "a" / "config.toml").read_text().strip() == out.strip()
    assert command("run", "data.partition=classes", "data.classes_per_client=11", "--dry-run").code == 2


def test_dry_runs_of_comparisons_and_sweeps(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("compare", *SMALL, "--methods", "fedavg,fedcom", "--seeds", "3", "--dry-run")
    assert code == 0
    assert re.findall("^# (.*)$", out, re.MULTILINE) == ["fedavg, 3 seeds", "fedcom, 3 seeds"]
    names = [
        tomllib.loads(part)["algorithm"]["name"] for part in out.split("# ")[1:] for part in [f"# {part}"]
    ]
    assert names == ["fedavg", "fedcom"]
    code, out, _ = command("sweep", *SMALL, "grid.eta=0.1,0.2", "--seeds", "2", "--dry-run")
    assert out.splitlines()[:3] == [
        f"# fedcomgate, eta {eta}, seed {s}" for eta, s in ((0.1, 0), (0.1, 1), (0.2, 0))
    ]
    assert tomllib.loads(out)["algorithm"]["eta"] == 0.1
    _, out, _ = command("sweep", *SMALL, "algorithm.name=fedavg", "grid.eta=0.1", "--dry-run")
    assert out.startswith("# fedavg, eta 0.1"), "the config's own method"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", fedcom.ALGORITHMS)
def test_every_key_of_a_method_is_listed_with_default_and_meaning(command: Command, name: str) -> None:
    method = fedcom.ALGORITHMS[name]
    code, out, err = command("list", "algorithms", name)
    assert (code, err) == (0, "")
    facts = json.loads(command("list", "algorithms", name, "--json").out)
    for field in fields(method):
        assert re.search(rf"^{field.name} ", out, re.MULTILINE)
        assert facts["keys"][field.name]["what"], field.name
        if field.name not in method.fixed and field.default is not None:
            default = field.default
            usual = default.name if isinstance(default, Optimiser) else default
            told = facts["keys"][field.name]["default"]
            assert (told["name"] if isinstance(told, dict) else told) == usual


def test_codecs_models_and_data_sets_have_their_keys_too(command: Command) -> None:
    for what, registry in (("codecs", fedcom.CODECS), ("models", fedcom.MODELS)):
        for name, thing in registry.items():
            facts = json.loads(command("list", what, name, "--json").out)
            assert list(facts["keys"]) == [field.name for field in fields(thing)]  # type: ignore[arg-type]
            assert all(key["what"] for key in facts["keys"].values()), name
    assert "handwritten digits" in command("list", "datasets", "digits").out
    assert command("list", "codecs", "Top-K").err == "fedcom: unknown codec 'Top-K'; did you mean 'topk'?\n"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.name=FedAvg", "unknown algorithm 'FedAvg'; did you mean 'fedavg'?"),
        ("uplink.name=TOPK", "unknown codec 'TOPK'; did you mean 'topk'?"),
        ("data.name=MNIST", "unknown data set 'MNIST'; did you mean 'mnist'?"),
        ("model.name=CNN", "unknown model 'CNN'; did you mean 'cnn'?"),
        ("Algorithm.eta=1", "unknown section 'Algorithm'; did you mean 'algorithm'?"),
        ("run.Rounds=1", "run has no key 'Rounds'; did you mean 'rounds'?"),
    ],
)
def test_names_in_any_case_are_near_misses(command: Command, override: str, message: str) -> None:
    assert command("run", override).err == f"fedcom: {message}\n"


def test_one_gpu_of_several_can_be_chosen(command: Command) -> None:
    got = command("run", *SMALL, "--device", "cuda:99")
    assert (got.code, got.out) == (2, "")
    assert got.err.startswith("fedcom: device=cuda:99, but torch sees")


def on_a_terminal(folder: Path, *arguments: str) -> str:
    """What a command that succeeds writes to a terminal of 80 columns."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    there = f"import os\nfor stream in (1, 2): os.dup2(os.open({os.ttyname(theirs)!r}, os.O_WRONLY), stream)"
    shown = b""
    with started(folder, *arguments, environment={"TERM": "xterm"}, prelude=there) as running:
        while running.alive() or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.05)[0]:
                shown += os.read(ours, 4096)
        assert running.result().code == 0
    os.close(ours)
    os.close(theirs)
    return shown.decode()


def test_tables_fit_80_columns(tmp_path: Path) -> None:
    """On a terminal of 80 columns; nothing is cut, with seeds and modelled time."""
    arguments = ("network.preset=lte", "run.target_accuracy=0.05", "--methods", "fedavg,scaffold,fedcomgate")
    out = on_a_terminal(tmp_path, "compare", *SMALL, *arguments, "--seeds", "2", "-q", "--out", "a")
    assert "\x1b[" in out  # it has seen that it is a terminal
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "…" not in out
    table = (tmp_path / "a" / "table.md").read_text().splitlines()[2:5]
    assert len(table) == 3
    for word in " ".join(table).replace("|", " ").split():
        assert word in out
    card = on_a_terminal(
        tmp_path, "codecs", "--measure", "--dim", "200", "--repeat", "2", "--bits", "2", "-q"
    )
    assert "ratio=0." in card  # the settings of a codec, which were squeezed out
    assert "…" not in card


def test_a_terminal_is_told_at_once_how_it_goes_and_what_comes_next(tmp_path: Path) -> None:
    out = on_a_terminal(tmp_path, "run", *SMALL, "algorithm.eta=0.1", "--device", "cpu", "--out", "a")
    word, _, rest = out.partition("\r\x1b[2K")
    assert word == "fedcom run: starting ..."  # before torch is imported; then it goes away
    assert "starting" not in rest
    plain = re.sub(r"\x1b\[[\d;]*m", "", rest)
    assert re.search(r"fedcom ━+ 2/2 loss \S+  acc \S+%  up \S+ kB 0:\d\d  left 0:00", plain)
    assert plain.endswith("results in a\r\nnext: fedcom report a\r\n")


def test_help_names_no_type_for_flags_and_wraps_where_the_terminal_does(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = command("run", "-h").out
    assert "bool" not in shown + command("-h").out
    assert "list[" not in shown + command("reproduce", "-h").out
    lines = [line.strip() for line in shown.partition("That is what")[2].partition("╭")[0].splitlines()]
    assert all(len(line) > 60 for line in lines[1:-3])  # no line is broken twice


def test_list_alone_lists_the_kinds(command: Command) -> None:
    assert command("list") == (0, "".join(f"{name}\n" for name in options.LISTS), "")
    assert json.loads(command("list", "--json").out) == list(options.LISTS)


def test_a_piped_sweep_tells_where_it_is(tmp_path: Path) -> None:
    rounds = ("model.hidden=8", "algorithm.tau=1", "run.rounds=40", "grid.eta=0.1,0.2", "--device", "cpu")
    err = finished(tmp_path, "sweep", *rounds).err.splitlines()
    assert err[0].startswith("fedcomgate: run 1 of 2  round 3/40")
    assert sum(line.startswith("fedcomgate: run 2 of 2  round") for line in err) > 10


def test_a_report_tells_of_broken_runs_and_passes_over_files(command: Command, tmp_path: Path) -> None:
    command("run", *SMALL, *QUICK, "--out", "runs/a")
    (tmp_path / "runs" / "b").mkdir()
    (tmp_path / "runs" / "b" / "config.toml").write_text("no toml [")
    (tmp_path / "runs" / "note.txt").write_text("mine")
    names = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "runs").iterdir())
    code, out, err = command("report", *names)
    assert (code, out) == (0, "report in report.html\n")
    assert "fedcom: runs/b: config.toml: not what it should be" in err
    assert "note.txt" not in err
    assert rows_of(tmp_path / "runs" / "a")
    got = command("report", "runs/note.txt")
    assert (got.code, "name folders" in got.err) == (2, True)
    assert command("report", "runs/a", "runs/none").code == 2
