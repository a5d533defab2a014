"""The server's optimiser in configs, from a name to a run that goes on; on the command line and in sweeps."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedcom.algorithms import ALGORITHMS, FedCOM
from fedcom.algorithms.optimisers import OPTIMISERS, SGD, Adam, Momentum, Nesterov, Yogi
from fedcom.config import Config, read
from fedcom.config.methods import alone, check_shared, variant
from fedcom.errors import ConfigError
from fedcom.runs.prepare import refuse
from tests.config.test_config import back, config
from tests.processes import Result, finished

SMALL = ("model.hidden=8", "algorithm.tau=2", "run.checkpoint_rounds=2", "-q")


@pytest.mark.parametrize(
    ("overrides", "server"),
    [
        ("", SGD()),
        ("server.name=momentum", Momentum(0.9)),
        ("server.name=nesterov server.momentum=0.5", Nesterov(0.5)),
        ("algorithm.server=momentum", Momentum(0.9)),
        ("algorithm.server=momentum server.momentum=0.5", Momentum(0.5)),
        ("algorithm.server.name=momentum algorithm.server.momentum=0.3", Momentum(0.3)),
        ("algorithm.server.name=momentum algorithm.server.momentum=0.3 server.momentum=0.5", Momentum(0.5)),
        ("algorithm.server=momentum server.name=yogi", Yogi()),
        ("algorithm.name=fedadam", Adam()),
        ("algorithm.name=fedadam server.rate=0.5", Adam(rate=0.5)),
        ("algorithm.name=fedadam algorithm.server.rate=0.5", Adam(rate=0.5)),
        ("algorithm.name=fedadam algorithm.server.rate=0.5 server.tau=0.1", Adam(rate=0.5, tau=0.1)),
        ("algorithm.name=fedadam server.name=adam server.beta2=0.5", Adam(beta2=0.5)),
        ("algorithm.name=fedadam server.name=sgd", SGD()),
        ("algorithm.name=fedadam algorithm.server=sgd", SGD()),
        ("algorithm.name=fedavgm server.name=nesterov", Nesterov()),
    ],
)
def test_a_name_chooses_and_parameters_alone_refine_the_methods_own(overrides: str, server: Any) -> None:
    made = config(*overrides.split())
    assert made.algorithm.server == server
    assert back(made) == made


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("server", OPTIMISERS)
def test_every_method_and_optimiser_survives_being_written(name: str, server: str) -> None:
    made = config(f"algorithm.name={name}", f"server.name={server}")
    assert made.algorithm.server == OPTIMISERS[server]()
    assert back(made) == made


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("server.name=momentun", "unknown server optimiser 'momentun'; did you mean 'momentum'?"),
        ("server.name=3", "unknown server optimiser 3; known: adagrad, adam, "),
        ("server.nmae=momentum", "server sgd has no key 'nmae'; did you mean 'name'?"),
        ("server.momentum=0.5", "server sgd has no key 'momentum'; it is a key of momentum, nesterov"),
        ("algorithm.server.momentum=0.5", "server sgd has no key 'momentum'; it is a key of momentum"),
        ("algorithm.server.momentum=0.5 server.momentum=0.3", "server sgd has no key 'momentum'"),
        ("server.name=momentum server.beta1=0.5", "server momentum has no key 'beta1'; it is a key of adam"),
        ("algorithm.name=fedadam server.momentum=0.5", "server adam has no key 'momentum'; it is a key of"),
        ("server.name=momentum server.momentum=fast", "server.momentum must be a number; got 'fast'"),
        ("server.name=momentum server.momentum=1", "server: momentum must be in [0, 1); got 1"),
        ("server.name=adam server.tau=0", "server: tau must be above 0; got 0"),
        ("algorithm.server=3", "algorithm.server must be 'sgd' or 'momentum' or "),
        ("algorithm.server=3 server.momentum=0.5", "algorithm.server must be 'sgd' or 'momentum' or "),
        ("algorithm.name=fedadam algorithm.gamma=2", "fedadam fixes gamma at 1.0; got 2"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(*overrides.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_have_optimisers_of_their_own() -> None:
    table = {
        "server": {"name": "momentum"},
        "methods": {
            "less": {"name": "fedcom", "server": {"momentum": 0.3}},
            "none": {"name": "fedcom", "server": "sgd"},
            "adam": {"name": "fedadam", "server": {"name": "adam", "rate": 0.2}},
        },
    }
    found = {label: variant(table, label).algorithm.server for label in ("fedavg", "less", "none", "adam")}
    assert found == {"fedavg": Momentum(), "less": Momentum(0.3), "none": SGD(), "adam": Adam(rate=0.2)}
    with pytest.raises(ConfigError, match=r"^bad: server is a section; write server\.key=value, not"):
        variant({"methods": {"bad": {"name": "fedcom", "server": 3}}}, "bad")
    with pytest.raises(ConfigError, match=r"^bad: unknown server optimiser 'adm'; did you mean 'adam'\?"):
        variant({"methods": {"bad": {"name": "fedcom", "server": "adm"}}}, "bad")


def test_shared_settings_go_to_the_optimisers_that_have_them() -> None:
    table = {
        "server": {"momentum": 0.5, "tau": 0.01},
        "methods": {
            "a": {"name": "fedcom", "server": "nesterov"},
            "b": {"name": "fedcom", "server": "adam"},
            "c": {"name": "fedcom", "server": {"name": "yogi", "rate": 0.2}},
        },
    }
    found = {label: variant(table, label).algorithm.server for label in ("a", "b", "c", "fedavg", "fedavgm")}
    assert found == {
        "a": Nesterov(0.5),
        "b": Adam(tau=0.01),
        "c": Yogi(rate=0.2, tau=0.01),
        "fedavg": SGD(),
        "fedavgm": Momentum(0.5),
    }
    named = {**table, "server": {"name": "momentum", "momentum": 0.5}}
    assert [variant(named, label).algorithm.server for label in "abc"] == [
        Nesterov(0.5), Adam(), Yogi(rate=0.2),
    ]  # fmt: skip
    check_shared(table, ["a", "b", "fedavg"])
    with pytest.raises(ConfigError, match="server sgd has no key 'momentum'; it is a key of momentum, nest"):
        check_shared(table, ["fedavg", "b"])
    with pytest.raises(ConfigError, match=r"^b: server adam has no key 'momentun'"):
        variant({**table, "server": {"momentun": 0.5}}, "b")


def test_a_server_without_a_name_is_told_what_to_write() -> None:
    with pytest.raises(
        ConfigError, match=r"server needs a name, as in {'name': 'momentum', 'momentum': 0\.3}"
    ):
        FedCOM(server={"momentum": 0.3})  # type: ignore[arg-type]


DATA = ("", "data.path=mine.csv", "model.name=logistic uplink.bits=4 algorithm.tau=3 run.seed=5")


@pytest.mark.parametrize("overrides", DATA)
def test_what_is_run_by_default_and_by_name(tmp_path: Path, overrides: str) -> None:
    """A file, a name, or few clients per round mean a method as published; else it is FedCOM at its best."""
    words = overrides.split()
    old = Config.of(read(None, words))
    assert (old.algorithm.name, old.algorithm.server) == ("fedcomgate", SGD())
    assert alone("paper", words) == old
    assert alone(None, [*words, "algorithm.name=fedcomgate"]) == old
    silent = tmp_path / "a.toml"
    silent.write_text("[run]\nrounds = 100\n")
    assert alone(str(silent), words) == old
    few = replace(old, run=replace(old.run, participation=0.49))
    assert alone(None, [*words, "run.participation=0.49"]) == few
    best = alone(None, words)
    a = best.algorithm
    assert (a.name, a.eta, a.gamma, a.server) == ("fedcom", "auto", "auto", Momentum(0.9))
    assert (best.data, best.model, best.run, best.links.uplink) == (
        *(old.data, old.model, old.run, old.links.uplink),
    )


@pytest.mark.parametrize(
    ("overrides", "server", "rates"),
    [
        ("server.momentum=0.5 algorithm.eta=0.1", Momentum(0.5), (0.1, "auto")),
        ("server.name=sgd algorithm.gamma=2", SGD(), ("auto", 2)),
        ("algorithm.server=adam", Adam(), ("auto", "auto")),
        ("server.name=yogi server.rate=0.2", Yogi(rate=0.2), ("auto", "auto")),
        ("run.participation=0.5", Momentum(), ("auto", "auto")),
    ],
)
def test_what_is_given_changes_nothing_else_of_the_default(
    overrides: str, server: Any, rates: tuple[Any, Any]
) -> None:
    found = alone(None, overrides.split()).algorithm
    assert (found.name, found.server, (found.eta, found.gamma)) == ("fedcom", server, rates)


def test_a_downlink_codec_suits_the_default_method() -> None:
    made = alone(None, ["downlink.name=rotated", "downlink.bits=1", "data.clients=4"])
    assert (made.algorithm.option, made.links.downlink_memory) == ("I", "none")
    refuse(made, 4)


def fedcom(folder: Path, *arguments: str) -> Result:
    """Run a command that succeeds."""
    got = finished(folder, *arguments)
    assert got.code == 0, got
    return got


def written(path: Path) -> Config:
    return Config.of(tomllib.loads(path.read_text()))


def losses(folder: Path, key: str) -> dict[tuple[str, Any], float]:
    """The losses of a sweep over one key, by method and its value."""
    rows = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    return {(row["method"], row["point"][key]): row["train_loss"] for row in rows}


def test_a_sweep_over_momentum_and_one_over_optimisers(tmp_path: Path) -> None:
    run = ("sweep", *SMALL, "run.rounds=2", "--out")
    labels = ("methods.named.name=fedcom", "methods.named.server=momentum", "--methods", "named,fedavgm")
    fedcom(tmp_path, *run, "a", *labels, "grid.server.momentum=0,0.9")
    found = losses(tmp_path / "a", "server.momentum")
    assert found.keys() == {(label, mu) for label in ("named", "fedavgm") for mu in (0, 0.9)}
    fedcom(tmp_path, *run, "b", "--methods", "fedcom", "grid.server=sgd,momentum,yogi")
    chosen = losses(tmp_path / "b", "server")
    assert chosen["fedcom", "momentum"] == found["named", 0.9]
    assert chosen["fedcom", "sgd"] == pytest.approx(found["named", 0], rel=1e-4)  # momentum 0 is none
    assert len({*found.values(), *chosen.values()}) > 4
    for wrong, told in {
        "grid.server=sgd,nope": "unknown server optimiser 'nope'; known: ",
        "grid.server.momentum=0.5,0.9": "server sgd has no key 'momentum'; it is a key of momentum",
    }.items():
        got = finished(tmp_path, *run, "c", "--methods", "fedcom", wrong)
        assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
        assert told in got.err
    assert not (tmp_path / "c").exists()


RUNS = {
    "fedavgm": ("server.momentum=0.5", "run.participation=0.5"),
    "fedadam": ("server.name=sgd",),
    "fedcomgate-exact": ("server.name=yogi", "downlink.name=int", "downlink.bits=6"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_with_the_bits_of_an_undisturbed_one(tmp_path: Path, name: str) -> None:
    run = ("run", *SMALL, f"algorithm.name={name}", *RUNS[name])
    fedcom(tmp_path, *run, "run.rounds=5", "--out", "whole")
    fedcom(tmp_path, *run, "run.rounds=3", "--out", "part")
    assert written(tmp_path / "part" / "config.toml").algorithm.server == (
        config(f"algorithm.name={name}", *RUNS[name]).algorithm.server
    )
    fedcom(tmp_path, "run", "--resume", "part", "run.rounds=5", "-q")
    for file in ("model.safetensors", "ledger.json", "config.toml"):
        assert (tmp_path / "part" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    fedcom(tmp_path, "run", "whole/config.toml", "-q", "--out", "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    scores = json.loads(fedcom(tmp_path, "evaluate", "whole").out)
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert scores["test_loss"] == pytest.approx(summary["test_loss"])


def test_another_optimiser_does_not_go_on(tmp_path: Path) -> None:
    fedcom(tmp_path, "run", "paper", *SMALL, "run.rounds=2", "--out", "plain")
    fedcom(tmp_path, "run", "paper", *SMALL, "run.rounds=2", "server.name=momentum", "--out", "heavy")
    for folder, change, told in (
        ("heavy", "server.momentum=0.6", "server.momentum=0.9, not 0.6"),
        ("heavy", "server.name=nesterov", "server.name=momentum, not nesterov"),
        ("plain", "server.name=momentum", "server.name=sgd, not momentum"),
        ("plain", "algorithm.server=adam", "server.name=sgd, not adam"),
    ):
        got = finished(tmp_path, "run", "--resume", folder, change, "run.rounds=3")
        assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
        assert got.err.startswith(f"fedcom: {folder} holds a run with {told}; leave it as it was")


def test_methods_with_and_without_an_optimiser_are_compared(tmp_path: Path) -> None:
    labels = ("methods.own.name=fedavg", "methods.own.server=momentum", "methods.own.gamma=10")
    methods = ("--methods", "fedavg,fedavgm,fedadam,own")
    fedcom(tmp_path, "compare", *SMALL, "run.rounds=3", *methods, *labels, "--out", "a")
    models = {
        label: (tmp_path / "a" / label / "seed-0" / "model.safetensors").read_bytes()
        for label in ("fedavg", "fedavgm", "fedadam", "own")
    }
    assert len(set(models.values())) == 3
    assert models["own"] == models["fedavgm"]  # which is fedavg with momentum and gamma 10
    table = json.loads((tmp_path / "a" / "table.json").read_text())
    assert "fedavgm" in json.dumps(table)


def test_what_can_be_set_for_a_method_names_the_optimisers(tmp_path: Path) -> None:
    for name in ("fedcom", "fedadam"):
        key = json.loads(fedcom(tmp_path, "list", "algorithms", name, "--json").out)["keys"]["server"]
        assert key["values"] == " or ".join(map(repr, OPTIMISERS))
        assert key["default"] == {"fedcom": {"name": "sgd"}}.get(name) or OPTIMISERS["adam"]() == Adam(
            **{k: v for k, v in key["default"].items() if k != "name"}
        )
        lines = fedcom(tmp_path, "list", "algorithms", name).out.splitlines()
        (line,) = (line for line in lines if line.startswith("server "))
        assert {"fedcom": " sgd ", "fedadam": " adam "}[name] in line
