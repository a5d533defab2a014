"""Every codec in both directions: bytes that are counted are the bytes that an encoded run really makes."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from fedcom import Algorithm, FedAvg, FedCOMGATE, Links, Task
from fedcom.codecs import CODECS, Auto, Codec, Dithered, LowRank, Peaks, Rotated
from fedcom.codecs.coding import entropy
from fedcom.draws import Draw
from fedcom.errors import Diverged
from fedcom.traffic.channel import Channel
from fedcom.traffic.ledger import Ledger
from tests.codecs.cases import LONG, gaussian, keys, label
from tests.conftest import after

CLIENTS, ROUNDS = 4, 2
RATES = {"eta": 0.05, "gamma": 1.0, "tau": 2, "batch": 4}
METHODS = {
    "fedcomgate, all clients": (FedCOMGATE(**RATES), 1.0),  # type: ignore[arg-type]
    "fedcomgate, half of them": (FedCOMGATE(**RATES), 0.5),  # type: ignore[arg-type]
    "fedavg, option I": (FedAvg(**RATES, option="I"), 1.0),  # type: ignore[arg-type]
}
OTHERS = [Dithered(bits=2.0), LowRank(q=0.1), Auto(q=0.1), Rotated(1.0, "trellis"), Rotated(2, "fixed")]
each_codec = pytest.mark.parametrize("codec", [*(kind() for kind in CODECS.values()), *OTHERS], ids=label)


@cache
def task() -> Task:
    """A classifier of 2163 coordinates, large enough for every codec at its defaults."""
    draw = Draw.seeded(0)
    y = draw.fold("labels").integers(3, 8 * CLIENTS)
    x = draw.fold("inputs").normal(50 * len(y), torch.float64).reshape(-1, 50) + y[:, None]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(50, 40), nn.Tanh(), nn.Linear(40, 3))
    owner = torch.arange(CLIENTS).repeat_interleave(8)
    return Task.from_arrays(
        module, x, y, x[:9], y[:9], groups=owner, partition="natural", dtype=torch.float64
    )


def booked(algorithm: Algorithm, links: Links, participation: float) -> dict[str, dict[str, int]]:
    """The bytes of a run, by direction and vector."""
    simulation = after(task(), algorithm, links, ROUNDS, participation=participation)
    assert torch.isfinite(simulation.server.w).all()
    books: Any = simulation.ledger.as_dict()
    assert books["exact"]
    ways = ("uplink", "downlink")
    return {w: {name: sum(parts.values()) for name, parts in books[w]["vectors"].items()} for w in ways}


@pytest.mark.covers(1)
@pytest.mark.filterwarnings("ignore:downlink .* without memory")
@pytest.mark.parametrize("memory", ["error-feedback", "none"])
@pytest.mark.parametrize("method", METHODS)
@each_codec
def test_counted_bytes_are_the_real_ones_in_both_directions(codec: Codec, method: str, memory: Any) -> None:
    algorithm, participation = METHODS[method]
    uplink = CODECS["identity"]() if algorithm.compresses else codec
    counted, real = (
        booked(algorithm, Links(uplink, codec, downlink_memory=memory, encode=encode), participation)
        for encode in (False, True)
    )
    assert counted == real


@pytest.mark.parametrize("encode", [False, True])
@pytest.mark.parametrize("name", CODECS)
def test_a_run_that_overflows_has_diverged_whatever_the_codec(name: str, encode: bool) -> None:
    algorithm = FedCOMGATE(**RATES | {"eta": 1e308})  # type: ignore[arg-type]
    with pytest.raises(Diverged, match="no longer finite after round"):
        after(task(), algorithm, Links(CODECS[name](), encode=encode), rounds=4)


def test_a_ledger_says_that_some_of_its_bytes_are_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are on a GPU; here by taking the loops away that count on a CPU."""
    codec, whole = Rotated(1.0), Ledger(2)
    for compiled, exact in ((True, True), (False, False), (True, False)):  # one estimate spoils the sum
        monkeypatch.setattr(entropy, "COMPILED", compiled)
        ledger = Ledger(2)
        Channel("uplink", [ledger]).send("D", gaussian(LONG, n=2), LONG, codec, keys(2))
        assert ledger.exact == compiled
        whole.merge(ledger)
        assert whole.as_dict()["exact"] == exact
    again = Ledger(2)
    again.load(whole.as_dict())
    assert not again.exact
    Channel("uplink", [sent := Ledger(2)]).send("D", gaussian(LONG, n=2), LONG, Peaks(0.5), keys(2))
    assert sent.exact


