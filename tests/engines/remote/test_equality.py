"""Without faults, real clients give the bits and count the bytes of the local engine."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from fedcom import ALGORITHMS, Int, Links, Peaks, Rotated, Simulation, Task, TopK
from fedcom.engines.remote.messages import NEVER
from tests.conftest import CHAOS
from tests.engines.remote.clients import Perfect, deployed, participants, simulation
from tests.engines.test_checkpoints import CLIENTS, algorithm, small_task

ROUNDS = 8 if CHAOS else 5
CASES: dict[str, tuple[str, Links | None, dict[str, Any]]] = {
    "fedcomgate": ("fedcomgate", Links(Int(4)), {}),
    "fedcomgate sampled": ("fedcomgate", Links(Int(4)), {"participation": 0.4}),
    "exact": ("fedcomgate-exact", Links(Rotated(0.5)), {"participation": 0.5}),
    "scaffold": ("scaffold", None, {"participation": 0.5}),
    "scaffold by size": ("scaffold", None, {"participation": 0.5, "how": {"weights": "size"}}),
    "scaffold, seed": ("scaffold", Links(Int(4), first="seed"), {}),
    "top-k": ("fedpaq", Links(TopK(0.1), uplink_memory="error-feedback"), {}),
    "paper's memory": ("fedpaq", Links(TopK(0.1), uplink_memory="paper"), {"participation": 0.5}),
    "diana": ("diana", Links(Int(2)), {"participation": 0.5}),
    "diana, option I": ("diana", Links(Int(2), Int(6)), {"participation": 0.5, "how": {"option": "I"}}),
    "vr-diana": ("vr-diana", Links(Int(2)), {"participation": 0.5}),
    "downlink": ("fedcomgate", Links(Rotated(1.0), Rotated(2.0)), {}),
    "catch-up": ("fedcomgate", Links(Int(4), Rotated(2.0)), {"participation": 0.25}),
    "catch-up, seed": (
        "fedcomgate-exact",
        Links(Rotated(0.5), TopK(0.1), first="seed", downlink_memory="error-feedback"),
        {"participation": 0.25},
    ),
    "compact": ("fedcomgate", Links(Peaks(1.0), Peaks(1.0)), {"participation": 0.5}),
    "budgets": (
        "fedcomgate",
        Links(Int(4), budgets=tuple(2.0 + j % 3 for j in range(CLIENTS)), clip=1.0),
        {"participation": 0.5},
    ),
    "budgets, error feedback": (
        "fedcomgate-exact",
        Links(
            Int(4), uplink_memory="error-feedback", budgets=tuple(2.0 + 6 * (j % 2) for j in range(CLIENTS))
        ),
        {"participation": 0.5},
    ),
    "correlated": ("fedcom", Links(Int(4), correlated=True), {"participation": 0.5}),
    "epochs": ("fedcomgate", Links(Int(4)), {"how": {"epochs": 2, "tau": 10}}),
    "mean of models": (
        "fedcom",
        Links(Int(4)),
        {"participation": 0.5, "how": {"average": "models", "epochs": 2, "tau": 10}},
    ),
    "mean of models, scaffold": (
        "scaffold",
        None,
        {"how": {"average": "models", "epochs": 1, "tau": 10, "weights": "size"}},
    ),
    "fedavg": ("fedavg", None, {"participation": 0.5}),
    "momentum": ("fedcom", Links(Int(4)), {"participation": 0.5, "how": {"server": "momentum"}}),
    "momentum, catch-up": (
        "fedcom",
        Links(Int(4), Rotated(2.0)),
        {"participation": 0.25, "how": {"server": "nesterov", "option": "I"}},
    ),
    "momentum, exact": (
        "fedcomgate-exact",
        Links(Rotated(0.5), Rotated(2.0), first="seed"),
        {"participation": 0.25, "how": {"server": "momentum"}},
    ),
    "a number up and down": (
        "fedexp",
        Links(Int(4), Rotated(2.0)),
        {"participation": 0.25, "how": {"server": "momentum", "option": "I"}},
    ),
    "feddyn, option I": ("feddyn", Links(Int(4), Int(6)), {"participation": 0.5, "how": {"option": "I"}}),
    "local momentum": (
        "fedcomgate",
        Links(Int(4)),
        {"participation": 0.5, "how": {"local": {"name": "momentum", "keep": True}, "epochs": 1, "tau": 10}},
    ),
    "local adamw": (
        "fedpaq",
        Links(TopK(0.1), uplink_memory="error-feedback", clip=1.0),
        {"participation": 0.5, "how": {"local": {"name": "adamw", "keep": True, "clip": 0.5}, "eta": 0.01}},
    ),
    "schedules": (
        "fedcom",
        Links(Int(4), Rotated(2.0)),
        {
            "participation": 0.25,
            "how": {
                "option": "I",
                "server": "momentum",
                "eta_schedule": "cosine",
                "gamma_schedule": "warmup(rounds=3)",
            },
        },
    ),
    "adam, diana": (
        "diana",
        Links(Int(2), Int(6)),
        {"participation": 0.5, "how": {"server": "adam", "option": "I"}},
    ),
}


def given(case: str) -> dict[str, Any]:
    name, links, settings = CASES[case]
    settings = dict(settings)
    how = settings.pop("how", {})
    return {"algorithm": algorithm(name, **how), "links": links, "rounds": ROUNDS, **settings}


def local(task: Task, settings: dict[str, Any]) -> Simulation:
    """The local engine, one client at a time, with real messages."""
    links = settings["links"] or Links.of(settings["algorithm"])
    encoded = Links(**{**vars_of(links), "encode": True})
    return simulation(task, {**settings, "links": encoded, "chunk": 1})


def vars_of(links: Links) -> dict[str, Any]:
    return {name: getattr(links, name) for name in links.__dataclass_fields__}


LONG = (
    "momentum, catch-up",
    "fedcomgate",
    "scaffold",
    "diana",
    "vr-diana",
    "downlink",
    "catch-up",
    "correlated",
    "fedavg",
)


@pytest.mark.covers(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.thorough] * (case in LONG)) for case in CASES]
)
def test_real_clients_give_the_bits_of_the_local_engine(
    tmp_path: Path, case: str, dtype: torch.dtype
) -> None:
    settings = given(case)
    unequal = tuple(range(5, 5 + 3 * CLIENTS, 3)) if settings["algorithm"].epochs else ()
    task = small_task(dtype, sizes=unequal)
    there, here = local(task, settings), None
    rng = random.Random(case)

    def shuffled(order: list[int]) -> list[int]:
        return rng.sample(order, len(order))

    transport = Perfect(participants(task, settings, tmp_path / "clients"), shuffled)
    here, _ = deployed(task, settings, tmp_path, transport)
    for _ in range(ROUNDS):
        there.step()
        here.step()
        assert torch.equal(here.server.w, there.server.w)
    for mine, theirs in zip(here.server, there.server, strict=True):
        assert torch.equal(mine, theirs)
    assert here.q == there.q or not here.rules.sends_q
    assert here.alpha == there.alpha
    check_clients(here, there, transport)
    check_ledger(here, there, transport)


def check_clients(here: Simulation, there: Simulation, transport: Perfect) -> None:
    """What clients keep is what the local engine keeps for them, the last mean not yet told."""
    coordinator = here.engine.coordinator  # type: ignore[attr-defined]
    job = coordinator.job
    for j, participant in transport.clients.items():
        kept = participant._vault.load(job, participant._initial)
        if kept is None:
            assert not participant._keeps or coordinator.clients.counted[j] == NEVER
            continue
        assert kept.pending is not None
        assert kept.pending.round == coordinator.clients.counted[j]
        told = coordinator.archive.load(int(coordinator.clients.counted[j])).told
        state, memory = participant._finished(kept.pending.work, told, ())
        for mine, theirs in zip(state, there.client_states(torch.tensor([j])), strict=True):
            assert torch.equal(mine, theirs)
        for name, nu in there.client_memory(torch.tensor([j])).items():
            assert torch.equal(memory[name], nu)


def check_ledger(here: Simulation, there: Simulation, transport: Perfect) -> None:
    """Every byte is counted as the local engine counts it; means that nobody was told yet are not."""
    mine, theirs = here.ledger.as_dict(), there.ledger.as_dict()
    assert mine["uplink"]["total"] == transport.received  # type: ignore[index]
    envelopes = mine["uplink"]["vectors"].pop("envelope")  # type: ignore[index]
    assert mine["uplink"]["vectors"] == theirs["uplink"]["vectors"]  # type: ignore[index]
    assert 0 < envelopes["header"] <= 80 * ROUNDS * here.rules.sampled
    coordinator = here.engine.coordinator  # type: ignore[attr-defined]
    untold = 0
    for j in coordinator.clients.owed.nonzero()[:, 0].tolist():
        untold += coordinator.archive.load(int(coordinator.clients.counted[j])).nbytes
    vectors = mine["downlink"]["vectors"]  # type: ignore[index]
    down = mine["downlink"]["total"] - vectors["envelope"]["header"]  # type: ignore[index]
    assert down + untold == theirs["downlink"]["total"]  # type: ignore[index]


def test_all_methods_work_with_real_clients(tmp_path: Path) -> None:
    task = small_task(torch.float64)
    for name in ALGORITHMS:
        settings = {"algorithm": algorithm(name), "rounds": 3, "participation": 0.5}
        here, _ = deployed(task, settings, tmp_path / name)
        there = simulation(task, settings)
        for _ in range(3):
            here.step()
            there.step()
        assert torch.allclose(here.server.w, there.server.w, rtol=0, atol=1e-12), name
