"""Modelled time, computed by hand: a round takes as long as its slowest sampled client."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcom import FedAvg, FedCOM, FedCOMGATE, Links, Network, Scaffold, Simulation
from fedcom.codecs import Codec, Dithered, Int, Rotated
from fedcom.config import Config, read
from fedcom.draws import Draw
from fedcom.engines.local.eager import Rehearsal
from fedcom.engines.stacks import stack_runs
from fedcom.errors import ConfigError
from fedcom.formats import duration
from fedcom.reports.comparison import compare_table, markdown, render
from fedcom.rounds.round import play
from fedcom.runs.curve import Curve, milestones
from fedcom.studies.compare import compare
from fedcom.studies.sweep import sweep
from fedcom.studies.sweep_report import summary
from tests.conftest import after, mlp_task

HAND = Network(uplink=1.0, downlink=2.0, latency=0.5, compute=0.1)
BYTES_UP = Network(uplink=8e-6, downlink=1e15)  # a byte up takes a second, and nothing else does
MODEL = 16 + 8 * 66  # d = 66 in float64


def seconds(simulation: Simulation) -> float:
    return float(simulation.row()["modelled_seconds"])


def test_rounds_of_known_bytes_by_hand() -> None:
    """Every round sends the model down and up and takes three steps."""
    simulation = after(mlp_task(), FedAvg(tau=3), rounds=2, network=HAND)
    one = 0.5 + MODEL * 8e-6 / 2 + 3 * 0.1 + MODEL * 8e-6 / 1
    assert seconds(simulation) == pytest.approx(2 * one, rel=1e-12)


@pytest.mark.parametrize("encode", [False, True])
@pytest.mark.parametrize("option", ["I", "II"])
def test_what_each_option_sends_down_by_hand(option: Any, encode: bool) -> None:
    """The mean and q go down in every round; the model in every round with II, in the first only with I."""
    links = Links(Int(8), encode=encode)
    simulation = after(mlp_task(), FedCOMGATE(tau=3, option=option), links, rounds=3, network=HAND)
    up, mean = 16 + 32 + 66 + 24, MODEL + 24
    models = 1 if option == "I" else 3
    down = models * MODEL + 3 * mean
    assert seconds(simulation) == pytest.approx(3 * (0.5 + 0.3) + 8e-6 * (3 * up + down / 2), rel=1e-12)
    assert down == simulation.row()["downlink_bytes"]


def test_a_round_takes_as_long_as_its_slowest_sampled_client() -> None:
    tau, network = (1, 2, 3, 4, 5, 6), Network(1e15, 1e15, compute=1.0)
    simulation, expected = after(mlp_task(), FedCOM(tau=tau), rounds=0, participation=0.5, network=network), 0
    for _ in range(4):
        expected += max(tau[j] for j in simulation.sample().tolist())
        simulation.step()
        assert seconds(simulation) == pytest.approx(expected, rel=1e-9)
    assert expected < 4 * 6  # the slowest client was not always sampled


@pytest.mark.parametrize(
    "links",
    [
        Links(Dithered(q=0.1)),
        Links(Dithered(q=0.1), encode=True),
        Links(Rotated(8.0), budgets=(6.0, 8.0, 5.0, 6.0, 8.0, 7.0)),
        Links(Int(8), budgets=(2.0, 8.0, 2.0, 4.0, 8.0, 4.0), encode=True),
    ],
    ids=["counted", "encoded", "budgets", "budgets encoded"],
)
@pytest.mark.parametrize("chunk", [1, 6])
def test_the_longest_message_decides_if_messages_differ(links: Links, chunk: int) -> None:
    """A second run with one client per group tells how many bytes each client sends."""
    single = after(mlp_task(), FedCOMGATE(tau=2), links, rounds=0, chunk=1)
    engine: Any = single.engine
    bills, work = [], engine.group_work

    def spy(*given: Any) -> Any:
        bills.append((found := work(*given)).bills[0].total("uplink"))
        return found

    engine.group_work = spy
    timed = after(mlp_task(), FedCOMGATE(tau=2), links, rounds=0, chunk=chunk, network=BYTES_UP)
    longest = 0
    for i in range(3):
        single.step()
        timed.step()
        longest += max(bills[6 * i :])
        assert min(bills[6 * i :]) < max(bills[6 * i :])
        assert seconds(timed) == pytest.approx(longest, abs=1e-6)


def test_an_entropy_coded_mean_counts_its_own_bytes() -> None:
    bytes_down = Network(uplink=1e15, downlink=8e-6)
    links = Links(Int(8), downlink=Dithered(q=0.1))
    simulation = after(mlp_task(), FedCOMGATE(tau=2), links, rounds=3, network=bytes_down)
    assert seconds(simulation) == pytest.approx(simulation.row()["downlink_bytes"], abs=1e-6)
    assert simulation.row()["downlink_bytes"] < 3 * MODEL


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("codec", [Int(8), Dithered(q=0.1)], ids=lambda c: c.name)
def test_runs_in_step_have_the_modelled_time_of_single_runs(codec: Codec, participation: float) -> None:
    network = replace(HAND, spread=0.7, uplink=1e-3)

    def make(seed: int) -> Simulation:
        return Simulation(
            mlp_task(seed=seed),
            FedCOMGATE(tau=2),
            Links(codec),
            rounds=3,
            seed=seed,
            participation=participation,
            device="cpu",
            network=network,
        )

    stacked = [make(seed) for seed in range(3)]
    engine = stack_runs(stacked)
    for _ in range(3):
        engine.step()
    clocks = [seconds(run) for run in stacked]
    single = [make(seed) for seed in range(3)]
    for run in single:
        list(run.run())
    assert clocks == pytest.approx([seconds(run) for run in single], rel=1e-9)
    assert len(set(clocks)) == 3


def test_runs_of_different_networks_cannot_be_stacked() -> None:
    runs = [
        Simulation(mlp_task(), FedCOM(), rounds=1, device="cpu", network=network) for network in (HAND, None)
    ]
    with pytest.raises(ConfigError, match="must share one network"):
        stack_runs(runs)


def test_a_network_adds_modelled_time_and_changes_nothing_else() -> None:
    plain, timed = after(mlp_task(), FedCOMGATE()), after(mlp_task(), FedCOMGATE(), network=HAND)
    rows = [{k: v for k, v in run.row().items() if k != "seconds"} for run in (plain, timed)]
    assert rows[1].pop("modelled_seconds") > 0
    assert rows[0] == rows[1]
    assert torch.equal(plain.server.w, timed.server.w)


def test_a_rehearsal_takes_no_time() -> None:
    simulation = after(mlp_task(), FedCOMGATE(), rounds=2, network=HAND)
    before = seconds(simulation)
    play(Rehearsal(simulation.engine))  # type: ignore[arg-type]
    assert seconds(simulation) == before
    simulation.step()
    unrehearsed = after(mlp_task(), FedCOMGATE(), rounds=3, network=HAND)
    assert seconds(simulation) == pytest.approx(seconds(unrehearsed))


def slowness(clients: torch.Tensor, seed: int = 0, spread: float = 0.5) -> torch.Tensor:
    """How long a megabit up takes some clients."""
    zero, draw = torch.zeros(len(clients)), Draw.seeded(seed).fold("network").fold(clients)
    return Network(1.0, 1.0, spread=spread).seconds(draw, zero, 0, torch.full((len(clients),), 125_000))


def test_a_clients_speed_depends_on_seed_and_client_only() -> None:
    many = slowness(torch.arange(20_000))
    assert torch.equal(slowness(torch.tensor([19_999, 3])), many[[19_999, 3]])
    assert slowness(torch.tensor([10**6])).item() > 0
    assert not torch.equal(slowness(torch.arange(5), seed=1), many[:5])
    assert many.median().item() == pytest.approx(1, abs=0.03)
    assert many.log().std().item() == pytest.approx(0.5, abs=0.02)


def test_methods_compared_with_one_seed_have_the_same_client_speeds() -> None:
    """FedAvg sends half of SCAFFOLD's bytes in both directions, so its rounds take half as long."""
    network = Network(1e-3, 1e-3, spread=1.0)
    for participation in (1.0, 0.5):
        fedavg, scaffold = (
            after(mlp_task(), method(tau=2), rounds=3, seed=4, participation=participation, network=network)
            for method in (FedAvg, Scaffold)
        )
        assert 2 * seconds(fedavg) == pytest.approx(seconds(scaffold), rel=1e-9)
    assert seconds(fedavg) != pytest.approx(3 * 2 * MODEL * 8e-3, rel=1e-3)  # there is a spread


