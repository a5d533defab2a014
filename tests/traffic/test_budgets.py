"""Budgets: each client sends at its own number of bits, and all share one damping."""

from typing import Any

import pytest
import torch

from fedcom import ALGORITHMS, ConfigError, FedCOMGATE, Int, Links, Natural, Rotated, Simulation
from fedcom.codecs import Auto, Codec, Dithered, Peaks, TopK
from fedcom.config import Config, read
from fedcom.rounds.round import facts
from fedcom.traffic.links import budgets_from
from tests.conftest import after, close, mlp_task
from tests.traffic.test_both_directions import task

RATES = {"eta": 0.05, "gamma": 1.0, "tau": 3, "batch": 5}
BUDGETS = (2.0, 8.0, 2.0, 4.0, 8.0, 4.0)


def test_each_client_sends_what_its_budget_allows() -> None:
    """d = 66 in 4 tensors: 16 + 32 + ceil(66 bits/8) bytes per message, and 24 for the scalar."""
    simulation = after(mlp_task(), FedCOMGATE(**RATES), Links(Int(8), budgets=BUDGETS), rounds=3)  # type: ignore[arg-type]
    messages = sum(48 + -(-66 * int(bits) // 8) + 24 for bits in BUDGETS)
    assert simulation.ledger.total("uplink") == 3 * messages


def test_the_weighted_sum_of_delta_is_zero_and_chunks_change_nothing() -> None:
    runs = [
        after(mlp_task(), FedCOMGATE(**RATES), Links(Int(8), budgets=BUDGETS), rounds=4, chunk=chunk)  # type: ignore[arg-type]
        for chunk in (6, 2)
    ]
    delta = runs[0].client_states().delta
    assert close(runs[0].weights @ delta, torch.zeros_like(delta[0]))
    assert close(runs[0].server.w, runs[1].server.w)


def test_equal_budgets_give_the_run_of_the_codec_at_that_rate() -> None:
    plain = after(mlp_task(), FedCOMGATE(**RATES), Links(Int(4)))  # type: ignore[arg-type]
    shared = after(mlp_task(), FedCOMGATE(**RATES), Links(Int(8), budgets=(4.0,) * 6))  # type: ignore[arg-type]
    assert torch.equal(plain.server.w, shared.server.w)


MIXED = {"halves": (4.0, 4.0, 0.1, 0.1), "one coarse": (2.0, 2.0, 2.0, 0.1), "one fine": (4.0, 0.1, 0.1, 0.1)}


@pytest.mark.covers(1)
@pytest.mark.parametrize("budgets", MIXED.values(), ids=MIXED)
@pytest.mark.parametrize("memory", ["none", "error-feedback"])
@pytest.mark.parametrize("name", ["fedcom", "fedcomgate", "fedcomgate-exact", "scaffold", "scafcom", "diana"])
def test_mixed_budgets_are_stable(name: str, memory: Any, budgets: tuple[float, ...]) -> None:
    """A client of few bits decides how far all of them move, and its own codec what it is contracted by."""
    links = Links(Rotated(4.0), uplink_memory=memory, budgets=budgets)
    simulation = after(task(0), ALGORITHMS[name](eta=0.05), links, rounds=30)
    start = task(0).evaluate(task(0).objective.start, simulation.weights)
    now = task(0).evaluate(simulation.server.w, simulation.weights)
    assert now["train_loss"] < 2 * start["train_loss"]  # type: ignore[operator]


@pytest.mark.parametrize("memory", ["none", "error-feedback"])
def test_the_bits_of_the_codec_itself_do_not_matter_beside_budgets(memory: Any) -> None:
    """Nor does one client's contraction depend on the budgets of others."""
    ends = [
        after(task(0), FedCOMGATE(**RATES), Links(Rotated(bits), uplink_memory=memory, budgets=budgets))  # type: ignore[arg-type]
        for bits in (4.0, 0.1)
        for budgets in (MIXED["halves"], MIXED["one fine"])
    ]
    for i in (0, 1):
        assert torch.equal(ends[i].server.w, ends[i + 2].server.w)
        assert ends[i].alpha == ends[i + 2].alpha
    if memory == "error-feedback":
        rules = ends[0].rules
        kept = torch.tensor([Rotated(bits).kept(rules.layout) for bits in MIXED["halves"]])
        assert torch.equal(rules.uplink_of(torch.tensor([3, 0])).contraction, kept[[3, 0]].unsqueeze(-1))  # type: ignore[arg-type]
        assert ends[0].alpha == pytest.approx(float(kept.min()))


def test_damping_follows_the_coarsest_budget() -> None:
    """q of two budgets is .1 and 9 on average: alpha is 1/(1 + 9), not 1/(1 + 4.55)."""
    rules = after(task(0), FedCOMGATE(**RATES), Links(Rotated(4.0), budgets=MIXED["halves"]), rounds=0).rules  # type: ignore[arg-type]
    q = rules.coarsest_q(torch.tensor([[8.0, 0.2, 0.0, 10.0]]), torch.tensor([2, 0, 1, 3]))
    assert q.tolist() == [9.0]
    rnd = facts(rules, 0.1, 10, 1.0, 0.0)
    assert rules.alpha(q, rnd).tolist() == pytest.approx([0.1])  # type: ignore[union-attr]


def test_bits_are_proportional_to_bandwidths() -> None:
    assert budgets_from([1, 4, 8], Rotated(2.0)) == (0.25, 1.0, 2.0)
    with pytest.raises(ConfigError, match="above 0"):
        budgets_from([1, 0], Rotated(2.0))


def test_bits_go_as_low_as_the_codec_does() -> None:
    assert budgets_from([1, 40, 1000], Rotated(2.0)) == (0.05, 0.08, 2.0)
    assert budgets_from([1, 30, 70, 1000], Peaks(0.05)) == (0.0001, 0.0015, 0.0035, 0.05)
    assert budgets_from([1, 30, 70, 1000], Auto(0.05)) == (0.0001, 0.0015, 0.0035, 0.05)
    codecs = [codec for codec, _ in Links(Peaks(0.05), budgets=(0.0015, 0.05)).uplinks(torch.arange(2))]
    assert codecs == [Peaks(0.0015), Peaks(0.05)]


@pytest.mark.parametrize("encode", [False, True])
def test_a_client_of_few_bits_sends_its_q_inside_its_message(encode: bool) -> None:
    """Two clients send 8 bytes (0.03 bits of 2163 coordinates) and 2 for q; q of the others is a message."""
    links = Links(Auto(1.0), budgets=(0.03, 1.0, 0.03, 1.0), encode=encode)
    simulation = after(task(0), FedCOMGATE(**RATES), links, rounds=1)  # type: ignore[arg-type]
    books: Any = simulation.ledger.as_dict()["uplink"]
    assert books["vectors"]["D"]["q"] == 2 * 2
    assert books["vectors"]["q"] == {"header": 2 * 16, "body" if encode else "values": 2 * 4}
    ends = after(task(0), FedCOMGATE(**RATES), Links(Auto(0.03), encode=encode), rounds=1)  # type: ignore[arg-type]
    assert ends.ledger.total("uplink") == 4 * (8 + 2)


@pytest.mark.parametrize("codec", [Natural(), TopK(), Dithered(q=0.1)])
def test_bandwidths_need_bits_to_share_out(codec: Codec) -> None:
    with pytest.raises(ConfigError, match=f"{codec.name} is not set to any; set uplink.bits"):
        budgets_from([1, 4], codec)


def test_a_budget_of_topk_is_its_rate_and_not_the_bits_of_a_value() -> None:
    found = [
        codec for codec, _ in Links(TopK(0.5, "int", 4), budgets=(0.3257, 1.8113)).uplinks(torch.arange(2))
    ]
    assert found == [TopK(0.03126, "int", 4), TopK(0.25, "int", 4)]


def test_a_whole_budget_is_written_as_in_a_config() -> None:
    """How a number is written is part of the fingerprint: 2, not 2.0."""
    (codec, _), *_ = Links(Rotated(1.0), budgets=(2.0,)).uplinks(torch.arange(1))
    assert repr(codec) == repr(Rotated(2))


def test_from_a_config() -> None:
    settings = ["data.clients=3", "uplink.name=rotated", "uplink.bits=2", "uplink.bandwidths=1,4,8"]
    config = Config.of(read(None, settings))
    assert config.links.budgets == (0.25, 1.0, 2.0)
    assert Config.of(config.table()).links == config.links


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("uplink.budgets=1,2 uplink.bandwidths=1,2", "not both"),
        ("uplink.name=natural uplink.budgets=1,2", "natural has no setting of 1 bits per coordinate"),
        ("uplink.budgets=1,x", "uplink.budgets must be numbers"),
        ("uplink.budgets=1,99", "int has no setting of 99 bits per coordinate; change that budget, or use"),
        ("uplink.budgets=1,2.5", "int has no setting of 2.5 bits"),
        ("uplink.name=rotated uplink.tier=fixed uplink.budgets=1,2.5", "rotated has no setting of 2.5 bits"),
        ("uplink.name=topk uplink.bandwidths=1,2", "topk is not set to any"),
    ],
)
def test_what_is_refused(settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.of(read(None, settings.split()))


def test_budgets_must_be_one_per_client() -> None:
    with pytest.raises(ConfigError, match=r"one number per client \(6\); got 2"):
        Simulation(mlp_task(), FedCOMGATE(), Links(Rotated(1.0), budgets=(1.0, 2.0)), device="cpu")
    with pytest.raises(ConfigError, match="natural"):
        after(mlp_task(), FedCOMGATE(), Links(Natural(), budgets=(1.0,) * 6), rounds=1)
