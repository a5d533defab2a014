"""Compression alone, for an app that has a strategy of its own: a mod for clients, a strategy around another.

    client_app = ClientApp(mods=[compression(Int(8))])
    strategy = Compressed(FedAvg(), Int(8))

Clients send what their training changed, through the codec; the strategy inside is given whole models again.
Only unbiased codecs: clients keep nothing between rounds that could make up for a bias.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedcom.codecs import Codec
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.vectors import Layout

log = logging.getLogger("fedcom")
_RECORD, _ROUND = "fedcom", "server-round"
Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


def compression(codec: Codec, seed: int = 0, arrays: str = "arrays", config: str = "config") -> Mod:
    """A mod that compresses what a ClientApp's training changed; the server needs `Compressed`.

    Args:
        seed: of the random numbers that both sides share.
        arrays: the name of the model's record in messages.
        config: the name of the record that has the round's number.
    """
    _refuse_biased(codec)

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        if not message.metadata.message_type.startswith("train") or arrays not in message.content:
            return call_next(message, context)
        before = _tensors(message.content[arrays])
        layout, start = _layout(before), _flat(before)
        draw = _draw(seed, message.content[config][_ROUND], context.node_id)
        reply = call_next(message, context)
        if reply.has_error() or arrays not in reply.content:
            return reply
        after = _tensors(reply.content[arrays])
        if _layout(after) != layout:
            raise ConfigError("the ClientApp returns arrays of other names or shapes than it was sent")
        data = codec.encode(_flat(after) - start, layout, draw)
        rest = {name: Array(x.numpy()) for name, x in after.items() if not x.is_floating_point()}
        reply.content[arrays] = ArrayRecord(rest)
        reply.content[_RECORD] = ConfigRecord({"update": data})
        return reply

    return mod


class Compressed(Strategy):  # type: ignore[misc, unused-ignore]
    """Another strategy, whose clients compress what they send by the mod `compression`.

    Args:
        inner: it is given whole models.
        seed: as the mod's.
        arrays: as the mod's.
    """

    def __init__(self, inner: Strategy, codec: Codec, seed: int = 0, arrays: str = "arrays") -> None:
        _refuse_biased(codec)
        self.inner, self.codec, self.seed, self.arrays = inner, codec, seed, arrays
        self._sent: dict[str, Tensor] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages."""
        self._sent = _tensors(arrays)
        config[_ROUND] = server_round
        calls: Iterable[Message] = self.inner.configure_train(server_round, arrays, config, grid)
        return calls

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the inner strategy makes of the models; replies that cannot be decoded are left out."""
        whole = list(self._decoded(server_round, replies))
        found: tuple[ArrayRecord | None, MetricRecord | None] = self.inner.aggregate_train(
            server_round, whole
        )
        return found

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages."""
        calls: Iterable[Message] = self.inner.configure_evaluate(server_round, arrays, config, grid)
        return calls

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The inner strategy's metrics."""
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the settings."""
        log.info("compressed by %r", self.codec)
        self.inner.summary()

    def _decoded(self, server_round: int, replies: Iterable[Message]) -> Iterable[Message]:
        layout, start = _layout(self._sent), _flat(self._sent)
        for reply in replies:
            if reply.has_error():
                yield reply
                continue
            node = reply.metadata.src_node_id
            try:
                data = _update(reply.content)
                change = self.codec.decode(data, layout, _draw(self.seed, server_round, node))
                rest = _tensors(reply.content[self.arrays])
                model = self._whole(start + change, layout, rest)
            except (WireError, KeyError, TypeError, ValueError) as error:
                log.warning("round %d: the reply of node %d is refused: %s", server_round, node, error)
                continue
            reply.content[self.arrays] = model
            del reply.content[_RECORD]
            yield reply

    def _whole(self, w: Tensor, layout: Layout, rest: dict[str, Tensor]) -> ArrayRecord:
        """The arrays of a model in their order."""
        floats = layout.tensors(w)
        return ArrayRecord(
            {
                name: Array((floats[name].to(x.dtype) if name in floats else rest[name]).numpy())
                for name, x in self._sent.items()
            }
        )


def _update(content: RecordDict) -> bytes:
    data = content[_RECORD]["update"]
    if not isinstance(data, bytes):
        raise WireError("it holds no update; does the ClientApp have the mod `compression`?")
    return data


def _tensors(record: Any) -> dict[str, Tensor]:
    """Copies of a record's arrays."""
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def _layout(tensors: dict[str, Tensor]) -> Layout:
    """The layout of those that are floating-point numbers."""
    floats = {name: tuple(x.shape) for name, x in tensors.items() if x.is_floating_point()}
    return Layout(tuple(floats), tuple(floats.values()))


def _flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1).float() for x in tensors.values() if x.is_floating_point()])


def _draw(seed: int, server_round: Any, node: int) -> Draw:
    """The key of one client in one round; the server derives it itself, so no client can choose it."""
    return Draw.seeded(seed).fold(int(server_round), f"node {node}")


def _refuse_biased(codec: Codec) -> None:
    if not codec.unbiased:
        raise ConfigError(
            f"{codec.name} as set is biased, and clients keep no memory here; use an unbiased codec, such as "
            "int, qsgd, dithered, rotated or auto"
        )
