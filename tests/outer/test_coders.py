"""Messages that threads code and read: the same bits as without, the same errors, and codecs of one's own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import current_thread
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedcom import Rotated
from fedcom.codecs import Identity
from fedcom.codecs.base import Codec, Parts
from fedcom.codecs.coding import uniform
from fedcom.codecs.wire import Data
from fedcom.draws import Draw
from fedcom.errors import NotFinite, WireError
from fedcom.outer import Outer, coders, shards
from fedcom.outer.coders import Coders
from fedcom.vectors import Layout

WHERE = Layout.vector(3000, torch.float32)
EVERY = 4


def some(count: int) -> Iterator[tuple[Tensor, Layout, Draw]]:
    for i in range(count):
        yield torch.randn(WHERE.size, generator=torch.Generator().manual_seed(i)), WHERE, Draw.seeded(i)


def run(**more: Any) -> tuple[list[bytes], Tensor, Outer]:
    """The messages of some outer steps of one worker, and the model after."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, 200), nn.Tanh(), nn.Linear(200, 30))
    outer, sent = Outer(net, **{"codec": "rotated", "bits": 1.0, "every": EVERY, **more}), list[bytes]()
    links: Any = outer._links

    def kept(send: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        def sending(message: bytes) -> Any:
            sent.append(message)
            return send(message)

        return sending

    links.exchange, links.collect = kept(links.exchange), kept(links.collect)
    optimizer, x = torch.optim.AdamW(net.parameters(), lr=0.01), torch.linspace(-1, 1, 240).reshape(8, 30)
    for _ in range(5 * EVERY):
        (net(x) - x.flip(1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outer.step()
    outer.finish()
    return sent, torch.cat([p.detach().flatten() for p in net.parameters()]), outer


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    monkeypatch.setattr(shards, "MOST", 1000)
    return lambda count: monkeypatch.setattr(coders, "threads", lambda pieces: count)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"codec": "topk", "bits": None, "memory": 0.95},
        {"leader": True},
        {"leader": True, "down": {"name": "int", "bits": 8}, "memory": 0.5},
        {"fragments": 2, "delay": 1},
        {"codec": "auto", "bits": 3.0},
    ],
)
def test_threads_change_no_bits(threaded: Callable[[int], None], more: dict[str, Any]) -> None:
    threaded(0)
    sent, w, _ = run(**more)
    threaded(3)
    again, v, _ = run(**more)
    assert len(sent) > 5
    assert again == sent
    assert torch.equal(v, w)