sizes = st.integers(0, 10**9)


@given(down=sizes, up=sizes, more=st.integers(1, 10**6), spread=st.floats(0, 2), client=sizes)
def test_more_bytes_take_longer_and_at_infinite_bandwidth_only_compute_and_latency_remain(
    down: int, up: int, more: int, spread: float, client: int
) -> None:
    draw = Draw.seeded(1).fold(torch.tensor([client]))

    def time(network: Network, down: int, up: int) -> float:
        return float(network.seconds(draw, torch.tensor([down]), 5, torch.tensor([up])))

    network = Network(3.0, 7.0, 0.2, spread, 0.01)
    assert time(network, down, up) < min(time(network, down + more, up), time(network, down, up + more))
    limit = time(replace(network, uplink=1e15, downlink=1e15), down, up)
    assert limit == pytest.approx(time(network, 0, 0), rel=1e-6)
    no_spread = replace(network, uplink=1e15, downlink=1e15, spread=0.0)
    assert time(no_spread, down, up) == pytest.approx(0.2 + 5 * 0.01, rel=1e-6)


def test_from_a_config() -> None:
    config = Config.of(read(None, ["network.preset=lte", "network.uplink=5", "network.compute=0.02"]))
    assert config.network == Network.preset("lte", uplink=5, compute=0.02)
    assert config.network.downlink == 35.96
    assert Config.of(config.table()) == config
    assert Config.of({}).network is None
    assert "network" not in Config.of({}).table()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("network.preset=ltee", "unknown network preset 'ltee'; did you mean 'lte'"),
        ("network.preset=1", "unknown network preset 1"),
        ("network.compute=1", r"network.uplink is missing; .* preset: 3g, lte"),
        ("network.preset=lte network.uplink=0", "network: uplink must be above 0 Mbit/s; got 0"),
        ("network.preset=lte network.downlink=-2", "downlink must be above 0"),
        ("network.preset=lte network.latency=-0.1", "latency must be 0 or more; got -0.1"),
        ("network.preset=lte network.spread=wide", "network.spread must be a number; got 'wide'"),
        ("network.preset=lte network.uplnk=3", "network has no key 'uplnk'; did you mean 'uplink'"),
        ("network.preset=lte network.uplink=inf", "network.uplink must be a number"),
    ],
)
def test_what_is_refused(settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.of(read(None, settings.split()))


SMALL = {
    "data": {"clients": 4},
    "model": {"hidden": [4]},
    "algorithm": {"tau": 1},
    "network": {"preset": "3g"},
}


def test_a_comparison_shows_modelled_time(tmp_path: Path) -> None:
    table = {**SMALL, "run": {"rounds": 2, "target_accuracy": 0.01}}
    rows = compare(table, ["fedavg", "fedpaq"], tmp_path, device="cpu", quiet=True).table
    assert rows[0]["modelled_seconds"] > rows[1]["modelled_seconds"] > 2 * 0.0635
    assert "time to 1%" in (tmp_path / "table.md").read_text()
    assert {path.name for path in tmp_path.glob("*_time.png")} == {"loss_time.png", "accuracy_time.png"}
    assert json.loads((tmp_path / "fedavg/seed-0/summary.json").read_text())["seconds_to_target"] == 0
    assert "[network]" in (tmp_path / "fedavg/seed-0/config.toml").read_text()


def test_a_sweep_shows_modelled_time_and_may_vary_the_network(tmp_path: Path) -> None:
    table = {**SMALL, "run": {"rounds": 1}}
    records = sweep(table, {"network": {"uplink": [1, 10]}}, ["fedavg"], tmp_path, quiet=True, device="cpu")
    slow, fast = (entry["modelled_seconds"] for entry in summary(records))
    assert slow > fast > 0


def test_time_to_the_target_by_hand() -> None:
    rows = [{"round": i, "test_accuracy": 0.3 * i, "modelled_seconds": 100.0 * i} for i in range(4)]
    assert milestones(rows, 0.5)["seconds_to_target"] == 200
    curves = [Curve("fedavg", 0, rows, "done"), Curve("fedcom", 0, [], "interrupted")]
    table = compare_table(curves, 0.5)
    assert [entry["seconds_to_target"] for entry in table] == [200, None]
    assert "| 3.3 min |" in markdown(table, 0.5)
    untimed = [{k: v for k, v in row.items() if k != "modelled_seconds"} for row in rows]
    assert "seconds_to_target" not in milestones(untimed, 0.5)
    assert not {"seconds_to_target", "modelled_seconds"} & set(
        compare_table([Curve("a", 0, untimed, "done")], 0.5)[0]
    )


def test_the_terminal_table_has_room_for_time() -> None:
    from rich.console import Console

    bytes_each = {"uplink_bytes": 13.3e6, "downlink_bytes": 13.3e6}
    scores = {"train_loss": 0.01057, "test_accuracy": 0.9, "worst_client_accuracy": 0.8, **bytes_each}
    curves = [
        Curve(method, seed, [{"round": 21, "modelled_seconds": 70.0, **scores}], "done")
        for method in ("fedavg", "scaffold", "fedcomgate")
        for seed in (0, 1)
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(compare_table(curves, 0.9), 0.9))
    text = console.export_text()
    assert "1.2 min" in text
    assert "…" not in text


@pytest.mark.parametrize(
    ("value", "text"), [(12.0, "12 s"), (204, "3.4 min"), (7560, "2.1 h"), (0.25, "0.25 s"), (None, "—")]
)
def test_durations(value: float | None, text: str) -> None:
    assert duration(value) == text


@pytest.mark.gpu
@pytest.mark.parametrize("codec", [Int(8), Dithered(q=0.1)], ids=lambda c: c.name)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_replayed_round_takes_as_long_as_a_played_one(codec: Codec, participation: float) -> None:
    network, clocks = replace(HAND, spread=0.5, uplink=1e-3), []
    for engine in ("eager", "graph"):
        run = Simulation(
            mlp_task(),
            FedCOMGATE(tau=2),
            Links(codec),
            rounds=6,
            device="cuda",
            engine=engine,  # type: ignore[arg-type]
            participation=participation,
            network=network,
        )
        list(run.run())
        clocks.append(seconds(run))
    assert run.engine.refused is None  # type: ignore[attr-defined]
    assert clocks[0] == pytest.approx(clocks[1], rel=1e-12)
