"""Nothing does nothing in silence: what would be ignored is refused or warned of."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fedcom import Codec, ConfigError, Diverged, FedAvg, FedCOM, Int, Links, Scaffold, Sign, Simulation
from fedcom.codecs.wire import Field
from fedcom.config import read
from fedcom.reproduce import command
from fedcom.studies import sweep
from fedcom.studies.compare import alone, variant, variants
from tests.conftest import mlp_task, quadratic_task

ROOT = Path(__file__).parent.parent
MNIST = str(ROOT / "experiments" / "mnist.toml")


# Running


def test_run_plays_to_the_end_and_calls_back() -> None:
    simulation, seen = Simulation(mlp_task(), FedAvg(tau=1), rounds=3, device="cpu"), list[Any]()
    results = simulation.run([seen.append])
    assert simulation.round == 3
    assert [row["round"] for row in results] == [0, 1, 2, 3]
    assert seen == list(results)
    assert simulation.run() == results  # there is nothing left to do


def test_rows_of_a_diverged_run_are_kept() -> None:
    simulation = Simulation(quadratic_task(), FedAvg(eta=1e40), rounds=50, device="cpu")
    with pytest.raises(Diverged):
        simulation.run()
    assert simulation.results["round"] == list(range(len(simulation.results)))


# Settings that would be ignored


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("methods.foo=3", "methods.foo is a section; write methods.foo.key=value"),
        ("methods.fedavg.eta=1", "methods.fedavg is about fedavg, and this runs fedcomgate"),
        ("rnu.rounds=1", "unknown section 'rnu'; did you mean 'run'?"),
        ("grid.eta=1,2", "[grid] is what `fedcom sweep` tries"),
        ("algorithm.epochs=2 algorithm.tau=3", "epochs sets the local steps, so tau=3 would be idle"),
        ("algorithm.name=fedavg uplink.bits=2", "fedavg"),
    ],
)
def test_a_run_refuses_what_it_would_ignore(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        alone(None, overrides.split())


def test_a_run_takes_the_settings_of_its_method() -> None:
    tuned = alone(MNIST, ["algorithm.name=fedavg"])
    assert tuned.algorithm == variant(read(MNIST), "fedavg").algorithm == FedAvg(eta=0.2, gamma=4.0)
    assert alone(MNIST, ["algorithm.name=fedavg", "algorithm.eta=0.3"]).algorithm.eta == 0.3
    assert alone(MNIST, ["algorithm.name=fedavg", "methods.fedavg.eta=0.4"]).algorithm.eta == 0.4
    assert alone(MNIST, ["algorithm.name=fedcomgate 2-bit"]).links.uplink == Int(bits=2)
    assert alone(MNIST, ["algorithm.name=scaffold"]).algorithm == Scaffold(eta=0.05, gamma=4.0)


def test_epochs_take_the_place_of_a_files_tau(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[algorithm]\ntau = 3\n[methods.fedavg]\nepochs = 4\n")
    chosen = alone(str(path), ["algorithm.epochs=2"]).algorithm
    assert (chosen.epochs, chosen.tau) == (2, type(chosen).tau)
    assert variant(read(str(path)), "fedavg").algorithm == FedAvg(epochs=4)


@pytest.mark.parametrize("word", ["rnu.rounds=1", "run.ronds=1", "algorithm.etaa=1"])
def test_reproduce_refuses_what_names_nothing(word: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        command.run(["fig4", word], True, None, tmp_path, "cpu", True)


def test_codecs_that_no_method_uses_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"uplink.name=gzip is not used: none of fedavg compresses"):
        variants({"uplink": {"name": "gzip"}}, ["fedavg"], range(1))
    with pytest.raises(ConfigError, match="unknown codec 'gzip'"):
        variants({"uplink": {"name": "gzip"}}, ["fedavg", "fedpaq"], range(1))


def test_a_sweep_counts_nothing_twice() -> None:
    with pytest.raises(ConfigError, match="fedavg is among the methods twice"):
        list(sweep.trials_of({}, [(("eta", 0.1),)], ["fedavg", "fedavg"], 1))
    with pytest.raises(ConfigError, match=r"grid.eta has a value twice"):
        sweep.points({"eta": [0.1, 0.2, 0.1]})


# Surprises


def test_a_decay_that_freezes_the_run_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"decay=0.99 leaves 4e-05 of eta .* set decay=1 .* or 0.9977"):
        Simulation(mlp_task(), FedAvg(), rounds=1000, device="cpu")
    Simulation(mlp_task(), FedAvg(), rounds=400, device="cpu")  # warnings are errors here
    Simulation(mlp_task(), FedAvg(decay=1.0), rounds=10**6, device="cpu")


def test_by_default_clients_weigh_the_same_whatever_their_size() -> None:
    task = mlp_task(sizes=[1, 2, 3])
    assert Simulation(task, FedAvg(), device="cpu").weights.tolist() == pytest.approx([1 / 3] * 3)
    sized = Simulation(task, FedAvg(weights="size"), device="cpu").weights
    assert sized.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])


@dataclass(frozen=True)
class Loose(Codec):
    """Two bits per coordinate by its fields; what it really sends depends on the setting."""

    sends: str = "enough"

    name: ClassVar[str] = "loose"
    id: ClassVar[int] = 201

    @property
    def unbiased(self) -> bool:
        return False

    def variance(self, layout: Any) -> float:
        return 1.0

    def fields(self, layout: Any) -> list[Field]:
        return [Field("scale", 1, 32, floating=True), Field("steps", layout.size, 2)]

    def compress(self, x: Any, layout: Any, draw: Any) -> dict[str, Any]:
        scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-30)
        parts = {"scale": scale, "steps": (1 + (x / scale).round()).long()}
        if self.sends == "too large":
            parts["steps"] = parts["steps"] + 4
        if self.sends == "fractions":
            parts["steps"] = parts["steps"] + 0.5
        if self.sends == "float64":
            parts["scale"] = x.abs().amax(-1, keepdim=True).double() / 3
        if self.sends == "more":
            parts["shift"] = scale
        if self.sends == "half":
            parts["steps"] = parts["steps"][..., ::2]
        return parts

    def expand(self, parts: Any, layout: Any, draw: Any) -> Any:
        steps = parts["steps"] if parts["steps"].shape[-1] == layout.size else torch.zeros(layout.size)
        return parts["scale"].to(layout.dtype) * (steps - 1.0).to(layout.dtype)


@pytest.mark.parametrize("encode", [False, True])
@pytest.mark.parametrize(
    ("sends", "message"),
    [
        ("too large", "part 'steps' has whole numbers from 0 to 3, but got 4 to 6"),
        ("fractions", "part 'steps' has whole numbers, but got fractions"),
        ("float64", "part 'scale' has floats of 32 bits; round the values to them in compress"),
        ("more", "part 'shift' is not in fields, so its bytes are not counted"),
        ("half", r"part 'steps' has \d+ numbers, but got \d+ per message"),
    ],
)
def test_a_codec_of_ones_own_cannot_book_less_than_it_sends(sends: str, message: str, encode: bool) -> None:
    links = Links(Loose(sends), encode=encode)
    with pytest.raises(ConfigError, match=f"codec loose: {message}"):
        Simulation(mlp_task(), FedCOM(tau=1), links, rounds=1, device="cpu").run()


def test_a_codec_of_ones_own_that_books_right_is_let_through() -> None:
    task = mlp_task()
    row = Simulation(task, FedCOM(tau=1), Links(Loose()), rounds=1, device="cpu").run()[-1]
    assert row["uplink_bytes"] == 16 + 4 + (2 * task.objective.layout.size + 7) // 8


def test_a_codec_of_ones_own_that_meets_a_diverged_model_is_not_blamed() -> None:
    with pytest.raises(Diverged):
        Simulation(quadratic_task(), FedCOM(eta=1e40, tau=3), Links(Loose()), rounds=50, device="cpu").run()


def test_a_reused_codec_id_is_refused() -> None:
    @dataclass(frozen=True)
    class Taken(Loose):
        name: ClassVar[str] = "taken"
        id: ClassVar[int] = Sign.id

    @dataclass(frozen=True)
    class Other(Loose):
        name: ClassVar[str] = "other"

    with pytest.raises(ConfigError, match=rf"its id is {Sign.id}; below 128 they are fedcom's own"):
        Links(Taken())
    with pytest.raises(ConfigError, match="uplink and downlink have codecs with one id, 201"):
        Links(Loose(), Other())
