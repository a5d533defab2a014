"""One direction of traffic: sends vectors through codecs and enters their bytes in ledgers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcom.codecs import Codec, wire
from fedcom.codecs.base import Sizes
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
            heard, sizes = self._pass_bytes(x, layout, codec, draw, rows)
        else:
            heard, sizes = codec.transmit(x, layout, draw)
        # One number per message: the sizes of a single vector have no axis.
        sizes = {part: n.reshape(-1) if isinstance(n, Tensor) else n for part, n in sizes.items()}
        messages = x[..., 0].numel() // max(1, len(self.ledgers))
        exact = self.encode or codec.counts_exactly(x)
        for i, ledger in enumerate(self.ledgers):
            share = slice(i * messages, (i + 1) * messages)
            items = {part: n[share] if isinstance(n, Tensor) else n for part, n in sizes.items()}
            ledger.add(self.direction, vector, items, messages, receivers, exact, layout.size)
        if self.meter is not None:
            self.meter[rows] += sum(sizes.values())
        return heard

    def _pass_bytes(
        self, x: Tensor, layout: Layout, codec: Codec, draw: Draw, rows: Tensor | slice
    ) -> tuple[Tensor, Sizes]:
        """Make the message of every vector and decode it: what is heard, and the bytes of each by part."""
        boxes, lengths, header = iter(self._boxes(rows)), list[int](), codec.format.HEADER

        def one(x: Tensor, draw: Draw) -> Tensor:
            message = self._message(next(boxes, []), x, layout, codec, draw)
            lengths.append(len(message))
            return codec.decode(message, layout, draw)

        if x.dim() == 1:
            heard = one(x, draw)
        elif len(x) == 1:
            heard = one(x[0], draw[0]).unsqueeze(0)
        else:
            heard = torch.stack([one(row, draw[i]) for i, row in enumerate(x)])
        return heard, {"header": header, "body": torch.tensor(lengths, device=x.device) - header}

    def _message(self, box: Mail, x: Tensor, layout: Layout, codec: Codec, draw: Draw) -> Data:
        """The message of one vector, which is put into its sender's mail."""
        box.append(message := codec.encode(x, layout, draw))
        return message

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
        halves = self._pass_halves(part, numbers, rows)
        messages = numbers.numel() // max(1, len(self.ledgers))
        for ledger in self.ledgers:
            ledger.add(self.direction, vector, {part: _HALF.itemsize}, messages, receivers)
        if self.meter is not None:
            self.meter[rows] += _HALF.itemsize
        return halves.to(numbers.device, numbers.dtype)

    def _pass_halves(self, part: str, numbers: Tensor, rows: Tensor | slice) -> Tensor:
        """The numbers in half precision, which are put into their senders' mail."""
        halves = numbers.clamp(max=torch.finfo(_HALF).max).to(_HALF)
        if self.mail is not None:
            for mail, half in zip(self._boxes(rows), halves.reshape(-1), strict=True):
                mail.append(half.cpu().numpy().tobytes())
        return halves

    def count(self, vector: str, part: str, nbytes: int, receivers: int = 1) -> None:
        """Enter the bytes of something that is not made here.

        Args:
            part: what of the message they are, in the ledger.
        """
        items = {"header": wire.HEADER, part: nbytes}
        for ledger in self.ledgers:
            ledger.add(self.direction, vector, items, receivers=receivers)
        if self.meter is not None:
            self.meter.add_(wire.HEADER + nbytes)

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

    def _boxes(self, rows: Tensor | slice) -> Sequence[Mail]:
        """The mail of some senders; none if messages do not travel."""
        if self.mail is None:
            return ()
        return self.mail[rows] if isinstance(rows, slice) else [self.mail[i] for i in rows.tolist()]


@dataclass(frozen=True)
class Inbox(Channel):
    """The receiver's end of a channel: it ignores the vectors it is given, and returns those in the mail.

    The bytes in the mail are entered in its ledgers, if it has any.
    """

    def _message(self, box: Mail, x: Tensor, layout: Layout, codec: Codec, draw: Draw) -> Data:
        return _next(box)

    def _pass_halves(self, part: str, numbers: Tensor, rows: Tensor | slice) -> Tensor:
        raw = [_next(box) for box in self._boxes(rows)]
        for message in raw:
            wire.check_length(memoryview(message), _HALF.itemsize)
        halves = torch.frombuffer(bytearray(b"".join(raw)), dtype=_HALF).reshape(numbers.shape)
        if not halves.isfinite().all():
            raise NotFinite(f"{part} is not finite")
        return halves

    def hear_seed(self, layout: Layout) -> int:
        """The seed in the next message, in place of a model of this layout."""
        (box,) = self._boxes(slice(None))
        body = wire.unframe(_SEED_ID, layout.fingerprint, _next(box))
        wire.check_length(body, _SEED)
        return int.from_bytes(body, "little")


def _next(box: Mail) -> Data:
    """The next message of a sender."""
    if not box:
        raise WireError("a message is missing")
    return box.pop(0)
