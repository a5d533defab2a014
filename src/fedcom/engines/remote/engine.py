"""The engine of a run with real clients: a coordinator, and a transport that carries its messages."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from fedcom.codecs.wire import Data
from fedcom.engines.base import Gauge, InOneProcess
from fedcom.engines.remote.coordinator import Coordinator
from fedcom.engines.remote.faults import Faults
from fedcom.engines.remote.terms import Terms
from fedcom.errors import ConfigError, TooFewReplies
from fedcom.rounds.state import RunState
from fedcom.saving.series import ClientRows, Facts, Saved, Series
from fedcom.vectors import Vectors


class Transport(Protocol):
    """Carries calls to clients and their replies back."""

    def carry(
        self,
        calls: Iterable[tuple[int, bytes]],
        hear: Callable[[int, Data], object],
        give_up: Callable[[int], None],
        missing: Callable[[], Sequence[int]],
        deadline: float,
        admit: Callable[[int, str], bool],
    ) -> None:
        """Deliver the calls of a round, and replies as they come, until none is missing or time is up.

        Args:
            calls: clients' numbers and the bytes for each.
            hear: takes a client's number and its reply.
            give_up: takes the number of a client that cannot be reached.
            missing: returns the clients whose reply is still awaited.
            deadline: seconds from now.
            admit: takes a client's number and the key of a node that says it is this client, before it is
                called; whether it may be. A transport whose nodes have no keys does not ask.
        """


class RemoteEngine(InOneProcess):
    """Plays the rounds of one run with clients elsewhere.

    Args:
        checksum: of the data, for checkpoints.
        frozen: the checksums of the model's frozen parameters.
        folder: the coordinator's; see there.
        log: the file that refused replies are written to; None: none.
    """

    chunk = 1

    def __init__(
        self,
        run: RunState,
        transport: Transport,
        folder: Path,
        terms: Terms | None = None,
        log: Path | None = None,
        checksum: int = 0,
        frozen: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.runs: Sequence[RunState] = [run]
        self.transport, self._checksum = transport, checksum
        self.coordinator = Coordinator(run, folder, terms, Faults(log), frozen)
        self._figures: dict[str, Any] = {"q": 0.0, "alpha": 0.0, "finite_rounds": 0, "counted": 0}
        self._series: Series | None = None

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self.coordinator.round

    def step(self) -> None:
        """One round."""
        if self._series is not None:
            self._series.wait()  # no client may learn the end of a round that a crash could undo
        coordinator, terms = self.coordinator, self.coordinator.terms
        time.sleep(terms.wait(coordinator.void))
        calls = coordinator.open()
        self.transport.carry(
            calls,
            coordinator.hear,
            coordinator.give_up,
            lambda: coordinator.missing,
            terms.deadline,
            coordinator.admit,
        )
        called = len(coordinator.called)
        closed = coordinator.close()
        finite = torch.isfinite(self.runs[0].server.w.sum(dtype=torch.float64))
        figures = self._figures
        figures["finite_rounds"] += int(finite)
        figures["counted"] = len(closed.counted)
        if not closed.void:
            figures["q"] = float(closed.q) if self.runs[0].rules.sends_q else None  # clients know theirs
            figures["alpha"] = float(closed.alpha)
        if coordinator.void >= terms.void:
            raise TooFewReplies(
                f"{coordinator.void} rounds in a row had too few replies: the last one {len(closed.counted)} "
                f"of {called}, where round.least={terms.least:g} wants {coordinator.needed(called)} within "
                f"{terms.deadline:g} seconds; faults.jsonl says why replies were refused"
            )

    def gauge(self, run: int) -> Gauge:
        """The figures of the run."""
        figures, refused = self._figures, sum(self.coordinator.faults.counts.values())
        counts = {"counted": figures["counted"], "refused": refused, "void": self.coordinator.voids}
        q = math.nan if figures["q"] is None else figures["q"]
        return Gauge(q, figures["alpha"], self.finite_rounds(run), {}, counts)

    def finite_rounds(self, run: int) -> int:
        """How many rounds left a finite model."""
        return int(self._figures["finite_rounds"])

    def peek(self, run: int, clients: Tensor) -> tuple[Any, Vectors]:
        """Clients' state is theirs alone."""
        raise ConfigError("what real clients keep is on their own disks; the server cannot look at it")

    def save(self, series: Series, facts: Facts) -> None:
        """Begin a checkpoint, between rounds."""
        run, self._series = self.runs[0], series
        books = {**self.coordinator.facts(), "figures": self._figures, "ledgers": [run.ledger.as_dict()]}
        of = {"data": self._checksum, "model": run.rules.layout.fingerprint}
        series.save(self.round, {**facts, "of": of, "engine": books}, self._tensors(), _no_rows)

    def restore(self, saved: Saved) -> None:
        """Go on from a checkpoint, before the first round."""
        books, run = saved.facts["engine"], self.runs[0]
        if saved.facts["of"] != {"data": self._checksum, "model": run.rules.layout.fingerprint}:
            raise ConfigError("the checkpoint is of another model or other data; give those it was made with")
        self.coordinator.restore(books, saved.tensors)
        self._figures = books["figures"]
        run.ledger.load(books["ledgers"][0])
        side = run.server_side
        run.server_side = side.with_tensors(
            {name: saved.tensors[f"server.{name}"] for name in side.tensors()}
        )

    def _tensors(self) -> Vectors:
        side, clients = self.runs[0].server_side, self.coordinator.clients
        return clients.tensors() | {f"server.{name}": x for name, x in side.tensors().items()}


def _no_rows(since: int | None) -> ClientRows:
    """The server knows nothing of what clients keep."""
    nobody = torch.empty(0, dtype=torch.int64)
    return ClientRows(nobody, nobody, lambda _: [], 0)
