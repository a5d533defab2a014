"""The optimiser of the clients' steps in configs: chosen, refused, swept, and in a run that goes on."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedcom.algorithms.local_optimisers import AdamWSteps, MomentumSteps, MuonSteps, PlainSteps
from fedcom.config.methods import variant
from fedcom.errors import ConfigError
from tests.config.test_config import back, config
from tests.config.test_server import SMALL, fedcom, losses
from tests.processes import finished


@pytest.mark.parametrize(
    ("overrides", "local"),
    [
        ("", PlainSteps()),
        ("local.name=momentum", MomentumSteps()),
        ("local.clip=0.5 local.mu=0.1", PlainSteps(clip=0.5, mu=0.1)),
        ("algorithm.local=adamw local.keep=true", AdamWSteps(keep=True)),
        ("algorithm.local.name=muon local.adamw=0.1 server.name=adam", MuonSteps(adamw=0.1)),
        ("algorithm.local=momentum local.name=adamw local.weight_decay=0", AdamWSteps(weight_decay=0.0)),
    ],
)
def test_a_name_chooses_and_parameters_alone_refine_the_methods_own(overrides: str, local: Any) -> None:
    made = config(*overrides.split())
    assert made.algorithm.local == local
    assert back(made) == made


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("local.name=momentun", "unknown local optimiser 'momentun'; did you mean 'momentum'?"),
        ("local.momentum=0.5", "local sgd has no key 'momentum'; it is a key of momentum, muon"),
        ("local.name=momentum local.momentum=1", "local: momentum must be in [0, 1); got 1"),
        ("local.clip=0", "local: clip must be above 0; got 0"),
        ("local.keep=maybe", "local.keep must be true or false; got 'maybe'"),
        ("algorithm.local=3", "algorithm.local must be 'sgd' or 'momentum' or "),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(*overrides.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_have_optimisers_of_their_own() -> None:
    own = {"less": {"name": "fedcom", "local": {"momentum": 0.3}}, "none": {"name": "fedcom", "local": "sgd"}}
    table = {"local": {"name": "momentum"}, "methods": own}
    found = {label: variant(table, label).algorithm.local for label in ("fedavg", "less", "none")}
    assert found == {"fedavg": MomentumSteps(), "less": MomentumSteps(momentum=0.3), "none": PlainSteps()}


def test_a_run_goes_on_with_the_bits_of_an_undisturbed_one_and_no_other(tmp_path: Path) -> None:
    kept = ("algorithm.name=fedcom", "local.name=adamw", "local.keep=true", "run.participation=0.5")
    run = ("run", *SMALL, *kept, "algorithm.eta=0.01")
    fedcom(tmp_path, *run, "run.rounds=5", "--out", "whole")
    fedcom(tmp_path, *run, "run.rounds=3", "--out", "part")
    fedcom(tmp_path, "run", "--resume", "part", "run.rounds=5", "-q")
    for file in ("model.safetensors", "ledger.json", "config.toml"):
        assert (tmp_path / "part" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    for change, told in (
        ("local.name=muon", "local.name=adamw, not muon"),
        ("local.clip=1", "local.clip=None, not 1"),
    ):
        got = finished(tmp_path, "run", "--resume", "part", change, "run.rounds=6")
        assert (got.code, got.out, got.err.count("\n")) == (2, "", 1)
        assert f"fedcom: part holds a run with {told}" in got.err


def test_a_sweep_and_what_the_list_says(tmp_path: Path) -> None:
    run = ("sweep", *SMALL, "run.rounds=2", "--methods", "fedcom", "--out")
    fedcom(tmp_path, *run, "a", "local.name=momentum", "grid.local.momentum=0,0.9")
    fedcom(tmp_path, *run, "b", "grid.local=sgd,momentum,muon")
    heavy, chosen = losses(tmp_path / "a", "local.momentum"), losses(tmp_path / "b", "local")
    assert chosen["fedcom", "momentum"] == heavy["fedcom", 0.9]
    assert chosen["fedcom", "sgd"] == pytest.approx(heavy["fedcom", 0], rel=1e-4)
    key = json.loads(fedcom(tmp_path, "list", "algorithms", "fedcom", "--json").out)["keys"]["local"]
    assert (key["values"], key["default"]["name"]) == ("'sgd' or 'momentum' or 'adamw' or 'muon'", "sgd")
    rates = ("algorithm.eta=0.001", "algorithm.gamma=1")
    got = finished(tmp_path, "run", *SMALL, "algorithm.name=fedcomgate", "local.name=adamw", *rates)
    assert (got.code, got.err.count("\n")) == (2, 1)
    assert "fedcomgate learns gradients from how far clients went" in got.err
