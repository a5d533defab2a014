"""Outer steps of one process: Nesterov by hand, fragments and pieces, states, damaged messages."""

import contextlib
import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedcom import ConfigError, Int, Simulation, SparseLoCo, Task, TopK
from fedcom.algorithms.optimisers import ServerOptimiser
from fedcom.codecs import CODECS
from fedcom.codecs.coding import trellis, uniform
from fedcom.errors import Diverged, RankLost, StorageError, WireError
from fedcom.outer import Gradients, Outer, messages, restore, save, shards, store
from fedcom.outer.links import Links
from fedcom.outer.messages import Header
from fedcom.traffic import links as traffic_links
from fedcom.vectors import Vectors
from tests.conftest import close

EVERY = 3


@dataclass(frozen=True)
class Twin(Int):
    """A codec of one's own, whose id is fedcom's."""

    name: ClassVar[str] = "twin"


@dataclass(frozen=True)
class First(Int):
    """A codec of one's own."""

    name: ClassVar[str] = "first"
    id: ClassVar[int] = 218


@dataclass(frozen=True)
class Second(First):
    """Another with the same id."""

    name: ClassVar[str] = "second"


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def flat(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def train(net: nn.Module, outer: Outer, optimizer: torch.optim.Optimizer, steps: int) -> Tensor:
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(6, 4).to(next(net.parameters()).dtype)
    for _ in range(steps):
        (net(x) - x[:, :2]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outer.step()
    return flat(net)


def pair(**more: Any) -> tuple[nn.Module, Outer, torch.optim.Optimizer]:
    net = model()
    settings = {"codec": "identity", "every": EVERY, **more}
    return net, Outer(net, **settings), torch.optim.AdamW(net.parameters(), lr=0.05)


@pytest.mark.parametrize("codec", [Twin(), Twin, 7, None, object])
def test_codecs_are_vetted_as_those_of_links_are(codec: Any) -> None:
    with pytest.raises(ConfigError) as by_links:
        traffic_links.Links(codec)
    for made in (lambda: Outer(model(), codec=codec), lambda: Gradients(codec=codec, bits=None)):
        with pytest.raises(ConfigError) as by_outer:
            made()
        assert str(by_outer.value) == str(by_links.value).replace("uplink", "codec")


def test_the_codecs_of_both_ways_need_two_ids() -> None:
    assert Outer(model(), codec=First, leader=True, down=First(bits=4)).codec == First()
    with pytest.raises(ConfigError, match="codec and down have codecs with one id, 218; change one"):
        Outer(model(), codec=First(), leader=True, down=Second())


def test_nesterov_by_hand() -> None:
    net, outer, optimizer = pair(rate=0.5, optimiser={"name": "nesterov", "momentum": 0.8})
    hand = copy.deepcopy(net)
    own, w, m = (
        torch.optim.AdamW(hand.parameters(), lr=0.05),
        flat(hand),
        torch.zeros(37, dtype=torch.float64),
    )
    train(net, outer, optimizer, 4 * EVERY)
    for _ in range(4):
        change = w - train(hand, Outer(hand, "identity", every=100), own, EVERY)
        m = 0.8 * m + change
        w = w - 0.5 * (change + 0.8 * m)
        nn.utils.vector_to_parameters(w.clone(), hand.parameters())
    assert close(flat(net), w, 1e-12)


@dataclass(frozen=True)
class HeavyBall(ServerOptimiser):
    """Momentum that is seen in the models: w goes on by a share of what it moved by in the step before."""

    def init(self, w: Tensor) -> Vectors:
        return {"before": w}

    def step(
        self, w: Tensor, moments: Vectors, direction: Tensor, eta: float | Tensor, gamma: float
    ) -> tuple[Tensor, Vectors]:
        return w - eta * gamma * direction + 0.5 * (w - moments["before"]), {"before": w}


def test_moments_that_are_the_outer_parameters_themselves() -> None:
    net, outer, optimizer = pair(rate=0.5, optimiser=HeavyBall())
    hand = copy.deepcopy(net)
    own, w = torch.optim.AdamW(hand.parameters(), lr=0.05), flat(hand)
    before = w
    train(net, outer, optimizer, 4 * EVERY)
    for _ in range(4):
        change = w - train(hand, Outer(hand, "identity", every=100), own, EVERY)
        w, before = w - 0.5 * change + 0.5 * (w - before), w
        nn.utils.vector_to_parameters(w.clone(), hand.parameters())
    assert close(flat(net), w, 1e-12)


def test_a_delay_by_hand() -> None:
    """What is gained while a message travels stays, and is sent with the next."""
    net, outer, optimizer = pair(delay=1, optimiser="sgd", rate=1.0)
    before = flat(net)
    for turn in range(1, 5):  # one worker, all of its change and no momentum: nothing is lost or added
        train(net, outer, optimizer, EVERY)
        with outer.averaged():
            assert not turn > 1 or not torch.equal(flat(net), before)
    alone = model()
    by_itself = torch.optim.AdamW(alone.parameters(), lr=0.05)
    asked = train(alone, Outer(alone, "identity", every=1000), by_itself, 4 * EVERY)
    assert close(flat(net), asked, 1e-12)
    outer.finish()
    assert close(flat(net), asked, 1e-12)


def test_sparseloco_is_the_simulation_s() -> None:
    """Top-k, a memory that forgets a twentieth each round, and plain outer steps."""
    x, y, net = torch.ones(1, 4, dtype=torch.float64), torch.tensor([1]), model()
    task = Task.from_arrays(net, x, y, clients=1, dtype="float64")
    codec = TopK(ratio=0.2, values="levels", chunk=16)
    simulation = Simulation(task, SparseLoCo(eta=0.05, tau=EVERY, batch=1, decay=1.0), codec, seed=0)
    outer = Outer(net, codec, every=EVERY, optimiser="sgd", rate=1.0, memory=0.95)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    for _ in range(6):
        simulation.step()
        for _ in range(EVERY):
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            outer.step()
        assert close(flat(net), simulation.server.w, 1e-12)


@pytest.mark.parametrize("more", [{}, {"delay": 1}, {"fragments": 3}, {"codec": "topk", "memory": 0.95}])
def test_a_state_goes_on_with_the_same_bits(tmp_path: Path, more: dict[str, Any]) -> None:
    more = {"codec": "rotated", "bits": None, **more}
    net, outer, optimizer = pair(**more)
    whole = train(net, outer, optimizer, 20)

    net, outer, optimizer = pair(**more)
    train(net, outer, optimizer, 10)
    save(tmp_path, outer, net=net, optimizer=optimizer)
    net, outer, optimizer = pair(**more)
    assert restore(tmp_path, outer, net=net, optimizer=optimizer)
    assert outer.steps == 10
    assert torch.equal(train(net, outer, optimizer, 10), whole)
    with pytest.raises(StorageError, match="give the same parts"):
        restore(tmp_path, outer, net=net)
    assert not restore(tmp_path / "other", outer, net=net)


def test_checkpoints_that_are_damaged_or_of_another_run(tmp_path: Path) -> None:
    net, outer, optimizer = pair()
    train(net, outer, optimizer, EVERY)
    path = save(tmp_path, outer, net=net, optimizer=optimizer)
    with pytest.raises(StorageError, match="a checkpoint of step 3, and this run is at 0"):
        save(tmp_path, pair()[1], net=net, optimizer=optimizer)
    path.write_bytes(path.read_bytes()[:-100])
    with (
        pytest.warns(UserWarning, match=r"worker-0-3.pt cannot be read"),
        pytest.raises(StorageError, match="no checkpoint of step 3"),
    ):
        restore(tmp_path, outer, net=net, optimizer=optimizer)


@pytest.mark.parametrize(
    ("files", "asked"),
    [
        ([[], []], -1),
        ([[5, 10], [5, 10]], 10),
        ([[5, 10], [0, 5], [5, 10]], 5),  # one was killed before it had written its last
        ([[5, 10], [], [5, 10]], 10),  # new
        ([[95, 100], [5, 10], [90, 95]], 95),  # away for longer
        ([[10], [5]], 5),
    ],
)
def test_the_step_to_go_on_from(files: list[list[int]], asked: int) -> None:
    """Every worker in a thread of its own."""
    told, gate = [0] * len(files), Barrier(len(files))

    class Told:
        def __init__(self, number: int) -> None:
            self.number = number

        def gather(self, word: int) -> list[int]:
            told[self.number] = word
            gate.wait()
            found = list(told)
            gate.wait()
            return found

    with ThreadPoolExecutor(len(files)) as pool:
        found = list(pool.map(lambda i: store._common(Told(i), files[i]), range(len(files))))  # type: ignore[arg-type]
    assert found == [asked] * len(files)


def test_pieces_and_fragments_change_nothing_but_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    net, outer, optimizer = pair()
    whole = train(net, outer, optimizer, 2 * EVERY)
    monkeypatch.setattr(shards, "MOST", 7)
    net, outer, optimizer = pair()
    assert close(train(net, outer, optimizer, 2 * EVERY), whole, 1e-12)
    assert [piece.layout.size for piece in outer._fragments[0].pieces] == [7, 7, 7, 7, 7, 2]
    found = shards.divided(shards.trainable(model()), 4)
    assert [sum(piece.layout.size for piece in pieces) for pieces in found] == [20, 5, 10, 2]


def test_a_rest_of_few_numbers_is_no_piece_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a quarter of a bit nothing would be heard of it, in any outer step."""
    monkeypatch.setattr(shards, "MOST", 1 << 14)  # a rest is few below 16

    def sizes(*numbers: int) -> list[int]:
        parameters = [nn.Parameter(torch.zeros(d)) for d in numbers]
        return [piece.layout.size for piece in Outer(parameters, "identity")._fragments[0].pieces]

    assert sizes(16_384) == sizes(16_380, 4) == sizes(16_384, 0) == [16_384]
    assert sizes(16_399) == sizes(16_384, 15) == [16_399]
    assert sizes(16_400) == sizes(16_384, 16) == [16_384, 16]
    assert sizes(2 * 16_384 + 15) == sizes(16_384, 16_384, 15) == [16_384, 16_399]
    net = [nn.Parameter(torch.zeros(1 << 14)), nn.Parameter(torch.zeros(10))]
    outer = Outer(net, "rotated", 0.25, every=1)
    with torch.no_grad():
        net[1].add_(1.0)
    outer.step()
    assert net[1].abs().sum() > 0


def test_a_fragment_of_few_numbers_moves() -> None:
    """A bias as a fragment of its own had messages without codes, and moved in no outer step."""
    net = nn.Linear(400, 10)
    outer = Outer(net, "rotated", 0.25, every=2, fragments=2)
    before = net.bias.detach().clone()
    for _ in range(2):
        with torch.no_grad():
            net.bias.add_(1.0)
        outer.step()
    outer.finish()
    assert net.bias.ne(before).all()


def test_only_what_is_trained_is_exchanged() -> None:
    """Frozen and tied parameters, half precision, and tensors that lie in memory in another order."""
    net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 3), nn.Linear(3, 3))
    net = net.to(torch.bfloat16).to(memory_format=torch.channels_last)
    net[2].weight.requires_grad_(False)
    net[3].weight = net[2].bias  # the same parameter twice
    outer = Outer(net, "identity", every=1, optimiser="sgd", rate=1.0)
    assert outer.size == 3 * 2 * 4 + 3 + 3 + 3
    before = flat(net)
    with torch.no_grad():
        net[0].weight.add_(0.5)
    asked = flat(net)
    outer.step()
    assert torch.equal(flat(net), asked)
    assert not torch.equal(before, asked)


def test_parameters_that_are_given_other_memory() -> None:
    """As vector_to_parameters does; new ones, as of load_state_dict(assign=True), are refused."""
    net, outer, _ = pair(every=1, optimiser="sgd", rate=0.5)
    before = flat(net)
    nn.utils.vector_to_parameters(before + 1, net.parameters())
    outer.step()
    assert close(flat(net), before + 0.5, 1e-12)
    net.load_state_dict({name: x + 1 for name, x in net.state_dict().items()}, assign=True)
    with pytest.raises(ConfigError, match=r"parameter '0\.weight' is new"):
        outer.step()


@pytest.mark.parametrize(
    "change", [lambda net: net.to(memory_format=torch.channels_last), lambda net: net.bfloat16()]
)
def test_parameters_that_lie_otherwise_or_are_of_another_dtype(change: Any) -> None:
    """Their numbers would be taken for others', or what is lost of them forgotten."""
    net = nn.Sequential(nn.Conv2d(2, 3, 2))
    outer = Outer(net, "identity", every=1)
    outer.step()
    change(net)
    for late in (outer.step, outer.finish):
        with pytest.raises(ConfigError, match=r"'0\.(weight|bias)' has another dtype, shape or order"):
            late()


def test_what_goes_wrong_in_flight_leaves_the_model_s_own_parameters() -> None:
    net, outer, optimizer = pair(delay=1, fragments=2, every=2)
    exchange, calls = outer._links.exchange, []

    def lost(message: bytes) -> list[memoryview]:
        calls.append(message)
        if len(calls) == 3:
            raise RankLost("as a test has it")
        return exchange(message)

    outer._links.exchange = lost  # type: ignore[method-assign]
    before = train(net, outer, optimizer, 3)
    with pytest.raises(RankLost, match="as a test has it"), outer.averaged():
        pass
    assert torch.equal(flat(net), before)


def test_who_loses_the_leader_is_told_to_look_there(monkeypatch: pytest.MonkeyPatch) -> None:
    links = Links(1, False, 1.0)
    links.number, links.sites = 1, 3

    def lost(*given: Any) -> None:
        raise RankLost("worker 0 ended")

    monkeypatch.setattr(links, "_swapped", lost)
    for do in (links.collect, links.spread):
        with pytest.raises(RankLost, match="worker 0 ended; it is the leader, and says if it has lost"):
            do(b"")


def test_parameters_that_are_frozen_or_trained_later() -> None:
    net = model()
    net[0].weight.requires_grad_(False)
    outer = Outer(net, "identity", every=1)
    outer.step()
    net[0].weight.requires_grad_(True)
    for late in (outer.step, outer.finish):
        with pytest.raises(ConfigError, match=r"'0\.weight' is new or trainable only since"):
            late()
    net[0].requires_grad_(False)
    with pytest.warns(UserWarning, match=r"'0\.bias' was frozen"):
        outer.step()


def test_parameters_without_numbers_and_of_no_dimension() -> None:
    """Under FSDP a process may hold nothing of a small layer."""
    parameters = [nn.Parameter(x) for x in (torch.ones(()), torch.ones(0), torch.ones(2, 3))]
    outer = Outer(parameters, "rotated", every=3, fragments=3)
    assert [f.size for f in outer._fragments] == [1, 0, 6]
    for _ in range(6):
        outer.step()
    outer.finish()
    assert outer.turns == [2, 3, 3]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (nn.LazyLinear(3), "no values yet"),
        (nn.Linear(3, 3, device="meta"), "no values yet"),
        ([{"params": []}], "a module or its parameters"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
        ([nn.Parameter(torch.ones(4, 4)[:, :2])], "'0' is a view with gaps"),
        (type("FullyShardedDataParallel", (nn.Linear,), {})(2, 2), "use fully_shard"),
    ],
)
def test_models_that_cannot_be(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Outer(given)


def test_finish_twice_is_as_once() -> None:
    net, outer, optimizer = pair()
    train(net, outer, optimizer, EVERY + 1)
    outer.finish()
    end = flat(net)
    outer.finish()
    assert torch.equal(flat(net), end)
    assert str(outer) == "step 4, outer step 2: 0 MB sent, 0 MB received"
    train(net, outer, optimizer, EVERY - 1)  # and further steps are counted on
    assert outer.turns == [3]


@pytest.mark.parametrize("delay", [0, 1])
def test_what_bfloat16_cannot_hold_is_not_lost(delay: int) -> None:
    """Numbers of it above 1 are 1/128 apart; outer steps a fourth as long add up."""
    net = nn.Linear(3, 1, bias=False).bfloat16()
    nn.init.ones_(net.weight)
    outer = Outer(net, "identity", every=1, optimiser="sgd", rate=0.25, delay=delay)
    for turn in range(8):
        with torch.no_grad():
            net.weight.add_(1 / 128)
        if turn == 4:
            state = copy.deepcopy(outer.state_dict())
            outer.load_state_dict(state)
        outer.step()
    state = outer.state_dict()["fragments"][0]
    assert close(state["w"][0], torch.full((3,), 1 + 8 / 4 / 128), 1e-7)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"memory": 0.9}, "no memory, but memory is above 0"),
        ({"optimiser": "sgd"}, "another outer optimiser"),
        ({"optimiser": "adam"}, "another outer optimiser"),
        ({"fragments": 2}, "1 fragments, not 2"),
    ],
)
def test_states_of_other_settings_are_refused(more: dict[str, Any], words: str) -> None:
    state = pair()[1].state_dict()
    with pytest.raises(ConfigError, match=words):
        pair(**more)[1].load_state_dict(state)
    with pytest.raises(ConfigError, match="another torch dtype"):
        Outer(model().float(), "identity").load_state_dict(state)


