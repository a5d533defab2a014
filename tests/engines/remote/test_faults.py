"""Replies that must be refused, and what they may not do to the others."""

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from fedcom import Identity, Int, Links, Simulation, Task, TopK
from fedcom.engines.remote import messages
from fedcom.engines.remote.coordinator import Coordinator
from fedcom.engines.remote.faults import Faults
from fedcom.engines.remote.messages import Envelope
from fedcom.engines.remote.participant import Participant, StaleCall
from fedcom.engines.remote.terms import Terms
from fedcom.errors import ConfigError, StorageError, TooFewReplies, WireError
from fedcom.version import VERSION
from tests.conftest import close
from tests.engines.remote.chaos import settled, weighted
from tests.engines.remote.clients import Perfect, deployed, participants, run_of
from tests.engines.test_checkpoints import CLIENTS, algorithm, small_task

BAD = 3  # the client that misbehaves
Forge = Callable[[bytes], bytes]


def settings(name: str = "fedcomgate", links: Links | None = None, **how: Any) -> dict[str, Any]:
    return {"algorithm": algorithm(name, **how), "links": links or Links(Int(4)), "rounds": 5}


class Hostile(Perfect):
    """A transport whose client BAD sends what a function makes of its honest reply; None: nothing."""

    forge: Callable[[bytes], list[bytes]]
    called: tuple[set[int], ...] = ()  # in each round

    def carry(self, calls: Any, hear: Any, give_up: Any, missing: Any, deadline: float, admit: Any) -> None:
        self.reasons = []
        replies = {client: self.clients[client].answer(call) for client, call in calls}
        self.called += (set(replies),)
        for client, reply in replies.items():
            for data in self.forge(reply) if client == BAD else [reply]:
                self.reasons.append(hear(client, data))
        give_up(BAD)


def envelope(reply: bytes, **changes: Any) -> bytes:
    """A reply with another envelope."""
    before, body = messages.unseal(reply)
    return before._replace(**changes).seal(bytes(body))


def forged(reply: bytes, change: Callable[[list[bytes]], list[bytes]]) -> bytes:
    """A reply with other messages."""
    before, body = messages.unseal(reply)
    return before.seal(messages.joined(change([bytes(m) for m in messages.split(body)])))


def with_floats(value: float) -> Callable[[list[bytes]], list[bytes]]:
    """Another first float in an int message, its checksum mended."""

    def change(found: list[bytes]) -> list[bytes]:
        body = struct.pack("<f", value) + found[0][20:]
        where = small_task(torch.float64).objective.layout
        return [Int(4).frame(body, where), *found[1:]]

    return change


def by_another(reply: bytes) -> bytes:
    """A reply that another version of fedcom made."""
    before, body = messages.unseal(reply)
    with patch.object(messages, "SERIES", (0, 99)):
        return before.seal(bytes(body))


def claims_a_gigabyte(reply: bytes) -> bytes:
    before, _ = messages.unseal(reply)
    return before.seal(bytes([2]) + struct.pack("<QQ", 10**9, 10**9))


def q_of(value: float) -> Callable[[list[bytes]], list[bytes]]:
    from fedcom.draws import Draw
    from fedcom.vectors import Layout

    where = Layout.vector(1, torch.float64)
    return lambda found: [found[0], Identity().encode(torch.tensor([value]).double(), where, Draw.seeded(0))]


FORGERIES: dict[str, tuple[Forge, str]] = {
    "nothing": (lambda reply: b"", "malformed"),
    "garbage": (lambda reply: b"\x93" * 500, "malformed"),
    "cut": (lambda reply: reply[:-1], "malformed"),
    "flipped": (lambda reply: reply[:-1] + bytes([reply[-1] ^ 1]), "malformed"),
    "another format": (lambda reply: reply[:2] + b"\3" + reply[3:], "other version"),
    "another fedcom": (lambda reply: by_another(reply), "other version"),
    "a call": (lambda reply: envelope(reply, kind=messages.CALL), "malformed"),
    "a gigabyte": (claims_a_gigabyte, "malformed"),
    "no messages": (lambda reply: forged(reply, lambda found: []), "malformed"),
    "messages too many": (lambda reply: forged(reply, lambda found: [*found, b"x"]), "malformed"),
    "another codec": (lambda reply: forged(reply, lambda found: [found[1], found[0]]), "malformed"),
    "not a number": (lambda reply: forged(reply, with_floats(float("nan"))), "not finite"),
    "infinite": (lambda reply: forged(reply, with_floats(float("inf"))), "not finite"),
    "a q below zero": (lambda reply: forged(reply, q_of(-1.0)), "malformed"),
    "a huge q": (lambda reply: forged(reply, q_of(1e30)), "malformed"),
    "other settings": (lambda reply: envelope(reply, agreement=1), "other settings"),
    "another job": (lambda reply: envelope(reply, job=bytes(8)), "wrong job"),
    "another client": (lambda reply: envelope(reply, client=BAD + 1), "wrong client"),
    "a round to come": (lambda reply: envelope(reply, round=99), "wrong round"),
    "another generation": (lambda reply: envelope(reply, generation=7), "wrong round"),
    "oversized": (lambda reply: reply + bytes(10**6), "oversized"),
    "failed": (lambda reply: messages.cannot(messages.unseal(reply)[0], "no power"), "failed"),
}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """Two rounds in which client BAD is silent."""
    return _played(tmp_path_factory.mktemp("without"), lambda reply: [])[0]


