"""How vectors and numbers travel in a round: by whose codec, cut to which rank, and what goes beside them."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedcom.algorithms.base import Round
from fedcom.codecs import Codec, Identity, compact
from fedcom.draws import Draw
from fedcom.rounds.rules import Rules
from fedcom.traffic.channel import Channel, Inbox
from fedcom.vectors import Layout, Vectors

UNCOMPRESSED = Identity()
_SCALAR = "q"  # the name in the ledger of the measured q, which travels where damping needs it
_NUMBER = "number "  # in the ledger, before the names of the numbers that a method has clients send

SomeRows = Tensor | slice  # of some clients, among those that are computed at once


def send_up(rules: Rules, name: str, clients: Tensor, channel: Channel, draw: Draw, x: Tensor) -> Tensor:
    """Send one vector per client to the server, each by the codec of its budget, or cut to its rank."""
    if rules.ranks is not None:
        heard = torch.zeros_like(x)
        for part, rows in rules.ranks.groups(clients):
            own = channel.send(name, part.of(x[rows]), part.layout, rules.links.uplink, draw[rows], rows=rows)
            heard[rows] = part.into(heard[rows], own)
        return heard

    def send(x: Tensor, codec: Codec, draw: Draw, rows: SomeRows) -> Tensor:
        return _send(rules, channel, name, x, codec, draw, rows=rows)

    return _by_budget(rules, clients, x, draw, send)


def _send(
    rules: Rules,
    channel: Channel,
    name: str,
    x: Tensor,
    codec: Codec,
    draw: Draw,
    receivers: int = 1,
    rows: SomeRows = slice(None),
) -> Tensor:
    """Send a vector through a codec, but BatchNorm's statistics uncompressed: a noisy variance is no use."""
    last = 0 if codec.lossless or rules.own is not None else rules.statistics
    if not last:
        return channel.send(name, x, rules.layout, codec, draw, receivers, rows)
    heard = channel.send(name, x[..., :-last], rules.compressed, codec, draw, receivers, rows)
    exact, layout = x[..., -last:], Layout.vector(last, x.dtype)
    beside = channel.send(f"{name} statistics", exact, layout, UNCOMPRESSED, draw, receivers, rows)
    return torch.cat((heard, beside), -1)


def send_q(rules: Rules, vector: str, clients: Tensor, channel: Channel, draw: Draw, q: Tensor) -> Tensor:
    """Send the measured q of each client to the server, beside the vector that it just sent."""

    def send(q: Tensor, codec: Codec, draw: Draw, rows: SomeRows) -> Tensor:
        return _send_scalar(q, vector, codec, channel, draw, rows=rows)

    return _by_budget(rules, clients, q, draw, send)


def _by_budget(
    rules: Rules,
    clients: Tensor,
    x: Tensor,
    draw: Draw,
    send: Callable[[Tensor, Codec, Draw, SomeRows], Tensor],
) -> Tensor:
    """What is heard of the clients' rows, those with the same codec sent at once."""
    heard = torch.empty_like(x)
    for codec, rows in rules.links.uplinks(clients):
        if len(rows) == len(x):
            return send(x, codec, draw, slice(None))
        heard[rows] = send(x[rows], codec, draw[rows], rows)
    return heard


def _send_scalar(
    number: Tensor,
    vector: str,
    codec: Codec,
    channel: Channel,
    draw: Draw,
    receivers: int = 1,
    rows: SomeRows = slice(None),
) -> Tensor:
    """Send one number per message: inside a message of a compact codec, else in a message of its own.

    Args:
        number: one number, or one number per message.
        vector: the name of the vector that a compact message holds besides.
        codec: of that vector.
    """
    if codec.format is compact:
        return channel.append(vector, _SCALAR, number, receivers, rows)
    return _send_column(_SCALAR, number.unsqueeze(-1), channel, draw, receivers, rows).squeeze(-1)


def send_number(name: str, column: Tensor, channel: Channel, draw: Draw, receivers: int = 1) -> Tensor:
    """Send a number that a method has clients send, one per message, in a message of its own."""
    return _send_column(_NUMBER + name, column, channel, draw, receivers)


def _send_column(
    name: str,
    column: Tensor,
    channel: Channel,
    draw: Draw,
    receivers: int,
    rows: SomeRows = slice(None),
) -> Tensor:
    layout = Layout.vector(1, column.dtype)
    return channel.send(name, column, layout, UNCOMPRESSED, draw, receivers, rows)


def tell(rules: Rules, number: Tensor, channel: Channel, draw: Draw, receivers: int = 1) -> Tensor:
    """Send clients a number beside the mean; what they hear of it.

    Args:
        number: one number, or a column with one per run.
    """
    codec = rules.links.downlink if rules.sends_mean_down else UNCOMPRESSED
    flat = number.flatten() if number.dim() else number
    heard = _send_scalar(flat, rules.algorithm.uploads[0], codec, channel, draw, receivers)
    return heard.reshape(number.shape)


def _mean_key(rules: Rules, draw: Draw, name: str) -> Draw:
    """The key of one vector of the mean."""
    return draw if rules.links.downlink.lossless else draw.fold("downlink", name)


def send_mean(
    rules: Rules, mean: Vectors, memory: Vectors, rnd: Round, channel: Channel, draw: Draw, receivers: int
) -> tuple[Vectors, Vectors]:
    """The mean as clients hear it, and the server's new memory."""
    codec, heard, remembered = rules.links.downlink, {}, {}
    for name in rules.algorithm.uploads:
        x = mean[name]
        units, before = rules.units(name, rnd), memory.get(name, x[..., :0])
        passed = rules.downlink.before(x, before, units)
        key = _mean_key(rules, draw, name)
        decoded = _send(rules, channel, name, passed[-1], codec, key, receivers)
        heard[name], remembered[name], _ = rules.downlink.after(passed, decoded, before, units)
    return heard, remembered if rules.downlink.remembers else {}


def hear_mean(rules: Rules, rnd: Round, w: Tensor, inbox: Inbox, draw: Draw) -> Vectors:
    """The mean as a client hears it: the other end of `send_mean`, and of the mean numbers beside it.

    Args:
        w: a model; only its shape and dtype matter.
    """
    mean: Vectors = {}
    for name in rules.algorithm.uploads:
        decoded = _send(rules, inbox, name, w, rules.links.downlink, _mean_key(rules, draw, name))
        mean[name] = rules.downlink.hear(decoded, rules.units(name, rnd))
    for name in rules.algorithm.numbers:
        mean[name] = send_number(name, w[..., :1], inbox, draw)
    return mean