def test_a_damaged_message_of_the_leader_is_named() -> None:
    net, outer, optimizer = pair(every=1, leader=True)
    outer._links.spread = lambda message: memoryview(message[:-1])  # type: ignore[method-assign]
    with pytest.raises(WireError, match="outer step 0: the message of the leader, worker 0, cannot be read"):
        train(net, outer, optimizer, 1)


def test_a_memory_keeps_what_a_message_that_was_not_sent_would_have_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shards, "MOST", 20)
    net, outer, optimizer = pair(codec="topk", memory=0.9)
    train(net, outer, optimizer, EVERY)
    kept = copy.deepcopy(outer.state_dict()["fragments"][0]["rest"])
    with torch.no_grad():
        net[0].weight.add_(1)
        net[2].bias.fill_(torch.nan)  # in the second piece
    for _ in range(EVERY - 1):
        outer.step()
    with (
        pytest.warns(UserWarning, match="its change is not finite"),
        pytest.raises(Diverged, match="lower the rates"),
    ):
        outer.step()
    assert all(map(torch.equal, outer.state_dict()["fragments"][0]["rest"], kept))


class Adapted(nn.Module):
    """A frozen layer with adapters of low rank beside it, as peft makes them; two layers share theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.ModuleList(nn.Linear(4, 4).requires_grad_(False) for _ in range(2))
        self.lora_a, self.lora_b = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        for base in self.base:
            x = base(x) + x @ self.lora_a.T @ self.lora_b.T
        return x


def test_adapters_autocast_accumulation_and_compiled_modules() -> None:
    """One worker whose outer step takes its change as it is trains as without outer steps."""

    def trained(with_outer: bool) -> nn.Module:
        torch.manual_seed(0)
        net = Adapted()
        called: Any = torch.compile(net, backend="eager") if with_outer else net
        outer = Outer(called, "identity", every=2, optimiser="sgd", rate=1.0) if with_outer else None
        assert outer is None or outer.size == 16
        optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.05)
        for batch, x in enumerate(torch.linspace(-1, 1, 192).reshape(12, 4, 4)):
            with torch.autocast("cpu", torch.bfloat16):
                loss = (called(x) - x.flip(1)).square().mean() / 2
            loss.backward()
            if batch % 2:  # gradients of two batches per step
                optimizer.step()
                optimizer.zero_grad()
                assert outer is None or outer.step() == (batch % 4 == 3)
        return net

    plain, outer = trained(False), trained(True)
    assert close(flat(outer), flat(plain), 1e-5)
    assert not torch.equal(outer.lora_b, torch.zeros(4, 2))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"every": 0}, "every must be above 0"),
        ({"every": 2.5}, "every must be a whole number"),
        ({"weight": float("inf")}, "weight must be above 0 and finite"),
        ({"delay": 2}, "delay must be 0 or 1"),
        ({"memory": 2.0}, "memory must be from 0 to 1"),
        ({"fragments": 9, "every": 99}, "fragments must be from 1 to 4"),
        ({"fragments": 4}, "at most every"),
        ({"codec": "rotatd"}, "rotated"),
        ({"codec": "sign", "bits": 0.25}, "cannot send 0.25 bits"),
        ({"optimiser": "adamw"}, "adam"),
        ({"per_site": 2}, "per_site must divide the 1 processes"),
        ({"down": "identity"}, "set leader=True"),
        ({"codec": "peaks"}, "peaks needs"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        pair(**more)


@given(st.binary(max_size=80), st.integers(0, 60), st.integers(1, 3))
def test_messages(noise: bytes, at: int, count: int) -> None:
    header = Header(fragment=1, turn=7, checksum=-3, weight=2.5)
    pieces = [bytes([i]) * (i + 2) for i in range(count)]
    message = messages.pack(header, pieces)
    found, parts = messages.unpack(memoryview(message), 1, 7, count)
    assert (found, [bytes(part) for part in parts]) == (header, pieces)
    for broken in (noise, message[:at], message + noise[:3]):
        if broken != message:
            with pytest.raises(WireError):
                messages.unpack(memoryview(broken), 1, 7, count)
    with pytest.raises(WireError, match="outer step 7"):
        messages.unpack(memoryview(message), 1, 8, count)


@pytest.mark.parametrize("codec", [*CODECS, {"name": "rotated", "bits": 1.0, "tier": "trellis"}])
def test_torch_s_default_dtype_and_device_are_the_training_s_alone(codec: Any) -> None:
    """Of nothing that is computed here; "meta" stands for a GPU."""

    def end() -> Tensor:
        net = [nn.Parameter(torch.linspace(0, 1, 6000, dtype=torch.float32, device="cpu"))]
        outer = Outer(net, codec, every=1, leader=True)
        with torch.no_grad():
            net[0].mul_(1.1)
        outer.step()
        return net[0].detach()

    asked = end()
    for caches in (uniform.for_rate, uniform._numbered, trellis.for_rate):
        caches.cache_clear()  # tables too
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.bfloat16)
        stack.enter_context(torch.device("meta"))
        found = end()
    assert torch.equal(found, asked)
