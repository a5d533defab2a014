"""Clients in the same process: participants with disks of their own, and a transport that carries bytes."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedcom import Simulation, Task
from fedcom.codecs.wire import Data
from fedcom.engines.remote.engine import RemoteEngine
from fedcom.engines.remote.participant import Participant
from fedcom.engines.remote.terms import Terms
from fedcom.rounds.state import RunState

Settings = dict[str, Any]


class Perfect:
    """A transport without faults; replies come in any order that is given.

    Args:
        order: of the clients of a round.
    """

    def __init__(
        self, clients: dict[int, Participant], order: Callable[[list[int]], list[int]] = list
    ) -> None:
        self.clients, self.order, self.received = clients, order, 0

    def carry(
        self,
        calls: Iterable[tuple[int, bytes]],
        hear: Callable[[int, Data], object],
        give_up: Callable[[int], None],
        missing: Callable[[], Sequence[int]],
        deadline: float,
        admit: Callable[[int, str], bool],
    ) -> None:
        replies = {client: self.clients[client].answer(call) for client, call in calls}
        for client in self.order(list(replies)):
            self.received += len(replies[client])
            assert hear(client, replies[client]) is None


def run_of(task: Task, settings: Settings) -> RunState:
    """The rules and the first state of a run, as each side makes them for itself."""
    return simulation(task, settings).state


def simulation(task: Task, settings: Settings) -> Simulation:
    return Simulation(task, device="cpu", **settings)


def participants(task: Task, settings: Settings, folder: Path) -> dict[int, Participant]:
    """All clients, each with its own samples only, and a disk of its own."""
    return {
        j: Participant(run_of(task, settings), task.only(range(j, j + 1)), j, folder / f"disk-{j}")
        for j in range(task.clients)
    }


def deployed(
    task: Task, settings: Settings, folder: Path, transport: Any = None, terms: Terms | None = None
) -> tuple[Simulation, Any]:
    """A run with participants in place of the local engine."""
    played = simulation(task, settings)
    transport = transport or Perfect(participants(task, settings, folder / "clients"))
    log, frozen = folder / "faults.jsonl", task.objective.frozen
    engine = RemoteEngine(played.state, transport, folder / "server", terms, log, task.checksum, frozen)
    played.join(engine, 0)
    return played, transport
