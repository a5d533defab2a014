"""A state may hold views of what it was before: last values, swapped fields, one tensor twice, the server's.

Each method is played beside a twin that copies all it returns, in every place where states are kept.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from fedcom import Algorithm, FedAvg, FedGATE, Int, Links, Simulation, Storage, Task
from fedcom.algorithms.base import Round
from fedcom.algorithms.fedgate import Tracker
from fedcom.engines.local.compiled import _in_place
from fedcom.engines.local.eager import _written
from fedcom.engines.stacks import stack_runs
from fedcom.rounds.rules import ServerSide
from fedcom.vectors import apart, overwrite
from tests.engines.remote.clients import Perfect, deployed, participants
from tests.engines.test_checkpoints import small_task

ROUNDS = 4
LINKS = Links(Int(8), uplink_memory="error-feedback")


class Two(NamedTuple):
    """A client's last two values."""

    current: Tensor
    previous: Tensor


class TwoModels(NamedTuple):
    """A server's last two models."""

    w: Tensor
    before: Tensor


@dataclass(frozen=True, kw_only=True)
class KeepsTwo(FedAvg):
    """Corrects its steps by the difference between the last two updates."""

    name: ClassVar[str] = "keeps-two"
    compresses: ClassVar[str | None] = None

    def init_client(self, w: Tensor) -> Two:
        zeros = torch.zeros_like(w)
        return Two(zeros, zeros)

    def direction(self, g: Tensor, client: Two, down: Any) -> Tensor:
        return g + 0.01 * (client.current - 2 * client.previous)

    def client_step(self, client: Two, meant: Any, sent: Any, mean: Any, rnd: Any) -> Two:
        return Two(current=sent["D"], previous=client.current)


@dataclass(frozen=True, kw_only=True)
class Swaps(KeepsTwo):
    """Adds to one field in every second round only."""

    name: ClassVar[str] = "swaps"

    def client_step(self, client: Two, meant: Any, sent: Any, mean: Any, rnd: Any) -> Two:
        return Two(current=client.previous + 0.5 * sent["D"], previous=client.current)


@dataclass(frozen=True, kw_only=True)
class Twice(KeepsTwo):
    """Has one tensor in two fields, one of them a view that has its first number everywhere."""

    name: ClassVar[str] = "twice"

    def client_step(self, client: Two, meant: Any, sent: Any, mean: Any, rnd: Any) -> Two:
        both = client.current + sent["D"]
        return Two(both, both[..., :1].expand_as(both))


@dataclass(frozen=True, kw_only=True)
class Spreads(KeepsTwo):
    """Has a view of its own field as it was, which begins where the field does but is another vector."""

    name: ClassVar[str] = "spreads"

    def client_step(self, client: Two, meant: Any, sent: Any, mean: Any, rnd: Any) -> Two:
        return Two(client.current[..., :1].expand_as(client.current), client.current + sent["D"])


@dataclass(frozen=True, kw_only=True)
class BeginsAnew(KeepsTwo):
    """Moves its fields before the local steps, and keeps the server's vector as it is."""

    name: ClassVar[str] = "begins-anew"

    def begin(self, client: Two, down: Any, oracle: Any, rnd: Any) -> Two:
        return Two(current=down["w"].expand_as(client.current), previous=client.current)

    def client_step(self, client: Two, meant: Any, sent: Any, mean: Any, rnd: Any) -> Two:
        return client


@dataclass(frozen=True, kw_only=True)
class SwapsFirst(KeepsTwo):
    """Swaps its fields before the local steps, and adds to one of them after the round."""

    name: ClassVar[str] = "swaps-first"

    def begin(self, client: Two, down: Any, oracle: Any, rnd: Any) -> Two:
        return Two(client.previous, client.current)

    def client_step(self, client: Two, meant: Any, sent: Any, mean: Any, rnd: Any) -> Two:
        return client._replace(current=client.current + sent["D"])


@dataclass(frozen=True, kw_only=True)
class TracksTwice(FedGATE):
    """FedGATE, whose update a compiled loop writes in place, with a view of the delta before."""

    name: ClassVar[str] = "tracks-twice"
    compresses: ClassVar[str | None] = None

    def init_client(self, w: Tensor) -> Any:
        zeros = torch.zeros_like(w)
        return Tracked(zeros, zeros)

    def begin(self, client: Any, down: Any, oracle: Any, rnd: Any) -> Any:
        return client._replace(last=client.delta)


class Tracked(NamedTuple):
    delta: Tensor
    last: Tensor


@dataclass(frozen=True, kw_only=True)
class ServerKeepsTwo(FedAvg):
    """A server that steps along its last two models, which are one tensor before round 0."""

    name: ClassVar[str] = "server-keeps-two"
    compresses: ClassVar[str | None] = None

    def init_server(self, w: Tensor) -> TwoModels:
        return TwoModels(w, w)

    def server_step(self, server: TwoModels, mean: Any, rnd: Any) -> TwoModels:
        w = server.w + 0.5 * (server.w - server.before) - rnd.eta * mean["D"]
        return TwoModels(w, server.w)


def copying(kind: type[Algorithm]) -> Algorithm:
    """The method with everything copied that it returns."""

    class Twin(kind):  # type: ignore[misc,valid-type]
        def begin(self, *given: Any) -> Any:
            return _copies(super().begin(*given))

        def client_step(self, *given: Any) -> Any:
            return _copies(super().client_step(*given))

    return dataclass(frozen=True, kw_only=True)(Twin)(tau=2, batch=4)


