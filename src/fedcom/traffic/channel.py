"""One direction of traffic: sends vectors through codecs and books their bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcom.codecs import Codec
from fedcom.draws import Draw
from fedcom.traffic.ledger import Direction, Ledger
from fedcom.vectors import Layout


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
        self,
        vector: str,
        x: Tensor,
        layout: Layout,
        codec: Codec,
        draw: Draw,
        receivers: int = 1,
        rows: Tensor | slice = slice(None),
    ) -> Tensor:
        """Pass a vector, or a stack of one vector per client, through a codec; what is heard.

        Args:
            vector: its name in the books.
            draw: one key, or one key per client.
            receivers: how many hear each message; all of them are booked.
            rows: whose vectors these are among those that have a place in the meter.
        """
        if self.encode:
            return self._send_bytes(vector, x, layout, codec, draw, receivers, rows)
        heard, sizes = codec.transmit(x, layout, draw)
        # One number per message, also of a single vector, whose sizes have no axis.
        sizes = {part: n.reshape(-1) if isinstance(n, Tensor) else n for part, n in sizes.items()}
        each = x[..., 0].numel() // len(self.ledgers)
        for i, ledger in enumerate(self.ledgers):
            own = {k: v[i * each : (i + 1) * each] if isinstance(v, Tensor) else v for k, v in sizes.items()}
            ledger.add(self.direction, vector, own, each, receivers)
        if self.meter is not None:
            self.meter[rows] += sum(sizes.values())
        return heard

    def _send_bytes(
        self,
        vector: str,
        x: Tensor,
        layout: Layout,
        codec: Codec,
        draw: Draw,
        receivers: int,
        rows: Tensor | slice,
    ) -> Tensor:
        def one(x: Tensor, draw: Draw) -> Tensor:
            message = codec.encode(x, layout, draw)
            items = {"header": codec.format.HEADER, "body": len(message) - codec.format.HEADER}
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