def _played(folder: Path, forge: Callable[[bytes], list[bytes]]) -> tuple[Simulation, Hostile]:
    task = small_task(torch.float64)
    transport = Hostile(participants(task, settings(), folder / "clients"))
    transport.forge = forge  # type: ignore[method-assign]
    played, _ = deployed(task, settings(), folder, transport)
    played.step()
    played.step()
    return played, transport


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_replies_are_refused_and_the_others_go_on_as_without(
    tmp_path: Path, name: str, without: Simulation
) -> None:
    forge, reason = FORGERIES[name]
    played, transport = _played(tmp_path, lambda reply: [forge(reply)])
    assert transport.reasons[BAD] == reason
    assert torch.equal(played.server.w, without.server.w)
    assert played.row()["counted"] == CLIENTS - 1
    assert played.row()["refused"] == 2
    refused = played.ledger.as_dict()["uplink"]["vectors"]["refused"]  # type: ignore[index]
    assert list(refused) == [reason]
    lines = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    refusals = [(line["round"], line["client"], line["refused"]) for line in lines if "refused" in line]
    assert refusals == [(0, BAD, reason), (1, BAD, reason)]
    assert [line["missing"] for line in lines if "missing" in line] == [[BAD], [BAD]]


def test_a_client_that_is_called_by_another_version_tells_the_server(
    tmp_path: Path, without: Simulation
) -> None:
    task = small_task(torch.float64)
    transport = Hostile(participants(task, settings(), tmp_path / "clients"))
    transport.forge = lambda reply: [reply]  # type: ignore[method-assign]
    client = transport.clients[BAD]
    honest, calls = client.answer, list[bytes]()

    def answer(call: Any) -> bytes:
        calls.append(call)
        with patch.object(messages, "SERIES", (0, 99)):
            return honest(call)

    client.answer = answer  # type: ignore[method-assign]
    played, _ = deployed(task, settings(), tmp_path, transport)
    played.step()
    played.step()
    assert transport.reasons[BAD] == "other version"
    assert torch.equal(played.server.w, without.server.w)
    told = [line["detail"] for line in lines_of(tmp_path) if line.get("refused") == "other version"]
    ours = ".".join(VERSION.split(".")[:2])
    remedy = "install the same version on the server and on all clients"
    assert told == [f"made by fedcom 0.99, this is {ours}; {remedy}"] * 2
    with patch.object(messages, "VERSION", 99), pytest.raises(WireError, match="in another format"):
        honest(calls[0])


def test_a_hundred_thousand_repeated_replies_take_neither_memory_nor_log(tmp_path: Path) -> None:
    task = small_task(torch.float64)
    clients = participants(task, settings(), tmp_path / "clients")
    played, _ = deployed(task, settings(), tmp_path, Perfect(clients))
    coordinator: Coordinator = played.engine.coordinator  # type: ignore[attr-defined]
    replies = {client: clients[client].answer(call) for client, call in coordinator.open()}
    assert coordinator.hear(BAD, replies[BAD]) is None
    tracemalloc.start()
    for i in range(100_000):
        assert coordinator.hear(BAD if i % 2 else 10**6 + i, replies[BAD]) in ("repeated", "unasked")
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 50_000
    assert len((tmp_path / "faults.jsonl").read_text().splitlines()) == 2
    for client in reversed(coordinator.called):
        if client != BAD:
            assert coordinator.hear(client, replies[client]) is None
    assert len(coordinator.close().counted) == CLIENTS
    assert coordinator.hear(BAD, replies[BAD]) == "late"
    honest, _ = deployed(task, settings(), tmp_path / "honest")
    honest.step()
    assert torch.equal(played.server.w, honest.server.w)