def test_a_ledger_counts_the_numbers_that_travel() -> None:
    sent, again, earlier = Ledger(2), Ledger(2), Ledger(2)
    Channel("uplink", [sent]).send("D", gaussian(LONG, n=2), LONG, Peaks(0.5), keys(2), receivers=3)
    books: Any = sent.as_dict()
    assert books["uplink"]["numbers"] == {"D": 3 * 2 * LONG.size}
    again.load(books)
    again.merge(sent)
    assert again.as_dict()["uplink"]["numbers"] == {"D": 2 * 3 * 2 * LONG.size}  # type: ignore[index]
    for way in ("uplink", "downlink"):
        del books[way]["numbers"]
    earlier.load(books)  # of a version that did not count them: a sum with later ones would be too small
    earlier.merge(sent)
    assert "numbers" not in earlier.as_dict()["uplink"]  # type: ignore[operator]


@each_codec
def test_the_sizes_of_one_vector_are_those_of_a_stack_of_one(codec: Codec) -> None:
    x, draw, books = gaussian(LONG), keys(1), []
    for vector, key in ((x, Draw(draw.key[0])), (x.unsqueeze(0), draw)):
        ledger, meter = Ledger(1), torch.zeros(1, dtype=torch.int64)
        heard = Channel("downlink", [ledger], meter=meter).send("x", vector, LONG, codec, key, receivers=3)
        assert heard.shape == vector.shape
        assert 3 * int(meter) == ledger.total("downlink")
        books.append(ledger.as_dict())
    assert books[0] == books[1]


@each_codec
def test_sizes_have_the_leading_axes_of_the_vector(codec: Codec) -> None:
    for x, draw in ((gaussian(LONG), Draw.seeded(0)), (gaussian(LONG, n=3), keys(3))):
        heard, sizes = codec.transmit(x, LONG, draw)
        assert torch.equal(heard, codec.quantise(x, LONG, draw))
        assert all(isinstance(size, int) or size.shape == x.shape[:-1] for size in sizes.values())


@each_codec
def test_transmit_calls_the_methods_that_an_engine_compiles(codec: Codec) -> None:
    twin, called, draw = copy.copy(codec), set(), Draw.seeded(0)
    for name in ("compress", "expand", "quantise"):

        def compiled(*given: Any, name: str = name) -> Any:
            called.add(name)
            return getattr(codec, name)(*given)

        object.__setattr__(twin, name, compiled)
    heard, _ = twin.transmit(gaussian(LONG), LONG, draw)
    assert called in ({"quantise"}, {"compress", "expand"})
    assert torch.equal(heard, codec.quantise(gaussian(LONG), LONG, draw))


@pytest.mark.parametrize("encode", [False, True])
def test_a_compact_message_holds_the_measured_q_itself(encode: bool) -> None:
    """Two bytes inside a message instead of a message of its own, in both directions."""
    codec = Peaks(0.5)
    links = Links(codec, codec, encode=encode)
    simulation = after(task(), FedCOMGATE(**RATES), links, rounds=1)  # type: ignore[arg-type]
    books: Any = simulation.ledger.as_dict()
    assert set(books["uplink"]["vectors"]) == {"D"}
    assert books["uplink"]["vectors"]["D"]["q"] == 2 * CLIENTS
    assert books["downlink"]["vectors"]["D"]["q"] == 2 * 2 * CLIENTS  # the clients' q, and the server's own
    message = sum(codec.itemise({}, task().objective.layout).values())  # type: ignore[arg-type]
    assert books["uplink"]["total"] == CLIENTS * (message + 2)
