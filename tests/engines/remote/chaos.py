"""A network and machines that fail at random, and what must hold in spite of it."""

import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedcom import Simulation, Task
from fedcom.codecs.wire import Data
from fedcom.engines.remote import messages, vault
from fedcom.engines.remote.coordinator import Coordinator
from fedcom.engines.remote.participant import Participant
from fedcom.engines.remote.terms import Terms
from fedcom.errors import WireError
from fedcom.vectors import Vectors
from tests.engines.remote.clients import Settings, deployed, participants


class Crash(BaseException):
    """A process ends at once."""


class Chaos:
    """A transport that loses, delays, repeats and damages messages, and whose clients crash.

    Args:
        losses: the share of calls, and of replies, that are lost.
        crash: the chance that a client crashes before or after it has written its state.
        wipe: the chance, for each call, that the client's disk is empty.
        stop: the chance, for each message, that the coordinator crashes.
    """

    def __init__(
        self,
        clients: dict[int, Participant],
        seed: int,
        losses: float = 0.3,
        crash: float = 0.05,
        wipe: float = 0.0,
        stop: float = 0.0,
    ) -> None:
        self.clients, self.rng, self.losses = clients, random.Random(seed), losses
        self.crash, self.wipe, self.stop, self.wiped = crash, wipe, stop, 0
        self._delayed: list[tuple[int, bytes]] = []  # replies that come in a later round
        self._old_calls: list[tuple[int, bytes]] = []

    def carry(
        self,
        calls: Iterable[tuple[int, bytes]],
        hear: Callable[[int, Data], object],
        give_up: Callable[[int], None],
        missing: Callable[[], Sequence[int]],
        deadline: float,
        admit: Callable[[int, str], bool],
    ) -> None:
        arriving, self._delayed = self._delayed, []
        for client, call in calls:
            self._maybe_stop()
            self._old_calls.append((client, call))
            if self.rng.random() >= self.losses and (reply := self._reply(client, call)) is not None:
                kind = self.rng.random()
                if kind < self.losses:
                    continue  # lost
                if kind < self.losses + 0.1:
                    self._delayed.append((client, reply))
                    continue
                arriving.append((client, reply))
                if kind > 0.9:
                    arriving.append((client, reply))  # twice
        if self._old_calls and self.rng.random() < 0.2:  # an old call arrives late, or once more
            client, call = self.rng.choice(self._old_calls)
            if (reply := self._reply(client, call)) is not None:
                arriving.append((client, reply))
        self.rng.shuffle(arriving)
        for client, reply in arriving:
            self._maybe_stop()
            if self.rng.random() < 0.03:
                reply = bytes([*reply[:-1], reply[-1] ^ 1])
            hear(client, reply)
        for client in missing()[::2]:
            give_up(client)

    def _maybe_stop(self) -> None:
        if self.rng.random() < self.stop:
            self._delayed.clear()
            raise Crash

    def _reply(self, client: int, call: bytes) -> bytes | None:
        """What a client answers; None if it crashes or refuses."""
        participant = self.clients[client]
        if self.rng.random() < self.wipe:
            self.wiped += 1
            shutil.rmtree(participant._vault.folder, ignore_errors=True)
        dies = self.rng.random()
        saved = vault.Vault.save
        if dies < self.crash / 2:  # before it has written its state

            def killed(*_: Any) -> None:
                raise Crash

            vault.Vault.save = killed  # type: ignore[method-assign]
        try:
            reply = participant.answer(call)
        except (Crash, WireError):
            return None
        finally:
            vault.Vault.save = saved  # type: ignore[method-assign]
        return None if self.crash / 2 <= dies < self.crash else reply


def play(
    task: Task,
    settings: Settings,
    folder: Path,
    seed: int,
    terms: Terms,
    check: Callable[[Simulation, dict[int, Participant]], None] = lambda *_: None,
    **chances: float,
) -> tuple[Simulation, Chaos]:
    """Play a run among faults, the coordinator checkpointed each round and started again after a crash."""
    clients = participants(task, settings, folder / "clients")
    transport, series = Chaos(clients, seed, **chances), folder / "checkpoints"
    played, _ = deployed(task, settings, folder, transport, terms)
    while played.round < settings["rounds"]:
        try:
            played.step()
        except Crash:
            played, _ = deployed(task, settings, folder, transport, terms)
            played.restore(series)
            continue
        played.save(series)
        check(played, clients)
    return played, transport


def settled(played: Simulation, clients: dict[int, Participant]) -> list[tuple[Any, Vectors]]:
    """What each client keeps once it is told what it is owed, as the invariants see it."""
    coordinator: Coordinator = played.engine.coordinator  # type: ignore[attr-defined]
    return [_settled(coordinator, participant, j) for j, participant in clients.items()]


def _settled(coordinator: Coordinator, participant: Participant, j: int) -> tuple[Any, Vectors]:
    fresh = participant._fresh(coordinator.generation)
    kept = participant._vault.load(coordinator.job, participant._initial) or fresh
    counted = int(coordinator.clients.counted[j])
    if counted == messages.NEVER and kept.committed != messages.NEVER:
        return fresh.state, fresh.memory  # the server knows that its state is lost
    state, memory = kept.state, kept.memory
    if counted != kept.committed:
        if kept.pending is None or kept.pending.round != counted:
            raise LookupError(f"client {j} has lost its state")
        told, factors = coordinator.archive.load(counted).told, coordinator.clients.factors.get(j, ())
        state, memory = participant._finished(kept.pending.work, told, factors)
    return (state if kept.generation == coordinator.generation else fresh.state), memory


def weighted(played: Simulation, fields: Iterable[Tensor]) -> Tensor:
    """sum p_j x_j."""
    p = played.weights
    return sum((p[j] * x[0] for j, x in enumerate(fields)), torch.zeros_like(played.server.w))
