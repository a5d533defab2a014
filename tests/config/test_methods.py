"""Methods of a config: what a label stands for, what a method sends through, and what is said if wrong."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from fedcom.algorithms import ALGORITHMS, FedAvg
from fedcom.codecs import TopK
from fedcom.config import Config, RunConfig, RunSettings
from fedcom.config.methods import check_shared, method_keys, variant
from fedcom.errors import ConfigError
from fedcom.rounds.together import memory_of
from fedcom.runs.given import Given
from fedcom.studies.sweep import trials_of
from fedcom.traffic.links import Links
from tests.conftest import mlp_task


def test_shared_settings_go_to_the_methods_that_have_them() -> None:
    table = {
        "algorithm": {"eta": 0.3, "damping": 0.5},
        "uplink": {"bits": 3},
        "downlink": {"name": "topk"},
        "methods": {"mine": {"name": "fedcomgate", "eta": 0.7, "downlink": {"ratio": 0.5}}},
    }
    dense, mine = variant(table, "fedavg"), variant(table, "mine")
    assert (dense.algorithm, dense.links.uplink.name) == (FedAvg(eta=0.3), "identity")
    assert dense.links.downlink.name == "identity"
    assert (mine.algorithm.eta, mine.links.uplink.bits) == (0.7, 3)  # type: ignore[attr-defined]
    assert mine.links.downlink == TopK(ratio=0.5)


def test_a_shared_key_that_no_method_has_is_told_also_with_a_dot() -> None:
    for key in ("etta", "uplink.bits"):
        with pytest.raises(ConfigError, match=f"none of the methods has a key '{key}' in algorithm; "):
            check_shared({"algorithm": {key: 1}}, ["fedavg", "fedcom"])


@pytest.mark.parametrize(
    "use", [method_keys, variant, lambda t, m: list(trials_of(t, [(("eta", 0.1),)], [m], 1))]
)
def test_a_label_that_is_no_section_is_told(use: Any) -> None:
    with pytest.raises(ConfigError, match=r"methods\.mine is a section; write methods\.mine\.key=value"):
        use({"methods": {"mine": 3}}, "mine")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_config_and_python_send_through_the_same_by_default(name: str) -> None:
    config, algorithm = Config.of({"algorithm": {"name": name}}), ALGORITHMS[name]()
    assert Links.of(algorithm).uplink == config.links.uplink
    assert memory_of(algorithm, Links.of(algorithm)) == config.links.uplink_memory


def test_a_default_codec_with_a_wrong_key_is_told() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(FedAvg):
        name: ClassVar[str] = "mine"
        uplink: ClassVar[Mapping[str, Any]] = {"name": "int", "bit": 4, "memory": "error-feedback"}

    with pytest.raises(ConfigError, match=r"uplink int has no key 'bit'; did you mean 'bits'\?"):
        Links.of(Mine())


def test_settings_of_a_file_and_of_python_are_used_alike() -> None:
    task = mlp_task()
    given = Given(lambda seed: task, FedAvg(), Links.of(FedAvg()), RunConfig(rounds=3))
    both: list[RunSettings] = [Config.of({"algorithm": {"name": "fedavg"}, "run": {"rounds": 3}}), given]
    assert [one.task for one in both] == [None, task]
    for one in both:
        other = replace(one, algorithm=FedAvg(eta=0.5))
        assert (other.table()["algorithm"]["eta"], other.run.rounds, dict(other.metrics)) == (0.5, 3, {})


def test_methods_whose_steps_have_a_length_keep_their_rates_on_data_of_one_s_own() -> None:
    rates = {
        name: Config.of({"data": {"path": "own.csv"}, "algorithm": {"name": name}}).algorithm
        for name in ("diloco", "fedcom")
    }
    assert (rates["diloco"].eta, rates["diloco"].gamma) == (1e-3, 7.0)
    assert (rates["fedcom"].eta, rates["fedcom"].gamma) == ("auto", "auto")
