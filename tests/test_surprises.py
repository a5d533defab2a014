"""Nothing does nothing in silence: what would be ignored is refused or warned of."""

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fedcom import (
    ALGORITHMS,
    VRLSGD,
    Codec,
    ConfigError,
    Diverged,
    FedAvg,
    FedCOM,
    FedGATE,
    Int,
    Links,
    Scaffold,
    Sign,
    Simulation,
)
from fedcom.codecs.wire import Field
from fedcom.config import dumps, read
from fedcom.config.methods import alone, variant
from fedcom.draws import Draw
from fedcom.reproduce import command
from fedcom.runs.prepare import prepare
from fedcom.studies.compare import variants
from fedcom.studies.trials import points, trials_of
from fedcom.vectors import Layout
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
        ("algorithm.epochs=2 algorithm.tau=3", "epochs sets the local steps, so tau=3 would have no effect"),
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


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            "data.partition=iid data.alpha=0.1",
            "data.alpha=0.1 changes nothing: it is for dirichlet and synth",
        ),
        ("data.alpha=0.1", "and this is partition classes of digits"),
        ("data.beta=2", "data.beta=2 changes nothing: it is for synthetic"),
        ("data.partition=dirichlet data.classes_per_client=3", "data.classes_per_client=3 changes nothing"),
        ("data.name=synthetic data.clients=5 data.classes_per_client=3", "and this is partition natural of"),
        ("data.root=/tmp/nowhere", "data.root=/tmp/nowhere changes nothing: it is for data sets with files"),
        ("model.name=quadratic data.alpha=2", "and this is partition natural of quadratic"),
        (
            "algorithm.name=fedcom uplink.name=identity uplink.memory=error-feedback",
            "uplink.memory=error-feedback changes nothing: identity drops nothing",
        ),
        ("round.deadline=5", "[round] changes nothing here: it is about real clients"),
        ("run.store=memory run.store_folder=/tmp", "run.store_folder changes nothing: run.store=memory"),
        # these are used
        ("data.partition=dirichlet data.alpha=0.3", ""),
        ("data.partition=classes data.classes_per_client=3", ""),
        ("data.name=synthetic data.clients=5 data.alpha=2 data.beta=2", ""),
        ("data.partition=tests.test_surprises:by_alpha data.alpha=0.2 data.classes_per_client=5", ""),
        (
            "data.name=tests.test_surprises:own_data data.clients=4 data.alpha=0.2 data.root=here",
            "",
        ),
        ("uplink.name=topk uplink.memory=error-feedback", ""),
        ("algorithm.name=fedcom uplink.name=identity uplink.memory=paper", ""),
    ],
)
def test_settings_that_change_nothing_are_warned_of(overrides: str, told: str) -> None:
    hidden = [] if "model" in overrides else ["model.hidden=4"]
    config = alone(None, [*overrides.split(), *hidden])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        prepare(config, "cpu")
    assert [told in str(one.message) for one in seen] == [True] * bool(told)


def test_a_config_that_spells_every_default_is_not_warned_of(tmp_path: Path) -> None:
    for overrides in ([], ["data.name=synthetic", "data.clients=5"], ["algorithm.name=fedavg"]):
        config = prepare(alone(None, [*overrides, "model.hidden=4"]), "cpu")[1]
        (tmp_path / "config.toml").write_text(dumps(config.table()))
        prepare(alone(str(tmp_path / "config.toml"), []), "cpu")  # warnings are errors here


def by_alpha(request: Any) -> list[Any]:
    """A partition of the user's own."""
    return list(torch.arange(len(request.y)).split(100))


def own_data(request: Any) -> Any:
    """A data set of the user's own."""
    return torch.randn(60, 4), torch.arange(60) % 3


def test_a_method_derived_from_one_without_a_codec_is_told_what_to_derive_from() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(FedAvg):
        name: ClassVar[str] = "mine"

    @dataclass(frozen=True, kw_only=True)
    class Nameless(FedGATE):
        pass

    @dataclass(frozen=True, kw_only=True)
    class Allowed(FedAvg):
        name: ClassVar[str] = "allowed"
        compresses: ClassVar[str | None] = None

    told = (
        "Mine derives from FedAvg, which sends its updates uncompressed; derive it from FedPAQ, which takes"
    )
    with pytest.raises(ConfigError, match=told):
        Simulation(mlp_task(), Mine(), "int", device="cpu")
    with pytest.raises(ConfigError, match=r"Nameless derives from FedGATE, .* derive it from FedCOMGATE"):
        Simulation(mlp_task(), Nameless(), "int", device="cpu")
    with pytest.raises(ConfigError, match="its twin with a codec is fedcomgate"):
        Simulation(mlp_task(), VRLSGD(), "int", device="cpu")
    Simulation(mlp_task(), Allowed(tau=1), "int", rounds=1, device="cpu").run()
    with pytest.raises(ConfigError, match=r"class Nameless has no name but that of FedGATE.* = 'nameless'"):
        ALGORITHMS.add(Nameless)


def test_a_sweep_counts_nothing_twice() -> None:
    with pytest.raises(ConfigError, match="fedavg is among the methods twice"):
        list(trials_of({}, [(("eta", 0.1),)], ["fedavg", "fedavg"], 1))
    with pytest.raises(ConfigError, match=r"grid.eta has a value twice"):
        points({"eta": [0.1, 0.2, 0.1]})


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


def test_a_codec_derived_from_int_is_heard_as_it_is_overridden() -> None:
    """Also where loops take the place of int's own rules."""

    @dataclass(frozen=True)
    class Doubled(Int):
        name: ClassVar[str] = "doubled"
        id: ClassVar[int] = 202

        def expand(self, parts: Any, layout: Any, draw: Any) -> Any:
            return 2 * super().expand(parts, layout, draw)

    x, layout, draw = torch.arange(12.0), Layout.vector(12), Draw.seeded(0)
    heard = Doubled(8).quantise(x, layout, draw)
    assert torch.equal(heard, 2 * Int(8).quantise(x, layout, draw))
    assert torch.equal(heard, Doubled(8).decode(Doubled(8).encode(x, layout, draw), layout, draw))
