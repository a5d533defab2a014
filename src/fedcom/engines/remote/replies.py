"""Replies of clients: checked against the call, decoded, and cut to the length that the terms allow."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from fedcom.codecs.wire import Data
from fedcom.engines.remote import messages, shared
from fedcom.engines.remote.faults import Reason
from fedcom.engines.remote.messages import Envelope, OtherVersion
from fedcom.errors import NotFinite, WireError
from fedcom.formats import printable
from fedcom.rounds.round import Senders, cut_numbers, norms, scaled, server_hears
from fedcom.rounds.rules import Rules
from fedcom.rounds.state import RunState
from fedcom.traffic.channel import Inbox
from fedcom.traffic.ledger import Ledger
from fedcom.vectors import Vectors

_LARGEST_Q = 10.0  # times one plus what the codec promises; no honest client measures more
_MUST_AGREE: dict[Reason, str] = {"other settings": "agreement", "wrong job": "job", "wrong client": "client"}


class Refused(Exception):
    """A reply that does not count.

    Args:
        final: whether the client's next reply in this round is refused too.
    """

    def __init__(self, reason: Reason, detail: str, final: bool = True) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.final = reason, detail, final


class Heard(NamedTuple):
    """What was heard of one client."""

    sent: Vectors
    q: Tensor
    norms: dict[str, float]  # in the model's units, by vector
    factors: tuple[float, ...]  # by what the vectors were multiplied; empty: none was too long
    bill: Ledger


def largest(rules: Rules) -> int:
    """The most bytes that an honest reply can have."""
    vectors, dense = len(rules.algorithm.uploads), 2 * rules.layout.size * rules.layout.itemsize + 2**16
    numbers = len(rules.algorithm.numbers)
    return vectors * dense + numbers * 2**6 + messages.overhead(2 * vectors + numbers + 1)


def body(data: Data, call: Envelope) -> memoryview:
    """The messages in the reply to a call; raises Refused if it is no such reply, or no update."""
    try:
        reply, found = messages.unseal(data)
    except OtherVersion as error:
        raise Refused("other version", str(error), final=False) from None
    except WireError as error:
        raise Refused("malformed", str(error), final=False) from None
    for reason, field in _MUST_AGREE.items():
        got, wanted = getattr(reply, field), getattr(call, field)
        if got != wanted:
            raise Refused(reason, f"got {got!r}, expected {wanted!r}", final=False)
    if reply._replace(kind=call.kind) != call:  # another session, round or generation
        late = (reply.session, reply.round) < (call.session, call.round)
        raise Refused("late" if late else "wrong round", f"it is for round {reply.round}", final=False)
    if reply.kind == messages.LOST:
        raise Refused("state lost", "the client says so")
    if reply.kind == messages.FAILED:
        text = bytes(found[: messages.LONGEST_REASON]).decode(errors="replace")
        raise Refused("failed", f"the client says: {printable(text)}")
    if reply.kind != messages.UPDATE:
        raise Refused("malformed", f"a reply cannot be of kind {reply.kind}")
    return found


def decoded(run: RunState, call: Envelope, share: float, body: Data, bounds: Mapping[str, float]) -> Heard:
    """What an update says.

    Args:
        call: to which the update replies.
        share: the weight of the clients that were called among all.
        body: that of the update.
        bounds: how long each vector may be, in the model's units; those that are longer are scaled down.
    """
    rules, bill = run.rules.at(call.round), Ledger(run.rules.clients)
    who = shared.sender(run, call.round, call.client, share)
    try:
        mail = messages.split(body)
        sent, q = server_hears(rules, who, run.server.w, Inbox("uplink", [bill], encode=True, mail=[mail]))
        if mail:
            raise WireError(f"{len(mail)} messages too many")
        for name, x in sent.items():
            if not math.isfinite(x.sum()) and not x.isfinite().all():
                raise NotFinite(f"vector {name} overflows")
        if rules.sends_q and not 0 <= float(q) <= _largest_q(rules, who):
            raise WireError(f"a q of {float(q):g} is not possible")
    except NotFinite as error:
        raise Refused("not finite", str(error)) from None
    except WireError as error:
        raise Refused("malformed", str(error)) from None
    sent = cut_numbers(rules, who, sent, bounds)
    lengths = norms(rules, sent, who.rnd)
    factors = {name: bounds[name] / x if x > bounds[name] else 1.0 for name, x in lengths.items()}
    if min(factors.values()) == 1:
        return Heard(sent, q, lengths, (), bill)
    return Heard(scaled(sent, factors), q, lengths, tuple(factors.values()), bill)


def _largest_q(rules: Rules, who: Senders) -> float:
    ((codec, _),) = rules.links.uplinks(who.clients)
    return _LARGEST_Q * (1 + codec.variance(rules.layout))
