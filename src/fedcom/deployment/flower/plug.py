"""Compression alone, for an app that has a strategy of its own: a mod for clients, a strategy around another.

    client_app = ClientApp(mods=[compression(Int(8))])
    strategy = Compressed(FedAvg(), Int(8))

Clients send what their training changed, through the codec; the strategy inside is given whole models again.
Only unbiased codecs: clients keep nothing between rounds that could make up for a bias.
"""

import io
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedcom.codecs import Codec
from fedcom.data.files import array_header
from fedcom.draws import Draw
from fedcom.errors import ConfigError, WireError
from fedcom.formats import printable
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
        told = message.content.get(config)
        if not isinstance(told, ConfigRecord) or _ROUND not in told:
            raise ConfigError(
                f"the call does not say its round ({config!r} has no {_ROUND!r}); is the server's strategy "
                "`Compressed`?"
            )
        draw = _draw(seed, told[_ROUND], context.node_id)
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
        bound: updates that are so many times as long as the round's median are left out; None: none is.
    """

    def __init__(
        self,
        inner: Strategy,
        codec: Codec,
        seed: int = 0,
        arrays: str = "arrays",
        bound: float | None = 10.0,
    ) -> None:
        _refuse_biased(codec)
        if bound is not None and not bound >= 1:
            raise ConfigError(f"bound must be 1 or more, or None; got {bound}")
        self.inner, self.codec, self.seed, self.arrays, self.bound = inner, codec, seed, arrays, bound
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
        """What the inner strategy makes of the models; replies that are not as asked for are left out."""
        whole = self._decoded(server_round, replies)
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

    def _decoded(self, server_round: int, replies: Iterable[Message]) -> list[Message]:
        """The replies with whole models in them; those that are not as asked for are left out and named."""
        layout, start = _layout(self._sent), _flat(self._sent)
        failed, found = list[Message](), list[tuple[Message, _Update]]()
        for reply in replies:
            if reply.has_error():
                failed.append(reply)
                continue
            node = reply.metadata.src_node_id
            try:
                found.append(
                    (reply, self._update(reply.content, layout, _draw(self.seed, server_round, node)))
                )
            except WireError as error:
                _leave_out(server_round, node, str(error))
        for reply, update in self._alike(server_round, found):
            model = self._whole(start + update.change, layout, update.rest)
            reply.content = RecordDict({self.arrays: model, **update.metrics})
            failed.append(reply)
        return failed

    def _update(self, content: RecordDict, layout: Layout, draw: Draw) -> "_Update":
        """What a reply holds, checked against what was sent."""
        record = content.get(_RECORD)
        data = record.get("update") if isinstance(record, ConfigRecord) else None
        if not isinstance(data, bytes):
            raise WireError("it holds no update; does the ClientApp have the mod `compression`?")
        if len(data) > (limit := 2 * layout.size * layout.itemsize + 2**16):
            raise WireError(f"its update has {len(data):,} bytes, where {limit:,} are allowed")
        change = self.codec.decode(data, layout, draw)
        if not bool(change.isfinite().all()):
            raise WireError("its update is not finite")
        arrays = content.get(self.arrays)
        wanted = {name: x for name, x in self._sent.items() if not x.is_floating_point()}
        if not isinstance(arrays, ArrayRecord) or set(arrays) != set(wanted):
            raise WireError(f"its record {self.arrays!r} does not hold the arrays {sorted(wanted)}")
        rest = {name: _checked(name, arrays[name], x) for name, x in wanted.items()}
        metrics = dict(content.metric_records.items())
        for values in metrics.values():
            for name, value in values.items():
                if not all(map(math.isfinite, value if isinstance(value, list) else [value])):
                    raise WireError(f"its metric {name!r} is not finite")
        key = getattr(self.inner, "weighted_by_key", None)
        weights = [values[key] for values in metrics.values() if key in values]
        if key is not None and not (
            len(weights) == 1 and isinstance(weights[0], int | float) and weights[0] > 0
        ):
            raise WireError(f"it needs one metric {key!r} above 0")
        return _Update(change, rest, metrics, float(change.double().norm()))

    def _alike(self, server_round: int, found: "_Found") -> Iterator[tuple[Message, "_Update"]]:
        """The replies without those that stand out: by what their metrics are, or by their length."""
        if not found:
            return
        usual = Counter(update.names for _, update in found).most_common(1)[0][0]
        median = sorted(update.norm for _, update in found)[(len(found) - 1) // 2]
        for reply, update in found:
            node = reply.metadata.src_node_id
            if update.names != usual:
                _leave_out(server_round, node, "its metrics are not those of the others")
            elif self.bound is not None and update.norm > self.bound * median > 0:
                told = f"its update is {update.norm / median:.3g} times as long as the median"
                _leave_out(server_round, node, f"{told}; {self.bound:g} times are allowed")
            else:
                yield reply, update

    def _whole(self, w: Tensor, layout: Layout, rest: dict[str, Tensor]) -> ArrayRecord:
        """The arrays of a model in their order."""
        floats = layout.tensors(w)
        return ArrayRecord(
            {
                name: Array((floats[name].to(x.dtype) if name in floats else rest[name]).numpy())
                for name, x in self._sent.items()
            }
        )


class _Update(NamedTuple):
    """What a client sent.

    Args:
        change: of the model's floating-point numbers.
        rest: its other arrays.
        norm: of the change.
    """

    change: Tensor
    rest: dict[str, Tensor]
    metrics: dict[str, MetricRecord]
    norm: float

    @property
    def names(self) -> frozenset[tuple[str, str, int]]:
        """The names of the metrics, and how many numbers each has."""
        return frozenset(
            (record, name, len(value) if isinstance(value, list) else -1)
            for record, values in self.metrics.items()
            for name, value in values.items()
        )


_Found = list[tuple[Message, _Update]]


def _leave_out(server_round: int, node: int, why: str) -> None:
    log.warning(
        "round %d: the reply of node %d is left out: %s",
        server_round,
        node,
        printable(why),
        extra={"round": server_round, "node": node, "detail": why},
    )


def _checked(name: str, array: Array, like: Tensor) -> Tensor:
    """An array that has the shape and the type of another; its header is read before anything is unpacked."""
    wanted = like.numpy()
    file = io.BytesIO(array.data)
    try:
        shape, columns, dtype = array_header(file)
    except ValueError as error:
        raise WireError(f"its array {name!r} cannot be read: {error}") from None
    body = memoryview(array.data)[file.tell() :]
    if (shape, dtype, len(body)) != (wanted.shape, wanted.dtype, wanted.nbytes):
        raise WireError(
            f"its array {name!r} is {dtype} {shape}, where {wanted.dtype} {wanted.shape} was sent"
        )
    order: Literal["F", "C"] = "F" if columns else "C"
    return torch.from_numpy(np.frombuffer(body, dtype).reshape(shape, order=order).copy())


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