def test_a_reply_of_the_round_before_is_late_and_costs_nothing(tmp_path: Path) -> None:
    task = small_task(torch.float64)
    clients = participants(task, settings(), tmp_path / "clients")
    played, _ = deployed(task, settings(), tmp_path, Perfect(clients))
    coordinator: Coordinator = played.engine.coordinator  # type: ignore[attr-defined]
    replies = {client: clients[client].answer(call) for client, call in coordinator.open()}
    for client in coordinator.called[1:]:
        coordinator.hear(client, replies[client])
    assert coordinator.missing == (0,)
    coordinator.close()
    calls = dict(coordinator.open())
    assert coordinator.hear(0, replies[0]) == "late"
    assert coordinator.hear(0, clients[0].answer(calls[0])) is None
    with pytest.raises(StaleCall):  # a call of round 0 that comes after that of round 1
        clients[0].answer(_call(calls[0], round=0))


def _call(data: bytes, **changes: Any) -> bytes:
    before, body = messages.unseal(data)
    return before._replace(**changes).seal(bytes(body))


@pytest.mark.parametrize("restarts", [0, 2])
def test_a_client_that_always_says_its_state_is_lost_is_left_out(tmp_path: Path, restarts: int) -> None:
    task, given = small_task(torch.float64), {**settings(), "rounds": 12}
    transport = Hostile(participants(task, given, tmp_path / "clients"))
    transport.forge = lambda reply: [envelope(reply, kind=messages.LOST)]  # type: ignore[method-assign]
    played, _ = deployed(task, given, tmp_path, transport, Terms(restarts=restarts))
    for _ in range(12):
        played.step()
    coordinator: Coordinator = played.engine.coordinator  # type: ignore[attr-defined]
    assert coordinator.generation == restarts + 1
    assert int(coordinator.clients.losses[BAD]) == restarts + 1
    assert played.row()["counted"] == CLIENTS - 1
    others = {j: client for j, client in transport.clients.items() if j != BAD}
    total = sum(state.delta[0] for state, _ in settled(played, others))
    assert float(total.abs().max()) <= 1e-12
    assert float(settled(played, others)[0][0].delta.abs().max()) > 0  # tracking goes on
    lines = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    assert [line["left_out"] for line in lines if "lost" in line][-1] == [BAD]


def test_a_lost_memory_concerns_its_client_alone(tmp_path: Path) -> None:
    links = Links(TopK(0.1), uplink_memory="error-feedback")
    task, given = small_task(torch.float64), settings("fedpaq", links)
    transport = Hostile(participants(task, given, tmp_path / "clients"))
    transport.forge = lambda reply: [reply]  # type: ignore[method-assign]
    played, _ = deployed(task, given, tmp_path, transport)
    played.step()
    coordinator: Coordinator = played.engine.coordinator  # type: ignore[attr-defined]
    transport.clients[BAD]._vault.forget(coordinator.job)
    played.step()
    assert transport.reasons[BAD] == "state lost"
    assert coordinator.generation == 0
    assert played.row()["counted"] == CLIENTS - 1
    played.step()
    assert played.row()["counted"] == CLIENTS


class Deaf(Perfect):
    """A transport that reaches only some clients."""

    heard = 2

    def carry(self, calls: Any, hear: Any, give_up: Any, missing: Any, deadline: float, admit: Any) -> None:
        for client, call in list(calls)[: self.heard]:
            hear(client, self.clients[client].answer(call))


def test_a_round_with_too_few_replies_is_void_and_many_of_them_end_the_run(tmp_path: Path) -> None:
    task, given = small_task(torch.float64), {**settings(), "rounds": 20}
    transport = Deaf(participants(task, given, tmp_path / "clients"))
    played, _ = deployed(task, given, tmp_path, transport, Terms(least=0.375, void=3, pause=0.01))
    start = played.server.w.clone()
    played.step()
    assert torch.equal(played.server.w, start)
    assert played.round == 1
    transport.heard = 3
    played.step()
    assert not torch.equal(played.server.w, start)
    assert played.row()["counted"] == 3
    assert played.row()["void"] == 1
    transport.heard = 2
    played.step()
    played.step()
    with pytest.raises(TooFewReplies, match=r"3 rounds in a row.*the last one 0 of 8.*least=0.375 wants 3"):
        played.step()


