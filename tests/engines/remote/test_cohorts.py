"""Faults cost exactly what fewer clients cost: the local engine, told who was counted, comes to the same end.

FEDCOM_CHAOS=1 (make chaos) plays 60 rounds with 20 seeds.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedcom import Int, Links, Rotated, Simulation, Task, TopK
from fedcom.engines.remote.coordinator import Coordinator
from fedcom.engines.remote.participant import Participant
from fedcom.rounds.rules import ServerSide
from tests.engines.remote.chaos import play, settled
from tests.engines.remote.clients import Settings
from tests.engines.remote.test_chaos import FAULTS, SEEDS, TERMS, given
from tests.engines.remote.test_equality import local
from tests.engines.test_checkpoints import CLIENTS, small_task

CASES: dict[str, tuple[str, Links | None, dict[str, Any]]] = {
    "fedcomgate": ("fedcomgate", Links(Int(4)), {}),
    "by size": ("fedcomgate", Links(Int(4)), {"weights": "size"}),
    "scaffold": ("scaffold", None, {}),
    "top-k": ("fedpaq", Links(TopK(0.1), uplink_memory="error-feedback"), {}),
    "diana": ("diana", Links(Int(2)), {}),
    "exact": ("fedcomgate-exact", Links(Rotated(1.0)), {}),
    "downlink": ("fedcomgate", Links(Int(4), Rotated(2.0)), {}),
    "momentum": ("fedcomgate-exact", Links(Rotated(1.0)), {"server": "momentum"}),
    # Not Int down: its smallest value is rounded up to a float32, and a mean of Int's values often is one
    # but for the last bit of a sum.
    "momentum, option I": ("scaffold", Links(Int(4), Rotated(2.0)), {"server": "yogi", "option": "I"}),
    "downlink's memory": ("fedcomgate", Links(Int(4), TopK(0.2), downlink_memory="error-feedback"), {}),
}


class Played(NamedTuple):
    """What became of a round."""

    counted: Tensor  # the clients; none in a void round
    lost: Tensor  # the clients that said that their state is lost
    restarted: bool  # whether all start anew


class Minutes:
    """Writes down who was counted in each round of a run with real clients."""

    def __init__(self) -> None:
        self.rounds: list[Played] = []
        self._losses, self._generation = torch.zeros(CLIENTS, dtype=torch.int64), 0

    def __call__(self, played: Simulation, clients: dict[int, Participant]) -> None:
        now: Coordinator = played.engine.coordinator  # type: ignore[attr-defined]
        (counted,) = (now.clients.counted == played.round - 1).nonzero(as_tuple=True)
        (lost,) = (now.clients.losses > self._losses).nonzero(as_tuple=True)
        self.rounds.append(Played(counted, lost, now.generation > self._generation))
        self._losses, self._generation = now.clients.losses.clone(), now.generation


def replayed(task: Task, settings: Settings, rounds: list[Played]) -> tuple[ServerSide, list[Tensor]]:
    """What the local engine comes to with the given clients in each round: the server, and clients' rows."""
    run = local(task, settings)
    everyone, side = torch.arange(CLIENTS), run.state.server_side
    first = [x.clone() for x in run.engine.store.rows(everyone)]  # type: ignore[attr-defined]
    rows, states = [x.clone() for x in first], len(run.client_states())
    for r, (counted, lost, restarted) in enumerate(rounds):
        if len(
            counted
        ):  # the local engine has as many clients in every round, so each has an engine of its own
            one = local(task, {**settings, "participation": len(counted) / CLIENTS})
            one.state.sample = lambda _, counted=counted: counted  # type: ignore[method-assign, misc]
            one.state.server_side, one.engine.round = side, r  # type: ignore[misc]
            one.engine.store.fill(everyone, rows)  # type: ignore[attr-defined]
            one.engine.step()
            side, rows = one.state.server_side, one.engine.store.rows(everyone)  # type: ignore[attr-defined]
        if restarted:
            rows[:states] = [x.clone() for x in first[:states]]
            side = side._replace(state=run.rules.init_server(side.state.w).state)
        for row, start in zip(rows, first, strict=True):
            row[lost] = start[lost]
    return side, rows


@pytest.mark.covers(1)
@pytest.mark.parametrize("wipe", [0.0, 0.1], ids=["disks hold", "disks are wiped"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES)
def test_faults_cost_what_fewer_clients_cost(tmp_path: Path, case: str, seed: int, wipe: float) -> None:
    name, links, how = CASES[case]
    task, settings, minutes = small_task(torch.float64), given(name, links, **how), Minutes()
    played, transport = play(task, settings, tmp_path, seed, TERMS, minutes, wipe=wipe, **FAULTS)
    side, rows = replayed(task, settings, minutes.rounds)
    assert len({len(one.counted) for one in minutes.rounds}) > 2  # how many are counted varies
    assert any(len(one.lost) for one in minutes.rounds) == bool(wipe)
    ours, theirs = played.state.server_side.tensors(), side.tensors()
    kept = [(ours[name], theirs[name]) for name in ours]
    unheard = 0  # clients whose disk was wiped, which the server does not know yet
    for j, client in transport.clients.items():
        try:
            ((state, memory),) = settled(played, {j: client})
        except LookupError:
            unheard += 1
            continue
        kept += [(mine[0], row[j]) for mine, row in zip([*state, *memory.values()], rows, strict=True)]
    assert unheard <= transport.wiped
    for mine, other in kept:
        assert float((mine - other).abs().max()) <= 1e-12
