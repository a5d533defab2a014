"""One direction of traffic: sends vectors through codecs and enters their bytes in ledgers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcom.codecs import Codec, wire
from fedcom.codecs.wire import Data
from fedcom.draws import Draw
from fedcom.errors import NotFinite, WireError
from fedcom.traffic.ledger import Direction, Ledger
from fedcom.vectors import Layout

_HALF = torch.float16
_SEED = 8  # bytes of a seed
_SEED_ID = 127  # where other messages have the id of their codec
SEED_BYTES = wire.HEADER + _SEED
Mail = list[Data]  # the messages of one sender in one round


@dataclass(frozen=True)
class Channel:
    """Sends vectors in one direction, enters their bytes in ledgers, and returns what is heard.

    Args:
        ledgers: one per run; each takes an equal share of a stack of messages, in order.
        encode: whether messages are really made and decoded, or their bytes only counted.
        meter: where the bytes of each sender are added up, for modelled time; None: nowhere.
        mail: where the messages of each sender are put, if they are to travel; None: nowhere.
    """

    direction: Direction
    ledgers: Sequence[Ledger]
    encode: bool = False
    meter: Tensor | None = None
    mail: Sequence[Mail] | None = None

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
        """Pass a vector, or a stack with one vector per client, through a codec; returns what is heard.

        Args:
            vector: its name in the ledger.
            draw: one key, or one key per client.
            receivers: how many receive each message; its bytes are counted for each of them.
            rows: where the senders are in the meter.
        """
        if self.encode:
            return self._send_bytes(vector, x, layout, codec, draw, receivers, rows)
        heard, sizes = codec.transmit(x, layout, draw)
        # One number per message: the sizes of a single vector have no axis.
        sizes = {part: n.reshape(-1) if isinstance(n, Tensor) else n for part, n in sizes.items()}
        messages = x[..., 0].numel() // len(self.ledgers)
        exact = codec.counts_exactly(x)
        for i, ledger in enumerate(self.ledgers):
            share = slice(i * messages, (i + 1) * messages)
            items = {part: n[share] if isinstance(n, Tensor) else n for part, n in sizes.items()}
            ledger.add(self.direction, vector, items, messages, receivers, exact)
        if self.meter is not None:
            self.meter[rows] += sum(sizes.values())
        return heard

    def append(
        self,
        vector: str,
        part: str,
        numbers: Tensor,
        receivers: int = 1,
        rows: Tensor | slice = slice(None),
    ) -> Tensor:
        """Add one number in half precision to each message just sent; what is heard of them.

        Args:
            vector: the name in the ledger of what the messages hold.
            part: the name of the number in the ledger.
            numbers: one number, or one per message.
            receivers: how many hear each message.
            rows: where the senders are in the meter.
        """
        messages = numbers.numel() // len(self.ledgers)
        for ledger in self.ledgers:
            ledger.add(self.direction, vector, {part: _HALF.itemsize}, messages, receivers)
        if self.meter is not None:
            self.meter[rows] += _HALF.itemsize
        halves = numbers.clamp(max=torch.finfo(_HALF).max).to(_HALF)
        if self.mail is not None:
            for mail, half in zip(self._boxes(rows), halves.reshape(-1), strict=True):
                mail.append(half.cpu().numpy().tobytes())
        return halves.to(numbers.dtype)

    def send_seed(self, vector: str, seed: int, layout: Layout, receivers: int = 1) -> None:
        """Send the seed of a model in place of the model.

        Args:
            vector: the name of the model in the ledger.
            layout: of the model.
            receivers: how many receive it.
        """
        if self.encode:
            message = wire.frame(_SEED_ID, layout.fingerprint, seed.to_bytes(_SEED, "little"))
            heard = wire.unframe(_SEED_ID, layout.fingerprint, message)
            wire.check("seed", int.from_bytes(heard, "little"), seed)
            for mail in self.mail or ():
                mail.append(message)
        for ledger in self.ledgers:
            items = {"header": wire.HEADER, "seed": _SEED}
            ledger.add(self.direction, vector, items, receivers=receivers)
        if self.meter is not None:
            self.meter.add_(SEED_BYTES)

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
            messages.append(message)
            return codec.decode(message, layout, draw)

        share = x[..., 0].numel() // len(self.ledgers)
        ledgers = (ledger for ledger in self.ledgers for _ in range(share))
        messages: list[bytes] = []
        heard = _one_by_one(one, x, draw)
        if self.meter is not None:
            self.meter[rows] += torch.tensor([len(message) for message in messages], device=self.meter.device)
        if self.mail is not None:
            for mail, message in zip(self._boxes(rows), messages, strict=True):
                mail.append(message)
        return heard

    def _boxes(self, rows: Tensor | slice) -> Sequence[Mail]:
        """The mail of some senders."""
        assert self.mail is not None
        return self.mail[rows] if isinstance(rows, slice) else [self.mail[i] for i in rows.tolist()]


@dataclass(frozen=True)
class Inbox(Channel):
    """The other end of a channel: what is sent into it is left aside, and what is in the mail is heard.

    Its ledgers, if any, are entered with the bytes that were in the mail.
    """

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
        """The vectors in the next message of each sender; one vector if x is one."""

        def one(x: Tensor, draw: Draw) -> Tensor:
            message = _next(boxes)
            items = {"header": codec.format.HEADER, "body": len(message) - codec.format.HEADER}
            for ledger in self.ledgers:
                ledger.add(self.direction, vector, items)
            return codec.decode(message, layout, draw)

        boxes = iter(self._boxes(rows))
        return _one_by_one(one, x, draw)

    def append(
        self,
        vector: str,
        part: str,
        numbers: Tensor,
        receivers: int = 1,
        rows: Tensor | slice = slice(None),
    ) -> Tensor:
        """The number that comes next in the mail of each sender."""
        boxes = self._boxes(rows)
        raw = [_next(iter([box])) for box in boxes]
        for message in raw:
            wire.check_length(memoryview(message), _HALF.itemsize)
            for ledger in self.ledgers:
                ledger.add(self.direction, vector, {part: _HALF.itemsize})
        halves = torch.frombuffer(bytearray(b"".join(raw)), dtype=_HALF).reshape(numbers.shape)
        if not halves.isfinite().all():
            raise NotFinite(f"{part} is not finite")
        return halves.to(numbers.device, numbers.dtype)

    def hear_seed(self, layout: Layout) -> int:
        """The seed in the next message, in place of a model of this layout."""
        body = wire.unframe(_SEED_ID, layout.fingerprint, _next(iter(self.mail or ())))
        wire.check_length(body, _SEED)
        return int.from_bytes(body, "little")


def _next(boxes: Iterator[Mail]) -> Data:
    """The next message of the next sender."""
    box = next(boxes)
    if not box:
        raise WireError("a message is missing")
    return box.pop(0)


def _one_by_one(one: Callable[[Tensor, Draw], Tensor], x: Tensor, draw: Draw) -> Tensor:
    """Apply a function to every vector of a stack, each with its own key."""
    if x.dim() == 1:
        return one(x, draw)
    if len(x) == 1:
        return one(x[0], draw[0]).unsqueeze(0)
    return torch.stack([one(row, draw[i]) for i, row in enumerate(x)])
