"""A simulation: runs can be repeated, chunks change nothing, and counted bytes are the real ones."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from fedcom import (
    ALGORITHMS,
    CODECS,
    ConfigError,
    CountSketch,
    Dithered,
    Diverged,
    FedAvg,
    FedCOM,
    FedCOMGATE,
    FedGATE,
    Identity,
    Int,
    Links,
    Natural,
    Peaks,
    PowerSgd,
    Qsgd,
    RandK,
    Rotated,
    Scaffold,
    Sign,
    Simulation,
    TernGrad,
    TopK,
    VRDiana,
)
from fedcom.codecs import Auto, Codec, LowRank
from fedcom.draws import Draw
from fedcom.tasks.oracle import DataOracle
from tests.conftest import CHAOS, after, close, mlp_task, quadratic_task

SOME: list[Codec] = [
    Identity(),
    Int(8),
    Int(3, scale="vector"),
    Qsgd(),
    Natural(),
    TopK(),
    TopK(0.3, "levels", chunk=20),
    RandK(),
    Sign(),
    TernGrad(),
    PowerSgd(1),
    CountSketch(),
    Dithered(q=0.1),
    Dithered(bits=8.0),
    Rotated(3.0),
    Peaks(2.0),
    LowRank(bits=8.0),
    Auto(8.0),
]
PAIRS = [  # a method that sends its updates uncompressed has no other codec than identity
    (name, codec)
    for name, algorithm in ALGORITHMS.items()
    for codec in (SOME if algorithm.compresses is None else [Identity()])
]
SIZES = [5, 9, 12, 20, 7, 30]


def rates(name: str) -> dict[str, Any]:
    steps = {} if name.endswith("diana") else {"tau": 3}
    return {"eta": 0.05, "batch": 5, **steps}


def rows(simulation: Simulation) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in simulation.run()]


@pytest.mark.covers(1)
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_same_run_twice_gives_the_same_bits(name: str, participation: float) -> None:
    def run(seed: int) -> list[dict[str, Any]]:
        algorithm = ALGORITHMS[name](**rates(name))
        return rows(
            Simulation(mlp_task(), algorithm, rounds=2, participation=participation, seed=seed, device="cpu")
        )

    first = run(1)
    assert first == run(1)
    assert first[-1]["train_loss"] != run(2)[-1]["train_loss"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_chunks_change_nothing_beyond_rounding(name: str) -> None:
    task, algorithm = mlp_task(sizes=SIZES), ALGORITHMS[name](weights="size", **rates(name))
    whole = after(task, algorithm, rounds=3, chunk=6)
    for chunk in (1, 4) if CHAOS else (4,):
        assert close(after(task, algorithm, rounds=3, chunk=chunk).server.w, whole.server.w)


def test_chunks_change_nothing_with_epochs_and_unequal_steps() -> None:
    task = mlp_task(sizes=SIZES)
    algorithm = FedCOMGATE(epochs=2, batch=4, gamma=1.0)
    assert close(after(task, algorithm, chunk=6).server.w, after(task, algorithm, chunk=1).server.w)


@pytest.mark.covers(1)
@pytest.mark.parametrize(("name", "codec"), PAIRS, ids=lambda x: x if isinstance(x, str) else x.name)
def test_the_bytes_counted_are_the_bytes_made(name: str, codec: Codec) -> None:
    algorithm = ALGORITHMS[name](**rates(name))
    counted, made = (
        after(mlp_task(), algorithm, Links(codec, encode=encode), rounds=2, participation=0.5)
        for encode in (False, True)
    )
    assert torch.equal(counted.server.w, made.server.w)
    for direction in ("uplink", "downlink"):
        real = made.ledger.total(direction)  # type: ignore[arg-type]
        assert counted.ledger.total(direction) == real  # type: ignore[arg-type]
        assert real > 0


def test_every_codec_is_in_that_test() -> None:
    assert {codec.name for codec in SOME} == set(CODECS)


def test_bytes_by_hand() -> None:
    """d = 66 in 4 tensors, float64: int 8 is 16 + 4 * 8 + 66 bytes up; scalars are 16 + 8."""
    task = mlp_task()
    assert task.objective.layout.size == 66
    simulation = after(task, FedCOMGATE(tau=2), Links(Int(8)), rounds=3)
    row = simulation.row()
    assert row["uplink_bytes"] == 3 * (16 + 32 + 66 + 24)
    assert row["downlink_bytes"] == (16 + 528) + 3 * (16 + 528 + 24)
    assert row["uplink_bytes_total"] == 6 * row["uplink_bytes"]
    scaffold = after(task, Scaffold(tau=2), rounds=3).row()
    assert scaffold["uplink_bytes"] == scaffold["downlink_bytes"] == 3 * 2 * (16 + 528)


def test_rows_come_at_round_0_every_eval_every_rounds_and_at_the_end() -> None:
    simulation = Simulation(mlp_task(), FedAvg(tau=1), rounds=7, eval_every=3, device="cpu")
    seen: list[int] = []
    ticks: list[int] = []
    for row in simulation.rows(ticks.append):
        seen.append(row["round"])
    assert seen == [0, 3, 6, 7]
    assert ticks == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.filterwarnings("ignore:the training loss has grown")
@pytest.mark.parametrize("encode", [False, True])
def test_a_diverged_run_stops_at_its_round_with_advice(encode: bool) -> None:
    links = Links(Identity(), encode=encode)
    simulation = Simulation(quadratic_task(), FedAvg(eta=1e40, tau=3), links, rounds=50, device="cpu")
    seen = []
    with pytest.raises(Diverged, match=r"after round \d+.*smaller eta.*larger gamma.*damping"):
        seen.extend(simulation.rows())
    assert seen[0]["round"] == 0
    assert simulation.round < 50


def test_an_epoch_visits_every_sample_once() -> None:
    task = mlp_task(sizes=SIZES)
    clients, b = torch.arange(6), 4
    oracle = DataOracle(task, clients, Draw.seeded(5).fold(clients), b, epochs=4)
    w = task.objective.start.expand(6, -1)
    for epoch in range(2):
        for j, size in enumerate(SIZES):
            steps = range(epoch * -(-size // b), (epoch + 1) * -(-size // b))
            counts = [min(b, size - b * i) for i in range(len(steps))]
            total = sum(n * oracle.at(c).batch(w)[j] for n, c in zip(counts, steps, strict=True))
            assert close(total / size, oracle.full(w)[j])
    assert not close(oracle.at(0).batch(w)[5], oracle.at(8).batch(w)[5], 1e-6)


def test_weight_decay_adds_to_the_gradient() -> None:
    task, clients = mlp_task(), torch.arange(6)
    plain = DataOracle(task, clients, Draw.seeded(5).fold(clients), 4)
    w = task.objective.start.expand(6, -1)
    decayed = DataOracle(task, clients, plain.draw, 4, weight_decay=0.1)
    assert close(decayed.batch(w), plain.batch(w) + 0.1 * w)
    assert close(decayed.full(w), plain.full(w) + 0.1 * w)


def test_train_loss_weights_clients_as_the_objective_does() -> None:
    task = mlp_task(sizes=SIZES)
    losses = task.objective.losses(task.objective.outputs(task.objective.start, task.x), task.y)
    by_client = torch.stack([part.mean() for part in torch.split(losses, SIZES)])
    uniform = Simulation(task, FedAvg(), device="cpu").row()["train_loss"]
    sized = Simulation(task, FedAvg(weights="size"), device="cpu").row()["train_loss"]
    assert uniform == pytest.approx(float(by_client.mean()), rel=1e-12)
    assert sized == pytest.approx(float(losses.mean()), rel=1e-12)


def test_a_lossy_downlink_without_memory_is_warned_of_unless_the_method_makes_up_for_it() -> None:
    task, down = quadratic_task(sigma=0.0, L=1.0, mu=0.3), Int(6, rounding="nearest")
    links = Links(Identity(), down, downlink_memory="none")
    with pytest.warns(UserWarning, match="downlink.memory=error-feedback"):
        Simulation(task, FedCOM(option="I"), links, device="cpu")
    algorithm = FedGATE(eta=0.1, gamma=1.0, tau=5, batch="full", decay=1.0)
    assert after(task, algorithm, links, rounds=120).row()["train_loss"] < 1e-12


@pytest.mark.parametrize("codec", [TopK(0.5), pytest.param(RandK(0.5), marks=pytest.mark.thorough)])
def test_under_a_sparse_downlink_tracking_still_reaches_the_optimum(codec: Codec) -> None:
    task = quadratic_task(sigma=0.0, L=1.0, mu=0.5)
    algorithm = FedGATE(eta=0.2, gamma=0.5, tau=2, batch="full", decay=1.0)
    simulation = after(task, algorithm, Links(Identity(), codec), rounds=200)
    assert simulation.row()["train_loss"] < 1e-8


@pytest.mark.parametrize(
    ("algorithm", "links", "participation", "message"),
    [
        (FedAvg(), Links(Int(8)), 1.0, "fedpaq"),
        (FedGATE(), Links(Int(8)), 1.0, "fedcomgate"),
        (FedCOMGATE(), None, 0.17, "needs two per round; got 1 of 6"),
        (FedAvg(), None, 0.1, "got 0.1 of 6 clients"),
        (FedAvg(), None, 1.5, "got 1.5"),
        (FedCOM(), Links(Int(8), Int(8)), 1.0, "option=I"),
        (FedAvg(tau=(1, 2)), None, 1.0, r"one per client \(6\); got 2"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    algorithm: Any, links: Links | None, participation: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Simulation(mlp_task(), algorithm, links, participation=participation, device="cpu")


def test_a_compressed_mean_goes_down_where_clients_repeat_the_servers_step() -> None:
    algorithm = FedCOM(option="I", tau=2, gamma=1.0)
    simulation = after(mlp_task(), algorithm, Links(Int(8), Int(8)), rounds=3)
    assert simulation.row()["downlink_bytes"] == (16 + 528) + 3 * (16 + 32 + 66)


def test_damping_follows_the_measured_q() -> None:
    simulation = after(mlp_task(), FedCOMGATE(tau=2, gamma=1.0), Links(RandK(0.25)), rounds=2)
    assert simulation.q is not None
    assert simulation.q > 1
    assert simulation.alpha == pytest.approx(1 / (1 + simulation.q), rel=1e-12)
    topk = Links(TopK(0.25))
    assert after(mlp_task(), FedCOMGATE(tau=2), topk, rounds=1).alpha == 1.0
    remembered = Links(TopK(0.25), uplink_memory="error-feedback")
    assert after(mlp_task(), FedCOMGATE(tau=2), remembered, rounds=1).alpha == 16 / 66
    assert after(mlp_task(), FedCOMGATE(tau=2, damping=0.7), Links(Int(8)), rounds=1).alpha == 0.7


def test_vr_diana_refreshes_with_the_shared_coin() -> None:
    task = quadratic_task()
    simulation = Simulation(task, VRDiana(refresh_probability=0.3), device="cpu")
    points = []
    for _ in range(40):
        simulation.step()
        points.append(simulation.client_states().point.clone())
    moved = [not torch.equal(a, b) for a, b in pairwise(points)]
    assert 4 <= sum(moved) <= 20
    assert all(torch.equal(p, p[:1].expand_as(p)) for p in points)


def test_a_loss_that_grows_many_times_is_warned_of_once() -> None:
    simulation = Simulation(quadratic_task(), FedAvg(eta=8.0, tau=3, decay=1.0), rounds=12, device="cpu")
    with pytest.warns(UserWarning, match=r"grown from .* to .* by round \d+; try a smaller eta") as found:
        rows = simulation.run()
    assert len(found) == 1
    assert rows[-1]["train_loss"] > 20 * rows[0]["train_loss"]
    calm = Simulation(quadratic_task(), FedAvg(eta=0.05, tau=3), rounds=12, device="cpu")
    calm.run()  # a warning would fail the test