@pytest.mark.parametrize(("name", "counted"), [("fedcomgate", 0), ("fedcom", 1)])
def test_tracking_needs_two_clients_in_a_round_whatever_the_terms(
    tmp_path: Path, name: str, counted: int
) -> None:
    task, given = small_task(torch.float64), settings(name)
    transport = Deaf(participants(task, given, tmp_path / "clients"))
    played, _ = deployed(task, given, tmp_path, transport, Terms(least=0))
    transport.heard = 1
    played.step()
    assert played.row()["counted"] == counted


class Keyed(Perfect):
    """A transport whose nodes have keys; a node that is not admitted is not called.

    Attributes:
        keys: of some clients' nodes; those of the others are their numbers.
        silent: clients that do not reply.
    """

    keys: dict[int, str]
    silent: set[int]

    def carry(self, calls: Any, hear: Any, give_up: Any, missing: Any, deadline: float, admit: Any) -> None:
        for client, call in calls:
            reply = self.clients[client].answer(call)
            if admit(client, self.keys.get(client, str(client))) and client not in self.silent:
                hear(client, reply)


def test_a_client_is_the_node_that_was_first_counted_as_it(tmp_path: Path) -> None:
    task, given = small_task(torch.float64), {**settings(), "rounds": 20}
    transport = Keyed(participants(task, given, tmp_path / "clients"))

    def counted(terms: Terms, node: str, silent: tuple[int, ...] = ()) -> int:
        """How many are counted in the next round, by a coordinator that was started again."""
        transport.keys, transport.silent = {BAD: node}, set(silent)
        played, _ = deployed(task, given, tmp_path, transport, terms)
        if (tmp_path / "checkpoints").exists():
            played.restore(tmp_path / "checkpoints")
        played.step()
        played.save(tmp_path / "checkpoints")
        return int(played.row()["counted"])

    strict, mild = Terms(), Terms(rebind=True)
    assert counted(strict, "thief", (BAD,)) == CLIENTS - 1  # it was called, but never counted
    assert counted(strict, "old") == CLIENTS
    assert counted(strict, "thief") == CLIENTS - 1
    assert counted(strict, "old", (BAD,)) == CLIENTS - 1
    assert counted(strict, "thief") == CLIENTS - 1  # though the client is silent
    assert counted(strict, "old") == CLIENTS
    assert counted(mild, "new") == CLIENTS
    assert counted(strict, "old") == CLIENTS - 1
    assert counted(strict, "new") == CLIENTS
    lines = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    refused = [(line["round"], line["client"]) for line in lines if line.get("refused") == "another node"]
    assert refused == [(2, BAD), (4, BAD), (7, BAD)]
    assert [line["handed_over"] for line in lines if "handed_over" in line] == ["new"]
    assert "the key thief says that it is this client, whose key is old" in str(lines)


def test_clipped_clients_are_told_and_sums_hold(tmp_path: Path) -> None:
    task = small_task(torch.float64)
    for name, links in (("fedcomgate", Links(Int(4))), ("scaffold", None)):
        given = settings(name, links)
        folder = tmp_path / name
        free, _ = deployed(task, given, folder / "free")
        free.step()
        played, transport = deployed(task, given, folder, None, Terms(clip=0.02))
        for _ in range(5):
            played.step()
        coordinator: Coordinator = played.engine.coordinator  # type: ignore[attr-defined]
        assert coordinator.clients.factors
        assert all(0 < min(factors) < 1 for factors in coordinator.clients.factors.values())
        states = [state for state, _ in settled(played, transport.clients)]
        if name == "fedcomgate":
            assert close(weighted(played, (s.delta for s in states)), torch.zeros_like(played.server.w))
        else:
            assert close(weighted(played, (s.c for s in states)), played.server.c)


def test_a_hostile_vector_moves_a_clipped_model_by_its_bound_at_most(tmp_path: Path) -> None:
    task, given, bound = small_task(torch.float64), settings(gamma=1.0), 0.05

    def moved(forge: Callable[[bytes], list[bytes]], folder: Path) -> torch.Tensor:
        transport = Hostile(participants(task, given, folder / "clients"))
        transport.forge = forge  # type: ignore[method-assign]
        played, _ = deployed(task, given, folder, transport, Terms(clip=bound))
        played.step()
        return played.server.w

    honest = moved(lambda reply: [reply], tmp_path / "a")
    hostile = moved(lambda reply: [forged(reply, with_floats(1e30))], tmp_path / "b")
    assert 0 < float((hostile - honest).norm()) <= 2 * bound / CLIENTS * (1 + 1e-9)


