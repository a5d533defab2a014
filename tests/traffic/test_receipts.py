"""Clients that missed rounds are sent the means they missed or the model, whichever is shorter."""

from typing import Any

import pytest
import torch

from fedcom import Algorithm, Diana, FedAvg, FedCOMGATE, FedGATE, Links, Network, Scaffold, Simulation
from fedcom.codecs import Codec, Dithered, Identity, Int, Peaks
from fedcom.engines.local.eager import Rehearsal
from fedcom.engines.simulation import stack_runs
from fedcom.rounds.round import play
from tests.conftest import after, mlp_task

BYTES_DOWN = Network(uplink=1e15, downlink=8e-6)  # a byte down takes a second, and nothing else does
SAMPLES = [[0, 2], [0, 2], [1, 3], [1, 3], [0, 3], [0, 1], [1, 2]]
MODEL = 16 + 8 * 66
MEAN = 16 + 32 + 66 + 24  # a message of int 8, and the server's measured q
LOSSY = Links(Identity(), Int(8))


def half(algorithm: Algorithm, links: Links, rounds: int = len(SAMPLES), **options: Any) -> Simulation:
    """A run of four clients, of which those in SAMPLES take part."""
    return after(mlp_task(clients=4), algorithm, links, rounds, participation=0.5, seed=2, **options)


def down(simulation: Simulation) -> dict[str, dict[str, int]]:
    books: Any = simulation.ledger.as_dict()
    return books["downlink"]["vectors"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("encode", [False, True])
def test_bytes_and_modelled_time_by_hand(encode: bool) -> None:
    """Clients 1 and 3 are new in round 2, and client 2 misses four rounds: the model is shorter."""
    links = Links(Identity(), Int(8), encode=encode)
    simulation = half(FedGATE(tau=2, gamma=1.0), links, network=BYTES_DOWN)
    assert [simulation.state.sample(i).tolist() for i in range(len(SAMPLES))] == SAMPLES
    assert down(simulation)["catch-up"] == {"means": (2 + 1) * MEAN, "model": 3 * MODEL}
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
    assert down(chosen["II"])["w"] == {"header": 2 * 7 * 16, "values": 2 * 7 * 528}
    assert torch.equal(chosen["I"].server.w, chosen["II"].server.w)


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
