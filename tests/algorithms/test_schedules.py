"""Rates by round: values by hand, the same bits as decay, and every way a round is played."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from fedcom import (
    SCHEDULES,
    ConfigError,
    FedAvg,
    FedCOM,
    FedCOMGATE,
    FedPAQ,
    Int,
    Links,
    Qsparse,
    Round,
    Scafcom,
    Schedule,
    Simulation,
    sweep,
)
from fedcom.algorithms.schedules import factor, schedule_of
from fedcom.config import Config, dumps
from fedcom.config.tables import read
from fedcom.engines.remote.shared import agreement
from fedcom.engines.stacks import stack_runs
from fedcom.registry import names_code
from fedcom.vectors import Vectors
from tests.conftest import mlp_task, quadratic_task

EVERY: dict[str, Any] = {"tau": 2, "batch": 4}


def values(text: str, rounds: int) -> list[float]:
    return [factor(text, r, rounds) for r in range(rounds)]


def test_factors_by_hand() -> None:
    assert values("constant", 3) == [1, 1, 1]
    assert values("decay(rate=0.5)", 4) == [1, 0.5, 0.25, 0.125]
    assert values("cosine", 4) == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])
    assert values("cosine(end=0.2)", 2) == pytest.approx([1, 0.6])
    assert values("warmup(rounds=4)", 6) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert values("warmup(rounds=2, then=cosine, end=0.5)", 4) == pytest.approx([0.5, 1, 1, 0.75])
    assert values("warmup(rounds=8)", 2) == [0.125, 0.25]  # longer than the run
    assert values("step(every=2, by=0.1)", 5) == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert factor("cosine", 9, 4) == values("cosine", 4)[-1]  # after the last round it stays
    assert schedule_of(" step( every = 3 ) ") == schedule_of("step(every=3)")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eta_schedule": "cosin"}, "unknown schedule 'cosin'; did you mean 'cosine'"),
        ({"eta_schedule": "cosine(end=0.1, end=0.2)"}, "gives end twice"),
        ({"eta_schedule": "cosine(stop=1)"}, "no key 'stop'"),
        ({"eta_schedule": "cosine(0.1)"}, "write its settings as key=value; got '0.1'"),
        ({"eta_schedule": "cosine(end=2)"}, r"end must be in \[0, 1\]; got 2"),
        ({"eta_schedule": "warmup(rounds=0)"}, "rounds must be 1 or more; got 0"),
        ({"eta_schedule": "warmup(rounds=1.5)"}, "rounds must be a whole number"),
        ({"eta_schedule": "step(every=3"}, "a schedule is a name, as in cosine"),
        ({"eta_schedule": "cosine", "decay": 0.9}, r"decay=0.9 would have no effect; .*decay\(rate=0.9\)"),
        ({"gamma_schedule": "cosine", "server": "adam"}, "server adam has a rate of its own"),
        ({"gamma_schedule": 3}, "gamma_schedule must be"),
    ],
)
def test_schedules_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FedCOM(**given)


def test_a_fixed_gamma_has_no_schedule() -> None:
    with pytest.raises(ConfigError, match="qsparse fixes gamma at 1"):
        Qsparse(gamma_schedule="cosine")


def played(algorithm: Any, links: Any = None, rounds: int = 4, **settings: Any) -> Simulation:
    run = Simulation(mlp_task(), algorithm, links, rounds=rounds, device="cpu", **settings)
    run.run()
    return run


def test_decay_is_short_for_its_schedule() -> None:
    short = played(FedCOMGATE(decay=0.9, **EVERY), Links(Int(4)))
    long = played(FedCOMGATE(eta_schedule="decay(rate=0.9)", **EVERY), Links(Int(4)))
    assert torch.equal(short.server.w, long.server.w)
    assert long.algorithm.decay == 1.0
    still = played(FedCOMGATE(decay=1.0, gamma_schedule="constant", **EVERY), Links(Int(4)))
    assert torch.equal(still.server.w, played(FedCOMGATE(decay=1.0, **EVERY), Links(Int(4))).server.w)


class Noted(NamedTuple):
    w: Tensor
    told: Tensor  # what each round was told: eta, gamma, number, rounds, and gamma as the method sees it


@dataclass(frozen=True, kw_only=True)
class Noting(FedCOM):
    """A method with a server_step of its own, which knows nothing of schedules but self.global_rate."""

    name: ClassVar[str] = "noting"

    def init_server(self, w: Tensor) -> Noted:
        return Noted(w, w.new_zeros(4, 5))

    def server_step(self, server: Noted, mean: Vectors, rnd: Round) -> Noted:
        number = torch.as_tensor(rnd.number).long()
        told = [rnd.eta, rnd.gamma, rnd.number, rnd.rounds, self.global_rate]
        row = torch.stack([torch.as_tensor(x, dtype=server.told.dtype) for x in told])
        return Noted(
            server.w - rnd.eta * self.global_rate * mean["D"],
            server.told.index_copy(0, number[None], row[None]),
        )


def test_methods_are_told_the_round_and_its_gamma() -> None:
    rates: dict[str, Any] = {"eta": 0.1, "gamma": 2.0}
    schedules = {"eta_schedule": "step(every=2, by=0.5)", "gamma_schedule": "warmup(rounds=4)"}
    run = played(Noting(**rates, **schedules, **EVERY), Links(Int(4)), seed=3)
    expected = [[0.1, 0.5, 0, 4], [0.1, 1.0, 1, 4], [0.05, 1.5, 2, 4], [0.05, 2.0, 3, 4]]
    assert run.server.told[:, :4].tolist() == expected
    assert torch.equal(run.server.told[:, 4], run.server.told[:, 1])
    own = played(FedCOM(**rates, **schedules, **EVERY), Links(Int(4)), seed=3)
    assert torch.equal(own.server.w, run.server.w)
    plain = played(FedCOM(**rates, decay=1.0, **EVERY), Links(Int(4)), seed=3)
    assert not torch.equal(own.server.w, plain.server.w)


@pytest.mark.parametrize("algorithm", [FedCOM(server="momentum"), Scafcom(), FedCOMGATE(option="I")])  # type: ignore[arg-type]
def test_a_schedule_is_the_rates_of_each_round(algorithm: Any) -> None:
    """Round r of a run with schedules is that of a run whose constant rates are those of round r."""
    method = replace(algorithm, eta=0.1, gamma=2.0, decay=1.0, **EVERY)
    scheduled = replace(method, eta_schedule="cosine", gamma_schedule="step(every=1, by=0.5)")
    run = Simulation(mlp_task(), scheduled, Links(Int(4)), rounds=3, device="cpu")
    other = Simulation(mlp_task(), method, Links(Int(4)), rounds=3, device="cpu")
    for done in range(3):
        eta, gamma = 0.1 * factor("cosine", done, 3), 2.0 * 0.5**done
        other.state.rules = replace(other.rules, algorithm=replace(method, eta=eta, gamma=gamma))
        run.step()
        other.step()
        assert torch.equal(run.server.w, other.server.w)


def test_runs_of_a_stack_may_have_different_schedules() -> None:
    each: list[dict[str, Any]] = [
        {"eta_schedule": "cosine", "gamma_schedule": "warmup(rounds=2)"},
        {"eta_schedule": "step(every=1, by=0.5)", "gamma_schedule": None},
        {"eta_schedule": "constant", "gamma_schedule": "cosine(end=0.5)"},
    ]

    def runs() -> list[Simulation]:
        return [
            Simulation(
                mlp_task(), FedCOMGATE(gamma=2.0, **EVERY, **one), Links(Int(8)), rounds=3, device="cpu"
            )
            for one in each
        ]

    stacked, alone = runs(), runs()
    engine = stack_runs(stacked)
    for _ in range(3):
        engine.step()
    for one, other in zip(stacked, alone, strict=True):
        other.run()
        assert torch.allclose(one.server.w, other.server.w, rtol=1e-12, atol=1e-13)
    found = sweep(
        quadratic_task(),
        {"eta_schedule": ["cosine", "constant"]},
        "fedcom",
        rounds=3,
        quiet=True,
        device="cpu",
    )
    assert len({record["train_loss"] for record in found.records}) == 2


def test_a_run_that_goes_on_follows_the_number_of_rounds_it_is_given(tmp_path: Path) -> None:
    method = FedCOMGATE(gamma=2.0, eta_schedule="cosine", gamma_schedule="warmup(rounds=3)", **EVERY)
    whole = Simulation(mlp_task(), method, Links(Int(4)), rounds=6, device="cpu")
    for done in range(6):
        if done == 3:
            whole.save(tmp_path)
        whole.step()
    again = Simulation.load(tmp_path, mlp_task(), device="cpu")
    again.run()
    assert torch.equal(again.server.w, whole.server.w)
    longer = Simulation.load(tmp_path, mlp_task(), rounds=12, device="cpu")
    assert longer.state.inputs(3).eta == 0.05 * factor("cosine", 3, 12)
    assert longer.state.inputs(3).eta > again.state.inputs(3).eta


def test_real_clients_must_know_the_number_of_rounds_that_a_schedule_needs() -> None:
    def agreed(rounds: int, **how: Any) -> int:
        return agreement(Simulation(mlp_task(), FedAvg(**how), rounds=rounds, device="cpu").state, {})

    assert agreed(3) == agreed(4)
    assert agreed(3, eta_schedule="cosine") != agreed(4, eta_schedule="cosine")


def test_schedules_of_ones_own(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Falling(Schedule):
        """Falls to zero in the last round."""

        name: ClassVar[str] = "falling"

        def factor(self, r: int, rounds: int) -> float:
            return 1 - r / (rounds - 1)

    SCHEDULES.add(Falling)
    try:
        with pytest.raises(ConfigError, match=r"falling must give numbers above 0; got 0.0 in round 2 of 3"):
            Simulation(mlp_task(), FedPAQ(eta_schedule="falling"), rounds=3, device="cpu")
    finally:
        del SCHEDULES["falling"]
        schedule_of.cache_clear()
    assert names_code("mine:Falling(a=1)")
    assert not names_code("cosine(end=0.1)")
    path = tmp_path / "config.toml"
    table = {"algorithm": {"eta_schedule": "warmup(rounds=3, then=cosine)", "gamma_schedule": "cosine"}}
    path.write_text(dumps(Config.of(table).table()))
    back = Config.of(read(path)).algorithm
    assert back == Config.of(table).algorithm
    assert (back.eta_schedule, back.decay) == ("warmup(rounds=3, then=cosine)", 1.0)