def hostile_run(folder: Path, forge: Callable[[bytes], list[bytes]], terms: Terms, **given: Any) -> Any:
    """A run among whose clients BAD forges its replies."""
    task, options = small_task(torch.float64), {**settings(gamma=1.0), **given}
    transport = Hostile(participants(task, options, folder / "clients"))
    transport.forge = forge  # type: ignore[method-assign]
    return deployed(task, options, folder, transport, terms)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    log = folder / "faults.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_a_bound_by_the_median_holds_from_the_first_round_and_changes_no_honest_run(tmp_path: Path) -> None:
    runs = {}
    for name, forge, terms in (
        ("free", lambda reply: [reply], Terms()),
        ("bound", lambda reply: [reply], Terms(clip_times=10.0)),
        ("half", lambda reply: [reply], Terms(clip_times=1.0)),  # those above the median are scaled down
        ("hostile", lambda reply: [forged(reply, with_floats(1e30))], Terms(clip_times=3.0)),
    ):
        runs[name], transport = hostile_run(tmp_path / name, forge, terms)
        for _ in range(3):
            runs[name].step()
            assert transport.reasons.count(None) == CLIENTS
        if name != "hostile":
            states = [state for state, _ in settled(runs[name], transport.clients)]
            assert close(weighted(runs[name], (s.delta for s in states)), torch.zeros_like(states[0].delta))
    assert len([line for line in lines_of(tmp_path / "half") if "clipped" in line]) == 3 * CLIENTS // 2
    assert torch.equal(runs["free"].server.w, runs["bound"].server.w)
    lengths = [line for line in lines_of(tmp_path / "hostile") if "long" in line]
    start = runs["free"].task.objective.start
    assert [line["client"] for line in lengths] == [BAD] * 3
    farthest = sum(3 * line["median"]["D"] for line in lengths) / CLIENTS
    honest = sum(line["median"]["D"] for line in lengths) * 2
    assert float((runs["hostile"].server.w - start).norm()) < honest + farthest


def test_a_client_far_longer_than_the_others_is_named_even_without_a_bound(tmp_path: Path) -> None:
    played, _ = hostile_run(tmp_path, lambda reply: [forged(reply, with_floats(1e6))], Terms())
    played.step()
    (line,) = lines_of(tmp_path)
    assert (line["round"], line["client"]) == (0, BAD)
    assert line["long"]["D"] > 1e4 * line["median"]["D"] > 0


@pytest.mark.parametrize(
    "forge", [lambda reply: [b"garbage"], lambda reply: [forged(reply, with_floats(1e6))]]
)
def test_who_offends_repeatedly_is_left_out_for_some_rounds(
    tmp_path: Path, forge: Callable[[bytes], list[bytes]]
) -> None:
    terms = Terms(offences=3, rest=4, clip_times=5.0)
    played, transport = hostile_run(tmp_path, forge, terms, rounds=20)
    for _ in range(5):
        played.step()
    assert [BAD in clients for clients in transport.called] == [True, True, True, False, False]
    (line,) = [line for line in lines_of(tmp_path) if "left_out_until" in line]
    assert (line["round"], line["client"], line["left_out_until"]) == (2, BAD, 7)
    played.save(tmp_path / "saved")
    played, _ = deployed(
        small_task(torch.float64), {**settings(gamma=1.0), "rounds": 20}, tmp_path, transport, terms
    )
    assert played.restore(tmp_path / "saved")
    transport.forge = lambda reply: [reply]  # it is mended
    for _ in range(6):
        played.step()
    assert [BAD in clients for clients in transport.called[5:]] == [False, False, True, True, True, True]
    assert played.row()["counted"] == CLIENTS


def test_one_honest_reply_makes_good(tmp_path: Path) -> None:
    turns = iter([True, True, False] * 9)
    played, _ = hostile_run(
        tmp_path, lambda reply: [b"garbage" if next(turns) else reply], Terms(offences=3), rounds=9
    )
    for _ in range(9):
        played.step()
    assert not [line for line in lines_of(tmp_path) if "left_out_until" in line]
    assert played.row()["refused"] == 6


def test_pauses_after_void_rounds_grow_up_to_a_minute() -> None:
    terms = Terms(pause=2.0)
    assert [terms.wait(void) for void in (0, 1, 2, 3, 9, 1000)] == [0, 2, 4, 8, 60, 60]