def _copies(state: Any) -> Any:
    return type(state)(*(x.clone() for x in state))


METHODS: list[type[Algorithm]] = [
    KeepsTwo,
    Swaps,
    Twice,
    Spreads,
    BeginsAnew,
    SwapsFirst,
    TracksTwice,
    ServerKeepsTwo,
]
PLACES: dict[str, dict[str, Any]] = {
    "in memory": {},
    "sampled": {"participation": 0.5},
    "in chunks": {"chunk": 3},
    "on disk": {"storage": Storage("disk")},
    "on disk, sampled": {"storage": Storage("disk"), "participation": 0.5},
}


def end(simulation: Simulation) -> list[Tensor]:
    """All that the server and the clients keep."""
    return [*simulation.server, *simulation.client_states(), *simulation.client_memory().values()]


def make(method: Algorithm, task: Task | None = None, **settings: Any) -> Simulation:
    task = small_task() if task is None else task
    return Simulation(task, method, LINKS, rounds=ROUNDS, device="cpu", **settings)


def played(simulation: Simulation, rounds: int = ROUNDS) -> Simulation:
    for _ in range(rounds):
        simulation.step()
    return simulation


def same(mine: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(mine, theirs, strict=True))


@pytest.mark.covers(1)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.name)
def test_views_are_as_good_as_copies(kind: type[Algorithm], place: str) -> None:
    settings = PLACES[place]
    mine, theirs = played(make(kind(tau=2, batch=4), **settings)), played(make(copying(kind), **settings))
    assert same(end(mine), end(theirs))
    if kind is KeepsTwo:
        assert not torch.equal(*mine.client_states())


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.name)
def test_after_a_checkpoint_too(kind: type[Algorithm], tmp_path: Path) -> None:
    method = kind(tau=2, batch=4)
    saved = played(make(method), 2)
    saved.save(tmp_path)
    loaded = Simulation.load(tmp_path, small_task(), method, LINKS, device="cpu")
    assert same(end(played(loaded, 2)), end(played(make(method))))


@pytest.mark.parametrize(
    "kind",
    [*METHODS[::2], *(pytest.param(kind, marks=pytest.mark.thorough) for kind in METHODS[1::2])],
    ids=lambda kind: kind.name,
)
def test_and_on_the_disks_of_real_clients(kind: type[Algorithm], tmp_path: Path) -> None:
    task, method = small_task(torch.float64), kind(tau=2, batch=4)
    settings = {"algorithm": method, "links": LINKS, "rounds": ROUNDS}
    transport = Perfect(participants(task, settings, tmp_path / "clients"))
    here, _ = deployed(task, settings, tmp_path, transport)
    there = played(make(copying(kind), task))
    for _ in range(ROUNDS):
        here.step()
    for mine, theirs in zip(here.server, there.server, strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.name)
def test_and_in_a_stack_of_runs(kind: type[Algorithm]) -> None:
    pair = [make(kind(tau=2, batch=4), seed=seed) for seed in (0, 1)]
    stack_runs(pair)
    played(pair[0])
    for seed, mine in enumerate(pair):
        theirs = played(make(copying(kind), seed=seed))
        for x, y in zip(end(mine), end(theirs), strict=True):
            assert torch.allclose(x, y, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_and_in_compiled_steps() -> None:
    """A compiler that writes one field in place may read it afterwards for the other."""
    rnd = Round(0.1, 7, 0.7, 1.0)
    for method in (KeepsTwo(), Swaps(), FedGATE()):
        kind = type(method.init_client(torch.zeros(5)))
        client = kind(*(torch.randn(8, 5)[2:6] for _ in kind._fields))
        sent, mean = {"D": torch.randn(4, 5)}, {"D": torch.randn(5)}
        want = _copies(method.client_step(client, {}, sent, mean, rnd))
        found = _in_place(method.client_step)(client, {}, sent, mean, rnd)
        overwrite(client, found)
        for x, y in zip(client, want, strict=True):
            assert torch.allclose(x, y)
        assert (found is client) == (kind is Tracker)  # written in place where that is right


def test_a_server_written_in_place_may_move_its_fields() -> None:
    """As rounds on a GPU write it: (w, before) becomes (w + 1, w), in the same memory."""
    w, before = torch.zeros(3), torch.ones(3)
    old = ServerSide(TwoModels(w, before), {}, {})
    new = _written(old, ServerSide(TwoModels(w + 1, w), {}, {}))
    assert new.state.w is w
    assert new.state.before is before
    assert w.tolist() == [1, 1, 1]
    assert before.tolist() == [0, 0, 0]


def test_overwriting_by_any_view_of_the_old_tensors() -> None:
    block = torch.arange(6.0).reshape(2, 3)
    a, b = block
    overwrite([a, b], [b, a])
    assert block.tolist() == [[3, 4, 5], [0, 1, 2]]
    overwrite([a, b], [a[:1].expand(3), a])
    assert block.tolist() == [[3, 3, 3], [3, 4, 5]]


def test_tensors_apart() -> None:
    x = torch.arange(4.0)
    first, view, other = apart([x, x[1:], torch.ones(2)])
    view.zero_()
    assert first is x
    assert x.tolist() == [0, 1, 2, 3]
    assert other.tolist() == [1, 1]