def test_a_worker_s_nonsense_is_named_with_threads_too(
    threaded: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpack(codec: Rotated, body: memoryview, layout: Layout) -> Parts:
        if layout.size < 1000:  # the last piece
            raise WireError("as a test has it")
        return Codec.unpack(codec, body, layout)

    monkeypatch.setattr(Identity, "unpack", unpack, raising=False)
    for count in (0, 2):
        threaded(count)
        with pytest.raises(WireError, match="outer step 0: worker 0 sent nonsense: as a test has it"):
            run(codec="identity", bits=None)
        with pytest.raises(WireError, match="the message of the leader, worker 0, cannot be read"):
            run(down="identity", leader=True)


def test_a_damaged_message_is_left_out_with_threads_too(threaded: Callable[[int], None]) -> None:
    """Of two workers, as this process hears them."""
    models = []
    for count in (0, 3):
        threaded(count)
        torch.manual_seed(0)
        net = nn.Linear(60, 60)
        outer = Outer(net, "rotated", 1.0, every=1)
        links: Any = outer._links
        links.sites, links.agree = 2, lambda good: good
        links.exchange = lambda own: [memoryview(own), memoryview(own[:-3] + b"\0\1\2")]
        with torch.no_grad():
            net.weight.add_(0.1 * torch.randn_like(net.weight))
        with pytest.warns(UserWarning, match="the message of worker 1 is left out: wrong checksum"):
            outer.step()
        models.append(net.weight.detach().clone())
    assert torch.equal(*models)


def test_what_is_not_finite_is_named_and_nothing_goes_on() -> None:
    given = [*some(9)]
    given[5][0][7] = torch.nan
    made = Coders(2).encoded(Rotated(1.0), given)
    with pytest.raises(NotFinite, match="codec rotated cannot send a vector that holds inf or NaN"):
        list(made)


def test_the_device_s_work_stays_in_the_calling_thread_and_little_waits() -> None:
    where, begun = dict[str, set[str]](), list[int]()

    class Watched(Rotated):
        def compress(self, x: Tensor, layout: Layout, draw: Draw) -> Parts:
            where.setdefault("compress", set()).add(current_thread().name)
            begun.append(1)
            return super().compress(x, layout, draw)

        def pack(self, parts: Parts, layout: Layout) -> bytes:
            where.setdefault("pack", set()).add(current_thread().name)
            return super().pack(parts, layout)

        def unpack(self, body: memoryview, layout: Layout) -> Parts:
            where.setdefault("unpack", set()).add(current_thread().name)
            return super().unpack(body, layout)

        def expand(self, parts: Parts, layout: Layout, draw: Draw) -> Tensor:
            where.setdefault("expand", set()).add(current_thread().name)
            return super().expand(parts, layout, draw)

    both, codec = Coders(2), Watched(1.0)
    made = both.encoded(codec, some(9))
    first = next(made)
    assert len(begun) == 4
    sent = [first, *made]
    heard = list(both.decoded(codec, ((m, WHERE, Draw.seeded(i)) for i, m in enumerate(sent))))
    assert all(map(torch.equal, heard, (codec.quantise(*one) for one in some(9))))
    here = current_thread().name
    assert where["compress"] == where["expand"] == {here}
    assert here not in where["pack"] | where["unpack"]


@dataclass(frozen=True)
class Framed(Identity):
    """A codec with an encode and a decode of its own."""

    name: ClassVar[str] = "framed"
    id: ClassVar[int] = 201

    def encode(self, x: Tensor, layout: Layout, draw: Draw) -> bytes:
        return b"so" + super().encode(x, layout, draw)

    def decode(self, data: Data, layout: Layout, draw: Draw) -> Tensor:
        return super().decode(data[2:], layout, draw)


def test_a_codec_with_its_own_encode_and_decode() -> None:
    both = Coders(2)
    sent = list(both.encoded(Framed(), some(3)))
    assert all(message.startswith(b"so") for message in sent)
    heard = both.decoded(Framed(), ((message, WHERE, Draw.seeded(0)) for message in sent))
    assert all(map(torch.equal, heard, (x for x, _, _ in some(3))))


def test_an_outer_step_with_such_a_codec(threaded: Callable[[int], None]) -> None:
    ends = []
    for codec, count in (("identity", 0), (Framed(), 0), (Framed(), 2)):
        threaded(count)
        ends.append(run(codec=codec, bits=None)[1])
    assert all(torch.equal(end, ends[0]) for end in ends)


def test_threads_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = shards.divided(shards.trainable(nn.Linear(2, 2)), 1)[0]
    assert coders.threads(pieces) == 0
    monkeypatch.setattr(pieces[0], "device", torch.device("cuda"))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(16)), raising=False)
    assert coders.threads(pieces) == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert coders.threads(pieces) == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "32")
    assert coders.threads(pieces) == 1


@pytest.mark.parametrize("bits", [0.05, 0.25, 1.0, 3.0, 5.0, 5.3, 5.6, 6.0, 8.0])
def test_codes_of_eight_bits_have_the_bytes_of_wider_ones(bits: float) -> None:
    """The ends among them, where differences pass 127."""
    coder = uniform.for_rate(bits).coder
    codes = torch.randint(coder.low, coder.high + 1, (1001,), dtype=torch.int32)
    codes[:2] = torch.tensor([coder.low, coder.high])
    codes = codes[coder.frequencies[(codes - coder.low) >> coder.shift] > 0]
    body = coder.pack(codes)
    back = coder.unpack(memoryview(body), len(codes))
    assert (
        back.dtype
        == coder.dtype
        == (torch.int8 if len(coder.frequencies) << coder.shift <= 256 else torch.int32)
    )
    assert torch.equal(back.to(torch.int32), codes)
    assert coder.pack(back) == body


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", [0.25, 2.0, 5.3, 5.6, 6.5])
def test_what_is_heard_of_codes_of_eight_bits(bits: float, dtype: torch.dtype) -> None:
    x, where = torch.randn(5000, dtype=dtype), Layout.vector(5000, dtype)
    codec, draw = Rotated(bits), Draw.seeded(3)
    parts = codec.encode_parts(x, where, draw)
    message = codec.pack_message(codec.on_host(parts, where), where)
    assert message == codec.encode(x, where, draw) == codec.pack_message(parts, where)
    assert torch.equal(codec.decode(message, where, draw), codec.quantise(x, where, draw))


@pytest.mark.gpu
def test_exchanges_beside_the_steps_hold_no_more_memory_with_time() -> None:
    """torch keeps memory for each stream, and has 32 that take turns."""
    outer, held = Outer(nn.Linear(1000, 1000, device="cuda"), every=1, delay=1), list[int]()
    for _ in range(40):
        outer.step()
        held.append(torch.cuda.memory_reserved())
    outer.finish()
    assert held[-1] == held[4]
