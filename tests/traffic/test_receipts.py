"""What goes down: the first model or its seed, and means or the model to clients that missed rounds."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedcom import Algorithm, Diana, FedAvg, FedCOMGATE, FedGATE, Links, Network, Scaffold, Simulation, Task
from fedcom.codecs import Codec, Dithered, Identity, Int, Peaks
from fedcom.config import Config, read
from fedcom.engines.local.eager import Rehearsal
from fedcom.engines.stacks import stack_runs
from fedcom.errors import ConfigError
from fedcom.rounds.round import play
from fedcom.runs.prepare import prepare
from fedcom.runs.run import execute
from fedcom.tasks.objective import Objective
from tests.conftest import after, mlp_task

BYTES_DOWN = Network(uplink=1e15, downlink=8e-6)  # a byte down takes a second, and nothing else does
SAMPLES = [[0, 2], [0, 2], [1, 3], [1, 3], [0, 3], [0, 1], [1, 2]]
MODEL = 16 + 8 * 66
MEAN = 16 + 32 + 66 + 24  # a message of int 8, and the server's measured q
LOSSY = Links(Identity(), Int(8))


def drawn_task() -> Task:
    task = mlp_task(clients=4)
    return replace(task, objective=Objective(task.objective.module, dtype=torch.float64, seed=0))


def half(algorithm: Algorithm, links: Links, rounds: int = len(SAMPLES), **options: Any) -> Simulation:
    """A run of four clients, of which those in SAMPLES take part."""
    return after(drawn_task(), algorithm, links, rounds, participation=0.5, seed=2, **options)


def down(simulation: Simulation) -> dict[str, dict[str, int]]:
    books: Any = simulation.ledger.as_dict()
    return books["downlink"]["vectors"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("encode", [False, True])
def test_bytes_and_modelled_time_by_hand(encode: bool) -> None:
    """Clients 1 and 3 are new in round 2, and client 2 misses four rounds: the model is shorter."""
    links = Links(Identity(), Int(8), encode=encode)
    simulation = half(FedGATE(tau=2, gamma=1.0), links, network=BYTES_DOWN)
    assert [simulation.state.sample(i).tolist() for i in range(len(SAMPLES))] == SAMPLES
    assert down(simulation)["catch-up"] == {"first model": 0, "means": (2 + 1) * MEAN, "model": 3 * MODEL}
    assert simulation.ledger.total("downlink") == 2 * MODEL + 2 * 7 * MEAN + 3 * MEAN + 3 * MODEL
    slowest = [MODEL, 0, MODEL, 0, 2 * MEAN, MEAN, MODEL]
    assert simulation.row()["modelled_seconds"] == pytest.approx(sum(slowest) + 7 * MEAN, abs=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "vectors"), [(Diana, ("w", "h")), (Scaffold, ("w", "c")), (FedGATE, ("w",))]
)
def test_the_model_comes_with_what_else_the_servers_step_needs(
    algorithm: type[Algorithm], vectors: tuple[str, ...]
) -> None:
    simulation = half(algorithm(option="I"), Links(Identity(), Identity()))
    assert tuple(simulation.algorithm.replica(simulation.server)) == vectors
    assert down(simulation)["catch-up"]["model"] % (len(vectors) * MODEL) == 0
    assert down(simulation)["catch-up"]["model"] > 0


@pytest.mark.parametrize("kind", [FedAvg, FedCOMGATE, Scaffold, Diana])
def test_results_do_not_depend_on_how_clients_catch_up(kind: type[Algorithm]) -> None:
    replayed, sent = (half(kind(option=option), Links(Identity())) for option in ("I", "II"))
    assert torch.equal(replayed.server.w, sent.server.w)
    assert "catch-up" not in down(sent)


def test_a_mean_that_is_compressed_is_what_clients_catch_up_on_unless_told() -> None:
    chosen = {option: half(FedGATE(option=option), LOSSY) for option in (None, "I", "II")}
    assert down(chosen[None]) == down(chosen["I"])
    assert chosen[None].ledger.total("downlink") < chosen["II"].ledger.total("downlink")
    assert down(chosen["II"])["first model"] == {"header": 2 * 16, "values": 2 * 528}
    assert down(chosen["II"])["w"] == {"header": 2 * 6 * 16, "values": 2 * 6 * 528}
    assert torch.equal(chosen["I"].server.w, chosen["II"].server.w)


SEED = 16 + 8
DRAWN = Links(Identity(), Int(8), first="seed")


@pytest.mark.parametrize("encode", [False, True])
def test_a_seed_in_place_of_the_first_model_by_hand(encode: bool) -> None:
    """Clients 1 and 3 begin with the seed and two means: in all less than the model."""
    seeded = half(FedGATE(tau=2, gamma=1.0), replace(DRAWN, encode=encode))
    dense = half(FedGATE(tau=2, gamma=1.0), LOSSY)
    assert down(seeded)["first model"] == {"header": 2 * 16, "seed": 2 * 8}
    late = {"first model": 2 * SEED, "means": (2 * 2 + 2 + 1) * MEAN, "model": MODEL}
    assert down(seeded)["catch-up"] == late
    assert seeded.ledger.total("downlink") == 2 * SEED + 2 * 7 * MEAN + sum(late.values())
    assert torch.equal(seeded.server.w, dense.server.w)


@pytest.mark.parametrize(("kind", "vectors"), [(FedAvg, 1), (Scaffold, 2)])
def test_where_the_server_sends_its_vectors_a_seed_replaces_those_of_the_first_round(
    kind: type[Algorithm], vectors: int
) -> None:
    seeded, dense = (half(kind(), Links(Identity(), first=first)) for first in ("seed", "dense"))
    saved = 2 * (vectors * MODEL - SEED)
    assert dense.ledger.total("downlink") - seeded.ledger.total("downlink") == saved
    assert dense.ledger.total("downlink") == 2 * 7 * vectors * MODEL
    assert torch.equal(seeded.server.w, dense.server.w)


def test_with_all_clients_the_seed_travels_once() -> None:
    simulation = after(drawn_task(), FedGATE(tau=2, gamma=1.0), DRAWN, rounds=3, network=BYTES_DOWN)
    assert simulation.ledger.total("downlink") == 4 * (SEED + 3 * MEAN)
    assert simulation.row()["modelled_seconds"] == pytest.approx(SEED + 3 * MEAN, abs=1e-6)


def test_a_seed_that_is_not_known_cannot_travel() -> None:
    with pytest.raises(ConfigError, match=r"leave run.init out or set downlink.first=dense"):
        Simulation(mlp_task(), FedGATE(), DRAWN, device="cpu")
    with pytest.raises(ConfigError, match=r"from 0 to 2\^64 - 1; got -1"):
        Objective(nn.Linear(2, 1), seed=-1)


def test_a_pretrained_model_travels_dense(tmp_path: Path) -> None:
    overrides = ["run.rounds=1", "data.clients=4", "model.hidden=4", "downlink.first=seed"]
    first = Config.of(read(None, overrides))
    assert Config.of(first.table()) == first
    execute(first, tmp_path / "first", device="cpu", quiet=True)
    pretrained = f"run.init={tmp_path / 'first' / 'model.safetensors'}"
    with pytest.raises(ConfigError, match=r"leave run.init out"):
        prepare(Config.of(read(None, [*overrides, pretrained])), "cpu")
    dense = Config.of(read(None, [*overrides[:3], pretrained]))
    execute(dense, tmp_path / "second", device="cpu", quiet=True)
    books = json.loads((tmp_path / "second" / "ledger.json").read_text())["downlink"]["vectors"]
    d = json.loads((tmp_path / "second" / "summary.json").read_text())["parameters"]
    assert books["first model"] == {"header": 4 * 16, "values": 4 * 4 * d}


def test_with_all_clients_nobody_catches_up() -> None:
    simulation = after(mlp_task(clients=4), FedGATE(tau=2, gamma=1.0), LOSSY, rounds=3)
    assert "catch-up" not in down(simulation)
    assert simulation.ledger.total("downlink") == 4 * (MODEL + 3 * MEAN)


@pytest.mark.parametrize("codec", [Int(8), Dithered(q=0.1), Peaks(2.0)], ids=lambda c: c.name)
def test_runs_in_step_catch_up_each_by_itself(codec: Codec) -> None:
    def make(seed: int) -> Simulation:
        return Simulation(
            mlp_task(seed=seed),
            FedCOMGATE(tau=2, gamma=1.0),
            Links(Int(8), codec),
            rounds=5,
            participation=0.5,
            seed=seed,
            device="cpu",
            network=BYTES_DOWN,
        )

    stacked = [make(seed) for seed in range(3)]
    engine = stack_runs(stacked)
    for _ in range(5):
        engine.step()
    for seed, run in enumerate(stacked):
        single = make(seed)
        list(single.run())
        assert run.ledger.as_dict() == single.ledger.as_dict()
        assert run.row()["modelled_seconds"] == pytest.approx(single.row()["modelled_seconds"], rel=1e-9)
        assert down(run)["catch-up"]["means"] > 0


def test_a_rehearsal_catches_nobody_up() -> None:
    rehearsed, plain = (half(FedGATE(tau=2, gamma=1.0), LOSSY, rounds=4) for _ in range(2))
    play(Rehearsal(rehearsed.engine))  # type: ignore[arg-type]
    for run in (rehearsed, plain):
        run.step()
    assert rehearsed.ledger.as_dict() == plain.ledger.as_dict()


@pytest.mark.gpu
def test_a_replayed_round_catches_up_as_a_played_one() -> None:
    runs = [
        Simulation(
            mlp_task(),
            FedCOMGATE(tau=2, gamma=1.0),
            Links(Int(8), Dithered(q=0.1)),
            rounds=8,
            participation=0.5,
            device="cuda",
            engine=engine,
            network=BYTES_DOWN,
        )
        for engine in ("eager", "graph")
    ]
    for run in runs:
        list(run.run())
    eager, graph = runs
    assert graph.engine.refused is None  # type: ignore[attr-defined]
    assert eager.ledger.as_dict() == graph.ledger.as_dict()
    assert eager.row()["modelled_seconds"] == pytest.approx(graph.row()["modelled_seconds"], rel=1e-12)


def test_a_run_that_is_resumed_knows_who_missed_what(tmp_path: Path) -> None:
    method = FedGATE(tau=2, gamma=1.0)
    half(method, DRAWN, rounds=4, network=BYTES_DOWN).save(tmp_path)
    resumed = half(method, DRAWN, rounds=0, network=BYTES_DOWN)
    assert resumed.restore(tmp_path)
    for _ in range(3):
        resumed.step()
    whole = half(method, DRAWN, network=BYTES_DOWN)
    assert down(resumed) == down(whole)
    assert resumed.row()["modelled_seconds"] == whole.row()["modelled_seconds"]
