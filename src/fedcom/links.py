"""The two directions of traffic: which codec each uses, and the books of what passed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch
from torch import Tensor

from fedcom import wire
from fedcom.algorithms import Algorithm
from fedcom.codecs import CODECS, Codec, Identity
from fedcom.draws import Draw
from fedcom.errors import ConfigError
from fedcom.ledger import Direction, Ledger
from fedcom.vectors import Layout


@dataclass(frozen=True)
class Links:
    """The codecs of a run.

    Args:
        uplink: what clients' vectors go through.
        downlink: what the mean goes through; the model itself, where it is sent, travels dense.
        downlink_memory: whether the server adds what a lossy downlink dropped to its next message.
        encode: make every message's real bytes and decode them, instead of counting them.
        budgets: the uplink's bits a coordinate for each client, in place of the codec's own.
    """

    uplink: Codec
    downlink: Codec = field(default_factory=Identity)
    downlink_memory: bool = True
    encode: bool = False
    budgets: tuple[float, ...] | None = None

    def uplinks(self, clients: Tensor) -> list[tuple[Codec, Tensor]]:
        """The codecs of some clients, each with the rows that use it."""
        if self.budgets is None:
            return [(self.uplink, torch.arange(len(clients), device=clients.device))]
        bits = self._bits[clients.cpu()]
        rows = [(b, (bits == b).nonzero()[:, 0].to(clients.device)) for b in sorted(set(bits.tolist()))]
        return [(with_bits(self.uplink, b), chosen) for b, chosen in rows]

    @cached_property
    def _bits(self) -> Tensor:
        return torch.tensor(self.budgets, dtype=torch.float64)

    @classmethod
    def of(cls, algorithm: Algorithm) -> "Links":
        """The codecs an algorithm uses unless told otherwise."""
        parameters = dict(algorithm.uplink)
        return cls(CODECS[parameters.pop("name")](**parameters))


def with_bits(codec: Codec, bits: float) -> Codec:
    """The same codec at another rate."""
    known = {f.name for f in fields(codec)}
    if "bits" not in known:
        raise ConfigError(f"budgets are bits, and codec {codec.name} has none; use rotated, dithered or int")
    other = {"q": None} if "q" in known else {}
    return replace(codec, bits=int(bits) if bits == int(bits) else bits, **other)  # type: ignore[call-arg]


def budgets_from(bandwidths: Sequence[float], bits: float) -> tuple[float, ...]:
    """Bits that make every client's message take as long as that of the fastest, which sends `bits`."""
    if min(bandwidths, default=0) <= 0:
        raise ConfigError(f"bandwidths must be above 0; got {list(bandwidths)}")
    return tuple(max(0.05, round(bits * b / max(bandwidths), 3)) for b in bandwidths)


@dataclass(frozen=True)
class Channel:
    """One direction: sends vectors, books their bytes, returns what is heard.

    Several ledgers share a stack of messages evenly, in order.

    Args:
        meter: where the bytes of each sender are added up, for those who ask how long they take.
    """

    direction: Direction
    ledgers: Sequence[Ledger]
    encode: bool = False
    meter: Tensor | None = None

    def send(
        self, vector: str, x: Tensor, layout: Layout, codec: Codec, draw: Draw, receivers: int = 1,
        rows: Tensor | slice = slice(None),
    ) -> Tensor:  # fmt: skip
        """Pass x, one vector or a stack of one a client, through a codec; rows: whose these are."""
        if self.encode:
            return self._send_bytes(vector, x, layout, codec, draw, receivers, rows)
        if type(codec).itemise is Codec.itemise:  # sizes that no vector changes
            heard, sizes = codec.quantise(x, layout, draw), codec.itemise({}, layout)
        else:
            parts = codec.compress(x, layout, draw)
            heard, sizes = codec.expand(parts, layout, draw), codec.itemise(parts, layout)
        each = x[..., 0].numel() // len(self.ledgers)
        for i, ledger in enumerate(self.ledgers):
            own = {k: v[i * each : (i + 1) * each] if isinstance(v, Tensor) else v for k, v in sizes.items()}
            ledger.add(self.direction, vector, own, each, receivers)
        if self.meter is not None:
            self.meter[rows] += sum(sizes.values())
        return heard

    def _send_bytes(
        self, vector: str, x: Tensor, layout: Layout, codec: Codec, draw: Draw, receivers: int,
        rows: Tensor | slice,
    ) -> Tensor:  # fmt: skip
        def one(x: Tensor, draw: Draw) -> Tensor:
            message = codec.encode(x, layout, draw)
            items = {"header": wire.HEADER, "body": len(message) - wire.HEADER}
            next(ledgers).add(self.direction, vector, items, receivers=receivers)
            lengths.append(len(message))
            return codec.decode(message, layout, draw)

        each = x[..., 0].numel() // len(self.ledgers)
        ledgers = (ledger for ledger in self.ledgers for _ in range(each))
        lengths: list[int] = []
        heard = _each(one, x, draw)
        if self.meter is not None:
            self.meter[rows] += torch.tensor(lengths, device=self.meter.device)
        return heard


def _each(one: Callable[[Tensor, Draw], Tensor], x: Tensor, draw: Draw) -> Tensor:
    """Do something to every vector of a stack with its own key."""
    if x.dim() == 1:
        return one(x, draw)
    return torch.stack([one(row, Draw(key)) for row, key in zip(x, draw.key, strict=True)])