def test_a_memory_keeps_what_was_clipped(tmp_path: Path) -> None:
    links = Links(TopK(0.2), uplink_memory="error-feedback")
    task, given = small_task(torch.float64), settings("fedpaq", links)
    played, transport = deployed(task, given, tmp_path, None, Terms(clip=0.01))
    played.step()
    coordinator: Coordinator = played.engine.coordinator  # type: ignore[attr-defined]
    participant = transport.clients[0]
    before = participant._vault.load(coordinator.job, participant._initial)
    factor, eta = coordinator.clients.factors[0][0], played.state.inputs(0).eta
    played.step()
    after = participant._vault.load(coordinator.job, participant._initial)
    work = before.pending.work
    expected = work.memory["D"] + (1 - factor) * eta * work.sent["D"]
    assert close(after.memory["D"], expected)
    assert factor < 1


@pytest.mark.parametrize(
    "key", ["deadline", "least", "clip", "clip_times", "restarts", "offences", "rest", "void", "pause"]
)
def test_terms_out_of_range_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"round.{key} must be"):
        Terms(**{key: -1})


def test_calls_for_others_are_refused(tmp_path: Path) -> None:
    task = small_task(torch.float64)
    clients = participants(task, settings(), tmp_path / "clients")
    played, _ = deployed(task, settings(), tmp_path, Perfect(clients))
    calls = dict(played.engine.coordinator.open())  # type: ignore[attr-defined]
    with pytest.raises(WireError, match="wrong client"):
        clients[1].answer(calls[0])
    other = Participant(run_of(task, settings(eta=0.07)), task, 0, tmp_path / "other")
    with pytest.raises(WireError, match="fingerprint of the settings"):
        other.answer(calls[0])
    for bad in (b"", calls[0][:-1], calls[0] + b"x", _call(calls[0], kind=2)):
        with pytest.raises(WireError):
            clients[0].answer(bad)
    assert not (tmp_path / "other").exists()


def test_a_client_with_another_base_is_refused(tmp_path: Path) -> None:
    def task_on(base: float, top: float = 0.0) -> Task:
        module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
        for p, value in ((module[0].weight, base), (module[2].weight, top)):
            nn.init.constant_(p, value)
        module[0].weight.requires_grad_(False)
        own = small_task()
        owner = torch.arange(CLIENTS).repeat_interleave(own.sizes)
        return Task.from_arrays(module, own.x, own.y, groups=owner, partition="natural")

    task = task_on(0.1)
    played, _ = deployed(task, settings(), tmp_path)
    calls = dict(played.engine.coordinator.open())  # type: ignore[attr-defined]

    def client(task: Task, folder: str) -> Participant:
        return Participant(run_of(task, settings()), task, 0, tmp_path / folder)

    with pytest.raises(WireError, match="of what is frozen in the model"):
        client(task_on(0.2), "other").answer(calls[0])
    assert client(task_on(0.1, top=1.0), "same").answer(calls[0])  # what is trained, the server says


def test_states_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    played, transport = deployed(small_task(), settings(), tmp_path)
    played.step()
    for participant in transport.clients.values():
        path = participant._vault.path(played.engine.coordinator.job)  # type: ignore[attr-defined]
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_damaged_state_counts_as_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    played, transport = deployed(small_task(), settings(), tmp_path)
    played.step()
    coordinator: Coordinator = played.engine.coordinator  # type: ignore[attr-defined]
    path = transport.clients[BAD]._vault.path(coordinator.job)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    calls = dict(coordinator.open())
    reply = transport.clients[BAD].answer(calls[BAD])
    assert messages.unseal(reply)[0].kind == messages.LOST
    assert "counts as lost" in caplog.text


def test_a_log_that_cannot_be_written_is_told_as_the_disks_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot write to .*; free some space or choose another place"):
        Faults(tmp_path / "file" / "faults.jsonl").note(0, void=True)


def test_envelopes_survive_packing() -> None:
    one = Envelope(messages.UPDATE, 7, b"12345678", 1, 2, 3, 4)
    assert messages.unseal(one.seal(b"body")) == (one, b"body")


def test_a_damaged_end_of_a_round_is_told_and_not_to_clients(tmp_path: Path) -> None:
    """The server names the file; clients could only refuse what they hear, or trust a share that is wrong."""
    played, _ = deployed(small_task(torch.float64), settings(), tmp_path)
    played.step()
    (told,) = (tmp_path / "server").glob("*.told")
    whole = told.read_bytes()
    told.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(StorageError, match="clients are yet to be told it: it is damaged"):
        played.step()
